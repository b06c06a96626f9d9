from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from secateur import (
    HolderError,
    InfeasibleError,
    InvalidInputError,
    Masks,
    ShapeError,
    UnsupportedError,
    allocation,
    patterns,
    prune_,
    scores,
)
from tests.masks.oracles import bits, half, is_zero, snapshot


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 10), nn.ReLU(), nn.Linear(10, 4))


def lowest_by_hand(score: Tensor, count: int) -> Tensor:
    """Keep all but the lowest; a stable sort, so of equal ones the first goes first."""
    order = sorted(range(score.numel()), key=lambda i: float(score.flatten()[i]))
    kept = torch.ones(score.numel(), dtype=torch.bool)
    kept[order[:count]] = False
    return kept.view(score.shape)


# ---- what goes


@given(sparsity=st.floats(0, 0.999), seed=st.integers(0, 99))
def test_number_of_zeros_is_exact(sparsity: float, seed: int) -> None:
    torch.manual_seed(seed)
    net = model()
    wanted = {"0.weight": round(sparsity * 200), "2.weight": round(sparsity * 40)}
    if any(count == size for count, size in zip(wanted.values(), (200, 40), strict=True)):
        return
    before = {name: net.get_parameter(name).detach().clone() for name in wanted}
    masks = prune_(net, sparsity=sparsity)
    for name, count in wanted.items():
        weight = net.get_parameter(name).detach()
        assert int((weight == 0).sum()) == count
        assert torch.equal(masks[name], lowest_by_hand(before[name].abs(), count))
        assert torch.equal(weight, before[name] * masks[name])


def test_ties_go_by_position() -> None:
    net = nn.Linear(8, 4)
    with torch.no_grad():
        net.weight.fill_(0.5)
    masks = prune_(net, sparsity=0.3)
    assert torch.equal(masks["weight"].flatten(), torch.arange(32) >= 10)


def test_smallest_weights_of_all_go_under_a_global_allocation() -> None:
    net = model()
    everything = torch.cat([net[0].weight.detach().flatten(), net[2].weight.detach().flatten()]).abs()
    masks = prune_(net, sparsity=0.5, allocation=allocation.global_)
    kept = torch.cat([masks["0.weight"].flatten(), masks["2.weight"].flatten()])
    assert torch.equal(kept, lowest_by_hand(everything, 120))


def test_larger_layers_are_sparser_under_erk() -> None:
    net = model()
    masks = prune_(net, sparsity=0.5, allocation=allocation.erk)
    assert masks.num_zeros() == 120
    assert masks.sparsity("0.weight") > masks.sparsity("2.weight")


def test_scores_may_be_a_dict_and_are_looked_at_instead_of_weights() -> None:
    net = model()
    given_scores = {"0.weight": torch.randn(10, 20), "2.weight": torch.randint(0, 50, (4, 10)), "other": torch.zeros(3)}
    masks = prune_(net, sparsity=0.25, score=given_scores)
    assert torch.equal(masks["0.weight"], lowest_by_hand(given_scores["0.weight"], 50))
    assert torch.equal(masks["2.weight"], lowest_by_hand(given_scores["2.weight"], 10))


def test_scores_of_a_tied_weight_may_have_any_of_its_names() -> None:
    net = nn.ModuleDict({"embedding": nn.Embedding(4, 3), "head": nn.Linear(3, 4)})
    net["head"].weight = net["embedding"].weight
    score = torch.arange(12.0).view(4, 3)
    masks = prune_(net, sparsity=0.5, score={"head.weight": score})
    assert torch.equal(masks["embedding.weight"], score >= 6)


def test_random_scores_do_not_depend_on_anything_but_the_seed() -> None:
    nets = [model() for _ in range(3)]
    state = torch.get_rng_state()
    one, other = (prune_(net, sparsity=0.5, score=partial(scores.random, seed=3)) for net in nets[:2])
    assert one == other
    assert one != prune_(nets[2], sparsity=0.5, score=partial(scores.random, seed=4))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("dim", [0, 1])
