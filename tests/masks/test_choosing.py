"""Which masks come of a score, an allocation and a pattern; every one of each with every other."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache, partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from secateur import InfeasibleError, Masks, SecateurError, allocation, patterns, prune_, scores
from secateur.allocation import ALLOCATIONS, Allocation, PerTensor
from secateur.patterns import NM, PATTERNS, Block, Channel, Pattern
from secateur.scores import DATA_SCORES, SCORES
from tests.masks.oracles import snapshot

# ---- every score, pattern and allocation with every other

GIVEN = {
    "ties": lambda weight: (weight * 20).round().abs(),
    "zeros of both signs": lambda weight: torch.where(weight > 0, 0.0, -0.0),
    "infinite": lambda weight: torch.where(weight > 0.05, torch.inf, weight),
    "negative": lambda weight: weight - 10.0,
}
"""Scores that are given by name."""


def net() -> nn.Sequential:
    """Sizes that divide by 2, 3, 4 and 16, and sizes that do not."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 17, 3), nn.ReLU(), nn.Flatten(), nn.Linear(68, 32), nn.ReLU(), nn.Linear(32, 5))


@cache
def scored(name: str) -> Mapping[str, Tensor]:
    """The scores of the net by their name in one of the tables."""
    model = net()
    weights = {name: p.detach() for name, p in model.named_parameters() if p.dim() > 1}
    if name in GIVEN:
        return {key: GIVEN[name](weight) for key, weight in weights.items()}
    if name in SCORES:
        return SCORES[name](weights)
    batches = [(torch.randn(6, 3, 4, 4), torch.arange(6) % 5) for _ in range(2)]
    return DATA_SCORES[name](model, lambda m, batch: nn.functional.cross_entropy(m(batch[0]), batch[1]), batches)


@pytest.mark.parametrize("score", [*SCORES, *DATA_SCORES, *GIVEN])
@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS.keys())
@pytest.mark.parametrize("allocate", ALLOCATIONS.values(), ids=ALLOCATIONS.keys())
def test_every_score_pattern_and_allocation_go_together_or_are_refused_by_name(
    score: str, pattern: Pattern, allocate: Allocation
) -> None:
    model, rated = net(), scored(score)
    before = snapshot(model)
    asked = 0.6 if pattern.sparsity is None else None
    try:
        masks, refusal = prune_(model, sparsity=asked, score=rated, pattern=pattern, allocation=allocate), ""
    except InfeasibleError as error:
        masks, refusal = Masks(model), str(error)
    if not refusal:
        assert_chosen(masks, rated, pattern, allocate, pattern.sparsity or 0.6)
        return
    assert pattern.sparsity is not None
    assert not settings(allocate)["each"]
    assert re.match(rf"cannot prune '\d\.weight': {re.escape(repr(pattern))} removes \d+ of \d+ entries", refusal)
    assert snapshot(model) == before


def assert_chosen(
    masks: Masks, rated: Mapping[str, Tensor], pattern: Pattern, allocate: object, sparsity: float
) -> None:
    """The counts are exact, the pattern is obeyed, and the lowest units have gone, of equal ones the first."""
    assert list(masks) == [name for name, score in rated.items() if fits(score.shape, pattern)]
    kept = {name: in_units(mask, pattern) for name, mask in masks.items()}
    removed = [int((~units).sum()) for units in kept.values()]
    each = [round(sparsity * units.numel()) for units in kept.values()]
    if settings(allocate)["each"] and all(
        count < units.numel() for count, units in zip(each, kept.values(), strict=True)
    ):
        assert removed == each
    else:
        assert sum(removed) == (
            sum(each) if settings(allocate)["each"] else round(sparsity * sum(map(len, kept.values())))
        )
        assert all(bool(units.any()) for units in kept.values())
    for name, units in kept.items():
        scores_of_units = pattern.reduce(rated[name])
        groups = scores_of_units.view(-1, pattern.m) if isinstance(pattern, NM) else scores_of_units.view(1, -1)
        chosen = units.view(groups.shape)
        assert chosen.sum(dim=1).eq(chosen[:1].sum()).all()
        for values, stay in zip(groups.tolist(), chosen.tolist(), strict=True):
            order = sorted(range(len(values)), key=lambda i: values[i])
            gone = len(stay) - sum(stay)
            assert [i for i, keep in enumerate(stay) if not keep] == sorted(order[:gone])


