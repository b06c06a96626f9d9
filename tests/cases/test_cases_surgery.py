"""What users ran into when they changed a parameter's shape by hand, done with the library; and what is near it."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from secateur import StaleGraphError, resize_, transaction

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True),
}


# Question 1: cutting a layer's inputs between two backward passes -----------------------------------------------------

LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor], int]] = {
    "linear": (lambda: nn.Linear(100, 10), lambda n: torch.ones(n), 1),
    "linear without bias": (lambda: nn.Linear(100, 10, bias=False), lambda n: torch.ones(3, n), 1),
    "conv": (lambda: nn.Conv2d(100, 10, 3), lambda n: torch.ones(2, n, 4, 4), 1),
    "transposed conv": (lambda: nn.ConvTranspose1d(100, 10, 3), lambda n: torch.ones(2, n, 4), 0),
    "bilinear": (lambda: nn.Bilinear(100, 5, 10), lambda n: torch.ones(2, n), 1),
}


def run(layer: nn.Module, x: Tensor) -> Tensor:
    out = layer(x, torch.ones(2, 5)) if isinstance(layer, nn.Bilinear) else layer(x)
    return 5 - out.sum()


@pytest.mark.parametrize("situation", ["old loss alive", "old loss dropped", "wrapped anew"])
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
def test_question_1_inputs_are_cut_between_two_backward_passes(situation: str, kind: str, optimizer_name: str) -> None:
    make, inputs, dim = LAYERS[kind]
    layer = make()
    if situation == "wrapped anew":
        layer.weight = nn.Parameter(layer.weight)
    optimizer = OPTIMIZERS[optimizer_name](layer.parameters())
    loss = run(layer, inputs(100))
    loss.backward(retain_graph=True)
    optimizer.step()
    if situation == "old loss dropped":
        del loss
    weight, keep = layer.weight, torch.arange(90)
    expected = [t.index_select(dim, keep) for t in (weight.detach(), weight.grad)]
    moments = {key: value.index_select(dim, keep) for key, value in optimizer.state[weight].items() if value.dim() > 1}
    assert moments

    assert resize_(layer, "weight", dim=dim, keep=range(90), optimizer=optimizer) is weight

    assert layer.weight is weight
    assert torch.equal(weight.detach(), expected[0])
    assert torch.equal(weight.grad, expected[1])
    for key, value in moments.items():
        assert torch.equal(optimizer.state[weight][key], value)
    run(layer, inputs(90)).backward()
    optimizer.step()
    assert not torch.equal(weight.detach(), expected[0])
    recorded = {"in_features", "in_channels", "in1_features"} & vars(layer).keys()
    assert [getattr(layer, name) for name in recorded] == [90]
    if situation == "old loss alive":
        with pytest.raises(StaleGraphError, match=r"'weight' \(.*100.*\) -> \(.*90.*\)"):
            loss.backward()


# Case 16: hidden units go, the optimizer's state comes along ----------------------------------------------------------


@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_case_16_hidden_units_go_with_their_state(optimizer_name: str, dtype: torch.dtype) -> None:
    if optimizer_name == "adamw fused" and dtype == torch.bfloat16:
        optimizer_name = "adam"
    net = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3)).to(dtype)
    optimizer = OPTIMIZERS[optimizer_name](net.parameters())
    x, y = torch.randn(32, 10, dtype=dtype), torch.randn(32, 3, dtype=dtype)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()

    for _ in range(4):
        step()
    keep = torch.tensor([i for i in range(16) if i not in (1, 5, 6, 11)])
    parameters = list(net.parameters())
    cut = {0: (0,), 1: (0,), 2: (1,), 3: ()}
    expected = {
        (index, key): value.index_select(cut[index][0], keep) if cut[index] and value.dim() else value.clone()
        for index, p in enumerate(parameters)
        for key, value in optimizer.state[p].items()
    }

    with transaction(net, optimizer) as t:
        t.resize("0.weight", dim=0, keep=keep)
        t.resize("0.bias", dim=0, keep=keep)
        t.resize("2.weight", dim=1, keep=keep)

    assert all(p is q for p, q in zip(net.parameters(), parameters, strict=True))
    assert [tuple(p.shape) for p in parameters] == [(12, 10), (12,), (3, 12), (3,)]
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert all(p is q for p, q in zip(held, parameters, strict=True))
    for (index, key), value in expected.items():
        assert torch.equal(optimizer.state[parameters[index]][key], value)
    if "adam" in optimizer_name:
        assert optimizer.state[parameters[0]]["step"] == 4
    before = net[0].weight.detach().clone()
    step()
    assert not torch.equal(net[0].weight, before)


# Case 23: frozen stays frozen -----------------------------------------------------------------------------------------


def test_case_23_frozen_layer_stays_frozen() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    net[0].requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    with transaction(net, optimizer) as t:
        t.resize("0.weight", dim=0, keep=range(6))
        t.resize("0.bias", dim=0, keep=range(6))
        t.resize("1.weight", dim=1, keep=range(6))
    assert [p.requires_grad for p in net.parameters()] == [False, False, True, True]
    net(torch.randn(2, 4)).sum().backward()
    assert net[0].weight.grad is None
    assert net[1].weight.grad.shape == (2, 6)


# Case 29: between forward and backward --------------------------------------------------------------------------------


@pytest.mark.parametrize("alive", ["output", "hidden", "loss"])
def test_case_29_units_go_between_forward_and_backward(alive: str) -> None:
    net = nn.Sequential(nn.Linear(10, 8), nn.Linear(8, 3))
    hidden = net[0](torch.randn(4, 10))
    out = net[1](hidden)
    kept = {"output": out, "hidden": hidden, "loss": out.square().sum()}[alive]
    del hidden, out
    with transaction(net) as t:
        t.resize("0.weight", dim=0, keep=range(6))
        t.resize("0.bias", dim=0, keep=range(6))
        t.resize("1.weight", dim=1, keep=range(6))
    net(torch.randn(4, 10)).sum().backward()
    assert [tuple(p.grad.shape) for p in net.parameters()] == [(6, 10), (6,), (3, 6), (3,)]
    gradients = [p.grad.clone() for p in net.parameters()]
    with pytest.raises(StaleGraphError, match=r"'0\.weight' \(8, 10\) -> \(6, 10\)") as caught:
        kept.sum().backward()
    assert "a graph that was built before a parameter in it was resized" in str(caught.value)
    for parameter, gradient in zip(net.parameters(), gradients, strict=True):
        assert torch.equal(parameter.grad, gradient)


# Case 30: tied embedding and head -------------------------------------------------------------------------------------


class LM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(20, 8)
        self.mid = nn.Linear(8, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, index: Tensor) -> Tensor:
        return self.head(self.mid(self.emb(index)))


def test_case_30_tied_weights_stay_tied() -> None:
    model = LM()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randint(18, (5,))).square().mean().backward()
        optimizer.step()

    step()
    with transaction(model, optimizer) as t:
        t.resize("emb.weight", dim=1, keep=range(6))
        for dim in (0, 1):
            t.resize("mid.weight", dim=dim, keep=range(6))
        t.resize("mid.bias", dim=0, keep=range(6))
    assert model.head.weight is model.emb.weight
    assert model.emb.weight.shape == (20, 6)
    assert (model.emb.embedding_dim, model.head.in_features) == (6, 6)
    step()
    resize_(model, "head.weight", dim=0, keep=range(18), optimizer=optimizer)
    assert model.head.weight is model.emb.weight
    assert model.emb.weight.shape == (18, 6)
    assert (model.head.out_features, model.emb.num_embeddings) == (18, 18)
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert sum(p is model.emb.weight for p in held) == 1
    assert optimizer.state[model.emb.weight]["exp_avg"].shape == (18, 6)
    step()


# Case 31: half-way through an accumulated batch -----------------------------------------------------------------------


@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
@pytest.mark.parametrize("kind", [lambda: nn.Linear(4, 8), lambda: nn.Conv1d(4, 8, 1)], ids=["linear", "conv"])
def test_case_31_outputs_go_half_way_through_a_batch(optimizer_name: str, kind: Callable[[], nn.Module]) -> None:
    net = kind()
    optimizer = OPTIMIZERS[optimizer_name](net.parameters())
    x = torch.randn(2, 2, 4) if isinstance(net, nn.Linear) else torch.randn(2, 2, 4, 1)
    net(x[0]).sum().backward()
    first = net.weight.grad[:6].clone()
    with transaction(net, optimizer) as t:
        t.resize("weight", dim=0, keep=range(6))
        t.resize("bias", dim=0, keep=range(6))
    assert torch.equal(net.weight.grad, first)
    net(x[1]).sum().backward()
    second = x[1].reshape(-1, 4).sum(0).view(1, *first.shape[1:])
    torch.testing.assert_close(net.weight.grad, first + second)
    optimizer.step()
    assert optimizer.state[net.weight]


# Case 68: what is saved is what is there ------------------------------------------------------------------------------


def saved_bytes(obj: object) -> int:
    file = io.BytesIO()
    torch.save(obj, file)
    return file.getbuffer().nbytes


def test_case_68_file_has_the_size_of_what_is_left() -> None:
    layer = nn.Linear(256, 256)
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.ones(1, 256)).sum().backward()
    optimizer.step()
    with transaction(layer, optimizer) as t:
        t.resize("weight", dim=0, keep=range(64))
        t.resize("bias", dim=0, keep=range(64))
    tensors = [layer.weight, layer.weight.grad, *optimizer.state[layer.weight].values()]
    for tensor in tensors:
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.itemsize
        assert tensor.is_contiguous()
    assert saved_bytes(layer.state_dict()) < 70_000
    assert saved_bytes(optimizer.state_dict()) < 140_000
    assert layer.out_features == 64


def test_case_68_layer_that_was_cut_by_hand_is_mended_by_the_next_resize() -> None:
    layer = nn.Linear(256, 256)
    layer.weight.data, layer.bias.data = layer.weight.data[:64], layer.bias.data[:64]
    assert saved_bytes(layer.state_dict()) > 250_000
    with transaction(layer) as t:
        t.resize("weight", dim=0, keep=range(64))
        t.resize("bias", dim=0, keep=range(64))
    assert saved_bytes(layer.state_dict()) < 70_000
    assert layer.out_features == 64
