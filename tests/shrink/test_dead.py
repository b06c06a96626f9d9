"""Units that masks have emptied go without any change of the outputs, or stay and the plan says why.

The oracle is the masked model itself on inputs that the planning has not seen.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from secateur import HolderError, InvalidInputError, Masks, ShapeError, UnsupportedError, patterns, prune_
from secateur.shrink import ShrinkPlan, plan_masked, plan_shrink, shrink_
from tests.shrink.models import Attention, is_unchanged, randomized, state_of


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def masked(model: nn.Module, **gone: Iterable[int]) -> Masks:
    """Put masks on rows (``a_weight=…``) or columns (``a_weight_1=…``) of tensors."""
    masks: dict[str, Tensor] = {}
    for key, positions in gone.items():
        dim = 1 if key.endswith("_1") else 0
        name = key.removesuffix("_1").replace("_", ".").lstrip(".")
        mask = masks.setdefault(name, torch.ones_like(model.get_parameter(name), dtype=torch.bool))
        mask.index_fill_(dim, torch.tensor(list(positions), dtype=torch.long), value=False)
    return Masks.from_dict(model, masks)


def equals(model: nn.Module, plan: ShrinkPlan, x: Any, modes: Iterable[str] = ("eval", "train")) -> nn.Module:
    """Check that the smaller model computes what the masked one does, on other inputs too; a smaller copy."""
    torch.manual_seed(99)
    for mode in modes:
        one, other = (copy.deepcopy(model).train(mode == "train") for _ in range(2))
        plan.apply_(other)
        for inputs in (x, *(torch.randn_like(x) * scale for scale in (1.0, 30.0))):
            expected = one(inputs)
            atol = 1e-10 * max(1.0, expected.detach().abs().max().item())
            torch.testing.assert_close(other(inputs), expected, rtol=0, atol=atol)
    return plan.apply_(copy.deepcopy(model))


def widths(plan: ShrinkPlan) -> list[tuple[int, int]]:
    return [(group.before, group.after) for group in plan.groups]


def mlp(activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    layers = (nn.Linear(4, 6), activation(), nn.Linear(6, 5), activation(), nn.Linear(5, 3))
    return randomized(nn.Sequential(*layers))


# What a bias leaves behind --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU, nn.Sigmoid, nn.Tanh, nn.Identity])
def test_constants_of_emptied_neurons_are_added_to_the_next_bias(activation: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model, x = mlp(activation), double(8, 4)
    with torch.no_grad():
        model[0].bias.abs_()
    plan = plan_masked(model, x, masked(model, _0_weight=[1, 4]))
    assert widths(plan) == [(6, 4), (5, 5)]
    constant = activation()(model[0].bias.detach())[[1, 4]]
    expected = model[2].weight.detach()[:, [1, 4]] @ constant
    torch.testing.assert_close(plan.bias_changes["2.bias"], expected, rtol=0, atol=1e-12)
    smaller = equals(model, plan, x)
    assert (smaller[0].out_features, smaller[2].in_features) == (4, 4)


def test_units_of_several_layers_go_together() -> None:
    torch.manual_seed(1)
    model, x = mlp(), double(8, 4)
    plan = plan_masked(model, x, masked(model, _0_weight=[0, 5], _2_weight=[2], _4_weight_1=[3]))
    assert widths(plan) == [(6, 4), (5, 3)]
    equals(model, plan, x)


def test_a_unit_that_nothing_reads_goes_whatever_its_value() -> None:
    torch.manual_seed(2)
    model, x = mlp(), double(8, 4)
    plan = plan_masked(model, x, masked(model, _2_weight_1=[3]))
    assert widths(plan) == [(6, 5), (5, 5)]
    assert plan.bias_changes == {}
    equals(model, plan, x)


def test_a_layer_without_bias_cannot_take_up_a_constant() -> None:
    torch.manual_seed(0)
    model = randomized(nn.Sequential(nn.Linear(4, 6), nn.Sigmoid(), nn.Linear(6, 5, bias=False)))
    with pytest.raises(InvalidInputError, match=r"1 masked unit: 2\.weight reads it and has no bias"):
        plan_masked(model, double(8, 4), masked(model, _0_weight=[1]))


def test_a_constant_of_zero_needs_no_bias() -> None:
    torch.manual_seed(0)
    model, x = randomized(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5, bias=False))), double(8, 4)
    with torch.no_grad():
        model[0].bias[1] = -2.0  # the ReLU makes 0 of it, whatever comes in
    plan = plan_masked(model, x, masked(model, _0_weight=[1]))
    assert widths(plan) == [(6, 5)]
    assert plan.bias_changes == {}
    equals(model, plan, x)


def test_a_masked_bias_cannot_take_up_a_constant() -> None:
    torch.manual_seed(0)
    model, x = mlp(nn.Sigmoid), double(8, 4)
    masks = masked(model, _0_weight=[1], _2_bias=[0])
    with pytest.raises(InvalidInputError, match="the bias that would take up its constant is masked"):
        plan_masked(model, x, masks)


def test_one_unit_of_a_layer_that_is_masked_as_a_whole_remains() -> None:
    torch.manual_seed(0)
    model, x = mlp(), double(8, 4)
    plan = plan_masked(model, x, masked(model, _0_weight=range(6)))
    assert widths(plan) == [(6, 1), (5, 5)]
    assert "0.weight[0]: 1 masked unit: at least one unit must remain" in plan.kept_whole
    equals(model, plan, x)


# Convolutions ---------------------------------------------------------------------------------------------------------


def convolutions(**options: Any) -> nn.Sequential:
    return randomized(nn.Sequential(nn.Conv2d(3, 6, 1), nn.Sigmoid(), nn.Conv2d(6, 4, 3, **options)))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2},
        {"dilation": 2},
        {"padding": "valid"},
        {"padding": 1, "padding_mode": "reflect"},
        {"groups": 2},
        {"padding": 1, "padding_mode": "circular", "groups": 2},
    ],
)
def test_a_convolution_that_pads_no_zeros_takes_up_a_constant(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model, x = convolutions(**options), double(2, 3, 7, 6)
    gone = [1, 4] if "groups" in options else [1]  # each group must keep equally many
    plan = plan_masked(model, x, masked(model, _0_weight=gone))
    assert sum(before - after for before, after in widths(plan)) == 1
    assert list(plan.bias_changes) == ["2.bias"]
    smaller = equals(model, plan, x)
    assert smaller[0].out_channels == smaller[2].in_channels == 6 - len(gone)


@pytest.mark.parametrize("options", [{"padding": 1}, {"padding": "same"}, {"padding": (0, 1)}])
def test_a_convolution_that_pads_zeros_keeps_what_is_not_zero(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model, x = convolutions(**options), double(2, 3, 7, 6)
    with pytest.raises(InvalidInputError, match=r"0\.weight\[0\]: 1 masked unit: 2\.weight reads it with zero padding"):
        plan_masked(model, x, masked(model, _0_weight=[1]))
    model = randomized(nn.Sequential(nn.Conv2d(3, 6, 1, bias=False), nn.Tanh(), nn.Conv2d(6, 4, 3, **options)))
    plan = plan_masked(model, x, masked(model, _0_weight=[1]))
    assert widths(plan) == [(6, 5)]
    equals(model, plan, x)


def test_a_transposed_convolution_does_without_a_channel_that_is_zero_and_not_without_another() -> None:
    torch.manual_seed(0)
    for bias, name in ((False, "goes"), (True, "stays")):
        model = nn.Sequential(nn.Conv2d(3, 6, 1, bias=bias), nn.Tanh(), nn.ConvTranspose2d(6, 4, 3, stride=2))
        model, x = randomized(model), double(2, 3, 5, 4)
        masks = masked(model, _0_weight=[1])
        if name == "goes":
            equals(model, plan_masked(model, x, masks), x)
            continue
        with pytest.raises(InvalidInputError, match="read by something else than a linear or convolution layer"):
            plan_masked(model, x, masks)


def test_each_column_behind_a_flatten_has_a_constant_of_its_own() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 1), nn.Flatten(), nn.Linear(4 * 6, 3))
    model, x = randomized(model), double(4, 2, 2, 3)
    plan = plan_masked(model, x, masked(model, _0_weight=[2]))
    expected = model[2].weight.detach()[:, 12:18].sum(1) * model[0].bias.detach()[2]
    torch.testing.assert_close(plan.bias_changes["2.bias"], expected, rtol=0, atol=1e-12)
    equals(model, plan, x)


def test_an_emptied_depthwise_filter_takes_its_channel_along() -> None:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 1), nn.ReLU6(), nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.ReLU6(), nn.Conv2d(8, 2, 1))
    model, x = randomized(nn.Sequential(*layers)), double(2, 3, 5, 5)
    plan = plan_masked(model, x, masked(model, _2_weight=[0, 6]))
    assert widths(plan) == [(8, 6)]
    smaller = equals(model, plan, x)
    assert smaller[2].groups == smaller[0].out_channels == 6


class Gated(nn.Module):
    """Squeeze and excite."""

    def __init__(self) -> None:
        super().__init__()
        self.c, self.o = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.Conv2d(8, 4, 1)
        self.f1, self.f2 = nn.Linear(8, 2), nn.Linear(2, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.c(x)
        gate = torch.sigmoid(self.f2(torch.relu(self.f1(h.mean((2, 3))))))
        return self.o(h * gate[:, :, None, None])


def test_a_channel_that_is_zero_goes_with_its_gate_though_the_gate_is_not() -> None:
    torch.manual_seed(0)
    model, x = randomized(Gated()), double(2, 3, 4, 4)
    plan = plan_masked(model, x, masked(model, c_weight=[6, 7]))
    smaller = equals(model, plan, x)
    assert tuple(smaller.f2.weight.shape) == (6, 2)
    assert smaller.o.in_channels == 6


@pytest.mark.parametrize(("halvings", "gone"), [(None, [0, 5]), (3, [0, 5]), (2, [0]), (1, []), (0, [])])
def test_units_that_can_go_are_found_among_others_by_halving(halvings: int | None, gone: list[int]) -> None:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 1), nn.Tanh(), nn.ConvTranspose2d(8, 4, 3))  # the last takes up zeros, and no constant
    model, x = randomized(nn.Sequential(*layers)), double(2, 3, 5, 4)
    with torch.no_grad():
        model[0].bias[[0, 5]] = 0.0
    masks = masked(model, _0_weight=[0, 1, 4, 5, 6])  # halves: 0 1 | 4 5 6; then 0 | 1 | 4 | 5 6
    if not gone:
        with pytest.raises(InvalidInputError, match="5 masked units: its constant is read by something else"):
            plan_masked(model, x, masks, halvings=halvings)
        return
    plan = plan_masked(model, x, masks, halvings=halvings)
    assert sorted(set(range(8)) - set(plan.keep["2.weight"][0].tolist())) == gone
    equals(model, plan, x)


@pytest.mark.parametrize("halvings", ["a", 1.5, -1, True])
def test_halvings_are_a_number(halvings: Any) -> None:
    model, x = convolutions(), double(2, 3, 7, 6)
    with pytest.raises(InvalidInputError, match="halvings"):
        plan_masked(model, x, masked(model, _0_weight=[1]), halvings=halvings)


# BatchNorm, dropout: training and evaluation --------------------------------------------------------------------------


def normed(**options: Any) -> nn.Sequential:
    layers = (nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6, **options), nn.ReLU(), nn.Conv2d(6, 4, 1))
    return randomized(nn.Sequential(*layers))


def test_a_batch_norm_whose_statistics_are_not_those_of_the_constant_keeps_it() -> None:
    torch.manual_seed(0)
    model, x = normed(), double(4, 3, 6, 6)
    with torch.no_grad():
        model[1].bias[1] = 1.0
    masks = masked(model, _0_weight=[1])
    with pytest.raises(InvalidInputError, match="its constant is another one in training than in evaluation"):
        plan_masked(model, x, masks)
    for mode in ("eval", "train"):
        plan = plan_masked(model, x, masks, modes=(mode,))
        assert widths(plan) == [(6, 5)]
        equals(model, plan, x, modes=(mode,))


@pytest.mark.parametrize("how", ["statistics of the constant", "no statistics", "masked too"])
def test_a_batch_norm_that_gives_one_constant_in_both_modes_lets_it_go(how: str) -> None:
    torch.manual_seed(0)
    model = normed(track_running_stats=how != "no statistics")
    x, more = double(4, 3, 6, 6), {}
    with torch.no_grad():
        model[1].bias[1] = 0.7
        if how == "statistics of the constant":
            model[1].running_mean[1] = 0.0
        elif how == "masked too":
            more = {"_1_weight": [1], "_1_bias": [1]}
    plan = plan_masked(model, x, masked(model, _0_weight=[1], **more))
    assert widths(plan) == [(6, 5)]
    assert bool(plan.bias_changes) == (how != "masked too")
    equals(model, plan, x)


def test_behind_dropout_only_zero_is_a_constant_in_training() -> None:
    torch.manual_seed(0)
    x = double(64, 4)
    for activation, goes in ((nn.Sigmoid, False), (nn.Tanh, True)):
        layers = (nn.Linear(4, 6, bias=activation is nn.Sigmoid), activation(), nn.Dropout(0.5), nn.Linear(6, 2))
        model = randomized(nn.Sequential(*layers))
        masks = masked(model, _0_weight=[3])
        if goes:
            assert widths(plan_masked(model, x, masks)) == [(6, 5)]
            continue
        with pytest.raises(InvalidInputError, match="its value is no constant"):
            plan_masked(model, x, masks)
        equals(model, plan_masked(model, x, masks, modes=("eval",)), x, modes=("eval",))


def test_modes_modules_random_state_and_statistics_are_left_as_they_were() -> None:
    torch.manual_seed(0)
    model, x = normed(), double(4, 3, 6, 6)
    model.train()
    model[1].eval()
    masks = masked(model, _0_weight=[1], _3_weight_1=[1])
    before, state = state_of(model), torch.get_rng_state()
    plan_masked(model, x, masks)
    assert is_unchanged(model, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model] == [True, False, True, True]
    assert not model[0]._forward_pre_hooks
    assert torch.get_default_dtype() == torch.float32


# What must not go -----------------------------------------------------------------------------------------------------


def test_neurons_that_are_dead_on_the_example_inputs_are_not_emptied() -> None:
    torch.manual_seed(0)
    model, x = mlp(), double(8, 4)
    with torch.no_grad():
        model[0].bias[:3] = -1e3
    mask = torch.ones(6, 4, dtype=torch.bool)
    mask[:3, 0] = False
    with pytest.raises(InvalidInputError, match="no unit of Sequential is masked as a whole"):
        plan_masked(model, x, Masks.from_dict(model, {"0.weight": mask}))


class TwoSources(nn.Module):
    """Two layers feed one width."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.o = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.o(torch.relu(self.a(x) + self.b(x)))


