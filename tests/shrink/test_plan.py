"""A plan is a value: it prints, compares, saves, applies once and to what it was made for, or changes nothing."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from secateur import HolderError, InvalidInputError, Masks, SecateurError, ShapeError, UnsupportedError, prune_
from secateur.graph import analyze
from secateur.graph.heads import FreeHeadsAttention
from secateur.graph.provenance import PinnedSize
from secateur.shrink import ShrinkPlan, plan_of, plan_shrink, shrink_
from tests.shrink.models import Attention, SmallCNN, equals_the_zeroed_model, is_unchanged, randomized, state_of


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2))


def plan_for(model: nn.Module, gone: list[int]) -> ShrinkPlan:
    return plan_of(model, analyze(model, torch.randn(2, 3)), positions={("0.weight", 0): gone})


def test_plan_prints_totals_groups_and_reasons() -> None:
    assert repr(plan_for(mlp(), [1, 4])).splitlines() == [
        "ShrinkPlan: parameters 38 -> 26 (68.4%), MACs 60 -> 40 (66.7%)",
        "  activation bytes 112 -> 80 (71.4%)",
        "  0.weight[0]  neurons         6 ->      4",
        *[f"  kept whole: {line}" for line in plan_for(mlp(), [1]).kept_whole],
    ]


def test_plan_applies_to_the_model_a_copy_and_a_fresh_instance() -> None:
    model = mlp()
    plan = plan_for(model, [1, 4])
    for target in (copy.deepcopy(model), mlp(), model):
        parameters = list(target.parameters())
        expected = parameters[0].detach()[[0, 2, 3, 5]].clone()
        assert plan.apply_(target) is target
        assert all(a is b for a, b in zip(parameters, target.parameters(), strict=True))
        assert torch.equal(target[0].weight, expected)
        assert (target[0].out_features, target[2].in_features) == (4, 4)
        target(torch.randn(2, 3)).sum().backward()


def test_plan_applied_twice_is_refused_and_changes_nothing() -> None:
    model = mlp()
    plan = plan_for(model, [1, 4])
    plan.apply_(model)
    before = state_of(model)
    with pytest.raises(ShapeError, match=r"plan does not fit: '0.weight' is not as it was"):
        plan.apply_(model)
    assert is_unchanged(model, before)


@pytest.mark.parametrize(
    "other",
    [
        lambda: nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)),
        lambda: nn.Linear(3, 2),
        lambda: nn.Sequential(nn.Linear(3, 6), nn.Linear(6, 2)),
    ],
    ids=["sizes", "names", "order"],
)
def test_plan_is_refused_by_another_architecture_and_changes_nothing(other: object) -> None:
    plan, model = plan_for(mlp(), [1]), other()
    before = state_of(model)
    with pytest.raises(ShapeError, match="the plan does not fit"):
        plan.apply_(model)
    with pytest.raises(ShapeError, match="the plan does not fit"):
        plan.apply_to(model.state_dict())
    assert is_unchanged(model, before)


def test_plan_is_refused_when_a_number_of_the_model_has_changed() -> None:
    model, x = randomized(Attention()), torch.randn(1, 4, 12, dtype=torch.float64)
    plan = plan_of(model, analyze(model, x), positions={("q.weight", 0): range(4)})
    model.num_heads = 6
    before = state_of(model)
    with pytest.raises(ShapeError, match=r"'num_heads' is not as it was(?s:.*)planned: 3    found: 6"):
        plan.apply_(model)
    del model.num_heads
    with pytest.raises(ShapeError, match=r"'num_heads'(?s:.*)no such number"):
        plan.apply_(model)
    assert is_unchanged(model, before)


def test_plan_cuts_a_bare_state_dict_as_it_cuts_the_model() -> None:
    model = randomized(SmallCNN())
    x = torch.randn(1, 3, 6, 6, dtype=torch.float64)
    plan = plan_shrink(model, x, sparsity=0.4)
    state = model.state_dict() | {"something.else": torch.ones(2)}
    before = {name: tensor.clone() for name, tensor in state.items()}
    cut = plan.apply_to(state)
    assert all(torch.equal(state[name], before[name]) for name in before)
    plan.apply_(model)
    assert torch.equal(cut.pop("something.else"), torch.ones(2))
    assert cut.keys() == model.state_dict().keys()
    assert all(torch.equal(cut[name], tensor) for name, tensor in model.state_dict().items())


def test_plan_saves_and_loads_without_pickle(tmp_path: Path) -> None:
    model = randomized(Attention(12, 3, lambda a: a.head_dim**-0.5))
    x = torch.randn(1, 4, 12, dtype=torch.float64)
    plan = plan_shrink(model, x, sparsity=0.4, min_units=1)
    assert any(number.pinned for number in plan.numbers)
    plan.save(tmp_path / "plan.safetensors")
    loaded = ShrinkPlan.load(tmp_path / "plan.safetensors")
    assert loaded == plan
    assert repr(loaded) == repr(plan)
    assert loaded.groups == plan.groups
    with safetensors.safe_open(tmp_path / "plan.safetensors", "pt") as file:
        assert json.loads(file.metadata()["plan"])["parameters"] == list(plan.parameters)
    equals_the_zeroed_model(model, plan, x) if not any(g.mixes and g.after < g.before for g in plan.groups) else None
    assert torch.equal(loaded.apply_(copy.deepcopy(model))(x), plan.apply_(model)(x))


def test_a_file_that_holds_no_plan_is_refused(tmp_path: Path) -> None:
    safetensors.torch.save_file({"a": torch.ones(1)}, tmp_path / "other.safetensors")
    with pytest.raises(InvalidInputError, match=r"not a file of the kind secateur.ShrinkPlan"):
        ShrinkPlan.load(tmp_path / "other.safetensors")


def test_plans_are_equal_when_they_do_the_same() -> None:
    model = mlp()
    assert plan_for(model, [1, 4]) == plan_for(model, [4, 1])
    assert plan_for(model, [1, 4]) != plan_for(model, [1, 3])
    assert plan_for(model, [1]) != "a plan"
    with pytest.raises(TypeError, match="unhashable"):
        hash(plan_for(model, [1]))


# What follows a live model --------------------------------------------------------------------------------------------


def trained(model: nn.Module, x: Tensor) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
    return optimizer


def test_optimizer_state_and_gradients_are_cut_at_the_same_positions() -> None:
    model, x = randomized(SmallCNN()).train(), torch.randn(2, 3, 6, 6, dtype=torch.float64)
    optimizer = trained(model, x)
    plan = plan_shrink(model, x, sparsity=0.5)
    parameters = dict(model.named_parameters())
    expected = {
        (name, key): plan.apply_to({**model.state_dict(), name: value})[name]
        for name, p in parameters.items()
        for key, value in {**optimizer.state[p], "grad": p.grad}.items()
        if value.shape == p.shape
    }
    assert len(expected) == 3 * len(parameters)
    plan.apply_(model, optimizer=optimizer)
    for (name, key), value in expected.items():
        p = parameters[name]
        assert torch.equal(p.grad if key == "grad" else optimizer.state[p][key], value)
    model(x).sum().backward()
    optimizer.step()


def test_an_optimizer_that_was_not_passed_is_refused_and_nothing_changes() -> None:
    model, x = mlp(), torch.randn(2, 3)
    optimizer = trained(model, x)
    plan = plan_for(model, [1])
    before = state_of(model)
    with pytest.raises(HolderError, match="an optimizer that was not passed"):
        plan.apply_(model)
    assert is_unchanged(model, before)
    assert optimizer.state[model[0].weight]["exp_avg"].shape == (6, 3)


@pytest.mark.parametrize("kind", ["averaged", "copy", "dict"])
def test_averages_follow_with_values_numbers_and_free_heads(kind: str) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own, self.torchs = Attention(), nn.MultiheadAttention(12, 3, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.torchs(x, self.own(x), x)[0]

    model, x = randomized(Model()), torch.randn(2, 4, 12, dtype=torch.float64)
    ema = torch.optim.swa_utils.AveragedModel(model) if kind == "averaged" else copy.deepcopy(model)
    if kind == "dict":
        ema = {name: p.detach().clone() for name, p in model.named_parameters()}
    positions = {("own.q.weight", 0): range(4), ("torchs.out_proj.weight", 1): range(4, 8)}
    plan = plan_of(model, analyze(model, x), positions=positions)
    plan.apply_(model, ema=ema)
    if kind == "dict":
        assert all(torch.equal(ema[name], p) for name, p in model.named_parameters())
        return
    inner = ema.module if kind == "averaged" else ema
    assert isinstance(inner.torchs, FreeHeadsAttention)
    assert (inner.own.num_heads, inner.torchs.num_heads) == (2, 2)
    assert torch.equal(ema(x), model(x))


def test_masks_follow() -> None:
    model = mlp()
    prune_(model, sparsity=0.5)
    expected = Masks(model)["0.weight"][[0, 2, 3, 5]].clone()
    plan_for(model, [1, 4]).apply_(model)
    assert torch.equal(Masks(model)["0.weight"], expected)
    assert bool((model[0].weight[~expected] == 0).all())


def test_flags_and_ties_stay() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(7, 6), nn.Linear(6, 7, bias=False)
            self.head.weight = self.embed.weight
            self.inner = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.relu(self.inner(self.embed(x))) + self.embed(x))

    model, x = Tied(), torch.tensor([[1, 2, 3]])
    randomized(model)
    model.inner.requires_grad_(False)
    plan = plan_of(model, analyze(model, x), positions={("head.weight", 1): [0, 3]})
    smaller = equals_the_zeroed_model(model, plan, x)
    plan.apply_(model)
    assert model.head.weight is model.embed.weight
    assert (model.embed.embedding_dim, model.head.in_features) == (4, 4)
    assert [p.requires_grad for p in model.inner.parameters()] == [False, False]
    assert torch.equal(model(x), smaller(x))


def test_a_failure_in_the_middle_leaves_model_copies_and_classes_as_they_were() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(12, 3, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x)[0]

    model, x = randomized(Model()), torch.randn(2, 4, 12, dtype=torch.float64)
    optimizer = trained(model, x)
    ema = copy.deepcopy(model)
    plan = plan_of(model, analyze(model, x), positions={("attention.out_proj.weight", 1): range(4)})
    before = state_of(model), state_of(ema)
    with pytest.raises(HolderError):
        plan.apply_(model, ema=ema)  # the optimizer is missing
    del optimizer
    assert (is_unchanged(model, before[0]), is_unchanged(ema, before[1])) == (True, True)
    assert [type(m.attention) for m in (model, ema)] == [nn.MultiheadAttention] * 2
    assert model.attention._qkv_same_embed_dim
    assert (model.attention.num_heads, ema.attention.num_heads) == (3, 3)


@pytest.mark.parametrize("wrap", [torch.compile, torch.nn.DataParallel], ids=["compiled", "data parallel"])
def test_wrapped_models_are_refused_or_followed_before_anything_changes(wrap: object) -> None:
    model = mlp()
    plan = plan_for(model, [1])
    wrapped = wrap(model)
    before = state_of(model)
    with pytest.raises(SecateurError):
        plan.apply_(wrapped)
    assert is_unchanged(model, before)


# Sizes that are values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scale",
    [lambda a: a.head_dim**-0.5, lambda a: 1 / float(a.head_dim), lambda a: (a.num_heads * a.head_dim // 3) ** -0.5],
    ids=["power", "float()", "expression"],
)
def test_a_pinned_size_keeps_the_scale_of_attention(scale: object) -> None:
    model, x = randomized(Attention(12, 3, scale)), torch.randn(2, 4, 12, dtype=torch.float64)
    plan = plan_of(model, analyze(model, x), positions={("q.weight", 0): [1, 5, 9]})  # column 1 of each head
    smaller = equals_the_zeroed_model(model, plan, x)
    assert smaller.head_dim == 3
    assert (type(smaller.head_dim), smaller.head_dim.old) == (PinnedSize, 4)
    again = plan_of(smaller, analyze(smaller, x), positions={("q.weight", 0): [0, 3, 6]})
    smallest = equals_the_zeroed_model(smaller, again, x)
    assert (smallest.head_dim, smallest.head_dim.old) == (2, 4)


# Verification ---------------------------------------------------------------------------------------------------------


def test_verify_finds_an_exact_plan_right_and_leaves_the_model_alone() -> None:
    model, x = randomized(SmallCNN()), torch.randn(2, 3, 6, 6, dtype=torch.float64)
    plan = plan_shrink(model, x, sparsity=0.5)
    before = state_of(model)
    found = plan.verify(model, x)
    assert is_unchanged(model, before)
    assert found.is_right
    assert found.error <= found.tolerance < 1e-6
    assert found.exact == ("stem.weight[0]", "a.weight[0]")
    assert found.mixing == found.numbers == ()
    assert repr(found).startswith("Verification: right, error ")


def test_verify_says_which_groups_are_mixed_by_nature() -> None:
    model = randomized(nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 5), nn.Linear(5, 2)))
    x = torch.randn(3, 4, dtype=torch.float64)
    found = plan_shrink(model, x, sparsity=0.5).verify(model, x)
    assert (found.exact, found.mixing) == (("2.weight[0]",), ("0.weight[0]",))
    assert found.is_right
    assert found.error <= found.tolerance


def test_verify_refuses_a_size_that_became_a_value_unseen_and_changes_nothing() -> None:
    model = randomized(Attention(12, 3, lambda a: 2.0 / a.head_dim))  # a float on the left hides what it divides by
    x = torch.randn(2, 4, 12, dtype=torch.float64)
    coupling = analyze(model, x)
    plan = plan_of(model, coupling, positions={("q.weight", 0): [1, 5, 9]})
    found = plan.verify(model, x)
    assert not found.is_right
    assert found.numbers
    assert "a size became a value" in repr(found)
    before = state_of(model)
    with pytest.raises(UnsupportedError, match=r"computes something else(?s:.*)changed numbers"):
        plan.apply_(model, verify=x)
    assert is_unchanged(model, before)
    assert model.head_dim == 4
    heads = plan_of(model, coupling, positions={("q.weight", 0): range(4)})
    heads.apply_(model, verify=x)
    assert model.num_heads == 2


def test_verify_refuses_a_copy_that_does_not_run() -> None:
    class Sized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.shape = nn.Linear(3, 6), nn.Linear(6, 2), {"width": 6}

        def forward(self, x: Tensor) -> Tensor:
            x = self.a(x)
            if x[0].numel() != self.shape["width"]:
                raise RuntimeError("six were expected")
            return self.b(x)

    model, x = Sized(), torch.randn(2, 3)
    before = state_of(model)
    with pytest.raises(UnsupportedError, match="does not run: six were expected"):
        shrink_(model, x, sparsity=0.5, verify=True)
    assert is_unchanged(model, before)


def test_zeroing_a_weight_normed_layer_gives_no_nan() -> None:
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 6)), nn.ReLU(), nn.Linear(6, 2))
    x = torch.randn(2, 3)
    found = plan_shrink(model, x, sparsity=0.5).verify(model, x)
    assert found.is_right
    assert found.error <= found.tolerance


@pytest.mark.parametrize("norm", ["spectral", "weight", "weight of all", "old spectral", "old weight"])
def test_normalised_weights_are_verified_with_the_parts_that_they_will_have(norm: str) -> None:
    torch.manual_seed(0)
    normed = {
        "spectral": nn.utils.parametrizations.spectral_norm,
        "weight": nn.utils.parametrizations.weight_norm,
        "weight of all": lambda layer: nn.utils.parametrizations.weight_norm(layer, dim=None),
        "old spectral": nn.utils.spectral_norm,
        "old weight": nn.utils.weight_norm,
    }[norm]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the old ones are deprecated
        model = nn.Sequential(
            nn.Linear(4, 8), nn.ReLU(), normed(nn.Linear(8, 10)), nn.ReLU(), nn.Linear(10, 2)
        ).double()
    model.train()(torch.randn(3, 4, dtype=torch.float64))
    x = torch.randn(5, 4, dtype=torch.float64)
    plan = plan_shrink(model.eval(), x, sparsity=0.5)
    assert plan.verify(model, x).is_right
    shrink_(model, x, sparsity=0.5, verify=True)
    assert model(x).shape == (5, 2)
