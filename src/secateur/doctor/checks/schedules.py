"""Learning rates and who sets them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from secateur.doctor.findings import Finding
from secateur.doctor.registry import check
from secateur.doctor.setup import Setup
from secateur.doctor.wording import listed


@check("lr-zero")
def lr_zero(setup: Setup) -> Iterator[Finding]:
    """A group with trainable parameters and a learning rate of 0."""
    known = {id(p): name for name, p in setup.parameters.items()}
    for index, optimizer in enumerate(setup.optimizers):
        for number, group in enumerate(optimizer.param_groups):
            names = tuple(known[id(p)] for p in group["params"] if id(p) in known and p.requires_grad)
            if names and _number(group.get("lr")) == 0.0 and not _will_rise(setup, optimizer, group):
                scheduled = "initial_lr" in group
                yield Finding(
                    "lr-zero",
                    names,
                    f"the learning rate of group {number} ({type(optimizer).__name__}) is 0: {listed(names)}.",
                    "A scheduler has brought it there: its T_max or number of training steps is over, or the factor it "
                    "computes is 0."
                    if scheduled
                    else "It was set by hand, or by a scheduler that is gone.",
                    "optimizer.step() changes nothing.",
                    f"optimizer.param_groups[{number}]['lr'] = {group.get('initial_lr') or 'new_lr'}"
                    + ("   # and give the scheduler the whole number of steps" if scheduled else ""),
                    severity="warning" if any(_number(g.get("lr")) != 0.0 for g in optimizer.param_groups) else "error",
                    data={"optimizer": index, "group": number, "initial_lr": _number(group.get("initial_lr"))},
                )


def _number(value: Any) -> float | None:
    """A plain number; learning rates may be tensors, or None where an optimizer finds its own."""
    return None if value is None else float(value)


def _will_rise(setup: Setup, optimizer: Any, group: dict[str, Any]) -> bool:
    """Whether the zero is the first value of a warm-up or the lower end of a cycle, as far as is known."""
    known = [s for s in setup.schedulers if hasattr(s, "last_epoch") and _is_of(s, optimizer)]
    if any(any(getattr(scheduler, "max_lrs", ())) for scheduler in known):
        return True
    begun = any(scheduler.last_epoch > 0 for scheduler in known) if known else _has_stepped_twice(optimizer)
    return bool(_number(group.get("initial_lr"))) and not begun


def _has_stepped_twice(optimizer: Any) -> bool:
    """Whether more than one step may have been made: the scheduler's comes after the optimizer's."""
    return any(state and float(state.get("step", 2)) >= 2 for state in optimizer.state.values())


def _is_of(scheduler: Any, optimizer: Any) -> bool:
    """Whether a scheduler acts on an optimizer, or on one that shares its groups (a framework's wrapper)."""
    target = getattr(scheduler, "optimizer", None)
    return target is optimizer or getattr(target, "param_groups", None) is optimizer.param_groups


@check("foreign-scheduler", structural=True)
def foreign_scheduler(setup: Setup) -> Iterator[Finding]:
    """A scheduler that acts on another optimizer than the one that trains the model."""
    for scheduler in setup.schedulers:
        target = getattr(scheduler, "optimizer", None)
        if setup.optimizers and target is not None and not any(_is_of(scheduler, o) for o in setup.optimizers):
            kind = type(scheduler).__name__
            yield Finding(
                "foreign-scheduler",
                (),
                f"the scheduler ({kind}) acts on another optimizer ({type(target).__name__}) than the one passed.",
                "The optimizer was made anew after the scheduler, as one does after changing a model by hand.",
                "scheduler.step() changes the learning rate of an unused optimizer; this one's stays as it is.",
                f"scheduler = torch.optim.lr_scheduler.{kind}(optimizer, …)",
                data={"scheduler": kind},
            )
