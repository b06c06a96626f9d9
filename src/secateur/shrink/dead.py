"""Units that masks have emptied: which of them can go without changing what the model computes.

A unit can go if nothing reads it, since its outgoing weights are all zero, or if its value is a constant that biases
can take up. Neither is believed because the numbers happen to look like it (a neuron that is dead on the example inputs
only is not touched): some weight of the unit must be masked as a whole, what layers read from it must be constant in
trials with other inputs and other parameters, in evaluation and in training, and in each trial the smaller model must
compute what the masked one does.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from secateur._errors import InvalidInputError, SecateurError, ShapeError
from secateur._names import Selector, tied_names
from secateur._progress import task
from secateur.graph.coupling import Coupling
from secateur.graph.solve import FIXED, Solution
from secateur.graph.trace import Inputs, named_tensors
from secateur.shrink.composing import plan_of
from secateur.shrink.coupled import coupling_for
from secateur.shrink.fit import Fit
from secateur.shrink.folding import Reader, Seen, additions, readers
from secateur.shrink.plan import ShrinkPlan
from secateur.shrink.trials import Mode, Trial, trials
from secateur.shrink.values import refuse_valueless

__all__ = ["plan_masked"]

Flags = npt.NDArray[np.bool_]

_READ_ELSEWHERE = "its constant is read by something else than a linear or convolution layer"


@task("finding empty units")
def plan_masked(
    model: nn.Module,
    example_inputs: Inputs,
    masks: Mapping[str, Tensor],
    *,
    modes: Sequence[Mode] = ("eval", "train"),
    ignore: Iterable[Selector] | Selector = (),
    coupling: Coupling | None = None,
    halvings: int | None = None,
) -> ShrinkPlan:
    """Plan the removal of units whose weights are masked as a whole, so that the model's outputs do not change.

    A unit goes if nothing reads it, or if its value is a constant. The constant is added to the biases of the layers
    that read it (`ShrinkPlan.bias_changes`). A masked unit that cannot go without a change stays, and
    `ShrinkPlan.kept_whole` says why: a convolution that pads with zeros reads its constant, a layer without bias does,
    other weights feed it.

    Args:
        model: The model. Its masked weights are zero.
        example_inputs: As for `plan_shrink`; several samples with different entries.
        masks: Parameter name -> bool mask, True = kept, such as a `secateur.Masks`.
        modes: In which modes the outputs must stay. A BatchNorm gives a constant channel another value in training than
            in evaluation, so that it goes only if one mode is left out.
        ignore: As for `plan_shrink`.
        coupling: The result of `analyze` for this model, if there is one already.
        halvings: How often units of a group that cannot all go are halved in search of those that can; None: down to
            single ones. Every half is a run of the model, or several.

    Returns:
        The plan. The model is unchanged.

    Raises:
        InvalidInputError: No unit is masked as a whole, or none of those can go; a masked weight that is not zero; a
            mask that is none, or of no parameter; or the model has no values (a fake or meta device).
        ShapeError: A mask of another shape than its parameter.
        UnsupportedError: The model cannot be run in double precision, on which the proof rests.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
        >>> mask = torch.ones(6, 4, dtype=torch.bool)
        >>> mask[1] = False
        >>> with torch.no_grad():
        ...     _ = model[0].weight.mul_(mask), model[0].bias.fill_(0.5)
        >>> plan = plan_masked(model, torch.randn(8, 4), {"0.weight": mask})
        >>> plan.keep["2.weight"], list(plan.bias_changes)
        ({1: tensor([0, 2, 3, 4, 5])}, ['2.bias'])
    """
    coupling = coupling_for(model, example_inputs, ignore=ignore, given=coupling)
    refuse_valueless(model.parameters(), "showing that nothing changes")
    checked = _checked(model, masks)
    candidates = _emptied(coupling, checked)
    if not candidates:
        raise InvalidInputError(
            f"no unit of {type(model).__name__} is masked as a whole.",
            masked=", ".join(checked) or "nothing",
            fix="prune_(model, pattern=secateur.patterns.Channel(), …) masks whole channels",
        )
    if isinstance(modes, str) or not modes or not set(modes) <= {"eval", "train"}:
        raise InvalidInputError("modes are some of 'eval' and 'train'.", modes=modes, fix='modes=("eval",)')
    if halvings is not None and (not isinstance(halvings, int) or isinstance(halvings, bool) or halvings < 0):
        raise InvalidInputError("halvings is a number, 0 or more, or None.", halvings=halvings)
    search = _Search(model, coupling, checked, trials(model, example_inputs, modes, readers(model, coupling)), halvings)
    chosen = search.sound(search.leaving_some(search.readable(candidates)))
    if not chosen:
        raise InvalidInputError(
            f"no masked unit of {type(model).__name__} can go without changing what it computes.",
            why="; ".join(search.reasons()),
        )
    plan = search.plan(chosen, search.trials[0])
    tensors = named_tensors(model)
    changes = {name: addition.to(tensors[name].dtype) for name, addition in plan.bias_changes.items()}
    return replace(plan, bias_changes=changes, kept_whole=(*plan.kept_whole, *search.reasons()))


def _checked(model: nn.Module, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The masks by first names, on the CPU, each of them a bool tensor of its parameter's shape, zero where masked."""
    if not isinstance(masks, Mapping):
        raise InvalidInputError(
            "masks are bool tensors by names of parameters.", given=type(masks).__name__, fix="secateur.Masks(model)"
        )
    first = {name: names[0] for names in tied_names(model).values() for name in names}
    tensors = named_tensors(model)
    found = {}
    for name in masks:
        mask = masks[name]
        if name not in first or not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            raise InvalidInputError(
                f"masks[{name!r}] is no bool mask of a parameter.",
                mask=mask.dtype if isinstance(mask, Tensor) else type(mask).__name__,
                parameter="found" if name in first else "no such parameter",
                fix="masks=secateur.Masks(model)",
            )
        tensor = tensors[first[name]].detach()
        if mask.shape != tensor.shape:
            raise ShapeError(f"masks[{name!r}] has another shape.", mask=tuple(mask.shape), tensor=tuple(tensor.shape))
        mask = mask.to(tensor.device)
        if bool((tensor[~mask] != 0).any()):
            raise InvalidInputError(
                f"{name!r} is not zero where it is masked.",
                not_zero=int((tensor[~mask] != 0).sum()),
                fix="secateur.Masks.from_dict(model, masks) zeroes what is masked, and keeps it so",
            )
        found[first[name]] = mask.cpu()
    return found


