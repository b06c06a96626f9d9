"""Give one tensor other data of another shape, in place, so that autograd notices.

``p.data = q`` with another shape leaves behind autograd's cached accumulator node, which remembers the old shape: the
next backward fails for as long as any old graph is alive. Giving ``.data`` first an empty tensor of *another dtype*
makes autograd drop the node, while the Python object, its hooks, attributes and weak references survive. Two guards
make that safe. Old graphs get a hook that raises an explained error, since they would otherwise run on and leave a
gradient of the old shape; and the version counter is raised, so that an old graph which saved the tensor itself cannot
read the new values unnoticed. ``set_data`` does neither by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge, increment_version

from secateur._errors import StaleGraphError
from secateur.surgery.change import Change

__all__ = ["Poison", "Replace", "accumulator_resets", "set_shape_"]

_MOST_SHOWN = 8
"""So many resized tensors are named in an error; the one whose gradient arrived is always the first."""


def set_shape_(tensor: Tensor, new: Tensor, grad: Tensor | None) -> None:
    """Give `tensor` the data `new`, of any shape, and the gradient `grad`; autograd forgets the old accumulator.

    Args:
        tensor: A leaf: a parameter or buffer. Keeps its identity, hooks, attributes, weak references, requires_grad.
        new: The data; same dtype, device and layout. Shares its storage with `tensor` afterwards.
        grad: The gradient, of `new`'s shape, or None.

    Changes:
        Data, gradient, version counter. Graphs built before are not usable any more.
    """
    other = torch.float16 if tensor.dtype == torch.float32 else torch.float32
    with torch.no_grad():
        tensor.grad = None
        tensor.data = torch.empty(0, dtype=other, device=tensor.device)
        tensor.data = new
        increment_version(tensor)
        tensor.grad = grad


def accumulator_resets() -> bool:
    """Whether this torch drops the cached accumulator as described above (it is an implementation detail)."""
    with torch.inference_mode(False), torch.enable_grad():
        probe = torch.zeros(2, device="cpu", requires_grad=True)
        graph = probe * 1
        before = get_gradient_edge(probe).node
        set_shape_(probe, torch.zeros(3, device="cpu"), None)
        return graph is not None and get_gradient_edge(probe).node is not before


@dataclass
class Replace:
    """The edit that gives a parameter or buffer its new data and gradient."""

    change: Change
    data: Tensor
    grad: Tensor | None
    old: tuple[Tensor, Tensor | None] | None = None

    def do(self) -> None:
        """Change the tensor and remember what it was."""
        tensor = self.change.tensor
        self.old = tensor.data, tensor.grad
        set_shape_(tensor, self.data, self.grad)

    def undo(self) -> None:
        """Give the tensor its old data and gradient back."""
        if self.old is not None:
            set_shape_(self.change.tensor, *self.old)


@dataclass
class Poison:
    """The edit that makes old graphs explain themselves, to be done before the tensors change.

    Args:
        changes: What is about to happen.
        nodes: Nodes of live graphs that lead to a changed tensor.
    """

    changes: Sequence[Change]
    nodes: Iterable[Any]
    handles: list[Any] = field(default_factory=list)

    def do(self) -> None:
        """Hook the nodes and the tensors' own accumulators."""
        shown = [f"{c.name!r} {tuple(c.old_shape)} -> {tuple(c.new_shape)}" for c in self.changes]
        first = tuple(shown[:_MOST_SHOWN])
        for node in self.nodes:
            self.handles.append(node.register_prehook(partial(_stale, first, len(shown))))
        for change, mine in zip(self.changes, shown, strict=True):
            if change.tensor.requires_grad:
                accumulator = get_gradient_edge(change.tensor).node
                self.handles.append(accumulator.register_prehook(partial(_stale, (mine, *first), len(shown))))

    def undo(self) -> None:
        """Take the hooks away."""
        for handle in self.handles:
            handle.remove()


def _stale(shown: tuple[str, ...], total: int, *_: object) -> None:
    """The hook on graph nodes: say what was resized since the graph was built."""
    named = tuple(dict.fromkeys(shown))[:_MOST_SHOWN]
    rest = total - len(named)
    raise StaleGraphError(
        "backward through a graph that was built before a parameter in it was resized.",
        resized_since=", ".join(named) + (f" and {rest} more" if rest > 0 else ""),
        fix="call the model again and use the new loss; drop the old one (del loss), or resize after backward()",
    )


if not accumulator_resets():  # pragma: no cover - depends on the torch that is installed
    raise ImportError(
        f"torch {torch.__version__} keeps the gradient accumulator when `.data` changes its dtype; secateur's live "
        "surgery relies on its being dropped. Please report this version."
    )
