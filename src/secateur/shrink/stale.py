"""Numbers in a model's own code that may not fit any more when only shapes say how small it has become."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from secateur.graph.provenance import stored_sizes
from secateur.graph.trace import named_tensors
from secateur.shrink.content import Content

__all__ = ["watched"]

_MOST = 8

Place = tuple[str, str, int | None]


@contextmanager
def watched(model: nn.Module, content: Content) -> Iterator[None]:
    """Warn if what happens in the block makes tensors smaller, and numbers that code reads may not fit them any more.

    Layers of torch.nn follow their tensors. Of other modules that own such layers, those integers are told that
    ``forward`` reads, that have not changed along with the shapes, and that divide a size which has changed. A number
    that is written out in the code is not found.

    Args:
        model: The model.
        content: What is loaded; there is no warning if it says which numbers its modules have.
    """
    sizes, numbers = _sizes(model), _numbers(model)
    yield
    if content.numbers:
        return
    now = _sizes(model)
    gone = {name: {a for a, b in zip(old, now[name], strict=True) if a != b} for name, old in sizes.items()}
    same = {place: value for place, value in _numbers(model).items() if value > 1 and numbers[place] == value}
    told = [*dict.fromkeys(_stale(model, same, {name: old for name, old in gone.items() if old}))]
    if told:
        warnings.warn(
            "the shapes of a smaller model do not say which numbers its code computes with, and these may not fit any "
            f"more: {', '.join(told[:_MOST])}{' …' if told[_MOST:] else ''}. A file that secateur.save or secateur "
            "apply has written records them; or set them by hand.",
            stacklevel=4,
        )


def _sizes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Shapes by name."""
    return {name: tuple(tensor.shape) for name, tensor in named_tensors(model).items()}


def _numbers(model: nn.Module) -> dict[Place, int]:
    """Integers that modules and their configs store, by place."""
    return {(place.label, place.name, place.index): int(value) for place, value in stored_sizes(model)}


def _stale(model: nn.Module, numbers: Mapping[Place, int], gone: Mapping[str, set[int]]) -> Iterator[str]:
    """What may not fit any more, each with its class and its value."""
    for path, module in model.named_modules():
        old = {size for name in _owned(module, path) for size in gone.get(name, ())}
        if not old or _is_of_torch(module):
            continue
        read = _names_read(type(module))
        for (label, name, _), value in numbers.items():
            config = label.removeprefix(f"{path}.") if path else label
            is_own = label == path or (config in vars(module) and config in read)
            if is_own and name in read and any(size % value == 0 for size in old):
                kind = type(module).__name__
                yield f"{kind}.{name} ({value})" if label == path else f"{kind}.{config}.{name} ({value})"


def _owned(module: nn.Module, path: str) -> Iterator[str]:
    """Names of a module's tensors, and of those of layers and containers of torch in it."""
    for name in (*module._parameters, *module._buffers):
        yield f"{path}.{name}".lstrip(".")
    for name, child in module.named_children():
        if _is_of_torch(child):
            yield from _owned(child, f"{path}.{name}".lstrip("."))


def _is_of_torch(module: nn.Module) -> bool:
    """Whether a module's code is torch's own."""
    return type(module).__module__.startswith("torch.")


def _names_read(kind: type) -> set[str]:
    """Names in the code of ``forward``, and of methods and functions of the same package that it names."""
    found: set[str] = set()
    waiting: list[Any] = [getattr(kind, "forward", None)]
    seen: set[Any] = set()
    while waiting:
        function = inspect.unwrap(waiting.pop())
        if not isinstance(function, FunctionType) or function in seen:
            continue
        seen.add(function)
        names = set(_names_in(function.__code__))
        found |= names
        waiting += [inspect.getattr_static(kind, name, None) for name in names]
        waiting += [function.__globals__.get(name) for name in names if _is_near(function.__globals__.get(name), kind)]
        waiting += [cell.cell_contents for cell in function.__closure__ or () if _is_function_in(cell)]
    return found


def _names_in(code: CodeType) -> Iterator[str]:
    """Names of attributes and globals in a piece of code and those within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
        elif isinstance(constant, str):  # getattr(self, "num_heads")
            yield constant


def _is_near(value: object, kind: type) -> bool:
    """Whether something is a function of the package that a class is from."""
    return isinstance(value, FunctionType) and value.__module__.partition(".")[0] == kind.__module__.partition(".")[0]


def _is_function_in(cell: Any) -> bool:
    """Whether a cell of a closure holds a function."""
    try:
        return isinstance(cell.cell_contents, FunctionType)
    except ValueError:  # empty yet
        return False
