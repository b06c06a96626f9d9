"""Groups of unequal widths: brought to one shape for few rows, without a trace of it in the outputs."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from secateur.runtime.formats import LINEAR_FORMATS, grouped

GROUPED = LINEAR_FORMATS["grouped"]


def weight_of(widths: list[int], inputs: int = 40) -> tuple[Tensor, list[Tensor]]:
    """A weight whose groups of 32 outputs read so many inputs each, and which those are."""
    torch.manual_seed(0)
    columns = [torch.randperm(inputs)[:width].sort().values for width in widths]
    weight = torch.zeros(32 * len(widths), inputs)
    for i, own in enumerate(columns):
        weight[32 * i : 32 * (i + 1), own] = torch.randn(32, len(own))
    return weight, columns


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_what_a_group_does_not_read_does_not_reach_its_outputs(rows: int) -> None:
    weight, columns = weight_of([20, 16, 18])
    product = GROUPED.bind(GROUPED.pack(weight, torch.float32), weight.shape, None, False)
    for column in range(40):
        x = torch.randn(rows, 40)
        x[:, column] = float("nan")
        y = product(x)
        for i, own in enumerate(columns):
            assert y[:, 32 * i : 32 * (i + 1)].isnan().all() == (column in own)


@pytest.mark.parametrize(
    ("widths", "is_one"), [([20, 20], True), ([20, 16, 18], True), ([36, 4, 4], False), ([5, 0], False)]
)
def test_groups_are_brought_to_one_shape_where_little_is_wasted(widths: list[int], is_one: bool) -> None:
    weight, _ = weight_of(widths)
    parts, x = GROUPED.pack(weight, torch.float32), torch.randn(3, 40)
    with patch.object(grouped, "_product_of_all", wraps=grouped._product_of_all) as at_once:
        y = GROUPED.bind(parts, weight.shape, None, False)(x)
    assert at_once.called == is_one
    torch.testing.assert_close(y, x @ weight.T, rtol=1e-4, atol=1e-4)
