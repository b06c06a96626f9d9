"""Every rule of the table is held against the oracle; a rule without example calls fails here."""

from __future__ import annotations

import importlib
import random
from typing import Any

import pytest
import torch
import torchvision  # its ops
from hypothesis import given, settings
from hypothesis import strategies as st

from secateur.graph.call import Rule
from secateur.graph.labels import Dims
from secateur.graph.rules import RULES, rule_for
from tests.graph.oracle import EXAMPLES, Draw, Outcome, check

for module in ("contraction", "image", "joining", "lookup", "pointwise", "reduction"):
    importlib.import_module(f"tests.graph.examples.{module}")

assert torchvision.__version__

NOT_ON_CPU = {
    "aten._scaled_dot_product_flash_attention", "aten._scaled_dot_product_efficient_attention",
    "aten._scaled_dot_product_cudnn_attention", "aten._scaled_dot_product_fused_attention_overrideable",
    "aten._scaled_dot_product_attention_math_for_mps", "aten.cudnn_batch_norm",
}  # fmt: skip
"""Ops that only run on other devices; their rules are those of ops that are tested."""

NOT_IN_EAGER = {"aten.sym_size", "aten.sym_numel", "aten.sym_stride", "aten.sym_storage_offset", "prim.device"}
"""Ops that only appear under fake tensors, and give no tensors."""

NAMES = sorted(EXAMPLES)
SEEDS = range(10)


def operator_name(name: str) -> str:
    return "aten.add" if name == "pointwise" else name


def run(name: str, seed: int, **options: Any) -> Outcome:
    example, numbers = EXAMPLES[name], random.Random(seed)
    torch.manual_seed(seed)
    case = example.make(Draw(numbers.randint))
    return check(
        operator_name(name), case, numbers.randint, values=example.values, compared=example.compared, **options
    )


def test_rule_has_example_calls() -> None:
    own = {name for name in RULES if name.split(".")[0] in ("aten", "prim", "torchvision", "pointwise")}
    assert own - NOT_ON_CPU - NOT_IN_EAGER == set(EXAMPLES)


def test_rule_of_other_devices_is_a_tested_one() -> None:
    tested = {RULES[name] for name in EXAMPLES}
    assert all(RULES[name] in tested for name in NOT_ON_CPU | NOT_IN_EAGER)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=8)
@given(data=st.data())
def test_rule_agrees_with_slicing(name: str, data: st.DataObject) -> None:
    def pick(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    torch.manual_seed(pick(0, 3))
    example = EXAMPLES[name]
    check(operator_name(name), example.make(Draw(pick)), pick, values=example.values, compared=example.compared)


@pytest.mark.parametrize("name", [name for name in NAMES if EXAMPLES[name].frees])
def test_rule_lets_something_go(name: str) -> None:
    assert any(run(name, seed).removed for seed in SEEDS)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("forgotten", ["equations", "blocks", "results"])
def test_rule_without_one_kind_of_fact_is_caught(name: str, forgotten: str) -> None:
    if forgotten in EXAMPLES[name].unneeded:
        return
    stated = False
    for seed in SEEDS:
        try:
            stated |= getattr(run(name, seed, forget=forgotten), forgotten)
        except (AssertionError, RuntimeError, IndexError, ValueError):
            return
    assert not stated, "the rule is right without them, so they only cost units"


def exchanged(call: Any) -> list[Dims]:
    """A product whose result is turned around."""
    return [dims[::-1] for dims in rule_for(call.func)(call)]


def columns_first(call: Any) -> list[Dims]:
    """Pixels that come before their channel."""
    dims, labels = call.dims(call.args[0]), call.labels
    inner, outer = labels.split(labels.merge(dims[1]), 4)
    call.block((inner,), "pixels")
    return [(dims[0], (outer,), *labels.fixed_dims(call.out.shape[2:]))]


def backwards(call: Any) -> list[Dims]:
    """Parts that are joined in the wrong order."""
    call.inputs.reverse()
    return list(rule_for(call.func)(call))


def from_the_left(call: Any) -> list[Dims]:
    """Sizes that are aligned from the left."""
    one, other = (call.dims(tensor) for tensor in call.args)
    for mine, theirs in zip(one, other, strict=False):
        if len(mine) == len(theirs) and mine and mine[0].size == theirs[0].size:
            call.equal(mine, theirs)
    return [one]


def position_by_position(call: Any) -> list[Dims]:
    """An op that looks at all positions, taken for one that looks at each by itself."""
    return [call.dims(call.args[0])]


def without_groups(call: Any) -> list[Dims]:
    """A convolution whose groups are overlooked."""
    kernel = call.dims(call.args[1])
    for dim in (*call.dims(call.args[0])[2:], *kernel[2:]):
        call.block(dim, "window")
    return [(call.dims(call.args[0])[0], kernel[0], *call.labels.fixed_dims(call.out.shape[2:]))]


WRONG: dict[str, Rule] = {
    "aten.mm": exchanged, "aten.pixel_shuffle": columns_first, "aten.cat": backwards, "pointwise": from_the_left,
    "aten.roll": position_by_position, "aten.sort": lambda call: [*position_by_position(call)] * 2,
    "aten._softmax": position_by_position, "aten.convolution": without_groups,
}  # fmt: skip


def is_caught(name: str, wrong: Rule) -> bool:
    for seed in range(40):
        try:
            run(name, seed, rules=lambda func: wrong)
        except (AssertionError, RuntimeError, ValueError):
            return True
    return False


@pytest.mark.parametrize("name", WRONG)
def test_wrong_rule_is_caught(name: str) -> None:
    assert is_caught(name, WRONG[name])
