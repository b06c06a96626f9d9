"""A shrink plan: which positions stay, which numbers in the code follow, and what that comes to; a value."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Any, Self

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from secateur._errors import ShapeError
from secateur._files import opened
from secateur._names import tied_names
from secateur._wrappers import unwrapped
from secateur.graph.heads import FreeHeadsAttention, bind_heads_, free_heads_
from secateur.graph.provenance import PinnedSize, old_size
from secateur.graph.trace import Inputs, call_with, named_tensors, undisturbed
from secateur.shrink.verifying import Verification, compare
from secateur.surgery.admission import copies_among
from secateur.surgery.edits import SetAttr
from secateur.surgery.transaction import Holders, transaction

__all__ = ["GroupPlan", "NumberPlan", "ShrinkPlan"]

_FORMAT = "secateur.ShrinkPlan.1"


@dataclass(frozen=True)
class GroupPlan:
    """What happens to one group: how many of its units stay, and whether some op mixes them (a norm, a softmax)."""

    name: str
    kind: str
    before: int
    after: int
    mixes: bool = False


@dataclass(frozen=True)
class NumberPlan:
    """A number that an object of the model stores, before and after: ``<path>.<name>``, or one entry of it.

    A pinned one is also used as a value in the code (``self.head_dim ** -0.5``) and goes on as the old one there.
    """

    path: str
    name: str
    index: int | None
    before: int
    after: int
    pinned: bool = False


@dataclass(frozen=True, eq=False)
class ShrinkPlan:
    """What will be removed from a model. Nothing is changed until it is applied; made by `plan_shrink`.

    Args:
        keep: For every tensor that changes, the kept positions of each dim that changes, ascending.
        shapes: Shape before of every tensor that changes.
        numbers: Numbers in the model's objects that follow.
        groups: Units per group before and after.
        kept_whole: What cannot be removed, and why.
        parameters: Number of parameters before and after.
        macs: Multiply-accumulate operations on the example inputs before and after.
        freed: Modules of type nn.MultiheadAttention that take on `FreeHeadsAttention`, whose heads may be fewer.
    """

    keep: dict[str, dict[int, Tensor]]
    shapes: dict[str, tuple[int, ...]]
    numbers: tuple[NumberPlan, ...]
    groups: tuple[GroupPlan, ...]
    kept_whole: tuple[str, ...]
    parameters: tuple[int, int]
    macs: tuple[int, int]
    freed: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        """Whether the other does the same to the same shapes."""
        if not isinstance(other, ShrinkPlan) or (self.shapes, self.numbers) != (other.shapes, other.numbers):
            return False
        mine, theirs = _flat(self.keep), _flat(other.keep)
        return mine.keys() == theirs.keys() and all(torch.equal(mine[key], theirs[key]) for key in mine)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """A table: totals, groups before and after, what is kept whole and why."""
        lines = [
            f"ShrinkPlan: parameters {self.parameters[0]:,} -> {self.parameters[1]:,} "
            f"({self.parameters[1] / max(1, self.parameters[0]):.1%}), "
            f"MACs {self.macs[0]:,} -> {self.macs[1]:,} ({self.macs[1] / max(1, self.macs[0]):.1%})"
        ]
        width = max((len(group.name) for group in self.groups), default=0)
        lines += [f"  {g.name:<{width}}  {g.kind:<10} {g.before:>6,} -> {g.after:>6,}" for g in self.groups]
        lines += [f"  kept whole: {line}" for line in self.kept_whole]
        return "\n".join(lines)

    # ---- doing

    def apply_(
        self, model: nn.Module, *, optimizer: Holders = None, ema: Holders = None, verify: Inputs | None = None
    ) -> nn.Module:
        """Remove the positions from a live model, with everything that refers to its parameters; all or nothing.

        Args:
            model: The model that the plan was made for, a copy, or a fresh instance of the same architecture.
            optimizer: The optimizer that trains it, or several.
            ema: What follows by name: an ``AveragedModel``, copies, dicts of tensors.
            verify: Inputs on which a copy is tried first, see `verify`.

        Returns:
            The model.

        Changes:
            Shapes of parameters and buffers, gradients, optimizer state, averages, masks, recorded sizes; of copies of
            the model in `ema` likewise.

        Keeps:
            The model's class and code; identity, names, hooks, requires_grad of all parameters.

        Raises:
            ShapeError: A tensor is missing or has another shape, or a number has another value: another architecture,
                or the plan was applied already.
            UnsupportedError: `verify` was given and the smaller model is not right.
            SecateurError: Those of `secateur.transaction`. Nothing has been changed then.
        """
        self._check({name: tuple(tensor.shape) for name, tensor in named_tensors(model).items()})
        twins = [model, *(_inside(copy, self.keep) for copy in copies_among(ema) if isinstance(copy, nn.Module))]
        owners = [_owner(twin, number) for twin in twins for number in self.numbers]
        if verify is not None:
            self.verify(model, verify).refuse_wrong()
        with ExitStack() as bound_again, transaction(model, optimizer, ema) as surgery:
            for twin in twins:
                for name in self.freed:
                    bound_again.callback(_free(twin.get_submodule(name)))
            for name, dims in self.keep.items():
                for dim, keep in dims.items():
                    surgery.resize(name, dim=dim, keep=keep)
            for owner, number in zip(owners, self.numbers * len(twins), strict=True):
                surgery.also(_SetNumber(owner, number))
            surgery.commit()
            bound_again.pop_all()
        return model

    def verify(self, model: nn.Module, inputs: Inputs) -> Verification:
        """Try the plan on a copy of the model and compare with a copy in which the same units are zero.

        Args:
            model: The model that the plan fits; it is left as it is.
            inputs: Inputs to run it on, in any form that `plan_shrink` takes.

        Returns:
            The error, and which groups are exact and which are mixed by nature.

        Raises:
            ShapeError: The plan does not fit.
            UnsupportedError: The smaller copy does not run, or its outputs have other shapes.
        """
        cut = [group for group in self.groups if group.after < group.before]
        return compare(
            model,
            inputs,
            self.apply_,
            self.removed_zeroed_,
            exact=tuple(group.name for group in cut if not group.mixes),
            mixing=tuple(group.name for group in cut if group.mixes),
        )

    def apply_to(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Cut a bare state_dict, without the model.

        Args:
            state: Tensors by name; those that the plan does not know are passed on.

        Returns:
            A new dict; cut tensors have memory of their own.

        Raises:
            ShapeError: A tensor is missing or has another shape. Nothing has been changed.
        """
        self._check({name: tuple(tensor.shape) for name, tensor in state.items()})
        result = dict(state)
        for name, dims in self.keep.items():
            for dim, keep in dims.items():
                result[name] = result[name].index_select(dim, keep.to(result[name].device))
        return result

    def removed_zeroed_(self, model: nn.Module) -> nn.Module:
        """Zero, in place, the parameters and statistics at all positions that the plan removes: the reference."""
        tensors = named_tensors(model)
        with torch.no_grad():
            for name, dims in self.keep.items():
                for dim, keep in dims.items():
                    if dim in self.keep.get(_magnitude(name), {}):
                        continue  # a direction of length zero has no norm; its magnitude is zeroed instead
                    gone = torch.ones(tensors[name].shape[dim], dtype=torch.bool)
                    gone[keep] = False
                    tensors[name].index_fill_(dim, gone.nonzero().squeeze(1).to(tensors[name].device), 0)
        return model

    def run(self, model: nn.Module, inputs: Inputs) -> Any:
        """Run a model on example inputs without leaving a trace."""
        with undisturbed(model):
            return call_with(model, inputs)

    # ---- files

    def save(self, path: str | PathLike[str]) -> None:
        """Write the plan to one safetensors file: kept positions as tensors, the rest as JSON in the header."""
        header = {
            "format": _FORMAT,
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "numbers": [vars(number) for number in self.numbers],
            "groups": [vars(group) for group in self.groups],
            "kept_whole": list(self.kept_whole),
            "parameters": list(self.parameters),
            "macs": list(self.macs),
            "freed": list(self.freed),
        }
        safetensors.torch.save_file(_flat(self.keep), path, {"plan": json.dumps(header)})

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read a plan that `save` wrote.

        Raises:
            InvalidInputError: The file holds no plan.
        """
        with opened(path, "plan", _FORMAT, fix="plan.save(path) writes such files") as (file, header):
            keep: dict[str, dict[int, Tensor]] = {}
            for key in file.keys():  # noqa: SIM118 - not a dict
                name, dim = key.rsplit("|", 1)
                keep.setdefault(name, {})[int(dim)] = file.get_tensor(key)
        return cls(
            keep,
            {name: tuple(shape) for name, shape in header["shapes"].items()},
            tuple(NumberPlan(**number) for number in header["numbers"]),
            tuple(GroupPlan(**group) for group in header["groups"]),
            tuple(header["kept_whole"]),
            (header["parameters"][0], header["parameters"][1]),
            (header["macs"][0], header["macs"][1]),
            tuple(header["freed"]),
        )

    def _check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Refuse a model or state of another architecture."""
        for name, shape in self.shapes.items():
            if shapes.get(name) != shape:
                raise ShapeError(
                    f"the plan does not fit: {name!r} is not as it was when the plan was made.",
                    planned=shape,
                    found=shapes.get(name, "no such tensor"),
                    fix="plans apply once, to the model that they were made for or to an equal one",
                )


