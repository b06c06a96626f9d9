"""The last step of a cut: the smaller model runs once, and does what it was predicted to do, or all is undone."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from torch import nn

from secateur._errors import UnsupportedError
from secateur._passes import Inputs, call_with, undisturbed
from secateur.graph.heads import free_heads
from secateur.graph.outlining import Outline, in_earnest, outlined_first
from secateur.graph.pretend import Foreseen
from secateur.graph.writes import weights_restored

if TYPE_CHECKING:
    from secateur.shrink.plan import ShrinkPlan
    from secateur.shrink.verifying import Reference

__all__ = ["Tried", "Verified"]


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
        fix = "leave the groups out with ignore=…, and please report the model"
        try:
            coupling = self._plan.coupling
            by_values = coupling is None or coupling.by_values
            foreseen = self._run(None) if by_values else outlined_first(self._run)
        except Exception as error:  # whatever the user's forward raises when a size does not fit
            raise UnsupportedError(f"the smaller model does not run: {error}", fix=fix) from error
        if foreseen is not None and (foreseen.wrong or foreseen.numbers):
            raise UnsupportedError(
                "the smaller model would compute something else: "
                + (foreseen.wrong or f"a size became a value, {'; '.join(foreseen.numbers[:3])}")
                + ". Nothing has been changed.",
                fix=fix,
            )

    def _run(self, outline: Outline | None) -> Foreseen | None:
        """Run the model; a plan that was loaded foresees nothing."""
        coupling, units = self._plan.coupling, self._plan.units
        with (
            undisturbed(self._model),
            weights_restored(self._model, outline or in_earnest) as execute,
            free_heads(self._model),
            nullcontext() if coupling is None else Foreseen(coupling, units, execute) as foreseen,
        ):
            call_with(self._model, self._inputs)
        return foreseen

    def undo(self) -> None:
        """There is nothing to undo."""


class Verified:
    """An edit that changes nothing: it compares the model that all edits before it have made with a reference.

    Args:
        model: The model.
        inputs: The inputs of the reference.
        plan: The plan that has been carried out.
        reference: What the model must compute.
    """

    def __init__(self, model: nn.Module, inputs: Inputs, plan: ShrinkPlan, reference: Reference) -> None:
        self._model, self._inputs, self._plan, self._reference = model, inputs, plan, reference

    def do(self) -> None:
        """Compare them.

        Raises:
            UnsupportedError: The model does not run, or computes something else.
        """
        self._reference.compare(self._model, self._inputs, self._plan).refuse_wrong()

    def undo(self) -> None:
        """There is nothing to undo."""
