"""Compile the kernels, with the compiler that is there: used by the package's own build, by `make`, and by tests.

Nothing but the standard library is imported here, since a build has nothing else.

    python src/secateur/_native/compiling.py [--sanitize] [OUTPUT]

With ``--sanitize`` it prints what has to be in ``LD_PRELOAD`` when the library is used.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

__all__ = [
    "LIBRARY",
    "SOURCES",
    "CompileError",
    "UnavailableError",
    "compile_library",
    "compiler",
    "sanitizer_runtimes",
]

HERE = Path(__file__).parent
SOURCES = HERE / "sources"
"""Folder of the C sources."""
LIBRARY = HERE / "kernels.so"
"""Where the compiled library belongs."""

_FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-Wall", "-Wextra", "-Werror=implicit-function-declaration", "-fno-math-errno")
_SANITIZERS = (
    "-O1",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-fno-omit-frame-pointer",
    "-g",
)
_OPENMP = "-fopenmp"
_EXACT = ("stepping.c",)
"""Sources that have to round as torch does: no product and sum are contracted unless the source says so."""

_LEVELS = {
    "portable": (),
    "avx2": ("-march=x86-64-v3",),
    "avx512": ("-march=x86-64-v4", "-mprefer-vector-width=512"),
}
_X86 = ("x86_64", "amd64")


class CompileError(RuntimeError):
    """No compiler, or one that could not compile the kernels; the text has what it said."""


class UnavailableError(CompileError):
    """There is nothing here that could do what is asked for."""


def compiler() -> list[str] | None:
    """The command of a C compiler: that of the variable ``CC``, the one that Python was built with, or a usual one."""
    built_with = sysconfig.get_config_var("CC") or ""
    for command in (os.environ.get("CC", ""), built_with, "cc", "gcc", "clang"):
        parts = shlex.split(command)
        if parts and shutil.which(parts[0]):
            return parts
    return None


def compile_library(output: Path = LIBRARY, *, sanitize: bool = False) -> Path:
    """Compile every source once for each instruction set that this machine's compiler knows, and link them.

    Args:
        output: The file to write; it is replaced as a whole, at the end.
        sanitize: Have the library check its memory accesses and its arithmetic as it runs (ASan, UBSan).

    Returns:
        `output`.

    Raises:
        UnavailableError: There is no compiler, or it has no sanitizers.
        CompileError: It fails.
    """
    command = _command()
    if sanitize:
        sanitizer_runtimes()
    flags = [*_FLAGS, *(_SANITIZERS if sanitize else ())]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        if _accepts(command, [_OPENMP], place):
            flags.append(_OPENMP)
        levels = [level for level in _levels() if _accepts(command, list(_LEVELS[level]), place)]
        compilations = dict(_compilations([*command, *flags], levels, place))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(_run, compilations.values()))
        made = place / output.name
        _run([*command, *flags, "-shared", *map(str, compilations), "-o", str(made), "-lm"])
        output.parent.mkdir(parents=True, exist_ok=True)
        beside = output.with_name(f"{output.name}.{os.getpid()}")  # a process that has it mapped keeps the old file
        shutil.copy(made, beside)
        beside.replace(output)
    return output


def sanitizer_runtimes() -> list[Path]:
    """Libraries that a process must have loaded before it loads a sanitized library (``LD_PRELOAD``).

    Raises:
        UnavailableError: There is no compiler, or it has no sanitizers.
    """
    command, found = _command(), []
    for name in ("libasan.so", "libstdc++.so.6"):  # the first wants to find what throws exceptions in the second
        done = subprocess.run([*command, f"-print-file-name={name}"], capture_output=True, text=True)
        found.append(Path(done.stdout.strip()))
    if not all(path.is_absolute() and path.exists() for path in found):
        raise UnavailableError(f"{command[0]} has no sanitizers (those of gcc are known)")
    return found


def _command() -> list[str]:
    """The command of the compiler, which must be there."""
    found = compiler()
    if found is None:
        raise UnavailableError("no C compiler was found (cc, gcc, clang, or the variable CC)")
    return found


def _levels() -> Sequence[str]:
    """Instruction sets of this kind of machine, the least first."""
    return tuple(_LEVELS) if platform.machine().lower() in _X86 else ("portable",)


def _compilations(command: list[str], levels: Sequence[str], place: Path) -> Iterator[tuple[Path, list[str]]]:
    """Each source for each level, and once what is the same on all of them: the object file, and the command for it."""
    known = [f"-DHAS_{level.upper()}" for level in levels]
    for source in sorted(SOURCES.glob("*.c")):
        contract = "off" if source.name in _EXACT else "fast"
        for level in ["portable"] if source.name == "level.c" else levels:
            made = place / f"{source.stem}-{level}.o"
            options = [*known, *_LEVELS[level], f"-DLEVEL={level}", f"-ffp-contract={contract}"]
            yield made, [*command, *options, "-c", str(source), "-o", str(made)]


def _accepts(command: list[str], options: list[str], place: Path) -> bool:
    """Whether the compiler takes some options."""
    source = place / "empty.c"
    source.write_text("int empty(void) { return 0; }\n")
    done = subprocess.run(
        [*command, *options, "-shared", "-fPIC", str(source), "-o", str(place / "empty.so")], capture_output=True
    )
    return done.returncode == 0


def _run(command: list[str]) -> None:
    """Run one command of the compiler."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise CompileError(f"{shlex.join(command)}\n{done.stderr or done.stdout}")


def _main(arguments: list[str]) -> int:
    """Compile as asked on the command line; 3 if there is nothing to do it with."""
    sanitize = "--sanitize" in arguments
    names = [argument for argument in arguments if not argument.startswith("-")]
    try:
        compile_library(Path(names[0]) if names else LIBRARY, sanitize=sanitize)
        if sanitize:
            sys.stdout.write(" ".join(map(str, sanitizer_runtimes())) + "\n")
    except CompileError as error:
        what = "the sanitized kernels were not compiled" if sanitize else "everything runs in pure torch"
        sys.stderr.write(f"{what}: {error}\n")
        return 3 if isinstance(error, UnavailableError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
