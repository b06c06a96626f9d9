"""What a run costs, against counts that other means give."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from secateur.graph import analyze
from secateur.graph.capture import tensors_in
from secateur.graph.costs import Activation, Counter, Product, activation_bytes, macs
from secateur.graph.labels import Labels
from secateur.graph.solve import solve
from secateur.shrink import plan_of


class NewMemory(TorchDispatchMode):
    """Adds up the bytes of all storages that ops make; it keeps them alive, so that none is met twice."""

    def __init__(self, known: list[Tensor]) -> None:
        super().__init__()
        self.seen = {tensor.untyped_storage()._cdata for tensor in known}
        self.kept: list[Tensor] = []
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tensors_in(out):
            storage = tensor.untyped_storage()
            if storage._cdata not in self.seen:
                self.seen.add(storage._cdata)
                self.kept.append(tensor)
                self.bytes += storage.nbytes()
        return out


def memory_of(model: nn.Module, x: Tensor) -> int:
    with torch.no_grad(), NewMemory([*model.parameters(), *model.buffers(), x]) as counted:
        model(x)
    return counted.bytes


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu_(self.norm(self.a(x)))
        x = x + self.b(x)
        return self.head(torch.cat([x, -x], 1).mean((2, 3)).to(torch.float64).float())


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.norm, self.out, self.heads = nn.Linear(12, 36), nn.LayerNorm(12), nn.Linear(12, 12), 3

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-1, -2), -1)
        return x + self.out((weights @ v).transpose(1, 2).reshape(b, n, -1))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolutions": (Convolutions, (2, 3, 6, 6)),
    "attention": (Heads, (2, 5, 12)),
    "mlp": (lambda: nn.Sequential(nn.Linear(3, 6), nn.ReLU(inplace=True), nn.Linear(6, 2)), (4, 3)),
}


@pytest.mark.parametrize("name", MODELS)
def test_activation_bytes_are_those_of_the_memory_that_the_smaller_model_takes(name: str) -> None:
    make, shape = MODELS[name]
    model, x = make().eval(), torch.zeros(shape)
    coupling = analyze(model, x)
    assert coupling.activation_bytes() == memory_of(model, x) > 0
    gone = [unit for group in coupling.groups for unit in group.units[: len(group.units) // 2]]
    smaller = plan_of(model, coupling, gone).apply_(copy.deepcopy(model))
    assert coupling.activation_bytes(gone) == memory_of(smaller, x) < memory_of(model, x)


def test_a_product_of_axes_keeps_what_every_axis_keeps() -> None:
    labels = Labels()
    a, b, fixed = labels.fresh(3), labels.fresh(4), labels.fixed(5)
    solution = solve(labels)
    gone = solution.removed([int(solution.classes(a)[0]), *solution.classes(b)[:2].tolist()])
    count = Counter(solution, gone)
    assert [count(dim) for dim in ((a,), (b,), (fixed,), (), (a, fixed, b))] == [2, 2, 5, 1, 20]
    assert all(count(dim) == int(solution.kept(dim, gone).sum()) for dim in ((a, fixed, b), (b, a), ()))
    assert macs([Product("mm", ((a,), (b,), ())), Product("mm", ((fixed,),))], count) == 2 * 2 + 5
    assert activation_bytes([Activation(((a,), (b,)), 8), Activation((), 4)], count) == 2 * 2 * 8 + 4


def test_what_kind_of_product_it_is_is_known_by_the_op() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 1), nn.Conv2d(4, 4, 1, groups=2), nn.Flatten(), nn.Linear(4, 3))
    found = analyze(model, torch.zeros(1, 2, 1, 1)).products
    assert [one.is_convolution for one in found] == [True, True, False]
    assert [sum(axis.size for axis in one.groups) for one in found] == [0, 2, 0]
