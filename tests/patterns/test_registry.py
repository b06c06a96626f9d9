"""What every pattern promises."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from secateur import patterns
from secateur._errors import ShapeError
from secateur._units import Units
from secateur.patterns import PATTERNS, Pattern

SHAPES = [(4, 8), (4, 6), (32, 4), (17, 5), (4, 4, 3, 3), (6, 3, 1, 1), (1, 1), (2, 0), (7,), ()]

every_pattern = pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS.keys())
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


@every_pattern
@every_shape
def test_pattern_units_make_up_the_tensor_or_it_is_said_why_not(pattern: Pattern, shape: tuple[int, ...]) -> None:
    size = torch.Size(shape)
    if pattern.misfit(size):
        for method, argument in ((pattern.unit_size, size), (pattern.reduce, torch.rand(size))):
            with pytest.raises(ShapeError, match=pattern.misfit(size)):
                method(argument)
        with pytest.raises(ShapeError, match=pattern.misfit(size)):
            pattern.expand(torch.ones(1, dtype=torch.bool), size)
        return
    units = Units(pattern.reduce(torch.rand(size)), size, pattern.unit_size(size))
    covered = torch.zeros(size, dtype=torch.int64)
    smaller = 0
    for i in range(units.num_units):
        mask = pattern.expand(torch.arange(units.num_units) == i, size)
        assert mask.is_contiguous()
        assert min(units.size, 1) <= mask.count_nonzero() <= units.size
        smaller += int(mask.count_nonzero() < units.size)
        covered += mask
    assert covered.eq(1).all()
    assert bool(smaller) == bool(pattern.remainder(size) and size.numel())


@every_pattern
def test_pattern_fits_a_tensor(pattern: Pattern) -> None:
    assert any(not pattern.misfit(torch.Size(shape)) and not pattern.remainder(torch.Size(shape)) for shape in SHAPES)


@every_pattern
@pytest.mark.parametrize("shape", [(4, 8), (17, 4)])
def test_pattern_scores_a_unit_by_its_own_entries(pattern: Pattern, shape: tuple[int, ...]) -> None:
    score = torch.rand(shape) - 0.5
    before = pattern.reduce(score)
    for i in range(before.numel()):
        raised = score + pattern.expand(torch.arange(before.numel()) == i, score.shape)
        after = pattern.reduce(raised)
        assert after[i] > before[i]
        assert after.ne(before).count_nonzero() == 1


@every_pattern
@given(data=st.data())
def test_pattern_keeps_the_highest_units_that_it_may(pattern: Pattern, data: st.DataObject) -> None:
    values = st.sampled_from([-torch.inf, -1.0, -0.0, 0.0, 0.5, 1.0, 2.0, torch.inf])
    scores = torch.tensor(data.draw(st.lists(values, max_size=20)))
    num_units = scores.numel()
    if pattern.sparsity is None:
        count = data.draw(st.integers(0, num_units))
    else:
        assume(num_units % 4 == 0)
        count = round(num_units * pattern.sparsity)
    kept = pattern.choose(scores, count)
    assert kept.shape == scores.shape
    assert kept.dtype == torch.bool
    assert num_units - int(kept.count_nonzero()) == count


@every_pattern
def test_pattern_leaves_scores_alone(pattern: Pattern) -> None:
    score = torch.randn(4, 8)
    before, version = score.clone(), score._version
    units = pattern.reduce(score)
    pattern.choose(units, units.numel() // 2)
    assert torch.equal(score, before)
    assert score._version == version


@every_pattern
def test_pattern_is_a_value_that_its_repr_makes_again(pattern: Pattern) -> None:
    again = eval(repr(pattern), vars(patterns))
    assert again == pattern
    assert hash(again) == hash(pattern)
