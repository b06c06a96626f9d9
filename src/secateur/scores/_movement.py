"""Movement: weights that training draws towards zero go first, however large they still are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from secateur._errors import HolderError, InvalidInputError, ShapeError, UnsupportedError
from secateur._names import Selectors
from secateur._units import check_scores
from secateur.scores._chosen import chosen, precise, product

__all__ = ["Movement"]


class Movement:
    r"""Score every weight by how far training moves it away from zero, :math:`s = -\sum_t w^{(t)} g^{(t)}` over steps.

    It listens to the optimizer's steps, and adds up what it sees before each: the training loop stays as it is, and
    comes to the same weights. Gradients are those that the optimizer is given: clipped, accumulated, masked (so masked
    places stay at what they had), without the scale of a ``GradScaler``.

    Args:
        model: The model.
        optimizer: The optimizer that trains it, or several.
        include: Globs over dotted names, or module types; all weights that are trained if left out (no biases, no
            norms), as in `prune_`.

    Attributes:
        num_steps: Optimizer steps that have been added up.

    Raises:
        InvalidInputError: A weight that is named is frozen, or there is none.
        HolderError: The optimizers do not hold a weight.

    Example:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> _ = nn.init.constant_(model.weight, 0.5)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with Movement(model, optimizer) as movement:
        ...     model(torch.tensor([[4.0, -2.0]])).sum().backward()
        ...     optimizer.step()
        >>> movement.scores()
        {'weight': tensor([[-2.,  1.]])}

    References:
        Sanh, Wolf, Rush 2020, "Movement pruning: adaptive sparsity by fine-tuning", section 4: the importance that
        their straight-through scores accumulate, without its learning rate.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer | Iterable[Optimizer], *, include: Selectors = None
    ) -> None:
        optimizers = _listed(optimizer)
        self._weights = chosen(model, include)
        self._held = {id(each): self._held_by(each) for each in optimizers}
        missing = self._weights.keys() - {name for names in self._held.values() for name in names}
        if missing:
            raise HolderError(
                f"no optimizer that was passed holds {min(missing)!r}, so its movement cannot be seen.",
                not_held=len(missing),
                fix="pass the optimizer that trains it, or choose what is trained with include=[…]",
            )
        self._sums = {name: torch.zeros_like(precise(weight).real) for name, weight in self._weights.items()}
        self.num_steps = 0
        self._hooks = [each.register_step_pre_hook(self._before) for each in optimizers]

    def scores(self) -> dict[str, Tensor]:
        """The scores so far.

        Returns:
            Scores by dotted name, of the shapes of the weights, in single precision or better, with memory of their
            own; zero for weights that had no gradient.

        Raises:
            InvalidInputError: There was no step yet, or a score is NaN.
        """
        if not self.num_steps:
            raise InvalidInputError(
                "there was no optimizer step yet, so nothing has moved.",
                fix="movement = Movement(model, optimizer) before the training loop, movement.scores() after it",
            )
        check_scores(self._sums)
        return {name: total.clone() for name, total in self._sums.items()}

    def remove(self) -> None:
        """Stop listening; the scores stay. A second call does nothing."""
        for hook in self._hooks:
            hook.remove()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs to go on later: ``{"num_steps": int, "scores": {name: tensor}}``, copied."""
        return {"num_steps": self.num_steps, "scores": {name: total.clone() for name, total in self._sums.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint.

        Args:
            state: From `state_dict`.

        Raises:
            InvalidInputError: It is no such state, or of other weights. Nothing is changed then.
        """
        if not isinstance(state, Mapping) or not {"num_steps", "scores"} <= state.keys():
            raise InvalidInputError(
                "this is no saved movement.", found=type(state).__name__, fix="movement.state_dict()"
            )
        saved: dict[str, Tensor] = state["scores"]
        if {n: s.shape for n, s in saved.items()} != {n: s.shape for n, s in self._sums.items()}:
            raise InvalidInputError(
                "the saved movement is that of other weights.",
                saved=", ".join(list(saved)[:8]),
                here=", ".join(list(self._sums)[:8]),
            )
        for name, total in self._sums.items():
            total.copy_(saved[name])
        self.num_steps = state["num_steps"]

    def __getstate__(self) -> object:
        """Refuse to be copied or pickled: the copy would listen to nothing.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError(
            "a Movement cannot be copied or pickled: it listens to one optimizer.",
            fix="state_dict() is saved; Movement(model, optimizer).load_state_dict(…) goes on from it",
        )

    def __enter__(self) -> Self:
        """Listen until the block ends."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop listening."""
        self.remove()

    def _held_by(self, optimizer: Optimizer) -> list[str]:
        """Names of the weights that an optimizer holds."""
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        return [name for name, weight in self._weights.items() if id(weight) in held]

    def _before(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Before a step: add, or have the closure that computes the gradients followed by it."""
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._followed(args[1], optimizer), *args[2:]), kwargs
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._followed(kwargs["closure"], optimizer)}
        self._add(optimizer)
        return None

    def _followed(self, closure: Callable[[], Any], optimizer: Optimizer) -> Callable[[], Any]:
        """The closure, after each call of which the movement is added."""

        def followed() -> Any:
            loss = closure()
            self._add(optimizer)
            return loss

        return followed

    @torch.no_grad()
    def _add(self, optimizer: Optimizer) -> None:
        """Add what the gradients say now, unless a scaler has found infinite ones, so that the step is skipped."""
        scale, found_inf = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        if found_inf is not None and bool(found_inf):
            return
        for name in self._held[id(optimizer)]:
            weight, total = self._weights[name], self._sums[name]
            if weight.shape != total.shape:
                raise ShapeError(
                    f"{name!r} has been resized since its movement was first added up.",
                    weight=tuple(weight.shape),
                    movement=tuple(total.shape),
                    fix="movement.remove(), then Movement(model, optimizer) anew",
                )
            if weight.grad is not None:
                moved = product(precise(weight), precise(weight.grad.to_dense()))
                total -= moved if scale is None else moved / scale
        self.num_steps += 1


def _listed(optimizers: object) -> list[Optimizer]:
    """One or several optimizers as a list, if they are optimizers."""
    found: list[Optimizer] = []
    for each in optimizers if isinstance(optimizers, Iterable) else [optimizers]:
        if not isinstance(each, Optimizer):
            raise HolderError(f"{type(each).__name__} is not an optimizer.", fix="Movement(model, optimizer)")
        found.append(each)
    return found
