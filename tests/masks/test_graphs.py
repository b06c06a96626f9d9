"""Masked models in torch.compile, torch.export, torch.fx and TorchScript: the masks are no part of any graph."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from secateur import Masks, prune_
from tests.masks.oracles import bits, carried_over, halves, nonzero_names


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Counting:
    """A backend that runs the graphs as they are and counts how many it gets."""

    def __init__(self) -> None:
        self.num_graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        self.num_graphs += 1
        return graph.forward


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def step(net: Callable[[Tensor], Tensor], optimizer: torch.optim.Optimizer, i: int = 0) -> None:
    optimizer.zero_grad()
    net(torch.randn(4, 6, generator=torch.Generator().manual_seed(i))).pow(2).mean().backward()
    optimizer.step()


@pytest.mark.parametrize("when", ["before the masks", "after the masks"])
def test_compiled_model_is_not_compiled_again_when_masks_change(when: str) -> None:
    net, backend = model(), Counting()
    optimizer = torch.optim.AdamW(net.parameters())
    compiled = torch.compile(net, backend=backend, fullgraph=True)
    if when == "before the masks":
        step(compiled, optimizer)
    masks = prune_(compiled, optimizer, sparsity=0.5)
    step(compiled, optimizer)
    assert backend.num_graphs == 1
    for sparsity in (0.6, 0.7):
        prune_(compiled, optimizer, sparsity=sparsity)
        step(compiled, optimizer)
    masks.update_(halves(net))
    step(compiled, optimizer)
    assert backend.num_graphs == 1
    assert nonzero_names(net, dict(masks)) == []
    masks.remove()
    step(compiled, optimizer)
    assert backend.num_graphs == 1


def test_compiled_model_with_compiled_backward_trains_like_the_plain_one() -> None:
    net = model()
    reference = copy.deepcopy(net)
    results = []
    for each, forward in ((net, torch.compile(net, backend="aot_eager")), (reference, reference)):
        optimizer = torch.optim.AdamW(each.parameters(), lr=0.1)
        masks = Masks.from_dict(each, halves(each), optimizer)
        for i in range(3):
            step(forward, optimizer, i)
            assert nonzero_names(each, dict(masks)) == []
        results.append([bits(p) for p in each.parameters()])
    assert results[0] == results[1]


@pytest.mark.filterwarnings("ignore:.*Profiler record function.*")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_compiled_step_of_the_optimizer_holds_zeros(kind: type[torch.optim.Optimizer], backend: str) -> None:
    net = nn.Sequential(nn.Linear(6, 300), nn.Linear(300, 300))
    options: dict[str, Any] = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    optimizer = kind(net.parameters(), lr=0.01, **options)
    step(net, optimizer)
    masks = halves(net)
    Masks.from_dict(net, masks, optimizer)
    compiled = torch.compile(optimizer.step, backend=backend)
    for i in range(4):
        optimizer.zero_grad()
        net(torch.randn(4, 6)).pow(2).mean().backward()
        if i == 2:
            net[1].weight.grad[0] = torch.nan
        before = net[0].weight.detach().clone()
        compiled()
        assert nonzero_names(net, masks) == []
        assert carried_over(optimizer, net, masks) == []
        assert not torch.equal(net[0].weight, before)


@pytest.mark.filterwarnings("ignore:.*Profiler record function.*")
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # dynamo's own look at the loss
@pytest.mark.parametrize("lean", [False, True])
def test_whole_compiled_training_step_holds_zeros(by: str, lean: bool) -> None:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    masks = Masks.from_dict(net, halves(net), optimizer, lean=lean)

    @torch.compile(backend="aot_eager")
    def train(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = net(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    losses = []
    for _ in range(3):
        losses.append(train(torch.ones(4, 6)).item())
        assert nonzero_names(net, dict(masks)) == []
    assert losses == sorted(losses, reverse=True)


def test_step_compiled_as_one_graph_says_how_to_compile_it() -> None:
    net = model()
    optimizer = torch.optim.Adam(net.parameters())
    prune_(net, optimizer, sparsity=0.5)
    net(torch.ones(4, 6)).sum().backward()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"masks are held outside the graph.*fullgraph=False"):
        torch.compile(optimizer.step, backend="eager", fullgraph=True)()


def test_masked_model_can_be_exported() -> None:
    net = model()
    prune_(net, sparsity=0.5)
    x = torch.randn(4, 6)
    exported = torch.export.export(net, (x,))
    assert list(exported.state_dict) == list(net.state_dict())
    torch.testing.assert_close(exported.module()(x), net(x))


def test_masked_model_can_be_traced_by_fx_and_keeps_its_masks() -> None:
    net = model()
    masks = prune_(net, sparsity=0.5)
    traced = torch.fx.symbolic_trace(net)
    x = torch.randn(4, 6)
    assert torch.equal(traced(x), net(x))
    assert Masks(traced) == masks


@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated:DeprecationWarning")
def test_masked_model_can_be_made_a_script() -> None:
    net = model()
    prune_(net, sparsity=0.5)
    x = torch.randn(4, 6)
    assert torch.equal(torch.jit.script(net)(x), net(x))
    assert torch.equal(torch.jit.trace(net, x)(x), net(x))


def test_masked_model_can_be_called_with_other_weights() -> None:
    net = model()
    masks = prune_(net, sparsity=0.5)
    ones = {name: torch.ones_like(p) for name, p in net.named_parameters()}
    output = torch.func.functional_call(net, ones, (torch.ones(1, 6),))
    assert torch.equal(output, torch.full((1, 3), 8 * 7.0 + 1))
    assert list(masks) == ["0.weight", "2.weight"]
    assert int((net[0].weight == 0).sum()) == 24
