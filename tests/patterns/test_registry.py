from __future__ import annotations

import pytest
import torch

from secateur import patterns
from secateur._units import Units
from secateur.patterns import PATTERNS, Pattern

every_pattern = pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS.keys())
every_shape = pytest.mark.parametrize("shape", [(4, 6), (4, 2, 3, 3), (1, 1), (2, 0)], ids=str)


@every_pattern
@every_shape
def test_pattern_units_make_up_the_tensor(pattern: Pattern, shape: tuple[int, ...]) -> None:
    size = torch.Size(shape)
    units = Units(pattern.reduce(torch.rand(size)), size, pattern.unit_size(size))
    covered = torch.zeros(size, dtype=torch.int64)
    for i in range(units.num_units):
        mask = pattern.expand(torch.arange(units.num_units) == i, size)
        assert mask.count_nonzero() == units.size
        covered += mask
    assert covered.eq(1).all()


@every_pattern
def test_pattern_scores_a_unit_by_its_own_entries(pattern: Pattern) -> None:
    score = torch.rand(4, 6) - 0.5
    before = pattern.reduce(score)
    for i in range(before.numel()):
        raised = score + pattern.expand(torch.arange(before.numel()) == i, score.shape)
        after = pattern.reduce(raised)
        assert after[i] > before[i]
        assert after.ne(before).count_nonzero() == 1


@every_pattern
def test_pattern_leaves_scores_alone(pattern: Pattern) -> None:
    score = torch.randn(4, 6)
    before, version = score.clone(), score._version
    pattern.reduce(score)
    assert torch.equal(score, before)
    assert score._version == version


@every_pattern
def test_pattern_is_a_value_that_its_repr_makes_again(pattern: Pattern) -> None:
    again = eval(repr(pattern), vars(patterns))
    assert again == pattern
    assert hash(again) == hash(pattern)
