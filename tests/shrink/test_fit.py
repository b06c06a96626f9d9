"""A plan goes to what it was made for, under all names that it has, and to nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from secateur import InvalidInputError, ShapeError, UnsupportedError, prune_
from secateur.graph import analyze
from secateur.shrink import GrowPlan, ShrinkPlan, plan_grow, plan_masked, plan_of, plan_shrink
from tests.shrink.models import SmallCNN, is_unchanged, randomized, state_of

Plan = ShrinkPlan | GrowPlan

X = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def shrinking(model: nn.Module, x: Any) -> Plan:
    return plan_shrink(model, x, sparsity=0.5)


def growing(model: nn.Module, x: Any) -> Plan:
    return plan_grow(model, x, growth=1.5)


both = pytest.mark.parametrize("make", [shrinking, growing])


class Tied(nn.Module):
    """One matrix under two names, a module under two names, and a buffer that no state_dict holds."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.head = nn.Linear(4, 6), nn.Linear(6, 4, bias=False)
        self.head.weight = nn.Parameter(self.lift.weight.detach().T.clone())
        self.a, self.b = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
        self.b.weight = self.a.weight
        self.norm = nn.BatchNorm1d(6)
        self.again = self.norm
        self.register_buffer("scale", torch.linspace(0.5, 2, 6), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.lift(x)) * self.scale
        return self.head(self.again(x + torch.relu(self.b(torch.relu(self.a(x))))))


ALIASES = {"b.weight": "a.weight"} | {
    f"again.{leaf}": f"norm.{leaf}" for leaf in ("weight", "bias", "running_mean", "running_var")
}


@both
def test_a_bare_state_dict_is_changed_under_all_names_and_stays_tied(make: Callable[..., Plan], tmp_path: Path) -> None:
    model = randomized(Tied())
    plan = make(model, X)
    plan.save(tmp_path / "plan.safetensors")
    found = type(plan).load(tmp_path / "plan.safetensors").apply_to(model.state_dict())
    plan.apply_(model)
    expected = model.state_dict()
    assert "scale" not in expected
    assert len(model.scale) != 6
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert all(found[alias] is found[name] for alias, name in ALIASES.items())


@both
@pytest.mark.parametrize("left_out", ["a.weight", "b.weight"])
def test_a_file_that_holds_a_tied_tensor_once_is_changed_too(make: Callable[..., Plan], left_out: str) -> None:
    model = randomized(Tied())
    plan = make(model, X)
    state = model.state_dict()
    whole = plan.apply_to(state)
    del state[left_out]
    found = plan.apply_to(state)
    assert found.keys() == whole.keys() - {left_out}
    assert all(torch.equal(found[name], whole[name]) for name in found)
    for name in ("a.weight", "b.weight"):
        state.pop(name, None)
    with pytest.raises(ShapeError, match=r"'a.weight' is not as it was(?s:.*)no such tensor"):
        plan.apply_to(state)


@both
def test_a_state_dict_whose_names_hold_different_values_keeps_them_apart(make: Callable[..., Plan]) -> None:
    model = randomized(Tied())
    plan = make(model, X)
    state = model.state_dict()
    state["b.weight"] = state["b.weight"] * 2
    found = plan.apply_to(state)
    one, other = (found[name][: len(found[name]), :6][:6] for name in ("a.weight", "b.weight"))  # new units are last
    assert torch.equal(other, one * 2)


# What has changed since -----------------------------------------------------------------------------------------------


