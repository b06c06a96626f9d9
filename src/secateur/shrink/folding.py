"""Constants that emptied units leave behind: seen where a layer reads them, then added to that layer's bias.

A unit whose incoming weights are all zero has a value that its inputs do not change: its bias, gone through whatever
comes next. A linear layer multiplies it with a column of its weight, which is one more constant for its own bias.
A convolution does likewise, unless it pads with zeros: at the border it reads fewer copies of the constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from secateur._names import tied_names
from secateur.graph.coupling import Coupling
from secateur.graph.trace import named_tensors
from secateur.surgery.edits import Edit, SetValue

__all__ = ["Reader", "Seen", "additions", "bias_edits", "observed", "readers"]

Flags = npt.NDArray[np.bool_]
Keep = Mapping[str, Mapping[int, Tensor]]

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Reader:
    """A linear or convolution layer, which multiplies each channel of its input with a part of its weight.

    Args:
        path: The module's dotted name.
        weight: First dotted name of its weight.
        bias: First dotted name of its bias, None if it has none.
        groups: Number of groups of a convolution, 1 otherwise.
        pads: Whether it puts zeros around its input.
    """

    path: str
    weight: str
    bias: str | None
    groups: int
    pads: bool

    def going(self, coupling: Coupling, gone: Flags) -> Tensor:
        """Which input channels go, and are multiplied into outputs that may stay; shape (input channels,), bool.

        Channels of whole groups do not count: their outputs go as well.
        """
        dim = coupling.dims[self.weight][1]
        going = ~coupling.solution.kept(dim, gone) if dim else np.zeros(1, dtype=bool)
        return torch.from_numpy(np.tile(going, self.groups))

    def columns(self, model: nn.Module) -> Tensor:
        """Sums of the weight over the window, by group; shape (groups, outputs of a group, inputs of a group)."""
        return self._by_group(model).sum(3)

    def reads(self, model: nn.Module) -> Tensor:
        """Which input channels have weights that are not zero; shape (input channels,), bool."""
        return (self._by_group(model) != 0).any(3).any(1).flatten().cpu()

    def _by_group(self, model: nn.Module) -> Tensor:
        """The weight, shape (groups, outputs of a group, inputs of a group, window)."""
        weight = named_tensors(model)[self.weight].detach()
        return weight.reshape(self.groups, weight.shape[0] // self.groups, weight.shape[1], -1)


@dataclass
class Seen:
    """What came in at one reader, channel by channel.

    Args:
        value: What each channel held first, shape (channels,).
        spread: The largest difference from that, over batch, positions and calls, shape (channels,).
        largest: The largest entry of all, which says how far rounding can go.
    """

    value: Tensor
    spread: Tensor
    largest: float

    @property
    def is_constant(self) -> Tensor:
        """Which channels never changed, but for rounding; shape (channels,), bool."""
        return self.spread <= 1e-12 * self.largest

    def join(self, other: Seen) -> None:
        """Take up another call."""
        self.spread = torch.maximum(torch.maximum(self.spread, other.spread), (other.value - self.value).abs())
        self.largest = max(self.largest, other.largest)


def readers(model: nn.Module, coupling: Coupling) -> list[Reader]:
    """The layers whose biases can take up constants, or whose weights show that nothing is read."""
    first = {name: names[0] for names in tied_names(model).values() for name in names}
    found = []
    for path, module in model.named_modules():
        weight = first.get(f"{path}.weight".lstrip("."))
        if isinstance(module, _LAYERS) and weight in coupling.dims:
            bias = first.get(f"{path}.bias".lstrip("."))
            found.append(Reader(path, weight, bias, getattr(module, "groups", 1), _pads(module)))
    return found


def _pads(module: nn.Module) -> bool:
    """Whether a layer puts zeros around its input."""
    if isinstance(module, nn.Linear) or getattr(module, "padding_mode", "zeros") != "zeros":
        return False
    padding: Any = module.padding
    if isinstance(padding, str):
        kernel: Any = module.kernel_size
        return padding == "same" and any(size > 1 for size in kernel)
    return any(size != 0 for size in padding)


@contextmanager
def observed(model: nn.Module, several: Sequence[Reader]) -> Iterator[dict[str, Seen]]:
    """For as long as the block lasts, note what comes in at the readers; those that are never called are left out."""
    found: dict[str, Seen] = {}

    def note(reader: Reader, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        entering = (args[0] if args else kwargs["input"]).detach()
        # the hook is put on these layers only, so what is no Linear has a kernel_size, a tuple
        channel = -1 if isinstance(module, nn.Linear) else -1 - len(module.kernel_size)  # type: ignore[arg-type]
        rows = entering.movedim(channel, -1).reshape(-1, entering.shape[channel])
        if not rows.numel():
            return
        seen = Seen(rows[0].clone(), (rows - rows[0]).abs().amax(0), float(rows.abs().max()))
        if reader.path in found:
            found[reader.path].join(seen)
        else:
            found[reader.path] = seen

    modules = [model.get_submodule(reader.path) for reader in several]
    handles = [
        module.register_forward_pre_hook(partial(note, reader), with_kwargs=True)
        for reader, module in zip(several, modules, strict=True)
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def additions(
    model: nn.Module, coupling: Coupling, several: Sequence[Reader], seen: Mapping[str, Seen], gone: Flags
) -> dict[str, Tensor]:
    """What each bias has to gain when units go, so that nothing else changes.

    Args:
        model: The model that was watched.
        coupling: Its coupling.
        several: Its readers.
        seen: What came in at them.
        gone: Which classes go.

    Returns:
        Name of a bias -> what is added to it, of its shape before anything is cut; those that gain nothing left out.
    """
    found = {}
    for reader in several:
        going = reader.going(coupling, gone)
        if reader.path not in seen or reader.bias is None or reader.pads or not going.any():
            continue
        value = seen[reader.path].value
        constant = torch.where(going.to(value.device), value, torch.zeros_like(value))
        columns = reader.columns(model)
        addition = (columns @ constant.to(columns).reshape(reader.groups, -1, 1)).flatten()
        if bool((addition != 0).any()):
            found[reader.bias] = addition.cpu()
    return found


def bias_edits(
    models: Sequence[nn.Module],
    copies: Sequence[object],
    changes: Mapping[str, Tensor],
    keep: Keep,
    tied: Mapping[str, Sequence[str]],
) -> Iterator[Edit]:
    """The edits that add constants to biases which have been cut by then: in the model, its copies, dicts of tensors.

    Args:
        models: The model first, then copies of it.
        copies: What else follows by name; only dicts count.
        changes: What each bias gains, of its shape before the cut.
        keep: Kept positions by tensor name and dim.
        tied: Other names of tensors, by their first ones.
    """
    for name, addition in changes.items():
        cut = addition[keep[name][0]] if 0 in keep.get(name, {}) else addition
        own = [named_tensors(model)[name] for model in models]
        for tensor in own:
            yield _Add(partial(_same, tensor), cut)
        for copy in copies:
            done = [partial(_same, own[0])]
            for each in (name, *tied.get(name, ())):
                if isinstance(copy, dict) and each in copy:
                    yield _Add(partial(copy.__getitem__, each), cut, unless=tuple(done))
                    done.append(partial(copy.__getitem__, each))


def _same(tensor: Tensor) -> Tensor:
    """The tensor itself."""
    return tensor


@dataclass
class _Add:
    """The edit that adds to a tensor, wherever it is by then, unless it shares the memory of others, done before."""

    find: Callable[[], Tensor]
    addition: Tensor
    unless: Sequence[Callable[[], Tensor]] = ()
    edit: SetValue | None = None

    def do(self) -> None:
        """Add."""
        tensor = self.find()
        if all(tensor.data_ptr() != other().data_ptr() for other in self.unless):
            self.edit = SetValue(tensor, tensor.detach() + self.addition.to(tensor))
            self.edit.do()

    def undo(self) -> None:
        """Put the old values back."""
        if self.edit is not None:
            self.edit.undo()
