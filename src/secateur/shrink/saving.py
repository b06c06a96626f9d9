"""A smaller model in one file, and back into a fresh instance of its class: tensors, their shapes, recorded numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Any, Self

import torch
from torch import Tensor, nn

from secateur._errors import InvalidInputError, ShapeError, UnsupportedError
from secateur._files import opened
from secateur._names import owner_of
from secateur._wrappers import refuse_model
from secateur.graph.heads import FreeHeadsAttention, can_be_freed
from secateur.graph.provenance import PinnedSize, old_size, stored_sizes
from secateur.graph.trace import named_tensors
from secateur.shrink.files import tensor_in, write_file
from secateur.shrink.fit import shape_of
from secateur.shrink.twins import twins_among, with_free_heads_
from secateur.shrink.values import refuse_valueless
from secateur.surgery.edits import SetAttr
from secateur.surgery.transaction import Holders, transaction

__all__ = ["Content", "content_of", "fit_", "load_", "save"]

_FORMAT = "secateur.model.1"
_UNSAVED = "buffer|"
_MOST = 1 << 31
_ABOVE = re.compile(r"weight_ih_l[1-9]")
_GATES = {nn.LSTM: 4, nn.LSTMCell: 4, nn.GRU: 3, nn.GRUCell: 3}


@dataclass
class Content:
    """What a file of a model holds.

    Args:
        tensors: Its state, tied tensors under each of their names.
        buffers: Those that are in no state.
        numbers: Integers that modules record: path, attribute, position in it, the number now and before all cuts.
        scales: Attention with free heads -> factor of its scores.
        aliases: Name in the state -> the name of the same tensor under which it is written.
    """

    tensors: dict[str, Tensor]
    buffers: dict[str, Tensor] = field(default_factory=dict)
    numbers: list[tuple[str, str, int | None, int, int]] = field(default_factory=list)
    scales: dict[str, float] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)

    def header(self) -> dict[str, Any]:
        """All but the tensors, for a file."""
        return {"aliases": self.aliases, "numbers": self.numbers, "scales": self.scales}

    def written(self) -> dict[str, Tensor]:
        """The tensors for a file, each once."""
        own = {name: tensor for name, tensor in self.tensors.items() if name not in self.aliases}
        return own | {_UNSAVED + name: buffer for name, buffer in self.buffers.items()}

    @classmethod
    def read(cls, header: Mapping[str, Any], written: Mapping[str, Tensor]) -> Self:
        """Undo `header` and `written`.

        Raises:
            InvalidInputError: The header is none of `header`.
        """
        tensors = dict(written)
        tensors.update({name: tensors[twin] for name, twin in header["aliases"].items()})
        buffers = {name.removeprefix(_UNSAVED): t for name, t in tensors.items() if name.startswith(_UNSAVED)}
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(_UNSAVED)}
        numbers = [tuple(entry) for entry in header["numbers"]]
        scales: dict[str, float] = header["scales"]
        if not all(map(_is_number, numbers)) or not all(isinstance(scale, float) for scale in scales.values()):
            raise InvalidInputError("the sizes that a file records are damaged.")
        return cls(tensors, buffers, numbers, scales, header["aliases"])


def _is_number(entry: tuple[Any, ...]) -> bool:
    """Whether an entry is a place and two sizes."""
    label, name, index, *sizes = entry
    return (
        isinstance(label, str)
        and isinstance(name, str)
        and (index is None or isinstance(index, int))
        and len(sizes) == 2
        and all(isinstance(size, int) and 1 <= size < _MOST for size in sizes)
    )


def save(model: nn.Module, path: str | PathLike[str]) -> None:
    """Write a model to one safetensors file, from which `load_` brings it back whatever has been removed from it.

    Args:
        model: Any model; usually one that `shrink_` has made smaller.
        path: Where to. The file holds plain tensors, and integers as JSON in its header; nothing is pickled.

    Raises:
        InvalidInputError: It is no module, or has no values (a fake or meta device).
        UnsupportedError: The model's state holds something else than tensors, or tensors that are lazy; or the model is
            inside a wrapper that keeps parameters in forms of its own.
    """
    content = content_of(model)
    write_file(path, "model", {"format": _FORMAT, **content.header()}, content.written())


def content_of(model: nn.Module) -> Content:
    """What a file has to hold of a model, with memory of its own.

    Raises:
        InvalidInputError, UnsupportedError: Those of `save`.
    """
    refuse_model(model)
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[tuple[int, torch.Size, tuple[int, ...]], str] = {}
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise UnsupportedError(f"cannot save {name!r}: it is no tensor.", kind=type(value).__name__)
        if nn.parameter.is_lazy(value):
            raise UnsupportedError(f"cannot save {name!r}: it is lazy and has no shape yet.", fix="run the model once")
        refuse_valueless([value], "a file")
        twin = first.setdefault((value.data_ptr() or id(value), value.shape, value.stride()), name)
        if twin != name:
            aliases[name] = twin
        tensors[name] = tensors[twin] if twin != name else value.detach().clone()
    # those that no state dict holds are computed anew, at their old size
    buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers() if name not in tensors}
    numbers = [(a.label, a.name, a.index, int(value), int(old_size(value))) for a, value in stored_sizes(model)]
    scales = {n: m.scale for n, m in model.named_modules() if isinstance(m, FreeHeadsAttention)}
    return Content(tensors, buffers, numbers, scales, aliases)


def load_(
    model: nn.Module,
    source: str | PathLike[str] | Mapping[str, Tensor],
    *,
    optimizer: Holders = None,
    ema: Holders = None,
) -> nn.Module:
    """Make a fresh model as small as a saved one and load its values.

    Args:
        model: An instance of the class that was saved, as large as it was before units were removed.
        source: A file that `save` wrote, or any state_dict whose tensors are as large as the model's or smaller. A
            state_dict has shapes only: sizes that torch.nn modules record follow from them, others do not, and buffers
            that are in no state_dict stay as they are. Groups (of a convolution, a GroupNorm) stay as many as the model
            has where that number divides the channels.
        optimizer: An optimizer that holds the model's parameters already, or several; best made afterwards.
        ema: What else follows by name: shapes and recorded sizes; its values are its own to load.

    Returns:
        The model.

    Changes:
        Shapes and values of parameters and buffers, recorded sizes.

    Keeps:
        Identity, names and flags of parameters, the model's class and code.

    Raises:
        ShapeError: The model has other tensors, or smaller ones: another architecture. Nothing has been changed.
        InvalidInputError: It is no module, or the file is none of `save`. Nothing has been changed.
        UnsupportedError: A state_dict whose shapes do not say how many heads or groups there are. Nothing has been
            changed.
    """
    refuse_model(model)
    content = Content(dict(source)) if isinstance(source, Mapping) else _read(fspath(source))
    fit_(model, content, optimizer=optimizer, ema=ema)
    return model


def fit_(model: nn.Module, content: Content, *, optimizer: Holders = None, ema: Holders = None) -> None:
    """Do what `load_` does, with the content of a file."""
    _refuse_other(model, content.tensors)
    twins = twins_among(model, ema, named_tensors(model))
    owners = [owner for twin in twins for owner in _owners(twin, content)]
    freed = [name for name, module in model.named_modules() if _narrows(name, module, content)]
    with ExitStack() as bound_again, transaction(model, optimizer, ema) as surgery:
        for twin in twins:
            for name in freed:
                bound_again.callback(with_free_heads_(twin.get_submodule(name), content.scales[name]))
        for name, tensor in named_tensors(model).items():
            new = (content.tensors | content.buffers).get(name, tensor).shape
            for dim in range(tensor.dim()):
                if new[dim] != tensor.shape[dim]:
                    keep = _kept(model, content, name, dim, tensor.shape[dim], new[dim])
                    surgery.resize(name, dim=dim, keep=keep)
        for owner, name, value in owners:
            surgery.also(SetAttr(owner, name, value))
        surgery.commit()
        bound_again.pop_all()
    model.load_state_dict(content.tensors)
    for name, buffer in model.named_buffers():
        if name in content.buffers:
            buffer.copy_(content.buffers[name])


def _read(path: str) -> Content:
    """The content of a file."""
    fix = "secateur.save(model, path) writes such files; a state_dict can be given instead of a path"
    with opened(path, "model", _FORMAT, fix=fix) as (file, header):
        return Content.read(header, {name: tensor_in(file, header, name) for name in file.keys()})  # noqa: SIM118


def _refuse_other(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors of another architecture, naming the first that differs."""
    own = model.state_dict()
    for name in (*own, *tensors):
        mine, theirs = shape_of(own.get(name)), shape_of(tensors.get(name))
        if isinstance(mine, str) or isinstance(theirs, str) or not _is_no_larger(theirs, mine):
            raise ShapeError(
                f"{name!r} does not fit, so what is to be loaded is of another architecture.",
                model=mine,
                loaded=theirs,
                fix="build the model as it was before units were removed",
            )


