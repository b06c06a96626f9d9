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

from secateur.graph.rules import RULES
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
SEEDS = range(30)


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
    assert set(RULES) - NOT_ON_CPU - NOT_IN_EAGER == set(EXAMPLES)


def test_rule_of_other_devices_is_a_tested_one() -> None:
    tested = {RULES[name] for name in EXAMPLES}
    assert all(RULES[name] in tested for name in NOT_ON_CPU | NOT_IN_EAGER)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=12)
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
