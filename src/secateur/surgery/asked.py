"""What was asked of one model: which tensors change, with all that follows inside the model, and the edits for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import SupportsIndex

import torch
from torch import Tensor, nn

from secateur._errors import InvalidInputError, SecateurError, ShapeError
from secateur._wrappers import unwrapped
from secateur.surgery import computed
from secateur.surgery.arguments import dim_of, in_context, whole_number
from secateur.surgery.change import Change
from secateur.surgery.companions import companions
from secateur.surgery.computed import computed_places
from secateur.surgery.edits import Do, Edit, SetAttr
from secateur.surgery.places import Place, find_place, places, sharers
from secateur.surgery.positions import Keep, positions
from secateur.surgery.refusals import refuse_shared, refuse_tensor
from secateur.surgery.selection import Init, Selection, new_values
from secateur.surgery.sizes import recorded_sizes
from secateur.surgery.storage import Replace

__all__ = ["Asked"]


class Asked:
    """What was asked of one model. All positions refer to the shapes before the first change.

    Args:
        model: The module that names are relative to.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = unwrapped(model)
        self._places = places(self.model)
        self._computed = computed_places(self.model)
        self._selections: dict[int, list[Selection]] = {}

    def place(self, name: str) -> Place:
        """Where the tensor is that a name means.

        Raises:
            InvalidInputError: There is none.
            UnsupportedError: It cannot be changed.
        """
        place = computed.principal(find_place(self.model, name))
        refuse_tensor(place.name, place.tensor)
        return place

    def resize(self, name: str, dim: SupportsIndex, keep: Keep) -> None:
        """Ask for some positions of a dim to stay."""
        place = self.place(name)
        dim = dim_of(name, place.tensor, dim)
        size = place.tensor.shape[dim]
        with in_context(f"cannot resize {name!r} along dim {dim}", place.tensor.shape):
            kept = positions(keep, size)
        self.add(place, Selection(dim, size, kept))

    def grow(self, name: str, dim: SupportsIndex, size: SupportsIndex, init: Init, at: Keep | None) -> None:
        """Ask for new positions of a dim, after the last one or where `at` says."""
        place = self.place(name)
        dim, shape = dim_of(name, place.tensor, dim), list(place.tensor.shape)
        num_new = whole_number(size, "size") - shape[dim]
        if num_new <= 0:
            raise ShapeError(
                f"cannot grow {name!r} along dim {dim}: `size` is its size afterwards and must be larger.",
                shape=tuple(shape),
                size=size,
                fix=f"size={shape[dim] + 1} adds one position",
            )
        kept = torch.arange(shape[dim], device="cpu")
        planned = Change(name, place.tensor, tuple(self._selections.get(id(place.tensor), ()))).new_shape
        slab = [*planned[:dim], num_new, *planned[dim + 1 :]]
        with in_context(f"cannot grow {name!r} along dim {dim}", place.tensor.shape):
            values = None if init is None else new_values(init, slab, place.tensor).clone()
            order = None if at is None else _order(at, shape[dim], num_new)
        self.add(place, Selection(dim, shape[dim], kept, num_new, values, order))

    def add(self, place: Place, selection: Selection) -> None:
        """Take up a selection for a tensor, once, and for what follows it in every module that owns it; all or none."""
        added: list[int] = []
        try:
            self._add(place, selection, added, is_named=True)
        except SecateurError:
            for key in added:
                self._selections[key].pop()
            raise

    def _add(self, place: Place, selection: Selection, added: list[int], *, is_named: bool = False) -> None:
        """Take up a selection, asked for by name or as what follows, and note the ids of the tensors that got one."""
        tensor = place.tensor
        present = self._selections.setdefault(id(tensor), [])
        other = next((other for other in present if other.dim == selection.dim), None)
        if other is not None and not other.same_as(selection):
            raise InvalidInputError(
                f"{place.name!r} is asked to change along dim {selection.dim} in two different ways.",
                fix="one call a dim and transaction; all positions refer to the shape before it",
            )
        if other is not None:
            if is_named and selection.init is not None:
                present[present.index(other)] = selection  # what follows a change has values of its own only until then
            return
        owners = (*self._owners(place.name, tensor), *self._computed.get(id(tensor), ()))
        present.append(selection)
        added.append(id(tensor))
        for owner in owners:
            for module, leaf, follower in companions(owner, selection):
                self._add(Place(module, owner.prefix, leaf), follower, added)

    def forget(self) -> None:
        """Drop everything that was asked."""
        self._selections.clear()

    @property
    def is_anything(self) -> bool:
        """Whether some tensor is asked to change."""
        return any(self._selections.values())

    def changes(self) -> list[Change]:
        """One change a tensor, under its first name, in the order of asking.

        Raises:
            InvalidInputError: A parameter is no longer where it was when it was named.
        """
        found = []
        for key, selections in self._selections.items():
            if not selections:
                continue
            first, *others = self._places[key]
            if any(id(place.tensor) != key for place in self._places[key]):
                raise _replaced(first.name)
            found.append(Change(first.name, first.tensor, tuple(selections), tuple(other.name for other in others)))
        return found

    def edits(self) -> list[Edit]:
        """All edits inside the model, computed in full: data and gradients, recorded sizes, derived state.

        Raises:
            SecateurError: Something cannot follow.
        """
        changes = {id(change.tensor): change for change in self.changes()}
        self._refuse_unfit(changes.values())
        sizes = list(self._size_edits(changes))
        replacements = [_replacement(change) for change in changes.values()]
        return [*replacements, *sizes, *self._derived(changes)]

    def _owners(self, name: str, tensor: Tensor) -> list[Place]:
        """All places of a tensor."""
        if id(tensor) not in self._places:
            raise _replaced(name)
        return self._places[id(tensor)]

    def _refuse_unfit(self, changes: Iterable[Change]) -> None:
        """Refuse tensors that are not what they were when they were named, or that others depend on."""
        shared = sharers(self._places)
        for change in changes:
            tensor = change.tensor
            if any(s.size != tensor.shape[s.dim] for s in change.selections):
                raise InvalidInputError(
                    f"{change.name!r} has changed its shape since it was named.", fix="one transaction after the other"
                )
            if tensor.grad is not None and tensor.grad.shape != tensor.shape:
                raise ShapeError(
                    f"cannot resize {change.name!r}: its gradient has another shape.",
                    shape=tuple(tensor.shape),
                    grad=tuple(tensor.grad.shape),
                    fix="optimizer.zero_grad() drops it; secateur.diagnose(model, optimizer) says how it came about",
                )
            refuse_shared(self._places[id(tensor)][0], shared.get(id(tensor), []))

    def _size_edits(self, changes: Mapping[int, Change]) -> Iterator[Edit]:
        """Sizes that modules have recorded."""
        for prefix, module in self.model.named_modules():
            with in_context(f"cannot resize {prefix or type(module).__name__!r}", None):
                sizes = recorded_sizes(module, changes)
            yield from (SetAttr(module, name, value) for name, value in sizes.items())

    def _derived(self, changes: Mapping[int, Change]) -> Iterator[Edit]:
        """State that is derived from tensors that change."""
        affected = [place for key in changes for place in self._places[key]]
        for place in affected:
            yield from computed.rescale(place, changes)
        for module in {id(place.module): place.module for place in affected}.values():
            yield from computed.refresh(module)
            if isinstance(module, nn.RNNBase):
                yield Do(module.flatten_parameters)


def _order(at: Keep, old: int, num_new: int) -> Tensor:
    """Which of the old and then the new positions stands at each place, given where the new ones are afterwards.

    Example:
        >>> _order([1, 4], old=3, num_new=2)
        tensor([0, 3, 1, 2, 4])
    """
    places = positions(at, old + num_new)
    if places.numel() != num_new:
        raise ShapeError("`at` has another number of places than there are new positions.", at=len(places), new=num_new)
    is_new = torch.zeros(old + num_new, dtype=torch.bool, device="cpu")
    is_new[places] = True
    order = torch.empty(old + num_new, dtype=torch.long, device="cpu")
    order[is_new] = torch.arange(old, old + num_new, device="cpu")
    order[~is_new] = torch.arange(old, device="cpu")
    return order


def _replaced(name: str) -> InvalidInputError:
    """The error for a parameter that has made way for another one."""
    return InvalidInputError(
        f"{name!r} was replaced while a transaction was open.", fix="begin the transaction after the replacement"
    )


def _replacement(change: Change) -> Replace:
    """The edit that changes one tensor and its gradient."""
    gradient = change.tensor.grad
    return Replace(change, change.take_value(change.tensor), None if gradient is None else change.take(gradient))
