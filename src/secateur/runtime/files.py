"""Files of compressed models: sparse tensors as one bit an entry and their values, in safetensors."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike, fspath
from typing import Any

import torch
from torch import Tensor, nn

from secateur import _native
from secateur._errors import InvalidInputError, SecateurError
from secateur._files import opened
from secateur._names import owner_of, put_module
from secateur.masks.packing import count_kept, num_bytes, pack, unpack
from secateur.runtime.choosing import obstacle
from secateur.runtime.compressed import Compressed
from secateur.runtime.describing import build
from secateur.runtime.formats import CONV_FORMATS, LINEAR_FORMATS, ConvFormat, LinearFormat
from secateur.runtime.origins import Origin, contents
from secateur.runtime.preparing import bare_
from secateur.runtime.recipe import Recipe, geometry_of, held, inside, layer_weight, open_, pack_
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
    packed = {f"{name}.weight" for name in fast.recipe.layers}
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
    }
    write_file(path, "compressed", header, tensors)


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
    with opened(fspath(path), "compressed", _FORMAT, fix=_FIX) as (file, header):
        try:
            written = _dense({name: tensor_in(file, header, name) for name in file.keys()}, header["sparse"])  # noqa: SIM118
            added = {name.removeprefix(_ADDED): written.pop(name) for name in [*written] if name.startswith(_ADDED)}
            content, recipe = Content.read(header, written), Recipe.from_json(header["recipe"])
            structure: Mapping[str, Any] | None = header["structure"]
        except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
            if isinstance(error, SecateurError):
                raise
            raise InvalidInputError(f"{path} is damaged.", error=repr(error)[:80]) from error
    plain = _plain(path, model, structure)
    fit_(plain, content)
    return _compressed(plain, recipe, added, path)


def _plain(path: str | PathLike[str], model: nn.Module | None, structure: Mapping[str, Any] | None) -> nn.Module:
    """The model that the tensors of a file go into."""
    if model is None and structure is None:
        raise InvalidInputError(
            f"{path} holds a model with code of its own, which a file cannot bring.",
            fix="load_compressed(path, model), with an instance of its class",
        )
    plain = build(structure) if model is None else copy.deepcopy(model)  # type: ignore[arg-type]
    return bare_(plain)


def _compressed(plain: nn.Module, recipe: Recipe, added: Mapping[str, Tensor], path: str | PathLike[str]) -> Compressed:
    """The model with its layers packed again."""
    origin = Origin.of(plain, recipe.norms)
    holder = held(plain)
    try:
        for name, bias in added.items():
            owner, leaf = owner_of(inside(holder), name)
            setattr(owner, leaf, nn.Parameter(bias, requires_grad=False))
        for norm in recipe.norms.values():
            put_module(inside(holder), norm, nn.Identity().eval())
        open_(holder, recipe)
        here = replace(recipe, layers=_available(inside(holder), recipe.layers))
        pack_(holder, here)
    except (AttributeError, AssertionError, InvalidInputError, KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(f"the recipe of {path} does not fit the model.", error=str(error)[:120]) from error
    return Compressed(inside(holder), here, origin, None)


def _available(model: nn.Module, layers: Mapping[str, str]) -> dict[str, str]:
    """The formats of a recipe that this machine has; others are replaced by one that it has, if there is any."""
    found = {}
    for path, name in layers.items():
        layer = model.get_submodule(path)
        why = obstacle(layer)
        if why:
            raise InvalidInputError(f"{path!r} cannot be packed: {why}.")
        weight = layer_weight(layer)
        usable = [each for each in (name, *_table(weight)) if _is_usable(each, layer, weight)]
        if usable:
            found[path] = usable[0]
    return found


def _table(weight: Tensor) -> Mapping[str, LinearFormat] | Mapping[str, ConvFormat]:
    """The formats for a weight of so many dims."""
    return LINEAR_FORMATS if weight.dim() == 2 else CONV_FORMATS


def _is_usable(name: str, layer: nn.Module, weight: Tensor) -> bool:
    """Whether a format is there, and can hold a weight."""
    each = _table(weight)[name]
    if each.is_native and _native.library() is None:
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
