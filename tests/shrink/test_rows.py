"""Other columns in every head: what goes is each head's least, the count is common, and the smaller model is right."""

from __future__ import annotations

import copy

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from secateur.graph import analyze
from secateur.shrink import l2, plan_of, plan_shrink
from secateur.shrink.rows import columns_lined_up_
from tests.graph.test_rows import Heads, grouped, plain, scaled


def attention(seed: int, heads: int = 4, groups: int = 2) -> tuple[Heads, Tensor]:
    """Grouped attention in double precision, and tokens."""
    torch.manual_seed(seed)
    model = Heads(grouped, heads=heads, width=5, groups=groups).double().eval()
    return model, torch.randn(2, 6, 8, dtype=torch.float64)


def without(model: Heads, x: Tensor, kept: Tensor) -> Tensor:
    """The attention with columns `kept` (groups, columns that stay) of each group's keys, by sums over those alone."""
    b, n, _ = x.shape
    q, k, v = (p(x).view(b, n, m, 5) for p, m in ((model.q, 4), (model.k, 2), (model.v, 2)))
    outputs = []
    for h in range(4):
        g, mine = h // 2, kept[h // 2]
        weights = torch.softmax(q[:, :, h, mine] @ k[:, :, g, mine].transpose(1, 2), -1)
        outputs.append((weights @ v[:, :, g, mine]) @ model.o.weight[:, 5 * h + mine].T)
    return torch.stack(outputs).sum(0) + model.o.bias


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 999), number=st.integers(1, 4))
def test_every_group_of_heads_loses_its_own_least_columns(seed: int, number: int) -> None:
    model, x = attention(seed)
    coupling = analyze(model, x)
    group = next(group for group in coupling.groups if len(group.units) == 5)
    plan = plan_of(model, coupling, group.units[:number], by_row=l2(model, coupling))
    stay = plan.keep["k.weight"][0].view(2, 5 - number) % 5
    torch.testing.assert_close(plan.apply_(copy.deepcopy(model))(x), without(model, x, stay))
    assert plan.verify(model, x).is_right


def test_what_goes_is_each_groups_least_by_the_sum_of_the_norms_of_its_parts() -> None:
    model, x = attention(1)
    coupling = analyze(model, x)
    group = next(group for group in coupling.groups if len(group.units) == 5)
    plan = plan_of(model, coupling, group.units[:2], by_row=l2(model, coupling))
    squares = {name: tensor.detach().square() for name, tensor in model.named_parameters()}
    made = {name: squares[f"{name}.weight"].sum(1) + squares[f"{name}.bias"] for name in "qkv"}
    read = squares["o.weight"].sum(0)
    keys, values = made["k"].view(2, 5), made["v"].view(2, 5)
    queries, reading = made["q"].view(2, 2, 5), read.view(2, 2, 5)
    worth = (keys + values).sqrt() + (queries + reading).sqrt().sum(1)
    stay = plan.keep["k.weight"][0].view(2, 3) % 5
    assert torch.equal(stay, worth.topk(3, dim=1).indices.sort(1).values)


def test_with_one_score_for_all_the_same_columns_go_everywhere() -> None:
    model, x = attention(0)
    coupling = analyze(model, x)
    group = next(group for group in coupling.groups if len(group.units) == 5)
    flat = np.zeros(len(coupling.solution.parents))
    assert plan_of(model, coupling, group.units[:2], by_row=flat) == plan_of(model, coupling, group.units[:2])


def test_columns_that_are_tied_by_the_code_are_left_tied() -> None:
    torch.manual_seed(0)
    model, x = Heads(scaled).double(), torch.randn(2, 5, 8, dtype=torch.float64)
    rows = plan_shrink(model, x, sparsity=0.5).keep["q.weight"][0].view(-1, 2) % 4
    assert (rows == rows[0]).all()


def test_lining_up_columns_leaves_the_function_as_it_is() -> None:
    model, x = attention(4)
    plan = plan_shrink(model, x, sparsity=0.4)
    assert plan.coupling is not None
    stay = {}
    for name, dims in plan.keep.items():
        for d, index in dims.items():
            mask = np.zeros(plan.shapes[name][d], dtype=bool)
            mask[index.numpy()] = True
            stay[name, d] = mask
    twin = copy.deepcopy(model)
    after = columns_lined_up_(twin, plan.coupling, stay)
    torch.testing.assert_close(twin(x), model(x))
    moved = [name for name, tensor in twin.named_parameters() if not torch.equal(tensor, model.get_parameter(name))]
    assert {"q.weight", "k.weight", "o.weight"} <= set(moved)
    rows = after["k.weight", 0].reshape(2, 5)
    assert (rows == rows[0]).all()


def test_heads_and_columns_go_together() -> None:
    torch.manual_seed(0)
    model, x = Heads(plain, heads=6).double(), torch.randn(2, 5, 8, dtype=torch.float64)
    plan = plan_shrink(model, x, sparsity=0.5)
    assert {group.kind: (group.before, group.after) for group in plan.groups} == {"heads": (6, 3), "head dims": (4, 2)}
    assert plan.verify(model, x).is_right
    smaller = plan.apply_(copy.deepcopy(model))
    assert (smaller.num_heads, smaller.head_dim, smaller.q.out_features) == (3, 2, 6)
