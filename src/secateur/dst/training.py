"""Sparse training whose masks change as it goes on: any two scores say which weights go and which come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypedDict

from torch import Tensor, nn
from torch.optim import Optimizer

from secateur import patterns, scores
from secateur._errors import InvalidInputError, UnsupportedError
from secateur.allocation import Allocation, PerTensor, erk
from secateur.dst.attending import Attending, was_skipped
from secateur.dst.choosing import Chooser
from secateur.dst.gradients import Gradients, ask_for_gradients, forget_gradients, take_gradients
from secateur.dst.history import History
from secateur.dst.moment import Moment, Rating
from secateur.dst.timetable import timetable
from secateur.masks.collection import Masks
from secateur.masks.commit import Optimizers
from secateur.masks.eligible import Selectors, eligible_names, find
from secateur.masks.mask import Mask
from secateur.masks.prune import prune_
from secateur.patterns import Pattern
from secateur.schedules import Schedule
from secateur.scores import Score

__all__ = ["Shared", "SparseTraining"]


class Shared(TypedDict, total=False):
    """Arguments that every method takes; see `SparseTraining`."""

    start: Score | Mapping[str, Tensor] | None
    allocation: Allocation | Mapping[str, float]
    pattern: Pattern
    include: Selectors
    exclude: Selectors
    seed: int
    lean: bool


class SparseTraining(Attending):
    """Put masks on a model and change them as its training goes on: drop some kept weights, grow as many others.

    It attaches to the steps of whichever optimizer trains the model, by itself, so the training loop stays as it is:
    gradient accumulation, clipping, closures, a gradient scaler, several optimizers. After each step that is due, the
    weights that `drop` scores lowest are masked, and as many masked ones that `grow` scores highest are kept from then
    on: they start at exactly 0, with the optimizer state of a weight without history. Counts are exact. Growth looks at
    the dense gradient, which is kept aside in the step before; ``.grad``, as clipping and the optimizer see it, stays
    masked, and there is no second backward pass.

    The methods of `secateur.dst` (`RigL`, `SET` …) are this class with their scores filled in.

    Args:
        model: The model.
        optimizer: The optimizer, or several, as for `secateur.prune_`.
        sparsity: Fraction of zeros in [0, 1), or a schedule of it, which may only rise.
        end_step: No change is made after so many optimizer steps; three quarters of the training are usual.
        every: Steps from one change to the next.
        begin_step: The step of the first change; after `every` steps if left out.
        drop: Rates kept weights; the lowest go.
        grow: Rates masked weights; the highest come. None if none should: then the sparsity only rises.
        drop_fraction: Fraction of the kept weights that are exchanged in one change, or a schedule of it.
        uses_gradients: Whether `drop` or `grow` looks at gradients. They take the memory of the weights for one step.
        start: Which weights are kept at first: a score, or scores by name; random if left out.
        allocation: How zeros are shared out among the weights: at the start, and at each change if the sparsity rises;
            or a dict of sparsities by name or glob, which stay, while `sparsity` is for all others.
        pattern: Which shapes of zeros are allowed: whole units are dropped and grown. Weights that it does not fit are
            skipped and listed with the masks.
        include: Globs over dotted names, or module types; all weights if left out (no biases, no norms).
        exclude: Globs or module types that are left out.
        seed: Of all random choices; the global random state is left alone.
        lean: Hold 0.125 bytes a weight; see `secateur.prune_`.

    Attributes:
        model: The model.
        masks: Its masks, as they are at the moment.
        step: Optimizer steps that have been made; those that a gradient scaler has skipped do not count.
        history: What happened to the masks so far, as plain numbers.

    Raises:
        InvalidInputError: Steps in the wrong order, a value out of range, a sparsity that falls, a frozen weight that
            could be grown, or a model that is in the hands of another method already.
        SecateurError: The others of `secateur.prune_`. Nothing is changed then.

    Example:
        >>> import torch
        >>> from secateur import dst
        >>> model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 2))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        >>> training = SparseTraining(
        ...     model, optimizer, sparsity=0.8, every=2, end_step=6, drop=scores.magnitude, grow=dst.gradient
        ... )
        >>> for _ in range(8):
        ...     optimizer.zero_grad()
        ...     model(torch.randn(16, 20)).square().mean().backward()
        ...     optimizer.step()
        >>> [change.step for change in training.history], training.masks.num_zeros()
        ([0, 2, 4, 6], 528)
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers = None,
        *,
        sparsity: float | Schedule,
        end_step: int,
        every: int | None = 100,
        begin_step: int = 0,
        drop: Rating = scores.magnitude,
        grow: Rating | None = None,
        drop_fraction: float | Schedule = 0.3,
        uses_gradients: bool = True,
        start: Score | Mapping[str, Tensor] | None = None,
        allocation: Allocation | Mapping[str, float] = erk,
        pattern: Pattern = patterns.Unstructured(),  # noqa: B008 - a frozen value
        include: Selectors = None,
        exclude: Selectors = None,
        seed: int = 0,
        lean: bool = False,
    ) -> None:
        self._times = timetable(
            sparsity, drop_fraction if grow else 0.0, every=every, begin_step=begin_step, end_step=end_step
        )
        _check_pattern(pattern, changes=any(map(self._times.is_due, self._times.steps())))
        self.model = Masks(model).model
        self._check_unattended()
        if grow is not None:
            _check_trained(self.model, eligible_names(self.model, include, exclude), pattern)
        allocation = PerTensor(allocation) if isinstance(allocation, Mapping) else allocation
        self.masks = prune_(
            self.model,
            optimizer,
            sparsity=self._times.sparsity(0),
            score=partial(scores.random, seed=seed) if start is None else start,
            allocation=allocation,
            pattern=pattern,
            include=include,
            exclude=exclude,
            lean=lean,
        )
        self.step = 0
        chosen = eligible_names(self.model, include, exclude)
        self._names = tuple(name for name in chosen if name not in self.masks.skipped)
        self._seed = seed
        self._uses_gradients = uses_gradients
        self._chooser = Chooser(drop, grow, allocation, pattern)
        self.history = History()
        self.history.add(0, {}, {name: mask.bits for name, mask in self._held().items()}, ())
        self._attach()

    def remove(self) -> None:
        """Change masks no more. They stay as they are, and in force; ``training.masks.remove()`` lets go of them."""
        forget_gradients(self._detach())

    # ---- looking

    @property
    def next_step(self) -> int | None:
        """The step after which masks change next; None if they will not change any more."""
        return self._times.following(self.step)

    def progress(self) -> str:
        """One line: the step, the zeros, how much the last change has exchanged, and when the next one is.

        Example:
            >>> training = SparseTraining(nn.Linear(8, 5), sparsity=0.5, end_step=1000, grow=scores.random)
            >>> training.progress()
            'SparseTraining: step 0 of 1,000, 50.00 % zeros, 0.0 % exchanged, 50.0 % ever kept, next change at 100'
        """
        last = self.history[-1]
        coming = f"next change at {self.next_step:,}" if self.next_step is not None else "no change to come"
        end = f" of {self._times.end_step:,}" if self._times.end_step else ""
        return (
            f"{type(self).__name__}: step {self.step:,}{end}, {last.sparsity:.2%} zeros, "
            f"{last.churn:.1%} exchanged, {last.ever_kept:.1%} ever kept, {coming}"
        ).replace("%", " %")

    def __repr__(self) -> str:
        """The progress line, then the table of the masks."""
        return f"{self.progress()}\n{self.masks!r}"

    # ---- saving

    def state_dict(self) -> dict[str, Any]:
        """The step, the masks and the history: plain numbers, strings, dicts, and uint8 tensors of one bit a weight.

        Settings are not in it: a resumed training makes the method with the same ones.
        """
        return {
            "method": type(self).__name__,
            "step": self.step,
            "masks": self.masks.state_dict(),
            "history": self.history.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another training stood, bit by bit; weights and optimizer may be loaded before or after.

        Args:
            state: What `state_dict` returned, of the same method on a model of the same shapes.

        Raises:
            InvalidInputError: It is the state of something else, or of other weights.
            HolderError: Another method has the masks by now. Nothing has been changed then.
        """
        self._check_unattended()
        self._check_state(state)
        step, history = int(state["step"]), History.from_state(state["history"])
        self.masks.load_state_dict(state["masks"])
        self.step, self.history = step, history
        self._attach()

    # ---- called around the optimizer's steps

    def after_step(self, optimizer: Optimizer, held: Sequence[Mask]) -> None:
        """Count the step, change masks if it is time, and have gradients kept aside if it will be next time."""
        if was_skipped(optimizer) or not self._counts(held):
            return
        try:
            if self._times.is_due(self.step):
                self._change()
        finally:
            self._prepare()

    def _attach(self) -> None:
        """Be called around the steps from now on, with gradients if they are needed in the next one."""
        super()._attach()
        forget_gradients(self._held().values())
        self._prepare()

    def _prepare(self) -> None:
        """Have gradients kept aside if masks change after the next step, and forget those that are over."""
        if not self._uses_gradients:
            return
        if self._times.is_due(self.step + 1):
            ask_for_gradients(self._held().values())
        elif self._times.is_due(self.step):
            forget_gradients(self._held().values())

    def _change(self) -> None:
        """Drop and grow."""
        held = self._held()
        kept = {name: mask.bits.dense for name, mask in held.items()}
        weights = {name: mask.parameter.detach() for name, mask in held.items()}
        gradients = self._gradients(held) if self._uses_gradients else None
        arrived = None if gradients is None else gradients.arrived
        moment = Moment(weights, gradients, step=self.step, seed=self._seed, arrived=arrived)
        sparsity = self._times.sparsity(self.step) if self._times.is_gradual else None
        frozen = {name for name, mask in held.items() if not mask.parameter.requires_grad}
        chosen = self._chooser.choose(moment, kept, sparsity, self._times.drop_fraction(self.step), frozen=frozen)
        before = {name: mask.bits.packed for name, mask in held.items()}
        self.masks.update_(chosen)
        unreached = [name for name in held if gradients is not None and name not in gradients]
        self.history.add(self.step, before, {name: mask.bits for name, mask in held.items()}, unreached)

    def _gradients(self, held: Mapping[str, Mask]) -> Gradients:
        """The gradients of the step just made, of the weights that it has reached."""
        found = take_gradients(held)
        if not found:
            raise InvalidInputError(
                f"{type(self).__name__} needs gradients, and no backward pass has reached a masked weight since the "
                "last step.",
                step=self.step,
                fix="loss.backward() before optimizer.step()",
            )
        return found


def _check_trained(model: nn.Module, names: list[str], pattern: Pattern) -> None:
    """Refuse frozen weights that would be grown and never move."""
    weights = {name: find(model, name) for name in names}
    frozen = [name for name, each in weights.items() if not each.requires_grad and not pattern.misfit(each.shape)]
    if frozen:
        raise InvalidInputError(
            f"{frozen[0]!r} is frozen: weights that are grown in it would stay 0.",
            frozen=f"{len(frozen)} of {len(names)}",
            fix=f"exclude=[{frozen[0]!r}], or requires_grad_(True)",
        )


def _check_pattern(pattern: Pattern, *, changes: bool) -> None:
    """Refuse a pattern that says for each group of units how many are kept: single units cannot go or come."""
    if changes and getattr(pattern, "sparsity", None) is not None:
        raise UnsupportedError(
            f"the units of {pattern!r} cannot be exchanged one by one: each group keeps a fixed number of them.",
            fix="secateur.dst.SRSTE trains such masks, secateur.dst.Static holds them",
        )
