"""What is asked of every model: a random 30 % of all units goes, and the smaller model is right, trains and loses less.

python -m tests.zoo.check torchvision/resnet18      # models, one line of JSON each
"""

from __future__ import annotations

import copy
import gc
import json
import random
import resource
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import secateur
from secateur.graph.capture import tensors_in
from secateur.graph.coupling import Coupling, Group
from secateur.graph.pretend import Foreseen, run_without
from secateur.graph.trace import call_with, named_tensors, undisturbed
from secateur.shrink import ShrinkPlan, plan_of
from secateur.shrink.composing import fitting
from secateur.shrink.verifying import distance
from tests.zoo.catalogue import Entry, entries
from tests.zoo.scalars import Numbers, differing

__all__ = ["Outcome", "check"]

SHARE = 0.3
"""Fraction of the units of every group that goes."""


@dataclass
class Outcome:
    """What came out for one model.

    Args:
        key: Suite and name.
        status: "exact" (the smaller model equals the reference, and trains), "wrong" (it computes something else),
            "runs" (it does, and trains, but other ops come with other values, so it could not be compared),
            "broken" (it does not run, or not train), "refused" (an explanation came instead), "unbuilt" (the model does
            not run to begin with).
        error: Largest difference from the reference, as a fraction of the largest output.
        moved: Largest difference from the full model, likewise: what the check could see.
        prunable: Fraction of the parameters in at least one removable row or column.
        before: Number of parameters.
        after: Number of parameters of the smaller model.
        kept: Reasons why something is kept whole, the most frequent first.
        seconds: CPU time of analysis and plan, and of one forward.
        note: What went wrong.
    """

    key: str
    status: str = "broken"
    error: float = float("nan")
    moved: float = float("nan")
    prunable: float = 0.0
    before: int = 0
    after: int = 0
    kept: list[str] = field(default_factory=list)
    seconds: tuple[float, float] = (0.0, 0.0)
    note: str = ""


def check(entry: Entry, seed: int = 0) -> Outcome:
    """Try one model."""
    outcome = Outcome(entry.key)
    torch.manual_seed(seed)
    try:
        model = wakened(entry.build().eval())
        inputs = entry.inputs(model)
        start = time.process_time()
        with torch.no_grad():
            result = call_with(model, inputs)
        if not all(tensor.isfinite().all() for tensor in (entry.interface or tensors_in)(result)):
            raise ArithmeticError("the model's outputs are not finite")
        forward = time.process_time() - start
    except Exception as error:  # another library's, of any kind: told in the report
        outcome.status, outcome.note = "unbuilt", _told(error)
        return outcome
    try:
        _try(outcome, entry, model, inputs, seed, forward)
    except secateur.SecateurError as error:
        outcome.status, outcome.note = "refused", _told(error)
    except Exception as error:  # of any kind: told in the report
        outcome.status, outcome.note = "broken", _told(error)
    return outcome


def _try(outcome: Outcome, entry: Entry, model: nn.Module, inputs: Any, seed: int, forward: float) -> None:
    """Analyse, remove, compare, train."""
    options = {} if entry.interface is None else {"interface": entry.interface}
    start = time.process_time()
    coupling = secateur.analyze(model, inputs, **options)
    units, _ = fitting(coupling, random_units(coupling, seed))
    plan = plan_of(model, coupling, units)
    outcome.seconds = (time.process_time() - start, forward)
    outcome.prunable = prunable_share(coupling)
    outcome.before, outcome.after = plan.parameters
    outcome.kept = list(plan.kept_whole)
    other = copy.deepcopy(model)
    try:
        trains(plan, other.train() if entry.only_in_training else other, inputs)
    except Exception:  # of any kind, raised again below
        plan.apply_(copy.deepcopy(model), tried_on=inputs)  # as `shrink_` does, which refuses what does not run
        raise
    try:
        _compare(outcome, entry, model, inputs, units, plan)
    except secateur.UnsupportedError as error:
        outcome.status, outcome.note = "runs", _told(error)


