"""What watches a whole program through hooks of torch: it finds models and optimizers by itself, and when to look.

What costs something in every step is one hook on optimizers. A second one is there in the first steps and in those
after which values are looked at; one on forward passes only between a change of shape, or a first step with parameters
of modules that were never seen, and the next call or step.
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import wraps
from time import perf_counter
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_pre_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from secateur.doctor.assignments import WatchedData
from secateur.doctor.courses import Course, Courses, Signal, held_by
from secateur.doctor.diagnosis import examine
from secateur.doctor.drift import Zeros
from secateur.doctor.families import Family
from secateur.doctor.findings import Finding
from secateur.doctor.grouping import grouped
from secateur.doctor.places import Place, Places, user_place
from secateur.doctor.setup import Setup
from secateur.doctor.sightings import Sighting
from secateur.doctor.state import FEW_STEPS
from secateur.doctor.subjects import Subject, without_gradients

__all__ = ["Attendant"]

_FIRST = FEW_STEPS + 1
_MOST_READS = 256  # lines that are remembered because they ask for the data of a parameter
_FREE = 16  # looks after an alarm that are made at once, whatever they cost


def _harmless(hook: Callable[..., None]) -> Callable[..., None]:
    """Have a hook of an `Attendant` end the watch, and nothing else, if it fails."""

    @wraps(hook)
    def safe(attendant: Attendant, *args: object) -> None:
        try:
            hook(attendant, *args)
        except Exception as error:  # whatever it is, the program that is watched goes on
            attendant.give_up(error)

    return safe


class Attendant:
    """A doctor who is there while a program runs; a context manager.

    Args:
        tell: Called with each sighting at the step at which it is made.
        share: Which part of the time may go into looks at values; the first and the fifth step of an optimizer are
            looked at in any case.

    Attributes:
        failure: Why the watch has ended early, if it has.

    Example:
        >>> model = nn.Sequential(nn.Linear(3, 2))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> seen = []
        >>> with Attendant(seen.append):
        ...     for step in range(3):
        ...         optimizer.zero_grad()
        ...         model(torch.ones(3)).sum().backward()
        ...         optimizer.step()
        ...         if step == 1:
        ...             model[0].weight = nn.Parameter(0.5 * model[0].weight)
        >>> [(sighting.finding.code, sighting.finding.step) for sighting in seen]
        [('stale-optimizer-reference', 3)]
    """

    def __init__(self, tell: Callable[[Sighting], object], *, share: float = 0.005) -> None:
        self._tell, self._share = tell, share
        self._process = os.getpid()
        self._family, self._places = Family(), Places()
        self._courses = Courses()
        self._subjects: list[Subject] = []
        self._members: weakref.WeakKeyDictionary[nn.Module, Subject] = weakref.WeakKeyDictionary()
        self._alone: weakref.WeakKeyDictionary[nn.Module, Subject] = weakref.WeakKeyDictionary()
        self._cut: list[weakref.ref[Tensor]] = []
        self._is_new = False
        self._signal = Signal()
        self._lines_left = _MOST_READS
        self.failure: Exception | None = None
        self._forward: Any = None
        self._last: Any = None
        self._handles: list[Any] = []

    @property
    def num_steps(self) -> int:
        """How many steps all optimizers together have begun."""
        return self._courses.num_steps

    def __enter__(self) -> Self:
        """Begin."""
        self._handles = [
            register_module_parameter_registration_hook(self._parameter_put),
            register_module_module_registration_hook(self._module_put),
            register_optimizer_step_pre_hook(self._before_step()),
            WatchedData(self._data_put, self._data_read),
        ]
        return self

    def __exit__(self, *error: object) -> None:
        """Look a last time, closer if the program failed, and take all hooks away."""
        self._take_away()
        if os.getpid() == self._process and self.failure is None:
            self._look_back(isinstance(error[1], Exception))

    def _take_away(self) -> None:
        """Take all hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._hear_calls(False)
        self._hear_ends(False)

    def give_up(self, error: Exception) -> None:
        """Watch no longer: what went wrong here is no reason to end the program."""
        self.failure = error
        self._take_away()

    @_harmless
    def _look_back(self, values: bool) -> None:
        """Look at what is left at the end."""
        for subject in self._subjects:
            self._look(subject, None, None, values=values)

    @_harmless
    def _parameter_put(self, module: nn.Module, name: str, parameter: Tensor | None) -> None:
        """A parameter is put into a module."""
        self._family.add(module, parameter)
        self._touched(module, name)

    @_harmless
    def _module_put(self, module: nn.Module, name: str, child: nn.Module | None) -> None:
        """A module is put into a module."""
        if child is not None:
            self._family.link(module, child)
        self._touched(module, name)

    def _touched(self, module: nn.Module, name: str) -> None:
        """Remember the line; look before the next step if it is about a model that is trained."""
        self._places.note(module, name, user_place())
        subject = self._members.get(module)
        if subject is not None:
            subject.is_alarmed = True
            self._signal.alarms += 1

    @_harmless
    def _data_put(self, parameter: Tensor) -> None:
        """A parameter was given data of another shape."""
        self._places.note_cut(parameter, user_place())
        self._cut.append(weakref.ref(parameter))
        for subject in self._subjects:
            subject.is_alarmed = True
        self._signal.alarms += 1
        self._hear_calls(True)

    @_harmless
    def _data_read(self, parameter: Tensor) -> None:
        """Somebody has asked for a parameter's data, perhaps to write to it."""
        if self._subjects:
            self._signal.reads += 1
            if self._lines_left:
                self._lines_left -= 1
                self._places.note_read(parameter, user_place())

    def _hear_calls(self, wanted: bool) -> None:
        """Have a hook on forward passes, or none."""
        if wanted and self._forward is None:
            warnings.filterwarnings("ignore", "Using `torch.compile.module.` when there are global hooks", UserWarning)
            self._forward = register_module_forward_pre_hook(self._called)
        elif not wanted and self._forward is not None:
            self._forward.remove()
            self._forward = None

    @_harmless
    def _called(self, module: nn.Module, inputs: object) -> None:
        """A module is called: a model perhaps that was never seen, or one that was cut."""
        if torch.compiler.is_compiling() or os.getpid() != self._process:
            return
        self._family.call(module)
        if self._cut and torch.is_grad_enabled():
            cut = {id(tensor) for reference in self._cut if (tensor := reference()) is not None}
            if any(id(parameter) in cut for parameter in module.parameters()):
                self._look_at_graph(self._family.top(module))
                self._cut = []
                self._hear_calls(self._is_new)

    def _look_at_graph(self, model: nn.Module) -> None:
        """Say if this forward pass joins a graph of another shape."""
        subject = self._members.get(model) or self._alone.setdefault(model, Subject([model], []))
        found = examine(Setup(model), only_structural=True)
        self._say(subject, found.of("stale-autograd-graph"), None)

    def _before_step(self) -> Callable[[Optimizer, object, object], None]:
        """The hook that counts steps and mostly finds, in a microsecond, that there is no reason to look."""
        courses, look = self._courses, self._look_before

        def beat(optimizer: Optimizer, args: object, kwargs: object) -> None:
            course = courses.get(id(optimizer))
            if course is None or course.beat():
                look(optimizer, course)

        return beat

    @_harmless
    def _look_before(self, optimizer: Optimizer, course: Course | None) -> None:
        """Look if something was put somewhere, before the step goes wrong; have values looked at after it."""
        if os.getpid() != self._process:
            return
        if course is None:
            course = self._courses[id(optimizer)] = Course(optimizer, self._signal, self._courses)
            course.beat()
            self._is_new = True
        course.hear()
        if self._is_new:
            self._group()
        is_due = perf_counter() >= course.next_look
        for subject in self._subjects:
            if subject.is_alarmed and (subject.alarms < _FREE or is_due):
                subject.alarms += 1
                self._look(subject, course.steps, optimizer, values=False)
        self._follow_zeros(course, is_due=is_due)
        self._cut = []
        self._hear_calls(self._is_new)
        course.is_due = is_due or course.steps in (1, _FIRST)
        early = course.steps <= _FIRST or any(subject.is_alarmed for subject in self._subjects)
        course.due = 0.0 if early or course.zeros is not None else course.next_look
        self._hear_ends(course.is_due or course.steps <= _FIRST)

    def _follow_zeros(self, course: Course, *, is_due: bool) -> None:
        """See whether zeros of the last step are still there; remember those of now if somebody may have set some."""
        zeros, course.zeros = course.zeros, None
        subject = self._subject_of(course.optimizer())
        setup = subject.setup() if zeros is not None or course.was_written else None
        if setup is None:
            return
        if zeros is not None:
            self._say(subject, zeros.lost(setup.trainable), course.steps)
        if course.was_written and (subject.writes < _FREE or is_due):
            subject.writes += 1
            course.zeros = Zeros({name: p for name, p in setup.trainable.items() if id(p) in setup.held})

    def _hear_ends(self, wanted: bool) -> None:
        """Have a hook behind all others at the end of this step (those that hold masks come before), or none."""
        if self._last is not None:
            self._last.remove()
        self._last = register_optimizer_step_post_hook(self._after_step) if wanted else None

    @_harmless
    def _after_step(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        """Look at values: they are those with which the step was made."""
        course = self._courses.get(id(optimizer))
        if course is None or os.getpid() != self._process:
            return
        subject = self._subject_of(optimizer)
        if course.steps <= _FIRST:
            self._note_gradients(optimizer, course, subject)
        if course.is_due:
            began = perf_counter()
            self._look(subject, course.steps + 1, optimizer, values=True)
            ended = perf_counter()
            course.next_look, course.is_due = ended + (ended - began) / self._share, False
            course.due = min(course.due, course.next_look)
        course.learn()

    def _note_gradients(self, optimizer: Optimizer, course: Course, subject: Subject) -> None:
        """Say after some steps that there never was a gradient."""
        course.had_gradient = course.had_gradient or any(tensor.grad is not None for tensor in held_by(optimizer))
        if course.steps == _FIRST and not course.had_gradient and not subject.has_findings:
            self._say(subject, [without_gradients(optimizer, course.steps)], course.steps + 1)

    def _subject_of(self, optimizer: Optimizer | None) -> Subject:
        """The subject with this optimizer; one without a model if no model is known that it trains."""
        found = (s for s in self._subjects if any(each is optimizer for each in s.optimizers))
        return next(found, None) or Subject([], [optimizer] if optimizer is not None else [])

    def _group(self) -> None:
        """Find out which optimizers train which models, and have all of them looked at before this step."""
        alive = [(course.optimizer(), course) for course in self._courses.values()]
        courses = {optimizer: course for optimizer, course in alive if optimizer is not None}
        self._subjects = grouped(self._family, courses, self._subjects)
        self._members.clear()
        for subject in self._subjects:
            subject.is_alarmed = True
        known = {id(p) for subject in self._subjects for root in subject.roots for p in root.parameters()}
        early = [optimizer for optimizer, course in courses.items() if course.steps < _FIRST]
        self._is_new = any(id(tensor) not in known for optimizer in early for tensor in held_by(optimizer))

    def _look(self, subject: Subject, step: int | None, optimizer: Optimizer | None, *, values: bool) -> None:
        """Look at a subject: at all of it, or only at identities, shapes and graphs."""
        subject.is_alarmed = False
        setup = subject.setup()
        if setup is not None:
            found = subject.relevant(examine(setup, only_structural=not values), setup, optimizer)
            self._say(subject, subject.confirmed(found) if values else found, step)
            subject.learn(setup)
            subject.was_well = self._places.now()
            self._members.update((module, subject) for module in setup.model.modules())

    def _say(self, subject: Subject, findings: Iterable[Finding], step: int | None) -> None:
        """Tell what is new of some findings."""
        for finding in subject.news(findings):
            setup = subject.setup()
            lines: tuple[Place, ...] = ()
            if setup is not None and finding.code == "drifted-mask":
                lines = self._places.reading_lines(setup.model, finding.names)
            elif setup is not None:
                lines = self._places.lines(setup.model, finding.names, subject.was_well)
            self._tell(
                Sighting(replace(finding, step=step), subject.title, user_place() if self._handles else None, lines)
            )
