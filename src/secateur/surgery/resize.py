"""The two verbs on one parameter: smaller and larger, in place."""

from __future__ import annotations

from typing import SupportsIndex

from torch import Tensor, nn

from secateur.surgery.positions import Keep
from secateur.surgery.selection import Init
from secateur.surgery.transaction import Holders, transaction

__all__ = ["grow_", "resize_"]


def resize_(
    module: nn.Module, name: str, *, dim: SupportsIndex, keep: Keep, optimizer: Holders = None, ema: Holders = None
) -> Tensor:
    """Make one parameter smaller along a dim, in place, with everything that refers to it.

    Call it between training steps, from the thread that trains; between two backward passes of an accumulated batch is
    fine. Several parameters that belong together are resized by one `transaction`, which also looks for what refers to
    them once instead of each time.

    Args:
        module: The module that `name` is relative to: the layer itself, or the whole model with a dotted name.
        name: Name of a parameter or buffer, as in ``named_parameters()``, or of a weight that torch's weight norm,
            spectral norm or ``prune`` computes from some.
        dim: The dim; negative counts from the end.
        keep: Positions that stay: ascending indices, a range, a slice, or a bool mask (True = kept).
        optimizer: The optimizer that holds the parameter, or a list of them. Not needed where there is none.
        ema: What follows by name: an ``AveragedModel``, a copy of `module`, a dict of tensors, or a list of them.

    Returns:
        The parameter: the same object as before. For a computed weight, the parameter that it is made from.

    Changes:
        Data, ``.grad``, the optimizer's state, averaged models and masks; running statistics of a BatchNorm; sizes that
        torch.nn modules record (``in_features``, …) as soon as all their tensors agree on them.

    Keeps:
        Identity, name, requires_grad, dtype, device, memory format, hooks, Python attributes, weak references, ties.
        Graphs that were built before are of no use any more: their backward raises `StaleGraphError`, or torch's own
        error about an in-place change where they only read a frozen weight. One kind cannot be seen: a forward pass
        inside ``torch.utils.checkpoint`` with ``use_reentrant=True`` whose backward is still to come.

    Raises:
        ShapeError: No such dim, or an index outside it, or groups, gates or heads would come apart.
        InvalidInputError: No such name; `keep` empty, unsorted or with repetitions; a call inside inference mode.
        HolderError: An optimizer holds the parameter but was not passed, or does not hold it; a copy cannot follow.
        UnknownStateError: The optimizer keeps an entry of unknown meaning.
        UnsupportedError: A lazy, sparse, quantized, shared or distributed parameter, or a weight that is computed in a
            way that does not keep positions apart.

        Nothing has been changed when one of these is raised.

    Example:
        >>> import torch
        >>> layer = nn.Linear(100, 10)
        >>> optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
        >>> layer(torch.ones(100)).sum().backward()
        >>> optimizer.step()
        >>> weight = resize_(layer, "weight", dim=1, keep=range(90), optimizer=optimizer)
        >>> layer, weight is layer.weight, tuple(optimizer.state[weight]["momentum_buffer"].shape)
        (Linear(in_features=90, out_features=10, bias=True), True, (10, 90))
    """
    with transaction(module, optimizer, ema) as surgery:
        surgery.resize(name, dim=dim, keep=keep)
    return surgery.tensor(name)


def grow_(
    module: nn.Module,
    name: str,
    *,
    dim: SupportsIndex,
    size: SupportsIndex,
    init: Init = None,
    at: Keep | None = None,
    optimizer: Holders = None,
    ema: Holders = None,
) -> Tensor:
    """Make one parameter larger along a dim, in place, with everything that refers to it; the reverse of `resize_`.

    Args:
        module: The module that `name` is relative to.
        name: Name of a parameter or buffer.
        dim: The dim; negative counts from the end.
        size: Its size afterwards, larger than now.
        init: Values of the new positions: a tensor of their shape, a function that fills a zero tensor of that shape in
            place (``nn.init.kaiming_uniform_``), or None for zeros.
        at: Where the new positions are afterwards: as many ascending indices in [0, size) as there are new positions.
            They come last if left out.
        optimizer: As for `resize_`. New positions have no history: moments are 0, Rprop's step sizes lr, Adagrad's sums
            the initial value. Adam's step count is shared by the whole tensor, so new entries first move by several
            times the learning rate.
        ema: As for `resize_`; averages hold the new values themselves.

    Returns:
        The parameter: the same object as before.

    Changes:
        As `resize_`; gradients are 0 at new positions.

    Keeps:
        As `resize_`.

    Raises:
        ShapeError: No such dim, `size` not larger, `init` of another shape, or `at` of another length.
        SecateurError: The others of `resize_`. Nothing has been changed when one of these is raised.

    Example:
        >>> layer = nn.Linear(3, 2)
        >>> grow_(layer, "weight", dim=1, size=5).shape, layer.in_features
        (torch.Size([2, 5]), 5)
        >>> grow_(layer, "bias", dim=0, size=3, at=[1], init=nn.init.ones_)[1].item()
        1.0
    """
    with transaction(module, optimizer, ema) as surgery:
        surgery.grow(name, dim=dim, size=size, init=init, at=at)
    return surgery.tensor(name)
