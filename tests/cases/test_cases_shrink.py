"""What users ran into when they removed units by hand, done with the library; and the neighbours of it."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import secateur
from secateur.graph import analyze
from secateur.shrink import ShrinkPlan, plan_of, plan_shrink, shrink_
from tests.shrink.models import Attention, equals_the_zeroed_model, is_unchanged, randomized, state_of

SEEDS = [0, 1, 2]


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in model.named_parameters()}


def asked(model: nn.Module, x: Any, positions: dict[tuple[str, int], Iterable[int]]) -> ShrinkPlan:
    return plan_of(model, analyze(model, x), positions=positions)


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


# Case 18: attention heads 1 and 4 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("named", ["q.weight", "k.bias", "o.weight"])
def test_case_18_two_heads_go_and_the_recorded_numbers_follow(named: str, seed: int) -> None:
    torch.manual_seed(seed)
    model, x = randomized(Attention(48, 6)), double(2, 7, 48)
    rows = [h * 8 + i for h in (1, 4) for i in range(8)]
    plan = asked(model, x, {(named, 1 if named == "o.weight" else 0): rows})
    smaller = equals_the_zeroed_model(model, plan, x)
    assert (smaller.num_heads, smaller.head_dim) == (4, 8)
    assert shapes(smaller)["q.weight"] == shapes(smaller)["v.weight"] == (32, 48)
    assert shapes(smaller)["o.weight"] == (48, 32)
    expected = [i for i in range(48) if i not in rows]
    assert torch.equal(smaller.k.weight, model.k.weight[expected])


def test_case_18_a_part_of_a_head_is_refused_with_what_it_goes_with() -> None:
    model, x = randomized(Attention(48, 6, lambda a: a.head_dim**-0.5)), double(2, 7, 48)
    before = state_of(model)
    with pytest.raises(ValueError, match=r"position 9 of 'q.weight'.*(?s:.*)8 positions \(heads\), of which 1 asked"):
        asked(model, x, {("q.weight", 0): [9]})
    assert is_unchanged(model, before)


class Fused(nn.Module):
    def __init__(self, d: int = 12, heads: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.o(nn.functional.scaled_dot_product_attention(q, k, v, scale=0.5).transpose(1, 2).reshape(b, n, -1))


@pytest.mark.parametrize("seed", SEEDS)
def test_case_18_neighbour_fused_projection_loses_a_head_in_all_three_parts(seed: int) -> None:
    torch.manual_seed(seed)
    model, x = randomized(Fused()), double(2, 5, 12)
    plan = asked(model, x, {("o.weight", 1): range(4, 8)})
    smaller = equals_the_zeroed_model(model, plan, x)
    assert plan.keep["qkv.weight"][0].tolist() == [i for i in range(36) if not 4 <= i % 12 < 8]
    assert smaller.heads == 2


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("batch_first", [True, False])
def test_case_18_neighbour_multihead_attention_loses_heads_and_keeps_its_width(batch_first: bool, seed: int) -> None:
    torch.manual_seed(seed)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(12, 3, batch_first=batch_first)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x)[0]

    model, x = randomized(Model()), double(2, 5, 12)
    plan = asked(model, x, {("attention.out_proj.weight", 1): range(4)})
    smaller = equals_the_zeroed_model(model, plan, x)
    assert (smaller.attention.num_heads, smaller.attention.embed_dim) == (2, 12)
    assert shapes(smaller)["attention.in_proj_weight"] == (24, 12)
    assert isinstance(smaller.attention, nn.MultiheadAttention)
    assert list(smaller.state_dict()) == list(model.state_dict())


# Case 20: grouped-query attention ------------------------------------------------------------------------------------


class GroupedQuery(nn.Module):
    def __init__(self, d: int = 32, hq: int = 8, hkv: int = 2, dh: int = 4) -> None:
        super().__init__()
        self.hq, self.hkv, self.dh = hq, hkv, dh
        self.q, self.k, self.v = nn.Linear(d, hq * dh), nn.Linear(d, hkv * dh), nn.Linear(d, hkv * dh)
        self.o = nn.Linear(hq * dh, d)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q = self.q(x).view(b, n, self.hq, self.dh).transpose(1, 2)
        k, v = (
            p(x).view(b, n, self.hkv, self.dh).transpose(1, 2).repeat_interleave(self.hq // self.hkv, 1)
            for p in (self.k, self.v)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.o(y.transpose(1, 2).reshape(b, n, -1))


def head_rows(*heads: int) -> list[int]:
    return [h * 4 + i for h in heads for i in range(4)]


@pytest.mark.parametrize("seed", SEEDS)
def test_case_20_query_heads_go_evenly_then_a_whole_group(seed: int) -> None:
    torch.manual_seed(seed)
    model, x = randomized(GroupedQuery()), double(1, 3, 32)
    first = equals_the_zeroed_model(model, asked(model, x, {("q.weight", 0): head_rows(1, 5)}), x)
    assert shapes(first)["q.weight"] == (24, 32)
    assert shapes(first)["k.weight"] == shapes(first)["v.weight"] == (8, 32)
    assert shapes(first)["o.weight"] == (32, 24)
    assert (first.hq, first.hkv, first.dh) == (6, 2, 4)
    second = equals_the_zeroed_model(first, asked(first, x, {("k.weight", 0): range(4)}), x)
    assert shapes(second)["k.weight"] == (4, 32)
    assert shapes(second)["q.weight"] == (12, 32)
    assert (second.hq, second.hkv) == (3, 1)


def test_case_20_an_uneven_choice_is_refused_with_both_counts() -> None:
    model, x = randomized(GroupedQuery()), double(1, 3, 32)
    before = state_of(model)
    with pytest.raises(ValueError, match=r"equally many(?s:.*)would keep: (?s:.*)\[8, 16\]"):
        asked(model, x, {("q.weight", 0): head_rows(0, 1)})
    assert is_unchanged(model, before)


# Case 22: never an empty layer ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "x", "positions"),
    [
        (lambda: Attention(12, 3), (1, 4, 12), {("q.weight", 0): range(12)}),
        (lambda: nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)), (1, 3), {("0.weight", 0): range(5)}),
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1)), (1, 3, 2, 2), {("1.weight", 1): range(4)}),
    ],
    ids=["heads", "neurons", "channels"],
)
def test_case_22_removing_every_unit_names_the_layer_and_changes_nothing(
    make: Callable[[], nn.Module], x: tuple[int, ...], positions: dict[tuple[str, int], Iterable[int]]
) -> None:
    model = make().double().eval()
    before = state_of(model)
    (name, _), *_ = positions
    layer = name.split(".")[0]
    with pytest.raises(ValueError, match=rf"nothing of '{layer if layer != '1' else '0'}\.\w+' would be left"):
        asked(model, double(*x), positions)
    assert is_unchanged(model, before)


# Case 33: flatten before a linear layer ------------------------------------------------------------------------------


class Flattened(nn.Module):
    def __init__(self, how: str, dims: int = 2) -> None:
        super().__init__()
        conv, norm, pool = {
            1: (nn.Conv1d, nn.BatchNorm1d, nn.AdaptiveAvgPool1d(25)),
            2: (nn.Conv2d, nn.BatchNorm2d, nn.AdaptiveAvgPool2d((5, 5))),
        }[dims]
        self.conv, self.norm, self.pool, self.how = conv(3, 16, 3, padding=1), norm(16), pool, how
        self.fc = nn.Linear(400, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(torch.relu(self.norm(self.conv(x))))
        if self.how == "flatten":
            return self.fc(x.flatten(1))
        return self.fc(x.view(x.size(0), -1) if self.how == "view" else x.reshape(x.shape[0], -1))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("how", ["flatten", "view", "reshape"])
@pytest.mark.parametrize("dims", [1, 2])
def test_case_33_columns_of_removed_channels_go_from_the_linear_layer(how: str, dims: int, seed: int) -> None:
    torch.manual_seed(seed)
    model, x = randomized(Flattened(how, dims)), double(2, 3, *([9] * dims if dims == 2 else [40]))
    plan = asked(model, x, {("conv.weight", 0): [3, 7, 8, 15]})
    smaller = equals_the_zeroed_model(model, plan, x)
    kept = [c for c in range(16) if c not in (3, 7, 8, 15)]
    assert smaller.fc.in_features == 300
    assert plan.keep["fc.weight"][1].tolist() == [c * 25 + i for c in kept for i in range(25)]
    assert smaller.conv.out_channels == smaller.norm.num_features == 12


# Case 34: grouped convolution ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_case_34_each_group_of_a_convolution_keeps_equally_many(seed: int) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 12, 3, groups=4, padding=1), nn.Conv2d(12, 2, 1))
    model, x = randomized(model), double(1, 3, 6, 6)
    smaller = equals_the_zeroed_model(model, asked(model, x, {("1.weight", 0): [0, 3, 6, 9]}), x)
    assert shapes(smaller)["1.weight"] == (8, 2, 3, 3)
    assert (smaller[1].groups, smaller[1].in_channels, smaller[1].out_channels) == (4, 8, 8)
    whole = equals_the_zeroed_model(model, asked(model, x, {("1.weight", 0): [3, 4, 5]}), x)
    assert (whole[1].groups, whole[1].in_channels, whole[1].out_channels) == (3, 6, 9)


def test_case_34_an_uneven_set_is_refused_with_the_groups_named() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 12, 3, groups=4, padding=1), nn.Conv2d(12, 2, 1)).eval()
    before = state_of(model)
    with pytest.raises(ValueError, match="groups: 4"):
        asked(model, torch.randn(1, 3, 6, 6), {("1.weight", 0): [0]})
    assert is_unchanged(model, before)


# Case 36: depthwise --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_case_36_the_same_group_results_from_any_of_the_three_layers(seed: int) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(
        *(nn.Conv2d(4, 24, 1), nn.BatchNorm2d(24), nn.ReLU6()),
        *(nn.Conv2d(24, 24, 3, padding=1, groups=24), nn.ReLU6(), nn.Conv2d(24, 4, 1)),
    )
    model, x = randomized(model), double(1, 4, 8, 8)
    gone = torch.randperm(24)[:8].tolist()
    plans = [asked(model, x, {place: gone}) for place in (("0.weight", 0), ("3.weight", 0), ("5.weight", 1))]
    assert plans[0] == plans[1] == plans[2]
    smaller = equals_the_zeroed_model(model, plans[0], x)
    assert shapes(smaller)["3.weight"] == (16, 1, 3, 3)
    assert (smaller[3].groups, smaller[3].in_channels, smaller[3].out_channels) == (16, 16, 16)
    assert shapes(smaller)["5.weight"] == (4, 16, 1, 1)


# Case 38: the same tensor twice in a cat -----------------------------------------------------------------------------


class CatTwice(nn.Module):
    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(d, d, 1), nn.Conv2d(2 * d, d, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        return self.b(torch.cat([h, h], 1))


@pytest.mark.parametrize("seed", SEEDS)
def test_case_38_both_copies_of_a_concatenated_tensor_follow(seed: int) -> None:
    torch.manual_seed(seed)
    model, x = randomized(CatTwice()), double(1, 16, 7, 7)
    plan = asked(model, x, {("a.weight", 0): [3, 11]})
    assert plan.keep["b.weight"][1].tolist() == [i for i in range(32) if i not in (3, 11, 19, 27)]
    smaller = equals_the_zeroed_model(model, plan, x)
    for width in (12, 10, 8, 6, 5, 4):
        gone = range(smaller.a.out_channels - width)
        smaller = equals_the_zeroed_model(smaller, asked(smaller, x, {("a.weight", 0): gone}), x)
        assert shapes(smaller)["b.weight"] == (16, 2 * width, 1, 1)


# Case 39: chunk ------------------------------------------------------------------------------------------------------


class SplitBlock(nn.Module):
    def __init__(self, w: int = 8, how: str = "chunk") -> None:
        super().__init__()
        self.how = how
        self.expand, self.inner = nn.Conv2d(w, 2 * w, 1), nn.Conv2d(w, w, 3, padding=1)
        self.merge = nn.Conv2d(3 * w, w, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.expand(x)
        left, right = torch.chunk(h, 2, dim=1) if self.how == "chunk" else torch.split(h, [8, 8], dim=1)
        return self.merge(torch.cat((left, right, self.inner(right)), dim=1))


@pytest.mark.parametrize("seed", SEEDS)
def test_case_39_both_halves_of_a_chunk_keep_the_same_number(seed: int) -> None:
    torch.manual_seed(seed)
    model, x = randomized(SplitBlock()), double(1, 8, 4, 4)
    gone = torch.randperm(8)[:4].tolist()
    smaller = equals_the_zeroed_model(model, asked(model, x, {("expand.weight", 0): gone + [8 + i for i in gone]}), x)
    assert smaller.expand.out_channels == 8
    assert smaller.inner.in_channels == 4
    assert smaller.merge.in_channels == 4 + 4 + smaller.inner.out_channels


def test_case_39_sizes_written_in_the_code_are_refused_with_the_function_named() -> None:
    model = SplitBlock(how="split").eval()
    before = state_of(model)
    with pytest.raises(ValueError, match=r"position 0 of 'expand.weight'.*split.*written in the code"):
        asked(model, torch.randn(1, 8, 4, 4), {("expand.weight", 0): [0, 8]})
    assert is_unchanged(model, before)


# Case 41: PixelShuffle -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("place", [("2.weight", 1, [2]), ("0.weight", 0, [8]), ("0.weight", 0, [8, 9, 10, 11])])
def test_case_41_a_channel_goes_with_its_block_before_the_pixel_shuffle(
    place: tuple[str, int, list[int]], seed: int
) -> None:
    torch.manual_seed(seed)
    model = randomized(nn.Sequential(nn.Conv2d(4, 16, 1), nn.PixelShuffle(2), nn.Conv2d(4, 5, 1)))
    x = double(1, 4, 3, 3)
    name, dim, gone = place
    plan = asked(model, x, {(name, dim): gone})
    assert plan.keep["0.weight"][0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 12, 13, 14, 15]
    assert shapes(equals_the_zeroed_model(model, plan, x))["2.weight"] == (5, 3, 1, 1)


# Case 43: squeeze-excite ---------------------------------------------------------------------------------------------


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c, self.o = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1)
        self.f1, self.f2 = nn.Linear(8, 2), nn.Linear(2, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.c(x)
        gate = torch.sigmoid(self.f2(torch.relu(self.f1(h.mean((2, 3))))))
        return self.o(h * gate[:, :, None, None])


@pytest.mark.parametrize("seed", SEEDS)
def test_case_43_the_gate_goes_with_its_channels(seed: int) -> None:
    torch.manual_seed(seed)
    model, x = randomized(SqueezeExcite()), double(1, 3, 4, 4)
    smaller = equals_the_zeroed_model(model, asked(model, x, {("c.weight", 0): [6, 7]}), x)
    found = shapes(smaller)
    assert (found["c.weight"][0], found["f1.weight"], found["f2.weight"]) == (6, (2, 6), (6, 2))
    assert found["o.weight"] == (4, 6, 1, 1)


# Case 44: one module used twice --------------------------------------------------------------------------------------


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.h = nn.Linear(4, 8), nn.Linear(5, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.h(self.a(x)) + self.h(self.b(y))


@pytest.mark.parametrize("seed", SEEDS)
def test_case_44_a_module_used_twice_is_cut_once_with_both_that_feed_it(seed: int) -> None:
    torch.manual_seed(seed)
    model, x = randomized(Shared()), (double(1, 4), double(1, 5))
    smaller = equals_the_zeroed_model(model, asked(model, x, {("a.weight", 0): [6, 7]}), x)
    assert [shapes(smaller)[f"{n}.weight"] for n in "abh"] == [(6, 4), (6, 5), (2, 6)]
    assert torch.equal(smaller.b.weight, model.b.weight[:6])


# Case 45: raw parameters ---------------------------------------------------------------------------------------------


class RawParameters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.e, self.o = nn.Linear(5, 8), nn.Linear(8, 3)
        self.pos, self.gamma = nn.Parameter(torch.randn(1, 6, 8)), nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.o((self.e(x) + self.pos) * self.gamma)


@pytest.mark.parametrize("seed", SEEDS)
def test_case_45_raw_parameters_are_cut_on_the_right_dim_and_stay_in_the_optimizer(seed: int) -> None:
    torch.manual_seed(seed)
    model, x = randomized(RawParameters()), double(2, 6, 5)
    plan = asked(model, x, {("e.weight", 0): [2, 5]})
    equals_the_zeroed_model(model, plan, x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(x).square().sum().backward()
    optimizer.step()
    pos, gamma = model.pos, model.gamma
    expected = optimizer.state[pos]["momentum_buffer"][:, :, [0, 1, 3, 4, 6, 7]].clone()
    plan.apply_(model, optimizer=optimizer)
    assert model.pos is pos
    assert model.gamma is gamma
    assert (tuple(pos.shape), tuple(gamma.shape)) == ((1, 6, 6), (6,))
    assert any(p is pos for p in optimizer.param_groups[0]["params"])
    assert torch.equal(optimizer.state[pos]["momentum_buffer"], expected)


# Case 46: a frozen model ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("under", [torch.no_grad, torch.enable_grad])
def test_case_46_a_frozen_model_is_cut_like_any_other(under: Callable[[], Any]) -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Conv2d(16, 4, 3)).eval().requires_grad_(False)
    x = torch.randn(1, 3, 8, 8)
    reference = copy.deepcopy(model)
    with under():
        plan = shrink_(model, x, sparsity=0.5)
    assert shapes(model)["0.weight"] == (8, 3, 3, 3)
    assert shapes(model)["2.weight"] == (4, 8, 3, 3)
    assert not any(p.requires_grad for p in model.parameters())
    torch.testing.assert_close(model(x), plan.removed_zeroed_(reference)(x))


def test_case_46_neighbour_inference_mode_is_refused_before_anything_changes() -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Conv2d(16, 4, 3)).eval()
    plan = plan_shrink(model, torch.randn(1, 3, 8, 8), sparsity=0.5)
    before = state_of(model)
    with torch.inference_mode(), pytest.raises(ValueError, match="inference_mode"):
        plan.apply_(model)
    assert is_unchanged(model, before)


def test_case_46_neighbour_a_model_without_removable_units_says_so() -> None:
    model = nn.Linear(4, 3)
    before = state_of(model)
    with pytest.raises(ValueError, match=r"nothing in Linear can be removed(?s:.*)it is an output of the model"):
        shrink_(model, torch.randn(1, 4), sparsity=0.5)
    assert is_unchanged(model, before)


# Case 62: a pruned state dict comes back into the dense architecture -------------------------------------------------


def case_62() -> nn.Sequential:
    """The model of the case."""
    return nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 2))


def test_case_62_a_smaller_state_dict_loads_into_a_fresh_dense_model(tmp_path: Path) -> None:
    torch.manual_seed(0)
    trained, keep = case_62(), torch.arange(7)
    with torch.no_grad():
        trained[0].weight.data, trained[0].bias.data = trained[0].weight[keep].clone(), trained[0].bias[keep].clone()
        trained[2].weight.data = trained[2].weight[:, keep].clone()
    torch.save(trained.state_dict(), tmp_path / "small.pt")
    state = torch.load(tmp_path / "small.pt", weights_only=True)
    loaded = secateur.load_(case_62(), state)
    assert [tuple(tensor.shape) for tensor in loaded.parameters()] == [(7, 6), (7,), (2, 7), (2,)]
    assert (loaded[0].out_features, loaded[2].in_features) == (7, 7)
    x = torch.randn(3, 6)
    assert torch.equal(loaded(x), trained(x))
    loaded(x).sum().backward()


LOADED = """
import sys
import safetensors.torch
import torch
from torch import nn
import secateur

