"""Complex numbers are seen in pairs of numbers, whose rows must begin at even places in memory."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from secateur.graph import analyze
from secateur.shrink import plan_of


class Turned(nn.Module):
    """Heads, each with columns that are turned as complex numbers behind columns that are not."""

    def __init__(self, plain: int, copied: bool) -> None:
        super().__init__()
        self.plain, self.turned, self.copied = plain, 4, copied
        self.stem, self.head = nn.Linear(4, 3 * (plain + 4)), nn.Linear(3 * (plain + 4), 3)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.stem(x).view(x.shape[0], -1, self.plain + self.turned)
        plain, turned = heads.split([self.plain, self.turned], -1)
        pairs = turned.unflatten(-1, (-1, 2))
        numbers = torch.view_as_complex(pairs.contiguous() if self.copied else pairs)
        turned = torch.view_as_real(numbers * numbers.abs()).flatten(-2)
        return self.head(torch.cat([plain, turned], -1).flatten(1))


@pytest.mark.parametrize("copied", [False, True])
def test_rows_of_complex_numbers_stay_even_apart_and_heads_can_go(copied: bool) -> None:
    torch.manual_seed(0)
    model, x = Turned(6, copied).double(), torch.randn(2, 4, dtype=torch.float64)
    coupling = analyze(model, x)
    assert [len(group.units) for group in coupling.groups] == ([3, 6, 2] if copied else [3])
    for group in coupling.groups:
        plan = plan_of(model, coupling, group.units[:1])
        smaller, zeroed = plan.apply_(copy.deepcopy(model)), plan.removed_zeroed_(copy.deepcopy(model))
        torch.testing.assert_close(smaller(x), zeroed(x))