def test_whole_slices_go_under_a_channel_pattern(dim: int) -> None:
    net = nn.Linear(10, 6)
    norms = net.weight.detach().norm(dim=1 - dim)
    masks = prune_(net, sparsity=0.5, pattern=patterns.Channel(dim=dim))
    kept = lowest_by_hand(norms, net.weight.shape[dim] // 2)
    assert torch.equal(masks["weight"], kept.unsqueeze(1 - dim).expand(6, 10))


def test_no_sparsity_gives_masks_without_zeros() -> None:
    net = model()
    before = [bits(p) for p in net.parameters()]
    masks = prune_(net, sparsity=0)
    assert masks.num_zeros() == 0
    assert len(masks) == 2
    assert [bits(p) for p in net.parameters()] == before


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64], ids=str)
def test_weights_of_other_dtypes_are_ranked_by_magnitude(dtype: torch.dtype) -> None:
    net = nn.Linear(10, 6)
    net.weight = nn.Parameter(torch.randn(6, 10, dtype=dtype))
    magnitude = net.weight.detach().abs().double()
    masks = prune_(net, sparsity=0.5)
    assert torch.equal(masks["weight"], lowest_by_hand(magnitude, 30))


# ---- further calls


def test_further_calls_add_zeros_and_sparsity_counts_them_all() -> None:
    net = model()
    first = dict(prune_(net, sparsity=0.5, score=scores.random))
    before = {name: net.get_parameter(name).detach().clone() for name in first}
    masks = prune_(net, sparsity=0.75)
    for name, mask in masks.items():
        size = mask.numel()
        assert not bool((mask & ~first[name]).any())
        assert int((~mask).sum()) == size * 3 // 4
        rest = before[name].abs().masked_fill(~first[name], -1)
        assert torch.equal(mask, lowest_by_hand(rest, size * 3 // 4))


def test_ten_rounds_hold_one_mask_a_parameter_and_no_more_memory() -> None:
    net = nn.Linear(100, 100)
    held = []
    for step in range(1, 11):
        masks = prune_(net, sparsity=1 - 0.9**step, allocation=allocation.global_)
        held.append(masks.num_bytes())
        assert len(masks) == 1
    assert len(set(held)) == 1
    assert masks.num_zeros() == int((net.weight == 0).sum()) == 6513


def test_channels_that_are_masked_already_go_first_and_partly_masked_ones_stay_so() -> None:
    net = nn.Linear(6, 8)
    mask = torch.ones(8, 6, dtype=torch.bool)
    mask[5], mask[6, :3] = False, False
    with torch.no_grad():
        net.weight[0] = 1e-9
        net.weight[5] = 100.0
    Masks.from_dict(net, {"weight": mask})
    masks = prune_(net, sparsity=0.25, pattern=patterns.Channel(dim=0))
    wanted = mask.clone()
    wanted[0] = False
    assert torch.equal(masks["weight"], wanted)


def test_infinitely_bad_scores_are_not_taken_for_masked_units() -> None:
    net = nn.Linear(10, 4)
    masked = torch.arange(40).view(4, 10) >= 32
    Masks.from_dict(net, {"weight": ~masked})
    score = torch.ones(4, 10)
    score[:2] = -torch.inf
    masks = prune_(net, sparsity=0.25, score={"weight": score})
    gone = masked.clone()
    gone[0, :2] = True
    assert torch.equal(~masks["weight"], gone)


def test_scores_of_masked_entries_do_not_count_for_their_slice() -> None:
    net = nn.Linear(4, 3)
    kept = torch.ones(3, 4, dtype=torch.bool)
    kept[1, 2:] = False
    Masks.from_dict(net, {"weight": kept})
    score = torch.tensor([[1.0, 1.0, 1.0, 1.0], [0.1, 0.1, 9.0, 9.0], [1.0, 1.0, 1.0, 1.0]])
    masks = prune_(net, sparsity=1 / 3, score={"weight": score}, pattern=patterns.Channel(dim=0))
    assert masks["weight"].any(dim=1).tolist() == [True, False, True]


def test_unstructured_zeros_may_follow_channels() -> None:
    net = nn.Linear(6, 8)
    prune_(net, sparsity=0.5, pattern=patterns.Channel(dim=0))
    masks = prune_(net, sparsity=0.75)
    assert masks.num_zeros() == 36


def test_some_parameters_can_be_pruned_after_others() -> None:
    net = model()
    prune_(net, sparsity=0.5, include="0.*")
    masks = prune_(net, sparsity=0.25, include="2.weight")
    assert masks.sparsity("0.weight") == 0.5
    assert masks.sparsity("0.bias") == 0.5
    assert masks.sparsity("2.weight") == 0.25


# ---- optimizers


def test_optimizer_may_be_left_out_for_zeros_once() -> None:
    net = model()
    masks = prune_(net, sparsity=0.5)
    assert all(is_zero(net.get_parameter(name)[~mask]) for name, mask in masks.items())


def test_several_optimizers_may_be_passed() -> None:
    net = model()
    optimizers = [torch.optim.SGD(net[0].parameters(), lr=0.1), torch.optim.Adam(net[2].parameters())]
    assert len(prune_(net, optimizers, sparsity=0.5)) == 2


def test_lean_masks_have_no_words() -> None:
    masks = prune_(nn.Linear(64, 64), sparsity=0.5, lean=True)
    assert masks.num_bytes() == 512


# ---- wrong input


@dataclass(frozen=True)
class Rows(patterns.Pattern):
    """A pattern that fits matrices of ten columns only."""

    def unit_size(self, shape: torch.Size) -> int:
        if shape[-1] != 10:
            raise ShapeError("only ten columns.", shape=tuple(shape))
        return 10

    def reduce(self, score: Tensor) -> Tensor:
        return score.sum(dim=1)

    def expand(self, kept: Tensor, shape: torch.Size) -> Tensor:
        return kept.unsqueeze(1).expand(shape)


def nothing(units: Mapping[str, object], sparsity: float) -> dict[str, int]:
    return {}


def too_many(units: Mapping[str, object], sparsity: float) -> dict[str, int]:
    return dict.fromkeys(units, 10_000)


def nan_somewhere(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found = {name: weight.abs() for name, weight in weights.items()}
    found["2.weight"][1, 2] = torch.nan
    return found


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "sparsity of one": (
        {"sparsity": 1.0},
        InvalidInputError,
        r"sparsity must be a number in \[0, 1\)[\s\S]*1.0[\s\S]*fix",
    ),
    "sparsity above one": ({"sparsity": 90}, InvalidInputError, r"in \[0, 1\)[\s\S]*90"),
    "sparsity below zero": ({"sparsity": -0.1}, InvalidInputError, r"in \[0, 1\)"),
    "sparsity nan": ({"sparsity": math.nan}, InvalidInputError, r"in \[0, 1\)"),
    "sparsity as text": ({"sparsity": "0.5"}, InvalidInputError, r"in \[0, 1\)"),
    "nan scores": ({"score": nan_somewhere}, InvalidInputError, r"scores of '2.weight': some are NaN[\s\S]*1 of 40"),
    "score missing": (
        {"score": {"0.weight": torch.zeros(10, 20)}},
        InvalidInputError,
        r"no score for '2.weight'[\s\S]*0.weight[\s\S]*include",
    ),
    "score of another shape": (
        {"score": {"0.weight": torch.zeros(10, 20), "2.weight": torch.zeros(10, 4)}},
        ShapeError,
        r"scores of '2.weight' have another shape[\s\S]*\(10, 4\)[\s\S]*\(4, 10\)",
    ),
    "complex scores": (
        {"include": "2.weight", "score": {"2.weight": torch.zeros(4, 10, dtype=torch.complex64)}},
        InvalidInputError,
        r"scores of '2.weight' cannot be ranked[\s\S]*complex64",
    ),
    "scores on meta": (
        {"include": "2.weight", "score": {"2.weight": torch.zeros(4, 10, device="meta")}},
        InvalidInputError,
        r"scores of '2.weight' cannot be ranked[\s\S]*meta",
    ),
    "scores that are lists": (
        {"score": lambda weights: {name: weight.tolist() for name, weight in weights.items()}},
        InvalidInputError,
        r"scores of '0.weight' are no tensor[\s\S]*list[\s\S]*as_tensor",
    ),
    "scores of numpy": (
        {"score": lambda weights: {name: weight.numpy() for name, weight in weights.items()}},
        InvalidInputError,
        r"scores of '0.weight' are no tensor[\s\S]*ndarray",
    ),
    "score that takes other things": (
        {"score": lambda: {}},
        InvalidInputError,
        "score= is a function of the weights by name",
    ),
    "pattern that does not fit": (
        {"pattern": Rows()},
        ShapeError,
        r"cannot prune '0.weight': only ten columns[\s\S]*\(10, 20\)",
    ),
    "dim that does not exist": ({"pattern": patterns.Channel(dim=2)}, ShapeError, r"'0.weight'[\s\S]*no dim 2"),
    "allocation without an answer": (
        {"allocation": nothing},
        InvalidInputError,
        "no number of units to remove from '0.weight'",
    ),
    "allocation of nothing at all": (
        {"allocation": lambda units, sparsity: None},
        InvalidInputError,
        r"an allocation takes units by name and returns[\s\S]*NoneType",
    ),
    "allocation of fractions": (
        {"allocation": lambda units, sparsity: {name: each.num_units / 2 for name, each in units.items()}},
        InvalidInputError,
        r"no number of units to remove from '0.weight'[\s\S]*100\.0",
    ),
    "allocation of too many": ({"allocation": too_many}, InvalidInputError, r"from '0.weight'[\s\S]*10000[\s\S]*200"),
    "no sparsity": (
        {"sparsity": None},
        InvalidInputError,
        r"sparsity must be a number in \[0, 1\)[\s\S]*None[\s\S]*sparsity=0.9",
    ),
    "sparsity of another pattern": (
        {"pattern": patterns.NM(2, 4), "sparsity": 0.75},
        InvalidInputError,
        r"NM\(n=2, m=4, dim=1\) fixes the sparsity: 0\.5[\s\S]*asked: 0\.75[\s\S]*leave sparsity= out",
    ),
    "groups larger than the dim": (
        {"pattern": patterns.NM(16, 32)},
        ShapeError,
        r"cannot prune '0\.weight': NM\(n=16, m=32, dim=1\) does not fit: size 20 of dim 1 is not divisible by 32",
    ),
    "allocation of another number than the pattern's": (
        {"pattern": patterns.NM(1, 2), "allocation": allocation.erk},
        InfeasibleError,
        r"cannot prune '0\.weight': NM\(n=1, m=2, dim=1\) removes 100 of 200[\s\S]*allocation\.uniform",
    ),
    "sparsity of a tensor that is not there": (
        {"allocation": {"3.weight": 0.5}},
        InvalidInputError,
        r"'3\.weight' in the dictionary of sparsities[\s\S]*0\.weight, 2\.weight",
    ),
    "dict of sparsities that leaves one out": (
        {"allocation": {"0.weight": 0.5}, "sparsity": None},
        InvalidInputError,
        "no sparsity for '2.weight'",
    ),
    "every unit": ({"sparsity": 0.99}, InfeasibleError, r"every unit of '2.weight'"),
    "selector": ({"include": "3.weight"}, InvalidInputError, "matches no parameter"),
    "everything excluded": ({"exclude": "*"}, InvalidInputError, "left to mask"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_refused_before_anything_changes(case: str) -> None:
    options, error, text = WRONG[case]
    net = model()
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.randn(3, 20)).sum().backward()
    optimizer.step()
    before = snapshot(net, optimizer)
    with pytest.raises(error, match=text):
        prune_(net, optimizer, **{"sparsity": 0.5, **options})
    assert snapshot(net, optimizer) == before


UNCALLED: dict[str, tuple[object, str]] = {
    **{
        name: (score, rf"score=scores\.{name}\(model, (loss_fn|forward), batches\)")
        for name, score in scores.DATA_SCORES.items()
    },
    "synflow": (scores.synflow, r"score=scores\.synflow\(model, inputs, sparsity=…\)"),
    "bound": (partial(scores.snip, steps=1), r"score=scores\.snip\(model, loss_fn, batches\)"),
    "Movement": (scores.Movement, r"score=movement\.scores\(\) after it"),
}


@pytest.mark.parametrize("case", UNCALLED)
def test_score_that_was_to_be_called_first_is_refused_with_the_line_that_calls_it(case: str) -> None:
    score, line = UNCALLED[case]
    net = model()
    before = snapshot(net)
    with pytest.raises(InvalidInputError, match=rf"needs more than the weights\.\n  fix:   call it first: .*{line}$"):
        prune_(net, sparsity=0.5, score=score)
    assert snapshot(net) == before


def test_movement_that_is_passed_instead_of_its_scores_is_refused() -> None:
    net = model()
    movement = scores.Movement(net, torch.optim.SGD(net.parameters(), lr=0.1))
    with pytest.raises(InvalidInputError, match=r"score=movement\.scores\(\)"):
        prune_(net, sparsity=0.5, score=movement)


def test_scores_may_be_sparse_as_the_gradients_of_an_embedding_are() -> None:
    net = nn.Embedding(4, 3, sparse=True)
    net(torch.tensor([1, 3, 3])).sum().backward()
    assert prune_(net, sparsity=0.5, score={"weight": net.weight.grad})["weight"].sum(dim=1).tolist() == [0, 3, 0, 3]


def test_numbers_of_an_allocation_may_be_those_of_numpy() -> None:
    masks = prune_(model(), sparsity=0.5, allocation=lambda units, _: dict.fromkeys(units, np.int64(7)))
    assert masks.num_zeros() == 14


def test_nan_weights_have_no_magnitude() -> None:
    net = model()
    with torch.no_grad():
        net[2].weight[0, 0] = torch.nan
    before = snapshot(net)
    with pytest.raises(InvalidInputError, match=r"'2.weight': some are NaN"):
        prune_(net, sparsity=0.5)
    assert snapshot(net) == before


def test_fewer_zeros_than_there_are_is_infeasible() -> None:
    net = model()
    prune_(net, sparsity=0.8)
    before = snapshot(net)
    with pytest.raises(
        InfeasibleError,
        match=r"'0.weight' would keep units that are masked[\s\S]*160 of 200[\s\S]*100[\s\S]*a higher sparsity",
    ):
        prune_(net, sparsity=0.5)
    assert snapshot(net) == before


def test_optimizer_of_another_model_is_refused() -> None:
    net, other = model(), model()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    before = snapshot(net, other, optimizer)
    with pytest.raises(HolderError, match="holds no parameter of Sequential"):
        prune_(net, optimizer, sparsity=0.5)
    with pytest.raises(HolderError, match="str is not an optimizer"):
        prune_(net, "adam", sparsity=0.5)
    assert snapshot(net, other, optimizer) == before


def test_call_inside_inference_mode_is_refused() -> None:
    net = model()
    before = snapshot(net)
    with torch.inference_mode(), pytest.raises(InvalidInputError, match="inference_mode"):
        prune_(net, sparsity=0.5)
    assert snapshot(net) == before


def test_model_on_meta_has_no_weights_to_rank() -> None:
    with pytest.raises(InvalidInputError, match="cannot be ranked"):
        prune_(model().to("meta"), sparsity=0.5)


def test_wrapped_model_is_refused_by_name(tmp_path: Any) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        net = nn.parallel.DistributedDataParallel(model())
        before = snapshot(net.module)
        with pytest.raises(UnsupportedError, match="DistributedDataParallel"):
            prune_(net, sparsity=0.5)
        assert snapshot(net.module) == before
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("thing", [nn.Parameter(torch.zeros(2, 2)), None, "model"], ids=str)
def test_what_is_no_module_is_refused(thing: object) -> None:
    with pytest.raises(InvalidInputError, match="module"):
        prune_(thing, sparsity=0.5)


def test_masks_of_the_caller_are_not_kept() -> None:
    net = nn.Linear(6, 5)
    mask = half((5, 6))
    masks = Masks.from_dict(net, {"weight": mask})
    mask.fill_(True)
    assert torch.equal(masks["weight"], half((5, 6)))


@pytest.mark.parametrize("kind", ["torch prune", "weight norm"])
def test_weights_that_are_computed_are_listed_as_skipped_and_count(kind: str) -> None:
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5))
    if kind == "torch prune":
        torch.nn.utils.prune.l1_unstructured(model[0], "weight", 0.5)
        name, maker = "0.weight_orig", "L1Unstructured"
    else:
        nn.utils.parametrizations.weight_norm(model[0])
        name, maker = "0.parametrizations.weight.original1", "WeightNorm"
    masks = prune_(model, sparsity=0.8)
    assert f"it is part of {maker}" in masks.skipped[name]
    assert name in repr(masks)
    assert masks.sparsity() < 120 / 700
    assert prune_(model, sparsity=0.9, exclude="0.*").skipped == {}
