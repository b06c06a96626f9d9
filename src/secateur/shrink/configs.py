"""Configs of transformers: what one says of the sizes of a model, and which one describes a smaller model."""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from secateur._errors import InvalidInputError, ShapeError, UnsupportedError
from secateur._passes import Inputs, call_with
from secateur.graph.capture import tensors_in
from secateur.graph.provenance import old_size, stored_sizes
from secateur.shrink.content import Content, Numbers
from secateur.shrink.pretrained import is_of_transformers, who_has_sizes

__all__ = ["config_before", "config_of", "describes", "is_smaller", "recorded_by_config", "refuse_unlike"]

_SIZES = re.compile(r"size|dim|heads|n_head|inner|d_model|d_ff|d_kv|n_embd")
_OTHERS = re.compile(r"vocab|position|patch|image|window|kernel")
_LAYERS = re.compile(r"(\w+_)?(layers|n_layer)")
_NUMBER = re.compile(r"\d+")
_MOST, _MOST_COMBINED = 2048, 10_000  # configs that are tried, and that are put in order for it
_SAYS_NOTHING = {"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache"}

_ITS_OWN = "make the model from the config in the folder"

Shapes = dict[str, tuple[int, ...]]


# ---- loading


def recorded_by_config(model: nn.Module, content: Content, folder: Path) -> Numbers:
    """Numbers that modules record, as a model with the config in a folder has them.

    Args:
        model: The model of transformers that is to become as small as the weights in the folder.
        content: Their shapes.
        folder: The folder.

    Returns:
        The numbers; none if the shapes are those of the model, whose own they are then.

    Raises:
        UnsupportedError: The config differs from the model's in more than sizes.
        ShapeError: The config is not that of the weights.
    """
    if not is_smaller(model, content):
        return []
    config = type(model.config).from_pretrained(folder)  # type: ignore[union-attr]  # which models of transformers have
    made = _made_on_meta(type(model), config)
    if made is None or _shapes(made) != {name: tuple(tensor.shape) for name, tensor in content.tensors.items()}:
        raise ShapeError(
            f"the weights in {folder} do not fit the config beside them.",
            fix=who_has_sizes(folder),
        )
    refuse_unlike(model, made, folder)
    return [(a.label, a.name, a.index, int(value), int(value)) for a, value in stored_sizes(made)]


def is_smaller(model: nn.Module, content: Content) -> bool:
    """Whether a tensor of a content has another shape than that of the model."""
    own = _shapes(model)
    return any(own.get(name, tensor.shape) != tensor.shape for name, tensor in content.tensors.items())


def refuse_unlike(model: Any, made: Any, folder: Path) -> None:
    """Refuse a model that could not become like that of a folder by changes of sizes alone.

    Raises:
        UnsupportedError: Configs, other numbers or tables that are in no file differ.
    """
    _refuse_other_config(model.config, made.config, folder)
    if (_values(model), _unsaved(model)) != (_values(made), _unsaved(made)):
        raise UnsupportedError(
            f"the config in {folder} changes more than sizes: scales of attention, or tables that no file has.",
            fix=_ITS_OWN,
        )


def _refuse_other_config(own: Any, its: Any, folder: Path) -> None:
    """Refuse a config that differs in more than integers."""
    mine, theirs = own.to_dict(), its.to_dict()
    names = [n for n in mine | theirs if n not in _SAYS_NOTHING and mine.get(n) != theirs.get(n)]
    others = [n for n in names if not all(value is None or _is_size(value) for value in (mine.get(n), theirs.get(n)))]
    if others:
        raise UnsupportedError(
            f"the config in {folder} differs from that of the model in more than sizes.",
            differ=", ".join(f"{name}: {theirs.get(name)} for {mine.get(name)}" for name in others[:4]),
            fix=_ITS_OWN,
        )


def _values(model: nn.Module) -> dict[tuple[str, str], float]:
    """Numbers with a fraction that modules keep."""
    return {(path, name): v for path, m in model.named_modules() for name, v in vars(m).items() if type(v) is float}


def _unsaved(model: nn.Module) -> Shapes:
    """Shapes of buffers that are in no state dict."""
    saved = model.state_dict()
    return {name: tuple(buffer.shape) for name, buffer in model.named_buffers() if name not in saved}


def _is_size(value: object) -> bool:
    """Whether a value of a config is a size."""
    return isinstance(value, int) and not isinstance(value, bool)


# ---- saving


def config_before(model: Any, config: Any | None) -> Any:
    """The config of a model as it was before units were removed: of its own, or the one that is given.

    Raises:
        InvalidInputError: There is none, or it does not describe a model that the model could have been before.
    """
    found = copy.deepcopy(getattr(model, "config", None) if config is None else config)
    if not is_of_transformers(model):
        raise InvalidInputError(
            f"{type(model).__name__} is no model of transformers.", fix="secateur.save(model, path) writes any model"
        )
    for name, value in vars(found).items():
        if old_size(value) is not value:
            setattr(found, name, old_size(value))
    before, now = _shapes(_made_on_meta(type(model), found)), _shapes(model)
    wrong = [name for name, shape in now.items() if not _is_within(shape, before.get(name))]
    if wrong or before.keys() != now.keys():
        raise InvalidInputError(
            f"the config is not that of {type(model).__name__} before units were removed.",
            tensor=(wrong or sorted(before.keys() - now.keys()))[0],
            fix="config=copy.deepcopy(model.config), taken before",
        )
    return found


