from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from secateur import InvalidInputError
from secateur.masks.bits import Bits
from secateur.masks.saving import from_state, to_state
from tests.masks.oracles import half


def state(**shapes: tuple[int, ...]) -> dict[str, Any]:
    return to_state({name: Bits.of(half(shape), torch.zeros(shape)) for name, shape in shapes.items()})


@given(
    st.dictionaries(st.sampled_from(["fc.weight", "a.bits", "x.shape", ""]), st.lists(st.integers(0, 9), max_size=3))
)
def test_saved_masks_come_back_equal(shapes: dict[str, list[int]]) -> None:
    masks = {name: half(shape) for name, shape in shapes.items()}
    saved = to_state({name: Bits.of(mask, torch.zeros(mask.shape)) for name, mask in masks.items()})
    loaded = from_state(dict(reversed(saved.items())))
    assert loaded.keys() == masks.keys()
    assert all(torch.equal(loaded[name], masks[name]) for name in masks)


def test_saved_masks_are_plain_tensors_of_one_bit_a_weight() -> None:
    saved = to_state({"fc.weight": Bits.of(half((512, 512)), torch.zeros(512, 512))})
    assert {key: (value.dtype, value.numel()) for key, value in saved.items()} == {
        "fc.weight.bits": (torch.uint8, 512 * 512 // 8),
        "fc.weight.shape": (torch.int64, 2),
    }
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    assert torch.equal(from_state(torch.load(file, weights_only=True))["fc.weight"], half((512, 512)))


def test_saved_masks_share_no_memory_with_those_in_use() -> None:
    bits = Bits.of(half((4, 4)), torch.zeros(4, 4))
    to_state({"w": bits})["w.bits"].zero_()
    assert torch.equal(bits.dense, half((4, 4)))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda s: s.pop("w.shape"), "'w.bits' is no entry of saved masks"),
        (lambda s: s.pop("w.bits"), "'w.shape' is no entry of saved masks"),
        (lambda s: s.update(weight=torch.zeros(2)), "'weight' is no entry of saved masks"),
        (lambda s: s.update({"w.bits": s["w.bits"][:-1]}), r"'w' is damaged[\s\S]*\(20, 20\)[\s\S]*\(55,\)"),
        (lambda s: s.update({"w.shape": torch.tensor([20, 30])}), "'w' is damaged"),
        (lambda s: s.update({"w.bits": s["w.bits"].float()}), "'w' is damaged"),
        (lambda s: s.update({"w.bits": None}), r"'w' is damaged[\s\S]*NoneType"),
        (lambda s: s.update({"w.shape": torch.tensor(400)}), "'w' is damaged"),
    ],
)
def test_damaged_masks_are_refused(change: Any, text: str) -> None:
    saved = state(w=(20, 20))
    change(saved)
    with pytest.raises(InvalidInputError, match=text):
        from_state(saved)
