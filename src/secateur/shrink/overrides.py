"""What holds for single groups: their own sparsity, least number of units, multiple and competitors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real

from torch import nn
from torch.nn.modules.conv import _ConvTransposeNd

from secateur._errors import InvalidInputError
from secateur._names import Selector, match, owner_of, tied_names
from secateur.graph.coupling import Coupling, Group
from secateur.shrink.ordering import Scope
from secateur.shrink.rounding import RoundTo, check_round_to

__all__ = [
    "GroupOverride",
    "GroupSelector",
    "Overrides",
    "Terms",
    "check_min_units",
    "check_sparsity",
    "groups_meant",
    "terms_of",
]

_WITH_DIM = re.compile(r"(?P<name>.*)\[(?P<dim>\d+)\]")


@dataclass(frozen=True)
class GroupOverride:
    """What holds for some groups instead of the arguments of `plan_shrink`; None: the same as for all.

    Args:
        sparsity: Fraction of the units to remove, in [0, 1); with a budget, the other groups meet it.
        min_units: Units that stay.
        round_to: Multiple that the kept positions are; 1 for any number.
        scope: ``Scope.GLOBAL``: units of these groups compete with one another, and with no others.
            ``Scope.PER_GROUP``: each group for itself, which a sparsity alone means too.
    """

    sparsity: float | None = None
    min_units: int | None = None
    round_to: RoundTo = None
    scope: Scope | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        if self.sparsity is not None:
            check_sparsity(self.sparsity)
        if self.min_units is not None:
            check_min_units(self.min_units)
        check_round_to(self.round_to)
        if self.scope is not None:
            object.__setattr__(self, "scope", Scope(self.scope))


GroupSelector = Selector | int | tuple[int, ...]
"""A glob or a module type; or the number of a group in its coupling, or several numbers."""

Overrides = Mapping[GroupSelector, float | GroupOverride]
"""Which groups are meant, and what holds for them; a single number is a sparsity."""


@dataclass(frozen=True)
class Terms:
    """What holds for one group.

    Args:
        pool: Groups of one pool compete with one another.
        sparsity: Fraction of the pool's units to remove; None: whatever the budget asks for.
        min_units: Units that stay.
        round_to: Multiple that the kept positions are.
    """

    pool: object
    sparsity: float | None
    min_units: int
    round_to: RoundTo


def check_sparsity(sparsity: object) -> None:
    """Refuse what is no fraction of units to remove.

    Raises:
        InvalidInputError: It is not in [0, 1).
    """
    if isinstance(sparsity, bool) or not isinstance(sparsity, Real) or not 0.0 <= float(sparsity) < 1.0:
        raise InvalidInputError(
            "sparsity is the fraction of units to remove, in [0, 1).",
            sparsity=sparsity,
            fix="half of them: sparsity=0.5",
        )


def check_min_units(min_units: object) -> None:
    """Refuse what is no number of units that can stay.

    Raises:
        InvalidInputError: It is no integer of at least 1.
    """
    if isinstance(min_units, bool) or not isinstance(min_units, Integral) or int(min_units) < 1:
        raise InvalidInputError(
            "min_units is the number of units that stay in every group, at least 1.", min_units=repr(min_units)
        )


def terms_of(
    model: nn.Module, coupling: Coupling, overrides: Overrides, *, scope: Scope, every: Terms
) -> tuple[Terms, ...]:
    """What holds for each group.

    Args:
        model: The model that was analysed.
        coupling: Its coupling.
        overrides: What holds for single groups, see `groups_meant`.
        scope: Which groups compete where nothing else is said.
        every: What holds where nothing else is said.

    Returns:
        One for each group.

    Raises:
        InvalidInputError: A selector means no group, or two say different things of one group.
    """
    if not isinstance(overrides, Mapping):
        raise InvalidInputError(
            "overrides say what holds for which groups.", overrides=overrides, fix='overrides={"encoder.*.fc1": 0.7}'
        )
    found: list[dict[str, tuple[GroupSelector, object]]] = [{} for _ in coupling.groups]
    for selector, value in overrides.items():
        if not isinstance(value, GroupOverride):
            check_sparsity(value)
        given = value if isinstance(value, GroupOverride) else GroupOverride(sparsity=value)
        said = {field.name: getattr(given, field.name) for field in fields(given)}
        for number in groups_meant(model, coupling, selector):
            for name, own in said.items():
                if own is not None:
                    _say(coupling.groups[number], found[number], name, selector, own)
    return tuple(_terms(number, said, scope, every) for number, said in enumerate(found))


def _say(
    group: Group, said: dict[str, tuple[GroupSelector, object]], name: str, selector: GroupSelector, value: object
) -> None:
    """Note what a selector says of a group."""
    other, known = said.setdefault(name, (selector, value))
    is_other_pool = name == "scope" and value is Scope.GLOBAL and other != selector
    if known != value or is_other_pool:
        raise InvalidInputError(
            f"two overrides contradict each other: both mean {group.name!r}, with another {name}.",
            **{"one": f"{_shown(other)}: {known}", "other": f"{_shown(selector)}: {value}"},
            fix='name the dim that is meant, as in "fc.weight[0]", or let the globs not overlap',
        )


def _terms(number: int, said: Mapping[str, tuple[GroupSelector, object]], scope: Scope, every: Terms) -> Terms:
    """What holds for one group, given what has been said of it."""
    values = {name: value for name, (_, value) in said.items()}
    own_scope = values.pop("scope", Scope.PER_GROUP if "sparsity" in values else None)
    # the values come by name from the fields of a dataclass, which the type checker cannot follow
    terms = replace(every, pool=number if scope is Scope.PER_GROUP else None, **values)  # type: ignore[arg-type]
    if own_scope is None:
        return terms
    return replace(terms, pool=said["scope"][0] if own_scope is Scope.GLOBAL else number)


def groups_meant(model: nn.Module, coupling: Coupling, selector: GroupSelector) -> list[int]:
    """Numbers of the groups that a selector means.

    Args:
        model: The model that was analysed.
        coupling: Its coupling.
        selector: A glob or a module type, which means the groups that take positions of its tensors where a layer's
            outputs are, the first dim of most; ``"fc.weight[1]"`` says which other dim. A number means a group by its
            place in `coupling`, where names do not tell two apart (heads, and the columns of each head).

    Raises:
        InvalidInputError: It means no group.
    """
    if isinstance(selector, int | tuple):
        return _numbered(coupling, selector)
    parts = _WITH_DIM.fullmatch(selector) if isinstance(selector, str) else None
    asked: Selector = parts["name"] if parts else selector
    first_names = {name: names[0] for names in tied_names(model).values() for name in names}
    names = {first_names[name] for name in match(model, [asked])}
    wanted = int(parts["dim"]) if parts else 0
    meant = {(name, wanted if parts else _made_along(model, name)) for name in names}
    found = [n for n, group in enumerate(coupling.groups) if not meant.isdisjoint(group.footprint)]
    if not found:
        others = sorted(
            {f"{name}[{dim}]" for group in coupling.groups for name, dim in group.footprint if name in names}
        )
        raise InvalidInputError(
            f"{_shown(selector)} means no group of units along dim {wanted}.",
            why=next(
                (kept.why for kept in coupling.kept if kept.name in names and kept.dim == wanted), "none goes there"
            ),
            units_along=", ".join(others[:4]) or "no dim",
            fix="print(secateur.analyze(model, example_inputs)) shows the groups and what is kept whole",
        )
    return found


def _numbered(coupling: Coupling, selector: int | tuple[int, ...]) -> list[int]:
    """The groups that numbers mean.

    Raises:
        InvalidInputError: There is no group of one of them.
    """
    numbers = list(selector) if isinstance(selector, tuple) else [selector]
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(coupling.groups):
            raise InvalidInputError("there is no group of this number.", group=number, groups=len(coupling.groups))
    return numbers


def _made_along(model: nn.Module, name: str) -> int:
    """The dim of a tensor along which its layer's outputs lie: the second of weights that are stored transposed."""
    owner, leaf = owner_of(model, name)
    transposed = isinstance(owner, _ConvTransposeNd) or type(owner).__name__ == "Conv1D"  # that of transformers
    return 1 if leaf == "weight" and transposed else 0


def _shown(selector: GroupSelector) -> str:
    """A selector as the user wrote it."""
    return getattr(selector, "__name__", repr(selector))