def config_of(model: Any, before: Any, inputs: Inputs) -> Any | None:
    """The config that describes a smaller model, if there is one.

    A config has one number for all layers, so only a uniform shrink has one; and a new model of it must compute what
    the smaller model computes, bit by bit, which is tried on the example inputs.

    Args:
        model: The smaller model.
        before: Its config before.
        inputs: Example inputs.
    """
    old, wanted = _shapes(_made_on_meta(type(model), before)), _shapes(model)
    if not _is_uniform(old, wanted):
        return None
    has_shallow = _made_on_meta(type(model), _shallow(before)) is not None
    for candidate in itertools.islice(_candidates(before, old, wanted), _MOST):
        if has_shallow and not _may_fit(_made_on_meta(type(model), _shallow(candidate)), wanted):
            continue
        made = _made_on_meta(type(model), candidate)
        is_like = made is not None and _shapes(made) == wanted and _values(made) == _values(model)
        if is_like and _can_be_written(candidate) and _computes_the_same(candidate, model, inputs):
            return candidate
    return None


def describes(config: Any, model: nn.Module) -> bool:
    """Whether a new model of a config has the shapes of a model."""
    return _shapes(_made_on_meta(type(model), config)) == _shapes(model)


def _can_be_written(config: Any) -> bool:
    """Whether transformers writes a config and reads it again, where it looks at whether numbers go together."""
    with TemporaryDirectory() as folder:
        try:
            config.save_pretrained(folder)
            type(config).from_pretrained(folder)
        except Exception:  # whatever a class raises for sizes that do not go together
            return False
    return True


def _is_uniform(old: Shapes, new: Shapes) -> bool:
    """Whether tensors that differ in the number of their layer only, and were alike, are so still."""
    after: dict[tuple[str, tuple[int, ...]], set[tuple[int, ...]]] = {}
    for name, shape in new.items():
        after.setdefault((_NUMBER.sub("#", name), old[name]), set()).add(shape)
    return all(len(shapes) == 1 for shapes in after.values())


def _candidates(config: Any, old: Shapes, new: Shapes) -> Iterator[Any]:
    """Configs that the smaller model may have, those with the fewest changes first."""
    ratios = {(a, b) for name in old for a, b in zip(old[name], new[name], strict=True) if a != b}
    choices: dict[str, list[int | None]] = {}
    for name, value in config.to_dict().items():
        if not _SIZES.search(name) or _OTHERS.search(name):
            continue
        if _is_size(value) and value > 1:
            smaller = {value * b // a for a, b in ratios if (value * b) % a == 0}
            choices[name] = [value, *sorted(smaller - {value})]
        elif value is None:  # what follows from other sizes, unless it is said
            choices[name] = [None, *sorted({b for _, b in ratios})]
    if math.prod(map(len, choices.values())) > _MOST_COMBINED:
        return
    for values in sorted(itertools.product(*choices.values()), key=lambda each: _changes(choices, each)):
        candidate = copy.deepcopy(config)
        for name, value in zip(choices, values, strict=True):
            setattr(candidate, name, value)
        yield candidate


def _changes(choices: Mapping[str, list[int | None]], values: tuple[int | None, ...]) -> int:
    """How many values are not those of before."""
    return sum(value != several[0] for several, value in zip(choices.values(), values, strict=True))


def _shallow(config: Any) -> Any:
    """A config of one layer, of which a model is soon made."""
    shallow = copy.deepcopy(config)
    for name, value in config.to_dict().items():
        if _is_size(value) and _LAYERS.fullmatch(name):
            setattr(shallow, name, 1)
    return shallow


def _may_fit(made: nn.Module | None, wanted: Shapes) -> bool:
    """Whether a model of one layer has what the first layer is to have."""
    return made is not None and all(wanted.get(name) == shape for name, shape in _shapes(made).items())


def _made_on_meta(kind: Any, config: Any) -> nn.Module | None:
    """A model of a config, without memory; None if there is no such model."""
    try:
        with torch.device("meta"):
            made: nn.Module = kind(config)
    except Exception:  # whatever a class raises for sizes that do not go together
        return None
    return made


def _shapes(model: nn.Module | None) -> Shapes:
    """Shapes by name."""
    return {} if model is None else {name: tuple(value.shape) for name, value in model.state_dict().items()}


def _is_within(shape: tuple[int, ...], other: tuple[int, ...] | None) -> bool:
    """Whether a shape has as many dims as another, none of which is larger."""
    return other is not None and len(shape) == len(other) and all(a <= b for a, b in zip(shape, other, strict=True))


def _computes_the_same(config: Any, model: nn.Module, inputs: Inputs) -> bool:
    """Whether a new model with this config and the same weights computes what the model computes."""
    again = type(model)(config).eval()
    again.load_state_dict(model.state_dict(), assign=True)  # the same memory: where it lies, kernels differ in bits
    own = dict(model.named_buffers())
    for name, buffer in again.named_buffers():
        buffer.data = buffer.data.to(own[name])
    modes = {module: module.training for module in model.modules()}
    try:
        with torch.no_grad():
            mine, its = (_floats(call_with(each, inputs)) for each in (again, model.eval()))
    finally:
        for module, was in modes.items():
            module.training = was
    return len(mine) == len(its) and all(map(torch.equal, mine, its))


def _floats(outputs: Any) -> list[Tensor]:
    """The outputs that are numbers."""
    return [tensor for tensor in tensors_in(outputs) if tensor.is_floating_point()]
