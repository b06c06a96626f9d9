from __future__ import annotations

import pytest
import torch

from secateur._errors import InfeasibleError
from secateur.allocation import Units, uniform


def units(**sizes: int) -> dict[str, Units]:
    return {name: Units(torch.rand(n), torch.Size([n])) for name, n in sizes.items()}


@pytest.mark.parametrize(
    ("count", "sparsity", "removed"),
    [(17, 0.4, 7), (2, 0.6, 1), (10, 0.9, 9), (100, 0.29, 29), (5, 0.5, 2), (7, 0.5, 4), (3, 0.0, 0), (0, 0.9, 0)],
)
def test_uniform_rounds_to_the_nearest_count(count: int, sparsity: float, removed: int) -> None:
    assert uniform(units(a=count), sparsity) == {"a": removed}


def test_uniform_counts_units_not_entries() -> None:
    rows = Units(torch.rand(4), torch.Size([4, 100]), 100)
    assert uniform({"a": rows}, 0.5) == {"a": 2}


def test_uniform_refuses_to_empty_a_tensor() -> None:
    with pytest.raises(InfeasibleError, match=r"sparsity 0\.9 would remove every unit of 'b'\.\n  units: 3"):
        uniform(units(a=10, b=3, c=1), 0.9)
