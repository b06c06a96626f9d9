"""Whether a plan does to a model what it says: the smaller model is compared with what it must compute."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from secateur._errors import UnsupportedError
from secateur._passes import Inputs, call_with, evaluating, undisturbed
from secateur._progress import task
from secateur.graph.capture import tensors_in
from secateur.graph.coupling import Coupling, analyze
from secateur.graph.heads import free_heads
from secateur.graph.outlining import in_earnest
from secateur.graph.pretend import Foreseen, Used, Without, parts_of_weight_norm, run_without
from secateur.graph.scalars import are_close
from secateur.graph.trace import named_tensors
from secateur.graph.writes import weights_restored
from secateur.shrink.choosing import units_at
from secateur.shrink.rows import Positions, columns_in_line, units_in_line
from secateur.surgery.computed import computed_tensors
from secateur.surgery.transaction import Transaction

if TYPE_CHECKING:
    from secateur.shrink.plan import ShrinkPlan

__all__ = ["Reference", "Verification", "distance"]


@dataclass(frozen=True)
class Verification:
    """How a smaller copy of a model compares with the full one that is run as if the same units were gone.

    Args:
        error: Largest difference between the two outputs, as a fraction of the largest entry of the output.
        tolerance: What rounding may cost in this dtype.
        exact: Groups that lost units and for which that is the same as their units being zero.
        mixing: Groups that lost units and that some op (a norm, a softmax) mixes, so that removing units differs from
            zeroing them by nature.
        numbers: Scalars that ops were given in the smaller copy and not in the model: sizes that became values.
        shapes: The first op of the smaller copy whose result has another shape than was predicted; empty if there is
            none.
    """

    error: float
    tolerance: float
    exact: tuple[str, ...]
    mixing: tuple[str, ...]
    numbers: tuple[str, ...]
    shapes: str = ""

    @property
    def is_right(self) -> bool:
        """Whether nothing speaks against the plan."""
        return not self.numbers and not self.shapes and self.error <= self.tolerance

    def refuse_wrong(self) -> None:
        """Raise if something speaks against the plan.

        Raises:
            UnsupportedError: The smaller model would compute something else.
        """
        if not self.is_right:
            raise UnsupportedError(
                "the smaller model computes something else than the model without the same units.",
                error=f"{self.error:.1e}",
                tolerance=f"{self.tolerance:.1e}",
                changed_numbers="; ".join(self.numbers[:4]) or "none",
                shapes=self.shapes or "as predicted",
                fix="leave the groups out with ignore=…, and please report the model",
            )

    def __repr__(self) -> str:
        """One line, and one for each list that is not empty."""
        lines = [f"Verification: {'right' if self.is_right else 'WRONG'}, error {self.error:.1e}"]
        lines += [f"  as zeros: {', '.join(self.exact)}"] if self.exact else []
        lines += [f"  mixed by nature: {', '.join(self.mixing)}"] if self.mixing else []
        lines += [f"  a size became a value: {line}" for line in self.numbers]
        lines += [f"  another shape: {self.shapes}"] if self.shapes else []
        return "\n".join(lines)


@dataclass(frozen=True)
class Reference:
    """What a smaller model must compute: the full one, run in evaluation mode as if the units were gone.

    Args:
        coupling: The analysis that it rests on.
        units: Class numbers there of the units that go.
        without: What came out.
    """

    coupling: Coupling
    units: Sequence[int]
    without: Without

    @classmethod
    @task("running without the units")
    def of(cls, model: nn.Module, inputs: Inputs, plan: ShrinkPlan) -> Reference:
        """By the plan's own analysis or, if these inputs take another way, by a new one; the model is left as it is."""
        with evaluating(model):
            if plan.coupling is not None:
                try:
                    return cls._by(plan.coupling, model, inputs, plan)
                except UnsupportedError:
                    pass  # it was made in training mode, or for inputs of other sizes
            fresh = analyze(model, inputs, prune_inputs=True, prune_outputs=True)
            return cls._by(fresh, model, inputs, plan)

    @classmethod
    def _by(cls, coupling: Coupling, model: nn.Module, inputs: Inputs, plan: ShrinkPlan) -> Reference:
        """By one analysis; where rows lose columns of their own, those are put in line before."""
        tensors = named_tensors(model)
        values = {name: tensors[name].detach() + added.to(tensors[name]) for name, added in plan.bias_changes.items()}
        whole = parts_of_weight_norm(coupling)
        values |= {name: value for name, value in _normalised(model, plan).items() if name not in whole}
        asked = {(name, d): _mask(tensors[name], d, index) for name, of in plan.keep.items() for d, index in of.items()}
        moved, kept = columns_in_line({**tensors, **values}, coupling, asked)
        units = _units_of(
            model, coupling, kept, units_in_line(coupling, plan.units) if coupling is plan.coupling else ()
        )
        return cls(coupling, units, run_without(model, inputs, coupling, units, values={**values, **moved}))

    @task("comparing")
    def compare(self, small: nn.Module, inputs: Inputs, plan: ShrinkPlan) -> Verification:
        """Run the smaller model in evaluation mode and lay it beside this.

        Args:
            small: The model to which the plan has been applied, or a copy.
            inputs: The inputs with which this was made.
            plan: What went.

        Returns:
            The comparison.

        Raises:
            UnsupportedError: The smaller model does not run, or its outputs have other shapes.
        """
        try:
            with (
                evaluating(small),
                undisturbed(small),
                weights_restored(small, in_earnest) as execute,
                free_heads(small),
                Foreseen(self.coupling, self.units, execute, staying=self.without.staying) as seen,
            ):
                result = call_with(small, inputs)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise UnsupportedError(f"the smaller model does not run: {error}") from error
        found, expected = _floats(result), _floats(self.without.result)
        if [t.shape for t in found] != [t.shape for t in expected]:
            raise UnsupportedError(
                "the outputs of the smaller model have other shapes.",
                before=[tuple(t.shape) for t in expected],
                after=[tuple(t.shape) for t in found],
            )
        scale = max([float(t.abs().max()) for t in expected if t.numel()], default=0.0) or 1.0
        eps = max([torch.finfo(t.dtype).eps for t in expected], default=0.0)
        cut = [group for group in plan.groups if group.after < group.before]
        return Verification(
            distance(found, expected) / scale,
            1e3 * eps,
            tuple(group.name for group in cut if not group.mixes),
            tuple(group.name for group in cut if group.mixes),
            _differing(self.without.used, seen.used),
            seen.wrong,
        )


