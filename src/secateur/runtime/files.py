"""Files of compressed models: sparse tensors as one bit an entry and their values, in safetensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike, fspath
from typing import Any

import torch
from torch import Tensor, nn

from secateur._errors import InvalidInputError, ShapeError
from secateur._files import opened
from secateur._names import owner_of, put_module
from secateur.graph.provenance import stored_sizes
from secateur.masks.packing import count_kept, num_bytes, pack, unpack
from secateur.runtime.attention import can_be_opened
from secateur.runtime.choosing import can_have_channels_last, obstacle
from secateur.runtime.compressed import Compressed
from secateur.runtime.describing import build
from secateur.runtime.formats import CONV_FORMATS, LINEAR_FORMATS, ConvFormat, LinearFormat
from secateur.runtime.norms import is_pair
from secateur.runtime.origins import Origin, contents, kinds_of
from secateur.runtime.preparing import bare_, plain_copy
from secateur.runtime.recipe import CHANNELS_LAST, Recipe, geometry_of, held, inside, layer_weight, open_, pack_
from secateur.runtime.zeros import sparsity_of
from secateur.shrink.files import tensor_in, write_file
from secateur.shrink.saving import Content, fit_

__all__ = ["load_compressed", "write"]

_FORMAT = "secateur.compressed.1"
_BITS, _VALUES, _ADDED = "|bits", "|values", "added|"
_LEAST_SPARSITY = 0.2  # from which on a bit an entry and the values are smaller
_FIX = "fast.save(path) writes such files, where fast is what secateur.compress returns"


def write(fast: Compressed, path: str | PathLike[str]) -> None:
    """Write a compressed model; see `Compressed.save`."""
    content, added = contents(fast.model, fast.origin, fast.recipe.norms)
    tensors, sparse = {}, {}
    packed = {f"{name}.weight" for name in fast.recipe.packed}
    packed -= {twin for name, twin in content.aliases.items() if name not in packed}
    for name, tensor in {**content.written(), **{_ADDED + name: bias for name, bias in added.items()}}.items():
        if not tensor.is_floating_point() or sparsity_of(tensor) < _LEAST_SPARSITY:
            tensors[name] = tensor.clone()
            continue
        mask = tensor != 0
        values = tensor[mask]
        tensors[name + _BITS] = pack(mask)
        tensors[name + _VALUES] = values.to(getattr(torch, fast.recipe.values)) if name in packed else values
        sparse[name] = [list(tensor.shape), str(tensor.dtype).removeprefix("torch.")]
    header = {
        "format": _FORMAT,
        **content.header(),
        "sparse": sparse,
        "recipe": fast.recipe.to_json(),
        "structure": fast.origin.structure,
        "kinds": fast.origin.kinds,
    }
    write_file(path, "compressed", header, tensors)


@torch.inference_mode(mode=False)
def load_compressed(path: str | PathLike[str], model: nn.Module | None = None) -> Compressed:
    """Read a model that `Compressed.save` has written.

    Args:
        path: The file.
        model: An instance of the class that was compressed, as large as it was then; its values do not matter, and it
            stays as it is. It is not needed where the model was made of torch's own layers in nn.Sequential.

    Returns:
        The compressed model, in the formats that were chosen when it was made. A format that this machine does not have
        (the native kernels, where there was no compiler) is replaced by one that it has, or the layer is dense.

    Raises:
        InvalidInputError: The file is none of `save`, truncated or altered; or a model is needed.
        ShapeError: The model is of another architecture.
    """
    own = None if model is None else plain_copy(model, None)
    with opened(fspath(path), "compressed", _FORMAT, fix=_FIX) as (file, header), _damage_told(path):
        written = _dense({name: tensor_in(file, header, name) for name in file.keys()}, header["sparse"])  # noqa: SIM118
        added = {name.removeprefix(_ADDED): written.pop(name) for name in [*written] if name.startswith(_ADDED)}
        content, recipe = Content.read(header, written), Recipe.from_json(header["recipe"])
        if own is None:
            own = _built(path, header["structure"], content)
        _refuse_other(own, header["kinds"], content)
        _give_dtypes_(own, content)
        fit_(own, content)
        return _compressed(own, recipe, added)


@contextmanager
def _damage_told(path: str | PathLike[str]) -> Iterator[None]:
    """Tell whatever a damaged file leads to as what it is."""
    try:
        yield
    except InvalidInputError:
        raise
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidInputError(f"{path} is damaged.", error=repr(error)[:120]) from error


def _built(path: str | PathLike[str], structure: Mapping[str, Any] | None, content: Content) -> nn.Module:
    """The model that a file describes. It gets memory only when its tensors are known to be those of the file."""
    if structure is None:
        raise InvalidInputError(
            f"{path} holds a model with code of its own, which a file cannot bring.",
            fix="load_compressed(path, model), with an instance of its class",
        )
    with torch.device("meta"):
        built = build(structure)
    wanted = {name: tensor.shape for name, tensor in _tensors(built).items()}
    if wanted != {name: tensor.shape for name, tensor in (content.tensors | content.buffers).items()}:
        raise ShapeError(f"{path} describes a model of other tensors than it holds.")
    return bare_(built.to_empty(device="cpu"))


def _refuse_other(model: nn.Module, kinds: Mapping[str, str], content: Content) -> None:
    """Refuse a model whose code is another one than that of the file, as far as classes and recorded numbers tell."""
    own = kinds_of(model)
    for path in (*own, *kinds):
        if own.get(path) != kinds.get(path):
            raise ShapeError(
                f"the model is of another architecture than the file's: {path or 'the model'!r} is of another class.",
                model=own.get(path, "not there"),
                file=kinds.get(path, "not there"),
            )
    numbers = {(place.label, place.name, place.index): int(value) for place, value in stored_sizes(model)}
    for label, name, index, new, _ in content.numbers:
        number = numbers.get((label, name, index), new)
        if number < new:  # units may have gone, none has come
            raise ShapeError(
                f"the model is of another architecture than the file's: '{label}.{name}' is another number.",
                model=number,
                file=new,
            )


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """The state of a model, and buffers that are in none."""
    return dict(model.named_buffers()) | model.state_dict()


def _give_dtypes_(model: nn.Module, content: Content) -> None:
    """Turn floating-point tensors of a model into those that a file has: it may have been made in another dtype."""
    found = content.tensors | content.buffers
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        new = found.get(name, tensor)
        if tensor.dtype != new.dtype and tensor.is_floating_point() and new.is_floating_point():
            tensor.data = tensor.data.to(new.dtype)


def _compressed(plain: nn.Module, recipe: Recipe, added: Mapping[str, Tensor]) -> Compressed:
    """The model with its layers packed again."""
    _check(plain, recipe, added)
    origin = Origin.of(plain, recipe.norms)
    holder = held(plain)
    for name, bias in added.items():
        owner, leaf = owner_of(plain, name)
        setattr(owner, leaf, nn.Parameter(bias, requires_grad=False))
    for norm in recipe.norms.values():
        put_module(plain, norm, nn.Identity().eval())
    open_(holder, recipe)
    layers = _available(plain, recipe.layers)
    activations = {path: relu for path, relu in recipe.activations.items() if path in layers}
    here = replace(recipe, layers=layers, activations=activations)
    pack_(holder, here)
    return Compressed(inside(holder), here, origin, None)


def _check(model: nn.Module, recipe: Recipe, added: Mapping[str, Tensor]) -> None:
    """Refuse a recipe whose paths lead to other kinds of modules than it is about."""
    modules = dict(model.named_modules())
    biases = {f"{path}.bias": modules[path].weight.shape[:1] for path in recipe.norms if modules[path].bias is None}
    is_sound = (
        all(is_pair(modules[path], modules[norm]) for path, norm in recipe.norms.items())
        and all(can_be_opened(modules[path]) for path in recipe.attentions)
        and all(path in recipe.layers and type(modules[relu]) is nn.ReLU for path, relu in recipe.activations.items())
        and biases == {name: bias.shape for name, bias in added.items()}
    )
    if not is_sound:
        raise InvalidInputError("the recipe of the file does not fit its model.", recipe=str(recipe)[:120])


def _available(model: nn.Module, layers: Mapping[str, str]) -> dict[str, str]:
    """The formats of a recipe that this machine has; others are replaced by one that it has, if there is any."""
    found = {}
    for path, name in layers.items():
        layer = model.get_submodule(path)
        if name == CHANNELS_LAST and can_have_channels_last(layer):
            found[path] = name
            continue
        why = obstacle(layer)
        if why:
            raise InvalidInputError(f"{path!r} cannot be packed: {why}.")
        weight = layer_weight(layer)
        others = () if _table(weight)[name].is_dense else _table(weight)
        usable = [each for each in (name, *others) if _is_usable(each, layer, weight)]
        if usable:
            found[path] = usable[0]
    return found


def _table(weight: Tensor) -> Mapping[str, LinearFormat] | Mapping[str, ConvFormat]:
    """The formats for a weight of so many dims."""
    return LINEAR_FORMATS if weight.dim() == 2 else CONV_FORMATS


def _is_usable(name: str, layer: nn.Module, weight: Tensor) -> bool:
    """Whether a format is there, and can hold a weight."""
    each = _table(weight)[name]
    if each.absence():
        return False
    return not (each.misfit(weight) if isinstance(each, LinearFormat) else each.misfit(weight, geometry_of(layer)))


def _dense(tensors: dict[str, Tensor], sparse: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a file with the sparse ones dense again.

    Raises:
        InvalidInputError: Bits, values and shape of one do not belong together.
    """
    for name, (shape, dtype) in sparse.items():
        bits, values = tensors.pop(name + _BITS), tensors.pop(name + _VALUES)
        count = math.prod(shape)
        is_whole = all(isinstance(size, int) and size >= 0 for size in shape) and bits.dtype == torch.uint8
        if not is_whole or bits.shape != (num_bytes(count),) or values.dim() != 1 or count_kept(bits) != len(values):
            raise InvalidInputError(f"bits and values of {name!r} do not belong together.", shape=shape)
        padded = unpack(bits, torch.Size((8 * len(bits),)))
        if bool(padded[count:].any()):
            raise InvalidInputError(f"the bits of {name!r} go beyond its entries.", shape=shape)
        dense = torch.zeros(count, dtype=getattr(torch, dtype))
        dense[padded[:count]] = values.to(dense.dtype)
        tensors[name] = dense.view(shape)
    return tensors