def test_a_unit_stays_as_long_as_anything_feeds_it_even_where_it_is_dead() -> None:
    torch.manual_seed(0)
    model, x = randomized(TwoSources()), double(8, 4)
    with torch.no_grad():
        model.b.bias[1] = -1e3
    masks = masked(model, a_weight=[1, 2, 3], b_weight=[2])
    plan = plan_masked(model, x, masks)
    assert widths(plan) == [(6, 5)]
    assert plan.keep["o.weight"][1].tolist() == [0, 1, 3, 4, 5]
    assert "a.weight[0]: 2 masked units: o.weight reads it, and its value is no constant" in plan.kept_whole
    equals(model, plan, x)


class Raw(nn.Module):
    """The second weight is used without a layer."""

    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.a, self.w, self.b = nn.Linear(4, 6, bias=bias), nn.Parameter(torch.randn(2, 6)), nn.Parameter(double(2))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(torch.tanh(self.a(x)), self.w, self.b)


def test_what_is_read_by_no_layer_goes_if_it_is_zero_and_stays_otherwise() -> None:
    torch.manual_seed(0)
    model, x = randomized(Raw(bias=False)), double(8, 4)
    equals(model, plan_masked(model, x, masked(model, a_weight=[1, 2])), x)
    model = randomized(Raw(bias=True))
    with torch.no_grad():
        model.a.bias[2] = 0.0
    plan = plan_masked(model, x, masked(model, a_weight=[1, 2, 5]))
    assert plan.keep["w"][1].tolist() == [0, 1, 3, 4, 5]
    assert any("2 masked units: its constant is read by something else" in line for line in plan.kept_whole)
    equals(model, plan, x)