def _normalised(model: nn.Module, plan: ShrinkPlan) -> dict[str, Tensor]:
    """Values of the lengths and vectors of normalised weights, which the plan changes besides cutting them."""
    if not any(True for module in model.modules() for _ in computed_tensors(module)):
        return {}
    surgery = Transaction(model)
    for name, dims in plan.keep.items():
        for dim, keep in dims.items():
            surgery.resize(name, dim=dim, keep=keep)
    found = {id(tensor): value for tensor, value in surgery.new_values()}
    tensors = named_tensors(model)
    return {
        name: _spread(found[id(tensor)], tensor, plan.keep.get(name, {}))
        for name, tensor in tensors.items()
        if id(tensor) in found
    }


def _spread(value: Tensor, tensor: Tensor, keep: Mapping[int, Tensor]) -> Tensor:
    """The values of kept positions where they were, and zeros at the others."""
    for dim, index in keep.items():
        room = value.new_zeros([*value.shape[:dim], tensor.shape[dim], *value.shape[dim + 1 :]])
        value = room.index_copy_(dim, index.to(value.device), value)
    return value


def _units_of(model: nn.Module, coupling: Coupling, kept: Positions, likely: Sequence[int]) -> Sequence[int]:
    """The units that take exactly these positions along; the likely ones are tried first."""
    if likely:
        taken = coupling.positions(likely)
        if taken.keys() == kept.keys() and all(np.array_equal(taken[key], kept[key]) for key in kept):
            return likely
    return units_at(model, coupling, {key: np.nonzero(~mask)[0].tolist() for key, mask in kept.items()})


def _mask(tensor: Tensor, dim: int, index: Tensor) -> npt.NDArray[np.bool_]:
    """Which positions of a dim stay."""
    mask = np.zeros(tensor.shape[dim], dtype=bool)
    mask[index.numpy()] = True
    return mask


def _floats(result: Any) -> list[Tensor]:
    """The floating-point tensors of a result."""
    return [tensor for tensor in tensors_in(result) if tensor.is_floating_point()]


def distance(one: list[Tensor], other: list[Tensor]) -> float:
    """Largest absolute difference; infinite where one side is no number and the other is."""
    found = 0.0
    for a, b in zip(one, other, strict=True):
        same = (a == b) | (a.isnan() & b.isnan())
        difference = torch.where(same, torch.zeros_like(a), (a - b).abs()).nan_to_num(nan=math.inf)
        found = max(found, float(difference.max()) if difference.numel() else 0.0)
    return found


def _differing(before: Sequence[Used], after: Sequence[Used]) -> tuple[str, ...]:
    """Ops with other scalars than before; none where other ops were run, since the runs cannot be laid side by side."""
    if [name for name, _ in before] != [name for name, _ in after]:
        return ()
    return tuple(
        f"{name}: {list(old)} -> {list(new)}"
        for (name, old), (_, new) in zip(before, after, strict=True)
        if len(old) == len(new) and not are_close(old, new)
    )
