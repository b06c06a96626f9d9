"""From positions that a user names to whole units: completed where that is unambiguous, refused with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from torch import nn

from secateur._errors import InvalidInputError, ShapeError
from secateur._names import owner_of, tied_names
from secateur.graph.coupling import Coupling

__all__ = ["Positions", "refuse_empty", "units_at"]

Mask = npt.NDArray[np.bool_]

Positions = Mapping[tuple[str, int], Iterable[int]]
"""{(name of a tensor, dim): positions that are to go}."""


def units_at(model: nn.Module, coupling: Coupling, positions: Positions) -> list[int]:
    """The units that take these positions along.

    A unit goes if all its positions on a named dim are asked for. Positions that are left over then complete the one
    unit that they belong to (the four channels that PixelShuffle makes one of); where they belong to several (a head
    and a column of each head), the choice is the user's.

    Args:
        model: The model that was analysed.
        coupling: Its coupling.
        positions: Positions to remove, by tensor name and dim.

    Returns:
        Numbers of units, ascending.

    Raises:
        InvalidInputError: No such tensor; or a position that stays, or that several units share, with the reason.
        ShapeError: No such dim or position.
    """
    first_names = {name: names[0] for names in tied_names(model).values() for name in names}
    chosen: set[int] = set()
    for (name, dim), asked in positions.items():
        chosen |= _units(model, coupling, first_names.get(name, name), dim, list(asked))
    return sorted(chosen)


def _units(model: nn.Module, coupling: Coupling, name: str, dim: int, asked: Sequence[int]) -> set[int]:
    """Units for the positions of one dim."""
    size = _size(coupling, name, dim)
    outside = [position for position in asked if not 0 <= position < size]
    if outside:
        raise ShapeError(f"{name!r} has no such positions along dim {dim}.", asked=outside[:8], size=size)
    owners = {position: coupling.units_at(name, dim, position) for position in asked}
    for position, units in owners.items():
        if not units:
            why = coupling.why_kept(name, dim, position)
            raise InvalidInputError(f"position {position} of {name!r} along dim {dim} cannot go: {why}.")
    wanted = np.zeros(size, dtype=bool)
    wanted[list(asked)] = True
    covers = {unit: _taken(coupling, unit, name, dim) for unit in {u for units in owners.values() for u in units}}
    whole = {unit for unit, taken in covers.items() if not (taken & ~wanted).any()}
    covered = np.zeros(size, dtype=bool)
    for unit in whole:
        covered |= covers[unit]
    for position in np.nonzero(wanted & ~covered)[0].tolist():
        if len(owners[position]) > 1:
            raise _ambiguous(model, coupling, name, dim, position, covers, wanted)
        whole.add(owners[position][0])
    return whole


def _size(coupling: Coupling, name: str, dim: int) -> int:
    """Size of a dim, which must exist."""
    if name not in coupling.dims:
        raise InvalidInputError(
            f"the model has no parameter or buffer {name!r}.",
            fix="print([n for n, _ in model.named_parameters()]) shows the names",
        )
    dims = coupling.dims[name]
    if not 0 <= dim < len(dims):
        raise ShapeError(f"{name!r} has no dim {dim}.", dims=len(dims))
    return int(np.prod([axis.size for axis in dims[dim]], dtype=np.int64))


def _taken(coupling: Coupling, unit: int, name: str, dim: int) -> Mask:
    """Which positions of a dim go with a unit."""
    solution = coupling.solution
    taken: Mask = ~solution.kept(coupling.dims[name][dim], solution.removed([unit]))
    return taken


def _ambiguous(
    model: nn.Module,
    coupling: Coupling,
    name: str,
    dim: int,
    position: int,
    covers: Mapping[int, Mask],
    wanted: Mask,
) -> InvalidInputError:
    """The error for a position that several units could take along."""
    kinds = {unit: group for group in coupling.groups for unit in group.units}
    ways, kept = [], {}
    for unit in coupling.units_at(name, dim, position):
        group = kinds[unit]
        ways.append(f"{covers[unit].sum()} positions ({group.kind}), of which {(covers[unit] & wanted).sum()} asked")
        kept[group.kind] = [int((_taken(coupling, u, name, dim) & ~wanted).sum()) for u in group.units[:16]]
    module, _ = owner_of(model, name)
    groups = getattr(module, "groups", getattr(module, "num_groups", 1))
    facts = {"groups": groups} if isinstance(groups, int) and groups > 1 else {}
    return InvalidInputError(
        f"position {position} of {name!r} along dim {dim} cannot go by itself, and the others asked for do not make "
        "it whole: each part must keep equally many.",
        goes_with=" or ".join(ways),
        would_keep="; ".join(f"{counts} of the {kind}" for kind, counts in kept.items()),
        **facts,
        fix="ask for all positions of one of these units",
    )


def refuse_empty(kept: Mapping[tuple[str, int], Mask]) -> None:
    """Refuse to leave a dim without any position.

    Raises:
        InvalidInputError: Nothing would be left along a dim.
    """
    for (name, dim), mask in kept.items():
        if not mask.any():
            raise InvalidInputError(
                f"nothing of {name!r} would be left along dim {dim}: at least one unit must remain.",
                asked=f"all {mask.size} positions",
                fix="keep one, or take the layer out of the model",
            )
