"""Whether a plan does to a model what it says: a copy is made smaller and compared with one whose units are zero."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from secateur._errors import UnsupportedError
from secateur.graph.capture import tensors_in
from secateur.graph.trace import Inputs, call_with, undisturbed

__all__ = ["Numbers", "Verification", "compare"]


Used = tuple[str, tuple[float, ...]]
"""An op and the floating-point scalars that it was given."""


@dataclass(frozen=True)
class Verification:
    """How a smaller copy of a model compares with one in which the same units are zero.

    Args:
        error: Largest difference between the two outputs, as a fraction of the largest entry of the output.
        moved: Largest difference that zeroing made, likewise; an error below this says something.
        tolerance: What rounding may cost in this dtype.
        exact: Groups that lost units and whose removal equals zeroing them.
        mixing: Groups that lost units and that some op (a norm, a softmax) mixes, so that removal differs from zeroing
            by nature; if there are any, `error` is no fault.
        numbers: Scalars that ops were given in the smaller copy and not in the model: sizes that became values.
    """

    error: float
    moved: float
    tolerance: float
    exact: tuple[str, ...]
    mixing: tuple[str, ...]
    numbers: tuple[str, ...]

    @property
    def is_right(self) -> bool:
        """Whether nothing speaks against the plan."""
        return not self.numbers and (bool(self.mixing) or self.error <= self.tolerance)

    def refuse_wrong(self) -> None:
        """Raise if something speaks against the plan.

        Raises:
            UnsupportedError: The smaller model would compute something else.
        """
        if not self.is_right:
            raise UnsupportedError(
                "the smaller model computes something else than the model with the same units at zero.",
                error=f"{self.error:.1e}",
                tolerance=f"{self.tolerance:.1e}",
                changed_numbers="; ".join(self.numbers[:4]) or "none",
                fix="leave the groups out with ignore=…, and please report the model",
            )

    def __repr__(self) -> str:
        """One line, and one for each list that is not empty."""
        lines = [
            f"Verification: {'right' if self.is_right else 'WRONG'}, error {self.error:.1e}, moved {self.moved:.1e}"
        ]
        lines += [f"  exact: {', '.join(self.exact)}"] if self.exact else []
        lines += [f"  mixed by nature: {', '.join(self.mixing)}"] if self.mixing else []
        lines += [f"  a size became a value: {line}" for line in self.numbers]
        return "\n".join(lines)


def compare(
    model: nn.Module,
    inputs: Inputs,
    shrink: Callable[[nn.Module], nn.Module],
    zero: Callable[[nn.Module], nn.Module],
    *,
    exact: tuple[str, ...],
    mixing: tuple[str, ...],
) -> Verification:
    """Run a model, a smaller copy and a zeroed copy, all in evaluation mode.

    Args:
        model: The model; unchanged.
        inputs: Example inputs.
        shrink: Makes a model smaller in place.
        zero: Zeroes the same units in place.
        exact: Names of groups, see `Verification`.
        mixing: Names of groups, see `Verification`.

    Returns:
        The comparison.

    Raises:
        UnsupportedError: The smaller copy does not run, or its outputs have other shapes.
    """
    before, used_before = _run(copy.deepcopy(model).eval(), inputs)
    zeroed, _ = _run(zero(copy.deepcopy(model).eval()), inputs)
    try:
        after, used_after = _run(shrink(copy.deepcopy(model).eval()), inputs)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise UnsupportedError(f"the smaller model does not run: {error}") from error
    if [t.shape for t in after] != [t.shape for t in before]:
        raise UnsupportedError(
            "the outputs of the smaller model have other shapes.",
            before=[tuple(t.shape) for t in before],
            after=[tuple(t.shape) for t in after],
        )
    scale = max([float(t.abs().max()) for t in before if t.numel()], default=0.0) or 1.0
    eps = max([torch.finfo(t.dtype).eps for t in before], default=0.0)
    return Verification(
        _distance(after, zeroed) / scale,
        _distance(zeroed, before) / scale,
        1e3 * eps,
        exact,
        mixing,
        _differing(used_before, used_after),
    )


def _run(model: nn.Module, inputs: Inputs) -> tuple[list[Tensor], list[Used]]:
    """The floating-point tensors of the result, and the scalars that ops were given."""
    with undisturbed(model), Numbers() as numbers:
        result = call_with(model, inputs)
    return [t for t in tensors_in(result) if t.is_floating_point()], numbers.used


def _distance(one: list[Tensor], other: list[Tensor]) -> float:
    """Largest absolute difference; entries that are not finite must agree."""
    found = 0.0
    for a, b in zip(one, other, strict=True):
        difference = torch.where(a == b, torch.zeros_like(a), (a - b).abs())
        found = max(found, float(difference.max()) if difference.numel() else 0.0)
    return math.inf if math.isnan(found) else found


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
        given = tuple(value for value in (*args, *kwargs.values()) if type(value) is float)
        name = str(func.overloadpacket)
        if "scaled_dot_product" in name and kwargs.get("scale") is None:
            given += (float(args[0].shape[-1]) ** -0.5,)
        if name == "aten.lift_fresh" and out.dim() == 0 and out.is_floating_point():
            given += (float(out),)
        self.used.append((name, given))
        return out


def _differing(before: list[Used], after: list[Used]) -> tuple[str, ...]:
    """Ops with other scalars than before; none where other ops were run, since the runs cannot be laid side by side."""
    if [name for name, _ in before] != [name for name, _ in after]:
        return ()
    return tuple(
        f"{name}: {list(old)} -> {list(new)}"
        for (name, old), (_, new) in zip(before, after, strict=True)
        if old != new and not (any(map(math.isnan, old)) and any(map(math.isnan, new)))
    )
