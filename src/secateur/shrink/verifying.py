"""Whether a plan does to a model what it says: a copy is made smaller, and compared with what it must compute."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from secateur._errors import UnsupportedError
from secateur.graph.capture import tensors_in
from secateur.graph.coupling import Coupling, analyze
from secateur.graph.heads import free_heads
from secateur.graph.pretend import Foreseen, run_without
from secateur.graph.scalars import are_close, scalars_of
from secateur.graph.trace import Inputs, call_with, named_tensors, undisturbed
from secateur.shrink.choosing import units_at
from secateur.shrink.rows import columns_lined_up_

if TYPE_CHECKING:
    from secateur.shrink.plan import ShrinkPlan

__all__ = ["Numbers", "Verification", "compare", "differing", "distance"]


Used = tuple[str, tuple[float, ...]]
"""An op and the floating-point scalars that it was given."""


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


def compare(model: nn.Module, inputs: Inputs, plan: ShrinkPlan) -> Verification:
    """Run a smaller copy of a model, and the full one as if the units were gone; both in evaluation mode.

    Args:
        model: The model; unchanged.
        inputs: Example inputs.
        plan: What goes.

    Returns:
        The comparison.

    Raises:
        UnsupportedError: The smaller copy does not run, or its outputs have other shapes.
    """
    full = _Full.of(model, inputs, plan)
    expected, used_before = full.expected, full.used
    used, shapes = Numbers(), Foreseen(full.coupling, full.units)
    small = plan.apply_(copy.deepcopy(model).eval())
    try:
        with undisturbed(small), free_heads(small), shapes, used:
            result = call_with(small, inputs)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise UnsupportedError(f"the smaller model does not run: {error}") from error
    found = _floats(result)
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
        differing(used_before, used.used),
        shapes.wrong,
    )


@dataclass(frozen=True)
class _Full:
    """The full model, run as if the units were gone: the analysis, the units, what came out, scalars on the way."""

    coupling: Coupling
    units: list[int]
    expected: list[Tensor]
    used: Sequence[Used]

    @classmethod
    def of(cls, model: nn.Module, inputs: Inputs, plan: ShrinkPlan) -> _Full:
        """By the plan's own analysis or, if these inputs take another way, by a new one."""
        if plan.coupling is not None:
            try:
                return cls.by(plan.coupling, model, inputs, plan)
            except UnsupportedError:
                pass  # it was made in training mode, or for inputs of other sizes
        fresh = analyze(copy.deepcopy(model).eval(), inputs, prune_inputs=True, prune_outputs=True)
        return cls.by(fresh, model, inputs, plan)

    @classmethod
    def by(cls, coupling: Coupling, model: nn.Module, inputs: Inputs, plan: ShrinkPlan) -> _Full:
        """By one analysis; where rows lose columns of their own, those are put in line before."""
        full, used = copy.deepcopy(model).eval(), Numbers()
        tensors = named_tensors(full)
        with torch.no_grad():
            for name, addition in plan.bias_changes.items():
                tensors[name].add_(addition.to(tensors[name]))
        kept = {(name, d): _mask(tensors[name], d, index) for name, of in plan.keep.items() for d, index in of.items()}
        lined_up = columns_lined_up_(full, coupling, kept)
        units = units_at(model, coupling, {key: np.nonzero(~mask)[0].tolist() for key, mask in lined_up.items()})
        return cls(coupling, units, _floats(run_without(full, inputs, coupling, units, watching=[used])), used.used)


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


class Numbers(TorchDispatchMode):
    """Writes down the floating-point scalars that ops are given, op by op."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.used: list[Used] = []

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the op and note its scalars."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = str(func.overloadpacket)
        given = scalars_of(name, args, kwargs, out)
        self.used.append((name, given))
        return out


def differing(before: Sequence[Used], after: Sequence[Used]) -> tuple[str, ...]:
    """Ops with other scalars than before; none where other ops were run, since the runs cannot be laid side by side."""
    if [name for name, _ in before] != [name for name, _ in after]:
        return ()
    return tuple(
        f"{name}: {list(old)} -> {list(new)}"
        for (name, old), (_, new) in zip(before, after, strict=True)
        if len(old) == len(new) and not are_close(old, new)
    )
