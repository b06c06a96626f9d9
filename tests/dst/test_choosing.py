"""From scores to masks: every pattern and allocation that can change freely, and the counts that it keeps."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from secateur import InvalidInputError, ShapeError, scores
from secateur.allocation import uniform
from secateur.dst.choosing import Chooser, rising
from secateur.dst.moment import Moment
from secateur.dst.ratings import gradient
from secateur.patterns import PATTERNS, Unstructured

FREE = {name: pattern for name, pattern in PATTERNS.items() if pattern.sparsity is None}
COUNTS = st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1)


@given(COUNTS)
def test_rising_counts_never_fall_and_keep_the_total(counts) -> None:
    gone = {name: before for name, (before, _) in counts.items()}
    asked = {name: after for name, (_, after) in counts.items()}
    found = rising(gone, asked)
    assert all(found[name] >= gone[name] for name in gone)
    assert all(found[name] <= max(gone[name], asked[name]) for name in gone)
    assert sum(found.values()) == max(sum(asked.values()), sum(gone.values()))


@pytest.mark.parametrize("pattern", FREE.values(), ids=FREE)
@pytest.mark.parametrize("fraction", [0.0, 0.3, 1.0])
def test_units_are_exchanged_whole_and_as_many_come_as_go(pattern, fraction: float) -> None:
    weight, slope = torch.randn(32, 32), torch.randn(32, 32)
    num_units = pattern.reduce(weight).numel()
    kept_units = torch.rand(num_units) < 0.4
    kept = pattern.expand(kept_units, weight.shape)
    moment = Moment({"w": weight * kept}, {"w": slope}, step=1)
    chooser = Chooser(scores.magnitude, gradient, uniform, pattern)
    chosen = chooser.choose(moment, {"w": kept}, None, fraction)
    after = chosen.get("w", kept)
    new = pattern.reduce(after.float()) > 0
    assert torch.equal(pattern.expand(new, weight.shape), after), "units are whole"
    count = min(round(fraction * int(kept_units.sum())), int((~kept_units).sum()))
    assert int(new.sum()) == int(kept_units.sum())
    assert int((new & ~kept_units).sum()) == count
    size = pattern.reduce(slope.abs()).masked_fill(kept_units, -1.0)
    assert set((new & ~kept_units).nonzero().flatten().tolist()) == set(size.topk(count).indices.tolist())
    size = pattern.reduce((weight * kept).abs()).masked_fill(~kept_units, torch.inf)
    assert set((kept_units & ~new).nonzero().flatten().tolist()) == set((-size).topk(count).indices.tolist())


def test_zeros_inside_a_kept_unit_stay_when_the_unit_does() -> None:
    rows = PATTERNS["rows"]
    kept = torch.tensor([[True, False], [True, True], [False, False]])
    weight = torch.tensor([[5.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    moment = Moment({"w": weight}, {"w": torch.ones(3, 2)}, step=1)
    chosen = Chooser(scores.magnitude, gradient, uniform, rows).choose(moment, {"w": kept}, None, 0.5)
    assert chosen["w"].tolist() == [[True, False], [False, False], [True, True]]


def chosen_by(drop, grow=gradient, gradients=None):
    moment = Moment({"w": torch.ones(2, 2)}, gradients, step=1)
    kept = {"w": torch.tensor([[True, True], [False, False]])}
    return Chooser(drop, grow, uniform, Unstructured()).choose(moment, kept, None, 0.5)


def test_rating_of_another_shape_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"the scores of 'w' must be(.|\n)*\(4,\)"):
        chosen_by(lambda moment: {"w": torch.ones(4)}, gradients={"w": torch.ones(2, 2)})


def test_rating_that_forgets_a_weight_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="gave no scores for 'w'"):
        chosen_by(lambda moment: {}, gradients={"w": torch.ones(2, 2)})


def test_rating_that_looks_at_gradients_that_were_not_kept_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"they were not kept(.|\n)*uses_gradients=True"):
        chosen_by(scores.magnitude)


def test_weight_without_gradient_stays_as_it_is() -> None:
    assert chosen_by(scores.magnitude, gradients={}) == {}


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.float32, torch.float64, torch.complex64], ids=str
)
def test_sizes_are_those_that_the_ratings_give_whatever_the_numbers(dtype: torch.dtype) -> None:
    kept = torch.rand(40, 50) < 0.3
    weight, slope = ((torch.randn(40, 50) + 1j * torch.randn(40, 50)).to(torch.complex64) for _ in range(2))
    weight, slope = (each if dtype.is_complex else each.real.to(dtype) for each in (weight, slope))
    weight = torch.where(kept, weight, torch.zeros_like(weight))
    moment = Moment({"w": weight}, {"w": slope}, step=1)
    found = [
        Chooser(drop, grow, uniform, Unstructured()).choose(moment, {"w": kept}, sparsity, 0.3)["w"]
        for drop, grow in ((scores.magnitude, gradient), (lambda m: scores.magnitude(m), lambda m: gradient(m)))
        for sparsity in (None, 0.9)
    ]
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])
    assert not torch.equal(found[0], found[1])
