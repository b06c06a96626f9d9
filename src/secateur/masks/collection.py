"""The masks of a model as one object: look at them, change them, save them, let them go."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from secateur._errors import HolderError, InvalidInputError, ShapeError
from secateur._names import tied_names
from secateur.masks import keeper, registry
from secateur.masks.eligible import check_maskable, default_names
from secateur.masks.mask import Mask, masks_in
from secateur.masks.packing import num_bytes, unpack
from secateur.masks.state import freshen_state_

__all__ = ["Masks"]


class Masks(Mapping[str, Tensor]):
    """The masks that a model has at the moment, by dotted name; a mapping from names to bool tensors (True = kept).

    The masks themselves live in the model's modules, beside the parameters, and are held by every optimizer's step.
    This object only finds them, so any number of them may exist.

    Args:
        model: The model. Masks that it carries already (a deep copy or unpickled model does) are found.

    Example:
        >>> model = nn.Linear(4, 2)
        >>> masks = Masks.from_dict(model, {"weight": torch.tensor([[True, True, False, False]] * 2)})
        >>> masks
        Masks: 4 of 8 weights are zero (50.00 %) in 1 tensor
          weight  (2, 4)  4 zeros  50.00 %
          not masked: bias
        >>> masks["weight"][0], masks.sparsity()
        (tensor([ True,  True, False, False]), 0.5)
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = getattr(model, "_orig_mod", model)

    @classmethod
    def from_dict(
        cls,
        model: nn.Module,
        masks: Mapping[str, Tensor],
        optimizer: Optimizer | Iterable[Optimizer] | None = None,
        *,
        lean: bool = False,
    ) -> Self:
        """Put masks that were made by hand on a model; on parameters that have masks, they take their place.

        Args:
            model: The model.
            masks: Dotted parameter name -> bool mask of the parameter's shape, True = kept.
            optimizer: The optimizer, or several; see `attach`.
            lean: See `prune_`.

        Returns:
            The masks of the model, those that it had before included.

        Changes:
            Masked weights and their gradients and momenta become 0.

        Raises:
            InvalidInputError: No such parameter, or a mask that is not bool.
            ShapeError: A mask has another shape than its parameter.
            UnsupportedError: A parameter that cannot be masked.
            HolderError: The optimizer holds none, or not all, of the masked parameters. Nothing is changed then.
        """
        found = cls(model)
        found._put(masks, _listed(optimizer), lean=lean)
        return found

    @classmethod
    def from_zeros(
        cls,
        model: nn.Module,
        optimizer: Optimizer | Iterable[Optimizer] | None = None,
        *,
        names: Iterable[str] | None = None,
        lean: bool = False,
    ) -> Self:
        """Adopt the zeros that a model has (a checkpoint of a pruned model, ``prune.remove``) as masks.

        Args:
            model: The model.
            optimizer: The optimizer, or several; see `attach`.
            names: Parameters to look at; weights (no biases, no norms) if left out. Those without zeros get no mask.
            lean: See `prune_`.

        Returns:
            The masks of the model.

        Raises:
            InvalidInputError: There is no such parameter, or no zero in any of them.
            SecateurError: The others of `from_dict`. Nothing is changed then.

        Example:
            >>> layer = nn.Linear(3, 2)
            >>> with torch.no_grad():
            ...     _ = layer.weight[0].zero_()
            >>> Masks.from_zeros(layer)["weight"]
            tensor([[False, False, False],
                    [ True,  True,  True]])
        """
        found = cls(model)
        parameters = found._parameters()
        looked_at = list(names) if names is not None else default_names(found.model)
        zeros = {name: found._lookup(name, parameters).detach() != 0 for name in looked_at}
        zeros = {name: mask for name, mask in zeros.items() if not bool(mask.all())}
        if not zeros:
            raise InvalidInputError(
                f"{type(found.model).__name__} has no zero among the weights looked at.",
                looked_at=", ".join(looked_at) or "none",
            )
        found._put(zeros, _listed(optimizer), lean=lean)
        return found

    # ---- looking

    def __getitem__(self, name: str) -> Tensor:
        """The mask of one parameter, bool, True = kept; a copy. Any of a tied parameter's names will do."""
        parameter = self._parameters().get(name)
        mask = None if parameter is None else registry.mask_of(parameter)
        if mask is None:
            raise KeyError(name)
        return mask.value

    def __iter__(self) -> Iterator[str]:
        """Names of the masked parameters, the first one of tied parameters, in the model's order."""
        return iter(self._masks())

    def __len__(self) -> int:
        """Number of masked parameters."""
        return len(self._masks())

    def sparsity(self, name: str | None = None) -> float:
        """Fraction of masked entries: of one parameter, or of all masked parameters together (0.0 if there are none)."""
        masks = self._masks()
        chosen = list(masks.values()) if name is None else [_mask(self._lookup(name, self._parameters()), name)]
        total = sum(mask.shape.numel() for mask in chosen)
        return sum(mask.num_zeros for mask in chosen) / total if total else 0.0

    def num_zeros(self) -> int:
        """Number of masked entries, exactly."""
        return sum(mask.num_zeros for mask in self._masks().values())

    def num_bytes(self) -> int:
        """Bytes that the masks hold at the moment."""
        return sum(mask.num_bytes for mask in self._masks().values())

    def __repr__(self) -> str:
        """A table: shape, zeros and sparsity of each masked tensor, then what is not masked."""
        masks = self._masks()
        total = sum(mask.shape.numel() for mask in masks.values())
        count = f"{len(masks)} tensor{'' if len(masks) == 1 else 's'}"
        lines = [f"Masks: {self.num_zeros():,} of {total:,} weights are zero ({self.sparsity():.2%}) in {count}"]
        rows = [
            (name, str(tuple(mask.shape)), f"{mask.num_zeros:,} zeros", f"{mask.num_zeros / mask.shape.numel():.2%}")
            for name, mask in masks.items()
        ]
        widths = [max((len(row[i]) for row in rows), default=0) for i in range(4)]
        for row in rows:
            cells = (cell.rjust(w) if i > 1 else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True)))
            lines.append("  " + "  ".join(cells))
        others = [name for name in tied_names(self.model) if name not in masks]
        if others:
            lines.append(f"  not masked: {', '.join(others[:6])}{f' and {len(others) - 6} more' if others[6:] else ''}")
        return "\n".join(line.replace("%", " %") for line in lines)

    # ---- changing

    def update_(self, masks: Mapping[str, Tensor]) -> None:
        """Change masks; entries that were masked and are not any more start at 0 with fresh optimizer state.

        Args:
            masks: Name of a masked parameter -> its new mask, bool, True = kept.

        Changes:
            Newly masked weights, their gradients and momenta become 0; averages that are attached follow.

        Raises:
            InvalidInputError: A parameter has no mask yet, or a mask is not bool.
            ShapeError: A mask has another shape. Nothing is changed then.
        """
        present = self._masks()
        for name in masks:
            if name not in present:
                raise InvalidInputError(f"{name!r} has no mask to update.", masked=", ".join(present) or "none")
        self._put(masks, [], lean=False)

    def apply_(self) -> None:
        """Zero all masked weights now, after they were written to between two steps."""
        for mask in self._masks().values():
            mask.apply_()

    def attach(self, holder: Optimizer | nn.Module) -> None:
        """Have an optimizer or an average of the model follow the masks.

        Optimizers that hold a masked parameter are served at their steps in any case. Attaching one checks that it
        holds all of them and clears its state right away. An average (``AveragedModel``, or any copy of the model) gets
        the masks by name, zeros included, and follows their changes.

        Args:
            holder: An optimizer, an ``AveragedModel`` or a copy of the model.

        Raises:
            HolderError: The optimizer holds none, or not all, of the trainable masked parameters; or the copy lacks one
                of them or has it in another shape. Nothing is changed then.
        """
        masks = self._masks()
        if isinstance(holder, Optimizer):
            _check_held({name: mask.parameter for name, mask in masks.items()}, [holder])
            keeper.settle(holder, keeper.desk_of(holder))
            return
        copied = holder.module if isinstance(holder, AveragedModel) else holder
        twins = dict(copied.named_parameters(remove_duplicate=False))
        for name, mask in masks.items():
            if name not in twins or twins[name].shape != mask.shape:
                raise HolderError(
                    f"the copy has no {name!r} of the model's shape, so it cannot follow.",
                    copy=tuple(twins[name].shape) if name in twins else "no such name",
                    model=tuple(mask.shape),
                )
        followers = Masks(copied)
        followers._put({name: mask.value for name, mask in masks.items()}, [], lean=any(m.lean for m in masks.values()))
        for name, mask in masks.items():
            mask.followers.append(weakref.ref(_mask(twins[name], name)))

    def remove(self) -> None:
        """Let go of all masks; the zeros stay in place, and train from now on like any other weight."""
        for module in self.model.modules():
            for mask in masks_in(module).values():
                mask.release()
            masks_in(module).clear()
            _unhook(module)

    # ---- saving

    def state_dict(self) -> dict[str, Tensor]:
        """The masks, one bit a weight: ``"<name>.bits"`` (uint8) and ``"<name>.shape"`` (int64), plain tensors only."""
        state = {}
        for name, mask in self._masks().items():
            state[f"{name}.bits"] = mask.bits.clone()
            state[f"{name}.shape"] = torch.tensor(mask.shape)
        return state

    def load_state_dict(self, state: Mapping[str, Tensor], *, lean: bool = False) -> None:
        """Put saved masks on the model, before or after its weights and its optimizer are loaded or even made.

        Args:
            state: What `state_dict` returned. Masks that are not in it are removed.
            lean: See `prune_`.

        Raises:
            InvalidInputError: A name that the model does not have, or entries that are not a saved mask.
            ShapeError: A mask of another shape than the model's parameter. Nothing is changed then.
        """
        masks = {}
        for key in state:
            name = key.removesuffix(".bits")
            if name == key and key.removesuffix(".shape") + ".bits" not in state:
                raise InvalidInputError(f"{key!r} is not an entry of a saved mask.", fix="save masks.state_dict()")
            if name != key:
                masks[name] = _unpacked(name, state)
        checked = self._checked(masks)
        for module in self.model.modules():
            owned = masks_in(module)
            for leaf in [
                leaf for leaf, mask in owned.items() if not any(p is mask.parameter for p in checked.values())
            ]:
                owned.pop(leaf).release()
        self._put(masks, [], lean=lean)

    # ---- inside

    def _parameters(self) -> dict[str, nn.Parameter]:
        """All parameters by all their names."""
        return dict(self.model.named_parameters(remove_duplicate=False))

    def _masks(self) -> dict[str, Mask]:
        """The masks by the first names of their parameters."""
        named = ((name, registry.mask_of(p)) for name, p in self.model.named_parameters())
        return {name: mask for name, mask in named if mask is not None}

    def _lookup(self, name: str, parameters: Mapping[str, nn.Parameter]) -> nn.Parameter:
        """A parameter by name."""
        if name not in parameters:
            check_maskable(self.model, name)
            raise InvalidInputError(
                f"{type(self.model).__name__} has no parameter {name!r}.", has=", ".join(list(parameters)[:8])
            )
        return parameters[name]

    def _checked(self, masks: Mapping[str, Tensor]) -> dict[str, nn.Parameter]:
        """The parameters of the names, if the masks fit them."""
        parameters, found = self._parameters(), {}
        for name, mask in masks.items():
            parameter = found[name] = self._lookup(name, parameters)
            check_maskable(self.model, name, mask)
            if mask.shape != parameter.shape:
                raise _misfit(name, mask, parameter)
        return found

    def _put(self, masks: Mapping[str, Tensor], optimizers: list[Optimizer], *, lean: bool) -> None:
        """Check everything, then set the masks, the weights and the optimizers' state."""
        parameters = self._checked(masks)
        if optimizers:
            _check_held(parameters, optimizers)
        for name, parameter in parameters.items():
            mask = registry.mask_of(parameter)
            if mask is None:
                self._install(parameter, Mask(parameter, masks[name], lean=lean))
            else:
                _replace(mask, masks[name])
        for optimizer in optimizers:
            keeper.settle(optimizer, keeper.desk_of(optimizer))

    def _install(self, parameter: nn.Parameter, mask: Mask) -> None:
        """Store a new mask with every module that owns the parameter, and zero its entries."""
        for module in self.model.modules():
            for leaf, owned in module._parameters.items():
                if owned is parameter:
                    masks_in(module)[leaf] = mask
                    _hook(module)
        mask.apply_()

    def __deepcopy__(self, memo: dict[int, Any]) -> Masks:
        """The masks of the model's copy."""
        return Masks(copy.deepcopy(self.model, memo))


