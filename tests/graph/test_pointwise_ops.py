"""Every op that torch tags as pointwise really is: the shared rule holds for it, whatever its operands broadcast to."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from secateur.graph.rules import RULES, rule_for
from tests.graph.oracle import Case, Draw, check

DTYPES = (torch.float64, torch.int64, torch.bool)


def operator_of(name: str) -> Any:
    _, op, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, op), overload)


def is_tested(func: Any) -> bool:
    """Whether an op has the tag, takes and gives tensors, and is not taken apart before a rule can see it."""
    arguments, results = func._schema.arguments, func._schema.returns
    return (
        torch.Tag.pointwise in func.tags
        and any(str(argument.type) == "Tensor" for argument in arguments)
        and any(str(result.type) == "Tensor" for result in results)
        and not any(argument.is_out for argument in arguments)
        and not torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
    )


def tagged() -> Iterator[str]:
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        for overload in getattr(packet, "overloads", tuple)():
            if is_tested(getattr(packet, overload)):
                yield f"aten.{name}.{overload}"


NAMES = sorted(tagged())


def number_for(kind: str) -> Any:
    """A plain argument of a type of torch's schemas."""
    kinds = {"float": 0.5, "bool": True, "str": "none", "Optional[str]": None}
    return kinds.get(kind, 2)


def call_of(name: str, dtype: torch.dtype, draw: Draw) -> Case:
    """A call with tensors of which the first is the largest."""
    full = draw.sizes(draw.pick(1, 3))
    given: list[Any] = []
    named: dict[str, Any] = {}
    for argument in operator_of(name)._schema.arguments:
        kind = str(argument.type)
        if argument.kwarg_only and argument.has_default_value():
            continue
        if "Tensor" in kind:
            shape = [n if draw.pick(0, 2) else 1 for n in full[draw.pick(0, len(full) - 1) :]] if given else full
            found: Any = (draw.positive(*shape) * 3 + 1).to(dtype)
        else:
            found = None if kind.startswith("Optional") and "number" not in kind else number_for(kind)
        if argument.kwarg_only:
            named[argument.name] = found
        else:
            given.append(found)
    return Case(tuple(given), named, overload=name.rsplit(".", 1)[1])


def runs(name: str, dtype: torch.dtype) -> bool:
    """Whether the op takes tensors of this kind."""
    case = call_of(name, dtype, Draw(random.Random(0).randint))
    try:
        operator_of(name)(*case.args, **case.kwargs)
    except RuntimeError:
        return False
    return True


def test_ops_with_the_tag_are_found() -> None:
    assert {"aten.add.Tensor", "aten.relu_.default", "aten.where.self", "aten.clamp.Tensor"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_op_with_the_tag_works_position_by_position(name: str) -> None:
    func = operator_of(name)
    assert rule_for(func) is RULES[str(func.overloadpacket) if str(func.overloadpacket) in RULES else "pointwise"]
    dtype = next(dtype for dtype in DTYPES if runs(name, dtype))
    removed = 0
    for seed in range(6):
        pick = random.Random(seed).randint
        removed += check(name, call_of(name, dtype, Draw(pick)), pick).removed
    assert removed > 0