def _emptied(coupling: Coupling, masks: Mapping[str, Tensor]) -> list[int]:
    """Units that take along positions of some parameter (no bias) whose entries are all masked."""
    known = np.zeros(len(coupling.solution.parents), dtype=bool)
    known[[unit for group in coupling.groups for unit in group.units]] = True
    found = np.zeros_like(known)
    for name, mask in masks.items():
        if "bias" in name.rpartition(".")[2] or name not in coupling.dims:
            continue
        for d, dim in enumerate(coupling.dims[name]):
            if dim:
                others = [other for other in range(mask.dim()) if other != d]
                kept = (mask.any(dim=others) if others else mask).numpy().reshape([axis.size for axis in dim])
                for number, axis in enumerate(dim):
                    along = np.asarray(kept.any(axis=tuple(other for other in range(len(dim)) if other != number)))
                    found |= _whole(coupling.solution, coupling.solution.classes(axis), along)
    return [int(unit) for unit in np.nonzero(found & known)[0]]


def _whole(solution: Solution, classes: npt.NDArray[np.int32], kept: Flags) -> Flags:
    """Which classes have positions on an axis, none of which has anything that is kept."""
    here = _with_parents(solution, classes[classes != FIXED])
    filled = _with_parents(solution, classes[(classes != FIXED) & kept])
    whole: Flags = here & ~filled
    return whole


