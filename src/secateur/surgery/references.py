"""Which tensors of a model nothing refers to but what is known: told by counting, without a look at anything else.

What holds a parameter holds a reference to it. An optimizer does in the lists of its groups, a data-parallel wrapper in
lists of its own, and a live autograd graph in its accumulator. So where all references to a tensor are accounted for,
there is nothing to look for, and the pass over all live objects (see `secateur.surgery.census`) can be left out. One
reference more, be it only a variable of the user's, means doubt, and the pass is made.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from secateur import _compat

__all__ = ["accounted_for"]


def accounted_for(modules: Iterable[nn.Module], optimizers: Sequence[Optimizer]) -> frozenset[int]:
    """The tensors to which nothing refers but `modules` and `optimizers`.

    It must be called while no variable and no object of the caller's refers to the tensors.

    Args:
        modules: Modules; their parameters and buffers are looked at.
        optimizers: Optimizers that are known.

    Returns:
        Ids of those parameters and buffers to which no other object of Python or C++ refers, so that no other
        optimizer, no wrapper and no live graph can hold them; empty where that cannot be told by counting.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return frozenset()  # a parameter that a wrapper was told to ignore is reached through its modules alone
    if not all(_has_groups_of_its_own(optimizer) for optimizer in optimizers):
        return frozenset()
    modules = list(modules)
    slots, lists = _registered(modules), _lists(modules, optimizers)
    known = Counter(id(tensor) for registered in slots for tensor in registered.values())
    known.update(id(entry) for entries in lists for entry in entries)
    with _compat.without_torch_function():
        return frozenset(
            id(registered[name])
            for registered in slots
            for name in registered
            if registered[name] is not None
            and _num_holders(registered, name) == known[id(registered[name])]
            and registered[name]._use_count() == 1  # two while a graph or anything else of C++ holds it
        )


def _registered(modules: Iterable[nn.Module]) -> list[dict[str, Any]]:
    """The tables in which modules hold parameters and buffers, each once, if nothing but these modules refers to it."""
    owned = [(vars(module), name) for module in modules for name in ("_parameters", "_buffers")]
    times = Counter(id(own[name]) for own, name in owned)
    alone = [(own, name) for own, name in owned if _num_holders(own, name) == times[id(own[name])]]
    return list({id(own[name]): own[name] for own, name in alone}.values())


def _lists(modules: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> list[Iterable[object]]:
    """What else is known to hold them: weights of recurrent layers, groups and keys of optimizers; each once."""
    recurrent = (vars(module) for module in modules if isinstance(module, nn.RNNBase))
    flat = (own["_flat_weights"] for own in recurrent if _num_holders(own, "_flat_weights") == 1)
    groups = (group["params"] for optimizer in optimizers for group in optimizer.param_groups)
    found: Iterable[Any] = (*flat, *groups, *(optimizer.state for optimizer in optimizers))
    return list({id(entries): entries for entries in found}.values())


def _num_holders(container: Any, key: Any) -> int:
    """How many references there are to an entry of a container, while no variable refers to it."""
    return sys.getrefcount(container[key]) - _BY_THE_CALL


_BY_THE_CALL = 0
_BY_THE_CALL = _num_holders({"held once": object()}, "held once") - 1


def _has_groups_of_its_own(optimizer: Optimizer) -> bool:
    """Whether nothing but the optimizer refers to its groups, through which another could hold their parameters."""
    own = vars(optimizer)
    if type(own.get("param_groups")) is not list or not isinstance(own.get("state"), dict):
        return False
    if _num_holders(own, "param_groups") != 1:
        return False
    groups: list[dict[str, Any]] = own["param_groups"]
    return all(
        _num_holders(groups, number) == _num_holders(groups[number], "params") == 1
        and type(groups[number]["params"]) is list
        for number in range(len(groups))
    )