def _free(module: nn.Module) -> Callable[[], None]:
    """Give an attention module free heads; the call that undoes it."""
    if not isinstance(module, nn.MultiheadAttention) or isinstance(module, FreeHeadsAttention):
        return lambda: None
    same = module._qkv_same_embed_dim
    free_heads_(module)
    return partial(bind_heads_, module, same)


def _flat(keep: Mapping[str, Mapping[int, Tensor]]) -> dict[str, Tensor]:
    """Kept positions under one key each."""
    return {f"{name}|{dim}": index for name, dims in keep.items() for dim, index in dims.items()}


def _inside(copy: nn.Module, names: Iterable[str]) -> nn.Module:
    """The module that has tensors of these names: a copy of the model itself, or what it wraps."""
    inner = unwrapped(copy)
    wrapped = inner._modules.get("module")
    known = {name for several in tied_names(inner).values() for name in several} | {n for n, _ in inner.named_buffers()}
    return inner if wrapped is None or known.issuperset(names) else _inside(wrapped, names)


def _magnitude(name: str) -> str:
    """The name of the magnitude that belongs to a direction of weight norm, in its new and its old form."""
    for direction, magnitude in ((".original1", ".original0"), ("weight_v", "weight_g")):
        if name.endswith(direction):
            return name.removesuffix(direction) + magnitude
    return ""