def _with_parents(solution: Solution, classes: npt.NDArray[np.int32]) -> Flags:
    """Which classes these are, and what they are products of."""
    found = np.zeros(len(solution.parents) + 1, dtype=bool)  # the last entry stands for FIXED
    found[classes] = True
    while True:
        above = np.unique(solution.parents[found[:-1]])
        if found[above].all():
            return found[:-1]
        found[above] = True


class _Search:
    """The search for units that can go, and what was found about those that cannot.

    Args:
        model: The model.
        coupling: Its coupling.
        masks: Its masks.
        trials: Its trials, the first one with its own parameters.
        halvings: As for `plan_masked`.
    """

    def __init__(
        self,
        model: nn.Module,
        coupling: Coupling,
        masks: Mapping[str, Tensor],
        tried: list[Trial],
        halvings: int | None,
    ) -> None:
        self.model = model
        self.coupling = coupling
        self.masks = masks
        self.trials = tried
        self.halvings = halvings
        self.readers = readers(model, coupling)
        self._why: dict[int, str] = {}
        self._known: dict[frozenset[int], bool] = {}

    def reasons(self) -> list[str]:
        """Why masked units stay, one line for each group and reason."""
        number: dict[tuple[str, str], int] = {}
        for group in self.coupling.groups:
            for unit in group.units:
                if unit in self._why:
                    key = (group.name, self._why[unit])
                    number[key] = number.get(key, 0) + 1
        return [f"{name}: {units} masked unit{'s' * (units > 1)}: {why}" for (name, why), units in number.items()]

    def readable(self, units: Iterable[int]) -> list[int]:
        """Units of which every layer reads nothing, or a constant that its bias can take up."""
        obstacles = [(reader, self._obstacles(reader)) for reader in self.readers]
        mixes = self.coupling.mixes
        left = []
        for unit in units:
            gone = self.coupling.solution.removed([unit])
            met = [
                why[channel]
                for reader, why in obstacles
                if why
                for channel in reader.going(self.coupling, gone).nonzero().flatten().tolist()
                if channel in why
            ]
            if met:
                self._why[unit] = met[0]
            elif mixes[unit]:
                self._why[unit] = "an op mixes it with others (a norm, a softmax), so it counts even at zero"
            else:
                left.append(unit)
        return left

    def leaving_some(self, units: list[int]) -> list[int]:
        """Units without the last ones of dims of which nothing would be left."""
        chosen = list(units)
        while True:
            empty = next((key for key, kept in self.coupling.positions(chosen).items() if not kept.any()), None)
            if empty is None:
                return chosen
            spared = next(unit for unit in reversed(chosen) if empty in self.coupling.positions([unit]))
            chosen.remove(spared)
            self._why[spared] = "at least one unit must remain"

    def sound(self, units: list[int]) -> list[int]:
        """Units without which every trial gives what it gave with them: all, or what can go of each group."""
        if not units or self._is_sound(units):
            return self._going(units)
        chosen, found = set(units), list[int]()
        for group in self.coupling.groups:
            going = self._halved([unit for unit in group.units if unit in chosen], self.halvings)
            if going and (not found or self._is_sound(found + going)):
                found += going
        return found

    def _halved(self, units: list[int], halvings: int | None) -> list[int]:
        """Units of one group without which every trial gives what it gave with them, found by halving."""
        if not units or self._is_sound(units):
            return self._going(units)
        if len(units) == 1 or halvings == 0:
            self._why.update(dict.fromkeys(units, _READ_ELSEWHERE))
            return []
        half, rest = len(units) // 2, None if halvings is None else halvings - 1
        left, right = self._halved(units[:half], rest), self._halved(units[half:], rest)
        return left + right if self._is_sound(left + right) else left

    def plan(self, units: Sequence[int], trial: Trial) -> ShrinkPlan:
        """The plan that removes units, with the constants of one trial."""
        first = next(iter(trial.seen.values()))
        gone = self.coupling.solution.removed(units)
        changes = additions(trial.model, self.coupling, self.readers, first, gone)
        plan = plan_of(self.model, self.coupling, units)
        fit = Fit.of(self.model, dict.fromkeys([*plan.keep, *changes]))
        return replace(plan, bias_changes=changes, fit=fit)

    def _is_sound(self, units: Sequence[int]) -> bool:
        """Whether all trials give the same without these units, which is tried once."""
        key = frozenset(units)
        if key not in self._known:
            self._known[key] = self._is_unchanged(units)
        return self._known[key]

    def _is_unchanged(self, units: Sequence[int]) -> bool:
        """The same, by trying."""
        going = self._going(units)
        for trial in self.trials if going else ():
            try:
                smaller = self.plan(going, trial).apply_(copy.deepcopy(trial.model))
                same = trial.agrees(smaller)
            except (SecateurError, RuntimeError, ValueError, IndexError):
                same = False
            if not same:
                return False
        return True

    def _going(self, units: Sequence[int]) -> list[int]:
        """Those of the units that a plan removes; the code's own arithmetic may keep others."""
        if not units:
            return []
        plan = plan_of(self.model, self.coupling, units)
        if sum(group.before - group.after for group in plan.groups) == len(units):
            return list(units)
        stay = [unit for unit in units if not self._goes(plan, unit)]
        self._why.update(dict.fromkeys(stay, "other numbers of units are needed where it is used"))
        return [unit for unit in units if unit not in stay]

    def _goes(self, plan: ShrinkPlan, unit: int) -> bool:
        """Whether a plan removes all positions of a unit."""
        return all(
            not np.isin(np.nonzero(~kept)[0], plan.keep.get(name, {}).get(dim, np.arange(kept.size))).any()
            for (name, dim), kept in self.coupling.positions([unit]).items()
        )

    def _obstacles(self, reader: Reader) -> dict[int, str]:
        """Input channels of a reader that cannot go, and why."""
        reads = reader.reads(self.model)
        seen = [[trial.seen[mode].get(reader.path) for mode in trial.seen] for trial in self.trials]
        several = [[one for one in modes if one is not None] for modes in seen]
        if not several[0] or not reads.any():
            return {}
        where = f"{reader.weight} reads it"
        varies = ~torch.stack([one.is_constant.cpu() for modes in several for one in modes]).all(0)
        moves = torch.stack([_differs(modes).cpu() for modes in several]).any(0)
        holds = torch.stack([(one.value != 0).cpu() for modes in several for one in modes]).any(0)
        why = [
            (varies, f"{where}, and its value is no constant"),
            (
                moves,
                f"{where}, and its constant is another one in training than in evaluation (BatchNorm's statistics)",
            ),
            (holds & torch.tensor(reader.pads), f"{where} with zero padding, where its constant is not constant"),
            (holds & torch.tensor(reader.bias is None), f"{where} and has no bias that could take up its constant"),
            (holds & self._into_masked(reader), f"{where}, and the bias that would take up its constant is masked"),
        ]
        found: dict[int, str] = {}
        for flags, reason in reversed(why):
            found.update(dict.fromkeys((flags & reads).nonzero().flatten().tolist(), reason))
        return found

    def _into_masked(self, reader: Reader) -> Tensor:
        """Which input channels of a reader reach outputs whose bias is masked; shape (input channels,), bool."""
        columns = reader.columns(self.model).cpu() != 0
        mask = self.masks.get(reader.bias or "", torch.ones(columns.shape[:2], dtype=torch.bool))
        reached: Tensor = (columns & ~mask.reshape(columns.shape[0], -1, 1)).any(1).flatten()
        return reached


def _differs(modes: Sequence[Seen]) -> Tensor:
    """Which channels have other constants in one mode than in the first; shape (channels,), bool."""
    first = modes[0]
    scale = max(one.largest for one in modes)
    flags = [(one.value - first.value).abs() > 1e-12 * scale for one in modes]
    return torch.stack(flags).any(0)