model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 2))
secateur.load_(model, sys.argv[1])
x = torch.linspace(-1, 1, 18).view(3, 6)
with torch.no_grad():
    print(model(x).numpy().tobytes().hex(), model[0].out_features, model[2].in_features)
"""


def test_case_62_a_file_loads_in_another_process_with_the_same_bits_and_no_pickled_classes(tmp_path: Path) -> None:
    trained, path = case_62(), tmp_path / "small.safetensors"
    x = torch.linspace(-1, 1, 18).view(3, 6)
    plan_of(trained, analyze(trained, x), positions={("0.weight", 0): [7, 8, 9]}).apply_(trained)
    secateur.save(trained, path)
    expected = trained(x).detach().numpy().tobytes().hex()
    done = subprocess.run([sys.executable, "-c", LOADED, path], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [expected, "7", "7"]
    with path.open("rb") as file:  # a length, JSON, and the entries of four float32 tensors: nothing else
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        entries = file.read()
    shapes = [each["shape"] for name, each in sorted(header.items()) if name != "__metadata__"]
    assert shapes == [[7], [7, 6], [2], [2, 7]]
    assert len(entries) == 4 * (7 + 42 + 2 + 14)
    assert json.loads(header["__metadata__"]["model"])["format"] == "secateur.model.1"


def test_case_62_a_wrong_architecture_is_refused_with_the_first_differing_layer() -> None:
    state = case_62().state_dict()
    other = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 2))
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    with pytest.raises(secateur.SecateurError, match=r"0\.weight"):
        secateur.load_(other, state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in other.state_dict().items())