def settings(allocate: object) -> dict[str, int | bool]:
    """Whether each tensor is rounded by itself, and how many units stay in it."""
    bare = allocate.func if isinstance(allocate, partial) else allocate
    protected = allocate.keywords["min_units"] if isinstance(allocate, partial) else 1
    return {"each": bare is allocation.uniform or isinstance(bare, PerTensor), "min_units": protected}


def fits(shape: torch.Size, pattern: Pattern) -> bool:
    """Whether a tensor has the dims of a pattern, and groups come out even."""
    if isinstance(pattern, Block):
        return len(pattern.shape) <= len(shape)
    if not isinstance(pattern, Channel | NM):
        return True
    return pattern.dim in range(-len(shape), len(shape)) and not (
        isinstance(pattern, NM) and shape[pattern.dim] % pattern.m
    )


def in_units(mask: Tensor, pattern: Pattern) -> Tensor:
    """Which units a mask keeps; each is kept or removed whole."""
    if isinstance(pattern, NM):
        return mask.movedim(pattern.dim, -1).reshape(-1)
    units = []
    for tile in tiles(mask.shape, pattern):
        entries = set(mask[tile].flatten().tolist())
        assert len(entries) == 1
        units.append(entries.pop())
    return torch.tensor(units, dtype=torch.bool)


