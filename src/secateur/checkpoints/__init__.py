"""Files of weights as they lie on disk, read and written piece by piece: what is in them, and smaller ones of them.

No model is needed, and never more than a part of one tensor is in memory. Files: headers (the format), stored (one
tensor, in pieces), opening (a file, a sharded index, a folder), pickled (files of ``torch.save``), writing, cutting
(`cut_checkpoint`), inspecting (`inspect`) with its zeros.
"""

from secateur.checkpoints.cutting import Cut, cut_checkpoint
from secateur.checkpoints.inspecting import Inspection, TensorReport, inspect
from secateur.checkpoints.opening import Checkpoint, Shard, open_checkpoint
from secateur.checkpoints.stored import Stored

__all__ = [
    "Checkpoint",
    "Cut",
    "Inspection",
    "Shard",
    "Stored",
    "TensorReport",
    "cut_checkpoint",
    "inspect",
    "open_checkpoint",
]