def test_what_a_norm_mixes_stays_even_at_zero() -> None:
    torch.manual_seed(0)
    model = randomized(nn.Sequential(nn.Linear(4, 6, bias=False), nn.LayerNorm(6), nn.Linear(6, 2)))
    with pytest.raises(InvalidInputError, match=r"no masked unit of Sequential can go(?s:.*)1 masked unit: "):
        plan_masked(model, double(8, 4), masked(model, _0_weight=[1]))


# Attention ------------------------------------------------------------------------------------------------------------


def test_values_that_are_a_constant_pass_through_attention_into_the_bias() -> None:
    torch.manual_seed(0)
    model, x = randomized(Attention(12, 3)), double(2, 5, 12)
    plan = plan_masked(model, x, masked(model, v_weight=range(4, 8)))
    smaller = equals(model, plan, x)
    assert smaller.num_heads == 2
    expected = model.o.weight.detach()[:, 4:8] @ model.v.bias.detach()[4:8]
    torch.testing.assert_close(plan.bias_changes["o.bias"], expected, rtol=0, atol=1e-12)


class SelfAttention(nn.Module):
    """nn.MultiheadAttention on its own, whose output projection is used without a call of that layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(12, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


def test_multihead_attention_loses_a_head_that_nothing_reads() -> None:
    torch.manual_seed(0)
    model, x = randomized(SelfAttention()), double(2, 5, 12)
    mask = torch.ones(12, 12, dtype=torch.bool)
    mask[:, 4:8] = False
    plan = plan_masked(model, x, Masks.from_dict(model, {"attention.out_proj.weight": mask}))
    assert equals(model, plan, x).attention.num_heads == 2


@pytest.mark.parametrize("bias", [True, False])
def test_multihead_attention_loses_a_head_whose_projections_are_masked_if_it_has_no_bias(bias: bool) -> None:
    torch.manual_seed(0)
    model, x = randomized(SelfAttention()), double(2, 5, 12)
    mask = torch.ones(36, 12, dtype=torch.bool)
    mask[[*range(4, 8), *range(16, 20), *range(28, 32)]] = False
    if not bias:
        with torch.no_grad():
            model.attention.in_proj_bias.zero_()
    masks = Masks.from_dict(model, {"attention.in_proj_weight": mask})
    if bias:
        with pytest.raises(InvalidInputError, match="read by something else than a linear or convolution layer"):
            plan_masked(model, x, masks)
    else:
        assert equals(model, plan_masked(model, x, masks), x).attention.num_heads == 2


# A live run -----------------------------------------------------------------------------------------------------------


def trained(model: nn.Module, x: Tensor, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()


def test_shrink_takes_optimizer_masks_and_averages_along_and_training_goes_on() -> None:
    torch.manual_seed(0)
    model, x = mlp(nn.Sigmoid), double(8, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    mask = torch.ones(6, 4, dtype=torch.bool)
    mask[[1, 4]] = False
    mask[0, :2] = False
    masks = Masks.from_dict(model, {"0.weight": mask}, optimizer)
    trained(model, x, optimizer)
    average, by_hand = copy.deepcopy(model), {n: p.detach().clone() for n, p in model.named_parameters()}
    new = double(8, 4)
    expected, parameters = model(new).detach(), list(model.parameters())
    moment = optimizer.state[model[0].weight]["exp_avg"][[0, 2, 3, 5]].clone()
    plan = shrink_(model, x, masks=masks, optimizer=optimizer, ema=[average, by_hand])
    assert widths(plan)[0] == (6, 4)
    torch.testing.assert_close(model(new), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(average(new), expected, rtol=0, atol=1e-12)
    assert all(torch.equal(by_hand[n], p) for n, p in model.named_parameters())
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert torch.equal(optimizer.state[model[0].weight]["exp_avg"], moment)
    assert torch.equal(masks["0.weight"], mask[[0, 2, 3, 5]])
    trained(model, x, optimizer)
    assert bool((model[0].weight[~masks["0.weight"]] == 0).all())
    assert not torch.allclose(model(new), expected)


def test_nothing_has_changed_when_something_cannot_follow() -> None:
    torch.manual_seed(0)
    model, x = mlp(nn.Sigmoid), double(8, 4)
    masks = masked(model, _0_weight=[1])
    before = state_of(model)
    with pytest.raises(HolderError):
        shrink_(model, x, masks=masks, ema={"0.weight": torch.ones(2, 2)})
    assert is_unchanged(model, before)


def test_the_plan_is_saved_with_its_constants_and_cuts_a_state_dict(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = mlp(nn.Sigmoid), double(8, 4)
    plan = plan_shrink(model, x, masks=masked(model, _0_weight=[1, 4], _2_weight=[0]))
    plan.save(tmp_path / "plan.safetensors")
    loaded = ShrinkPlan.load(tmp_path / "plan.safetensors")
    assert loaded == plan
    assert "  constants go into 2.bias, 4.bias" in repr(loaded).splitlines()
    other = copy.deepcopy(plan)
    other.bias_changes["2.bias"][0] += 1.0
    assert loaded != other
    assert plan.verify(model, x).is_right
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    cut = loaded.apply_to(model.state_dict())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    plan.apply_(model)
    assert all(torch.equal(cut[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_channels_that_prune_has_masked_are_removed_from_a_network(seed: int) -> None:
    torch.manual_seed(seed)
    layers = (nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 12, 1), nn.Tanh(), nn.Conv2d(12, 6, 3), nn.Flatten())
    model, x = randomized(nn.Sequential(*layers, nn.Linear(6 * 16, 4))), double(2, 3, 8, 8)
    masks = prune_(model, sparsity=0.5, pattern=patterns.Channel(), exclude=["6.*"])
    plan = plan_shrink(model, x, masks=masks)
    assert widths(plan) == [(8, 4), (12, 6), (6, 3)]
    equals(model, plan, x)


@settings(max_examples=10)
@given(data=st.data())
def test_every_neuron_whose_rows_or_columns_are_masked_goes_and_no_other(data: st.DataObject) -> None:
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    activation = data.draw(st.sampled_from([nn.ReLU, nn.SiLU, nn.Softplus]))
    model, x = mlp(activation), double(6, 4)
    chosen = st.sets(st.integers(0, 4), max_size=2)
    rows, columns, later = data.draw(chosen), data.draw(chosen), data.draw(chosen)
    masks = masked(model, _0_weight=rows, _2_weight_1=columns, _2_weight=later)
    emptied = len(rows | columns), len(later)
    if emptied == (0, 0):
        return
    plan = plan_masked(model, x, masks)
    assert widths(plan) == [(6, 6 - emptied[0]), (5, 5 - emptied[1])]
    equals(model, plan, x)


# Wrong input ----------------------------------------------------------------------------------------------------------


def test_masks_that_are_none_or_do_not_hold_are_refused() -> None:
    torch.manual_seed(0)
    model, x = mlp(), double(8, 4)
    mask = torch.ones(6, 4, dtype=torch.bool)
    before = state_of(model)
    with pytest.raises(InvalidInputError, match=r"masks\['1.weight'\] is no bool mask(?s:.*)no such parameter"):
        plan_masked(model, x, {"1.weight": mask})
    with pytest.raises(InvalidInputError, match=r"masks\['0.weight'\] is no bool mask(?s:.*)float64"):
        plan_masked(model, x, {"0.weight": mask.double()})
    with pytest.raises(ShapeError, match=r"mask: \(4, 6\)    tensor: \(6, 4\)"):
        plan_masked(model, x, {"0.weight": mask.T})
    with pytest.raises(InvalidInputError, match="no unit of Sequential is masked as a whole"):
        plan_masked(model, x, {})
    mask[2] = False
    with pytest.raises(InvalidInputError, match=r"'0.weight' is not zero where it is masked(?s:.*)not zero: 4"):
        plan_masked(model, x, {"0.weight": mask})
    with pytest.raises(InvalidInputError, match="masks say which units go"):
        shrink_(model, x, masks={"0.weight": mask}, sparsity=0.5)
    assert is_unchanged(model, before)


def test_inputs_from_which_nothing_can_be_learnt_are_refused() -> None:
    model = randomized(nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)))
    masks = masked(model, _1_weight=[2])
    with pytest.raises(InvalidInputError, match="entries of the example inputs are all alike"):
        plan_masked(model, torch.zeros(3, 4, dtype=torch.long), masks)
    plan = plan_masked(model, lambda m: m(torch.tensor([[0, 1, 2], [3, 4, 0]])), masks)
    assert widths(plan)[-1] == (6, 5)


def test_one_sample_is_not_enough_for_a_batch_norm_in_training() -> None:
    model = randomized(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)))
    masks = masked(model, _2_weight_1=[2])
    with pytest.raises(
        UnsupportedError, match=r"more than 1 value per channel(?s:.*)mode: train(?s:.*)several samples"
    ):
        plan_masked(model, double(1, 4), masks)
    assert widths(plan_masked(model, double(1, 4), masks, modes=("eval",))) == [(6, 5)]


class Step(nn.Module):
    """A step of a residual net that halves the image."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.past, self.norm3 = nn.Conv2d(width, width, 1, 2, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        inside = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        return (inside + self.norm3(self.past(x))).relu()


@pytest.mark.parametrize("side", [4, 8, 16])
def test_constants_stay_where_other_images_would_show_their_border(side: int) -> None:
    torch.manual_seed(5)
    model = nn.Sequential(Step(4), Step(4), Step(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4)).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.bias)
    masks = prune_(model, sparsity=0.5, pattern=patterns.Channel(dim=0))
    small = copy.deepcopy(model)
    plan_masked(model, torch.randn(4, 4, side, side), masks, modes=("eval",)).apply_(small)
    assert sum(map(torch.numel, small.parameters())) < sum(map(torch.numel, model.parameters()))
    for size in ((8, 8), (16, 16), (20, 13), (7, 9)):
        images = torch.randn(2, 4, *size)
        torch.testing.assert_close(small(images), model(images), rtol=1e-5, atol=1e-5)
