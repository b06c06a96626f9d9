"""SynFlow: how much of the flow from input to output goes through a weight, asked again after every few removals."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_leaves, tree_map

from secateur._errors import InvalidInputError, UnsupportedError
from secateur._names import Selectors
from secateur._passes import Inputs, call_with, in_double, untouched
from secateur._progress import track
from secateur._units import lowest, lowest_counts
from secateur._wrappers import unwrapped
from secateur.scores._chosen import chosen
from secateur.scores._reach import refuse_hidden

__all__ = ["synflow"]


def synflow(
    model: nn.Module, inputs: Inputs, *, sparsity: float, rounds: int = 100, include: Selectors = None
) -> dict[str, Tensor]:
    r"""Score every weight by the synaptic flow through it, :math:`s = |w|\,\partial R / \partial |w|`, in rounds.

    R is the sum of the model's outputs for an input of ones with every parameter at its absolute value. In round k of n
    the lowest go, so that the density becomes :math:`(1 - sparsity)^{k/n}`, and the others are scored anew. One call
    does all rounds: at the given sparsity the lowest scores of all weights together are those that the rounds remove,
    so use them with ``allocation=allocation.global_`` and the same sparsity.

    Args:
        model: The model; weights may be frozen, and nothing of it is changed. It is run in evaluation mode and in
            double precision, with the running means of BatchNorm at 0.
        inputs: An example: a tensor, a tuple of arguments, a dict of keyword arguments. Floating-point numbers become
            ones, others (tokens) stay; one example is enough. A function that runs the model, and returns the outputs
            to be added up, must pass ones in double precision itself.
        sparsity: Fraction of zeros in [0, 1) among the weights that are scored, masked ones included.
        rounds: Number of rounds n. With 1 the scores are those of the whole model.
        include: Globs over dotted names, or module types; all weights if left out (no biases, no norms), as in
            `prune_`.

    Returns:
        Scores by dotted name, of the shapes of the weights, in double precision: the flow in the last round of a weight
        that is there until then; for others a negative number, the higher the later they go.

    Raises:
        InvalidInputError: `sparsity` or `rounds` out of range; an output that depends on none of the weights; a flow
            that is not finite; inference mode.
        UnsupportedError: Complex or integer weights. Nothing is changed in any case.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
        >>> _ = model[0].weight.data.copy_(torch.tensor([[1.0, -2.0], [3.0, 4.0]]))
        >>> _ = model[2].weight.data.copy_(torch.tensor([[-5.0, 1.0]]))
        >>> synflow(model, torch.zeros(1, 2), sparsity=0.5, rounds=1)["0.weight"]
        tensor([[ 5., 10.],
                [ 3.,  4.]], dtype=torch.float64)

    References:
        Tanaka, Kunin, Yamins, Ganguli 2020, "Pruning neural networks without any data by iteratively conserving
        synaptic flow", equation 2 and algorithm 1.
    """
    _check(sparsity, rounds)
    weights = chosen(model, include, trained=False)
    _refuse_other_numbers(weights)
    inner = unwrapped(model)
    total, num_gone = sum(weight.numel() for weight in weights.values()), 0
    kept = {n: torch.ones(w.shape, dtype=torch.bool, device=w.device) for n, w in weights.items()}
    with untouched(inner), in_double():
        for module in inner.modules():
            module.training = False
        tensors, ones = _magnitudes(inner), _ones(inputs)
        scores = _flow(inner, tensors, ones, kept)
        for done in track(range(1, rounds), "scoring in rounds"):
            goal = round(total * (1 - (1 - sparsity) ** (done / rounds)))
            if goal > num_gone:
                _remove_lowest(scores, kept, goal - num_gone, floor=done - rounds - 1)
                flow = _flow(inner, tensors, ones, kept)
                scores = {name: torch.where(kept[name], flow[name], scores[name]) for name in scores}
            num_gone = goal
    return scores


def _check(sparsity: float, rounds: int) -> None:
    """Refuse numbers that describe no rounds."""
    if not (isinstance(sparsity, Real) and 0 <= sparsity < 1):
        raise InvalidInputError(
            "sparsity must be a number in [0, 1): the fraction of zeros.",
            sparsity=repr(sparsity),
            fix="the sparsity that prune_ is called with",
        )
    if not isinstance(rounds, int) or rounds < 1:
        raise InvalidInputError("rounds must be a positive integer.", rounds=repr(rounds))


def _refuse_other_numbers(weights: Mapping[str, Tensor]) -> None:
    """Refuse weights that no flow can be differentiated by, or whose absolute values are of another kind."""
    for name, weight in weights.items():
        if not weight.is_floating_point():
            raise UnsupportedError(
                f"cannot score {name!r} by synaptic flow: it is not of real floating-point numbers.",
                dtype=weight.dtype,
                fix="leave it out of include=…, or score it by magnitude",
            )


def _magnitudes(model: nn.Module) -> dict[str, Tensor]:
    """Absolute values of the parameters, and the buffers, in double precision; running means are 0."""
    found = {n: p.detach().double().abs() for n, p in model.named_parameters() if p.is_floating_point()}
    found |= {n: buffer.double() for n, buffer in model.named_buffers() if buffer.is_floating_point()}
    for prefix, module in model.named_modules():
        if isinstance(module, _NormBase) and isinstance(module.running_mean, Tensor):
            name = f"{prefix}.running_mean" if prefix else "running_mean"
            found[name] = torch.zeros_like(found[name])
    return found


def _ones(inputs: Inputs) -> Inputs:
    """The inputs with ones in place of all floating-point numbers in tensors."""
    if callable(inputs) and not isinstance(inputs, Tensor | Mapping):
        return inputs
    plain = dict(inputs) if isinstance(inputs, Mapping) else inputs
    ones: Inputs = tree_map(_one, plain)
    return ones


def _one(leaf: object) -> object:
    """Ones in place of a tensor of floating-point numbers, and of it alone."""
    if isinstance(leaf, Tensor) and leaf.is_floating_point():
        return torch.ones_like(leaf, dtype=torch.float64)
    return leaf


class _Caller(nn.Module):
    """A module around the model that calls it with inputs of any form."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Inputs) -> Any:
        return call_with(self.model, inputs)


