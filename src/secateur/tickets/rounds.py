"""Train, prune, rewind, and again: iterative magnitude pruning, with any score."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral
from typing import Any

from torch import Tensor, nn

from secateur import patterns, scores
from secateur._errors import InvalidInputError
from secateur._progress import track
from secateur._wrappers import unwrapped
from secateur.allocation import Allocation, uniform
from secateur.allocation._sparsity import check_sparsity
from secateur.masks import Masks, prune_
from secateur.masks.eligible import Selectors
from secateur.patterns import Pattern
from secateur.scores import Score
from secateur.tickets.rewinding import rewind_
from secateur.tickets.snapshot import Snapshot, check_snapshot
from secateur.tickets.ticket import Ticket

__all__ = ["Round", "geometric", "imp_"]


@dataclass(frozen=True, eq=False)
class Round:
    """One training between two prunings.

    Args:
        number: Which training it was, from 0.
        sparsity: Fraction of zeros in the masked tensors, counted.
        zeros: Masked entries of each tensor by dotted name.
        result: What the training function returned.
        ticket: The masks that were trained, and the snapshot from which they started.
    """

    number: int
    sparsity: float
    zeros: Mapping[str, int]
    result: Any
    ticket: Ticket

    def as_dict(self) -> dict[str, Any]:
        """The round as plain data, without the ticket: it can be written as JSON if the result can."""
        return {"number": self.number, "sparsity": self.sparsity, "zeros": dict(self.zeros), "result": self.result}


def geometric(sparsity: float, rounds: int) -> list[float]:
    r"""Sparsities of rounds that each prune the same fraction of what is left, :math:`s_i = 1 - (1 - s)^{i / n}`.

    Args:
        sparsity: The last sparsity s, in [0, 1).
        rounds: Number n of prunings.

    Returns:
        n + 1 sparsities: 0 for the dense training, then one after each pruning; the last is `sparsity` exactly.

    Raises:
        InvalidInputError: `sparsity` is not in [0, 1), or `rounds` is not a whole number above 0.

    Example:
        >>> geometric(0.875, 3)
        [0.0, 0.5, 0.75, 0.875]
    """
    check_sparsity(sparsity)
    if not isinstance(rounds, Integral) or rounds < 1:
        raise InvalidInputError("rounds is the number of prunings, at least 1.", rounds=repr(rounds))
    return [1.0 - (1.0 - sparsity) ** (number / int(rounds)) for number in range(rounds)] + [float(sparsity)]


def imp_(
    model: nn.Module,
    train: Callable[[nn.Module], Any],
    *,
    sparsities: Sequence[float],
    snapshot: Snapshot | None = None,
    rewind: Callable[[nn.Module, Snapshot], object] = rewind_,
    score: Score | Mapping[str, Tensor] = scores.magnitude,
    allocation: Allocation = uniform,
    pattern: Pattern = patterns.Unstructured(),  # noqa: B008 - a frozen value
    include: Selectors = None,
    exclude: Selectors = None,
    after_round: Callable[[Round], object] | None = None,
) -> list[Round]:
    """Find lottery tickets by iterative magnitude pruning: prune what is trained, rewind what is left, train it.

    Each round prunes by the weights that the round before has trained, gives the kept ones their values of the
    snapshot, and trains. To rewind to step k, train for k steps and then call: the trainings start there.

    Args:
        model: The model. If it has masks already, their zeros stay.
        train: Trains the model that it is given, for one round, and returns what is to be kept of it (an accuracy).
            Best with an optimizer of its own, made anew; any optimizer keeps the zeros.
        sparsities: Sparsity of each training, never falling: `geometric`, or numbers of one's own. A first one of 0
            is the dense training, by whose weights the first pruning goes.
        snapshot: Where the weights are rewound to; the model as it is, if left out.
        rewind: What is done between pruning and training. ``partial(rewind_, optimizer=…, buffers=True)`` serves an
            optimizer that lives through all rounds;
            ``lambda model, snapshot: rewind_learning_rate_(snapshot, optimizer, scheduler)`` leaves the weights.
        score: See `prune_`.
        allocation: How zeros are shared out: the same sparsity in every tensor, or ``allocation.global_`` …; a dict of
            sparsities holds those that it names at the same sparsity in every round.
        pattern: See `prune_`.
        include: See `prune_`.
        exclude: See `prune_`.
        after_round: Called with each round as soon as it is trained, to save its ticket or to print it.

    Returns:
        The rounds. The model is as the last one has trained it, with its masks.

    Changes:
        Everything that training, `prune_` and `rewind` change.

    Raises:
        InvalidInputError: No sparsities, one outside [0, 1), one that falls, a function that is none, or no snapshot.
            Nothing is changed then.
        ShapeError: The snapshot was taken of another architecture. Nothing is changed then.
        SecateurError: The errors of `prune_`; rounds before have been trained then.

    Example:
        >>> model = nn.Linear(10, 4)
        >>> rounds = imp_(model, lambda model: "trained", sparsities=geometric(0.75, rounds=2))
        >>> [(each.sparsity, each.result) for each in rounds]
        [(0.0, 'trained'), (0.5, 'trained'), (0.75, 'trained')]

    References:
        Frankle, Carbin 2019, "The lottery ticket hypothesis: finding sparse, trainable neural networks", section 1
        and appendix B; Frankle et al. 2020, "Linear mode connectivity and the lottery ticket hypothesis", algorithm 1.
    """
    _check_calls(train=train, rewind=rewind, after_round=after_round or print)
    _check_rounds(sparsities)
    start = Snapshot.of(model) if snapshot is None else snapshot
    check_snapshot(start)
    start.check_fits(unwrapped(model), buffers=False)
    include, exclude = _lasting(include), _lasting(exclude)
    rounds = []
    for number, sparsity in enumerate(track(sparsities, "training in rounds")):
        masks = prune_(
            model,
            sparsity=sparsity,
            score=score,
            allocation=allocation,
            pattern=pattern,
            include=include,
            exclude=exclude,
        )
        ticket = Ticket.of(model, start)
        rewind(model, start)
        done = Round(number, masks.sparsity(), _zeros(masks), train(model), ticket)
        rounds.append(done)
        if after_round is not None:
            after_round(done)
    return rounds


def _check_calls(**functions: object) -> None:
    """Refuse what cannot be called, before the first round needs it."""
    for name, function in functions.items():
        if not callable(function):
            raise InvalidInputError(f"{name}= is a function.", found=type(function).__name__, fix=_SIGNATURES[name])


_SIGNATURES = {
    "train": "train(model) trains the model for one round",
    "rewind": "rewind(model, snapshot), such as secateur.tickets.rewind_",
    "after_round": "after_round(round) is called with each secateur.tickets.Round",
}


def _check_rounds(sparsities: Sequence[float]) -> None:
    """Refuse rounds that cannot be carried out."""
    if not isinstance(sparsities, Sequence) or not sparsities:
        raise InvalidInputError(
            "sparsities= has one number for each training.",
            found=repr(sparsities),
            fix="sparsities=secateur.tickets.geometric(0.9, rounds=10)",
        )
    for sparsity in sparsities:
        check_sparsity(sparsity)
    fall = next(((one, other) for one, other in pairwise(sparsities) if other < one), None)
    if fall:
        raise InvalidInputError(
            "sparsity may only rise from round to round: what is masked stays masked.",
            falls=f"from {fall[0]:g} to {fall[1]:g}",
            fix="sorted(sparsities)",
        )


def _lasting(selectors: Selectors) -> Selectors:
    """Selectors that can be gone through once a round, also if they come from an iterator."""
    return selectors if selectors is None or isinstance(selectors, str | type) else list(selectors)


def _zeros(masks: Masks) -> dict[str, int]:
    """Masked entries of each tensor."""
    return {name: mask.numel() - int(mask.count_nonzero()) for name, mask in masks.items()}
