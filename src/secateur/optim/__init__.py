"""Optimizers that step kept weights only, with state for kept weights only, and so hold masked ones at zero for free.

Files: places (a mask's kept entries: taking, spreading and moving values); members (parameters that are about to be
stepped); optimizer (what all share: state that follows masks, checkpoints, the step); adamw, sgd; resizing (how compact
state follows a parameter that is resized).
"""

from secateur.optim import resizing as resizing
from secateur.optim.adamw import SparseAdamW as SparseAdamW
from secateur.optim.sgd import SparseSGD as SparseSGD

__all__ = ["SparseAdamW", "SparseSGD"]
