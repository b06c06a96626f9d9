"""The library's errors, and the one way in which their messages are laid out."""

from __future__ import annotations

__all__ = [
    "HolderError",
    "InfeasibleError",
    "InvalidInputError",
    "SecateurError",
    "ShapeError",
    "StaleGraphError",
    "UnknownStateError",
    "UnsupportedError",
]


class SecateurError(Exception):
    """Root of every error that secateur raises on purpose.

    The message says what cannot be done and why, then what was asked and what was found, then the line that mends it.
    Unless an error's own text says otherwise, nothing has been changed when it is raised.

    Args:
        problem: One sentence: what cannot be done, to what (its dotted name), and why.
        fix: What to do about it, as a line to paste where possible.
        **facts: What was asked and what was found; shown one beside the other.

    Example:
        >>> print(SecateurError("cannot resize 'fc.weight': no dim 2.", fix="dim is 0 or 1", shape=(4, 3), dim=2))
        cannot resize 'fc.weight': no dim 2.
          shape: (4, 3)    dim: 2
          fix:   dim is 0 or 1
    """

    def __init__(self, problem: str, *, fix: str = "", **facts: object) -> None:
        self.problem = problem
        self.fix = fix
        self.facts = facts
        lines = [problem]
        if facts:
            lines.append("  " + "    ".join(f"{key.replace('_', ' ')}: {value}" for key, value in facts.items()))
        if fix:
            lines.append(f"  fix:   {fix}")
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by the parts, so that an error crosses process boundaries whole."""
        return _rebuild, (type(self), self.problem, self.fix, self.facts)


def _rebuild(cls: type[SecateurError], problem: str, fix: str, facts: dict[str, object]) -> SecateurError:
    """Make an error again from its parts."""
    return cls(problem, fix=fix, **facts)


class InvalidInputError(SecateurError, ValueError):
    """An argument that no model could satisfy, or that this model does not: a bad index, name, sparsity, score."""


class ShapeError(InvalidInputError):
    """A dim, an index or a tensor that does not fit the shape of the parameter it is meant for."""


class InfeasibleError(InvalidInputError):
    """A request whose parts contradict each other: more zeros than entries, no unit left in a layer."""


class UnsupportedError(SecateurError, NotImplementedError):
    """A kind of parameter, module or wrapper that cannot be changed soundly; the message says why."""


class HolderError(SecateurError, RuntimeError):
    """Something refers to a parameter and cannot follow its change, or was not passed, or does not hold it."""


class UnknownStateError(HolderError):
    """An optimizer keeps an entry whose meaning is not known, so it cannot be made to follow."""


class StaleGraphError(SecateurError, RuntimeError):
    """A backward pass ran through a graph that was built before a parameter changed its shape."""


for _name in __all__:
    globals()[_name].__module__ = "secateur"  # shown in tracebacks by the name that users import
