"""Other columns in every head: what goes is each head's least, the count is common, and the smaller model is right."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from secateur.graph import analyze
from secateur.shrink import l2, plan_of, plan_shrink
from secateur.shrink.rows import columns_in_line
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
    moved, after = columns_in_line(model.state_dict(), plan.coupling, stay)
    twin = copy.deepcopy(model)
    twin.load_state_dict({**model.state_dict(), **moved})
    torch.testing.assert_close(twin(x), model(x))
    assert {"q.weight", "k.weight", "o.weight"} <= moved.keys()
    assert not any(torch.equal(tensor, model.get_parameter(name)) for name, tensor in moved.items())
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


class Fused(nn.Module):
    """Attention with one projection for queries, keys and values, cut into three and then into heads."""

    def __init__(self, heads: int = 4, width: int = 6) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.inner = heads, width, heads * width
        self.qkv, self.o = nn.Linear(8, 3 * self.inner), nn.Linear(self.inner, 5)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = (
            part.view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
            for part in self.qkv(x).split(self.inner, dim=-1)
        )
        y = torch.softmax(q @ k.transpose(-1, -2), -1) @ v
        return self.o(y.transpose(1, 2).reshape(b, n, self.inner))


@pytest.mark.parametrize("seed", range(4))
def test_columns_inside_a_fused_projection_go_head_by_head_and_are_verified(seed: int) -> None:
    torch.manual_seed(seed)
    model, x = Fused().double(), torch.randn(2, 5, 8, dtype=torch.float64)
    plan = plan_shrink(model, x, sparsity=0.5)
    stay = [set(row) for row in (plan.keep["qkv.weight"][0][:6].view(2, 3) % 6).tolist()]
    assert plan.verify(model, x).is_right
    if seed == 0:
        assert stay[0] != stay[1]
    smaller = plan.apply_(copy.deepcopy(model))
    assert smaller.qkv.out_features == 3 * 2 * 3
    assert smaller(x).shape == (2, 5, 5)


def ragged(self: Heads, x: Tensor) -> Tensor:
    return self.o(self.q(x).view(len(x), self.num_heads, self.head_dim).flatten(1))


class Ragged(Heads):
    """Rows and columns of one product, both of which can go, and nothing else."""

    def forward(self, x: Tensor) -> Tensor:
        return ragged(self, x)


class Rotated(Heads):
    """Columns that are tied in pairs in each head."""

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).view(len(x), self.num_heads, self.head_dim)
        a, b = q.chunk(2, -1)
        return self.o((q + torch.cat([-b, a], -1)).flatten(1))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "rows and columns": (lambda: Ragged(plain, heads=4, width=8), (3, 8)),
    "pairs": (lambda: Rotated(plain, heads=3, width=4), (3, 8)),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(24, 3, 32, batch_first=True), (2, 5, 24)),
    "encoder layer of four heads": (lambda: nn.TransformerEncoderLayer(32, 4, 32), (5, 2, 32)),
    "grouped": (lambda: Heads(grouped, heads=6, width=6, groups=3), (2, 5, 8)),
}


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("sparsity", [0.3, 0.5])
@pytest.mark.parametrize("model", MODELS)
def test_heads_and_columns_go_together_in_all_kinds(model: str, sparsity: float, by_row: bool) -> None:
    torch.manual_seed(0)
    build, shape = MODELS[model]
    full, x = build().double().eval(), torch.randn(shape, dtype=torch.float64)
    plan = plan_shrink(full, x, sparsity=sparsity, by_row=by_row)
    assert plan.verify(full, x).is_right
    assert plan.apply_(full, tried_on=x)(x).isfinite().all()
