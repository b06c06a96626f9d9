"""A lottery ticket: which weights are kept, and the values that they start from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Self

from torch import Tensor, nn

from secateur._errors import InvalidInputError
from secateur._wrappers import refuse_model, unwrapped
from secateur.masks import Masks
from secateur.masks.commit import Optimizers, listed, put_
from secateur.masks.saving import from_state
from secateur.masks.slots import empty
from secateur.tickets.rewinding import prepared
from secateur.tickets.snapshot import Snapshot, check_snapshot, read, write

__all__ = ["Ticket"]

_FORMAT = "secateur.ticket.1"
_KEY = "ticket"
_MASKS = "masks|"


@dataclass(frozen=True, eq=False)
class Ticket:
    """Masks, and the snapshot whose values the kept weights start from.

    Args:
        packed: The masks as `Masks.state_dict` gives them, one bit a weight.
        snapshot: Where the weights start; tickets of several rounds may share one.

    Example:
        >>> import secateur
        >>> layer = nn.Linear(4, 2)
        >>> snapshot = Snapshot.of(layer)
        >>> masks = secateur.prune_(layer, sparsity=0.75)
        >>> ticket = Ticket.of(layer, snapshot)
        >>> fresh = nn.Linear(4, 2)
        >>> ticket.apply_(fresh) == masks, int((fresh.weight != 0).sum())
        (True, 2)
    """

    packed: Mapping[str, Tensor]
    snapshot: Snapshot

    @classmethod
    def of(cls, model: nn.Module, snapshot: Snapshot) -> Self:
        """Take the masks that a model has at the moment.

        Args:
            model: The model.
            snapshot: Where its weights start.

        Raises:
            InvalidInputError: The model has no masks, or there is no snapshot.
            ShapeError: The snapshot was taken of another architecture.
        """
        refuse_model(model)
        check_snapshot(snapshot)
        masks = Masks(model)
        if not masks:
            raise InvalidInputError(
                f"{type(model).__name__} has no masks to make a ticket of.",
                fix="secateur.prune_(model, sparsity=…) first",
            )
        snapshot.check_fits(unwrapped(model), buffers=False)
        return cls(masks.state_dict(), snapshot)

    @property
    def masks(self) -> dict[str, Tensor]:
        """The masks by dotted name: bool, True = kept; copies."""
        return from_state(self.packed)

    def apply_(
        self, model: nn.Module, optimizer: Optimizers = None, *, rewind: bool = True, buffers: bool = False
    ) -> Masks:
        """Put the ticket on a model of the same architecture.

        Args:
            model: The model: the one that it comes from, or a fresh one.
            optimizer: The optimizer that will train it, or several; may be made later.
            rewind: Whether the weights start from the snapshot. If not, the model's own weights are masked: the same
                connections from another initialisation.
            buffers: Whether buffers start from the snapshot too; see `rewind_`.

        Returns:
            The masks of the model. Masks that it had before and that are not in the ticket are gone.

        Changes:
            Weights and gradients; the optimizer's state of all parameters, as before its first step (with
            ``rewind=False`` at masked places only).

        Raises:
            ShapeError: The model is of another architecture.
            SecateurError: The others of `rewind_` and `Masks.from_dict`. Nothing is changed then.
        """
        refuse_model(model)
        model, masks, optimizers = unwrapped(model), self.masks, listed(optimizer)
        rewinding = prepared(model, self.snapshot, optimizers, buffers=buffers) if rewind else None
        put_(model, masks, optimizers)
        empty(model, keep=masks)
        if rewinding is not None:
            rewinding()
        return Masks(model)

    def save(self, path: str | PathLike[str]) -> None:
        """Write masks and snapshot to one safetensors file; nothing is pickled.

        Raises:
            UnsupportedError: An optimizer or a scheduler in the snapshot keeps something that no file can hold.
        """
        tensors, header = self.snapshot.content()
        write(path, _KEY, _FORMAT, tensors | {_MASKS + name: bits for name, bits in self.packed.items()}, header)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read what `save` has written; its tensors are on the CPU.

        Raises:
            InvalidInputError: The file is no ticket.
        """
        tensors, header = read(path, _KEY, _FORMAT, "secateur.tickets.Ticket.save")
        packed = {name.removeprefix(_MASKS): bits for name, bits in tensors.items() if name.startswith(_MASKS)}
        return cls(packed, Snapshot.from_content(tensors, header, path))

    def sparsity(self) -> float:
        """Fraction of masked entries in the masked tensors together."""
        masks = self.masks.values()
        total = sum(mask.numel() for mask in masks)
        return sum(mask.numel() - int(mask.count_nonzero()) for mask in masks) / total if total else 0.0

    def __repr__(self) -> str:
        """Its sparsity, and where it starts."""
        return f"Ticket: {self.sparsity():.2%} of {len(self.masks)} tensors are zero; {self.snapshot!r}"
