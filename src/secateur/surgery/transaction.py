"""Several changes of shape that happen together or not at all."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from secateur._errors import HolderError, InvalidInputError, SecateurError, ShapeError
from secateur.surgery.census import Census, census, holds
from secateur.surgery.change import Change, Edit, SetAttr, SetItem
from secateur.surgery.holders import FINDERS, follow, holder
from secateur.surgery.owners import Place, check, companions, missing, refresh, stand_ins
from secateur.surgery.positions import Init, Keep, Selection, positions
from secateur.surgery.refusals import refuse_call, refuse_model, refuse_shared, refuse_tensor
from secateur.surgery.sizes import recorded_sizes
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
        self._model = getattr(model, "_orig_mod", model)
        self._optimizers = _listed(optimizer)
        self._others = _listed(ema)
        self._asked = _Asked(self._model)

    def __enter__(self) -> Self:
        refuse_call()
        refuse_model(self._model)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()

    def resize(self, name: str, *, dim: int, keep: Keep) -> None:
        """Plan to keep only some positions of one dim; arguments and errors as for `resize_`."""
        tensor, dim = self._asked.dim_of(name, dim)
        with _context(f"cannot resize {name!r} along dim {dim}", self._asked.shape(tensor)):
            kept = positions(keep, self._asked.shape(tensor)[dim])
        self._asked.add(name, Selection(dim, self._asked.shape(tensor)[dim], kept))

    def grow(self, name: str, *, dim: int, size: int, init: Init = None) -> None:
        """Plan to append new positions to one dim; arguments and errors as for `grow_`."""
        tensor, dim = self._asked.dim_of(name, dim)
        shape = self._asked.shape(tensor)
        if not isinstance(size, int) or size <= shape[dim]:
            raise ShapeError(
                f"cannot grow {name!r} along dim {dim}: `size` is its size afterwards and must be larger.",
                shape=tuple(shape),
                size=size,
                fix=f"size={shape[dim] + 1} adds one position",
            )
        selection = Selection(dim, shape[dim], torch.arange(shape[dim]), size - shape[dim], init)
        with _context(f"cannot grow {name!r} along dim {dim}", shape):
            slab = selection.take_value(tensor.new_empty(shape)).narrow(dim, shape[dim], selection.num_new)
        self._asked.add(name, Selection(dim, shape[dim], selection.keep, selection.num_new, slab.clone()))

    def commit(self) -> None:
        """Compute everything, then change everything; called by the end of the ``with`` block."""
        changes = self._asked.changes()
        if not changes:
            return
        edits = list(_edits(self._asked))
        nodes = self._refuse_unfit_holders(changes)
        for obj in (*self._optimizers, *self._others):
            edits += follow(obj, changes)
        _carry_out([Poison(changes, nodes), *edits])

    def _refuse_unfit_holders(self, changes: Sequence[Change]) -> list[Any]:
        """Refuse what cannot follow or would be left behind; the graph nodes that lead to changed tensors."""
        for optimizer in self._optimizers:
            _refuse_stranger(optimizer, changes)
        _refuse_unheld(self._optimizers, changes)
        found = census(change.tensor for change in changes)
        if found.wrappers or _unlisted(found, self._optimizers):
            gc.collect()  # what is only waiting to be freed holds nothing
            found = census(change.tensor for change in changes)
        for wrapper in found.wrappers:
            refuse_model(wrapper)
        for optimizer in _unlisted(found, self._optimizers):
            name = next(c.name for c in changes if holds(optimizer, c.tensor))
            raise HolderError(
                f"an optimizer that was not passed holds {name!r} and would keep state of the old shape.",
                optimizer=type(optimizer).__name__,
                fix="pass it: optimizer=…, or a list of all; if it is not used any more, del it",
            )
        return found.nodes


class _Asked:
    """What was asked for one model, with all that follows inside it."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.places: dict[int, list[Place]] = {}
        for prefix, module in model.named_modules():
            for leaf, tensor in (*module._parameters.items(), *module._buffers.items()):
                if tensor is not None:
                    self.places.setdefault(id(tensor), []).append(Place(module, prefix, leaf))
        self._selections: dict[int, list[Selection]] = {}

    def place(self, name: str) -> Place:
        """Where a dotted name leads."""
        prefix, _, leaf = name.rpartition(".")
        try:
            place = Place(self.model.get_submodule(prefix), prefix, leaf)
        except AttributeError as error:
            raise InvalidInputError(f"{type(self.model).__name__} has no module {prefix!r}.", name=name) from error
        module = place.module
        computed = nn.utils.parametrize.is_parametrized(module, leaf) or isinstance(vars(module).get(leaf), Tensor)
        if not computed and module._parameters.get(leaf) is None and module._buffers.get(leaf) is None:
            raise missing(place)
        return place

    def dim_of(self, name: str, dim: int) -> tuple[Tensor, int]:
        """The tensor of that name and the dim, counted from the front."""
        tensor = self.place(name).tensor
        refuse_tensor(name, tensor) if id(tensor) in self.places else None
        if not isinstance(dim, int) or not -tensor.dim() <= dim < tensor.dim():
            raise ShapeError(f"{name!r} has no dim {dim}.", shape=tuple(tensor.shape), dim=dim)
        return tensor, dim % tensor.dim()

    def shape(self, tensor: Tensor) -> torch.Size:
        """The tensor's shape with what has been asked so far."""
        return Change("", tensor, tuple(self._selections.get(id(tensor), ()))).new_shape

    def add(self, name: str, selection: Selection) -> None:
        """Take up a selection for a name, and for everything that follows it."""
        place = self.place(name)
        targets = stand_ins(place, selection) or [(place.module, place.leaf, selection)]
        for module, leaf, target in targets:
            self._add(getattr(module, leaf), target, name)

    def _add(self, tensor: Tensor, selection: Selection, name: str) -> None:
        """Take up a selection for a tensor, once; then for its companions in every module that owns it."""
        present = self._selections.setdefault(id(tensor), [])
        for other in present:
            if other.dim == selection.dim:
                if other.same_as(selection):
                    return
                raise InvalidInputError(
                    f"{name!r} is asked to change along dim {selection.dim} in two different ways.",
                    fix="one call a dim and transaction",
                )
        present.append(selection)
        for place in self.places[id(tensor)]:
            for leaf, follower in companions(place, selection):
                self._add(getattr(place.module, leaf), follower, name)

    def changes(self) -> list[Change]:
        """One change a tensor, under its first name, in the order of asking."""
        found = []
        for key, selections in self._selections.items():
            place = self.places[key][0]
            found.append(Change(place.name, place.tensor, tuple(selections)))
        return found


