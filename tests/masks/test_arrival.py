from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from secateur.masks.arrival import hook_gradient


class Listener:
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def receive(self) -> None:
        self.calls += 1


def test_each_backward_pass_is_heard_until_the_hook_is_removed() -> None:
    parameter, listener = nn.Parameter(torch.ones(2)), Listener()
    handle = hook_gradient(parameter, weakref.WeakMethod(listener.receive))
    for expected in (1, 2):
        parameter.sum().backward()
        assert listener.calls == expected
    handle.remove()
    parameter.sum().backward()
    assert listener.calls == 2


def test_listener_is_not_kept_alive() -> None:
    parameter, listener = nn.Parameter(torch.ones(2)), Listener()
    hook_gradient(parameter, weakref.WeakMethod(listener.receive))
    seen = weakref.ref(listener)
    del listener
    gc.collect()
    assert seen() is None
    parameter.sum().backward()
    assert torch.equal(parameter.grad, torch.ones(2))


def test_frozen_parameter_stays_frozen_and_is_heard_once_it_is_not() -> None:
    parameter, listener = nn.Parameter(torch.ones(2), requires_grad=False), Listener()
    hook_gradient(parameter, weakref.WeakMethod(listener.receive))
    assert not parameter.requires_grad
    parameter.requires_grad_(True).sum().backward()
    assert listener.calls == 1


@pytest.mark.parametrize(
    "parameter",
    [nn.Parameter(torch.ones(2, dtype=torch.int64), requires_grad=False), torch.ones(2, requires_grad=True) * 2],
    ids=["integers", "no leaf"],
)
def test_what_never_has_gradients_gets_no_hook(parameter: torch.Tensor) -> None:
    assert hook_gradient(parameter, weakref.WeakMethod(Listener().receive)) is None