def _owner(model: nn.Module, number: NumberPlan) -> object:
    """The object that stores a number, which must have the value that was planned for.

    Raises:
        ShapeError: There is no such number, or it has another value.
    """
    owner: Any = model
    try:
        for part in number.path.split(".") if number.path else ():
            owner = getattr(owner, part)
        stored = getattr(owner, number.name)
        found = stored if number.index is None else stored[number.index]
    except (AttributeError, IndexError, TypeError):
        found = "no such number"
    if found != number.before:
        name = f"{number.path}.{number.name}".lstrip(".")
        raise ShapeError(
            f"the plan does not fit: {name!r} is not as it was when the plan was made.",
            planned=number.before,
            found=found,
            fix="plans apply once, to the model that they were made for or to an equal one",
        )
    result: object = owner
    return result


class _SetNumber:
    """The edit that changes one stored number; several may change entries of one tuple."""

    def __init__(self, owner: object, number: NumberPlan) -> None:
        self.owner, self.number = owner, number
        self.edit: SetAttr | None = None

    def do(self) -> None:
        """Set the new value and remember the old one."""
        name, index = self.number.name, self.number.index
        stored = getattr(self.owner, name)
        if index is None:
            value = self._after(stored)
        else:
            entries = list(stored)
            entries[index] = self._after(entries[index])
            value = type(stored)(entries)
        self.edit = SetAttr(self.owner, name, value)
        self.edit.do()

    def undo(self) -> None:
        """Put the old value back."""
        if self.edit is not None:
            self.edit.undo()

    def _after(self, before: Any) -> Any:
        """The new number, which goes on with the old one as a value if it is pinned."""
        is_pinned = self.number.pinned or isinstance(before, PinnedSize)
        return PinnedSize(self.number.after, old_size(before)) if is_pinned else self.number.after
