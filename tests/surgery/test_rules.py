"""The table of optimizers' state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.optimization import Adafactor as TransformersAdafactor

from secateur import _compat
from secateur.surgery import Change, Entry, state_rule
from secateur.surgery.rules import RULES, rule_of


@pytest.fixture(autouse=True)
def _restored_table() -> Iterator[None]:
    before = dict(RULES)
    yield
    RULES.clear()
    RULES.update(before)


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(3, 2))]


def test_every_optimizer_of_torch_that_needs_a_row_has_one() -> None:
    named = {kind.__name__ for kind in RULES if isinstance(kind, type)}
    assert set(_compat.optimizer_classes()) - named <= {"Muon"}, "its momentum is cut like the weight"


@pytest.mark.parametrize(
    ("kind", "entry", "fresh"),
    [
        (torch.optim.Rprop, "step_size", "lr"),
        (torch.optim.Rprop, "prev", 0.0),
        (torch.optim.Adagrad, "sum", "initial_accumulator_value"),
        (torch.optim.ASGD, "ax", None),
        (torch.optim.Adam, "exp_avg_sq", 0.0),
    ],
)
def test_row_says_what_new_positions_hold(kind: type[torch.optim.Optimizer], entry: str, fresh: object) -> None:
    assert rule_of(kind(parameters())).entry(entry).fresh == fresh


def test_row_is_found_by_dotted_name() -> None:
    rule = rule_of(TransformersAdafactor(parameters()))
    assert rule.entry_rule is not None
    assert rule.entry("exp_avg_sq_row").is_shaped


def test_subclass_inherits_the_row_but_is_not_called_elementwise() -> None:
    class Mine(torch.optim.Rprop):
        pass

    rule = rule_of(Mine(parameters()))
    assert rule.entry("step_size").fresh == "lr"
    assert not rule.elementwise
    assert rule_of(torch.optim.Rprop(parameters())).elementwise


def test_unknown_class_has_an_empty_row() -> None:
    class Mine(torch.optim.Optimizer):
        def __init__(self, params: list[nn.Parameter]) -> None:
            super().__init__(params, {})

    rule = rule_of(Mine(parameters()))
    assert (dict(rule.entries), rule.elementwise, rule.entry_rule) == ({}, False, None)


def test_state_rule_registers_several_kinds_and_keeps_what_is_said_of_the_base() -> None:
    class Mine(torch.optim.Rprop):
        pass

    @state_rule(Mine, "package.module.Theirs", entries={"scale": Entry(fresh=1.0)}, elementwise=True)
    def follow(name: str, value: Tensor, change: Change, group: Mapping[str, Any]) -> Tensor:
        return value

    rule = rule_of(Mine(parameters()))
    assert rule.entry_rule is follow
    assert rule.elementwise
    assert rule.entry("scale").fresh == 1.0
    assert rule.entry("step_size").fresh == "lr"
    assert RULES["package.module.Theirs"].entry("step_size").fresh == 0.0
