"""To and from ``torch.nn.utils.prune``: the same masks, the same parameters, another way of holding them.

There a pruned ``weight`` is three things: the parameter ``weight_orig``, the buffer ``weight_mask``, and a plain tensor
``weight`` that a hook computes anew before each forward. The parameter object never changes: the one that was called
``weight`` is called ``weight_orig`` then. So whatever holds it (an optimizer, a tied module) still does after either
conversion, and nothing has to be re-registered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from secateur._errors import InvalidInputError, ShapeError, UnsupportedError
from secateur._names import computed_by, owner_of, tied_names
from secateur._wrappers import refuse_model, unwrapped
from secateur.masks import Masks
from secateur.masks.commit import Optimizers, check_held, listed, put_
from secateur.masks.eligible import unmaskable
from secateur.masks.registry import mask_of
from secateur.surgery.refusals import refuse_call

__all__ = ["from_torch_prune", "to_torch_prune"]


@dataclass(frozen=True)
class _Pruned:
    """A tensor that ``torch.nn.utils.prune`` masks.

    Args:
        name: Its dotted name as that of a plain model.
        module: The module that owns it.
        leaf: Its name there.
        hook: Number of the hook that computes it.
    """

    name: str
    module: nn.Module
    leaf: str
    hook: int

    @property
    def parameter(self) -> nn.Parameter:
        """The parameter that the optimizer holds."""
        return self.module.get_parameter(f"{self.leaf}_orig")

    @property
    def mask(self) -> Tensor:
        """The mask as bool: the product of all methods that were applied, and of the mask that the parameter has."""
        mask, present = self.module.get_buffer(f"{self.leaf}_mask") != 0, mask_of(self.parameter)
        return mask if present is None else mask & present.bits.dense.to(mask.device)

    def make_plain_(self) -> None:
        """Give the module its parameter back under its own name, and let go of hook and buffer."""
        module, leaf, parameter = self.module, self.leaf, self.parameter
        del module._forward_pre_hooks[self.hook]
        del module._parameters[f"{leaf}_orig"], module._buffers[f"{leaf}_mask"]
        vars(module).pop(leaf, None)
        setattr(module, leaf, parameter)
        for later in _names_after(module, leaf):
            module._parameters[later] = module._parameters.pop(later)


def from_torch_prune(model: nn.Module, optimizer: Optimizers = None, *, lean: bool = False) -> Masks:
    """Turn what ``torch.nn.utils.prune`` has put on a model into masks; the model is a plain one again.

    Every method is understood (unstructured, structured, global, custom, several on one tensor), since torch keeps one
    mask of zeros and ones for each tensor. Masks that the same parameters have already stay in force: what either has
    removed is removed. Where ``prune.remove`` has been called already, only zeros are left: ``Masks.from_zeros(model)``
    adopts those. Copies of the model (an ``AveragedModel``) are converted by a call of their own.

    Args:
        model: The model, with ``weight_orig`` and ``weight_mask`` for some of its tensors.
        optimizer: The optimizer, or several. It holds ``weight_orig``, which is the parameter itself, and so needs no
            change; naming it checks that and clears its momenta at masked places now.
        lean: See `prune_`.

    Returns:
        The masks of the model.

    Changes:
        ``weight_orig`` is called ``weight`` again, ``weight_mask`` and the hook are gone. Values, gradients and momenta
        at masked places, which torch keeps under the mask, become 0.

    Keeps:
        The parameter objects, values of kept weights, the module's output, keys and order of a plain state_dict.

    Raises:
        InvalidInputError: Nothing in the model is pruned that way.
        UnsupportedError: A mask with other values than 0 and 1, or on a tied parameter whose other names are not
            pruned alike; a parameter that cannot be masked, or that something else computes or is computed from.
        HolderError: The optimizer does not hold the parameters. Nothing is changed then.

    Example:
        >>> layer = nn.Linear(3, 2)
        >>> weight = layer.weight
        >>> _ = prune.l1_unstructured(layer, "weight", amount=0.5)
        >>> from_torch_prune(layer)
        Masks: 3 of 6 weights are zero (50.00 %) in 1 tensor
          weight  (2, 3)  3 zeros  50.00 %
          not masked: bias
        >>> layer.weight is weight, list(layer.state_dict())
        (True, ['weight', 'bias'])
    """
    refuse_call()
    refuse_model(model)
    model, optimizers = unwrapped(model), listed(optimizer)
    found = list(_pruned(model))
    if not found:
        raise InvalidInputError(
            f"nothing in {type(model).__name__} is pruned by torch.nn.utils.prune.",
            fix="secateur.Masks.from_zeros(model) adopts the zeros that prune.remove leaves behind",
        )
    for each in found:
        _check_plain(model, each)
        _check(each)
    _check_ties(model, found)
    if optimizers:
        check_held(model, {each.name: each.parameter for each in found}, optimizers)
    masks = {each.name: each.mask for each in found}
    for each in found:
        each.make_plain_()
    put_(model, masks, optimizers, lean=lean)
    return Masks(model)


def to_torch_prune(model: nn.Module) -> list[tuple[nn.Module, str]]:
    """Hand a model's masks over to ``torch.nn.utils.prune``; secateur lets go of them.

    Args:
        model: A model with masks.

    Returns:
        The tensors as (module, name), as ``prune.global_unstructured`` and ``prune.remove`` take them.

    Changes:
        ``weight`` is called ``weight_orig``, its mask is the buffer ``weight_mask``, a hook computes ``weight``.

    Keeps:
        The parameter objects, so optimizers go on; all values.

    Raises:
        InvalidInputError: The model has no masks.
        UnsupportedError: A masked parameter belongs to a module whose forward is never called (``nn.ParameterList``,
            ``out_proj`` of ``nn.MultiheadAttention``), where torch would go on with the values of now. Nothing is
            changed then.

    Example:
        >>> layer = nn.Linear(3, 2)
        >>> masks = Masks.from_dict(layer, {"weight": torch.tensor([[True, False, True]] * 2)})
        >>> to_torch_prune(layer)
        [(Linear(in_features=3, out_features=2, bias=True), 'weight')]
        >>> layer.weight_mask[0], prune.is_pruned(layer)
        (tensor([1., 0., 1.]), True)
    """
    refuse_call()
    masks = Masks(model)
    if not masks:
        raise InvalidInputError(
            f"{type(masks.model).__name__} has no masks to hand over.", fix="secateur.prune_(model, sparsity=…) first"
        )
    names = tied_names(masks.model)
    places = {
        (id(module), leaf): (module, leaf, mask)
        for first, mask in masks.items()
        for module, leaf in (owner_of(masks.model, name) for name in names[first])
    }
    never_called = list(_never_called(masks.model))
    for module, leaf, _ in places.values():
        if any(module is each for each in never_called):
            raise UnsupportedError(
                f"cannot hand over the mask of {leaf!r} of a {type(module).__name__}: torch computes pruned tensors "
                "before the module's forward, which is never called here.",
                fix="leave it to secateur, or prune_(model, …, exclude=[…]) without it",
            )
    masks.remove()
    for module, leaf, mask in places.values():
        prune.custom_from_mask(module, leaf, mask)
    return [(module, leaf) for module, leaf, _ in places.values()]


def _never_called(model: nn.Module) -> Iterator[nn.Module]:
    """Modules whose parameters are used by others, without a call of the module itself."""
    for module in model.modules():
        if type(module).forward is nn.Module.forward:
            yield module
        if isinstance(module, nn.MultiheadAttention):
            yield module.out_proj


def _pruned(model: nn.Module) -> Iterator[_Pruned]:
    """Every tensor that torch masks, in the model's order."""
    for path, module in model.named_modules():
        for number, hook in module._forward_pre_hooks.items():
            if isinstance(hook, prune.BasePruningMethod):
                leaf = hook._tensor_name
                yield _Pruned(f"{path}.{leaf}" if path else leaf, module, leaf, number)


