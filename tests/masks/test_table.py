from __future__ import annotations

import torch

from secateur.masks.bits import Bits
from secateur.masks.table import table


def test_table_lines_up_names_shapes_counts_and_shares() -> None:
    masks = {
        "encoder.0.weight": torch.arange(2000).view(40, 50) >= 1234,
        "fc.weight": torch.ones(2, 3, dtype=torch.bool),
    }
    bits = {name: Bits.of(mask, torch.zeros(mask.shape)) for name, mask in masks.items()}
    assert table(bits, [f"layer{i}.bias" for i in range(8)]).splitlines() == [
        "Masks: 1,234 of 2,006 weights are zero (61.52 %) in 2 tensors",
        "  encoder.0.weight  (40, 50)  1,234 zeros  61.70 %",
        "  fc.weight         (2, 3)        0 zeros   0.00 %",
        "  not masked: layer0.bias, layer1.bias, layer2.bias, layer3.bias, layer4.bias, layer5.bias and 2 more",
    ]


def test_table_of_no_masks_has_one_line() -> None:
    assert table({}, []) == "Masks: 0 of 0 weights are zero (0.00 %) in 0 tensors"


def test_table_of_an_empty_tensor_has_no_share() -> None:
    mask = torch.ones(0, 3, dtype=torch.bool)
    assert table({"w": Bits.of(mask, torch.zeros(0, 3))}, []).splitlines()[1] == "  w  (0, 3)  0 zeros  0.00 %"
