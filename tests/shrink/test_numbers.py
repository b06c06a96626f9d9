"""Numbers that layers record and that the code computes values with: the smaller model computes with the old ones."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from secateur import InvalidInputError, load_, save
from secateur.graph import analyze
from secateur.graph.heads import FreeHeadsAttention
from secateur.graph.provenance import PinnedSize
from secateur.shrink import ShrinkPlan, plan_grow, plan_of, plan_shrink
from tests.shrink.models import equals_the_zeroed_model, is_unchanged, randomized, state_of


class Model(nn.Module):
    """Layers and numbers, and a function that runs them."""

    def __init__(self, run: Callable[[Any, Tensor], Tensor], **layers: Any) -> None:
        super().__init__()
        self.run = run
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def linears(scale: Callable[[Any], float]) -> Model:
    return Model(lambda m, x: m.b(m.a(x) * scale(m)), a=nn.Linear(8, 6), b=nn.Linear(6, 3))


def convolutions(scale: Callable[[Any], float]) -> Model:
    return Model(
        lambda m, x: m.b(torch.relu(m.a(x)) * scale(m)), a=nn.Conv2d(3, 8, 3), b=nn.ConvTranspose2d(8, 4, 1, bias=False)
    )


def attention(scale: Callable[[Any], float]) -> Model:
    return Model(lambda m, x: m.a(x, x, x)[0] * scale(m), a=nn.MultiheadAttention(8, 4, batch_first=True))


def wide_attention(scale: Callable[[Any], float]) -> Model:
    return Model(
        lambda m, x: m.b(m.a(*[m.p(x)] * 3)[0] * scale(m)),
        p=nn.Linear(8, 8),
        a=nn.MultiheadAttention(8, 4, batch_first=True),
        b=nn.Linear(8, 3),
    )


ROWS, IMAGES, WORDS, STEPS = (
    torch.randn(3, 8, dtype=torch.float64),
    torch.randn(2, 3, 6, 6, dtype=torch.float64),
    torch.tensor([[1, 2, 3], [4, 5, 0]]),
    torch.randn(2, 5, 8, dtype=torch.float64),
)
CASES: dict[str, tuple[Callable[[], Model], Tensor]] = {
    "Embedding.embedding_dim": (
        lambda: Model(lambda m, x: m.b(m.a(x) * math.sqrt(m.a.embedding_dim)), a=nn.Embedding(9, 8), b=nn.Linear(8, 3)),
        WORDS,
    ),
    "Linear.out_features": (lambda: linears(lambda m: m.a.out_features**-0.5), ROWS),
    "Linear.in_features": (lambda: linears(lambda m: 1 / math.sqrt(m.b.in_features)), ROWS),
    "two of them": (lambda: linears(lambda m: m.b.out_features / m.a.out_features), ROWS),
    "one and the code's own": (
        lambda: Model(
            lambda m, x: m.b(m.a(x).view(-1, m.width) * ((m.width + 2) / m.a.out_features)),
            a=nn.Linear(8, 6),
            b=nn.Linear(6, 3),
            width=6,
        ),
        ROWS,
    ),
    "one and a shape that stays": (lambda: linears(lambda m: (m.a.out_features * m.a.bias.dim()) ** -0.5), ROWS),
    "Conv2d.out_channels": (lambda: convolutions(lambda m: m.a.out_channels**-0.5), IMAGES),
    "ConvTranspose2d.in_channels": (lambda: convolutions(lambda m: m.b.in_channels**-0.5), IMAGES),
    "LSTM.hidden_size": (
        lambda: Model(
            lambda m, x: m.b(m.a(x)[0] * m.a.hidden_size**-0.5), a=nn.LSTM(8, 6, batch_first=True), b=nn.Linear(6, 3)
        ),
        STEPS,
    ),
    "GRU.input_size": (
        lambda: Model(
            lambda m, x: m.b(m.a(m.p(x) * m.a.input_size**-0.5)[0]),
            p=nn.Linear(8, 6),
            a=nn.GRU(6, 5, batch_first=True),
            b=nn.Linear(5, 3),
        ),
        STEPS,
    ),
    "BatchNorm1d.num_features": (
        lambda: Model(
            lambda m, x: m.b(m.n(m.a(x)) * m.n.num_features**-0.5),
            a=nn.Linear(8, 6),
            n=nn.BatchNorm1d(6),
            b=nn.Linear(6, 3),
        ),
        ROWS,
    ),
    "Conv2d.groups": (
        lambda: Model(
            lambda m, x: m.b(torch.relu(m.g(m.a(x))) * m.g.groups**-0.5),
            a=nn.Conv2d(3, 8, 3),
            g=nn.Conv2d(8, 8, 1, groups=4),
            b=nn.Conv2d(8, 4, 1),
        ),
        IMAGES,
    ),
    "MultiheadAttention.num_heads": (lambda: attention(lambda m: m.a.num_heads**-0.5), STEPS),
    "MultiheadAttention.head_dim": (lambda: attention(lambda m: m.a.head_dim**-0.5), STEPS),
    "MultiheadAttention.embed_dim": (lambda: wide_attention(lambda m: m.a.embed_dim**-0.5), STEPS),
}


@pytest.mark.parametrize(("make", "x"), CASES.values(), ids=CASES)
def test_a_recorded_size_that_is_a_scale_stays_what_it_was(
    make: Callable[[], Model], x: Tensor, tmp_path: Path
) -> None:
    model = randomized(make())
    plan = plan_shrink(model, x, sparsity=0.4, min_units=1)
    smaller = equals_the_zeroed_model(model, plan, x)
    pinned = [number for number in plan.numbers if number.pinned]
    values = [getattr(smaller.get_submodule(number.path), number.name) for number in pinned]
    assert any(type(value) is PinnedSize and value.old == n.before for value, n in zip(values, pinned, strict=True))
    plan.save(tmp_path / "plan")
    assert ShrinkPlan.load(tmp_path / "plan") == plan
    assert torch.equal(ShrinkPlan.load(tmp_path / "plan").apply_(copy.deepcopy(model))(x), smaller(x))
    save(smaller, tmp_path / "model")
    assert torch.equal(load_(randomized(make()), tmp_path / "model")(x), smaller(x))


NORMS: dict[str, Callable[[], nn.Module]] = {
    "LayerNorm.normalized_shape": lambda: nn.LayerNorm(6),
    "RMSNorm.normalized_shape": lambda: nn.RMSNorm(6),
    "GroupNorm.num_channels": lambda: nn.GroupNorm(3, 6),
}


@pytest.mark.parametrize(("name", "make"), NORMS.items(), ids=NORMS)
def test_a_size_that_a_norm_has_recorded_is_the_old_one_as_a_scale(name: str, make: Callable[[], nn.Module]) -> None:
    def size(norm: Any) -> int:
        stored = getattr(norm, name.rpartition(".")[2])
        return stored[0] if isinstance(stored, tuple) else stored

    def layers() -> dict[str, nn.Module]:
        return {"a": nn.Linear(8, 6), "n": make(), "b": nn.Linear(6, 3)}

    model = randomized(Model(lambda m, x: m.b(m.n(m.a(x)) * size(m.n) ** -0.5), **layers()))
    reference = Model(lambda m, x: m.b(m.n(m.a(x)) * 6**-0.5), **layers()).double().eval()
    reference.load_state_dict(model.state_dict())
    positions = {("a.weight", 0): [0, 1]}  # a whole group of the group norm
    plans = [plan_of(m, analyze(m, ROWS), positions=positions) for m in (model, reference)]
    assert torch.equal(plans[0].apply_(model)(ROWS), plans[1].apply_(reference)(ROWS))
    assert (type(size(model.n)), size(model.n), size(model.n).old) == (PinnedSize, 4, 6)


def test_a_second_removal_goes_on_with_the_first_number() -> None:
    model = randomized(linears(lambda m: m.a.out_features**-0.5))
    for gone, left in (([0, 4], 4), ([1], 3)):
        plan = plan_of(model, analyze(model, ROWS), positions={("a.weight", 0): gone})
        model = equals_the_zeroed_model(model, plan, ROWS)
        assert (model.a.out_features, model.a.out_features.old) == (left, 6)


def test_a_recorded_size_whose_layer_keeps_its_size_stays_a_plain_number() -> None:
    model = randomized(linears(lambda m: m.b.out_features**-0.5))
    plan = plan_of(model, analyze(model, ROWS), positions={("a.weight", 0): [2]})
    assert [(n.path, n.name, n.before, n.after, n.pinned) for n in plan.numbers] == [("b", "out_features", 3, 3, True)]
    smaller = equals_the_zeroed_model(model, plan, ROWS)
    assert type(smaller.b.out_features) is int


def test_averages_go_on_with_the_old_number_too() -> None:
    model = randomized(linears(lambda m: m.a.out_features**-0.5))
    ema = copy.deepcopy(model)
    plan_of(model, analyze(model, ROWS), positions={("a.weight", 0): [2]}).apply_(model, ema=ema)
    assert ema.a.out_features.old == 6
    assert torch.equal(model(ROWS), ema(ROWS))


def test_heads_that_became_free_compute_with_their_old_number() -> None:
    model = randomized(attention(lambda m: m.a.num_heads**-0.5))
    plan = plan_of(model, analyze(model, STEPS), positions={("a.out_proj.weight", 1): range(2)})
    smaller = equals_the_zeroed_model(model, plan, STEPS)
    assert isinstance(smaller.a, FreeHeadsAttention)
    assert (smaller.a.num_heads, smaller.a.num_heads.old) == (3, 4)


def test_a_layer_that_grows_keeps_the_scale_that_its_size_gave() -> None:
    model = randomized(linears(lambda m: m.a.out_features**-0.5))
    before = model(ROWS).detach()
    plan_grow(model, ROWS, add={"a.weight": 2}).apply_(model)
    assert (model.a.out_features, model.a.out_features.old) == (8, 6)
    torch.testing.assert_close(model(ROWS), before, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "run",
    [lambda m, x: m.b(m.a(x) / m.a.out_features), lambda m, x: m.b(m.a(x) * 2 if m.a.out_features == 6 else m.a(x))],
    ids=["torch divides", "a comparison"],
)
def test_a_layer_whose_recorded_size_cannot_be_pinned_stays_whole(run: Callable[[Any, Tensor], Tensor]) -> None:
    model = Model(run, a=nn.Linear(8, 6), b=nn.Linear(6, 3)).double()
    coupling = analyze(model, ROWS)
    assert coupling.groups == ()
    with pytest.raises(InvalidInputError):
        plan_of(model, coupling, positions={("a.weight", 0): [1]})


# Frozen configs, and objects that refuse ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    """Sizes that nobody is to change."""

    heads: int = 3
    width: int = 4


class Configured(nn.Module):
    """Attention whose sizes stand in a frozen config."""

    def __init__(self, is_sealed: bool = False) -> None:
        super().__init__()
        self.c = Config()
        self.q, self.k, self.v, self.o = (nn.Linear(12, 12) for _ in range(4))
        self.heads, self.is_sealed = 3, is_sealed

    def __setattr__(self, name: str, value: object) -> None:
        if vars(self).get("is_sealed") and name == "heads":
            raise AttributeError("heads are sealed")
        super().__setattr__(name, value)

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:2], self.heads, self.c.width)
        q, k, v = (p(x).view(shape).transpose(1, 2) for p in (self.q, self.k, self.v))
        y = torch.softmax(q @ k.transpose(-1, -2) * self.c.width**-0.5, -1) @ v
        return self.o(y.transpose(1, 2).reshape(*x.shape[:2], self.c.heads * self.c.width))


TOKENS = torch.randn(2, 4, 12, dtype=torch.float64)


@pytest.mark.parametrize("gone", [range(4, 8), [1, 5, 9]], ids=["a head", "a column of each head"])
def test_a_frozen_dataclass_follows(gone: Any) -> None:
    model = randomized(Configured())
    plan = plan_of(model, analyze(model, TOKENS), positions={("q.weight", 0): gone, ("v.weight", 0): gone})
    smaller = equals_the_zeroed_model(model, plan, TOKENS)
    assert smaller.c == replace(Config(), **({"width": 3} if gone == [1, 5, 9] else {"heads": 2}))
    assert model.c == Config()


def test_an_object_that_refuses_leaves_model_averages_and_optimizer_bit_identical() -> None:
    model = randomized(Configured(is_sealed=True))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(TOKENS).square().sum().backward()
        optimizer.step()
    ema = copy.deepcopy(model)
    plan = plan_of(model, analyze(model, TOKENS), positions={("q.weight", 0): range(4), ("v.weight", 0): range(4)})
    before = state_of(model), state_of(ema), copy.deepcopy(optimizer.state_dict())
    gradients = [(id(p.grad), p.grad.clone()) for p in model.parameters()]
    with pytest.raises(AttributeError, match="heads are sealed") as caught:
        plan.apply_(model, optimizer=optimizer, ema=ema)
    assert not hasattr(caught.value, "__notes__")
    assert (is_unchanged(model, before[0]), is_unchanged(ema, before[1])) == (True, True)
    assert all(
        id(p.grad) == i and torch.equal(p.grad, g) for p, (i, g) in zip(model.parameters(), gradients, strict=True)
    )
    state = optimizer.state_dict()
    assert all(
        torch.equal(state["state"][i][key], value)
        for i, entries in before[2]["state"].items()
        for key, value in entries.items()
    )
    assert (model.c, model.heads, model.q.out_features, ema.c) == (Config(), 3, 12, Config())
    model(TOKENS).sum().backward()
    optimizer.step()
