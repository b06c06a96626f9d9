"""One run of a model, watched: what its layers are given, and who reads what they return."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from secateur import _compat
from secateur._passes import Inputs, call_with, undisturbed
from secateur.graph.call import tensors_in

__all__ = ["OUTPUT", "Observed", "observe"]

OUTPUT = "<output>"
"""Who reads what the model returns."""

Kinds = tuple[type[nn.Module], ...]


@dataclass
class _Result:
    """What a module has returned: the tensor, and who has read its memory since: (module, whether in place)."""

    module: str
    tensor: Tensor
    readers: list[tuple[str, bool]] = field(default_factory=list)


@dataclass
class Observed:
    """What was seen.

    Args:
        inputs: Shapes that each module was given as its first argument, one for each call.
        results: Number of dims of what it returned last.
        alike: Modules whose first three arguments were one tensor at every call.
        readers: For a module that was called once: the only module that reads its result, and that one was called once.
    """

    inputs: dict[str, list[torch.Size]] = field(default_factory=dict)
    results: dict[str, int] = field(default_factory=dict)
    alike: dict[str, bool] = field(default_factory=dict)
    readers: dict[str, str] = field(default_factory=dict)


def observe(model: nn.Module, inputs: Inputs, kinds: Kinds) -> Observed:
    """Run the model once and watch its modules of some kinds, none of which is inside another.

    Args:
        model: The model, in evaluation mode.
        inputs: Example inputs.
        kinds: Types of the modules to watch.

    Returns:
        What was seen. The model is as before.
    """
    watched = [(path, module) for path, module in model.named_modules() if isinstance(module, kinds)]
    watcher = _Watcher()
    with undisturbed(model), _hooked(watched, watcher):
        with watcher:
            outputs = call_with(model, inputs)
        watcher.read(tensors_in(outputs), OUTPUT)
        watcher.read_by_holders()
    watcher.seen.readers = watcher.only_readers(dict(watched))
    return watcher.seen


@contextmanager
def _hooked(watched: list[tuple[str, nn.Module]], watcher: _Watcher) -> Iterator[None]:
    """Have the watcher told when modules start and end."""
    with ExitStack() as hooks:
        for path, module in watched:
            before = module.register_forward_pre_hook(
                lambda _, args, kwargs, path=path: watcher.start(path, args, kwargs), with_kwargs=True
            )
            after = module.register_forward_hook(lambda _, args, result, path=path: watcher.end(path, result))
            hooks.callback(before.remove)
            hooks.callback(after.remove)
        yield


class _Watcher(_compat.DispatchMode):
    """Sees every op, and knows in which watched module it runs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = Observed()
        self.calls: Counter[str] = Counter()
        self._inside: list[str] = []
        self._results: dict[int, _Result] = {}

    def start(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module is called."""
        given = [*args, *kwargs.values()]
        first = next((value for value in given if isinstance(value, Tensor)), None)
        if first is not None:
            self.seen.inputs.setdefault(path, []).append(first.shape)
        alike = len(given) >= 3 and given[0] is given[1] and given[1] is given[2]
        self.seen.alike[path] = alike and self.seen.alike.get(path, True)
        self.calls[path] += 1
        self._inside.append(path)

    def end(self, path: str, result: Any) -> None:
        """A module has returned."""
        self._inside.pop()
        if isinstance(result, Tensor):
            self.seen.results[path] = result.dim()
            self._results.setdefault(_memory(result), _Result(path, result))

    def read(self, values: Sequence[Any], reader: str, written: int = 0) -> None:
        """Somebody has read tensors, and written to the memory of one."""
        for value in values:
            if isinstance(value, Tensor) and value.layout == torch.strided:
                result = self._results.get(_memory(value))
                if result is not None:
                    result.readers.append((reader, _memory(value) == written))

    def read_by_holders(self) -> None:
        """What somebody still holds after the run (a list, an attribute, an object that is returned) may be read."""
        alone = _num_holders(_Result("", torch.empty(1)))
        for result in self._results.values():
            if _num_holders(result) > alone:
                result.readers.append((OUTPUT, False))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an op and note what it reads."""
        values = tree_leaves((args, kwargs))
        in_place = func._schema.is_mutable and isinstance(args[0] if args else None, Tensor)
        self.read(values, self._inside[-1] if self._inside else "", _memory(args[0]) if in_place else 0)
        return func(*args, **(kwargs or {}))

    def only_readers(self, modules: dict[str, nn.Module]) -> dict[str, str]:
        """Modules whose result one other module alone reads, or reads and overwrites before anybody else does."""
        found = {}
        for result in self._results.values():
            names = {name for name, _ in result.readers}
            first, in_place = result.readers[0] if result.readers else (OUTPUT, False)
            alone = len(names) == 1 or (in_place and isinstance(modules.get(first), nn.ReLU))
            if alone and first in modules and self.calls[first] == self.calls[result.module] == 1:
                found[result.module] = first
        return found


def _num_holders(result: _Result) -> int:
    """How many hold a tensor, or another one of the same memory."""
    return sys.getrefcount(result.tensor) + int(torch._C._storage_Use_Count(result.tensor.untyped_storage()._cdata))


def _memory(tensor: Tensor) -> int:
    """What tensors that share memory have in common."""
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else 0
