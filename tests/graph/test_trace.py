"""A traced model is left exactly as it was, whatever happens inside."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from secateur.graph.coupling import analyze
from secateur.graph.trace import call_with, named_tensors, trace, undisturbed


class Everything(nn.Module):
    """Buffers that the forward writes, dropout, numpy-free randomness, attention, a hook, gradients."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.fails, self.calls = fails, 0
        self.a, self.norm, self.b = nn.Conv2d(3, 6, 1), nn.BatchNorm2d(6), nn.Linear(6, 6)
        self.attention, self.dropout = nn.MultiheadAttention(6, 2, batch_first=True), nn.Dropout(0.5)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        x = self.dropout(self.norm(self.a(x))).mean((2, 3)) + torch.rand(6)
        if self.fails:
            raise KeyError("the model's own")
        return self.b(self.attention(x[None], x[None], x[None])[0])


def seen(model: nn.Module) -> dict[str, object]:
    """All that tracing could leave behind."""
    return {
        "tensors": {
            n: (id(t), t.detach().clone().numpy().tobytes(), t.requires_grad, id(t.grad), type(t))
            for n, t in named_tensors(model).items()
        },
        "modules": {
            n: (id(m), type(m), m.training, {k: id(v) for k, v in vars(m).items() if not k.startswith("_")})
            for n, m in model.named_modules()
        },
        "hooks": [list(m._forward_hooks) + list(m._forward_pre_hooks) for m in model.modules()],
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": np.random.get_state()[1].tobytes(),
        "python": random.getstate(),
        "modes": (torch.is_grad_enabled(), torch.backends.mha.get_fastpath_enabled()),
    }


@pytest.mark.parametrize("training", [True, False])
def test_trace_leaves_everything_bit_identical(training: bool) -> None:
    model = Everything().train(training)
    model.b.weight.requires_grad_(False)
    model.a.weight.grad = torch.ones_like(model.a.weight)
    calls: list[int] = []
    model.a.register_forward_hook(lambda *_: calls.append(1))
    before = seen(model)
    traced = trace(model, [torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))])
    assert seen(model) == before
    assert calls == [1]
    assert traced.ties


def test_trace_leaves_everything_bit_identical_when_the_forward_raises() -> None:
    model = Everything(fails=True).train()
    before = seen(model)
    with pytest.raises(KeyError, match="the model's own"):
        trace(model, [torch.ones(2, 3, 4, 4)])
    assert seen(model) == before


def test_trace_gives_the_users_own_exception_with_a_hint() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        trace(nn.Linear(4, 3), [torch.ones(2, 5)])
    assert any("example inputs" in note for note in caught.value.__notes__)


ONES = torch.ones(2, 4)


@pytest.mark.parametrize(
    "inputs",
    [
        torch.ones(2, 4),
        (torch.ones(2, 4),),
        [torch.ones(2, 4)],
        {"input": torch.ones(2, 4)},
        lambda m: m(torch.ones(2, 4)),
    ],
    ids=["tensor", "tuple", "list", "dict", "function"],
)
def test_example_inputs_come_in_any_form(inputs: object) -> None:
    model = nn.Linear(4, 3)
    assert torch.equal(call_with(model, inputs), model(torch.ones(2, 4)))
    assert trace(model, [inputs]).touched == {"weight", "bias"}


def test_parameters_that_no_run_reached_are_blocked_with_that_reason() -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x: Tensor, other: bool = False) -> Tensor:
            return self.b(x) if other else self.a(x)

    model, x = Branch(), torch.ones(1, 4)
    traced = trace(model, [x])
    assert traced.touched == {"a.weight", "a.bias"}
    unreached = [b for b in traced.labels.blocks if b.why == "no example input reached it"]
    assert sum(len(b.atoms) for b in unreached) == 3 + 4 + 3
    assert trace(model, [x, {"x": x, "other": True}]).touched == set(named_tensors(model))


def test_random_numbers_and_what_kernels_need_are_passed_on() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.experts = nn.Linear(4, 8), nn.Parameter(torch.randn(2, 8, 16))

        def forward(self, x: Tensor) -> Tensor:
            return torch._grouped_mm(self.a(x) + torch.randn(8), self.experts, torch.tensor([2, 4], dtype=torch.int32))

    traced = trace(Noisy(), [torch.ones(4, 4)])
    assert [name for _, name in traced.random] == ["aten.randn"]
    assert traced.multiples == [(dim, 4) for dim in traced.dims["experts"][1:]]


def test_undisturbed_puts_back_buffers_and_random_state_when_the_block_raises() -> None:
    model = nn.BatchNorm1d(3)
    torch.manual_seed(4)
    before = torch.get_rng_state()

    def fail() -> None:
        with undisturbed(model):
            model(torch.randn(5, 3))
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fail()
    assert torch.equal(model.running_mean, torch.zeros(3))
    assert int(model.num_batches_tracked) == 0
    assert torch.equal(torch.get_rng_state(), before)


def test_named_tensors_lists_tied_ones_once() -> None:
    model = nn.ModuleDict({"a": nn.Embedding(4, 3), "b": nn.Linear(3, 4, bias=False)})
    model["b"].weight = model["a"].weight
    assert list(named_tensors(model)) == ["a.weight"]


def test_fake_model_is_analysed_without_values() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Flatten(), nn.Linear(96, 2)).eval()
        coupling = analyze(model, torch.empty(1, 3, 6, 6))
    assert [(len(group.units), group.kind) for group in coupling.groups] == [(6, "channels")]