def tiles(shape: torch.Size, pattern: Pattern) -> list[tuple[slice, ...]]:
    """The units as slices, in row-major order."""
    sizes = [1] * len(shape)
    if isinstance(pattern, Channel):
        sizes = [1 if i == pattern.dim % len(shape) else size for i, size in enumerate(shape)]
    elif isinstance(pattern, Block):
        sizes[: len(pattern.shape)] = pattern.shape
    else:
        assert pattern == patterns.Unstructured()
    counts = [-(-whole // size) if size else 0 for whole, size in zip(shape, sizes, strict=True)]
    starts = torch.cartesian_prod(*map(torch.arange, counts)).view(math.prod(counts), len(shape)).tolist()
    return [tuple(slice(i * size, (i + 1) * size) for i, size in zip(start, sizes, strict=True)) for start in starts]


# ---- whatever the shapes, scores and sparsity

VALUES = [-math.inf, -2.0, -1.0, -0.0, 0.0, 1e-30, 0.5, 1.0, 2.0, math.inf]
SHAPES = st.lists(st.integers(1, 9), min_size=1, max_size=4).filter(lambda shape: math.prod(shape) <= 400).map(tuple)
OTHER_PATTERNS = [
    NM(1, 2),
    NM(2, 3, dim=0),
    NM(3, 5, dim=-1),
    Block((2, 3)),
    Block((3,)),
    Block((1, 1, 2)),
    Channel(-1),
]
OTHER_ALLOCATIONS = [
    partial(allocation.uniform, min_units=1),
    partial(allocation.global_, min_units=2),
    PerTensor({"w*": 0.25}),
]


@given(
    shapes=st.lists(SHAPES, min_size=1, max_size=3),
    seed=st.integers(0, 2**16),
    some_nan=st.integers(0, 9).map(lambda number: number == 0),
    pattern=st.sampled_from([*PATTERNS.values(), *OTHER_PATTERNS]),
    allocate=st.sampled_from([*ALLOCATIONS.values(), *OTHER_ALLOCATIONS]),
    sparsity=st.floats(0, 1, exclude_max=True),
)
def test_masks_are_exact_or_an_error_says_why_not(
    shapes: list[tuple[int, ...]],
    seed: int,
    some_nan: bool,
    pattern: Pattern,
    allocate: Allocation,
    sparsity: float,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.tensor(VALUES)
    model = nn.ParameterDict({f"w{i}": nn.Parameter(torch.ones(shape)) for i, shape in enumerate(shapes)})
    rated = {
        name: values[torch.randint(len(VALUES), weight.shape, generator=generator)]
        for name, weight in model.named_parameters()
    }
    if some_nan:
        rated["w0"].view(-1)[0] = math.nan
    if pattern.sparsity is not None:  # how others are refused is the subject of the test above
        sparsity, allocate = pattern.sparsity, allocation.uniform
    if allocate == PerTensor({"w*": 0.25}):
        sparsity = 0.25
    before, reasons = snapshot(model), refusals(rated, pattern, allocate, sparsity)
    if reasons:
        with pytest.raises(SecateurError, match="|".join(reasons)):
            prune_(model, sparsity=sparsity, score=rated, pattern=pattern, allocation=allocate, include="*")
        assert snapshot(model) == before
        return
    masks = prune_(model, sparsity=sparsity, score=rated, pattern=pattern, allocation=allocate, include="*")
    assert_chosen(masks, rated, pattern, allocate, sparsity)


def refusals(rated: Mapping[str, Tensor], pattern: Pattern, allocate: Allocation, sparsity: float) -> list[str]:
    """What the choice cannot but be refused for."""
    fitting = [score for score in rated.values() if fits(score.shape, pattern)]
    if not fitting:
        return ["does not fit"]
    parts = [[score[tile] for tile in tiles(score.shape, pattern)] for score in fitting if not isinstance(pattern, NM)]
    sizes = [len(units) for units in parts] or [score.numel() for score in fitting]
    found = []
    if any(bool(score.isnan().any()) for score in fitting) or any(
        bool((part == math.inf).any()) and bool((part == -math.inf).any()) for units in parts for part in units
    ):
        found.append("some are NaN")
    each, protected = [round(sparsity * size) for size in sizes], settings(allocate)["min_units"]
    if isinstance(allocate, PerTensor) or allocate is allocation.uniform:
        if any(count == size for count, size in zip(each, sizes, strict=True)):
            found.append("would remove every unit")
    elif (sum(each) if settings(allocate)["each"] else round(sparsity * sum(sizes))) > sum(
        max(size - protected, 0) for size in sizes
    ):
        found.append("cannot remove")
    return found


# ---- patterns, one by one


def test_two_of_four_inputs_stay_and_what_does_not_divide_is_skipped() -> None:
    net = nn.ModuleDict({"a": nn.Linear(30, 64), "b": nn.Conv2d(3, 16, 3), "c": nn.Conv2d(16, 8, 3)})
    magnitude = net["c"].weight.detach().abs()
    masks = prune_(net, pattern=patterns.NM(2, 4))
    order = magnitude.view(8, 4, 4, 9).argsort(dim=2, stable=True)
    lowest = torch.zeros(8, 4, 4, 9, dtype=torch.bool).scatter_(2, order[:, :, :2], True)
    assert list(masks) == ["c.weight"]
    assert torch.equal(masks["c.weight"], ~lowest.view(8, 16, 3, 3))
    assert masks.skipped == {
        "a.weight": "size 30 of dim 1 is not divisible by 4",
        "b.weight": "size 3 of dim 1 is not divisible by 4",
    }
    assert masks.sparsity() == 576 / (30 * 64 + 3 * 16 * 9 + 16 * 8 * 9)
    assert masks.sparsity("c.weight") == 0.5
    assert re.search(
        r"in 1 tensor, 2 skipped\n.*\n  a\.weight +\(64, 30\) +0 zeros +0\.00 %  skipped: size 30", str(masks)
    )
    assert "not masked: a.bias, b.bias, c.bias" in str(masks)


def test_what_was_skipped_counts_until_it_is_masked() -> None:
    net = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 4))
    masks = prune_(net, pattern=patterns.NM(2, 4))
    assert masks.sparsity() == 8 / 40
    prune_(net, sparsity=0.75, include="0.weight")
    assert masks.sparsity() == (8 + 18) / 40
    assert "skipped" not in str(masks)


def test_parameters_of_other_dims_than_the_pattern_are_skipped() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, 4))
    masks = prune_(net, sparsity=0.5, pattern=patterns.Block((1, 1, 3, 3)))
    assert masks.skipped == {"2.weight": "there is no dim 2"}
    assert masks["0.weight"].flatten(2).any(dim=2).sum() == 6
    assert masks["0.weight"].flatten(2).all(dim=2).sum() == 6


