"""The two normalised weights of torch: what happens to their parts besides being cut.

Weight norm, w = g · v / ‖v‖: the lengths g follow the directions v. Where directions lose entries that are not zero,
their norms shrink, and g is rescaled so that the kept weights stay what they were.

Spectral norm, w = v / σ: the vectors of the power iteration are cut and brought back to length 1. σ is an iterate, so
the weight after the cut differs from a slice of the weight before, until the iteration has caught up.

References:
    Salimans and Kingma, Weight Normalization, 2016, equation 2.
    Miyato, Kataoka, Koyama and Yoshida, Spectral Normalization for Generative Adversarial Networks, 2018, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from secateur.surgery.change import Change
from secateur.surgery.edits import Edit, SetValue
from secateur.surgery.places import Place
from secateur.surgery.refusals import computed_weight
from secateur.surgery.selection import Selection

__all__ = ["length_followers", "normalised_vectors", "rescaled_lengths", "vector_followers"]


def length_followers(
    place: Place, dim: int, names: tuple[str, str], selection: Selection
) -> Iterator[tuple[nn.Module, str, Selection]]:
    """What follows in weight norm when lengths or directions change.

    Args:
        place: Where the one that changes is.
        dim: The dim along which there are lengths; -1 for one length in all.
        names: Short names of the lengths g, of size 1 in all dims but `dim`, and of the directions v.
        selection: What happens to it.

    Returns:
        Owning module, short name and selection of the other one, if it follows.

    Raises:
        UnsupportedError: New directions would be zeros, or would change the norms of old ones.
    """
    lengths, directions = names
    along = dim != -1 and selection.dim == dim % place.tensor.dim()
    if place.leaf == lengths:
        if selection.num_new and not along:
            raise computed_weight(place, "there is one length for all positions of that dim", place.module)
        if along:
            yield place.module, directions, selection.on(selection.dim)
    elif along:
        yield place.module, lengths, selection.on(selection.dim, _norms(place, dim, selection))
    elif isinstance(selection.init, Tensor) and not selection.init.is_meta and bool(selection.init.any()):
        raise computed_weight(place, "new entries that are not 0 would change the norms of the old ones", place.module)


def _norms(place: Place, dim: int, selection: Selection) -> Tensor | None:
    """Lengths of new directions: those that make the new weights what `init` says."""
    if not selection.num_new:
        return None
    norms = torch.norm_except_dim(selection.init, 2, dim) if isinstance(selection.init, Tensor) else None
    if norms is None or not (norms.is_meta or bool(norms.all())):
        raise computed_weight(place, "new zeros have no direction (0 / 0): grow the weight, with `init`", place.module)
    return norms


def rescaled_lengths(place: Place, lengths: Tensor, dim: int, changes: Mapping[int, Change]) -> Iterator[Edit]:
    """Lengths g for directions that have lost entries: g · ‖v after‖ / ‖v before‖, so that g · v / ‖v‖ stays.

    Args:
        place: Where the directions are.
        lengths: The lengths.
        dim: The dim along which there are lengths; -1 for one length in all.
        changes: All changes of the model, by the tensor's id.

    Raises:
        UnsupportedError: A direction would have no entry left that is not zero.
    """
    if place.tensor.is_meta:
        return
    change = changes[id(place.tensor)]
    rows_dim = dim if dim == -1 else dim % place.tensor.dim()
    cut = [s for s in change.selections if s.dim != rows_dim and s.keep.numel() < s.size]
    old = place.tensor.detach().to(torch.promote_types(place.tensor.dtype, torch.float32))
    lost = sum((torch.norm_except_dim(_removed(old, s), 2, dim) for s in cut), torch.zeros_like(lengths))
    if not bool(lost.any()):
        return
    rows = changes.get(id(lengths), Change("", lengths))
    before, after = (torch.norm_except_dim(v, 2, dim) for v in (old, change.take(old)))
    before, lost = rows.take(before), rows.take(lost)
    if bool(((after == 0) & (before != 0)).any()):
        raise computed_weight(place, "a row would keep only zeros, which have no direction (0 / 0)", place.module)
    ratio = torch.where(lost == 0, torch.ones_like(before), after / before)
    yield SetValue(lengths, rows.take_value(lengths) * ratio.to(lengths.dtype))


def _removed(tensor: Tensor, selection: Selection) -> Tensor:
    """The part of a tensor that goes."""
    return tensor.index_select(selection.dim, selection.removed.to(tensor.device))


def vector_followers(
    place: Place, dim: int, names: tuple[str, str], selection: Selection
) -> Iterator[tuple[str, Selection]]:
    """What follows in spectral norm when the weight changes: u over `dim`, v over all other dims, flattened in order.

    Args:
        place: Where the original weight is.
        dim: The dim that the norm takes for rows.
        names: Short names of u and v.
        selection: What happens to the weight.

    Returns:
        Name and selection of the vector that is cut.

    Raises:
        UnsupportedError: The weight grows.
    """
    if selection.num_new:
        raise computed_weight(place, "the singular vectors have no entries for new positions", place.module)
    shape = list(place.tensor.shape)
    rows = dim % len(shape)
    if selection.dim == rows:
        yield names[0], selection.on(0)
        return
    others = [d for d in range(len(shape)) if d != rows]
    flat = torch.arange(place.tensor.numel() // shape[rows], device="cpu").view([shape[d] for d in others])
    kept = flat.index_select(others.index(selection.dim), selection.keep).flatten()
    yield names[1], Selection(0, flat.numel(), kept)


def normalised_vectors(owner: nn.Module, names: tuple[str, str], changes: Mapping[int, Change]) -> Iterator[Edit]:
    """The cut vectors of a power iteration, at length 1; spread evenly where nothing is left of one.

    Args:
        owner: The module that has them as buffers.
        names: Their short names.
        changes: All changes of the model, by the tensor's id.
    """
    for name in names:
        change = changes.get(id(owner._buffers.get(name)))
        if change is not None and not change.tensor.is_meta:
            kept = change.take(change.tensor)
            even = torch.ones_like(kept)
            direction = kept if bool(kept.any()) else even
            yield SetValue(change.tensor, direction / direction.norm())
