"""Which modules are alive, which of them is in which, and which are the models that given parameters belong to."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Set

from torch import Tensor, nn

__all__ = ["Family"]


class Family:
    """The modules of a running program as far as they have been seen; nothing is kept alive.

    Example:
        >>> family, layer = Family(), nn.Linear(3, 2)
        >>> model = nn.Sequential(layer)
        >>> family.add_all(model)
        >>> family.top(layer) is model, family.roots({id(layer.weight)}) == [model]
        (True, True)
    """

    def __init__(self) -> None:
        self._parents: weakref.WeakKeyDictionary[nn.Module, weakref.WeakSet[nn.Module]] = weakref.WeakKeyDictionary()
        self._called: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._owned: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()

    def add(self, module: nn.Module, parameter: Tensor | None) -> None:
        """A module is there, and gets a parameter."""
        self._parents.setdefault(module, weakref.WeakSet())
        if parameter is not None:
            self._owned[id(parameter)] = parameter

    def link(self, parent: nn.Module, child: nn.Module) -> None:
        """One module is put into another."""
        self.add(parent, None)
        self._parents.setdefault(child, weakref.WeakSet()).add(parent)

    def add_all(self, module: nn.Module) -> None:
        """A module is there with all that is in it."""
        for each in module.modules():
            self.add(each, None)
            for parameter in each._parameters.values():
                self.add(each, parameter)
            for child in each._modules.values():
                if child is not None:
                    self.link(each, child)

    def call(self, module: nn.Module) -> None:
        """A module is called by the program, or by a module that was seen before."""
        if module not in self._parents:
            self.add_all(module)
        self._called.add(module)

    def was_owned(self, tensor: Tensor) -> bool:
        """Whether a module has, or once had, this parameter."""
        return self._owned.get(id(tensor)) is tensor

    def top(self, module: nn.Module) -> nn.Module:
        """The outermost module that this one is in."""
        seen = {module}
        while (parent := next((p for p in self._holders(module) if p not in seen), None)) is not None:
            seen.add(parent)
            module = parent
        return module

    def roots(self, held: Set[int]) -> list[nn.Module]:
        """The outermost modules that have parameters with these ids; of two that have the same ones, the smaller.

        Args:
            held: Ids of parameters.

        Returns:
            As few modules as have all of them that any module has.
        """
        sizes = [(root, {id(p) for p in root.parameters()}) for root in self._tops()]
        found, open_ids = [], set(held)
        for root, own in sorted(sizes, key=lambda pair: (-len(pair[1] & held), len(pair[1]))):
            if own & open_ids:
                found.append(root)
                open_ids -= own
        return found

    def called_roots(self) -> list[nn.Module]:
        """The outermost modules of those that were called."""
        return list(dict.fromkeys(self.top(module) for module in list(self._called)))

    def _tops(self) -> Iterator[nn.Module]:
        """Modules that are in no other; one that was taken out of another is none, unless it is called."""
        for module, parents in list(self._parents.items()):
            if not any(self._holders(module)) and (not parents or module in self._called):
                yield module

    def _holders(self, module: nn.Module) -> Iterator[nn.Module]:
        """The modules that this one is in now."""
        for parent in list(self._parents.get(module, ())):
            if any(child is module for child in parent._modules.values()):
                yield parent