def test_blocks_at_the_edge_are_smaller_and_listed() -> None:
    net = nn.Sequential(nn.Linear(8, 24), nn.Linear(24, 16))
    masks = prune_(net, sparsity=0.5, pattern=patterns.Block((16, 1)))
    assert masks.remainders == {"0.weight": "size 24 of dim 0 is not divisible by 16"}
    assert masks.skipped == {}
    assert re.search(r"0\.weight.*  some units are smaller: size 24 of dim 0 is not divisible by 16\n", str(masks))
    groups = [masks["0.weight"][:16], masks["0.weight"][16:]]
    assert all(bool((group == group[:1]).all()) for group in groups)
    assert sum(int((~group[0]).sum()) for group in groups) == 8


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (
            patterns.NM(2, 4),
            r"cannot prune 'a\.weight': NM\(n=2, m=4, dim=1\) does not fit: size 30[\s\S]*others: b\.weight",
        ),
        (patterns.Block((32, 1)), r"cannot prune 'b\.weight': Block\(shape=\(32, 1\)\) does not fit: size 16 of dim 0"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_if_that_is_asked_for(pattern: patterns.Pattern, text: str) -> None:
    net = nn.ModuleDict({"a": nn.Linear(30, 64), "b": nn.Conv2d(3, 16, 3), "c": nn.Linear(64, 64)})
    before = snapshot(net)
    with pytest.raises(ValueError, match=text):
        prune_(net, sparsity=0.5, pattern=pattern, strict=True)
    assert snapshot(net) == before
    masks = prune_(net, sparsity=0.5, pattern=pattern, strict=True, exclude=["a.weight", "b.weight"])
    assert masks.num_zeros() == 2048


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.float64, torch.int16, torch.bool], ids=str
)
@pytest.mark.parametrize("pattern", [patterns.Unstructured(), NM(), Block((2, 2)), Channel()], ids=str)
def test_scores_may_be_numbers_of_any_kind(pattern: Pattern, dtype: torch.dtype) -> None:
    rated = {"weight": torch.randint(0, 6, (4, 8)).to(dtype)}
    masks = prune_(nn.Linear(8, 4), sparsity=0.5, score=rated, pattern=pattern)
    assert_chosen(masks, {"weight": rated["weight"].double()}, pattern, allocation.uniform, 0.5)


def test_sparsities_may_be_a_dict() -> None:
    net = nn.Sequential(nn.Linear(20, 10), nn.ReLU(), nn.Linear(10, 4))
    masks = prune_(net, allocation={"0": 0.5, "2.weight": 0.25})
    assert (masks.sparsity("0.weight"), masks.sparsity("2.weight")) == (0.5, 0.25)
    masks = prune_(net, sparsity=0.75, allocation={"2": 0.5})
    assert (masks.sparsity("0.weight"), masks.sparsity("2.weight")) == (0.75, 0.5)


def test_allocation_that_asks_for_what_the_pattern_has_goes_with_it() -> None:
    net = nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 8))
    for allocate in (allocation.uniform, {"*": 0.5}, allocation.erk, allocation.global_):
        masks = prune_(net, sparsity=0.5, pattern=patterns.NM(2, 4), include="0.weight", allocation=allocate)
        assert masks.sparsity() == 0.5


def test_groups_may_lose_more_in_a_further_call() -> None:
    net = nn.Linear(8, 6)
    magnitude = net.weight.detach().abs()
    first = prune_(net, pattern=patterns.NM(2, 4))["weight"]
    assert torch.equal(prune_(net, pattern=patterns.NM(2, 4))["weight"], first)
    second = prune_(net, pattern=patterns.NM(1, 4))["weight"]
    assert torch.equal(second.view(6, 2, 4).to(torch.int8).argmax(dim=2), magnitude.view(6, 2, 4).argmax(dim=2))
    assert second.sum() == 12


def test_group_that_has_lost_too_much_already_is_refused() -> None:
    net = nn.Linear(8, 2)
    mask = torch.ones(2, 8, dtype=torch.bool)
    mask[1, 4:7] = False
    Masks.from_dict(net, {"weight": mask})
    before = snapshot(net)
    with pytest.raises(
        InfeasibleError,
        match=r"'weight' would keep units that are masked[\s\S]*3 of 16[\s\S]*but kept: 1[\s\S]*remove\(\) first$",
    ):
        prune_(net, pattern=patterns.NM(2, 4))
    assert snapshot(net) == before


def test_lamp_is_its_score_with_a_global_allocation() -> None:
    net = nn.Sequential(nn.Linear(20, 10), nn.ReLU(), nn.Linear(10, 4))
    before = {name: net.get_parameter(name).detach().double().flatten().square() for name in ("0.weight", "2.weight")}
    masks = prune_(net, sparsity=0.6, score=scores.lamp, allocation=allocation.global_)
    rated = []
    for name, values in before.items():
        squares = sorted(enumerate(values.tolist()), key=lambda pair: pair[1])
        rated += [(square / sum(s for _, s in squares[i:]), name, place) for i, (place, square) in enumerate(squares)]
    assert {(name, place) for _, name, place in sorted(rated)[:144]} == {
        (name, place) for name in masks for place in (~masks[name]).flatten().nonzero().flatten().tolist()
    }
