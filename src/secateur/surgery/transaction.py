"""Several changes of shape that happen together or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self, SupportsIndex

import torch
from torch import Tensor, nn

from secateur._wrappers import refuse_model
from secateur.surgery import attention as attention
from secateur.surgery import copies as copies
from secateur.surgery import groups as groups
from secateur.surgery import recurrent as recurrent
from secateur.surgery.admission import copies_among, live_nodes, optimizers_among, refuse_unheld
from secateur.surgery.asked import Asked
from secateur.surgery.change import Change
from secateur.surgery.edits import Do, Edit, SetValue, carry_out
from secateur.surgery.holders import follow, found_holders
from secateur.surgery.positions import Keep
from secateur.surgery.references import accounted_for
from secateur.surgery.refusals import refuse_call
from secateur.surgery.selection import Init
from secateur.surgery.storage import Poison, Replace

__all__ = ["Holders", "Transaction", "transaction"]

Holders = object | Sequence[object] | None
"""One object that refers to parameters (an optimizer, an averaged model, a copy), several of them, or None."""


def transaction(model: nn.Module, optimizer: Holders = None, ema: Holders = None) -> Transaction:
    """Collect several resizes and carry them out together when the ``with`` block ends, or not at all.

    Args:
        model: The module that all names are relative to.
        optimizer: The optimizer, or several, that hold its parameters.
        ema: What else follows by name: an ``AveragedModel``, a copy of the model, a dict of tensors, or several.

    Returns:
        A context manager with the methods `Transaction.resize` and `Transaction.grow`.

    Raises:
        SecateurError: As the errors of `resize_`; nothing is changed then. An exception raised inside the block has
            the same effect.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))
        >>> with transaction(model) as t:
        ...     t.resize("0.weight", dim=0, keep=range(4))
        ...     t.resize("0.bias", dim=0, keep=range(4))
        ...     t.resize("2.weight", dim=1, keep=range(4))
        >>> model
        Sequential(
          (0): Linear(in_features=8, out_features=4, bias=True)
          (1): ReLU()
          (2): Linear(in_features=4, out_features=2, bias=True)
        )
    """
    return Transaction(model, optimizer, ema)


class Transaction:
    """The collected changes; see `transaction`."""

    def __init__(self, model: nn.Module, optimizer: Holders = None, ema: Holders = None) -> None:
        refuse_call()
        refuse_model(model)
        self._model = model
        self._optimizers = optimizers_among(optimizer)
        self._copies = copies_among(ema)
        self._asked = Asked(model)
        self._also: list[Edit] = []

    def __enter__(self) -> Self:
        """Begin to collect."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit, unless the block has raised; then forget what was asked."""
        if kind is None:
            self.commit()
        self._forget()

    def resize(self, name: str, *, dim: SupportsIndex, keep: Keep) -> None:
        """Plan to keep only some positions of one dim; arguments and errors as for `resize_`.

        Positions refer to the shape before the transaction, whatever else has been asked.
        """
        self._asked.resize(name, dim, keep)

    def grow(
        self, name: str, *, dim: SupportsIndex, size: SupportsIndex, init: Init = None, at: Keep | None = None
    ) -> None:
        """Plan new positions of one dim; arguments and errors as for `grow_`."""
        self._asked.grow(name, dim, size, init, at)

    def tensor(self, name: str) -> Tensor:
        """The parameter or buffer that a name means: for a computed weight, the one that it is made from."""
        return self._asked.place(name).tensor

    def also(self, edit: Edit) -> None:
        """Plan a further edit, such as a size that the model's own code stores, to be done after the others.

        Args:
            edit: A `SetAttr`, `SetItem` or `Do`, or anything else with ``do()`` and ``undo()``.
        """
        self._also.append(edit)

    def new_values(self) -> list[tuple[Tensor, Tensor]]:
        """Tensors that would not only be cut, each with its values after that: parts of weights under a norm.

        Nothing is changed. Lengths of weight norm are rescaled, vectors of spectral norm brought back to length 1.
        """
        self._asked.changes()
        return [(edit.tensor, edit.value) for edit in self._asked.edits() if isinstance(edit, SetValue)]

    def commit(self) -> None:
        """Compute everything, then change everything; called by the end of the ``with`` block."""
        refuse_call()
        edits = self._edits() if self._asked.is_anything else []
        carry_out([*edits, *self._also])
        self._forget()

    def _forget(self) -> None:
        """Drop everything that was asked."""
        self._asked.forget()
        self._also.clear()

    def _edits(self) -> list[Edit]:
        """All edits in the order in which they are done, computed in full."""
        alone = accounted_for(self._modules(), self._optimizers)  # first, as changes refer to their tensors
        changes = self._asked.changes()
        refuse_unheld(self._optimizers, changes)
        edits = self._asked.edits()
        for copy in self._copies:
            edits += follow(copy, changes)
        everywhere = [edit.change for edit in edits if isinstance(edit, Replace)]
        poison = [] if alone.issuperset(id(change.tensor) for change in everywhere) else [self._poison(everywhere)]
        for optimizer in self._optimizers:
            edits += follow(optimizer, everywhere)
        passed = {id(copy) for copy in self._copies}
        for obj, its_changes in found_holders(everywhere):
            edits += follow(obj, its_changes) if id(obj) not in passed else []
        return [*poison, *edits, Do(torch.clear_autocast_cache)]

    def _modules(self) -> Iterator[nn.Module]:
        """The modules of the model and of its copies."""
        roots = (self._asked.model, *(copy for copy in self._copies if isinstance(copy, nn.Module)))
        return (module for root in roots for module in root.modules())

    def _poison(self, changes: Sequence[Change]) -> Poison:
        """The edit for live graphs, from a search that finds nothing that was not passed."""
        return Poison(changes, live_nodes(self._optimizers, changes))