def _is_no_larger(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether one shape has as many dims as another, none of which is larger."""
    return len(one) == len(other) and all(new <= old for new, old in zip(one, other, strict=True))


def _owners(model: nn.Module, content: Content) -> Iterator[tuple[object, str, object]]:
    """Each object whose numbers change, the attribute, and its whole new value."""
    own = {(a.label, a.name, a.index): a for a, _ in stored_sizes(model)}
    values: dict[tuple[int, str], Any] = {}
    owners: dict[int, object] = {}
    for label, name, index, new, old in content.numbers:
        found = own.get((label, name, index))
        if found is None:
            continue
        owners[id(found.owner)] = found.owner
        value = PinnedSize(new, old) if new != old else new
        if index is None:
            values[id(found.owner), name] = value
        else:
            entries = values.setdefault((id(found.owner), name), list(getattr(found.owner, name)))
            entries[index] = value
    for (owner, name), value in values.items():
        before = getattr(owners[owner], name)
        yield owners[owner], name, type(before)(value) if isinstance(value, list) else value


def _narrows(name: str, module: nn.Module, content: Content) -> bool:
    """Whether a module is an attention whose heads become narrower than its input."""
    if not isinstance(module, nn.MultiheadAttention) or not can_be_freed(module):
        return False
    out = content.tensors[f"{name}.out_proj.weight" if name else "out_proj.weight"]
    if name not in content.scales and out.shape[0] != out.shape[1]:
        raise UnsupportedError(
            f"the shapes of {name!r} do not say whether heads have gone or each has become narrower.",
            fix="load a file that was written by secateur.save, which records it",
        )
    return name in content.scales


def _kept(model: nn.Module, content: Content, name: str, dim: int, old: int, new: int) -> list[int]:
    """Positions to keep: their values come later, so any will do that leave equally many in each group or gate."""
    parts, left = _parts(model, content, name, dim)
    if old % parts:
        return list(range(new))
    if new % left:  # nothing says how many groups there are
        left = _groups_left(name, new, parts, old // parts)
    return [part * (old // parts) + i for part in range(left) for i in range(new // max(1, left))]


def _groups_left(name: str, channels: int, groups: int, size: int) -> int:
    """How many groups there are, none of them larger than before, if channels can only lie in so many.

    Raises:
        UnsupportedError: They can lie in several numbers of groups.
    """
    ways = [number for number in range(1, groups) if channels % number == 0 and channels // number <= size]
    if len(ways) != 1:
        raise UnsupportedError(
            f"the shape of {name!r} does not say how many groups of channels there are.",
            channels=f"{channels} of {groups * size}",
            groups=f"{' or '.join(map(str, ways))} of {groups}",
            fix="load a file that was written by secateur.save, which records it; or give the module the number of "
            "groups that it has now, before loading",
        )
    return ways[0]


def _parts(model: nn.Module, content: Content, name: str, dim: int) -> tuple[int, int]:
    """In how many equal parts the positions of a dim of a tensor lie, before and after."""
    module, leaf = owner_of(model, name)
    if dim > 0:  # a layer of both directions reads those of the layer below, one beside the other
        is_above = isinstance(module, nn.RNNBase) and module.bidirectional and _ABOVE.match(leaf) is not None
        return (2, 2) if is_above else (1, 1)
    if leaf.startswith("in_proj"):
        return 3, 3
    gates = next((number for kind, number in _GATES.items() if isinstance(module, kind)), 1)
    path = name.rpartition(".")[0]
    for attribute in ("groups", "num_groups"):
        groups = getattr(module, attribute, None)
        if isinstance(groups, int) and groups > 1:
            saved = [n[3] for n in content.numbers if (n[0], n[1]) == (path, attribute)]
            return groups, saved[0] if saved else groups
    return gates, gates
