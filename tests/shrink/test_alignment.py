"""Widths that a kernel can take: experts computed by one grouped matrix product."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from secateur.graph import Coupling, analyze
from secateur.shrink import plan_of
from secateur.shrink.alignment import aligned

MULTIPLE = 16 // 4
"""Rows of 16 bytes, in float32."""


class Experts(nn.Module):
    """Rows are dealt out to two experts of one hidden layer each, six rows to the first and four to the second."""

    def __init__(self, width: int = 8, hidden: int = 16) -> None:
        super().__init__()
        self.inwards, self.outwards = nn.Linear(6, width), nn.Linear(width, 3)
        self.up = nn.Parameter(torch.randn(2, width, hidden))
        self.down = nn.Parameter(torch.randn(2, hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        ends = torch.tensor([6, 10], dtype=torch.int32)
        hidden = torch._grouped_mm(self.inwards(x), self.up, ends).relu()
        result: Tensor = self.outwards(torch._grouped_mm(hidden, self.down, ends))
        return result


def made(**sizes: int) -> tuple[Experts, Tensor, Coupling]:
    torch.manual_seed(0)
    model, x = Experts(**sizes).eval(), torch.randn(10, 6)
    return model, x, analyze(model, x)


def by_hand(model: nn.Module, x: Tensor) -> Tensor:
    """The same function in double precision, expert by expert."""
    twin = copy.deepcopy(model).double()
    rows = twin.inwards(x.double()).split([6, 4])
    outs = [(r @ up).relu() @ down for r, up, down in zip(rows, twin.up, twin.down, strict=True)]
    result: Tensor = twin.outwards(torch.cat(outs))
    return result


def test_analysis_says_which_dims_need_multiples() -> None:
    model, _, coupling = made()
    found = {
        (coupling.dims["up"].index(dim), number) for dim, number in coupling.multiples if dim in coupling.dims["up"]
    }
    assert found == {(1, MULTIPLE), (2, MULTIPLE)}
    assert len(coupling.multiples) == 4
    assert analyze(nn.Linear(4, 3), torch.ones(1, 4)).multiples == ()
    assert model.up.shape == (2, 8, 16)


@settings(max_examples=20)
@given(data=st.data())
def test_plan_leaves_widths_that_the_kernel_takes_and_equals_the_zeroed_model(data: st.DataObject) -> None:
    model, x, coupling = made()
    asked: list[int] = []
    for group in coupling.groups:
        asked += data.draw(st.lists(st.sampled_from(group.units), unique=True, max_size=len(group.units) - 2))
    plan = plan_of(model, coupling, asked)
    smaller = plan.apply_(copy.deepcopy(model))
    wanted = by_hand(plan.removed_zeroed_(copy.deepcopy(model)), x)
    for before, after in ((8, smaller.up.shape[1]), (16, smaller.up.shape[2])):
        lost = before - after
        group = next(g for g in coupling.groups if len(g.units) == before)
        own = len(set(asked) & set(group.units))
        assert after % MULTIPLE == 0
        assert lost == own // MULTIPLE * MULTIPLE
    with torch.no_grad():
        torch.testing.assert_close(by_hand(smaller, x), wanted, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(smaller(x).double(), wanted, rtol=1e-4, atol=1e-4)


def test_units_asked_for_first_go_first_and_the_plan_names_those_that_stay() -> None:
    model, _, coupling = made()
    hidden = next(g for g in coupling.groups if len(g.units) == 16)
    asked = [hidden.units[n] for n in (9, 2, 14, 5, 0, 7)]
    left, refused = aligned(coupling, asked)
    assert left == asked[:4]
    assert refused == [(hidden, "2 more units stay, so that an op gets a multiple of 4 positions")]
    shown = repr(plan_of(model, coupling, asked))
    assert f"kept whole: {hidden.name}: 2 more units stay" in shown
    assert aligned(coupling, asked[:4]) == (asked[:4], [])
    assert aligned(coupling, asked[:3]) == (
        [],
        [(hidden, "3 more units stay, so that an op gets a multiple of 4 positions")],
    )


def test_mixtral_can_lose_units_of_every_group_and_equals_the_zeroed_model() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=32,
    )  # fmt: skip
    model = transformers.MixtralForCausalLM(config).eval()
    inputs: dict[str, Any] = {"input_ids": torch.randint(0, 40, (2, 7)), "use_cache": False}
    coupling = analyze(model, inputs, interface=lambda out: [out.logits])
    asked = [unit for group in coupling.groups for unit in group.units[: max(1, len(group.units) // 3)]]
    exact = [unit for unit in asked if not coupling.mixes[unit]]
    plan = plan_of(model, coupling, exact)
    smaller = plan.apply_(copy.deepcopy(model))
    widths = [smaller.get_submodule(f"model.layers.{n}.mlp.experts").down_proj.shape[2] for n in (0, 1)]
    assert widths == [32, 32]
    zeroed = plan.removed_zeroed_(copy.deepcopy(model))
    with torch.no_grad():
        before, wanted, found = (net(**inputs).logits for net in (model, zeroed, smaller))
    assert (before - wanted).abs().max() > 1e-3
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    everything = plan_of(model, coupling, asked).apply_(copy.deepcopy(model))
    assert everything.model.embed_tokens.weight.shape[1] == 24
    with torch.no_grad():
        assert everything(**inputs).logits.shape == before.shape
