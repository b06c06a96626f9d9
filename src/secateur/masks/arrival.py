"""The hook on a masked parameter that is called when a backward pass has added to its gradient."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["hook_gradient"]


def hook_gradient(parameter: nn.Parameter, receive: weakref.WeakMethod[Callable[[], object]]) -> Any:
    """Have a method called when gradients have arrived; a frozen parameter is hooked, too: it may be unfrozen later.

    Returns:
        The handle that removes the hook; None for a parameter that never has gradients.
    """
    if not parameter.is_leaf or not (parameter.is_floating_point() or parameter.is_complex()):
        return None

    def arrive(_: Tensor) -> None:
        living = receive()
        if living is not None:
            living()

    wanted = parameter.requires_grad
    hook = torch.compiler.disable(arrive, reason="masks are held outside the graph")
    try:
        return parameter.requires_grad_(True).register_post_accumulate_grad_hook(hook)
    finally:
        parameter.requires_grad_(wanted)
