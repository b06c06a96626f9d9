"""A model made as small as the content of a file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn

from secateur._errors import ShapeError, UnsupportedError
from secateur._names import owner_of
from secateur.graph.heads import can_be_freed
from secateur.graph.provenance import PinnedSize, stored_sizes
from secateur.graph.trace import named_tensors
from secateur.shrink.content import Content
from secateur.shrink.fit import shape_of
from secateur.shrink.twins import twins_among, with_free_heads_
from secateur.surgery.edits import SetAttr
from secateur.surgery.transaction import Holders, transaction

__all__ = ["refuse_other", "resize_"]

_MOST = 8
_ABOVE = re.compile(r"weight_ih_l[1-9]")
_GATES = {nn.LSTM: 4, nn.LSTMCell: 4, nn.GRU: 3, nn.GRUCell: 3}


def resize_(model: nn.Module, content: Content, *, optimizer: Holders = None, ema: Holders = None) -> None:
    """Make a model as small as a content; which positions stay does not matter, as values are loaded afterwards.

    Args:
        model: The model.
        content: Shapes and recorded numbers; values are not looked at.
        optimizer: What trains the model already: one, several or none.
        ema: What follows by name.

    Raises:
        SecateurError: Those of `secateur.load_`. Nothing has been changed then.
    """
    refuse_other(model, content.tensors)
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


def refuse_other(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors of another architecture, naming the first that differs and listing the others.

    Raises:
        ShapeError: They are.
    """
    own = {name: shape_of(value) for name, value in model.state_dict().items()}
    loaded = {name: shape_of(value) for name, value in tensors.items()}
    fits = {name: _is_no_larger(loaded.get(name), own.get(name)) for name in (*own, *loaded)}
    if all(fits.values()):
        return
    wrong = [name for name, does in fits.items() if not does]
    facts = {
        "missing": _listed((name for name in wrong if name not in loaded), lambda name: f"{name} {own[name]}"),
        "unknown": _listed((name for name in wrong if name not in own), lambda name: f"{name} {loaded[name]}"),
        "other_shapes": _listed(
            (name for name in wrong if name in own and name in loaded),
            lambda name: f"{name} {loaded[name]} for {own[name]}",
        ),
    }
    raise ShapeError(
        f"{wrong[0]!r} does not fit, so what is to be loaded is of another architecture than {type(model).__name__}.",
        model=own.get(wrong[0], "no such tensor"),
        loaded=loaded.get(wrong[0], "no such tensor"),
        **{fact: text for fact, text in facts.items() if text},
        fix="build the model as it was before units were removed",
    )


def _listed(names: Iterable[str], shown: Callable[[str], str]) -> str:
    """Some names with what is to be said of each."""
    several = [shown(name) for name in names]
    return ", ".join(several[:_MOST]) + (f" and {len(several) - _MOST} more" if len(several) > _MOST else "")


def _is_no_larger(one: tuple[int, ...] | str | None, other: tuple[int, ...] | str | None) -> bool:
    """Whether one shape has as many dims as another, none of which is larger."""
    if not isinstance(one, tuple) or not isinstance(other, tuple):
        return False
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
