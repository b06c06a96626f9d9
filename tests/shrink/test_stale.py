"""Numbers in code that shapes do not tell of, which a warning names."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

from secateur import load_, shrink_
from tests.shrink.pretrained import inputs_of, model_of


class Reshaping(nn.Module):
    """Code that reads a number in a method, one that is no size, and none of a third."""

    def __init__(self) -> None:
        super().__init__()
        self.width, self.never, self.other = 12, 12, 5
        self.first, self.last = nn.Sequential(nn.Linear(6, 12)), nn.Linear(12, 2)

    def split(self, x: Tensor) -> Tensor:
        return x.view(-1, self.width) * self.other

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.split(self.first(x)))
        return result


IMAGE = torch.randn(1, 3, 32, 32)
TOLD: dict[str, tuple[Callable[[], nn.Module], Tensor, list[str]]] = {
    "own": (Reshaping, torch.randn(3, 6), ["Reshaping.width (12)"]),
    "llama": (
        lambda: model_of("LlamaForCausalLM"),
        inputs_of("LlamaForCausalLM"),
        ["LlamaAttention.head_dim (8)"],
    ),
    "vit": (
        lambda: timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2),
        IMAGE,
        ["Attention.num_heads (3)", "Attention.head_dim (64)"],
    ),
}
SILENT: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "layers": (lambda: nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2)), torch.randn(3, 6)),
    **{
        name: (lambda name=name: torchvision.models.get_model(name, weights=None), IMAGE)  # type: ignore[misc]
        for name in ("resnet18", "mobilenet_v3_small", "densenet121")
    },
}


def smaller(make: Callable[[], nn.Module], x: Tensor) -> dict[str, Tensor]:
    """The state of a smaller model."""
    model = make().eval()
    shrink_(model, x, sparsity=0.4)
    return model.state_dict()


@pytest.mark.parametrize("name", TOLD)
def test_numbers_that_code_reads_and_shapes_do_not_say_are_told_once(name: str) -> None:
    make, x, expected = TOLD[name]
    with pytest.warns(UserWarning, match=r"may not fit any more(?s:.*)secateur\.save") as caught:
        load_(make(), smaller(make, x))
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert all(each in str(caught[0].message) for each in expected)
    assert "never" not in str(caught[0].message)
    assert "other" not in str(caught[0].message).replace("Reshaping.width", "")


@pytest.mark.parametrize("name", SILENT)
def test_models_that_follow_their_tensors_are_loaded_in_silence(name: str) -> None:
    make, x = SILENT[name]
    load_(make(), smaller(make, x))


def test_nothing_is_told_where_no_shape_changes() -> None:
    make = TOLD["vit"][0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_(make(), make().state_dict())
