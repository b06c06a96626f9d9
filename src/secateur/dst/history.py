"""What happened to the masks as training went on, as plain numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, overload

import torch
from torch import Tensor

from secateur._errors import InvalidInputError, ShapeError
from secateur.masks.bits import Bits
from secateur.masks.packing import count_kept

__all__ = ["Change", "History", "LayerChange", "Writer", "overlap"]


class Writer(Protocol):
    """What scalars are written to: a ``torch.utils.tensorboard.SummaryWriter``, or anything else with its method."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> object:
        """Write one number."""
        ...


@dataclass(frozen=True)
class LayerChange:
    """One weight after a change of its mask.

    Args:
        num_entries: Entries of the weight.
        num_kept: Entries that are kept now.
        num_dropped: Entries that were kept before and are masked now.
        num_grown: Entries that were masked before and are kept now.
        num_ever_kept: Entries that have been kept at some time.
        num_kept_from_start: Entries that are kept now and were at the start.
        num_dead_rows: Positions of the first dim (output features, filters) at which no entry is kept.
        num_dead_columns: Positions of the second dim (input features, input channels) at which no entry is kept.
    """

    num_entries: int
    num_kept: int
    num_dropped: int
    num_grown: int
    num_ever_kept: int
    num_kept_from_start: int
    num_dead_rows: int
    num_dead_columns: int

    @property
    def sparsity(self) -> float:
        """Fraction of entries that are masked."""
        return 1.0 - self.num_kept / self.num_entries if self.num_entries else 0.0


@dataclass(frozen=True)
class Change:
    """All weights after their masks have changed.

    Args:
        step: Optimizer steps that had been made.
        layers: The weights by dotted name.
        unreached: Names of weights that were left as they were, since no backward pass had reached them.
    """

    step: int
    layers: dict[str, LayerChange]
    unreached: tuple[str, ...] = ()

    @property
    def sparsity(self) -> float:
        """Fraction of all entries that are masked."""
        return 1.0 - self._share("num_kept")

    @property
    def churn(self) -> float:
        """Fraction of the kept entries that were not kept before this change."""
        kept = self._sum("num_kept")
        return self._sum("num_grown") / kept if kept else 0.0

    @property
    def ever_kept(self) -> float:
        """In-time over-parameterisation: fraction of all entries that have been kept at some time.

        References:
            Liu, Yin, Mocanu, Pechenizkiy 2021, "Do we actually need dense over-parameterization? In-time
            over-parameterization in sparse training", section 3.1.
        """
        return self._share("num_ever_kept")

    @property
    def overlap_with_start(self) -> float:
        """Fraction of the kept entries that were kept at the start, too."""
        kept = self._sum("num_kept")
        return self._sum("num_kept_from_start") / kept if kept else 1.0

    @property
    def num_dead_rows(self) -> int:
        """Positions of first dims at which no entry is kept: output features that do not depend on the input."""
        return self._sum("num_dead_rows")

    @property
    def num_dead_columns(self) -> int:
        """Positions of second dims at which no entry is kept: input features that nothing looks at."""
        return self._sum("num_dead_columns")

    def scalars(self) -> dict[str, float]:
        """The totals, and the sparsity of each weight, by names with slashes as TensorBoard groups them."""
        totals = ("sparsity", "churn", "ever_kept", "overlap_with_start", "num_dead_rows", "num_dead_columns")
        return {f"masks/{name}": float(getattr(self, name)) for name in totals} | {
            f"sparsity/{name}": layer.sparsity for name, layer in self.layers.items()
        }

    def _sum(self, count: str) -> int:
        """A count of all weights together."""
        return sum(getattr(layer, count) for layer in self.layers.values())

    def _share(self, count: str) -> float:
        """The same as a fraction of all entries."""
        total = self._sum("num_entries")
        return self._sum(count) / total if total else 1.0


