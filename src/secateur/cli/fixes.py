"""What the library's errors advise, said in options: they are written for callers, who pass keyword arguments."""

from __future__ import annotations

import re

__all__ = ["in_options"]

_ANALYZE = "secateur analyze with the same MODEL and --input shows"
_INPUTS = "; --input is given once for each argument of the model, as name=SIZES for a keyword argument"
_WORDS: tuple[tuple[str, str], ...] = (
    (r"print\(secateur\.analyze\(model, example_inputs\)\) shows", _ANALYZE),
    (r"print\(\[n for n, _ in model\.named_parameters\(\)\]\) shows", _ANALYZE),
    (r"; a tuple or list is spread over the arguments, so wrap one that is itself an argument", _INPUTS),
    (r"; give several arguments as a tuple, keyword arguments as a dict", _INPUTS),
    (r"either sparsity=… or budget=…", "either --sparsity or some of --macs, --params and --latency"),
    (r", or round_to=None for any number|, strict=False skips [^\n]*|, or allocation=partial\([^)]*\)", ""),
    (r"fewer min_units, |, or another of secateur\.shrink\.UNIT_SCORES", ""),
    (r'(round_to|scope)="(\w+)"', r"--\1 \2"),
    (r"score=(?:secateur\.)?shrink\.(\w+)", r"--score \1"),
    (r"allocation=allocation\.(\w+)", r"--allocation \1"),
    (r"\b(round_to|min_units|sparsity|seconds|threads)=([\d.]+)", r"--\1 \2"),
    (r"\bsparsity=", "--sparsity"),
    (r"(?<!-)\b(round_to|min_units)\b", r"--\1"),
    (r"less in ignore and overrides", "less in --ignore, --keep and --override"),
    (r"ignore=…", "--ignore GLOB"),
    (r"(include|exclude)=\['([^']*)'\]", r"--\1 '\2'"),
    (r"(include|exclude)=\[[^\]]*\]", r"--\1 GLOB"),
    (r'overrides=\{"([^"]+)": ([\d.]+)\}', r'--override "\1=\2"'),
)
"""What stands in the library's errors -> what it is here, in this order."""

_BUDGET = re.compile(r"(?:budget=)?Budget\(([^)]*)\)")
_CALLERS_ONLY = re.compile(r"^  fix:   .*(?:\bpartial\(|\blambda\b|\bmin-units 1 leaves|\w+=…).*\n?", re.MULTILINE)
"""Advice that no option follows."""


def in_options(text: str) -> str:
    r"""An error of the library with options in place of keyword arguments; advice that no option follows is left out.

    Example:
        >>> in_options("no such sparsity.\n  fix:   half of them: sparsity=0.5")
        'no such sparsity.\n  fix:   half of them: --sparsity 0.5'
    """
    text = _BUDGET.sub(_budget, text)
    for words, options in _WORDS:
        text = re.sub(words, options, text)
    text = re.sub(r"--(round|min)_(to|units)", r"--\1-\2", text)
    return _CALLERS_ONLY.sub("", text).rstrip("\n")


def _budget(found: re.Match[str]) -> str:
    """A budget by what it limits."""
    return " ".join(f"--{name} {share}" for name, share in re.findall(r"(\w+)=([\d.]+)", found[1])) or found[0]
