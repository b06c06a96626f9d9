"""Per tensor: sparsities that were chosen by hand."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field

from secateur._errors import InvalidInputError
from secateur._units import Units
from secateur.allocation._sparsity import check_none_emptied, check_sparsity, num_removed

__all__ = ["PerTensor"]


@dataclass(frozen=True)
class PerTensor:
    """Remove from each tensor the fraction that a dictionary gives for it, and from all others the call's sparsity.

    A key is a dotted name, a glob over names (``"encoder.*.weight"``) or the name of a module, which means all that is
    in it. A name goes before globs; globs that give one tensor different sparsities are refused, whatever their order.

    Args:
        sparsities: Fraction of units to remove, in [0, 1), by name or glob.

    Raises:
        InvalidInputError: It is no dict, a key is no text, or a sparsity is not in [0, 1).

    Example:
        >>> import torch
        >>> sizes = {"fc1.weight": (10, 4), "fc2.weight": (2, 10)}
        >>> units = {name: Units(torch.rand(a * b), torch.Size([a, b])) for name, (a, b) in sizes.items()}
        >>> PerTensor({"fc1.*": 0.9})(units, 0.5)
        {'fc1.weight': 36, 'fc2.weight': 10}
    """

    sparsities: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check every key and every sparsity."""
        if not isinstance(self.sparsities, Mapping) or not all(isinstance(key, str) for key in self.sparsities):
            raise InvalidInputError(
                "sparsities of tensors are a dict by name or glob.",
                found=repr(self.sparsities)[:60],
                fix='{"0.weight": 0.5, "encoder.*": 0.9}',
            )
        for key, sparsity in self.sparsities.items():
            try:
                check_sparsity(sparsity)
            except InvalidInputError as error:
                raise InvalidInputError(f"{key!r}: {error.problem}", fix=error.fix, **error.facts) from None

    def __call__(self, units: Mapping[str, Units], sparsity: float | None) -> dict[str, int]:
        """Share out.

        Args:
            units: Units by dotted name; only names and numbers count.
            sparsity: Fraction of units to remove from tensors that no key means, in [0, 1); None if keys mean all.

        Returns:
            Units to remove by dotted name, ``round(s * n)`` of n; halves are rounded to the even number.

        Raises:
            InvalidInputError: A key means none of the tensors, keys contradict each other, a tensor is left without a
                sparsity, or `sparsity` is not in [0, 1).
            InfeasibleError: Rounding would remove every unit of a small tensor.
        """
        if sparsity is not None:
            check_sparsity(sparsity)
        self._check_keys(units)
        removed = {name: num_removed(each.num_units, self._sparsity(name, sparsity)) for name, each in units.items()}
        check_none_emptied(
            units, removed, by="the dictionary of sparsities", fix="a lower sparsity for it, or exclude=[…]"
        )
        return removed

    def _check_keys(self, units: Mapping[str, Units]) -> None:
        """Refuse keys that mean nothing, which are most likely misspelt."""
        unknown = [key for key in self.sparsities if not any(_means(key, name) for name in units)]
        if unknown and units:
            raise InvalidInputError(
                f"{', '.join(map(repr, unknown))} in the dictionary of sparsities: no such tensor is pruned.",
                pruned=", ".join(list(units)[:8]) + (" …" if len(units) > 8 else ""),
            )

    def _sparsity(self, name: str, otherwise: float | None) -> float:
        """The sparsity of one tensor."""
        if name in self.sparsities:
            return self.sparsities[name]
        found = {key: sparsity for key, sparsity in self.sparsities.items() if _means(key, name)}
        if len(set(found.values())) > 1:
            raise InvalidInputError(
                f"the dictionary gives {name!r} several sparsities.",
                given=found,
                fix=f"{name!r}: … beside them settles it; sparsity= is for tensors that no key means",
            )
        if not found and otherwise is None:
            raise InvalidInputError(
                f"the dictionary gives no sparsity for {name!r}.",
                it_has=", ".join(map(repr, self.sparsities)) or "nothing",
                fix="sparsity=0.9 is for all tensors that no key means",
            )
        return next(iter(found.values()), otherwise or 0.0)


def _means(key: str, name: str) -> bool:
    """Whether a key is a tensor's name, a glob that matches it, or the name of a module that has it."""
    return any(fnmatch.fnmatchcase(name, glob) for glob in (key, f"{key}.*"))
