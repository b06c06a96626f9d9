"""From positions that a user names to whole units: completed where that is unambiguous, refused with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from secateur._errors import InvalidInputError, ShapeError
from secateur._names import owner_of, tied_names
from secateur.graph.coupling import Coupling
from secateur.graph.labels import Dim
from secateur.graph.solve import FIXED

__all__ = ["Positions", "refuse_empty", "size_of", "units_at"]

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
        InvalidInputError: No pairs of name and dim, or no positions; no such tensor; or a position that stays, or that
            several units share, with the reason.
        ShapeError: No such dim or position.
    """
    if not isinstance(positions, Mapping):
        raise InvalidInputError(
            "positions are given for pairs of a tensor and a dim.",
            given=repr(positions)[:80],
            fix='positions={("fc.weight", 0): [3, 5]}',
        )
    first_names = {name: names[0] for names in tied_names(model).values() for name in names}
    chosen: set[int] = set()
    for where, asked in positions.items():
        name, dim = _pair(where)
        chosen |= _units(model, coupling, first_names.get(name, name), dim, _numbers(where, asked))
    return sorted(chosen)


def _pair(where: object) -> tuple[str, int]:
    """The name and the dim for which positions are given."""
    match where:
        case (str(name), int(dim)):
            return name, dim
    shown = where if isinstance(where, str) else "fc.weight"
    raise InvalidInputError(
        "positions are given for a tensor and a dim.", given=repr(where), fix=f"positions={{({shown!r}, 0): [3, 5]}}"
    )


def _numbers(where: tuple[str, int], asked: object) -> list[int]:
    """The positions that are given for one dim."""
    found = asked.tolist() if isinstance(asked, Tensor | np.ndarray) else asked
    if isinstance(found, list) and set(map(type, found)) == {int}:
        return found
    if isinstance(found, Iterable) and not isinstance(found, str):
        numbers = list(found)
        if all(isinstance(number, int | np.integer) and not isinstance(number, bool) for number in numbers):
            return [int(number) for number in numbers]
    raise InvalidInputError(
        f"the positions of {where} are not whole numbers.",
        given=repr(asked)[:80],
        fix="the numbers of the positions that are to go; for a mask that is True there, mask.nonzero().squeeze(1)",
    )


def _units(model: nn.Module, coupling: Coupling, name: str, dim: int, asked: Sequence[int]) -> set[int]:
    """Units for the positions of one dim."""
    size = size_of(coupling, name, dim)
    outside = [position for position in asked if not 0 <= position < size]
    if outside:
        raise ShapeError(f"{name!r} has no such positions along dim {dim}.", asked=outside[:8], size=size)
    wanted = np.zeros(size, dtype=bool)
    wanted[list(asked)] = True
    alone = _alone(coupling, coupling.dims[name][dim], wanted)
    if alone is not None:
        return alone
    owners = _owners(coupling, coupling.dims[name][dim])
    for position in asked:
        if not owners[position]:
            why = coupling.why_kept(name, dim, position)
            raise InvalidInputError(f"position {position} of {name!r} along dim {dim} cannot go: {why}.")
    covers: dict[int, list[int]] = {unit: [] for position in asked for unit in owners[position]}
    for position, units in enumerate(owners):
        for unit in units & covers.keys():
            covers[unit].append(position)
    whole = {unit for unit, positions in covers.items() if wanted[positions].all()}
    covered = {position for unit in whole for position in covers[unit]}
    for position in np.nonzero(wanted)[0].tolist():
        if position not in covered:
            if len(owners[position]) > 1:
                raise _ambiguous(model, coupling, name, dim, position, wanted)
            whole |= owners[position]
    return whole


def _alone(coupling: Coupling, dim: Dim, wanted: Mask) -> set[int] | None:
    """Units for positions each of which is a unit's own; None where it is not as simple as that."""
    if len(dim) != 1:
        return None
    solution = coupling.solution
    classes = solution.classes(dim[0])
    if dim[0].is_fixed or not (solution.is_unit[classes] | solution.blocked[classes]).all():
        return None
    going = np.zeros(len(solution.parents), dtype=bool)
    going[classes[wanted]] = True
    if (going[classes] != wanted).any() or not solution.is_unit[classes[wanted]].all():
        return None
    return set(classes[wanted].tolist())


def _owners(coupling: Coupling, dim: Dim) -> list[frozenset[int]]:
    """For every position of a dim, the units each of which takes it along."""
    known = {FIXED: frozenset[int]()}
    along = [[_takers(coupling, one, known) for one in coupling.solution.classes(axis).tolist()] for axis in dim]
    return along[0] if len(along) == 1 else [frozenset().union(*several) for several in product(*along)]


def _takers(coupling: Coupling, one: int, known: dict[int, frozenset[int]]) -> frozenset[int]:
    """The units each of which takes a class along; `known` holds those that were found before."""
    if one not in known:
        solution = coupling.solution
        above = [
            parent for parent in solution.parents[one].tolist() if parent != FIXED and not solution.blocked[parent]
        ]
        several = [_takers(coupling, parent, known) for parent in above]
        known[one] = frozenset((one,)) if solution.is_unit[one] else frozenset[int]().union(*several)
    return known[one]


def size_of(coupling: Coupling, name: str, dim: int) -> int:
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
    wanted: Mask,
) -> InvalidInputError:
    """The error for a position that several units could take along."""
    kinds = {unit: group for group in coupling.groups for unit in group.units}
    ways, kept = [], {}
    for unit in coupling.units_at(name, dim, position):
        group, taken = kinds[unit], _taken(coupling, unit, name, dim)
        ways.append(f"{taken.sum()} positions ({group.kind}), of which {(taken & wanted).sum()} asked")
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
