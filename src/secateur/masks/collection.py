"""The masks of a model as one object: look at them, change them, save them, let them go."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from secateur._errors import HolderError, InvalidInputError
from secateur._names import owner_of, tied_names
from secateur.masks import keeper, slots
from secateur.masks.commit import Optimizers, check_held, listed, put_
from secateur.masks.eligible import Selectors, eligible_names, find
from secateur.masks.mask import Mask
from secateur.masks.registry import mask_of
from secateur.masks.saving import from_state, to_state
from secateur.masks.table import table
from secateur.surgery.refusals import refuse_call

__all__ = ["Masks"]


class Masks(Mapping[str, Tensor]):
    """The masks that a model has at the moment, by dotted name; a mapping from names to bool tensors (True = kept).

    The masks themselves live in the model's modules, beside the parameters, and are held by every optimizer's step.
    This object only finds them, so any number of them may exist.

    Args:
        model: The model. Masks that it carries already (a deep copy or unpickled model does) are found.

    Attributes:
        skipped: What `prune_` was to mask and has not, since the pattern does not fit: dotted name -> reason. It counts
            in the overall sparsity, and is known to the object that the call returned only.
        remainders: What it has masked in units of which some are smaller: dotted name -> sizes that do not divide.

    Raises:
        InvalidInputError: `model` is no module.

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
        if not isinstance(model, nn.Module):
            raise InvalidInputError(f"masks belong to a module, not to {type(model).__name__}.", fix="Masks(model)")
        self.model: nn.Module = getattr(model, "_orig_mod", model)  # what torch.compile wraps
        self.skipped: dict[str, str] = {}
        self.remainders: dict[str, str] = {}

    @classmethod
    def from_dict(
        cls, model: nn.Module, masks: Mapping[str, Tensor], optimizer: Optimizers = None, *, lean: bool = False
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
            HolderError: The optimizer does not hold the masked parameters. Nothing is changed then.
        """
        found = cls(model)
        put_(found.model, masks, listed(optimizer), lean=lean)
        return found

    @classmethod
    def from_zeros(
        cls,
        model: nn.Module,
        optimizer: Optimizers = None,
        *,
        include: Selectors = None,
        exclude: Selectors = None,
        lean: bool = False,
    ) -> Self:
        """Adopt the zeros that a model has (a checkpoint of a pruned model, after ``prune.remove``) as masks.

        Args:
            model: The model.
            optimizer: The optimizer, or several; see `attach`.
            include: Globs over dotted names, or module types, of parameters to look at; weights (no biases, no norms)
                if left out. Parameters without zeros get no mask.
            exclude: Globs or module types that are left out.
            lean: See `prune_`.

        Returns:
            The masks of the model.

        Changes:
            Gradients and momenta at the zeros become 0.

        Raises:
            InvalidInputError: A selector matches nothing, or there is no zero in any of the parameters.
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
        names = eligible_names(found.model, include, exclude)
        masks = {name: find(found.model, name).detach() != 0 for name in names}
        masks = {name: mask for name, mask in masks.items() if not bool(mask.all())}
        if not masks:
            raise InvalidInputError(
                f"{type(found.model).__name__} has no zero among the weights that were looked at.",
                looked_at=", ".join(names[:8]) + (" …" if names[8:] else ""),
            )
        put_(found.model, masks, listed(optimizer), lean=lean)
        return found

    # ---- looking

    def __getitem__(self, name: str) -> Tensor:
        """The mask of one parameter, bool, True = kept; a copy. Any of a tied parameter's names will do."""
        return self._mask(name).bits.dense

    def __iter__(self) -> Iterator[str]:
        """Names of the masked parameters, the first one of tied parameters, in the model's order."""
        return iter(self._found())

    def __len__(self) -> int:
        """Number of masked parameters."""
        return len(self._found())

    def __eq__(self, other: object) -> bool:
        """Whether the other has the same masks under the same names; the models need not be the same."""
        if not isinstance(other, Masks):
            return NotImplemented
        mine, its = dict(self.items()), dict(other.items())
        return mine.keys() == its.keys() and all(torch.equal(mine[name], its[name].to(mine[name])) for name in mine)

    def sparsity(self, name: str | None = None) -> float:
        """Fraction of masked entries.

        Args:
            name: The parameter that is meant; all masked ones together if left out, with those that were skipped.

        Returns:
            The fraction; 0.0 if nothing is masked.

        Raises:
            KeyError: The parameter has no mask.
        """
        bits = [mask.bits for mask in (self._found().values() if name is None else [self._mask(name)])]
        total = sum(each.shape.numel() for each in bits)
        if name is None:
            total += sum(shape.numel() for shape, _ in self._skipped().values())
        return sum(each.num_zeros for each in bits) / total if total else 0.0

    def num_zeros(self) -> int:
        """Number of masked entries, exactly."""
        return sum(mask.bits.num_zeros for mask in self._found().values())

    def num_bytes(self) -> int:
        """Bytes that the masks hold at the moment."""
        return sum(mask.bits.num_bytes for mask in self._found().values())

    def __repr__(self) -> str:
        """A table: shape, zeros and sparsity of each masked tensor, then what was skipped and what is not masked."""
        bits, skipped = {name: mask.bits for name, mask in self._found().items()}, self._skipped()
        others = [name for name in tied_names(self.model) if name not in bits and name not in skipped]
        return table(bits, others, skipped, self.remainders)

    # ---- changing

    def update_(self, masks: Mapping[str, Tensor]) -> None:
        """Change masks; entries that were masked and are not any more start at 0 with fresh optimizer state.

        That goes for optimizers that have stepped since the model was masked, or were named or attached. Others come
        with whatever state they have.

        Args:
            masks: Name of a masked parameter -> its new mask, bool, True = kept.

        Changes:
            Newly masked weights, their gradients and momenta become 0; averages that are attached follow.

        Raises:
            InvalidInputError: A parameter has no mask yet, or a mask is not bool.
            ShapeError: A mask has another shape. Nothing is changed then.
        """
        for name in masks:
            if mask_of(find(self.model, name)) is None:
                raise InvalidInputError(
                    f"{name!r} has no mask to update.",
                    masked=", ".join(self) or "none",
                    fix="Masks.from_dict(model, {…}) gives it one",
                )
        put_(self.model, masks)

    def apply_(self) -> None:
        """Zero all masked weights and their gradients now, after they were written to between two steps.

        Only writes through ``.data`` into tensors of more than 65,536 entries need it: autograd does not see them, so
        a few single ones would be found some steps later only. All other changes are found by the next step.

        Raises:
            InvalidInputError: The call is made inside inference mode.
        """
        refuse_call()
        for mask in self._found().values():
            mask.apply_()

    def attach(self, holder: Optimizer | Iterable[Optimizer] | nn.Module) -> None:
        """Have optimizers, or an average of the model, follow the masks.

        Optimizers that hold a masked parameter are served at their steps in any case. Attaching them checks that they
        hold all that are trained, and clears their state right away. An average (``AveragedModel``, or any copy of the
        model) gets the masks by name, zeros included, and follows their changes from now on.

        Args:
            holder: An optimizer, several, an ``AveragedModel``, or a copy of the model.

        Raises:
            HolderError: The optimizers do not hold all trainable masked parameters; or the copy lacks one, has it in
                another shape, or is no copy at all. Nothing is changed then.
        """
        refuse_call()
        if isinstance(holder, nn.Module):
            self._attach_copy(holder.module if isinstance(holder, AveragedModel) else holder)
            return
        optimizers = listed(holder)
        masks = self._found()
        check_held(self.model, {name: mask.parameter for name, mask in masks.items()}, optimizers)
        keeper.meet(optimizers)
        keeper.settle(masks.values())

    def remove(self) -> None:
        """Let go of all masks, also in averages that follow; the zeros stay, and train on like any other weights.

        Changes:
            In optimizers that have stepped since the model was masked, or were named or attached, the weights that were
            masked get the state of weights without history. Until then second moments may hold 1 there, also in what
            ``optimizer.state_dict()`` returns, which keeps steps fast, but would make these weights learn slowly. So
            where a checkpoint of a masked run goes on without masks: load all of it, ``attach`` the optimizer, and only
            then remove the masks.
        """
        slots.empty(self.model)

    # ---- saving

    def state_dict(self) -> dict[str, Tensor]:
        """The masks, one bit a weight: ``"<name>.bits"`` (uint8) and ``"<name>.shape"`` (int64), plain tensors only."""
        return to_state({name: mask.bits for name, mask in self._found().items()})

    def load_state_dict(self, state: Mapping[str, Tensor], *, lean: bool = False) -> None:
        """Put saved masks on the model, before or after its weights and its optimizer are loaded, or even made.

        Args:
            state: What `state_dict` returned. Masks that are not in it are removed.
            lean: See `prune_`; for parameters that have no mask yet.

        Changes:
            Masked weights and their gradients and momenta become 0. Where the model had other masks while its weights
            were loaded, weights that these had zeroed come back.

        Raises:
            InvalidInputError: A name that the model does not have, or entries that are not a saved mask.
            ShapeError: A mask of another shape than the model's parameter. Nothing is changed then.
        """
        masks = from_state(state)
        put_(self.model, masks, lean=lean, restoring=True)
        slots.empty(self.model, keep=masks)

    # ---- inside

    def _found(self) -> dict[str, Mask]:
        """The masks by the first names of their parameters."""
        return slots.masked_parameters(self.model)

    def _skipped(self) -> dict[str, tuple[torch.Size, str]]:
        """Shapes of what was skipped and has no mask since, and the reasons."""
        masked, shapes = self._found(), {name: p.shape for name, p in self.model.named_parameters()}
        left = {name: why for name, why in self.skipped.items() if name in shapes and name not in masked}
        return {name: (shapes[name], why) for name, why in left.items()}

    def _mask(self, name: str) -> Mask:
        """The mask of one parameter, by any of its names."""
        try:
            mask = slots.mask_at(*owner_of(self.model, name))
        except InvalidInputError:
            mask = None
        if mask is None:
            raise KeyError(f"{name!r} has no mask; masked: {', '.join(self) or 'none'}")
        return mask

    def _attach_copy(self, copied: nn.Module) -> None:
        """Give the masks to a copy of the model, by name, and have its masks follow."""
        masks = self._found()
        twins = dict(copied.named_parameters(remove_duplicate=False))
        for name, mask in masks.items():
            twin = twins.get(name)
            if twin is None or twin.shape != mask.bits.shape or twin is mask.parameter:
                raise HolderError(
                    f"{type(copied).__name__} is no copy of the model that could follow its masks: "
                    + ("it shares its parameters." if twin is mask.parameter else f"{name!r} is another one."),
                    copy="no such parameter" if twin is None else tuple(twin.shape),
                    model=tuple(mask.bits.shape),
                )
        put_(copied, {name: mask.bits.dense for name, mask in masks.items()}, lean=True)
        for name, mask in masks.items():
            follower = mask_of(twins[name])
            if follower is not None:
                mask.lead(follower)

    def __deepcopy__(self, memo: dict[int, Any]) -> Masks:
        """The masks of the model's copy."""
        copied = Masks(copy.deepcopy(self.model, memo))
        copied.skipped, copied.remainders = dict(self.skipped), dict(self.remainders)
        return copied
