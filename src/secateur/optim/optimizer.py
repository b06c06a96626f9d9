"""What the optimizers of kept weights share: compact state that follows the masks, checkpoints, and the step.

For a masked parameter, every entry of the state that has one value a weight holds kept weights only, in the order of
the mask, and ``state["kept"]`` is the mask that they belong to (packed bits, the mask's own memory where possible). So
state tells by itself which weights it is of, wherever it has been copied to. At each step it is brought to the mask of
that moment: regrown weights have 0, dropped ones are forgotten, and without a mask it is dense again. State that was
loaded stays dense until then, since the masks that belong to it may be loaded after it.
"""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from secateur._compat import uncompiled
from secateur._errors import InvalidInputError
from secateur._native import stepping
from secateur._native.stepping import Batch, Job
from secateur.masks import registry
from secateur.masks.mask import Mask
from secateur.optim.checking import (
    FIXED,
    check_gradient,
    check_memory,
    check_moments,
    check_options,
    check_parameters,
    check_state,
    check_weights,
)
from secateur.optim.members import KEPT, Kept, Masked, Members, Whole
from secateur.optim.places import move, same_bits, spread, take
from secateur.optim.routine import Routine

__all__ = ["SparseOptimizer"]


class SparseOptimizer(Optimizer):
    """An optimizer that steps kept weights only.

    Attributes:
        enforces_masks: It leaves masked weights at 0 by itself, whatever gradients hold there, and remembers nothing of
            them; so `secateur.masks` leaves its masks to it.
    """

    enforces_masks = True
    _per_weight: ClassVar[tuple[str, ...]]
    _leaves_gradients = False

    def __init__(self, params: Any, defaults: dict[str, Any], *, mask_gradients: bool) -> None:
        if not isinstance(mask_gradients, bool):
            raise InvalidInputError("mask_gradients is True or False.", mask_gradients=mask_gradients)
        self._leaves_gradients = not mask_gradients
        self._forget_masks()
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as torch does.

        Raises:
            UnsupportedError: An option or a parameter that is not supported. Nothing is changed then.
        """
        if not isinstance(param_group["params"], Tensor | set):
            param_group["params"] = list(param_group["params"])  # as torch does; it may be a generator
        check_options(type(self).__name__, param_group)
        check_parameters(type(self).__name__, param_group["params"])
        super().add_param_group(param_group)

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles, as torch has it."""
        return {**super().__getstate__(), "_leaves_gradients": self._leaves_gradients}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Continue from a pickled or copied optimizer, or from state that was loaded."""
        super().__setstate__(state)
        self._forget_masks()

    # ---- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """The state as torch's own optimizer has it: dense, 0 at masked places."""
        for parameter, state in list(self.state.items()):
            if KEPT in state:
                self._follow(parameter, self._kept(parameter))
        compact = self.state
        self.state = defaultdict(dict, {p: self._dense(p, state) for p, state in compact.items()})
        try:
            return super().state_dict()
        finally:
            self.state = compact

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take the state of this optimizer or of torch's own; masked weights are left out of it at the next step."""
        groups = [{**group, **self._fixed()} for group in state_dict["param_groups"]]
        super().load_state_dict({**state_dict, "param_groups": groups})
        for state in self.state.values():
            if "step" in state:
                state["step"] = torch.as_tensor(state["step"], dtype=torch.float32, device="cpu")

    def _fixed(self) -> dict[str, object]:
        """Options that are not read from a checkpoint."""
        return {key: value for key, value in FIXED.items() if key in self.defaults}

    # ---- following the masks

    def is_per_weight(self, name: str) -> bool:
        """Whether an entry of the state has one value for each weight that is kept."""
        return name in self._per_weight

    def follow_masks(self) -> None:
        """Bring all state to the masks that parameters have now; every step begins with this."""
        for parameter in list(self.state):
            self._follow(parameter, self._kept(parameter))
        self._claim_gradients()

    def _claim_gradients(self) -> None:
        """Have masks leave gradients as they arrive, if that was asked for."""
        if self._leaves_gradients:
            for mask in self._masks():
                mask.reader = weakref.ref(self)

    def mask_gradients_(self) -> None:
        """Set the gradients of masked weights to zero now, as is done anyway unless ``mask_gradients=False``.

        Whoever reads gradients before the step then sees kept weights only: ``clip_grad_norm_``, a gradient scaler's
        ``unscale_`` and ``step``, a log of norms. The step itself does not need it.

        Example:
            >>> import secateur
            >>> model = torch.nn.Linear(100, 100)
            >>> optimizer = secateur.optim.SparseAdamW(model.parameters(), mask_gradients=False)
            >>> masks = secateur.prune_(model, optimizer, sparsity=0.9)
            >>> model(torch.ones(4, 100)).sum().backward()
            >>> optimizer.mask_gradients_()
            >>> torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # 1,000 weights and 100 biases, each 4
            tensor(132.6650)
        """
        for mask in self._masks():
            mask.clear_grad_()

    def _masks(self) -> Iterator[Mask]:
        """Those that it enforces."""
        for group in self.param_groups:
            for parameter in group["params"]:
                kept = self._kept(parameter)
                if kept is not None:
                    yield kept.mask

    def _follow(self, parameter: Tensor, kept: Kept | None) -> dict[str, Any]:
        """One parameter's state, after it has been brought to what is kept."""
        state: dict[str, Any] = self.state[parameter]
        old, new = state.get(KEPT), None if kept is None else kept.bits
        if old is new:
            return state
        names = self._moments(state)
        check_state(parameter, [state[name] for name in names], old)
        if old is None or new is None or not same_bits(old, new):
            state.update({name: _moved(parameter, state[name], old, new) for name in names})
        if new is not None and names:
            state[KEPT] = new
        else:
            state.pop(KEPT, None)
        return state

    def _moments(self, state: Mapping[str, Any]) -> list[str]:
        """The entries that one parameter's state has for each weight."""
        return [name for name in self._per_weight if isinstance(state.get(name), Tensor)]

    def _dense(self, parameter: Tensor, state: Mapping[str, Any]) -> dict[str, Any]:
        """One parameter's state as torch's own optimizer has it."""
        bits = state.get(KEPT)
        if bits is None:
            return dict(state)
        names = self._moments(state)
        check_state(parameter, [state[name] for name in names], bits)
        return {
            name: _moved(parameter, value, bits, None) if name in names else value
            for name, value in state.items()
            if name != KEPT
        }

    def _forget_masks(self) -> None:
        """Know nothing of any mask."""
        self._epoch = -1
        self._where: list[int] = []
        self._known: dict[int, Kept | None] = {}
        self._routine: Routine | None = None

    def _kept(self, parameter: Tensor) -> Kept | None:
        """What is kept of a parameter; None if all of it, or if somebody else holds its mask."""
        if self._epoch != registry.epoch():
            self._forget_masks()
            self._epoch = registry.epoch()
        key = id(parameter)
        if key not in self._known:
            mask = registry.mask_of(parameter)
            enforced = mask is not None and mask.is_enforced
            self._known[key] = Kept.of(mask) if mask is not None and enforced else None
        return self._known[key]

    # ---- the step

    @uncompiled
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step all parameters that have a gradient; masked weights are 0 afterwards.

        Args:
            closure: Evaluates the loss anew, gradients included, and returns it.

        Returns:
            What the closure returned, None without one.

        Raises:
            UnsupportedError: A sparse gradient; a gradient or state of another dtype or device than its parameter,
                which was converted after the first step; a masked parameter that shares memory with another.
            ShapeError: A parameter, gradient or state of another shape than the mask. No weight is changed then.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        routine = self._routine if self._epoch == registry.epoch() else None  # it may be forgotten at any moment
        gradients = None if routine is None else routine.gradients(self)
        if routine is not None and gradients is not None:
            self._claim_gradients()
            for group, batch in routine:
                self._step_batch(group, batch)
            return loss
        self._routine = None
        members = [self._members(group) for group in self.param_groups]
        self.follow_masks()
        self._check(members)
        steps = [self._step_group(group, each) for group, each in zip(self.param_groups, members, strict=True)]
        for mask in (mask for each in members for mask in each.idle):
            if not mask.is_untouched():
                mask.apply_()
        self._routine = Routine.of(self, members, steps)
        return loss

    def _members(self, group: Mapping[str, Any]) -> Members:
        """The parameters of a group, seen to be such that they can be stepped."""
        found, kind = Members(), type(self).__name__
        for parameter in group["params"]:
            kept, gradient = self._kept(parameter), parameter.grad
            if kept is not None:
                check_weights(parameter, kept)
            if gradient is None:
                found.idle += [] if kept is None else [kept.mask]
                continue
            check_gradient(kind, parameter, gradient)
            if kept is None:
                found.whole.append(Whole(parameter, gradient))
            else:
                found.masked.append(Masked(parameter, gradient, kept))
        return found

    def _check(self, members: Sequence[Members]) -> None:
        """See that state fits what is stepped, and, whenever a parameter has moved, that no mask is undone."""
        masked = [each for group in members for each in group.masked]
        whole = [each for group in members for each in group.whole]
        together: list[Masked | Whole] = [*masked, *whole]
        for each in together:
            state = self.state.get(each.parameter, {})
            check_moments(each, [state[name] for name in self._moments(state)])
        where = [each.parameter.data_ptr() for each in together] if masked else []
        if where != self._where:
            check_memory([each.parameter for each in masked], [each.parameter for each in whole])
            self._where = where

    def _step_group(self, group: dict[str, Any], members: Members) -> Batch | None:
        """Step what the kernels take in one call, then all the rest with torch; the call, if there was no rest."""
        natively: list[Whole | Masked] = []
        rest: list[Whole | Masked] = []
        together: list[Whole | Masked] = [*members.masked, *members.whole]
        for each in together:
            state = self.state.get(each.parameter, {})
            entries = [value for name, value in state.items() if name != KEPT and isinstance(value, Tensor)]
            fits = stepping.can_step(each.parameter, each.gradient, each.bits, entries)
            (natively if fits else rest).append(each)
        batch = stepping.Batch([self._job(each, group) for each in natively]) if natively else None
        if batch is not None:
            self._step_batch(group, batch)
        if rest:
            self._step_with_torch(group, rest)
        return None if rest else batch

    @abstractmethod
    def _job(self, each: Whole | Masked, group: dict[str, Any]) -> Job:
        """A parameter for a kernel; its state, which is made at its first step, follows the masks already."""

    @abstractmethod
    def _step_batch(self, group: dict[str, Any], batch: Batch) -> None:
        """Step parameters of a group with a kernel."""

    @abstractmethod
    def entries(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        """The entries, one value a weight, that a parameter's state in a group has after its first step."""

    @abstractmethod
    def _step_with_torch(self, group: dict[str, Any], members: Sequence[Whole | Masked]) -> None:
        """The same with torch: whole parameters, and kept weights as parameters of their own."""


def _moved(parameter: Tensor, values: Tensor, old: Tensor | None, new: Tensor | None) -> Tensor:
    """One entry of the state, from the form of a mask to that of another; without a mask it is dense."""
    if old is None:
        return values if new is None else take(values, new)
    return spread(values, old, parameter) if new is None else move(values, old, new, parameter.numel())
