"""Every op that multiplies, against the rule that the analysis of models has for it."""

from __future__ import annotations

import importlib
import math
import random

import pytest
import torch

from secateur.graph.capture import Capture, tensors_in
from secateur.graph.labels import Labels, size_of
from secateur.graph.rules import rule_for
from secateur.runtime.profile_products import PRODUCTS
from tests.graph.oracle import EXAMPLES, Draw, Size, operator_of
from tests.graph.test_rules import NOT_ON_CPU

for module in ("contraction", "image", "joining", "lookup", "pointwise", "reduction"):
    importlib.import_module(f"tests.graph.examples.{module}")


def counted(name: str, seed: int) -> tuple[int, int]:
    """MACs of one call by the rule of the op, and by the table."""
    torch.manual_seed(seed)
    case = EXAMPLES[name].make(Draw(random.Random(seed).randint))
    args = [argument.before if isinstance(argument, Size) else argument for argument in case.args]
    labels = Labels()
    capture = Capture(labels, rule_for)
    for tensor in tensors_in((args, case.kwargs)):
        capture.enter_tensor(tensor, labels.fresh_dims(tensor.shape))
    with capture:
        result = operator_of("aten.add" if name == "pointwise" else name, case.overload)(*args, **case.kwargs)
    terms = PRODUCTS.get(".".join(name.split(".")[:2]), lambda args, result: [])(
        args, next(iter(tensors_in(result)), None)
    )
    assert all(term.macs % factor.numel() == 0 for term in terms for factor in term.factors)
    return sum(math.prod(map(size_of, product.dims)) for product in capture.products), sum(term.macs for term in terms)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_macs_of_an_op_are_those_of_its_rule(name: str) -> None:
    for seed in range(5):
        by_rule, by_table = counted(name, seed)
        assert by_table == by_rule


def test_ops_of_other_devices_have_the_formula_of_a_tested_one() -> None:
    tested = {PRODUCTS[name] for name in PRODUCTS if name in EXAMPLES}
    others = [name for name in PRODUCTS if name not in EXAMPLES]
    assert set(others) <= NOT_ON_CPU
    assert all(PRODUCTS[name] in tested for name in others)
