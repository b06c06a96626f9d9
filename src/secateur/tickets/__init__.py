"""Lottery tickets: snapshots that own their memory, rewinding, iterative magnitude pruning."""

from secateur.tickets.optimizers import OptimizerSnapshot as OptimizerSnapshot
from secateur.tickets.rewinding import rewind_ as rewind_
from secateur.tickets.rewinding import rewind_learning_rate_ as rewind_learning_rate_
from secateur.tickets.rounds import Round as Round
from secateur.tickets.rounds import geometric as geometric
from secateur.tickets.rounds import imp_ as imp_
from secateur.tickets.snapshot import Snapshot as Snapshot
from secateur.tickets.ticket import Ticket as Ticket

__all__ = [
    "OptimizerSnapshot",
    "Round",
    "Snapshot",
    "Ticket",
    "geometric",
    "imp_",
    "rewind_",
    "rewind_learning_rate_",
]
