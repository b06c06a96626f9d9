"""A copy for inference: plain weights with their zeros, no empty units; the model given stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

from secateur import InvalidInputError, Masks, ShapeError, UnsupportedError, prune_
from secateur.runtime.preparing import bare_, plain_copy, without_empty_units
from tests.shrink.models import is_unchanged, state_of


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def test_copy_is_in_evaluation_mode_and_needs_no_gradients() -> None:
    model = mlp().train()
    before = state_of(model)
    copied = plain_copy(model, None)
    assert not any(module.training for module in copied.modules())
    assert not any(parameter.requires_grad for parameter in copied.parameters())
    assert all(torch.equal(a, b) for a, b in zip(copied.parameters(), model.parameters(), strict=True))
    assert not {p.data_ptr() for p in copied.parameters()} & {p.data_ptr() for p in model.parameters()}
    assert is_unchanged(model, before)
    assert all(module.training for module in model.modules())


def test_masked_weights_are_zero_in_the_copy_alone() -> None:
    model = mlp()
    model[0].weight.data[0, 0] = float("nan")
    masks = {"0.weight": torch.rand(8, 6) > 0.5, "2.bias": torch.tensor([True, False, True])}
    masks["0.weight"][0, 0] = False
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    copied = plain_copy(model, masks)
    assert torch.equal(copied[0].weight, torch.where(masks["0.weight"], model[0].weight, 0.0))
    assert torch.equal(copied[2].bias, torch.where(masks["2.bias"], model[2].bias, 0.0))
    assert torch.equal(copied[2].weight, model[2].weight)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0, equal_nan=True)


def test_mask_is_taken_under_each_name_of_a_tied_parameter() -> None:
    model = nn.ModuleDict({"emb": nn.Embedding(4, 3), "head": nn.Linear(3, 4, bias=False)})
    model["head"].weight = model["emb"].weight
    mask = torch.rand(4, 3) > 0.5
    copied = plain_copy(model, {"head.weight": mask})
    assert copied["head"].weight is copied["emb"].weight
    assert torch.equal(copied["emb"].weight != 0, mask)


def test_masks_of_prune_go_and_their_zeros_stay() -> None:
    model = mlp()
    masks = prune_(model, sparsity=0.5)
    copied = plain_copy(model, None)
    assert len(Masks(copied)) == 0
    assert len(masks) == len(Masks(model)) == 2
    assert torch.equal(copied[0].weight, model[0].weight)
    copied[0].weight += 1
    copied(torch.ones(1, 6))
    assert bool((copied[0].weight != 0).all())


def orthogonal() -> nn.Module:
    return nn.Sequential(parametrizations.orthogonal(nn.Linear(4, 4)))


def weight_norm() -> nn.Module:
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4)))


def spectral() -> nn.Module:
    return nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 4)))


def torch_pruned() -> nn.Module:
    layer = prune.l1_unstructured(nn.Linear(4, 4), "weight", 0.5)
    return nn.Sequential(prune.random_unstructured(layer, "bias", 0.5))


def pruned_twice() -> nn.Module:
    return nn.Sequential(
        prune.random_unstructured(prune.l1_unstructured(nn.Linear(4, 4), "weight", 0.5), "weight", 0.5)
    )


@pytest.mark.parametrize("build", [orthogonal, weight_norm, spectral, torch_pruned, pruned_twice])
def test_computed_weights_become_plain_ones(build: Callable[[], nn.Module]) -> None:
    model, x = build().eval(), torch.randn(3, 4)
    before, y = state_of(model), model(x)
    copied = plain_copy(model, None)
    assert {name for name, _ in copied.named_parameters()} == {"0.weight", "0.bias"}
    assert list(copied.buffers()) == []
    assert type(copied[0]) is nn.Linear
    assert not parametrize.is_parametrized(copied[0])
    assert not copied[0]._forward_pre_hooks
    assert torch.equal(copied(x), y)
    assert is_unchanged(model, before)
    assert torch.equal(model(x), y)


def test_bare_changes_the_model_itself() -> None:
    model = orthogonal()
    assert bare_(model) is model
    assert type(model[0]) is nn.Linear


class Uncopied(nn.Module):
    def __deepcopy__(self, memo: Any) -> Any:
        raise RuntimeError("of the model")


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no model": (lambda: 5, InvalidInputError, "int"),
    "a class": (lambda: nn.Linear, InvalidInputError, "type"),
    "no values": (lambda: nn.Linear(2, 2, device="meta"), InvalidInputError, "load the weights first"),
    "a buffer without values": (lambda: nn.BatchNorm1d(2, affine=False, device="meta"), InvalidInputError, "first"),
    "not to be copied": (lambda: Uncopied(), UnsupportedError, r"Uncopied cannot be copied(?s:.*)of the model"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_model_is_refused(what: str) -> None:
    build, kind, match = REFUSED[what]
    with pytest.raises(kind, match=match):
        plain_copy(build(), None)


WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "no mapping": ([torch.ones(8, 6) > 0], InvalidInputError, "masks are bool tensors by parameter names"),
    "of no parameter": ({"1.weight": torch.ones(8, 6) > 0}, InvalidInputError, r"no parameter '1\.weight'"),
    "no tensor": ({"0.weight": [True]}, InvalidInputError, "no bool tensor"),
    "not bool": ({"0.weight": torch.ones(8, 6)}, InvalidInputError, r"no bool tensor(?s:.*)mask != 0"),
    "another shape": (
        {"0.weight": torch.ones(6, 8) > 0}, ShapeError, r"another shape(?s:.*)mask: \(6, 8\) .*parameter: \(8, 6\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_masks_are_refused(what: str) -> None:
    masks, kind, match = WRONG[what]
    model = mlp()
    before = state_of(model)
    with pytest.raises(kind, match=match):
        plain_copy(model, masks)
    assert is_unchanged(model, before)


def with_empty_units(number: int) -> nn.Sequential:
    model = mlp().double()
    with torch.no_grad():
        model[0].weight[:number] = 0
        model[0].bias[:number] = 0
    return plain_copy(model, None)


def test_empty_units_go_with_a_line_about_it() -> None:
    model, x = with_empty_units(4), torch.randn(5, 6, dtype=torch.float64)
    smaller, note = without_empty_units(model, x)
    assert smaller is not None
    assert note == "empty units removed: 83 -> 43 parameters"
    assert tuple(smaller[0].weight.shape) == (4, 6)
    torch.testing.assert_close(smaller(x), model(x), rtol=0, atol=1e-12)
    assert tuple(model[0].weight.shape) == (8, 6)


def test_units_with_a_bias_alone_are_constants_that_move_on() -> None:
    model, x = with_empty_units(4), torch.randn(5, 6, dtype=torch.float64)
    model[0].bias.fill_(1.5)
    smaller, _ = without_empty_units(model, x)
    assert smaller is not None
    torch.testing.assert_close(smaller(x), model(x), rtol=0, atol=1e-12)


def test_units_that_nobody_reads_go_too() -> None:
    model, x = with_empty_units(0), torch.randn(5, 6, dtype=torch.float64)
    model[2].weight[:, :4] = 0
    smaller, note = without_empty_units(model, x)
    assert smaller is not None
    assert note == "empty units removed: 83 -> 43 parameters"
    torch.testing.assert_close(smaller(x), model(x), rtol=0, atol=1e-12)


def test_nothing_to_remove_is_said() -> None:
    assert without_empty_units(with_empty_units(0), torch.randn(5, 6).double()) == (
        None,
        "no empty units, or too few to be worth removing",
    )


def test_too_little_is_not_removed() -> None:
    model = plain_copy(nn.Sequential(nn.Linear(200, 100), nn.ReLU(), nn.Linear(100, 200)), None)
    model[0].weight[0], model[0].bias[0] = 0, 0
    smaller, note = without_empty_units(model, torch.randn(2, 200))
    assert (smaller, note) == (None, "no empty units, or too few to be worth removing")


def test_units_that_cannot_go_stay_with_the_reason() -> None:
    model = with_empty_units(0)
    model[2].weight[:2], model[2].bias[:2] = 0, 0
    smaller, note = without_empty_units(model, torch.randn(5, 6, dtype=torch.float64))
    assert smaller is None
    assert note.startswith("empty units stay: ")


def test_error_of_the_model_on_the_example_inputs_is_its_own() -> None:
    with pytest.raises(RuntimeError, match=r"mat1 and mat2(?s:.*)as secateur ran it on the example inputs"):
        without_empty_units(with_empty_units(4), torch.randn(5, 7, dtype=torch.float64))


def test_empty_windows_of_a_convolution_are_not_empty_units() -> None:
    model = plain_copy(nn.Sequential(nn.Conv2d(3, 4, 3)), None)
    model[0].weight[:, :, 0, 0] = 0
    model[0].weight[0, 0] = 0
    assert without_empty_units(model, torch.randn(1, 3, 5, 5)) == (
        None,
        "no empty units, or too few to be worth removing",
    )


class Uses(nn.Module):
    def __init__(self, run: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.run = nn.Linear(6, 8), nn.Linear(8, 3), run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


@pytest.mark.parametrize(
    "run",
    [lambda m, x: m.second(m.first(x).relu()), lambda m, x: m.second(nn.functional.linear(x, m.first.weight).relu())],
    ids=["called", "its weight is read"],
)
def test_empty_units_go_however_a_layer_is_used(run: Callable[[Any, Tensor], Tensor]) -> None:
    model, x = plain_copy(Uses(run), None), torch.randn(5, 6)
    model.first.weight[:4], model.first.bias[:4] = 0, 0
    smaller, _ = without_empty_units(model, x)
    assert smaller is not None
    assert tuple(smaller.first.weight.shape) == (4, 6)
    torch.testing.assert_close(smaller(x), model(x))
