"""A grow plan: where new positions come, what they hold, and which numbers in the code follow; a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Self

import torch
from torch import Tensor, nn

from secateur._files import opened
from secateur.shrink.files import Part, tensor_in, write_file
from secateur.shrink.fit import Fit
from secateur.shrink.numbers import NumberPlan
from secateur.shrink.plan_parts import GroupPlan, carried_out, part_of, parts_of
from secateur.surgery.transaction import Holders

__all__ = ["GrowPlan"]

_FORMAT = "secateur.GrowPlan.1"
_AT = "at"
_VALUES = "values"


@dataclass(frozen=True, eq=False)
class GrowPlan:
    """What will be added to a model. Nothing is changed until it is applied; made by `plan_grow`.

    Args:
        at: For every tensor that changes, where the new positions of each dim are afterwards, ascending.
        values: What they hold, of the shapes that growing the dims in this order asks for.
        fit: What the model must be like: shapes and names of what changes.
        numbers: Numbers in the model's objects that follow.
        groups: Units per group before and after.
        kept_whole: What does not grow, and why.
        parameters: Number of parameters before and after.
        freed: Modules of type nn.MultiheadAttention that take on a class whose heads together may be wider.
    """

    at: dict[str, dict[int, Tensor]]
    values: dict[str, dict[int, Tensor]]
    fit: Fit
    numbers: tuple[NumberPlan, ...]
    groups: tuple[GroupPlan, ...]
    kept_whole: tuple[str, ...]
    parameters: tuple[int, int]
    freed: tuple[str, ...] = ()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape before of every tensor that changes."""
        return self.fit.shapes

    def __eq__(self, other: object) -> bool:
        """Whether the other does the same to the same shapes."""
        if not isinstance(other, GrowPlan) or (self.shapes, self.numbers) != (other.shapes, other.numbers):
            return False
        mine, theirs = self._tensors(), other._tensors()
        return mine.keys() == theirs.keys() and all(
            torch.equal(mine[key], theirs[key].to(mine[key].device)) for key in mine
        )

    def __repr__(self) -> str:
        """A table: totals, groups before and after, what does not grow and why."""
        lines = [f"GrowPlan: parameters {self.parameters[0]:,} -> {self.parameters[1]:,}"]
        width = max((len(group.name) for group in self.groups), default=0)
        lines += [f"  {g.name:<{width}}  {g.kind:<10} {g.before:>6,} -> {g.after:>6,}" for g in self.groups]
        lines += [f"  does not grow: {line}" for line in self.kept_whole]
        return "\n".join(lines)

    def apply_(self, model: nn.Module, *, optimizer: Holders = None, ema: Holders = None) -> nn.Module:
        """Add the units to a live model, with everything that refers to its parameters; all or nothing.

        Args:
            model: The model that the plan was made for, or a copy of it.
            optimizer: The optimizer that trains it, or several.
            ema: What follows by name: an ``AveragedModel``, copies, dicts of tensors.

        Returns:
            The model.

        Changes:
            Shapes of parameters and buffers, gradients (0 in new places), optimizer state (as for `secateur.grow_`),
            averages (which hold the new values themselves), masks (new weights are kept ones), recorded sizes.

        Keeps:
            What the model computes; its class and code; identity, names, hooks, requires_grad of all parameters.

        Raises:
            InvalidInputError: It is no module.
            ShapeError: A tensor is missing or has another shape, a layer has got a bias since, tied tensors are tied no
                longer, or a number has another value: another architecture, or the plan was applied already.
            SecateurError: Those of `secateur.transaction`. Nothing has been changed then.
        """
        with carried_out(self, model, optimizer, ema) as (surgery, _):
            for name, dims in self.at.items():
                for dim, at in dims.items():
                    size = self.shapes[name][dim] + len(at)
                    surgery.grow(name, dim=dim, size=size, init=self.values[name][dim], at=at)
        return model

    def apply_to(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Add the units to a bare state_dict, without the model.

        Args:
            state: Tensors by name, of tied ones one name or all; those of other modules than the plan knows are
                passed on.

        Returns:
            A new dict; grown tensors have memory of their own, one for all names of a tied one.

        Raises:
            InvalidInputError: It is no state_dict.
            ShapeError: A tensor is missing or has another shape, or a layer has got a bias. Nothing has been changed.
            UnsupportedError: A weight that changes is under weight norm or spectral norm.
        """
        return self.fit.converted(state, self._grown)

    # ---- files

    def save(self, path: str | PathLike[str]) -> None:
        """Write the plan to one safetensors file: places and values as tensors, the rest as JSON in the header."""
        part = self.to_part()
        write_file(path, "plan", part.header, part.tensors)

    def to_part(self) -> Part:
        """What `save` writes, for a file that holds the plan beside other things."""
        dims = {name: list(at) for name, at in self.at.items()}
        return part_of(self, kind=_FORMAT, tensors=self._tensors(), dims=dims)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read a plan that `save` wrote, or `secateur.save` beside the model.

        Raises:
            InvalidInputError: The file holds no such plan.
        """
        found: dict[str, dict[str, dict[int, Tensor]]] = {_AT: {}, _VALUES: {}}
        with opened(path, "plan", _FORMAT, fix="plan.save(path) writes such files") as (file, header):
            for name, dims in header["dims"].items():  # in the order in which they grow
                for kind, of_tensor in found.items():
                    of_tensor[name] = {dim: tensor_in(file, header, f"{name}|{dim}|{kind}") for dim in dims}
        return cls(found[_AT], found[_VALUES], **parts_of(header))

    def _grown(self, name: str, tensor: Tensor) -> Tensor:
        """One tensor as it is afterwards."""
        for dim, at in self.at[name].items():
            size = tensor.shape[dim] + len(at)
            is_new = torch.zeros(size, dtype=torch.bool).index_fill_(0, at.cpu(), value=True)
            places = torch.cat([torch.arange(size)[~is_new], at.cpu()])
            appended = torch.cat([tensor, self.values[name][dim].to(tensor)], dim)
            tensor = appended.index_select(dim, places.argsort().to(tensor.device))
        return tensor

    def _tensors(self) -> dict[str, Tensor]:
        """Places and values under one key each."""
        kinds = {_AT: self.at, _VALUES: self.values}
        return {
            f"{name}|{dim}|{kind}": tensor
            for kind, of_tensor in kinds.items()
            for name, dims in of_tensor.items()
            for dim, tensor in dims.items()
        }
