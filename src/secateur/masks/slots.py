"""Where masks are stored: in the ``__dict__`` of the module that owns the parameter, by the parameter's short name.

So a deep copy or a pickle of the module, or of any module around it, carries them along, while the names of parameters
and the keys of state dicts do not change. A slot stands for the name: whichever parameter is put there, by loading or
by hand, gets the mask.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from secateur._errors import ShapeError, UnsupportedError
from secateur.masks import registry
from secateur.masks.capture import Capture
from secateur.masks.eligible import unmaskable
from secateur.masks.mask import Mask
from secateur.masks.registry import mask_of

__all__ = ["empty", "mask_at", "masked_parameters", "rejoin", "store"]

_SLOTS = "_secateur_masks"
"""Key in the ``__dict__`` of a module: {short parameter name: Mask}."""


def store(model: nn.Module, mask: Mask) -> None:
    """Store a mask with every module of `model` that owns its parameter, and watch what is loaded there."""
    for module in model.modules():
        for leaf, owned in module._parameters.items():
            if owned is mask.parameter:
                vars(module).setdefault(_SLOTS, {})[leaf] = mask
                if _after_load not in module._load_state_dict_post_hooks.values():
                    module.register_load_state_dict_post_hook(_after_load)


def empty(model: nn.Module, keep: Mapping[str, object] | None = None) -> None:
    """Release the masks of a model and forget them.

    Args:
        model: The model.
        keep: Dotted names of parameters whose masks stay; none if left out.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    kept = {id(mask_of(parameters[name])) for name in keep or ()}
    for module in model.modules():
        slots: dict[str, Mask] = vars(module).get(_SLOTS, {})
        for leaf in [leaf for leaf, mask in slots.items() if id(mask) not in kept]:
            slots.pop(leaf).release()
        if not slots and vars(module).pop(_SLOTS, None) is not None:
            _forget_hook(module)


def rejoin(model: nn.Module) -> None:
    """Give parameters that have come into a module unseen (a conversion can make new ones) the masks of their names."""
    for module in model.modules():
        for leaf, parameter, _ in _slots(module):
            _take_over(module, leaf, parameter)


def masked_parameters(model: nn.Module) -> dict[str, Mask]:
    """The masks of a model by the first names of their parameters, in the model's order."""
    rejoin(model)
    named = ((name, mask_of(parameter)) for name, parameter in model.named_parameters())
    return {name: mask for name, mask in named if mask is not None}


def mask_at(module: nn.Module, leaf: str) -> Mask | None:
    """The mask of a module's own parameter, None if it has none."""
    parameter = module._parameters.get(leaf)
    if parameter is None:
        return None
    if any(name == leaf for name, _, _ in _slots(module)):
        _take_over(module, leaf, parameter)
    return mask_of(parameter)


def _slots(module: nn.Module) -> Iterator[tuple[str, nn.Parameter, Mask]]:
    """The filled slots of a module: short name, the parameter that has this name now, the mask."""
    slots: dict[str, Mask] = vars(module).get(_SLOTS, {})
    for leaf, mask in list(slots.items()):
        parameter = module._parameters.get(leaf)
        if parameter is not None and mask.is_active:
            yield leaf, parameter, mask


def _take_over(module: nn.Module, leaf: str, parameter: nn.Parameter) -> None:
    """Have the parameter that now has this name masked, as the one was that had it before."""
    slots: dict[str, Mask] = vars(module)[_SLOTS]
    present = mask_of(parameter)
    if present is None:
        old = slots[leaf]
        _check_successor(leaf, old, parameter)
        present = Mask(parameter, old.bits.copy())
        present.apply_to_given_()
        present.listen(old.listener, enforced=old.is_enforced)
        present.capture = None if old.capture is None else Capture()
        for follower in old.followers():
            present.lead(follower)
    slots[leaf] = present


def _check_successor(leaf: str, mask: Mask, parameter: nn.Parameter) -> None:
    """Refuse a parameter that cannot have the mask of the one before it."""
    fix = "secateur.Masks(model).remove() lets go of the masks"
    why = unmaskable(parameter)
    if why:
        raise UnsupportedError(
            f"cannot put another parameter in the place of {leaf!r}, which is masked: {why[0]}.", fix=fix
        )
    if mask.bits.shape != parameter.shape:
        raise ShapeError(
            f"cannot put another parameter in the place of {leaf!r}: its mask has another shape.",
            mask=tuple(mask.bits.shape),
            parameter=tuple(parameter.shape),
            fix=f"secateur.resize_(…) cuts parameter, mask and optimizer state together; {fix}",
        )


@registry.at_first_mask
def _start() -> None:
    """Have torch call us whenever a parameter is put into a module."""
    register_module_parameter_registration_hook(_on_registration)


def _on_registration(module: nn.Module, name: str, parameter: Tensor) -> None:
    """Any module gets a parameter: if the name is masked, so is what it stands for now."""
    slots: dict[str, Mask] = vars(module).get(_SLOTS, {})
    if name in slots and slots[name].is_active and isinstance(parameter, nn.Parameter):
        _take_over(module, name, parameter)


def _after_load(module: nn.Module, incompatible: object) -> None:
    """The module has loaded a state dict: mask its weights again."""
    for leaf, parameter, _ in _slots(module):
        _take_over(module, leaf, parameter)
    for _, _, mask in _slots(module):
        if not mask.is_untouched():
            mask.apply_to_loaded_()


def _forget_hook(module: nn.Module) -> None:
    """Stop watching what is loaded into a module."""
    hooks = module._load_state_dict_post_hooks
    for key in [key for key, hook in hooks.items() if hook is _after_load]:
        del hooks[key]
