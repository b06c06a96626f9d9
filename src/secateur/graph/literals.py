"""Whether a number stands in the code as such: the expression that is under way in a frame, read from its source.

A plain ``int`` that reaches torch may be a literal, or may have been computed from a size in a way that leaves no trace
(``int(n)``, numpy). Only the source tells: the same literal is the same number in every run.
"""

from __future__ import annotations

import ast
import linecache
import os
from functools import lru_cache
from itertools import islice
from types import CodeType, FrameType

__all__ = ["Site", "is_literal"]


class Site:
    """The expression that a frame is about to compute.

    Args:
        frame: The frame, in which a call or a subscription is under way.
    """

    def __init__(self, frame: FrameType) -> None:
        self._code = frame.f_code
        self._instruction = frame.f_lasti // 2
        self._line = frame.f_lineno

    def __str__(self) -> str:
        """The file and the line, ``layers.py:12``."""
        return f"{os.path.basename(self._code.co_filename)}:{self._line}"

    @property
    def node(self) -> ast.expr | None:
        """The expression; None where there is no source."""
        return _expression(self._code, self._instruction)

    def index(self, number: int) -> list[ast.expr | None]:
        """The parts of the index of a subscription, if there are so many of them; else nothing is known of any."""
        node = self.node
        if not isinstance(node, ast.Subscript):
            return [None] * number
        parts = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
        return [None] * number if len(parts) != number else [*parts]

    def arguments(self, *names: str) -> list[ast.expr | None]:
        """The last positional arguments of a call, or those of these names."""
        node = self.node
        if not isinstance(node, ast.Call):
            return [None] * len(names)
        named = {keyword.arg: keyword.value for keyword in node.keywords}
        positional = iter(node.args[-sum(name not in named for name in names) :] if len(named) < len(names) else ())
        return [named.get(name) or next(positional, None) for name in names]


@lru_cache(maxsize=256)
def _expression(code: CodeType, instruction: int) -> ast.expr | None:
    """The expression of one instruction; loops and layers of one class come to the same ones again and again."""
    first, last, start, end = next(islice(code.co_positions(), instruction, None), (None,) * 4)
    if first is None or last is None or start is None or end is None:
        return None
    lines = [line.encode() for line in linecache.getlines(code.co_filename)[first - 1 : last]]
    if not lines:
        return None
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    try:
        return ast.parse(b"(" + b"".join(lines) + b")", mode="eval").body
    except SyntaxError:
        return None


def is_literal(node: ast.expr | None, number: object) -> bool:
    """Whether an expression is this integer, written out."""
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node, sign = node.operand, -1
    return isinstance(node, ast.Constant) and type(node.value) is int and sign * node.value == number
