"""Modules whose tensors cannot be cut one by one: what else follows, what is refused, what is refreshed afterwards.

One row a module class (or parametrization, or weight hook). A row may name companions (BatchNorm's running statistics
follow its weight), check the positions (a convolution's groups keep equally many), and refresh derived state (an LSTM's
flat weights).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from secateur._errors import InvalidInputError, ShapeError, UnsupportedError
from secateur.surgery.change import Change, Do, Edit
from secateur.surgery.positions import Selection

__all__ = ["Place", "check", "companions", "refresh", "stand_ins"]


@dataclass(frozen=True, eq=False)
class Place:
    """Where a tensor is registered: the module that owns it, the module's dotted name, the tensor's short name."""

    module: nn.Module
    prefix: str
    leaf: str

    @property
    def name(self) -> str:
        """The tensor's dotted name."""
        return f"{self.prefix}.{self.leaf}" if self.prefix else self.leaf

    @property
    def tensor(self) -> Tensor:
        """The tensor itself."""
        found: Tensor = getattr(self.module, self.leaf)
        return found


def companions(place: Place, selection: Selection) -> Iterator[tuple[str, Selection]]:
    """Short names of tensors of the same module that follow, with what happens to each."""
    module = place.module
    if isinstance(module, nn.modules.batchnorm._NormBase) and place.leaf in ("weight", "bias"):
        yield from _statistics(module, selection)
    for suffix, partners in (("_orig", ("_mask",)), ("_mask", ("_orig",))):
        base = place.leaf.removesuffix(suffix)
        if base != place.leaf and hasattr(module, base + partners[0]):
            ones = Selection(selection.dim, selection.size, selection.keep, selection.num_new, _ones)
            yield base + partners[0], ones if partners[0] == "_mask" else selection


def _statistics(module: nn.Module, selection: Selection) -> Iterator[tuple[str, Selection]]:
    """Running mean and variance, unless an earlier change has cut them already."""
    for leaf, init in (("running_mean", None), ("running_var", _ones)):
        tensor = getattr(module, leaf)
        if tensor is not None and tensor.shape[0] == selection.size:
            yield leaf, Selection(0, selection.size, selection.keep, selection.num_new, init)


def _ones(slab: Tensor) -> None:
    """Fill new positions with one: a variance, or a mask that keeps."""
    slab.fill_(1)