def _compare(outcome: Outcome, entry: Entry, model: nn.Module, inputs: Any, units: list[int], plan: ShrinkPlan) -> None:
    """Against the full model run as if the units were gone; op by op, and in what comes out."""
    interface, coupling = entry.interface or tensors_in, plan.coupling
    assert coupling is not None
    with torch.random.fork_rng():
        expected = _floats(interface(run_without(model, inputs, coupling, units).result))
        full, scalars = _watched(model, inputs, Numbers())
        small = plan.apply_(copy.deepcopy(model))
        found, shapes = _watched(small, inputs, Foreseen(coupling, units))
        _, after = _watched(small, inputs, Numbers())
    full, found = _floats(interface(full)), _floats(interface(found))
    scale = max([float(t.abs().max()) for t in full if t.numel()], default=0.0) or 1.0
    outcome.error = distance(found, expected) / scale
    outcome.moved = distance(full, expected) / scale
    numbers = differing(scalars.used, after.used)
    tolerance = 1e3 * max(torch.finfo(t.dtype).eps for t in full)
    if shapes.wrong:
        outcome.status, outcome.note = "wrong", shapes.wrong
    elif not outcome.error <= tolerance:
        outcome.status, outcome.note = "wrong", f"differs from the reference; numbers {list(numbers[:3])}"
    elif outcome.moved < 1e-3:
        outcome.status, outcome.note = "wrong", f"nothing could be seen: moved {outcome.moved:.1e}"
    elif numbers:
        outcome.status, outcome.note = "wrong", f"a size became a value: {list(numbers[:3])}"
    else:
        outcome.status = "exact"


def _watched(model: nn.Module, inputs: Any, mode: Any) -> tuple[Any, Any]:
    """What the model returns, and the mode under which it ran."""
    with undisturbed(model), mode:
        return call_with(model, inputs), mode


def _floats(results: Sequence[Tensor]) -> list[Tensor]:
    """The floating-point ones."""
    return [tensor for tensor in results if tensor.is_floating_point()]


def wakened(model: nn.Module) -> nn.Module:
    """The model with noise on all parameters and statistics, so that none is zero or one by initialisation."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                spread = float(parameter.std()) if parameter.numel() > 1 else 0.0
                parameter.add_(torch.randn_like(parameter) * (0.1 if not spread > 0 else 0.1 * spread))
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_var is not None:
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
    return model


def random_units(
    coupling: Coupling, seed: int, share: float = SHARE, among: Callable[[Group], bool] | None = None
) -> list[int]:
    """A random share of the units of every group, at least one; at least two stay."""
    draw = random.Random(seed)
    chosen: list[int] = []
    for group in coupling.groups:
        if among is None or among(group):
            number = min(max(1, round(share * len(group.units))), len(group.units) - 2)
            chosen += draw.sample(group.units, number) if number > 0 else []
    return chosen


def prunable_share(coupling: Coupling) -> float:
    """Fraction of the parameters that lie in a row or column that can go."""
    solution = coupling.solution
    gone = solution.removed(np.nonzero(solution.is_unit)[0].tolist())
    total = held = 0
    for name in coupling.parameters:
        dims = coupling.dims[name]
        sizes = [int(np.prod([axis.size for axis in dim] or [1])) for dim in dims]
        staying = [int(solution.kept(dim, gone).sum()) if dim else 1 for dim in dims]
        total += int(np.prod(sizes))
        held += int(np.prod(staying))
    return 1.0 - held / max(1, total)


def trains(plan: ShrinkPlan, model: nn.Module, inputs: Any) -> None:
    """One step with momentum before the cut, one after it: shapes of the state follow and the step runs."""
    model.requires_grad_(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    _step(model, inputs, optimizer)
    plan.apply_(model, optimizer=optimizer)
    for name, tensor in named_tensors(model).items():
        state = optimizer.state.get(tensor, {})
        momentum = state.get("momentum_buffer")
        if momentum is not None and momentum.shape != tensor.shape:
            raise AssertionError(f"the momentum of {name} has not followed")
    _step(model, inputs, optimizer)


def _step(model: nn.Module, inputs: Any, optimizer: torch.optim.Optimizer) -> None:
    """One training step on whatever the model returns."""
    optimizer.zero_grad()
    results = [t for t in tensors_in(call_with(model, inputs)) if t.requires_grad]
    loss = sum((t.double().square().mean() for t in results), torch.zeros((), dtype=torch.float64))
    if isinstance(loss, Tensor) and loss.requires_grad:
        loss.backward()
    optimizer.step()


def _told(error: Exception) -> str:
    """An error in one line, with the last three places."""
    places = [
        f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)
    ]
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]} [{' '.join(places[-3:])}]"


def main() -> None:
    """Check the models that are named, one line of JSON each."""
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (14 << 30, 14 << 30))
    known = {entry.key: entry for entry in entries()}
    for key in sys.argv[1:]:
        print(json.dumps(asdict(check(known[key]))), flush=True)
        gc.collect()


if __name__ == "__main__":
    main()
