"""What a score may look at when masks are about to change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from torch import Tensor

from secateur._errors import InvalidInputError

__all__ = ["Moment", "Rating"]


class Moment(Mapping[str, Tensor]):
    """The weights by dotted name, as every score takes them, with the gradients and the step beside them.

    So any function of `secateur.scores` that takes weights alone serves as well; those of `secateur.dst` look at the
    rest. Nothing in it may be written to.

    Args:
        weights: Masked weights by dotted name, detached.
        gradients: Dense gradients of the same names and shapes, of the step just made; None if they were not kept.
        arrived: The same as the backward passes left them, if that differs.
        step: Optimizer steps that have been made.
        seed: The training's seed.
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        gradients: Mapping[str, Tensor] | None,
        *,
        step: int,
        seed: int = 0,
        arrived: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._weights = weights
        self._gradients = gradients
        self._arrived = gradients if arrived is None else arrived
        self.step = step
        self.seed = seed

    def __getitem__(self, name: str) -> Tensor:
        """One weight."""
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        """Names of the weights, in the model's order."""
        return iter(self._weights)

    def __len__(self) -> int:
        """Number of weights."""
        return len(self._weights)

    @property
    def gradients(self) -> Mapping[str, Tensor]:
        """Dense gradients by dotted name; weights that the step's backward passes did not reach have none.

        At kept places they are what the optimizer saw, which may have been clipped or unscaled; at masked places the
        sums of what the backward passes since the last step left.

        Raises:
            InvalidInputError: They were not kept.
        """
        return _present(self._gradients)

    @property
    def arrived(self) -> Mapping[str, Tensor]:
        """Dense gradients by dotted name as the backward passes left them, before clipping and unscaling.

        They have the order of the `gradients` and cost no pass over the weights.

        Raises:
            InvalidInputError: They were not kept.
        """
        return _present(self._arrived)

    def has_gradient(self, name: str) -> bool:
        """Whether there is nothing that would keep a score from rating this weight."""
        return self._gradients is None or name in self._gradients


def _present(gradients: Mapping[str, Tensor] | None) -> Mapping[str, Tensor]:
    """The gradients, if they were kept."""
    if gradients is None:
        raise InvalidInputError(
            "a score looks at gradients, but they were not kept.", fix="uses_gradients=True keeps them"
        )
    return gradients


Rating = Callable[[Moment], Mapping[str, Tensor]]
"""A score for masks that change as training goes on: ``Moment -> {dotted name: scores of the weight's shape}``.

Higher = kept, or grown first. Every `secateur.scores.Score` is one, as a `Moment` is a mapping of weights.
"""
