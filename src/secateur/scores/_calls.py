"""How scores that are more than a function of the weights are called, for those who pass them uncalled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import Parameter, signature
from typing import Any

from secateur.scores._movement import Movement
from secateur.scores._registry import DATA_SCORES
from secateur.scores._synflow import synflow

__all__ = ["how_to_call"]


def how_to_call(score: object) -> str:
    """The line that makes scores of a score that has to be called, or trained with, first; empty for any other.

    Example:
        >>> how_to_call(synflow)
        'score=scores.synflow(model, inputs, sparsity=…)'
    """
    called = score.func if isinstance(score, partial) else score
    if called is Movement or isinstance(called, Movement):
        return "movement = scores.Movement(model, optimizer) before the training, score=movement.scores() after it"
    scorers: list[Callable[..., Any]] = [*DATA_SCORES.values(), synflow]
    scorer = next((each for each in scorers if each is called), None)
    if scorer is None:
        return ""
    needed = [each for each in signature(scorer).parameters.values() if each.default is Parameter.empty]
    shown = [f"{each.name}=…" if each.kind is Parameter.KEYWORD_ONLY else each.name for each in needed]
    return f"score=scores.{scorer.__name__}({', '.join(shown)})"
