"""More units in a group, without any change of what the model computes: the reverse of shrinking."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import get_args

import torch
from torch import Tensor, nn

from secateur._errors import InvalidInputError, SecateurError, UnsupportedError
from secateur._names import Selector
from secateur.graph.coupling import Coupling
from secateur.graph.trace import Inputs
from secateur.shrink.composing import kept_whole
from secateur.shrink.coupled import coupling_for
from secateur.shrink.fit import Fit
from secateur.shrink.grow_plan import GrowPlan
from secateur.shrink.numbers import planned_numbers
from secateur.shrink.overrides import GroupSelector, groups_meant
from secateur.shrink.placing import Layout, Places
from secateur.shrink.plan_parts import GroupPlan
from secateur.shrink.starting import Init, Layouts, Place, copied, drawn, is_unclear, negated, reads, slabs
from secateur.shrink.trials import Mode, Trial
from secateur.shrink.twins import freed_among
from secateur.shrink.values import refuse_valueless

__all__ = ["plan_grow"]


def plan_grow(
    model: nn.Module,
    example_inputs: Inputs,
    *,
    add: Mapping[GroupSelector, int] | None = None,
    growth: float | None = None,
    init: Init = "default",
    seed: int = 0,
    modes: Sequence[Mode] = ("eval", "train"),
    ignore: Iterable[Selector] | Selector = (),
    coupling: Coupling | None = None,
) -> GrowPlan:
    """Plan new units that leave what the model computes as it is: what reads them begins with weights of zero.

    Args:
        model: The model.
        example_inputs: As for `plan_shrink`. A copy is run on them to see that nothing changes.
        add: Which groups grow, and by how many units: ``{"encoder.*.fc1": 64, "embedding[1]": 16}``. A name means the
            groups of its tensors' first dim, a layer's outputs; ``[1]`` says which other dim. A number means a group of
            `coupling` by its place there, where names do not tell two apart (heads, and the columns of each head).
        growth: Instead: every group that can grows to so many times its units, above 1.
        init: Values of the new units' own weights: ``"default"``, as the layers' own ``reset_parameters`` draws them
            (running statistics of a BatchNorm are 0 and 1), or ``"copy"``, those of the group's units in turn, from the
            last one backwards, with a little noise, their statistics too. What has no ``reset_parameters`` gets copies.
        seed: Where random values come from. The global random state is left alone.
        modes: In which modes the outputs must stay.
        ignore: As for `plan_shrink`.
        coupling: The result of `analyze` for this model, if there is one already.

    Returns:
        The plan. The model is unchanged.

    Raises:
        InvalidInputError: Neither or both of `add` and `growth`, or values out of range; a selector that means no
            group; nothing can grow; or the model has no values (a fake or meta device).
        UnsupportedError: A group in `add` cannot grow without a change of what the model computes, with the reason: a
            norm or softmax mixes its units with the others, say.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
        >>> x = torch.randn(3, 4)
        >>> before = model(x)
        >>> _ = plan_grow(model, x, add={"0": 2}).apply_(model)
        >>> model[0].out_features, model[2].in_features, torch.allclose(model(x), before, atol=1e-6)
        (8, 8, True)
    """
    _check(add, growth, init, seed)
    coupling = coupling_for(model, example_inputs, ignore=ignore, given=coupling)
    refuse_valueless(model.parameters(), "showing that nothing changes")
    added = _wanted(model, coupling, add) if add is not None else _share(coupling, growth or 1.0)
    if coupling.groups and not added:
        units = max(len(group.units) for group in coupling.groups)
        raise InvalidInputError("no group would get a unit.", growth=growth, units_at_most=units, fix="growth=1.5")
    trial = Trial(copy.deepcopy(model).double(), example_inputs, modes, variants=1)
    search = _Search(model, coupling, trial, init, seed)
    plan = search.plan_for(added)
    reasons = tuple(search.reasons())
    if add is not None and reasons:
        raise UnsupportedError(
            "a group cannot grow without a change of what the model computes.",
            why="; ".join(reasons),
            fix="leave it out of add=…",
        )
    if plan is None:
        raise InvalidInputError(
            f"nothing in {type(model).__name__} can grow.",
            why="; ".join((*reasons, *kept_whole(coupling))) or "no parameters",
        )
    return replace(plan, kept_whole=reasons)


def _check(add: object, growth: object, init: object, seed: object) -> None:
    """Refuse arguments that no model could satisfy.

    Raises:
        InvalidInputError: There is one.
    """
    if (add is None) == (growth is None):
        raise InvalidInputError("give either add=… or growth=….", add=add, growth=growth, fix='add={"fc1": 64}')
    if add is not None and (not isinstance(add, Mapping) or not add):
        raise InvalidInputError("add=… says which groups grow, and by how many units.", add=add, fix='add={"fc1": 64}')
    if growth is not None and (not isinstance(growth, Real) or not 1.0 < float(growth) < math.inf):
        raise InvalidInputError("growth is how many times as many units there will be, above 1.", growth=growth)
    if init not in get_args(Init):
        raise InvalidInputError("init is 'default' or 'copy'.", init=init, fix='init="copy"')
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InvalidInputError("seed is a whole number.", seed=repr(seed))


def _wanted(model: nn.Module, coupling: Coupling, add: Mapping[GroupSelector, int]) -> dict[int, int]:
    """Number of a group -> how many units it gets, as asked for."""
    found: dict[int, int] = {}
    for selector, number in add.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise InvalidInputError("add=… says how many units come, at least 1.", selector=selector, number=number)
        for group in groups_meant(model, coupling, selector):
            if found.setdefault(group, number) != number:
                raise InvalidInputError(
                    f"two selectors mean {coupling.groups[group].name!r} and ask for different numbers.",
                    asked=f"{found[group]} and {number}",
                )
    return found


def _share(coupling: Coupling, growth: float) -> dict[int, int]:
    """Number of a group -> how many units it gets, for a growth of all."""
    numbers = {n: round(growth * len(group.units)) - len(group.units) for n, group in enumerate(coupling.groups)}
    return {group: number for group, number in numbers.items() if number}


class _Search:
    """The search for groups that can grow, and what was found about those that cannot.

    Args:
        model: The model.
        coupling: Its coupling.
        trial: What it computes.
        init: Values of new units.
        seed: Where random ones come from.
    """

    def __init__(self, model: nn.Module, coupling: Coupling, trial: Trial, init: Init, seed: int) -> None:
        self.model = model
        self.coupling = coupling
        self.trial = trial
        self.init = init
        self.seed = seed
        self._why: dict[int, str] = {}
        self._plans: dict[tuple[tuple[int, int], ...], GrowPlan] = {}

    def reasons(self) -> list[str]:
        """Why groups do not grow, one line each."""
        return [f"{self.coupling.groups[number].name}: {why}" for number, why in sorted(self._why.items())]

    def plan_for(self, added: Mapping[int, int]) -> GrowPlan | None:
        """The plan for those of the groups that can grow; None if there are none."""
        return self._plans.get(tuple(sorted(self._growing(added).items())))

    def _growing(self, added: Mapping[int, int]) -> dict[int, int]:
        """Those of the groups that can grow together without a change of what the model computes."""
        overlapping = Places(self.coupling, added).overlapping
        for number in added:
            if self.coupling.mixes[list(self.coupling.groups[number].units)].any():
                self._why[number] = "an op mixes its units with one another (a norm, a softmax)"
            elif number in overlapping:
                self._why[number] = "its units cross those of another group that grows; grow one after the other"
        left = {number: units for number, units in added.items() if number not in self._why}
        obstacle = self._obstacle(left) if left else ""
        if not obstacle:
            return left
        for number, units in left.items():
            why = obstacle if len(left) == 1 else self._obstacle({number: units})
            if why:
                self._why[number] = why
        rest = {number: units for number, units in left.items() if number not in self._why}
        if rest and (why := self._obstacle(rest)):
            self._why.update(dict.fromkeys(rest, f"together with other groups: {why}"))
            return {}
        return rest

    def _plan(self, added: Mapping[int, int]) -> GrowPlan:
        """The plan that adds units to groups.

        Zeros that stand for what is not known, or for everything where the usual ones are not enough (query and key of
        wider heads), make way for values one after the other, as long as nothing changes.
        """
        places = Places(self.coupling, added)
        layouts = self._layouts(places)
        frame = self._frame(added, places, layouts)
        grown = [(name, dim) for name, several in layouts.items() for dim in several]
        doubtful = [place for place in grown if is_unclear(self.model, place)]
        zero = {*doubtful, *(place for place in grown if reads(self.model, place))}
        full = self._full(frame, layouts, zero)
        if not self._is_unchanged(replace(frame, values=slabs(full, layouts, zero))):
            doubtful = [place for place in grown if place[0] in self.coupling.parameters]
            zero = set(doubtful)
        for place in doubtful:
            if self._is_unchanged(replace(frame, values=slabs(full, layouts, zero - {place}))):
                zero.remove(place)
        return replace(frame, values=slabs(full, layouts, zero))

    def _layouts(self, places: Places) -> dict[str, dict[int, Layout]]:
        """What grows."""
        found: dict[str, dict[int, Layout]] = {}
        for name, dims in self.coupling.dims.items():
            several = {number: places.of(dim) for number, dim in enumerate(dims) if dim}
            grown = {number: layout for number, layout in several.items() if layout.is_new.any()}
            if grown:
                found[name] = grown
        return found

    def _frame(self, added: Mapping[int, int], places: Places, layouts: Layouts) -> GrowPlan:
        """The plan without values."""
        before = self.coupling.num_parameters()
        after = sum(math.prod([places(dim) for dim in self.coupling.dims[name]]) for name in self.coupling.parameters)
        return GrowPlan(
            {name: {dim: torch.from_numpy(one.at) for dim, one in dims.items()} for name, dims in layouts.items()},
            {},
            Fit.of(self.model, layouts),
            planned_numbers(self.coupling.sizing, places),
            tuple(
                GroupPlan(group.name, group.kind, len(group.units), len(group.units) + added.get(number, 0))
                for number, group in enumerate(self.coupling.groups)
            ),
            (),
            (before, after),
            freed_among(self.model, layouts),
        )

    def _full(self, frame: GrowPlan, layouts: Layouts, zero: Iterable[Place]) -> dict[str, Tensor]:
        """Tensors of the size afterwards, with values in all new places."""
        full = copied(self.model, layouts, noise=self.init == "copy", seed=self.seed)
        if self.init == "copy":
            return full
        grown = replace(frame, values=slabs(full, layouts, zero)).apply_(copy.deepcopy(self.model))
        return full | drawn(grown, layouts, seed=self.seed)

    def _obstacle(self, added: Mapping[int, int]) -> str:
        """Why groups cannot grow together; "" if they can."""
        places = Places(self.coupling, added)
        for tie in self.coupling.sizing.contradicted(places):
            return f"its size is computed in the code ({tie.where}) in a way that does not follow"
        for dim, number in self.coupling.multiples:
            if places(dim) % number:
                return f"an op needs a multiple of {number}"
        try:
            plan = self._plan(added)
        except (SecateurError, RuntimeError, ValueError, IndexError) as error:
            return f"the larger model cannot be made: {str(error).splitlines()[0]}"
        if not self._is_unchanged(plan):
            return "with more units the model computes something else, or does not run"
        own = [slab for name in self.coupling.parameters & plan.values.keys() for slab in plan.values[name].values()]
        if not any(bool(slab.any()) for slab in own):
            return "new units could only begin at zero everywhere, where they have no gradient"
        self._plans[tuple(sorted(added.items()))] = plan
        return ""

    def _is_unchanged(self, plan: GrowPlan) -> bool:
        """Whether a larger model computes the same, also when the new units' values have the other sign."""
        for values in (plan.values, negated(plan.values, self.coupling.parameters)):
            try:
                grown = replace(plan, values=values).apply_(copy.deepcopy(self.trial.model))
                if not self.trial.agrees(grown):
                    return False
            except (SecateurError, RuntimeError, ValueError, IndexError):
                return False
        return True
