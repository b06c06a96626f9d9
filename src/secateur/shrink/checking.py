"""The last step of a cut: the smaller model runs once, and every op is as it was predicted, or all is undone."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from torch import nn

from secateur._errors import UnsupportedError
from secateur.graph.heads import free_heads
from secateur.graph.pretend import Foreseen
from secateur.graph.trace import Inputs, call_with, undisturbed

if TYPE_CHECKING:
    from secateur.shrink.plan import ShrinkPlan

__all__ = ["Tried"]


class Tried:
    """An edit that changes nothing: it runs the model that all edits before it have made.

    Args:
        model: The model.
        inputs: The inputs of the plan's analysis.
        plan: The plan that has been carried out.
    """

    def __init__(self, model: nn.Module, inputs: Inputs, plan: ShrinkPlan) -> None:
        self._model, self._inputs, self._plan = model, inputs, plan

    def do(self) -> None:
        """Run it.

        Raises:
            UnsupportedError: It does not run, or some op does something else than was predicted.
        """
        plan, fix = self._plan, "leave the groups out with ignore=…, and please report the model"
        foreseen = None if plan.coupling is None else Foreseen(plan.coupling, plan.units)
        try:
            with undisturbed(self._model), free_heads(self._model), foreseen or nullcontext():
                call_with(self._model, self._inputs)
        except Exception as error:  # whatever the user's forward raises when a size does not fit
            raise UnsupportedError(f"the smaller model does not run: {error}", fix=fix) from error
        if foreseen is not None and (foreseen.wrong or foreseen.numbers):
            raise UnsupportedError(
                "the smaller model would compute something else: "
                + (foreseen.wrong or f"a size became a value, {'; '.join(foreseen.numbers[:3])}")
                + ". Nothing has been changed.",
                fix=fix,
            )

    def undo(self) -> None:
        """There is nothing to undo."""
