"""A shrink plan: which positions stay, which numbers in the code follow, and what that comes to; a value."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, Self

import torch
from torch import Tensor, nn

from secateur._files import opened
from secateur._passes import without_collections
from secateur.graph.coupling import Coupling
from secateur.graph.trace import Inputs, named_tensors, refuse_strange
from secateur.shrink.checking import Tried, Verified
from secateur.shrink.files import Part, names_in, tensor_in, write_file
from secateur.shrink.fit import Fit
from secateur.shrink.folding import bias_edits
from secateur.shrink.numbers import NumberPlan
from secateur.shrink.plan_parts import GroupPlan, carried_out, part_of, parts_of
from secateur.shrink.values import refuse_valueless
from secateur.shrink.verifying import Reference, Verification
from secateur.surgery.admission import copies_among
from secateur.surgery.transaction import Holders

__all__ = ["ShrinkPlan"]

_FORMAT = "secateur.ShrinkPlan.1"
_ADDED = "added"


@dataclass(frozen=True, eq=False)
class ShrinkPlan:
    """What will be removed from a model. Nothing is changed until it is applied; made by `plan_shrink`.

    Args:
        keep: For every tensor that changes, the kept positions of each dim that changes, ascending.
        fit: What the model must be like: shapes and names of what changes.
        numbers: Numbers in the model's objects that follow.
        groups: Units per group before and after.
        kept_whole: What cannot be removed, and why.
        parameters: Number of parameters before and after.
        macs: Multiply-accumulate operations on the example inputs before and after.
        freed: Modules of type nn.MultiheadAttention that take on `FreeHeadsAttention`, whose heads may be fewer.
        bias_changes: What biases gain, by name, before they are cut: constants that removed units leave behind.
        activation_bytes: Bytes of the results of all ops of the example inputs' run before and after, as if all were
            kept; views and results written in place count nothing.
        latency: Seconds that its matrix products and convolutions take before and after, as a `LatencyTable` predicts;
            None if none was given.
        coupling: The analysis that it was made from, which spares `verify` another; None for one that was loaded.
        units: Class numbers there of the units that go; of columns that go head by head, as many as in each head.
    """

    keep: dict[str, dict[int, Tensor]]
    fit: Fit
    numbers: tuple[NumberPlan, ...]
    groups: tuple[GroupPlan, ...]
    kept_whole: tuple[str, ...]
    parameters: tuple[int, int]
    macs: tuple[int, int]
    freed: tuple[str, ...] = ()
    bias_changes: dict[str, Tensor] = field(default_factory=dict)
    activation_bytes: tuple[int, int] = (0, 0)
    latency: tuple[float, float] | None = None
    coupling: Coupling | None = field(default=None, repr=False)
    units: tuple[int, ...] = field(default=(), repr=False)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape before of every tensor that changes."""
        return self.fit.shapes

    def __eq__(self, other: object) -> bool:
        """Whether the other does the same to the same shapes."""
        if not isinstance(other, ShrinkPlan) or (self.shapes, self.numbers) != (other.shapes, other.numbers):
            return False
        mine, theirs = self._tensors(), other._tensors()
        return mine.keys() == theirs.keys() and all(torch.equal(mine[key], theirs[key]) for key in mine)

    def __repr__(self) -> str:
        """A table: totals, groups before and after, what is kept whole and why."""
        costs = {"parameters": self.parameters, "MACs": self.macs, "activation bytes": self.activation_bytes}
        size, work, memory = (
            f"{name} {old:,} -> {new:,} ({new / max(1, old):.1%})" for name, (old, new) in costs.items()
        )
        lines = [f"ShrinkPlan: {size}, {work}", f"  {memory}"]
        if self.latency is not None:
            old, new = self.latency
            lines[1] += (
                f", latency {1e3 * old:.3g} ms -> {1e3 * new:.3g} ms ({new / old if old else 1:.1%}) as predicted"
            )
        lines += ["  nothing is removed"] * (not self.keep)
        width = max((len(group.name) for group in self.groups), default=0)
        lines += [f"  {g.name:<{width}}  {g.kind:<10} {g.before:>6,} -> {g.after:>6,}" for g in self.groups]
        if self.bias_changes:
            names, more = list(self.bias_changes)[:3], len(self.bias_changes) - 3
            lines += [f"  constants go into {', '.join(names)}{f' and {more} more' if more > 0 else ''}"]
        lines += [f"  kept whole: {line}" for line in self.kept_whole]
        return "\n".join(lines)

    # ---- doing

    @without_collections()
    def apply_(
        self,
        model: nn.Module,
        *,
        optimizer: Holders = None,
        ema: Holders = None,
        tried_on: Inputs | None = None,
        verify: Inputs | None = None,
    ) -> nn.Module:
        """Remove the positions from a live model, with everything that refers to its parameters; all or nothing.

        Args:
            model: The model that the plan was made for, a copy, or a fresh instance of the same architecture.
            optimizer: The optimizer that trains it, or several.
            ema: What follows by name: an ``AveragedModel``, copies, dicts of tensors.
            tried_on: The inputs of the analysis. The smaller model runs on them once, and shapes and scalars of all ops
                must be as foreseen; otherwise everything is undone.
            verify: Inputs on which the smaller model must give what the full one gives, run as if the same units were
                gone, see `verify`; otherwise everything is undone.

        Returns:
            The model.

        Changes:
            Shapes of parameters and buffers, gradients, optimizer state, averages, masks, recorded sizes; of copies of
            the model in `ema` likewise.

        Keeps:
            The model's class and code; identity, names, hooks, requires_grad of all parameters.

        Raises:
            InvalidInputError: It is no module; inputs are of none of the known forms; or `verify` was given for a model
                without values (a fake or meta device).
            ShapeError: A tensor is missing or has another shape, a layer has got a bias since, tied tensors are tied no
                longer, or a number has another value: another architecture, or the plan was applied already.
            UnsupportedError: `tried_on` or `verify` was given and the smaller model is not right.
            SecateurError: Those of `secateur.transaction`. Nothing has been changed then.
        """
        self.fit.refuse_model(model)
        for inputs in (tried_on, verify):
            if inputs is not None:
                refuse_strange(inputs)
        reference = None if verify is None else self._reference(model, verify)
        with carried_out(self, model, optimizer, ema) as (surgery, twins):
            for name, dims in self.keep.items():
                for dim, keep in dims.items():
                    surgery.resize(name, dim=dim, keep=keep)
            for edit in bias_edits(twins, copies_among(ema), self.bias_changes, self.keep, self.fit.tied):
                surgery.also(edit)
            if tried_on is not None and (tried_on is not verify or model.training):
                surgery.also(Tried(model, tried_on, self))
            if verify is not None and reference is not None:
                surgery.also(Verified(model, verify, self, reference))
        return model

    @without_collections()
    def verify(self, model: nn.Module, inputs: Inputs) -> Verification:
        """Try the plan on a copy of the model and compare with the full one, run as if the same units were gone.

        Every op of the smaller copy is looked at: the shapes of its results, and the scalars that it is given.

        Args:
            model: The model that the plan fits; it is left as it is.
            inputs: Inputs to run it on, in any form that `plan_shrink` takes.

        Returns:
            The error, and for which groups removing units is the same as zeroing them.

        Raises:
            InvalidInputError: It is no module, or has no values (a fake or meta device); or inputs are of none of the
                known forms.
            ShapeError: The plan does not fit.
            UnsupportedError: The smaller copy does not run, or its outputs have other shapes.
        """
        self.fit.refuse_model(model)
        refuse_strange(inputs)
        reference = self._reference(model, inputs)
        return reference.compare(self.apply_(copy.deepcopy(model)), inputs, self)

    def apply_to(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Cut a bare state_dict, without the model.

        Args:
            state: Tensors by name, of tied ones one name or all; those of other modules than the plan knows are
                passed on.

        Returns:
            A new dict; cut tensors have memory of their own, one for all names of a tied one.

        Raises:
            InvalidInputError: It is no state_dict.
            ShapeError: A tensor is missing or has another shape, or a layer has got a bias. Nothing has been changed.
            UnsupportedError: A weight that changes is under weight norm or spectral norm.
        """
        return self.fit.converted(state, self._cut)

    def removed_zeroed_(self, model: nn.Module) -> nn.Module:
        """Zero, in place, the parameters and statistics at all positions that the plan removes: the reference."""
        tensors = named_tensors(model)
        with torch.no_grad():
            for name, addition in self.bias_changes.items():
                tensors[name].add_(addition.to(tensors[name]))
            for name, dims in self.keep.items():
                for dim, keep in dims.items():
                    if dim in self.keep.get(_magnitude(name), {}):
                        continue  # a direction of length zero has no norm; its magnitude is zeroed instead
                    gone = torch.ones(tensors[name].shape[dim], dtype=torch.bool)
                    gone[keep] = False
                    tensors[name].index_fill_(dim, gone.nonzero().squeeze(1).to(tensors[name].device), 0)
        return model

    # ---- files

    def save(self, path: str | PathLike[str]) -> None:
        """Write the plan to one safetensors file: kept positions as tensors, the rest as JSON in the header."""
        part = self.to_part()
        write_file(path, "plan", part.header, part.tensors)

    def to_part(self) -> Part:
        """What `save` writes, for a file that holds the plan beside other things."""
        more = {"macs": self.macs, "activation_bytes": self.activation_bytes, "latency": self.latency}
        return part_of(self, kind=_FORMAT, tensors=self._tensors(), **more)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read a plan that `save` wrote, or `secateur.save` beside the model.

        Raises:
            InvalidInputError: The file holds no plan.
        """
        with opened(path, "plan", _FORMAT, fix="plan.save(path) writes such files") as (file, header):
            return cls.from_part(file, header)

    @classmethod
    def from_part(cls, file: Any, header: Mapping[str, Any]) -> Self:
        """Undo `to_part`.

        Args:
            file: The open file; None where the header has the tensors.
            header: The JSON text.
        """
        keep: dict[str, dict[int, Tensor]] = {}
        additions: dict[str, Tensor] = {}
        for key in names_in(file, header):
            name, dim = key.rsplit("|", 1)
            if dim == _ADDED:
                additions[name] = tensor_in(file, header, key)
            else:
                keep.setdefault(name, {})[int(dim)] = tensor_in(file, header, key)
        return cls(
            keep,
            macs=tuple(header["macs"]),
            bias_changes=additions,
            activation_bytes=tuple(header["activation_bytes"]),
            latency=header["latency"] and tuple(header["latency"]),
            **parts_of(header),
        )

    def _reference(self, model: nn.Module, inputs: Inputs) -> Reference:
        """What the smaller model must compute."""
        refuse_valueless(named_tensors(model).values(), "a comparison")
        return Reference.of(model, inputs, self)

    def _cut(self, name: str, tensor: Tensor) -> Tensor:
        """One tensor as it is afterwards."""
        if name in self.bias_changes:
            tensor = tensor + self.bias_changes[name].to(tensor)
        for dim, keep in self.keep.get(name, {}).items():
            tensor = tensor.index_select(dim, keep.to(tensor.device))
        return tensor

    def _tensors(self) -> dict[str, Tensor]:
        """Kept positions and additions under one key each."""
        kept = {f"{name}|{dim}": index for name, dims in self.keep.items() for dim, index in dims.items()}
        return kept | {f"{name}|{_ADDED}": addition for name, addition in self.bias_changes.items()}


def _magnitude(name: str) -> str:
    """The name of the magnitude that belongs to a direction of weight norm, in its new and its old form."""
    for direction, magnitude in ((".original1", ".original0"), ("weight_v", "weight_g")):
        if name.endswith(direction):
            return name.removesuffix(direction) + magnitude
    return ""
