"""The verb that keeps watch: it notices at the next step that a parameter was replaced or cut."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import chain
from types import TracebackType
from typing import Any, Self

from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.optim import Optimizer

from secateur._errors import InvalidInputError
from secateur.doctor.diagnosis import examine
from secateur.doctor.findings import Finding, Findings
from secateur.doctor.pulse import Pulse
from secateur.doctor.setup import Setup

__all__ = ["Watch", "watch"]

OnFinding = Callable[[Finding], object]
"""Called with each new finding at the step at which it is noticed."""


def watch(model: nn.Module, optimizer: object, *, on_finding: OnFinding | None = None) -> Watch:
    """Notice at which step parameters are replaced or cut behind the optimizer's back.

    It hears of every parameter and module that is put into the model, and looks closer before the next step. Sizes are
    compared before every sixteenth step and at the end: then it notices a cut by hand (``p.data = …``) that made no
    step fail, and a layer that was deleted. It looks at no values and may stay on in a real run.

    Args:
        model: The model.
        optimizer: The optimizer that trains it, or a list of several.
        on_finding: Called with each finding when it is noticed, for example ``logging.warning`` or a function that
            raises.

    Returns:
        A `Watch`: a context manager, or a handle with `findings` and `close()`.

    Changes:
        The optimizer has one more hook, and torch.nn two, until the watch is closed.

    Raises:
        InvalidInputError: An argument is not what it should be.

    Example:
        >>> import torch
        >>> model = nn.Linear(3, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with watch(model, optimizer) as watching:
        ...     for step in range(4):
        ...         optimizer.zero_grad()
        ...         model(torch.ones(3)).sum().backward()
        ...         optimizer.step()
        ...         if step == 1:
        ...             model.weight = nn.Parameter(0.5 * model.weight)
        >>> [(finding.code, finding.names, finding.step) for finding in watching.findings]
        [('stale-optimizer-reference', ('weight',), 3)]
    """
    return Watch(model, optimizer, on_finding)


class Watch:
    """A watch over a model and its optimizer; see `watch`."""

    def __init__(self, model: nn.Module, optimizer: object, on_finding: OnFinding | None = None) -> None:
        setup = Setup(model, optimizer)
        if not setup.optimizers:
            raise InvalidInputError("no optimizer to watch.", fix="secateur.watch(model, optimizer)")
        self._model, self._optimizer, self._on_finding = model, optimizer, on_finding
        self._found: list[Finding] = []
        self._known: set[tuple[str, str]] = set()
        self._former: dict[int, str] = {}
        self._pulse = Pulse()
        self._learn(setup)
        self._note(setup, silent=True)
        hear = partial(_hear, weakref.ref(self))
        stepping = [_inner(optimizer) for optimizer in setup.optimizers]
        self._handles: list[Any] = [
            *(o.register_step_pre_hook(self._pulse.hook(self._look)) for o in stepping[:1]),
            *(o.register_step_pre_hook(self._pulse.second_hook(self._look)) for o in stepping[1:]),
            register_module_parameter_registration_hook(hear),
            register_module_module_registration_hook(hear),
        ]
        self._end = weakref.finalize(self, _remove, self._handles)

    @property
    def findings(self) -> Findings:
        """What has been noticed so far, each with the step before which it was."""
        return Findings(self._found)

    @property
    def num_steps(self) -> int:
        """How many steps the (first) optimizer has begun since the watch began."""
        return self._pulse.num_beats

    def close(self) -> None:
        """Look a last time and take the hooks away; may be called twice."""
        if self._end.alive:
            self._end()
            self._look(self.num_steps + 1)

    def __enter__(self) -> Self:
        """Watch for the length of the ``with`` block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the watch."""
        self.close()

    def __repr__(self) -> str:
        """Whether it is open, for how many steps, and what it has noticed."""
        return f"Watch({'open' if self._end.alive else 'closed'}, {self.num_steps} steps, {self.findings!r})"

    def _look(self, step: int) -> None:
        """Compare identities and shapes with those of the last time, and look closer where they differ."""
        same = list(map(id, chain.from_iterable(map(dict.values, self._dicts)))) == self._ids
        if not same or [tensor.shape for tensor in self._tensors] != self._shapes:
            setup = Setup(self._model, self._optimizer, former=self._former)
            self._note(setup, step)
            self._learn(setup)

    def _learn(self, setup: Setup) -> None:
        """Remember which objects are registered where, and the parameters' shapes; references keep ids unique."""
        modules = list(setup.model.modules())
        self._modules = set(map(id, modules))
        self._dicts: list[dict[str, Any]] = [d for m in modules for d in (m._parameters, m._modules)]
        self._objects = list(chain.from_iterable(map(dict.values, self._dicts)))
        self._ids = list(map(id, self._objects))
        self._tensors = list(setup.parameters.values())
        self._shapes = [tensor.shape for tensor in self._tensors]
        self._pulse.learn(self._tensors)
        lost = {key: name for key, name in self._former.items() if key in setup.held}
        self._former = lost | {id(p): name for name, p in setup.parameters.items()}

    def _note(self, setup: Setup, step: int = 0, *, silent: bool = False) -> None:
        """Look at the setup with the structural checks and keep what is new."""
        known, self._known = self._known, set()
        for finding in examine(setup, only_structural=True):
            keys = {(finding.code, name) for name in finding.names or ("",)}
            self._known |= keys
            if keys - known and not silent:
                finding = replace(finding, step=step)
                self._found.append(finding)
                if self._on_finding is not None:
                    self._on_finding(finding)

    def hear(self, module: nn.Module) -> None:
        """Take notice that something was put into a module; if it is one of the model, the next step looks closer."""
        if id(module) in self._modules:
            self._pulse.alarm()


def _hear(watching: weakref.ref[Watch], module: nn.Module, name: str, value: object) -> None:
    """The hook on registrations: torch calls it whenever a parameter or module is put into any module."""
    watch = watching()
    if watch is not None:
        watch.hear(module)


def _remove(handles: list[Any]) -> None:
    """Take all hooks away."""
    for handle in handles:
        handle.remove()


def _inner(optimizer: Any) -> Any:
    """The optimizer that really steps, inside a framework's wrapper."""
    inner = getattr(optimizer, "optimizer", None)
    return _inner(inner) if isinstance(inner, Optimizer) else optimizer
