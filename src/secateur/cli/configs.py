"""The config of a shrunk transformers model, where there is one: then ``from_pretrained`` loads it like any other."""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from secateur import ShrinkPlan
from secateur._passes import Inputs, call_with
from secateur.cli.folders import quiet, transformers
from secateur.graph.capture import tensors_in

__all__ = ["save_with_config"]

_SIZES = re.compile(r"size|dim|heads|n_head|inner|d_model|d_ff|d_kv|n_embd")
_OTHERS = re.compile(r"vocab|position|patch|image|window|kernel")
_NUMBER = re.compile(r"\d+")
_MOST, _MOST_COMBINED = 256, 10_000  # configs that are tried, and that are put in order for it
_TOLERANCE = 1e-4


def save_with_config(model: Any, config: Any, plan: ShrinkPlan, inputs: Inputs, folder: Path) -> bool:
    """Write a shrunk model of transformers so that ``from_pretrained`` loads it, if some config describes it.

    A config has one number for all layers, so only a uniform shrink has one; and it must compute what the shrunk model
    computes, which is tried on the example inputs.

    Args:
        model: The shrunk model.
        config: Its config before.
        plan: What was removed.
        inputs: Example inputs.
        folder: Where to.

    Returns:
        Whether it was written.
    """
    if not _is_uniform(model, plan):
        return False
    wanted = _shapes(model)
    for candidate in itertools.islice(_candidates(config, plan), _MOST):
        if _shapes_of(type(model), candidate) == wanted and _computes_the_same(candidate, model, inputs):
            before, model.config = model.config, candidate
            with quiet(transformers()):
                model.save_pretrained(folder)
            model.config = before
            return True
    return False


def _is_uniform(model: nn.Module, plan: ShrinkPlan) -> bool:
    """Whether tensors that differ in the number of their layer only, and were alike, are so still."""
    after: dict[tuple[str, tuple[int, ...]], set[tuple[int, ...]]] = {}
    for name, shape in _shapes(model).items():
        after.setdefault((_NUMBER.sub("#", name), plan.shapes.get(name, shape)), set()).add(shape)
    return all(len(shapes) == 1 for shapes in after.values())


def _candidates(config: Any, plan: ShrinkPlan) -> Iterator[Any]:
    """Configs that the smaller model may have, those with the fewest changes first."""
    ratios = {(plan.shapes[name][dim], len(keep)) for name, dims in plan.keep.items() for dim, keep in dims.items()}
    choices: dict[str, list[int]] = {}
    for name, value in config.to_dict().items():
        if isinstance(value, int) and value > 1 and _SIZES.search(name) and not _OTHERS.search(name):
            smaller = {value * new // old for old, new in ratios if (value * new) % old == 0}
            choices[name] = [value, *sorted(smaller - {value})]
    if math.prod(map(len, choices.values())) > _MOST_COMBINED:
        return
    for values in sorted(itertools.product(*choices.values()), key=lambda each: _changes(choices, each)):
        candidate = copy.deepcopy(config)
        for name, value in zip(choices, values, strict=True):
            setattr(candidate, name, value)
        yield candidate


def _changes(choices: Mapping[str, list[int]], values: tuple[int, ...]) -> int:
    """How many values are not those of before."""
    return sum(value != several[0] for several, value in zip(choices.values(), values, strict=True))


def _shapes_of(kind: Any, config: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of a model with such a config; none if there is no such model."""
    try:
        with torch.device("meta"):
            return _shapes(kind(config))
    except Exception:  # whatever a class raises for sizes that do not go together
        return {}


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Shapes by name."""
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}


def _computes_the_same(config: Any, model: nn.Module, inputs: Inputs) -> bool:
    """Whether a new model with this config and the same weights computes what the model computes."""
    again = type(model)(config).eval().to(next(model.parameters()).dtype)
    again.load_state_dict(model.state_dict())
    with torch.no_grad():
        mine, its = (_floats(call_with(each, inputs)) for each in (again, model))
    if [tensor.shape for tensor in mine] != [tensor.shape for tensor in its]:
        return False
    most = max((float(tensor.abs().max()) for tensor in its), default=0.0)
    return all(float((a - b).abs().max()) <= _TOLERANCE * most for a, b in zip(mine, its, strict=True))


def _floats(outputs: Any) -> list[Tensor]:
    """The outputs that are numbers."""
    return [tensor.double() for tensor in tensors_in(outputs) if tensor.is_floating_point()]