def _edits(asked: _Asked) -> Iterator[Edit]:
    """All edits inside one model, computed in full: data and gradients, recorded sizes, derived state, finders."""
    changes = asked.changes()
    by_tensor = {id(change.tensor): change for change in changes}
    named = [(place.name, place.tensor) for places in asked.places.values() for place in places[:1]]
    owners: dict[int, Place] = {}
    for change in changes:
        refuse_tensor(change.name, change.tensor)
        refuse_shared(change.tensor, change.name, named)
        for place in asked.places[id(change.tensor)]:
            check(place, change)
            owners.setdefault(id(place.module), place)
    for change in changes:
        gradient = change.tensor.grad
        yield Replace(
            change.tensor, change.take_value(change.tensor), None if gradient is None else change.take(gradient)
        )
    for module in _affected(asked.model, owners):
        with _context(f"cannot resize {type(module).__name__}", None):
            sizes = recorded_sizes(module, _shapes(module, by_tensor))
        yield from (SetAttr(module, name, value) for name, value in sizes.items())
    for place in owners.values():
        yield from refresh(place.module)
    for change in changes:
        for find in FINDERS:
            for obj in find(change.tensor):
                yield from follow(obj, [change])


def _affected(model: nn.Module, owners: dict[int, Place]) -> Iterator[nn.Module]:
    """Modules that own a changed tensor, or have a child that does."""
    for module in model.modules():
        if id(module) in owners or any(id(child) in owners for child in module.children()):
            yield module


def _shapes(module: nn.Module, changes: dict[int, Change]) -> dict[str, torch.Size]:
    """Shapes after the change of a module's own and its direct children's tensors."""
    shapes = {}
    for prefix, owner in (("", module), *((f"{name}.", child) for name, child in module.named_children())):
        for leaf, tensor in (*owner._parameters.items(), *owner._buffers.items()):
            if tensor is not None:
                change = changes.get(id(tensor))
                shapes[prefix + leaf] = change.new_shape if change else tensor.shape
    return shapes