@dataclass
class History(Sequence[Change]):
    """The changes of the masks of one training, the start being the first.

    Args:
        changes: The changes so far.
    """

    changes: list[Change] = field(default_factory=list)
    _start: dict[str, Tensor] = field(default_factory=dict)
    _ever: dict[str, Tensor] = field(default_factory=dict)
    _shapes: dict[str, torch.Size] = field(default_factory=dict)

    def __repr__(self) -> str:
        """A line for each change."""
        lines = [f"  step {c.step:>7,}  {c.sparsity:7.2%} zeros  {c.churn:6.1%} exchanged" for c in self.changes]
        return "\n".join([f"History: {len(lines)} entries", *lines])

    def add(self, step: int, before: Mapping[str, Tensor], after: Mapping[str, Bits], unreached: Sequence[str]) -> None:
        """Take in a change.

        Args:
            step: Optimizer steps that have been made.
            before: Packed masks from before the change by dotted name; empty at the start.
            after: Masks after the change.
            unreached: Names of weights that were left as they were for want of a gradient.
        """
        layers = {name: self._layer(name, before.get(name, bits.packed), bits) for name, bits in after.items()}
        self.changes.append(Change(step, layers, tuple(unreached)))

    def _layer(self, name: str, before: Tensor, bits: Bits) -> LayerChange:
        """One weight's numbers; what was known of a weight that has been resized since is forgotten."""
        after = bits.packed
        for known in (self._start, self._ever):
            known[name] = known[name].to(after.device) if self._shapes.get(name) == bits.shape else after.clone()
        self._shapes[name] = bits.shape
        self._ever[name] |= after
        num_kept, num_grown = count_kept(after), count_kept(after & ~before)
        rows, columns = _dead(bits.dense)
        return LayerChange(
            num_entries=bits.shape.numel(),
            num_kept=num_kept,
            num_dropped=count_kept(before) - num_kept + num_grown,
            num_grown=num_grown,
            num_ever_kept=count_kept(self._ever[name]),
            num_kept_from_start=count_kept(self._start[name] & after),
            num_dead_rows=rows,
            num_dead_columns=columns,
        )

    @overload
    def __getitem__(self, index: int) -> Change: ...
    @overload
    def __getitem__(self, index: slice) -> list[Change]: ...
    def __getitem__(self, index: int | slice) -> Change | list[Change]:
        """One change, or some of them."""
        return self.changes[index]

    def __len__(self) -> int:
        """Number of changes, the start included."""
        return len(self.changes)

    def __iter__(self) -> Iterator[Change]:
        """The changes in order."""
        return iter(self.changes)

    def write_to(self, writer: Writer) -> None:
        """Write all changes so far to TensorBoard, or to anything that takes scalars by name and step."""
        for change in self.changes:
            for name, value in change.scalars().items():
                writer.add_scalar(name, value, change.step)

    def state_dict(self) -> dict[str, Any]:
        """The changes as plain numbers, and which entries were kept at the start and ever, one bit a weight."""
        return {
            "changes": [asdict(change) for change in self.changes],
            "start": {name: bits.clone() for name, bits in self._start.items()},
            "ever": {name: bits.clone() for name, bits in self._ever.items()},
            "shapes": {name: list(shape) for name, shape in self._shapes.items()},
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> History:
        """Undo `state_dict`.

        Raises:
            InvalidInputError: It is none.
        """
        try:
            return cls._from_state(state)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidInputError(
                f"this is no state of a history: {type(error).__name__}: {error}.",
                fix="the state of a training as training.state_dict() gave it",
            ) from error

    @classmethod
    def _from_state(cls, state: Mapping[str, Any]) -> History:
        """The same, of a state that is one."""
        changes = [
            Change(
                change["step"],
                {name: LayerChange(**layer) for name, layer in change["layers"].items()},
                tuple(change["unreached"]),
            )
            for change in state["changes"]
        ]
        start, ever = ({name: bits.clone() for name, bits in state[key].items()} for key in ("start", "ever"))
        return cls(changes, start, ever, {name: torch.Size(shape) for name, shape in state["shapes"].items()})


def overlap(masks: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> float:
    r"""How alike two sets of masks are: :math:`|A \cap B| / |A \cup B|` of the kept entries A and B (Jaccard).

    Args:
        masks: Bool masks by dotted name, True = kept; `secateur.Masks` is such a mapping.
        others: Masks of the same names and shapes.

    Returns:
        1.0 for equal masks, 0.0 for masks that have nothing in common. Two random masks that keep a fraction d have
        about d / (2 - d).

    Raises:
        InvalidInputError: A mask that the others lack.
        ShapeError: A mask has another shape than theirs.

    Example:
        >>> overlap({"w": torch.tensor([True, True, False])}, {"w": torch.tensor([True, False, True])})
        0.3333333333333333
    """
    common = either = 0
    for name, mask in masks.items():
        other = others.get(name)
        if other is None:
            raise InvalidInputError(f"the others have no mask for {name!r}.", others=", ".join(others) or "none")
        if other.shape != mask.shape:
            raise ShapeError(
                f"the masks of {name!r} differ in shape.", mask=tuple(mask.shape), other=tuple(other.shape)
            )
        other = other.to(mask.device)
        common += int((mask & other).count_nonzero())
        either += int((mask | other).count_nonzero())
    return common / either if either else 1.0


def _dead(mask: Tensor) -> tuple[int, int]:
    """Numbers of positions of the first and of the second dim at which no entry is kept."""
    if mask.dim() == 0 or mask.numel() == 0:
        return 0, 0
    rows = mask.flatten(1) if mask.dim() > 1 else mask.unsqueeze(1)
    dead_rows = rows.shape[0] - int(rows.view(torch.uint8).amax(1).count_nonzero())
    if mask.dim() == 1:
        return dead_rows, 0
    columns = mask.view(torch.uint8).amax([i for i in range(mask.dim()) if i != 1])
    return dead_rows, columns.numel() - int(columns.count_nonzero())
