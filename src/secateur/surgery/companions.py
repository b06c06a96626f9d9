"""Tensors that are not named but must follow, as they belong to the same module as the one that is."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from secateur._errors import UnsupportedError
from secateur.surgery import computed
from secateur.surgery.computed import Follower
from secateur.surgery.places import Place, own_tensors
from secateur.surgery.selection import Selection

__all__ = ["companions"]


def companions(place: Place, selection: Selection) -> Iterator[Follower]:
    """What else changes when the tensor at `place` does.

    Args:
        place: One of the places of the tensor.
        selection: What happens to it.

    Returns:
        Owning module, short name and selection of each; the tensor itself may be among them.

    Raises:
        UnsupportedError: Something else would have to follow and cannot.
    """
    if isinstance(place.module, nn.modules.batchnorm._NormBase):
        yield from _statistics(place.module, selection)
    yield from computed.followers(place, selection)
    yield from _quantizer(place, selection)


def _statistics(module: nn.modules.batchnorm._NormBase, selection: Selection) -> Iterator[Follower]:
    """Running mean and variance, unless an earlier change has cut them already."""
    for leaf, init in (("running_mean", None), ("running_var", _ones)):
        tensor = module._buffers.get(leaf)
        if tensor is not None and tensor.shape[0] == selection.size:
            yield module, leaf, selection.on(0, init)


def _quantizer(place: Place, selection: Selection) -> Iterator[Follower]:
    """Scales and ranges of quantization-aware training, one a channel of the weight."""
    quantizer = place.module._modules.get(f"{place.leaf}_fake_quant")
    if quantizer is None or getattr(quantizer, "ch_axis", -1) != selection.dim:
        return
    if selection.num_new:
        raise UnsupportedError(f"cannot grow {place.name!r}: its fake quantizer has no range for new channels.")
    for owner in quantizer.modules():
        for leaf, tensor in own_tensors(owner):
            if tensor.dim() == 1 and tensor.shape[0] == selection.size:
                yield owner, leaf, selection.on(0)


def _ones(slab: Tensor) -> None:
    """Fill new positions of a variance."""
    slab.fill_(1)