def _replace(mask: Mask, new: Tensor) -> None:
    """Give a mask another value; entries that are no longer masked start afresh in every optimizer seen so far."""
    grown = new.to(mask.parameter.device) & ~mask.value
    for follower in (mask, *mask.live_followers()):
        if bool(grown.any()):
            for optimizer, _ in keeper.desks_with(follower):
                freshen_state_(optimizer, follower, grown)
    mask.set(new)
    for follower in (mask, *mask.live_followers()):
        follower.apply_()
        for optimizer, desk in keeper.desks_with(follower):
            keeper.settle(optimizer, desk)


def _mask(parameter: nn.Parameter, name: str) -> Mask:
    """The mask of a parameter that has one."""
    mask = registry.mask_of(parameter)
    if mask is None:
        raise InvalidInputError(f"{name!r} has no mask.")
    return mask


def _misfit(name: str, mask: Tensor, parameter: Tensor) -> ShapeError:
    """The error for a mask of another shape."""
    return ShapeError(
        f"the mask for {name!r} has another shape than the parameter.",
        mask=tuple(mask.shape),
        parameter=tuple(parameter.shape),
    )


def _unpacked(name: str, state: Mapping[str, Tensor]) -> Tensor:
    """One saved mask."""
    bits, shape = state[f"{name}.bits"], state.get(f"{name}.shape")
    size = torch.Size(shape.tolist()) if isinstance(shape, Tensor) and shape.dim() == 1 else None
    if size is None or bits.dtype != torch.uint8 or bits.numel() != num_bytes(size.numel()):
        raise InvalidInputError(f"the saved mask of {name!r} is damaged: bits and shape do not belong together.")
    return unpack(bits, size)


