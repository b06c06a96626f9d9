"""How compact state follows a parameter that changes its shape.

It is cut as torch's own state would be, and stays dense until the next step, which brings it to the mask of then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from torch import Tensor

from secateur.optim.members import KEPT
from secateur.optim.optimizer import SparseOptimizer
from secateur.optim.places import spread
from secateur.surgery import Change, Do, SetItem, holder
from secateur.surgery.edits import Edit
from secateur.surgery.optimizers import follow_optimizer
from secateur.surgery.rules import RULES, Entry, OptimizerRule

__all__ = ["follow_sparse"]

RULES[SparseOptimizer] = OptimizerRule({KEPT: Entry(is_shaped=True)})


@holder(SparseOptimizer)
def follow_sparse(optimizer: SparseOptimizer, changes: Sequence[Change]) -> Iterator[Edit]:
    """Compact entries are cut as dense ones; all others as those of any optimizer."""
    for change in changes:
        state = optimizer.state.get(change.tensor, {})
        bits = state.get(KEPT)
        if bits is None:
            yield from follow_optimizer(optimizer, [change])
            continue
        for name, value in state.items():
            if isinstance(value, Tensor) and optimizer.is_per_weight(name):
                yield SetItem(state, name, change.take(spread(value, bits, change.tensor)))
        yield Do(partial(state.pop, KEPT), partial(state.__setitem__, KEPT, bits))
