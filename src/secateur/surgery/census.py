"""One pass over the live Python objects: which optimizers, wrappers and autograd graphs refer to given parameters.

Nothing in torch leads from a parameter to what holds it, so what the user did not pass is found through the garbage
collector. The pass costs some tens of milliseconds and is made once a transaction.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from secateur import _compat

__all__ = ["Census", "census", "holds"]


@dataclass
class Census:
    """What refers to the parameters that were asked about.

    Args:
        optimizers: Optimizers with at least one of the parameters in a group.
        wrappers: Wrapper modules (DDP, FSDP1) around at least one of them.
        nodes: Autograd nodes that made a live tensor and whose graph leads to at least one of them.
    """

    optimizers: list[Optimizer] = field(default_factory=list)
    wrappers: list[nn.Module] = field(default_factory=list)
    nodes: list[Any] = field(default_factory=list)


def holds(optimizer: Optimizer, tensor: Tensor) -> bool:
    """Whether `tensor` is in a group of `optimizer`."""
    return any(p is tensor for group in optimizer.param_groups for p in group["params"])


def census(tensors: Iterable[Tensor]) -> Census:
    """Find what refers to `tensors`.

    Args:
        tensors: Parameters or buffers.

    Returns:
        The optimizers, wrappers and graph nodes that refer to at least one of them.
    """
    wanted = {id(tensor) for tensor in tensors}
    seen = _sorted_objects()
    with _compat.without_torch_function():
        outputs = [node for tensor in seen["tensor"] if (node := _maker(tensor)) is not None]
    return Census(
        [optimizer for optimizer in seen["optimizer"] if _reaches(_grouped, optimizer, wanted)],
        [wrapper for wrapper in seen["wrapper"] if _reaches(nn.Module.parameters, wrapper, wanted)],
        _leading_to(outputs, wanted),
    )


class _Groups(dict[type, str | None]):
    """To each type the group of its instances, None for those that are of no interest; found when first asked."""

    def __init__(self) -> None:
        super().__init__()
        self._parents: dict[type, str] = {
            Tensor: "tensor",
            Optimizer: "optimizer",
            **dict.fromkeys(_compat.wrappers(), "wrapper"),
        }

    def __missing__(self, kind: type) -> str | None:
        """Decide once; parameters are leaves, which no graph node has made."""
        parents = () if kind is nn.Parameter else self._parents.items()
        self[kind] = next((group for parent, group in parents if issubclass(kind, parent)), None)
        return self[kind]


def _sorted_objects() -> dict[str, list[Any]]:
    """Live tensors other than parameters, optimizers and wrappers."""
    everything = gc.get_objects()
    groups = _Groups()
    found: dict[str, list[Any]] = {"tensor": [], "optimizer": [], "wrapper": []}
    # there are some hundred thousand, so no Python code runs for those that are of no interest
    for item in itertools.compress(everything, map(groups.__getitem__, map(type, everything))):
        group = groups[type(item)]
        if group is not None:
            found[group].append(item)
    return found


def _maker(tensor: Tensor) -> Any:
    """The autograd node that made a tensor; None for leaves, and for views of which autograd says that it is lost."""
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


def _grouped(optimizer: Optimizer) -> Iterable[Tensor]:
    """All parameters of an optimizer."""
    return (p for group in optimizer.param_groups for p in group["params"])


def _reaches(members: Callable[[Any], Iterable[Tensor]], item: Any, wanted: set[int]) -> bool:
    """Whether one of the wanted parameters is a member; an object that is only half-built when it is met has none."""
    try:
        return any(id(p) in wanted for p in members(item))
    except (AttributeError, KeyError, TypeError):
        return False


def _is_leaf(node: Any) -> bool:
    """Whether an autograd node is the accumulator of a leaf tensor."""
    return isinstance(getattr(node, "variable", None), Tensor)


def _graph(roots: Iterable[Any]) -> dict[Any, list[Any]]:
    """Every node that the roots lead to, each with the nodes that lead to it directly."""
    callers: dict[Any, list[Any]] = {root: [] for root in roots}
    stack = list(callers)
    while stack:
        node = stack.pop()
        for following, _ in node.next_functions:
            if following is None:
                continue
            if following not in callers:
                callers[following] = []
                stack.append(following)
            callers[following].append(node)
    return callers


def _leading_to(roots: list[Any], wanted: set[int]) -> list[Any]:
    """Those roots whose graph leads to a wanted leaf, found by walking the graph back from the leaves."""
    callers = _graph(roots)
    stack = [node for node in callers if _is_leaf(node) and id(node.variable) in wanted]
    leading = set(stack)
    while stack:
        for caller in callers[stack.pop()]:
            if caller not in leading:
                leading.add(caller)
                stack.append(caller)
    return [root for root in dict.fromkeys(roots) if root in leading]