def _listed(optimizer: Optimizer | Iterable[Optimizer] | None) -> list[Optimizer]:
    """One, several or no optimizers, as a list."""
    if optimizer is None:
        return []
    listed = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    for item in listed:
        if not isinstance(item, Optimizer):
            raise HolderError(f"{type(item).__name__} is not an optimizer.", fix="masks.attach(…) takes averages")
    return listed


def _check_held(parameters: Mapping[str, nn.Parameter], optimizers: Iterable[Optimizer]) -> None:
    """Refuse optimizers that do not hold the trainable ones of the parameters."""
    listed = list(optimizers)
    held = {id(p) for optimizer in listed for group in optimizer.param_groups for p in group["params"]}
    lost = [name for name, p in parameters.items() if p.requires_grad and id(p) not in held]
    if lost:
        raise HolderError(
            f"{type(listed[0]).__name__} does not hold {lost[0]!r}: it was made for another model, or the parameter "
            "has been replaced since.",
            not_held=f"{len(lost)} of {len(parameters)}",
            fix="secateur.relink_(model, optimizer), or pass all optimizers as a list",
        )


def _hook(module: nn.Module) -> None:
    """Have weights that are loaded into the module masked at once."""
    if _after_load not in module._load_state_dict_post_hooks.values():
        module.register_load_state_dict_post_hook(_after_load)


def _unhook(module: nn.Module) -> None:
    """Undo `_hook`."""
    hooks = module._load_state_dict_post_hooks
    for key in [key for key, hook in hooks.items() if hook is _after_load]:
        del hooks[key]


def _after_load(module: nn.Module, incompatible: object) -> None:
    """The module has loaded a state dict: mask its weights again, also where ``assign=True`` put new parameters."""
    for leaf, mask in masks_in(module).items():
        parameter = module._parameters.get(leaf)
        if parameter is not None and registry.mask_of(parameter) is not mask:
            mask.bind(parameter)
        mask.apply_()