def _flow(
    model: nn.Module, tensors: Mapping[str, Tensor], inputs: Inputs, kept: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The flow through every weight while only some are kept; 0 through the others."""
    weights = {name: (tensors[name] * mask).requires_grad_() for name, mask in kept.items()}
    state = {f"model.{name}": tensor for name, tensor in {**tensors, **weights}.items()}
    with torch.enable_grad():
        result = functional_call(_Caller(model), state, (inputs,))
        flow = sum(each.sum() for each in tree_leaves(result) if isinstance(each, Tensor) and each.is_floating_point())
    if not isinstance(flow, Tensor) or not flow.requires_grad:
        raise InvalidInputError(
            "no output of the model depends on the weights to be scored.",
            returned=type(result).__name__,
            fix="inputs=lambda model: model(ones).logits picks the output that counts",
        )
    slopes = torch.autograd.grad(flow, list(weights.values()), allow_unused=True)
    if any(slope is None for slope in slopes):
        refuse_hidden(flow)
    scores = {
        name: torch.zeros_like(weight) if slope is None else (weight.detach() * slope).abs_()
        for (name, weight), slope in zip(weights.items(), slopes, strict=True)
    }
    _refuse_infinite(scores)
    return scores


def _refuse_infinite(scores: Mapping[str, Tensor]) -> None:
    """Refuse flows that cannot be told from each other."""
    for name, score in scores.items():
        if score.numel() and not bool(score.amax().isfinite()):
            raise InvalidInputError(
                f"the flow through {name!r} is not finite.",
                not_finite=f"{int(score.isfinite().logical_not().count_nonzero())} of {score.numel()}",
                fix="look for inf or NaN in the weights and buffers of the model",
            )


def _remove_lowest(scores: Mapping[str, Tensor], kept: dict[str, Tensor], count: int, *, floor: int) -> None:
    """Remove the lowest of the kept ones, in place; their scores move, in their order, into [floor, floor + 1]."""
    alive = {name: scores[name][mask] for name, mask in kept.items()}
    counts = lowest_counts(list(alive.values()), count)
    for (name, values), num_lowest in zip(alive.items(), counts, strict=True):
        stays = lowest(values, num_lowest, name=name)
        scores[name][kept[name]] = torch.where(stays, values, floor + values / (1 + values))
        kept[name] = kept[name].masked_scatter(kept[name], stays)
