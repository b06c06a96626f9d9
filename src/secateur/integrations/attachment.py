"""What prunes one model while a trainer trains it: its methods, the steps that they are told of, and their state."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from secateur._errors import InvalidInputError, UnsupportedError
from secateur._wrappers import refuse_model
from secateur.dst.attending import was_skipped
from secateur.integrations.agreement import refuse_disagreement
from secateur.integrations.sizes import check_sizes, resize_to_, sizes_of
from secateur.masks import Masks, prune_
from secateur.shrink import ShrinkSchedule, shrink_, shrink_schedule
from secateur.surgery.admission import optimizers_among
from secateur.surgery.optimizers import groups_of

__all__ = ["Attachment", "Method", "check_methods"]

Method = Callable[..., Any]
"""Called as ``method(model, optimizer=…)`` when training begins, with ``ema=`` and ``state=`` if it has these."""

_KEYS = {"kinds", "parts", "masks", "sizes"}
_RETURNED: tuple[tuple[Method, str], ...] = (
    (prune_, "Masks"),
    (shrink_, "ShrinkPlan"),
    (shrink_schedule, "ShrinkSchedule"),
)


class Attachment:
    """The methods at work on one model, from one training to the next.

    A method that takes ``state=`` is made when training begins, with the state that a checkpoint has of it. Another one
    is made before the checkpoint's weights are loaded, and its result is given the state. What returns no state (masks,
    or nothing) is not called again: its masks and sizes are in the checkpoint.

    Args:
        model: The model.
        methods: The methods, each of which returns what is to be saved with the model: something with ``state_dict()``
            and ``load_state_dict()``, whose ``step()``, if it has one, is called after every step of the optimizer.

    Attributes:
        model: The model.

    Raises:
        UnsupportedError: The model is, or contains, a wrapper that keeps parameters in forms of its own.
    """

    def __init__(self, model: nn.Module, methods: Sequence[Method]) -> None:
        refuse_model(model)
        self.model = model
        self._methods = methods
        self._made: dict[int, Any] = {}
        self._kinds: dict[int, str] = {}
        self._waiting: dict[int, Mapping[str, Any]] = {}
        self._num_steps = 0
        self._handle: RemovableHandle | None = None

    @property
    def parts(self) -> list[Any]:
        """What the methods have returned, in their order; None for those that were not called, or not yet."""
        return [self._made.get(number) for number in range(len(self._methods))]

    # ---- training

    def begin(self, optimizers: Iterable[object], averages: Sequence[nn.Module] = (), num_processes: int = 1) -> None:
        """Put the methods to work.

        Args:
            optimizers: Those that train the model (others are left out); steps of the first one count.
            averages: Averages of the model: their masks follow, and so do their sizes.
            num_processes: Processes or devices that train it together.

        Raises:
            InvalidInputError: No optimizer holds a parameter of the model, or what a method returns cannot be resumed.
            UnsupportedError: Several processes would have to agree about more than masks that stay as they are, or have
                chosen different ones.
            SecateurError: Those of the methods.
        """
        own = {id(parameter) for parameter in self.model.parameters()}
        found = [optimizer for optimizer in optimizers_among(list(optimizers)) if groups_of(optimizer).keys() & own]
        if not found:
            raise InvalidInputError(
                f"no optimizer trains {type(self.model).__name__}, so there is nothing to prune along with.",
                fix="return one from configure_optimizers(), or pass the one that steps",
            )
        self.end()
        for number, method in enumerate(self._methods):
            if _takes(method, "state"):
                self._make(number, found, averages, state=self._state_of(number))
                self._waiting.pop(number, None)
            elif number not in self._made:
                self._make(number, found, averages)
        if num_processes > 1:
            self._refuse_changing(num_processes)
            refuse_disagreement(self.model)
        masks = Masks(self.model)
        for average in averages if masks else ():
            masks.attach(average)
        self._num_steps = 0
        self._handle = found[0].register_step_post_hook(self._count)

    def after_batch(self) -> bool:
        """Tell the methods of the steps made since the last call, in a place where no graph is alive.

        Returns:
            Whether the model has another number of parameters now.
        """
        before = self.num_parameters() if self._num_steps else 0
        made, self._num_steps = self._num_steps, 0
        for _ in range(made):
            for part in self.parts:
                if callable(getattr(part, "step", None)):
                    part.step()
        return bool(made) and self.num_parameters() != before

    def end(self) -> None:
        """Count no more steps; masks stay, and so do the methods for the next training."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    # ---- looking

    def num_parameters(self) -> int:
        """Number of parameters at the moment."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def scalars(self) -> dict[str, float]:
        """What is logged: the fraction of masked weights among the masked tensors, and the number of parameters."""
        return {"sparsity": Masks(self.model).sparsity(), "num_parameters": float(self.num_parameters())}

    # ---- saving

    def state_dict(self) -> dict[str, Any]:
        """Masks, sizes, and the states of what the methods have returned: plain data and tensors."""
        return {
            "kinds": [self._kinds[number] for number in range(len(self._methods))],
            "parts": [self._state_of(number) for number in range(len(self._methods))],
            "masks": Masks(self.model).state_dict(),
            "sizes": sizes_of(self.model),
        }

    def restore_(
        self, state: Mapping[str, Any], optimizers: Sequence[Optimizer] = (), averages: Sequence[nn.Module] = ()
    ) -> None:
        """Make the model and the methods what they were; called before a checkpoint's weights are loaded.

        Args:
            state: What `state_dict` returned.
            optimizers: Those that exist already.
            averages: Averages of the model that exist already.

        Raises:
            InvalidInputError: It is no such state, or that of other methods.
            ShapeError: It is that of another model, or of a larger one. Nothing has been changed then.
            SecateurError: Those of the methods.
        """
        self._check(state)
        check_sizes(self.model, state["sizes"])
        for number, saved in enumerate(state["parts"]):
            if saved is None:
                self._made.setdefault(number, None)
            elif number not in self._made and not _takes(self._methods[number], "state"):
                self._make(number, optimizers, averages)
                _check_kind(number, self._kinds[number], state["kinds"][number])
            self._kinds[number] = state["kinds"][number]
        resize_to_(self.model, state["sizes"], optimizer=list(optimizers), ema=list(averages))
        Masks(self.model).load_state_dict(state["masks"])
        for number, saved in enumerate(state["parts"]):
            if saved is not None and number in self._made:
                self._made[number].load_state_dict(saved)
            elif saved is not None:
                self._waiting[number] = saved

    # ---- inside

    def _make(
        self,
        number: int,
        optimizers: Sequence[Optimizer],
        averages: Sequence[nn.Module],
        **state: Mapping[str, Any] | None,
    ) -> None:
        """Call a method, and keep what it returns."""
        method = self._methods[number]
        optimizer = optimizers[0] if len(optimizers) == 1 else list(optimizers) or None
        ema = {"ema": list(averages) or None} if _takes(method, "ema") else {}
        made = method(self.model, optimizer=optimizer, **ema, **state)
        if isinstance(made, ShrinkSchedule) and not state:
            raise InvalidInputError(
                "a method that returns a shrink schedule takes its state, from which it goes on after a checkpoint.",
                method=getattr(method, "__name__", type(method).__name__),
                fix="functools.partial(secateur.shrink_schedule, example_inputs=…), or "
                "def method(model, optimizer, ema=None, state=None): return secateur.shrink_schedule(…, state=state)",
            )
        self._made[number], self._kinds[number] = made, type(made).__name__

    def _state_of(self, number: int) -> Mapping[str, Any] | None:
        """The state of what a method has returned, or the one that waits for it; None if it has none."""
        part: Any = self._made.get(number)
        has_state = all(callable(getattr(part, name, None)) for name in ("state_dict", "load_state_dict"))
        if has_state and not isinstance(part, Masks | nn.Module):
            state: Mapping[str, Any] = part.state_dict()
            return state
        return self._waiting.get(number)

    def _count(self, optimizer: Optimizer, *_: object) -> None:
        """Called after each step of the first optimizer."""
        self._num_steps += not was_skipped(optimizer)

    def _refuse_changing(self, num_processes: int) -> None:
        """Refuse what each process would decide by its own data.

        Raises:
            UnsupportedError: Masks would change, or the model.
        """
        changing = next((part for part in self.parts if part is not None and not isinstance(part, Masks)), None)
        if changing is not None:
            raise UnsupportedError(
                f"{type(changing).__name__} has not been tried where several processes or devices train one model: "
                "each would decide by its own gradients.",
                num_processes=num_processes,
                fix="one process, or masks that stay as they are: secateur.prune_",
            )

    def _check(self, state: Mapping[str, Any]) -> None:
        """Refuse the state of something else, as far as can be told before anything is made.

        Raises:
            InvalidInputError: It is.
        """
        if not isinstance(state, Mapping) or not state.keys() >= _KEYS:
            raise InvalidInputError("the checkpoint holds no state of Pruning.", found=type(state).__name__)
        if len(state["parts"]) != len(self._methods):
            raise InvalidInputError(
                "the checkpoint was made with other methods.",
                checkpoint=", ".join(state["kinds"]) or "none",
                here=f"{len(self._methods)} methods",
                fix="the same methods in the same order as before",
            )
        for number, (method, kind) in enumerate(zip(self._methods, state["kinds"], strict=True)):
            _check_kind(number, self._kinds.get(number) or _kind_of(method) or kind, kind)


def check_methods(methods: Sequence[Method]) -> tuple[Method, ...]:
    """The methods, which must be functions yet to be called.

    Raises:
        InvalidInputError: One cannot be called, such as the masks that `secateur.prune_` has returned.
    """
    for method in methods:
        if not callable(method):
            raise InvalidInputError(
                f"Pruning takes functions of the model and the optimizer, not a {type(method).__name__}.",
                fix="functools.partial(secateur.prune_, sparsity=0.9): it is called when training begins",
            )
    return tuple(methods)


def _takes(method: Method, name: str) -> bool:
    """Whether a method has a parameter of this name."""
    try:
        return name in inspect.signature(method).parameters
    except (TypeError, ValueError):
        return False


def _kind_of(method: Method) -> str | None:
    """The name of the class of what a method returns, if that is known before it is called."""
    while isinstance(method, partial):
        method = method.func
    if inspect.isclass(method):
        return method.__name__
    return next((kind for function, kind in _RETURNED if function is method), None)


def _check_kind(number: int, made: str, saved: str) -> None:
    """Refuse the state of another method.

    Raises:
        InvalidInputError: It is.
    """
    if made != saved:
        raise InvalidInputError(
            "the checkpoint was made with other methods.",
            checkpoint=saved,
            here=made,
            method=number,
            fix="the same methods in the same order as before",
        )
