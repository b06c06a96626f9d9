"""One run of the model, watched op by op: what each op does to the labels of its tensors is written down.

The run is the model's own forward under a `TorchDispatchMode`, so Python control flow, hooks and custom modules just
happen. Nothing of the model changes: gradients are off, the global random state is restored, buffers that the forward
writes (BatchNorm's statistics in training mode) are put back.

An op whose result nobody uses adds no block (a model may look at ``x[:, -1]`` for its shape only), but its equations
hold: it runs again after the cut and its sizes must fit. So blocks are kept back until it is known which ops matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from torch.utils.weak import WeakTensorKeyDictionary

from secateur.graph.labels import Axis, Dim, Dims, Labels

__all__ = ["Call", "Capture", "Rule", "tensors_in"]


def tensors_in(tree: object) -> list[Tensor]:
    """All tensors in nested lists, tuples, dicts and registered containers."""
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, Tensor)]


@dataclass
class Call:
    """One op that ran: what a rule sees.

    Args:
        capture: The capture that it is part of.
        func: The ATen op (overload).
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        out: Its result.
    """

    capture: Capture
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any

    @property
    def labels(self) -> Labels:
        """Where facts are written down."""
        return self.capture.labels

    @property
    def name(self) -> str:
        """The op's name without overload, ``aten.add_``."""
        return str(self.func.overloadpacket)

    def arg(self, index: int, name: str, default: Any = None) -> Any:
        """An argument by position or name."""
        return self.args[index] if len(self.args) > index else self.kwargs.get(name, default)

    def dims(self, tensor: Tensor) -> Dims:
        """Labels of a tensor."""
        return self.capture.dims(tensor)

    def equal(self, one: Dim, other: Dim) -> None:
        """State that two dims go together."""
        self.labels.equal(one, other)

    def block(self, dim: Dim, why: str) -> None:
        """State that a dim stays, provided that the op matters to the result."""
        self.capture.hold(dim, why)

    def mix(self, dim: Dim) -> None:
        """State that the op combines all positions of a dim, so that zeroing some is not removing them."""
        self.capture.mixed.append((dim, self.name))


Rule = Callable[[Call], Sequence[Dims]]
"""What an op does to labels: states equations and blocks, and returns the dims of each tensor of the result."""


@dataclass
class _Step:
    """What liveness needs of one op: keys of what it reads and writes, and the blocks that wait for the answer."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    mutates: bool
    blocks: list[tuple[Dim, str]] = field(default_factory=list)


class Capture(TorchDispatchMode):
    """Watches runs of one model and collects the labels of its tensors.

    Args:
        labels: Where facts are written down; several captures of one model share it.
        rule_for: The rule of an op.
    """

    def __init__(self, labels: Labels, rule_for: Callable[[Any], Rule]) -> None:
        super().__init__()
        self.labels = labels
        self.mixed: list[tuple[Dim, str]] = []
        self.groups: list[tuple[Call, Axis]] = []
        self.products: list[tuple[Dim, ...]] = []
        self.following = False
        self._read: set[int] = set()
        self._rule_for = rule_for
        self._dims: Any = WeakTensorKeyDictionary()
        self._keys: Any = WeakTensorKeyDictionary()
        self._number_of_keys = 0
        self._steps: list[_Step] = []

    def enter_tensor(self, tensor: Tensor, dims: Dims) -> None:
        """Give a tensor its labels: a parameter, a buffer, an input."""
        self._dims[tensor] = dims

    def dims(self, tensor: Tensor) -> Dims:
        """Labels of a tensor; one that was never met before is a constant, of which nothing can be removed."""
        found: Dims | None = self._dims.get(tensor)
        return self.labels.fixed_dims(tensor.shape) if found is None else found

    def knows(self, tensor: Tensor) -> bool:
        """Whether a tensor has labels."""
        return tensor in self._dims

    def was_read(self, tensor: Tensor) -> bool:
        """Whether some op has read the tensor itself or a view of it."""
        return self._key(tensor) in self._read

    def size_follows(self, value: int) -> bool:
        """Whether a size given to the op under way will be another one when positions are gone.

        It is so where the code computes it from attributes and shapes; `secateur.graph.watching` sees that and says so
        in `following` for as long as the call lasts.
        """
        del value
        return self.following

    def multiplied(self, *dims: Dim) -> None:
        """Note the dims of one matrix product or convolution: it costs the product of their sizes."""
        self.products.append(dims)

    def groups_of(self, call: Call, group: Axis) -> None:
        """Note which axis a number of groups, given to an op as an argument, stands for."""
        self.groups.append((call, group))

    def hold(self, dim: Dim, why: str) -> None:
        """Block a dim if the op under way turns out to matter."""
        self._steps[-1].blocks.append((dim, why))

    def hold_for(self, results: Iterable[Tensor], dim: Dim, why: str) -> None:
        """Block a dim if these results of a function of torch turn out to matter."""
        self._steps.append(_Step((), self._keys_of(results), mutates=False, blocks=[(dim, why)]))

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the op, then apply its rule."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        inputs, outputs = tensors_in((args, kwargs)), tensors_in(out)
        if not inputs and not outputs:
            return out
        mutates = func._schema.is_mutable
        self._steps.append(_Step(self._keys_of([*inputs, *_bases(inputs)]), (), mutates))
        self._read.update(self._steps[-1].reads)
        results = self._rule_for(func)(Call(self, func, args, kwargs, out))
        known = {id(tensor) for tensor in inputs}
        for tensor, dims in zip(outputs, results, strict=True):
            if id(tensor) not in known:
                self._dims[tensor] = dims
        self._steps[-1].writes = self._keys_of([*outputs, *inputs, *_bases(inputs)] if mutates else outputs)
        return out

    def finish(self, outputs: Iterable[Tensor]) -> None:
        """Decide which ops matter to these results and put down the blocks of those."""
        needed = set(self._keys_of(outputs))
        for step in reversed(self._steps):
            if needed.isdisjoint(step.writes):
                continue
            needed.update(step.reads)
            for dim, why in step.blocks:
                self.labels.block(dim, why)
        self._steps.clear()

    def _keys_of(self, tensors: Iterable[Tensor]) -> tuple[int, ...]:
        """A number for each tensor that stays the same while it lives."""
        return tuple(self._key(tensor) for tensor in tensors)

    def _key(self, tensor: Tensor) -> int:
        """The number of one tensor."""
        key: int | None = self._keys.get(tensor)
        if key is None:
            key = self._keys[tensor] = self._number_of_keys
            self._number_of_keys += 1
        return key


def _bases(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Tensors that some of these are views of: who reads a view reads what was written to its base, or the reverse."""
    return [tensor._base for tensor in tensors if tensor._base is not None]
