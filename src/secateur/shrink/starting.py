"""Values that new units begin with: as their layers begin, or those of another unit; what reads them is zero."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from secateur._names import owner_of, tied_names
from secateur.graph.trace import named_tensors
from secateur.shrink.placing import Layout

__all__ = ["Init", "Layouts", "Place", "copied", "drawn", "is_unclear", "negated", "reads", "slabs"]

Init = Literal["default", "copy"]
"""Values of new units: as the layer's own ``reset_parameters`` draws them, or those of another unit with noise."""

Place = tuple[str, int]
"""A dim of a tensor: its name and the number of the dim."""

Layouts = Mapping[str, Mapping[int, Layout]]
"""Layouts of the dims that grow, by tensor name and dim."""

_NOISE = 0.05
"""Standard deviation of the noise on copies, as a fraction of that of the tensor."""

_RECURRENT = (nn.RNNBase, nn.RNNCellBase)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_MATRICES = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Bilinear, nn.Embedding, nn.EmbeddingBag)
_KNOWN = (*_RECURRENT, *_TRANSPOSED, *_MATRICES, nn.MultiheadAttention)


def reads(model: nn.Module, place: Place) -> bool:
    """Whether a layer multiplies its input along a dim of its weight, so that zeros there read nothing.

    A tied weight reads if it does so in any of the layers that it belongs to.
    """
    name, dim = place
    names = next((several for several in tied_names(model).values() if name in several), [name])
    return any(_reads(*owner_of(model, one), dim) for one in names)


def _reads(module: nn.Module, leaf: str, dim: int) -> bool:
    """Whether a module multiplies its input along a dim of one of its own parameters."""
    if isinstance(module, _TRANSPOSED):
        return leaf == "weight" and dim == 0 and module.groups == 1
    if isinstance(module, nn.Bilinear):
        return leaf == "weight" and dim > 0
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return False
    return isinstance(module, _KNOWN) and "weight" in leaf and dim == 1


def is_unclear(model: nn.Module, place: Place) -> bool:
    """Whether it is not known which dim of a weight reads.

    That goes for matrices that are parameters of a class of the user's, and for the first dim of a grouped transposed
    convolution, whose channels are read or, as whole groups, passed on.
    """
    name, dim = place
    module, leaf = owner_of(model, name)
    tensor = named_tensors(model)[name]
    if isinstance(module, _TRANSPOSED):
        return leaf == "weight" and dim == 0 and module.groups > 1
    return isinstance(tensor, nn.Parameter) and sum(n > 1 for n in tensor.shape) > 1 and not isinstance(module, _KNOWN)


def copied(model: nn.Module, layouts: Layouts, *, noise: bool, seed: int) -> dict[str, Tensor]:
    """Tensors of the size afterwards, in which new positions hold what those that they are copies of hold.

    Args:
        model: The model before.
        layouts: What grows.
        noise: Whether a little noise is added to new entries of matrices.
        seed: Where the noise comes from.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors = named_tensors(model)
    found = {}
    for name, several in layouts.items():
        full = tensors[name].detach()
        for dim, layout in several.items():
            full = full.index_select(dim, torch.from_numpy(layout.source).to(full.device))
        if noise and full.is_floating_point() and isinstance(tensors[name], nn.Parameter) and full.dim() > 1:
            noisy = full + _NOISE * tensors[name].detach().std() * torch.randn(full.shape, generator=generator).to(full)
            full = torch.where(_is_new(full, several), noisy, full)
        found[name] = full
    return found


def drawn(grown: nn.Module, layouts: Layouts, *, seed: int) -> dict[str, Tensor]:
    """Tensors in which new positions hold what the layers' own ``reset_parameters`` draws; layers without it left out.

    Args:
        grown: A copy of the model that has grown; its values change.
        layouts: What has grown.
        seed: Where the values come from.
    """
    owners: dict[int, tuple[nn.Module, list[str]]] = {}
    for name in layouts:
        module, _ = owner_of(grown, name)
        owners.setdefault(id(module), (module, []))[1].append(name)
    found = {}
    for module, names in owners.values():
        reset: Callable[[], Any] | None = getattr(module, "reset_parameters", None) or getattr(
            module, "_reset_parameters", None
        )
        if reset is None:
            continue
        if isinstance(module, nn.MultiheadAttention):  # which takes its form from a flag that free heads need otherwise
            module._qkv_same_embed_dim = module.in_proj_weight is not None
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(seed)
            reset()
        found.update({name: named_tensors(grown)[name].detach().clone() for name in names})
    return found


def slabs(full: Mapping[str, Tensor], layouts: Layouts, zero: Iterable[Place]) -> dict[str, dict[int, Tensor]]:
    """Values of the new positions of each dim, of the shape that growing the dims one after the other asks for.

    Args:
        full: Tensors of the size afterwards.
        layouts: What grows.
        zero: Places whose new positions hold zeros.
    """
    found: dict[str, dict[int, Tensor]] = {}
    zeros = set(zero)
    for name, several in layouts.items():
        tensor = full[name].clone()
        for dim, layout in several.items():
            if (name, dim) in zeros:
                tensor.index_fill_(dim, _indices(layout.is_new, tensor), 0)
        later = tensor
        parts: dict[int, Tensor] = {}
        for dim, layout in reversed(list(several.items())):
            parts[dim] = later.index_select(dim, _indices(layout.is_new, later))
            later = later.index_select(dim, _indices(~layout.is_new, later))
        found[name] = {dim: parts[dim] for dim in several}
    return found


def _indices(flags: np.ndarray[Any, np.dtype[np.bool_]], like: Tensor) -> Tensor:
    """Positions at which flags are set, on the device of a tensor."""
    return torch.from_numpy(np.flatnonzero(flags)).to(like.device)


def _is_new(full: Tensor, several: Mapping[int, Layout]) -> Tensor:
    """Which entries of a grown tensor are new along any dim."""
    found = torch.zeros(full.shape, dtype=torch.bool, device=full.device)
    for dim, layout in several.items():
        found.index_fill_(dim, _indices(layout.is_new, full), value=True)
    return found


def negated(values: Mapping[str, Mapping[int, Tensor]], parameters: Iterable[str]) -> dict[str, dict[int, Tensor]]:
    """The same values with the other sign in parameters, so that what a ReLU held back comes through."""
    own = set(parameters)
    return {
        name: {dim: -slab if name in own and slab.is_floating_point() else slab for dim, slab in several.items()}
        for name, several in values.items()
    }