@holder(nn.Module)
def _follow_copy(copy: nn.Module, changes: Sequence[Change]) -> Iterable[Edit]:
    """A copy of the model follows by name."""
    asked = _Asked(copy)
    for change in changes:
        try:
            twin = asked.place(change.name).tensor
        except InvalidInputError as error:
            raise HolderError(
                f"the copy ({type(copy).__name__}) has no {change.name!r}, so it cannot follow.",
                fix="pass the model that it is a copy of, with names relative to that",
            ) from error
        if twin.shape != change.old_shape:
            raise HolderError(
                f"the copy's {change.name!r} has another shape than the model's, so it cannot follow.",
                copy=tuple(twin.shape),
                model=tuple(change.old_shape),
            )
        for selection in change.selections:
            asked.add(change.name, selection)
    return list(_edits(asked))


@holder(dict)
def _follow_mapping(copies: dict[str, Tensor], changes: Sequence[Change]) -> Iterable[Edit]:
    """A dict of tensors by dotted name, such as a hand-made average or a state_dict."""
    known = [change for change in changes if change.name in copies]
    if not known:
        raise HolderError(
            f"the dict of copies has no {changes[0].name!r}, so it cannot follow.", keys=", ".join(list(copies)[:4])
        )
    for change in known:
        if copies[change.name].shape != change.old_shape:
            raise HolderError(
                f"the copy of {change.name!r} has another shape than the model's, so it cannot follow.",
                copy=tuple(copies[change.name].shape),
                model=tuple(change.old_shape),
            )
    return [SetItem(copies, change.name, change.take_value(copies[change.name])) for change in known]


@holder(AveragedModel)
def _follow_average(average: AveragedModel, changes: Sequence[Change]) -> Iterable[Edit]:
    """The averaged copy inside."""
    return _follow_copy(average.module, changes)


def _listed(holders: Holders) -> list[object]:
    """One, several or none, as a list."""
    if holders is None:
        return []
    return list(holders) if isinstance(holders, list | tuple) else [holders]


def _unlisted(found: Census, passed: Sequence[object]) -> list[Optimizer]:
    """Optimizers that hold a parameter and are neither passed nor inside one that is (a framework's wrapper)."""
    states = {id(getattr(optimizer, "state", None)) for optimizer in passed}
    return [optimizer for optimizer in found.optimizers if id(optimizer.state) not in states]


def _refuse_stranger(optimizer: object, changes: Sequence[Change]) -> None:
    """Refuse an optimizer that holds none of the parameters: it belongs to another model, or has lost this one."""
    if not isinstance(optimizer, Optimizer):
        raise HolderError(
            f"{type(optimizer).__name__} is not an optimizer.", fix="copies of the model are passed as ema=…"
        )
    if not any(holds(optimizer, change.tensor) for change in changes):
        raise HolderError(
            f"{type(optimizer).__name__} does not hold {changes[0].name!r}: it was made for another model, or the "
            "parameter has been replaced since.",
            fix="secateur.relink_(model, optimizer), or leave the optimizer out",
        )


def _refuse_unheld(optimizers: Sequence[object], changes: Sequence[Change]) -> None:
    """Refuse to leave a trainable parameter without an optimizer where others have one."""
    for change in changes:
        trained = isinstance(change.tensor, nn.Parameter) and change.tensor.requires_grad
        if optimizers and trained and not any(holds(o, change.tensor) for o in optimizers if isinstance(o, Optimizer)):
            raise HolderError(
                f"no optimizer that was passed holds {change.name!r}, which requires a gradient.",
                passed=", ".join(type(o).__name__ for o in optimizers),
                fix="pass all optimizers, or parameter.requires_grad_(False) if it is frozen",
            )


def _carry_out(edits: Sequence[Edit]) -> None:
    """Do all edits; if one fails after all, undo those before it."""
    done: list[Edit] = []
    try:
        for edit in edits:
            done.append(edit)
            edit.do()
    except BaseException:
        for edit in reversed(done):
            edit.undo()
        raise


@contextmanager
def _context(what: str, shape: torch.Size | None) -> Iterator[None]:
    """Say once, at the entry, what was being done when an inner check failed."""
    try:
        yield
    except SecateurError as error:
        facts = {"shape": tuple(shape), **error.facts} if shape is not None else error.facts
        raise type(error)(f"{what}: {error.problem}", fix=error.fix, **facts) from None
