"""Wanda: a weight counts by its size times the size of what it is multiplied with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from secateur._errors import InvalidInputError
from secateur._names import Selectors
from secateur._passes import some_of, untouched
from secateur._units import check_scores
from secateur._wrappers import unwrapped
from secateur.scores._chosen import chosen, precise
from secateur.scores._magnitude import magnitude

__all__ = ["wanda"]


def wanda(
    model: nn.Module,
    forward: Callable[[nn.Module, Any], Any],
    batches: Iterable[Any],
    *,
    include: Selectors = None,
    steps: int | None = None,
) -> dict[str, Tensor]:
    r"""Score every weight by its size and that of its input, :math:`s_{ij} = |w_{ij}|\,\lVert x_j \rVert_2`.

    The norm of input feature j is over all rows (examples, tokens) of all batches. A convolution is read as the matrix
    product over patches that it is: the norm is that of what the entry of the kernel is multiplied with, over all
    places where the kernel is laid. The paper compares the weights of one output: with ``patterns.NM(n, m)`` and m the
    number of inputs each output keeps the same number. A subclass of such a layer is taken to multiply its weight with
    its first argument as it is.

    Args:
        model: The model, in the mode in which it is to be scored; weights may be frozen. Flags, random state and
            buffers are afterwards as they were, and no hook is left.
        forward: (model, batch) -> anything; runs the model on a batch, as a loss function does.
        batches: A list or a ``DataLoader``.
        include: Globs over dotted names, or module types; all weights that a linear layer, a convolution or the
            ``Conv1D`` of transformers has used are scored if left out.
        steps: How many batches to take from the beginning; all if left out.

    Returns:
        Scores by dotted name, of the shapes of the weights, in single precision or better; zero at masked places. Of a
        weight that several layers use, or one layer several times, all inputs count.

    Raises:
        InvalidInputError: There is no batch; a weight that is named was used by no such layer; a score is NaN;
            inference mode. Nothing is changed then.

    Example:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> _ = nn.init.constant_(model.weight, 0.5)
        >>> wanda(model, lambda m, x: m(x), [torch.tensor([[3.0, 1.0], [4.0, 0.0]])])
        {'weight': tensor([[2.5000, 0.5000]])}

    References:
        Sun, Liu, Bair, Kolter 2024, "A simple and effective pruning approach for large language models", equation 1;
        here for convolutions too.
    """
    weights = chosen(model, include, trained=False)
    with untouched(model), _watched(unwrapped(model), weights) as squares:
        for batch in some_of(batches, steps):
            forward(model, batch)
    unused = [name for name in weights if name not in squares]
    if unused and (include is not None or not squares):
        raise InvalidInputError(
            f"no linear layer and no convolution has used {unused[0]!r} on the batches, so its inputs are unknown.",
            unused=len(unused),
            fix="leave it out of include=…, or score it by another score",
        )
    scores = {
        name: precise(size) * squares[name].sqrt().to(precise(size))
        for name, size in magnitude({name: weights[name] for name in weights if name in squares}).items()
    }
    check_scores(scores)
    return scores


@contextmanager
def _watched(model: nn.Module, weights: Mapping[str, nn.Parameter]) -> Iterator[dict[str, Tensor]]:
    """Collect, by name, the squared norms of what the weights are multiplied with, while the context is open."""
    names = {id(weight): name for name, weight in weights.items()}
    found: dict[str, Tensor] = {}
    with ExitStack() as stack:
        for module in model.modules():
            name = names.get(id(module._parameters.get("weight")))
            if name is not None and (isinstance(module, nn.Linear | _ConvNd) or _is_transposed(module)):
                hook = module.register_forward_pre_hook(_adding(name, found), with_kwargs=True)
                stack.callback(hook.remove)
        yield found


def _adding(name: str, found: dict[str, Tensor]) -> Callable[..., None]:
    """A hook that adds the squared norms of one call."""

    def add(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = args[0] if args else kwargs[next(iter(signature(module.forward).parameters))]
        squares = _squares(module, precise(x).abs().square())
        found[name] = found[name] + squares if name in found else squares

    return add


def _is_transposed(module: nn.Module) -> bool:
    """Whether it is the linear layer of transformers that has the weight's inputs first."""
    return type(module).__name__ == "Conv1D"


def _squares(module: Any, squares: Tensor) -> Tensor:
    """Sums of the squared inputs of each entry of the weight, in double precision, of a shape that broadcasts to it."""
    if isinstance(module, _ConvNd):
        return _over_patches(module, squares)
    over_rows = squares.flatten(end_dim=-2).sum(0, dtype=torch.float64) if squares.dim() > 1 else squares.double()
    return over_rows[:, None] if _is_transposed(module) else over_rows


def _over_patches(module: Any, squares: Tensor) -> Tensor:
    """The same for a convolution: the derivative, by its entries, of the sum of all outputs on squared inputs."""
    channels, groups = module.in_channels, module.groups
    batched = squares if squares.dim() == len(module.kernel_size) + 2 else squares[None]
    summed = batched.sum(0, keepdim=True, dtype=torch.float64)
    is_transposed = isinstance(module, _ConvTransposeNd)
    shape = (channels, 1) if is_transposed else (groups, channels // groups)
    kernel = summed.new_ones(*shape, *module.kernel_size).requires_grad_()
    with torch.enable_grad():
        result = (
            _TRANSPOSED[len(module.kernel_size)](
                summed, kernel, None, module.stride, module.padding, module.output_padding, groups, module.dilation
            )
            if is_transposed
            else module._conv_forward(summed, kernel, None)
        )
        (sums,) = torch.autograd.grad(result.sum(), kernel)
    return sums if is_transposed else sums.repeat_interleave(module.out_channels // groups, dim=0)


_TRANSPOSED = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}
