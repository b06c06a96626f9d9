"""What `relink_` will do, computed in full before the first edit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from secateur.doctor import edits
from secateur.doctor.accumulators import stale
from secateur.doctor.carry import Outcome, carried_gradient, carried_state, compact, handed_on, joined
from secateur.doctor.edits import Edit
from secateur.doctor.setup import Setup, Slot
from secateur.doctor.state import flat_misfit, misfits
from secateur.doctor.strays import strays
from secateur.doctor.ties import Tie, declared, of_unlike_layers
from secateur.surgery import Selection
from secateur.surgery.census import census
from secateur.surgery.refusals import refuse_tensor

__all__ = ["Plan"]


class Plan:
    """All edits in their order, and the words for what they do.

    Args:
        setup: The training setup, as it is.

    Raises:
        UnsupportedError: A tensor that would have to be reset cannot be (it is shared, sparse, distributed …).
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.edits: list[Edit] = []
        self.relinked: list[str] = []
        self.state: dict[str, Outcome] = {}
        self.graphs: list[str] = []
        self.gradients: dict[str, Outcome] = {}
        self.retied: list[tuple[str, str]] = []
        self.removed = 0
        self._done: set[int] = set()
        self._resets: dict[str, Tensor] = {}
        result = setup.once(strays)
        for link in result.links:
            self._relink(link.name, link.live, link.slot, link.origin.selections)
            gradient = handed_on(link)
            if gradient is not None:
                self.edits.append(edits.give_gradient(link.live, gradient))
        for name, slot in result.pruned.items():
            if slot is not None:
                self._relink(name, setup.trainable[name], slot, ())
        for tie in self._ties():
            self._retie(tie)
        self._reshape()
        self._restate()
        self._remove(result.orphans)
        if self._resets:  # every old graph that leads to one of them is of no use from now on
            self.edits.insert(0, edits.poison(tuple(self._resets), census(self._resets.values()).nodes))

    def _reset(self, name: str, parameter: Tensor, data: Tensor, gradient: Tensor | None) -> None:
        """Give a parameter its data and gradient, and autograd a new beginning."""
        refuse_tensor(name, parameter)
        self.edits.append(edits.reshape(name, parameter, data, gradient))
        self._resets[name] = parameter

    def _relink(self, name: str, live: Tensor, first: Slot, selections: Sequence[Selection] | None) -> None:
        """Put the live parameter where optimizers hold the old one, with the old one's state."""
        for slot in self.setup.places(first.tensor):
            state, outcome = carried_state(name, slot, live, selections)
            self.edits.append(edits.put(live, name, slot, state))
            self.state[name] = outcome
        self.relinked.append(name)

    def _ties(self) -> list[Tie]:
        """Pairs that came apart for certain, each once."""
        ties = [*self.setup.once(strays).ties, *declared(self.setup)]
        if not self.setup.optimizers:
            ties += of_unlike_layers(self.setup)
        once = {frozenset((tie.new, tie.old)): tie for tie in reversed(ties)}
        return [tie for tie in once.values() if tie.origin is not None]

    def _retie(self, tie: Tie) -> None:
        """Make the older tensor follow the newer, and put it under all names of the newer."""
        model = self.setup.model
        new, old = model.get_parameter(tie.new), model.get_parameter(tie.old)
        selections = tie.origin.selections if tie.origin else None
        if any(link.live is old for link in self.setup.once(strays).links):
            if new.shape != old.shape or not torch.equal(new, old):
                return  # both are new, and differ: nothing tells which one is meant
            selections = ()
        for slot in self.setup.places(old):
            state, outcome = carried_state(tie.old, slot, new, selections)
            self.edits.append(edits.set_state(slot.optimizer, old, state))
            self.state[tie.old] = outcome
        names = [name for name, p in model.named_parameters(remove_duplicate=False) if p is new]
        gradient = joined(old, new, selections or ())
        self._reset(tie.old, old, new.detach().clone(), gradient)
        self.edits.append(edits.give_names(model, names, old))
        self.retied.append((tie.new, tie.old))
        self._done |= {id(new), id(old)}

    def _reshape(self) -> None:
        """Reset accumulators that remember an old shape, and gradients of another shape."""
        graphs = {name for name, _, _ in stale(self.setup)}
        for name, parameter in self.setup.parameters.items():
            wrong = parameter.grad is not None and parameter.grad.shape != parameter.shape
            if id(parameter) in self._done or not (wrong or name in graphs):
                continue
            gradient, outcome = carried_gradient(parameter)
            self.gradients |= {name: outcome} if wrong else {}
            if name in graphs:
                self._reset(name, parameter, compact(parameter, self.setup.parameters.values()), gradient)
                self.graphs.append(name)
            else:
                self.edits.append(edits.give_gradient(parameter, gradient))

    def _restate(self) -> None:
        """Bring state of another shape to the parameter's."""
        for name, parameter in self.setup.parameters.items():
            for slot in self.setup.places(parameter) if id(parameter) not in self._done else ():
                if any(misfits(slot)):
                    state, outcome = carried_state(name, slot, parameter, ())
                    self.edits.append(edits.set_state(slot.optimizer, parameter, state))
                    self.state[name] = outcome
        for optimizer in self.setup.optimizers:
            if isinstance(optimizer, torch.optim.LBFGS) and (flat_misfit(optimizer) or self._has_cut(optimizer)):
                self.edits.append(edits.begin_anew(optimizer))
                self.state[self._first_name(optimizer)] = "dropped"

    def _has_cut(self, optimizer: Any) -> bool:
        """Whether one of its parameters was replaced by one of another shape."""
        links = [link for link in self.setup.once(strays).links if link.slot.optimizer is optimizer]
        return any(link.live.shape != link.slot.tensor.shape for link in links)

    def _first_name(self, optimizer: Any) -> str:
        """Name of the first parameter of an optimizer, under which LBFGS keeps its history."""
        first = optimizer.param_groups[0]["params"][0]
        known = {id(p): name for name, p in self.setup.parameters.items()}
        known |= {id(link.slot.tensor): link.name for link in self.setup.once(strays).links}
        return known.get(id(first), "all")

    def _remove(self, orphans: Sequence[Slot]) -> None:
        """Take duplicates and orphans out of the optimizers, the last ones first so that positions stay right."""
        lost = {id(slot.tensor) for slot in orphans}
        seen: set[tuple[int, int]] = set()
        gone = []
        for slot in self.setup.slots:
            place = (id(slot.optimizer), id(slot.tensor))
            if id(slot.tensor) in lost or place in seen:
                gone.append(slot)
            seen.add(place)
        for slot in sorted(gone, key=lambda slot: (slot.group, slot.position), reverse=True):
            self.edits.append(edits.take_out(slot, with_state=id(slot.tensor) in lost))
        self.removed = len(gone)
