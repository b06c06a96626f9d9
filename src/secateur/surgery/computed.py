"""Weights that are computed from other tensors: what they are made of, and how all of it follows.

A weight under ``torch.nn.utils.parametrize``, the older ``weight_norm`` and ``spectral_norm``, or
``torch.nn.utils.prune`` is no parameter. Its *principal* is the tensor of the same shape that it is made from: naming
the weight means naming that, and the other parts follow it. These are the lengths of weight norm and the vectors of
spectral norm (see `normalised`), and the mask of ``prune``. Everything else is refused, unless a rule says that its
parts follow position by position (`parametrization_rule`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from secateur import _compat
from secateur.surgery.change import Change
from secateur.surgery.edits import Do, Edit
from secateur.surgery.normalised import length_followers, normalised_vectors, rescaled_lengths, vector_followers
from secateur.surgery.places import Place, own_tensors
from secateur.surgery.refusals import computed_weight
from secateur.surgery.selection import Selection

__all__ = [
    "PARAMETRIZATIONS",
    "Follower",
    "ParametrizationRule",
    "computed_places",
    "computed_tensors",
    "followers",
    "parametrization_rule",
    "principal",
    "refresh",
    "rescale",
]

Follower = tuple[nn.Module, str, Selection]
"""A tensor that follows another one: the module that owns it, its short name, what happens to it."""

ParametrizationRule = Callable[[Any, Selection], Mapping[str, Selection]]
"""(parametrization, what happens to the original) -> what happens to the parametrization's own tensors, by name."""

PARAMETRIZATIONS: dict[type[nn.Module], ParametrizationRule] = {}


def parametrization_rule(
    kind: type[nn.Module],
) -> Callable[[ParametrizationRule], ParametrizationRule]:
    """Register that a parametrization works position by position, and which of its own tensors are cut with the weight.

    Args:
        kind: The class of the parametrization. Its output must have the shape of its input, and a position of the
            output must not depend on positions that are removed.

    Returns:
        The decorator for a function of the parametrization and the `Selection` on the weight it is given. The function
        returns a `Selection` for each parameter and buffer of the parametrization that follows, by name.

    Example:
        >>> class Masked(nn.Module):
        ...     '''Multiplies a weight by a mask.'''
        ...     def __init__(self, mask):
        ...         super().__init__()
        ...         self.register_buffer("mask", mask)
        ...     def forward(self, weight):
        ...         return weight * self.mask
        >>> @parametrization_rule(Masked)
        ... def mask_follows(masked, selection):
        ...     return {"mask": selection}
    """

    def register(rule: ParametrizationRule) -> ParametrizationRule:
        PARAMETRIZATIONS[kind] = rule
        return rule

    return register


def principal(place: Place) -> Place:
    """Where the tensor is that a name really means: the place itself, or the main part of a computed weight.

    Raises:
        UnsupportedError: The weight is computed in a way that does not keep positions apart.
    """
    module, leaf = place.module, place.leaf
    if _is_parametrized(module) and parametrize.is_parametrized(module, leaf):
        parts = _parts(module, leaf)
        _known_kind(place, parts)
        prefix = f"{place.prefix}." if place.prefix else ""
        return Place(parts, f"{prefix}parametrizations.{leaf}", _main_part(parts))
    main = next((main for _, name, main in _hooks(module) if name == leaf), leaf)
    return place if main == leaf else Place(module, place.prefix, main)


def computed_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The names of a module's computed weights, each with a tensor of its shape; nothing is computed for this."""
    if _is_parametrized(module):
        for leaf in module.parametrizations:  # type: ignore[union-attr]
            parts = _parts(module, leaf)
            originals = dict(own_tensors(parts))
            if _main_part(parts) in originals:
                yield leaf, originals[_main_part(parts)]
    for _, name, part in _hooks(module):
        yield name, getattr(module, part)


def computed_places(model: nn.Module) -> dict[int, list[Place]]:
    """Where the weights are that are computed from a tensor, by the tensor's id."""
    found: dict[int, list[Place]] = {}
    for prefix, module in model.named_modules():
        for leaf, tensor in computed_tensors(module):
            found.setdefault(id(tensor), []).append(Place(module, prefix, leaf))
    return found


def followers(place: Place, selection: Selection) -> Iterator[Follower]:
    """Other parts of the computed weight that the tensor at `place` belongs to.

    Raises:
        UnsupportedError: The other parts cannot follow.
    """
    module, leaf = place.module, place.leaf
    if isinstance(module, parametrize.ParametrizationList) and leaf.startswith("original"):
        yield from _parametrized(place, module, selection)
    for hook, name, main in _hooks(module):
        if isinstance(hook, BasePruningMethod) and leaf in (main, f"{name}_mask"):
            yield module, f"{name}_mask", selection.on(selection.dim, _ones)
            yield module, main, selection if leaf == main else selection.on(selection.dim)
        elif isinstance(hook, WeightNorm) and leaf in (main, f"{name}_g"):
            yield from length_followers(place, hook.dim, (f"{name}_g", main), selection)
        elif isinstance(hook, SpectralNorm) and leaf == main:
            names = (f"{name}_u", f"{name}_v")
            yield from ((module, n, s) for n, s in vector_followers(place, hook.dim, names, selection))


