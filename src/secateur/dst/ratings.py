"""Scores that look at more than weights: at gradients, or at the step."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from secateur import scores
from secateur._errors import InvalidInputError
from secateur.dst.moment import Moment, Rating

__all__ = ["gradient", "random", "weight_and_gradient"]


def gradient(moment: Moment) -> dict[str, Tensor]:
    r"""Score every entry by the size of its gradient, :math:`s = |g|`.

    Args:
        moment: Weights, gradients and the step; only the gradients are used.

    Returns:
        Scores of the weights that have gradients, of the same names and shapes.

    Raises:
        InvalidInputError: Gradients were not kept.

    References:
        Evci et al. 2020, "Rigging the lottery: making all tickets winners", section 3 (4).
    """
    return scores.magnitude(moment.arrived)


def random(moment: Moment) -> dict[str, Tensor]:
    r"""Score every entry by an independent uniform number, another one at every step.

    The numbers depend on the training's seed, the step and the parameter's name alone, so a resumed training draws the
    same ones; the global random state is left alone.

    Args:
        moment: Weights, gradients and the step; only names, shapes, the step and the seed are used.

    Returns:
        float32 scores of the same names and shapes.

    References:
        Mocanu et al. 2018, "Scalable training of artificial neural networks with adaptive sparse connectivity inspired
        by network science", algorithm 2.
    """
    return scores.random(moment, seed=(moment.seed << 32) + moment.step)


def weight_and_gradient(gradient_weight: float) -> Rating:
    r"""Make the score :math:`s = |w| + \lambda |g|`.

    Args:
        gradient_weight: :math:`\lambda`, at least 0.

    Returns:
        The score; of the weights that have gradients.

    Raises:
        InvalidInputError: `gradient_weight` is no number of at least 0.

    References:
        Yuan et al. 2021, "MEST: accurate and fast memory-economic sparse training framework on the edge", section 3.1.
    """
    if not 0.0 <= gradient_weight < float("inf"):
        raise InvalidInputError("gradient_weight must be a number of at least 0.", gradient_weight=gradient_weight)

    return _WeightAndGradient(gradient_weight)


@dataclass(frozen=True)
class _WeightAndGradient:
    """The score, as a value that can be copied and pickled."""

    gradient_weight: float

    def __call__(self, moment: Moment) -> dict[str, Tensor]:
        """Score the weights that have gradients."""
        weights, gradients = scores.magnitude(moment), scores.magnitude(moment.gradients)
        return {name: weights[name].add(size, alpha=self.gradient_weight) for name, size in gradients.items()}
