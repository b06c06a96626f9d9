"""How a method is attached to the steps of whichever optimizers train a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from secateur._errors import HolderError, InvalidInputError
from secateur.masks.mask import Mask
from secateur.masks.slots import masked_parameters

__all__ = ["Attending", "was_skipped"]


class Attending:
    """What is called around the steps of the optimizers that train some masked weights of a model.

    It is attached to the masks, not to an optimizer, so that optimizers may come and go, and share the weights. A deep
    copy, or what is unpickled, is attached to the copy of the model.

    Attributes:
        model: The model.
        step: Steps that have been made. Optimizers with weights of their own make one together, each in its turn.
    """

    model: nn.Module
    step: int
    _names: tuple[str, ...]
    _enforced = True
    """Whether the masks are held around every step in the usual way."""
    _lead: Mask
    """The one whose steps count."""
    _since: list[Mask]
    """Those that were stepped since."""

    def before_step(self, optimizer: Optimizer, held: Sequence[Mask], *, has_closure: bool) -> None:
        """Nothing is needed before a step."""

    def before_closure(self, held: Sequence[Mask]) -> None:
        """Nothing is needed around a closure."""

    def after_closure(self, held: Sequence[Mask]) -> None:
        """Nothing is needed around a closure."""

    def after_step(self, optimizer: Optimizer, held: Sequence[Mask]) -> None:
        """Count the step."""
        if not was_skipped(optimizer):
            self._counts(held)

    def _held(self) -> dict[str, Mask]:
        """The masks of the weights that this is about, those that are still there."""
        names = frozenset(self._names)
        return {name: mask for name, mask in masked_parameters(self.model).items() if name in names}

    def _attach(self) -> None:
        """Be called around the steps from now on."""
        masks = list(self._held().values())
        self._lead, self._since = next((mask for mask in masks if mask.is_trained), masks[0]), []
        for mask in masks:
            mask.listen(self, enforced=self._enforced)

    def _detach(self) -> list[Mask]:
        """Be called no more; the masks that are held in the usual way again."""
        mine = [mask for mask in self._held().values() if mask.listener is self]
        for mask in mine:
            mask.listen(None)
        return mine

    def _counts(self, held: Sequence[Mask]) -> bool:
        """Count a step, unless it is another optimizer's part of one that is counted by its lead.

        A lead that is trained no more is replaced: at once if it is frozen, when another is stepped for the second time
        if it is in no optimizer.
        """
        if not _share(held, [self._lead]):
            if self._lead.is_trained and not _share(held, self._since):
                self._since += held
                return False
            self._lead = held[0]
        self._since = []
        self.step += 1
        return True

    def _check_unattended(self) -> None:
        """Refuse masks that another method changes.

        Raises:
            HolderError: One does.
        """
        for mask in masked_parameters(self.model).values():
            if mask.listener is not None and mask.listener is not self:
                raise HolderError(
                    f"the masks of {type(self.model).__name__} are in the hands of {type(mask.listener).__name__} "
                    "already.",
                    fix="call its remove() first; the masks stay",
                )

    def _check_state(self, state: Mapping[str, Any]) -> None:
        """Refuse the state of something else, or of other weights.

        Raises:
            InvalidInputError: It is.
        """
        if not {"method", "step", "masks", "history"} <= state.keys() or state["method"] != type(self).__name__:
            raise InvalidInputError(
                f"this is no state of {type(self).__name__}.",
                method=state.get("method", "none"),
                fix=f"{type(self).__name__}(…).load_state_dict(training.state_dict())",
            )
        saved = {key.removesuffix(".bits") for key in state["masks"] if key.endswith(".bits")}
        if not set(self._names) <= saved:
            raise InvalidInputError(
                f"the state was saved for other weights: it has no mask for {min(set(self._names) - saved)!r}.",
                saved=", ".join(sorted(saved)),
                fix="the same include= and exclude= as before",
            )

    def __getstate__(self) -> dict[str, Any]:
        """For copies, which are attached if this is."""
        is_attached = any(mask.listener is self for mask in self._held().values())
        return {**vars(self), "_since": [], "is_attached": is_attached}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Be attached to the copied model's masks."""
        is_attached = state.pop("is_attached")
        vars(self).update(state)
        if is_attached:
            self._attach()


def _share(masks: Sequence[Mask], others: Sequence[Mask]) -> bool:
    """Whether some are in both."""
    return not {id(mask) for mask in masks}.isdisjoint(map(id, others))


def was_skipped(optimizer: Optimizer) -> bool:
    """Whether a gradient scaler has had a fused optimizer skip this step; others are not even called then."""
    found_inf = getattr(optimizer, "found_inf", None)
    return found_inf is not None and bool(found_inf)
