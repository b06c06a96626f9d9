"""Models of torch's own layers as JSON: their types and the arguments that they are made with.

For a model that is nothing but layers of torch.nn inside nn.Sequential, the text is enough to build it again. Anything
else has code of its own, which no file here carries.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from secateur._errors import InvalidInputError
from secateur.runtime.norms import has_hooks

__all__ = ["build", "description"]

_NOT_ASKED = frozenset(("self", "device", "dtype"))


def description(model: nn.Module) -> dict[str, Any] | None:
    """The text from which `build` makes a model of the same structure, or none if there is no such text.

    Example:
        >>> description(nn.Sequential(nn.Linear(3, 2), nn.ReLU()))["parts"][1]
        ['1', {'type': 'ReLU', 'arguments': {'inplace': False}}]
    """
    found = None if any(has_hooks(module) for module in model.modules()) else _described(model)
    if found is None:
        return None
    shapes, again = _shapes(model), None
    try:
        with torch.device("meta"):
            again = _shapes(build(found))
    except (InvalidInputError, RuntimeError, TypeError, ValueError):  # arguments that are no longer what they were
        return None
    return found if again == shapes else None


def build(found: Mapping[str, Any]) -> nn.Module:
    """Build a model from its description, with new values.

    Raises:
        InvalidInputError: The text describes no model.
    """
    try:
        if found["type"] == "Sequential":
            model = nn.Sequential()
            for name, part in found["parts"]:
                model.add_module(name, build(part))
            return model
        kind = getattr(nn, found["type"])
        if not (inspect.isclass(kind) and issubclass(kind, nn.Module) and _is_known(kind)):
            raise InvalidInputError("only layers of torch.nn can be built from a file.", found=found["type"])
        arguments = {name: tuple(v) if isinstance(v, list) else v for name, v in found["arguments"].items()}
        built: nn.Module = kind(**arguments)
        return built
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidInputError("the file's description of the model is damaged.", error=str(error)[:80]) from error


def _described(model: nn.Module) -> dict[str, Any] | None:
    """The text for one module; none for a kind that is unknown."""
    if type(model) is nn.Sequential:
        parts = [[name, _described(part)] for name, part in model.named_children()]
        return None if any(part is None for _, part in parts) else {"type": "Sequential", "parts": parts}
    kind = type(model)
    if not _is_known(kind) or next(model.children(), None) is not None:
        return None
    arguments = {}
    takes_none = kind.__init__ in (nn.Module.__init__, nn.Identity.__init__)
    for name, parameter in () if takes_none else inspect.signature(kind.__init__).parameters.items():
        if name in _NOT_ASKED or name.startswith("_"):
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or not hasattr(model, name):
            return None
        value = getattr(model, name)
        value = value is not None if name == "bias" else value
        if not _is_plain(value):
            return None
        arguments[name] = list(value) if isinstance(value, tuple) else value
    return {"type": kind.__name__, "arguments": arguments}


def _is_known(kind: type[nn.Module]) -> bool:
    """Whether a class is one of torch.nn's layers."""
    return kind.__module__.startswith("torch.nn.modules.") and getattr(nn, kind.__name__, None) is kind


def _is_plain(value: object) -> bool:
    """Whether a value goes through JSON and back, tuples as lists."""
    if isinstance(value, tuple | list):
        return all(_is_plain(each) for each in value)
    return value is None or isinstance(value, bool | int | float | str)


def _shapes(model: nn.Module) -> tuple[str, dict[str, Any]]:
    """What two models of one structure have in common."""
    return repr(model), {name: tensor.shape for name, tensor in model.state_dict().items()}