def check(place: Place, change: Change) -> None:
    """Refuse positions that the module's forward would not notice but compute something else with.

    Raises:
        ShapeError: Groups or gates would keep different numbers or positions.
        UnsupportedError: The module has no form with such weights.
    """
    module, rows = place.module, change.along(0)
    if isinstance(module, nn.MultiheadAttention):
        _check_attention(place, module, rows)
    if rows is None:
        return
    if isinstance(module, nn.modules.conv._ConvNd) and module.groups > 1 and not module.transposed:
        _check_groups(place, module, rows)
    elif isinstance(module, nn.RNNBase) and "_hr" not in place.leaf:
        _check_gates(place, rows, module.weight_hh_l0.shape[0] // module.hidden_size)
    elif isinstance(module, nn.RNNCellBase):
        _check_gates(place, rows, module.weight_hh.shape[0] // module.hidden_size)


def _check_attention(place: Place, module: nn.MultiheadAttention, rows: Selection | None) -> None:
    """The fused projection keeps the same whole heads of query, key and value."""
    if not place.leaf.startswith("in_proj"):
        raise UnsupportedError(
            f"cannot resize {place.name!r}: nn.MultiheadAttention with kdim, vdim or add_bias_kv is not served.",
            fix="write attention with nn.Linear projections",
        )
    if rows is None:
        return
    _check_gates(place, rows, 3)
    heads = rows.keep[: rows.new_size // 3].unflatten(0, (-1, module.head_dim)) if _whole(rows, module) else None
    if heads is None or not bool((heads // module.head_dim == heads[:, :1] // module.head_dim).all()):
        raise ShapeError(
            f"cannot resize {place.name!r}: it would keep parts of heads, and so change the scale of attention.",
            head_dim=module.head_dim,
            num_heads=module.num_heads,
            fix="keep whole blocks of head_dim rows, the same in each third",
        )


def _whole(rows: Selection, module: nn.MultiheadAttention) -> bool:
    """Whether each third keeps a multiple of the head's width."""
    return rows.new_size % (3 * module.head_dim) == 0


def _check_groups(place: Place, module: nn.modules.conv._ConvNd, rows: Selection) -> None:
    """Each group keeps equally many output channels; a depthwise layer keeps or loses whole groups."""
    if rows.num_new:
        raise UnsupportedError(f"cannot grow {place.name!r}: new channels would have to lie inside each of its groups.")
    per_group = torch.bincount(rows.keep // (rows.size // module.groups), minlength=module.groups)
    depthwise = module.groups == module.in_channels
    counts = set(per_group.tolist()) - ({0} if depthwise else set())
    if len(counts) > 1:
        raise ShapeError(
            f"cannot resize {place.name!r}: its groups would keep different numbers of channels.",
            groups=module.groups,
            kept_per_group=per_group.tolist()[:16],
            fix="keep equally many channels of each group",
        )


def _check_gates(place: Place, rows: Selection, gates: int) -> None:
    """Every gate's block of rows keeps the same positions."""
    width = rows.size // gates
    blocks = [rows.keep[rows.keep // width == gate] % width for gate in range(gates)]
    if rows.num_new or any(not torch.equal(block, blocks[0]) for block in blocks):
        raise ShapeError(
            f"cannot resize {place.name!r}: its {gates} gates would keep different units.",
            kept_per_gate=[block.numel() for block in blocks],
            fix=f"keep = torch.cat([units + gate * {width} for gate in range({gates})])",
        )


def refresh(module: nn.Module) -> Iterator[Edit]:
    """Edits that bring what the module derives from its tensors up to date, after they have changed."""
    if isinstance(module, nn.RNNBase):
        yield Do(module.flatten_parameters)
    for name, compute in _derived(module):
        old = getattr(module, name)
        yield Do(_setter(module, name, compute), partial(setattr, module, name, old))


def _setter(module: nn.Module, name: str, compute: Callable[[], Tensor]) -> Callable[[], None]:
    """A call that sets a plain tensor attribute from the parameters it is made of."""

    def refresh_attribute() -> None:
        setattr(module, name, compute())

    return refresh_attribute


def _derived(module: nn.Module) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Plain attributes that forward pre-hooks recompute from parameters (legacy weight norm, nn.utils.prune)."""
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, nn.utils.weight_norm.WeightNorm):
            yield hook.name, lambda hook=hook: hook.compute_weight(module)
        elif isinstance(hook, nn.utils.prune.BasePruningMethod):
            yield hook._tensor_name, lambda hook=hook: hook.apply_mask(module)


def stand_ins(place: Place, selection: Selection) -> Sequence[tuple[nn.Module, str, Selection]] | None:
    """The tensors that a computed weight is really made of, each with what happens to it.

    Args:
        place: Where the name asked for leads.
        selection: What was asked for.

    Returns:
        (owning module, short name, selection) for each; None if the name is an ordinary parameter or buffer.

    Raises:
        UnsupportedError: The parametrization is one whose parts are not known to be cut position by position.
    """
    module, leaf = place.module, place.leaf
    if nn.utils.parametrize.is_parametrized(module, leaf):
        return _parametrized(place, module.parametrizations[leaf], selection)  # type: ignore[index]
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, nn.utils.weight_norm.WeightNorm) and hook.name == leaf:
            return list(_weight_norm(place, module, f"{leaf}_g", f"{leaf}_v", selection))
        if isinstance(hook, nn.utils.spectral_norm.SpectralNorm) and hook.name == leaf:
            raise _refusal(place, "the legacy spectral_norm keeps singular vectors of the whole weight", hook)
        if isinstance(hook, nn.utils.prune.BasePruningMethod) and hook._tensor_name == leaf:
            return [(module, f"{leaf}_orig", selection)]
    return None


def _parametrized(place: Place, parts: Any, selection: Selection) -> Sequence[tuple[nn.Module, str, Selection]]:
    """Targets for a weight under torch.nn.utils.parametrize."""
    if len(parts) > 1:
        raise _refusal(place, "it has several parametrizations, one on the other", *parts)
    kind = type(parts[0]).__name__
    if kind == "_WeightNorm":
        return list(_weight_norm(place, parts, "original0", "original1", selection))
    if kind == "_SpectralNorm":
        return [(parts, "original", selection), *_singular_vectors(place, parts[0], selection)]
    raise _refusal(place, "the rows and columns of its parts do not stand for those of the weight", *parts)


def _refusal(place: Place, why: str, *parts: object) -> UnsupportedError:
    """The error for a computed weight that is left alone."""
    kinds = ", ".join(type(part).__name__.lstrip("_") for part in parts)
    return UnsupportedError(
        f"cannot resize {place.name!r}: it is computed by {kinds}.",
        why=why,
        fix="remove_parametrizations(module, name, leave_parametrized=True), resize, then parametrize it again",
    )


def _weight_norm(
    place: Place, module: nn.Module, scale: str, direction: str, selection: Selection
) -> Iterator[tuple[nn.Module, str, Selection]]:
    """Direction v of the weight's shape, scale g of size 1 in all dims but one."""
    lengths = getattr(module, scale)
    along_scale = lengths.dim() > selection.dim and lengths.shape[selection.dim] == selection.size > 1
    if along_scale and selection.num_new and selection.init is None:
        raise _refusal(place, "a new row of zeros has no direction (0 / 0)", module)
    if along_scale and selection.num_new:
        raise _refusal(place, "new rows would need a length and a direction each", module)
    yield module, direction, selection
    if along_scale:
        yield module, scale, selection


def _singular_vectors(place: Place, norm: Any, selection: Selection) -> Iterator[tuple[nn.Module, str, Selection]]:
    """The power iteration's vectors: _u over the rows, _v over all other dims flattened."""
    weight = place.tensor
    if weight.dim() == 1:
        return
    first = norm.dim % weight.dim()
    if selection.num_new or (selection.dim != first and weight.dim() > 2):
        raise _refusal(place, "the singular vectors of the changed weight are not parts of the old ones", norm)
    yield norm, "_u" if selection.dim == first else "_v", selection.on(0)


def missing(place: Place) -> InvalidInputError:
    """The error for a name under which there is no tensor."""
    names = [n for n, _ in place.module.named_parameters(recurse=False)]
    return InvalidInputError(
        f"{type(place.module).__name__} has no parameter or buffer {place.name!r}.",
        has=", ".join(names) or "none",
    )
