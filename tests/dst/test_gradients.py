"""The dense gradient, kept aside as it arrives: what counts as one, and what a parameter's changes do to it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from secateur import Masks, resize_
from secateur.dst import RigL
from tests.dst.methods import make, net, step
from tests.masks.oracles import nonzero_names


class Two(nn.Module):
    """Two layers side by side, of which one may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 4), nn.Linear(6, 4)
        self.uses_second = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x) + (self.second(x) if self.uses_second else 0.0)


@pytest.mark.parametrize("method", ["rigl", "mest"])
@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("set_to_none", [None, False, True])
def test_layer_that_is_not_reached_stays_however_gradients_are_reset(
    set_to_none: bool | None, clips: bool, method: str
) -> None:
    model = Two()
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9) for layer in model.children()]
    training = make(method, model, optimizers)
    before = dict(training.masks)
    for uses_second in (True, False):
        model.uses_second = uses_second
        for optimizer in optimizers:
            if set_to_none is not None:
                optimizer.zero_grad(set_to_none=set_to_none)
        model(torch.randn(8, 6)).pow(2).mean().backward()
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        for optimizer in optimizers:
            optimizer.step()
    assert torch.equal(training.masks["second.weight"], before["second.weight"])
    assert not torch.equal(training.masks["first.weight"], before["first.weight"])
    assert training.history[-1].unreached == ("second.weight",)


@pytest.mark.parametrize("method", ["rigl", "mest"])
def test_batch_that_is_thrown_away_reaches_no_layer(method: str) -> None:
    model = Two()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = make(method, model, optimizer, every=1)
    before = training.masks["second.weight"]
    for uses_second in (True, False):
        model.uses_second = uses_second
        optimizer.zero_grad()
        model(torch.randn(8, 6)).pow(2).mean().backward()
    optimizer.step()
    assert torch.equal(training.masks["second.weight"], before)
    assert training.history[-1].unreached == ("second.weight",)


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
def test_passes_that_build_a_graph_of_the_gradient_add_up() -> None:
    layer = nn.Linear(6, 6, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    training = RigL(layer, optimizer, sparsity=0.5, every=1, end_step=3, drop_fraction=lambda step: 0.5)
    kept = training.masks["weight"]
    losses = [layer(torch.randn(8, 6)).pow(2).mean() for _ in range(3)]
    slope = sum(torch.autograd.grad(loss, layer.weight, retain_graph=True)[0] for loss in losses)
    for loss in losses:
        loss.backward(create_graph=True)
    optimizer.step()
    layer.weight.grad = None
    grown = training.masks["weight"] & ~kept
    expected = slope.abs().masked_fill(kept, -1.0).flatten().topk(9).indices
    assert grown.flatten().nonzero()[:, 0].tolist() == expected.sort().values.tolist()


@pytest.mark.parametrize("method", ["rigl", "mest", "granet"])
def test_gradient_follows_a_resize_between_the_pass_and_the_step(method: str) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    training = make(method, model, optimizer)
    step(model, optimizer)
    before = dict(training.masks)
    optimizer.zero_grad()
    loss = model(torch.randn(8, 6)).pow(2).mean()
    slope = torch.autograd.grad(loss, model[0].weight, retain_graph=True)[0][:8]
    loss.backward()
    keep = torch.arange(8)
    for module, name, dim in ((model[0], "weight", 0), (model[0], "bias", 0), (model[2], "weight", 1)):
        resize_(module, name, dim=dim, keep=keep, optimizer=optimizer)
    optimizer.step()
    kept, masked = before["0.weight"][:8], ~before["0.weight"][:8]
    grown = training.masks["0.weight"] & ~kept
    assert bool(grown.any())
    if method == "rigl":
        rest = masked & ~grown
        assert slope.abs()[grown].min() >= slope.abs()[rest].max()
    assert nonzero_names(model, dict(training.masks)) == []
    step(model, optimizer)


def test_error_at_one_change_leaves_the_next_one_its_gradients() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = make("rigl", model, optimizer, every=1)
    with pytest.raises(ValueError, match="no backward pass has reached"):
        optimizer.step()
    before = dict(Masks(model))
    step(model, optimizer)
    assert training.history[-1].step == 2
    assert any(not torch.equal(mask, before[name]) for name, mask in training.masks.items())
