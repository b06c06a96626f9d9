"""Kinds of layers that hold their weights in ways of their own."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from secateur import Masks, prune_
from tests.masks.oracles import carried_over, half, halves, is_zero, nonzero_names

pytestmark = pytest.mark.usefixtures("by")


def train(model: nn.Module, inputs: tuple[Tensor, ...], optimizer: torch.optim.Optimizer, steps: int = 4) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        output = model(*inputs)
        (output[0] if isinstance(output, tuple) else output).pow(2).mean().backward()
        optimizer.step()


@pytest.mark.parametrize("same_width", [True, False])
def test_attention_has_its_projections_masked(same_width: bool) -> None:
    model = nn.MultiheadAttention(8, 2, kdim=None if same_width else 6, vdim=None if same_width else 6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    masks = prune_(model, optimizer, sparsity=0.5)
    projections = ["in_proj_weight"] if same_width else ["q_proj_weight", "k_proj_weight", "v_proj_weight"]
    assert list(masks) == [*projections, "out_proj.weight"]
    query, key = torch.randn(3, 2, 8), torch.randn(5, 2, 8 if same_width else 6)
    train(model, (query, key, key), optimizer)
    assert nonzero_names(model, dict(masks)) == []
    for name in masks:
        weight = model.get_parameter(name)
        assert int((weight == 0).sum()) == weight.numel() // 2
    model.eval()
    with torch.no_grad():  # the fast path
        assert model(query, key, key)[0].isfinite().all()


def test_transformer_layer_trains_masked_in_reduced_precision() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    masks = prune_(model, optimizer, sparsity=0.75)
    with torch.autocast("cpu", torch.bfloat16):
        train(model, (torch.randn(2, 5, 8),), optimizer)
    assert nonzero_names(model, dict(masks)) == []
    assert set(masks) == {"self_attn.in_proj_weight", "self_attn.out_proj.weight", "linear1.weight", "linear2.weight"}


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "num_layers": 2}], ids=["plain", "deep"])
def test_recurrent_layer_keeps_its_flat_weights(kind: type[nn.RNNBase], options: dict[str, int]) -> None:
    model = kind(6, 5, **options)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    masks = prune_(model, optimizer, sparsity=0.5)
    assert set(masks) == {name for name, _ in model.named_parameters() if name.startswith("weight")}
    train(model, (torch.randn(3, 1, 6),), optimizer)
    assert nonzero_names(model, dict(masks)) == []
    for name, flat in zip(model._flat_weights_names, model._flat_weights, strict=True):
        assert flat is getattr(model, name)
        assert isinstance(flat, nn.Parameter)
    copied = copy.deepcopy(model)
    train(copied, (torch.randn(3, 1, 6),), torch.optim.Adam(copied.parameters()))
    assert nonzero_names(copied, dict(masks)) == []


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")  # by torch's own Adagrad
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SparseAdam, {"lr": 0.1}),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (torch.optim.Adagrad, {"lr": 0.1}),
    ],
)
def test_sparse_gradients_of_an_embedding_are_masked(
    kind: type[torch.optim.Optimizer], options: dict[str, float]
) -> None:
    model = nn.Embedding(12, 4, sparse=True)
    optimizer = kind(model.parameters(), **options)
    index = torch.tensor([0, 3, 3, 5])
    for _ in range(2):
        optimizer.zero_grad()
        model(index).sum().backward()
        optimizer.step()
    masks = {"weight": half((12, 4))}
    Masks.from_dict(model, masks, optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        model(index).pow(2).sum().backward()
        assert model.weight.grad.is_sparse
        assert is_zero(model.weight.grad.to_dense()[~masks["weight"]])
        optimizer.step()
        assert nonzero_names(model, masks) == []
        assert carried_over(optimizer, model, masks) == []


def test_large_sparse_embedding_is_held() -> None:
    model = nn.Embedding(20_000, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.1)
    masks = prune_(model, optimizer, sparsity=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randint(20_000, (64,))).pow(2).sum().backward()
        optimizer.step()
        assert nonzero_names(model, dict(masks)) == []


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_convolutions_of_any_memory_format_are_held(memory_format: torch.memory_format, lean: bool) -> None:
    model = nn.Sequential(nn.Conv2d(3, 96, 3), nn.ReLU(), nn.Conv2d(96, 96, 3), nn.AdaptiveAvgPool2d(1))
    model = model.to(memory_format=memory_format)
    assert model[2].weight.numel() > 1 << 16
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    masks = prune_(model, optimizer, sparsity=0.8, lean=lean)
    image = torch.randn(2, 3, 8, 8).to(memory_format=memory_format)
    for step in range(3):
        train(model, (image,), optimizer, steps=1)
        assert nonzero_names(model, dict(masks)) == []
        if step == 1:
            model[2].weight.data.add_(1.0)
            model[2].weight.grad.data.add_(1.0)
            optimizer.step()
            assert nonzero_names(model, dict(masks)) == []
    assert model[2].weight.is_contiguous(memory_format=memory_format)


def test_model_that_changes_its_memory_format_or_dtype_is_held() -> None:
    model = nn.Conv2d(3, 8, 3)
    masks = halves(model)
    Masks.from_dict(model, masks)
    for change in (
        {"memory_format": torch.channels_last},
        {"dtype": torch.float64},
        {"memory_format": torch.contiguous_format},
        {"dtype": torch.bfloat16},
    ):
        model.to(**change)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
        train(model, (torch.randn(1, 3, 6, 6, dtype=model.weight.dtype),), optimizer, steps=2)
        assert nonzero_names(model, masks) == []


def test_parameters_in_lists_and_dicts_are_held() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ParameterList([torch.randn(4, 4), torch.randn(4, 2)])
            self.named = nn.ParameterDict({"last": torch.randn(2, 3)})

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.parts[0] @ self.parts[1] @ self.named["last"]

    model = Odd()
    optimizer = torch.optim.Adam(model.parameters())
    masks = prune_(model, optimizer, sparsity=0.5)
    assert list(masks) == ["parts.0", "parts.1", "named.last"]
    train(model, (torch.randn(3, 4),), optimizer)
    assert nonzero_names(model, dict(masks)) == []
    copied = copy.deepcopy(model)
    train(copied, (torch.randn(3, 4),), torch.optim.Adam(copied.parameters()))
    assert nonzero_names(copied, dict(masks)) == []


def test_complex_weights_are_held() -> None:
    class Rotation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4, dtype=torch.complex128))

        def forward(self, x: Tensor) -> Tensor:
            return (x @ self.weight).abs()

    model = Rotation()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    train(model, (torch.randn(3, 4, dtype=torch.complex128),), optimizer, steps=2)
    masks = prune_(model, optimizer, sparsity=0.5)
    train(model, (torch.randn(3, 4, dtype=torch.complex128),), optimizer)
    assert nonzero_names(model, dict(masks)) == []
    assert carried_over(optimizer, model, dict(masks)) == []


def test_gradient_checkpointing_changes_nothing() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))

        def forward(self, x: Tensor) -> Tensor:
            return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)

    model = Checkpointed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    masks = prune_(model, optimizer, sparsity=0.5)
    train(model, (torch.randn(3, 6),), optimizer)
    assert nonzero_names(model, dict(masks)) == []
