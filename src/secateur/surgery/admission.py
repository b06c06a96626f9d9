"""Before a commit: whether every optimizer in play was passed, and those passed are the right ones.

The user says which optimizers refer to the parameters, and the census says which do. Where the two disagree, training
would go on with state of an old shape, or with a parameter that nothing updates; so both are errors.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from secateur._errors import HolderError
from secateur._wrappers import refuse_model
from secateur.surgery.census import Census, census
from secateur.surgery.change import Change
from secateur.surgery.optimizers import groups_of, unwrapped_optimizer

__all__ = ["copies_among", "live_nodes", "optimizers_among", "refuse_unheld"]


def optimizers_among(passed: object) -> list[Optimizer]:
    """What was passed as `optimizer`: one, several or None, taken out of their wrappers, each once.

    Raises:
        HolderError: Something else than an optimizer was passed.
    """
    unique = {id(o): o for o in map(unwrapped_optimizer, _listed(passed))}
    return list(unique.values())


def copies_among(passed: object) -> list[object]:
    """What was passed as `ema`: one, several or None, each once.

    Raises:
        HolderError: An optimizer was passed.
    """
    unique = {id(obj): obj for obj in _listed(passed)}
    for obj in unique.values():
        if isinstance(obj, Optimizer):
            raise HolderError(f"{type(obj).__name__} is an optimizer.", fix="pass it as optimizer=…")
    return list(unique.values())


def _listed(passed: object) -> list[object]:
    """One, several or none, as a list."""
    if passed is None:
        return []
    return list(passed) if isinstance(passed, list | tuple) else [passed]


def refuse_unheld(optimizers: Sequence[Optimizer], changes: Iterable[Change]) -> None:
    """Refuse to leave a trainable parameter without an optimizer where optimizers were passed.

    Raises:
        HolderError: None of them holds it: they were made for another model, or the parameter has been replaced since.
    """
    held = {key for optimizer in optimizers for key in groups_of(optimizer)}
    for change in changes:
        is_trained = isinstance(change.tensor, nn.Parameter) and change.tensor.requires_grad
        if optimizers and is_trained and id(change.tensor) not in held:
            passed = ", ".join(type(optimizer).__name__ for optimizer in optimizers)
            raise HolderError(
                f"{passed} does not hold {change.name!r}: it was made for another model or for other parameters, or "
                "the parameter has been replaced since.",
                fix="pass all optimizers; secateur.relink_(model, optimizer) for a replaced parameter; "
                "parameter.requires_grad_(False) if it is frozen",
            )


def live_nodes(optimizers: Sequence[Optimizer], changes: Sequence[Change]) -> list[Any]:
    """Nodes of autograd graphs that lead to a changed tensor, from a census that finds nothing that was not passed.

    Raises:
        HolderError: An optimizer was found that holds one of the tensors and was not passed.
        UnsupportedError: A wrapper was found around one of them.
    """
    nodes, strangers = _sorted(census(change.tensor for change in changes), optimizers)
    if strangers:
        del strangers
        gc.collect()  # what is only waiting to be freed holds nothing
        nodes, strangers = _sorted(census(change.tensor for change in changes), optimizers)
    for stranger in strangers:
        if isinstance(stranger, nn.Module):
            refuse_model(stranger)
        else:
            raise _not_passed(stranger, changes)
    return nodes


def _sorted(found: Census, optimizers: Sequence[Optimizer]) -> tuple[list[Any], list[Any]]:
    """The nodes, and wrappers and optimizers that are neither passed nor the wrapper of one that is."""
    states = {id(optimizer.state) for optimizer in optimizers}
    return found.nodes, [*found.wrappers, *(o for o in found.optimizers if id(o.state) not in states)]


def _not_passed(optimizer: Optimizer, changes: Sequence[Change]) -> HolderError:
    """The error for an optimizer that would be left behind."""
    groups = groups_of(optimizer)
    name = next(change.name for change in changes if id(change.tensor) in groups)
    return HolderError(
        f"an optimizer that was not passed holds {name!r} and would keep state of the old shape.",
        optimizer=type(optimizer).__name__,
        fix="pass it: optimizer=…, or a list of all; if it is not used any more, del it",
    )