def rescale(place: Place, changes: Mapping[int, Change]) -> Iterator[Edit]:
    """Edits that give parts of a computed weight other values than a slice, once they have their shapes.

    Args:
        place: Where a changed tensor is.
        changes: All changes of the model, by the tensor's id.
    """
    module, leaf = place.module, place.leaf
    if isinstance(module, parametrize.ParametrizationList):
        if isinstance(module[0], _compat.WeightNorm) and leaf == "original1":
            yield from rescaled_lengths(place, module.get_parameter("original0"), module[0].dim, changes)
        if isinstance(module[0], _compat.SpectralNorm) and leaf == "original":
            yield from normalised_vectors(module[0], ("_u", "_v"), changes)
    for hook, name, main in _hooks(module):
        if isinstance(hook, WeightNorm) and leaf == main:
            yield from rescaled_lengths(place, getattr(module, f"{name}_g"), hook.dim, changes)
        if isinstance(hook, SpectralNorm) and leaf == main:
            yield from normalised_vectors(module, (f"{name}_u", f"{name}_v"), changes)


def refresh(module: nn.Module) -> Iterator[Edit]:
    """Edits that compute plain attributes anew which forward pre-hooks have set from tensors that have changed."""
    for hook, name, _ in _hooks(module):
        if isinstance(hook, WeightNorm):
            compute = partial(hook.compute_weight, module)
        elif isinstance(hook, SpectralNorm):
            compute = partial(hook.compute_weight, module, do_power_iteration=False)
        else:
            compute = partial(hook.apply_mask, module)
        yield Do(partial(_set, module, name, compute), partial(setattr, module, name, getattr(module, name)))


def _set(module: nn.Module, name: str, compute: Callable[[], Tensor]) -> None:
    """Set a plain tensor attribute."""
    setattr(module, name, compute())


def _is_parametrized(module: nn.Module) -> bool:
    """Whether a module has parametrized tensors; most have none, and torch's own question takes long to say so."""
    return "parametrizations" in module._modules and parametrize.is_parametrized(module)


def _parts(module: nn.Module, leaf: str) -> parametrize.ParametrizationList:
    """What a parametrized weight is made of."""
    parts: parametrize.ParametrizationList = module.parametrizations[leaf]  # type: ignore[index,assignment]
    return parts


def _main_part(parts: parametrize.ParametrizationList) -> str:
    """The name of the original that has the weight's shape, if there is one."""
    return "original1" if isinstance(parts[0], _compat.WeightNorm) else "original"


def _hooks(module: nn.Module) -> Iterator[tuple[Any, str, str]]:
    """Forward pre-hooks that compute a weight: the hook, the weight's name, the name of its main part."""
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm):
            yield hook, hook.name, f"{hook.name}_v"
        elif isinstance(hook, SpectralNorm):
            yield hook, hook.name, f"{hook.name}_orig"
        elif isinstance(hook, BasePruningMethod):
            yield hook, hook._tensor_name, f"{hook._tensor_name}_orig"


def _known_kind(place: Place, parts: parametrize.ParametrizationList) -> None:
    """Refuse parametrizations that do not work position by position, as far as is known."""
    if len(parts) > 1:
        raise computed_weight(place, "it has several parametrizations, one on the other", *parts)
    known = (_compat.WeightNorm, _compat.SpectralNorm, *PARAMETRIZATIONS)
    if isinstance(parts[0], _compat.Orthogonal):
        raise computed_weight(place, "a part of an orthogonal matrix is not orthogonal", *parts)
    if not isinstance(parts[0], known):
        raise computed_weight(
            place, "it is not known to work position by position (secateur.surgery.parametrization_rule)", *parts
        )


def _parametrized(place: Place, parts: parametrize.ParametrizationList, selection: Selection) -> Iterator[Follower]:
    """What follows the original of a parametrized weight."""
    _known_kind(place, parts)
    part = parts[0]
    if isinstance(part, _compat.WeightNorm):
        yield from length_followers(place, part.dim, ("original0", "original1"), selection)
    elif isinstance(part, _compat.SpectralNorm):
        if place.tensor.dim() > 1:
            vectors = vector_followers(place, part.dim, ("_u", "_v"), selection)
            yield from ((part, name, follower) for name, follower in vectors)
    else:
        rule = next(rule for kind, rule in PARAMETRIZATIONS.items() if isinstance(part, kind))
        yield from ((part, name, follower) for name, follower in rule(part, selection).items())


def _ones(slab: Tensor) -> None:
    """Fill new positions of a mask: they are kept."""
    slab.fill_(1)