def _check_plain(model: nn.Module, pruned: _Pruned) -> None:
    """Refuse what something else than pruning computes too: it would not be a plain parameter afterwards."""
    method = pruned.module._forward_pre_hooks[pruned.hook]
    why = next((w for n in (pruned.name, f"{pruned.name}_orig") if (w := computed_by(model, n, besides=method))), "")
    if why:
        raise UnsupportedError(
            f"cannot convert {pruned.name!r}: it is computed by, or is part of, {why} too.",
            fix="remove that first (remove_parametrizations, remove_weight_norm …), or make the zeros permanent with "
            "prune.remove",
        )


def _check(pruned: _Pruned) -> None:
    """Refuse what would not be the same as a mask."""
    mask, parameter = pruned.module.get_buffer(f"{pruned.leaf}_mask"), pruned.parameter
    if mask.shape != parameter.shape:
        raise ShapeError(
            f"{pruned.name}_mask has another shape than the parameter.",
            mask=tuple(mask.shape),
            parameter=tuple(parameter.shape),
        )
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise UnsupportedError(
            f"cannot convert {pruned.name!r}: its mask has other values than 0 and 1.",
            values=mask.unique()[:4].tolist(),
            fix="multiply the weight by the mask first: prune.remove(module, name), then Masks.from_zeros(model)",
        )
    why = unmaskable(parameter)
    if why:
        raise UnsupportedError(f"cannot mask {pruned.name!r}: {why[0]}.", fix=why[1])


def _check_ties(model: nn.Module, found: list[_Pruned]) -> None:
    """Refuse a tied parameter that is not pruned alike under all its names: there is one mask for it."""
    at = {(id(each.module), f"{each.leaf}_orig"): each for each in found}
    for names in tied_names(model).values():
        places = ((id(module), leaf) for module, leaf in (owner_of(model, name) for name in names))
        pruned = [at[place] for place in places if place in at]
        if pruned and (len(pruned) < len(names) or any(not torch.equal(p.mask, pruned[0].mask) for p in pruned)):
            raise UnsupportedError(
                f"cannot convert {pruned[0].name!r}: it is tied, and not pruned alike under all its names.",
                names=names,
                fix="prune all of them with one mask (prune.custom_from_mask), or untie them first",
            )


def _names_after(module: nn.Module, leaf: str) -> list[str]:
    """Short names of a module's parameters that belong behind one that was registered last: as torch's layers do it."""
    own = list(module._parameters)
    flat: list[str] = getattr(module, "_flat_weights_names", [])
    if leaf in flat:
        return [name for name in flat[flat.index(leaf) + 1 :] if name in own]
    return [name for name in own if "bias" in name and "bias" not in leaf]