class Plain(nn.Module):
    """A convolution, a BatchNorm without parameters, a raw scale: each could get something more."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 1, bias=False), nn.BatchNorm2d(8, affine=False)
        self.up, self.head = nn.ConvTranspose2d(8, 6, 2, bias=False), nn.Conv2d(6, 2, 1, bias=False)
        self.scale = nn.Parameter(torch.ones(8, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.up(torch.relu(self.norm(self.stem(x)) * self.scale))))


PICTURES = torch.randn(2, 3, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

ADDED: dict[str, Callable[[Any], None]] = {
    "bias": lambda m: m.stem.register_parameter("bias", nn.Parameter(torch.ones(8))),
    "bias of a transposed convolution": lambda m: m.up.register_parameter("bias", nn.Parameter(torch.ones(6))),
    "weights of a norm": lambda m: setattr(m.norm, "weight", nn.Parameter(torch.ones(8))),
    "raw parameter": lambda m: m.register_parameter("shift", nn.Parameter(torch.ones(8, 1, 1))),
    "buffer": lambda m: m.stem.register_buffer("mean", torch.ones(8)),
    "buffer that is not saved": lambda m: m.stem.register_buffer("mean", torch.ones(8), persistent=False),
}


@both
@pytest.mark.parametrize("what", ADDED)
def test_what_a_layer_has_got_since_would_be_left_behind_and_is_refused(make: Callable[..., Plan], what: str) -> None:
    model = randomized(Plain())
    plan = make(model, PICTURES)
    ADDED[what](model)
    before = state_of(model)
    with pytest.raises(ShapeError, match="was not there when the plan was made"):
        plan.apply_(model)
    assert is_unchanged(model, before)
    if what != "buffer that is not saved":
        with pytest.raises(ShapeError, match="was not there when the plan was made"):
            plan.apply_to(model.state_dict())


@both
def test_what_stays_beside_or_goes_elsewhere_is_no_obstacle(make: Callable[..., Plan]) -> None:
    model = randomized(Plain())
    model.stem.register_buffer("mean", torch.ones(8))  # there before, and read by nobody
    plan = make(model, PICTURES)
    model.stem.register_buffer("calls", torch.tensor(0))
    model.probe = nn.Linear(8, 2)
    masks = prune_(model, sparsity=0.5)
    found = plan.apply_to(model.state_dict())
    plan.apply_(model)
    assert len(found["stem.weight"]) == len(model.stem.weight) == len(masks["stem.weight"]) != 8
    assert (len(model.stem.mean), model.probe.in_features) == (8, 8)


@both
def test_tensors_that_are_tied_no_longer_are_refused(make: Callable[..., Plan]) -> None:
    model = randomized(Tied())
    plan = make(model, X)
    model.b.weight = nn.Parameter(model.b.weight.detach().clone())
    before = state_of(model)
    with pytest.raises(ShapeError, match=r"'a.weight' and 'b.weight' are two tensors now"):
        plan.apply_(model)
    assert is_unchanged(model, before)


def test_a_bias_that_is_to_take_up_a_constant_must_be_there() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.Sigmoid(), nn.Linear(6, 2)).double()
    mask = torch.ones(6, 4, dtype=torch.bool)
    mask[1] = False
    model[0].weight.detach().mul_(mask)
    plan = plan_masked(model, X, {"0.weight": mask})
    assert list(plan.bias_changes) == ["2.bias"]
    model[2].bias = None
    before = state_of(model)
    for call in (plan.apply_, lambda m: plan.verify(m, X), lambda m: plan.apply_to(m.state_dict())):
        with pytest.raises(ShapeError, match=r"'2.bias' is not as it was(?s:.*)no such tensor"):
            call(model)
    assert is_unchanged(model, before)


NORMED: dict[str, Callable[[nn.Module], nn.Module]] = {
    "weight norm": parametrizations.weight_norm,
    "spectral norm": parametrizations.spectral_norm,
    "weight norm by hooks": nn.utils.weight_norm,
    "spectral norm by hooks": nn.utils.spectral_norm,
}


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
@pytest.mark.parametrize("norm", NORMED)
def test_parts_of_a_normed_weight_get_other_values_so_a_bare_state_dict_is_refused(norm: str, tmp_path: Path) -> None:
    def build() -> nn.Module:
        return nn.Sequential(
            NORMED[norm](nn.Linear(4, 6)), nn.ReLU(), NORMED[norm](nn.Linear(6, 2)), nn.ReLU()
        ).double()

    model = build()
    plan = plan_shrink(model, X, sparsity=0.5)
    plan.save(tmp_path / "plan.safetensors")
    for one in (plan, ShrinkPlan.load(tmp_path / "plan.safetensors")):
        with pytest.raises(UnsupportedError, match=r"under weight norm or spectral norm(?s:.*)apply_\(model\)"):
            one.apply_to(model.state_dict())
        fresh = build()
        fresh.load_state_dict(model.state_dict())
        assert one.apply_(fresh)(X).shape == (3, 2)


def test_a_mask_of_torchs_own_pruning_is_cut_with_its_weight() -> None:
    model = randomized(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)))
    nn.utils.prune.l1_unstructured(model[0], "weight", 0.5)
    plan = plan_shrink(model, X, sparsity=0.5)
    found = plan.apply_to(model.state_dict())
    plan.apply_(model)
    assert all(torch.equal(found[name], tensor) for name, tensor in model.state_dict().items())


# What is no model or no state_dict ------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("thing", [{}, None, torch.ones(3), [nn.Linear(2, 2)], "model"], ids=lambda x: type(x).__name__)
def test_a_plan_goes_to_no_other_thing(make: Callable[..., Plan], thing: Any) -> None:
    plan = make(randomized(SmallCNN()), torch.randn(2, 3, 6, 6, dtype=torch.float64))
    with pytest.raises(InvalidInputError, match="a module is needed"):
        plan.apply_(thing)
    if thing != {}:
        with pytest.raises(InvalidInputError, match="a state_dict is needed"):
            plan.apply_to(thing)
    if isinstance(plan, ShrinkPlan):
        with pytest.raises(InvalidInputError, match="a module is needed"):
            plan.verify(thing, X)


@both
def test_a_model_is_no_state_dict(make: Callable[..., Plan]) -> None:
    model = randomized(Plain())
    plan = make(model, PICTURES)
    with pytest.raises(InvalidInputError, match=r"not Plain\.(?s:.*)apply_\(model\) for a model"):
        plan.apply_to(model)
    with pytest.raises(ShapeError, match=r"'stem.weight' is not as it was(?s:.*)no tensor but list"):
        plan.apply_to({**model.state_dict(), "stem.weight": [1, 2]})


@both
def test_a_lazy_model_is_refused(make: Callable[..., Plan]) -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).double()
    plan = make(model, X)
    lazy = nn.Sequential(nn.LazyLinear(6), nn.ReLU(), nn.LazyLinear(2)).double()
    with pytest.raises(ShapeError, match=r"'0.weight' is not as it was(?s:.*)is lazy and has no shape yet"):
        plan.apply_(lazy)
    with pytest.raises(ShapeError, match="is lazy and has no shape yet"):
        plan.apply_to(lazy.state_dict())
    lazy(X)
    plan.apply_(lazy)
    assert lazy[0].out_features == lazy[2].in_features != 6


def test_the_fit_of_a_plan_by_units_is_that_of_its_positions() -> None:
    model = randomized(Tied())
    coupling = analyze(model, X)
    plan = plan_of(model, coupling, coupling.groups[0].units[:2])
    assert plan.fit.shapes.keys() == plan.keep.keys()
    assert plan.fit.unsaved == {"scale"} & plan.keep.keys()
    assert {alias for others in plan.fit.tied.values() for alias in others} <= ALIASES.keys()
