"""``secateur completion``: what has a shell complete the words of ``secateur``."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from secateur.cli.screen import Screen

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["add_parser"]


@dataclass(frozen=True)
class _Word:
    """An option, or a subcommand: what it is called, what it is for, and which values it takes, if they are few."""

    name: str
    help: str
    takes_value: bool = False
    choices: tuple[str, ...] = ()


_Commands = dict[_Word, list[_Word]]


def add_parser(commands: _SubParsersAction[Any]) -> None:
    """Add ``completion`` to the command line."""
    parser = commands.add_parser(
        "completion",
        help="print a completion script for a shell",
        description="secateur completion bash > ~/.local/share/bash-completion/completions/secateur; "
        "secateur completion zsh > ~/.zfunc/_secateur, for a folder of fpath; "
        "secateur completion fish > ~/.config/fish/completions/secateur.fish",
    )
    parser.add_argument("shell", choices=sorted(_SCRIPTS), help="the shell")
    parser.set_defaults(run=lambda options, screen: run(options, screen, commands))


def run(options: argparse.Namespace, screen: Screen, commands: _SubParsersAction[Any]) -> dict[str, Any]:
    """Print the script."""
    helps = {action.dest: action.help or "" for action in commands._choices_actions}
    words = {_Word(name, helps[name]): list(_words(parser)) for name, parser in commands.choices.items()}
    script = "\n".join(_SCRIPTS[options.shell](words)) + "\n"
    screen.console.out(script, end="", highlight=False)
    return {"shell": options.shell, "script": script}


def _words(parser: argparse.ArgumentParser) -> Iterator[_Word]:
    """The options of a subcommand, and the choices of its arguments."""
    for action in parser._actions:
        choices = tuple(map(str, action.choices or ()))
        if action.option_strings:
            yield _Word(action.option_strings[-1], action.help or "", action.nargs != 0, choices)
        else:
            yield from (_Word(choice, "") for choice in choices)


def _bash(commands: _Commands) -> Iterator[str]:
    """For bash: words of the subcommand, values of options with few of them, and files."""
    yield "_secateur() {"
    yield '    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" words='
    yield '    if [ "$COMP_CWORD" -eq 1 ]; then'
    yield f"        words={_joined(commands)}"
    yield "    else"
    yield '        case "${COMP_WORDS[1]} $before" in'
    for command, words in commands.items():
        for word in words:
            if word.takes_value:
                choices = shlex.quote(" ".join(word.choices))
                yield f"            {shlex.quote(f'{command.name} {word.name}')}) words={choices} ;;"
    yield "            *)"
    yield '                case "${COMP_WORDS[1]}" in'
    for command, words in commands.items():
        yield f"                    {command.name}) words={_joined(words)} ;;"
    yield "                esac ;;"
    yield "        esac"
    yield "    fi"
    yield '    COMPREPLY=($(compgen -W "$words" -- "$word"))'
    yield "}"
    yield "complete -o default -F _secateur secateur"


def _zsh(commands: _Commands) -> Iterator[str]:
    """For zsh, with descriptions."""
    yield "#compdef secateur"
    yield "_secateur() {"
    yield "    local -a found"
    yield "    if (( CURRENT == 2 )); then"
    yield f"        found=({_described(commands)})"
    yield "        _describe command found"
    yield "        return"
    yield "    fi"
    yield '    case "$words[2] $words[CURRENT-1]" in'
    for command, words in commands.items():
        for word in words:
            if word.takes_value:
                act = f"compadd -- {' '.join(map(shlex.quote, word.choices))}" if word.choices else "_files"
                yield f"        {shlex.quote(f'{command.name} {word.name}')}) {act}; return ;;"
    yield "    esac"
    yield '    case "$words[2]" in'
    for command, words in commands.items():
        yield f"        {command.name}) found=({_described(words)}) ;;"
    yield "    esac"
    yield "    _describe option found"
    yield "    _files"
    yield "}"
    yield 'if [ "$funcstack[1]" = _secateur ]; then _secateur "$@"; else compdef _secateur secateur; fi'


def _fish(commands: _Commands) -> Iterator[str]:
    """For fish, with descriptions."""
    for command, words in commands.items():
        told = shlex.quote(command.help)
        yield f"complete -c secateur -n __fish_use_subcommand -f -a {command.name} -d {told}"
        where = shlex.quote(f"__fish_seen_subcommand_from {command.name}")
        for word in words:
            told = shlex.quote(word.help.replace("%%", "%"))
            if word.name.startswith("-"):
                values = " -x -a " + shlex.quote(" ".join(word.choices)) if word.choices else " -r" * word.takes_value
                yield f"complete -c secateur -n {where} -l {word.name.lstrip('-')}{values} -d {told}"
            else:
                yield f"complete -c secateur -n {where} -f -a {word.name}"


def _joined(words: Any) -> str:
    """Names of words, as one word of a shell."""
    return shlex.quote(" ".join(word.name for word in words))


def _described(words: Any) -> str:
    """Words with what they are for, each as one word of zsh, which has a colon between the two."""
    return " ".join(shlex.quote(f"{word.name}:{word.help.replace('%%', '%').replace(':', ' ')}") for word in words)


_SCRIPTS: dict[str, Callable[[_Commands], Iterator[str]]] = {"bash": _bash, "fish": _fish, "zsh": _zsh}
