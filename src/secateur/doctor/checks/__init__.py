"""The checks, one subject a file; importing this fills the table, in the order in which findings are shown."""

from secateur.doctor.checks import references  # isort: skip
from secateur.doctor.checks import graphs, shapes, layers, ties, pruned, wrappers, schedules, modes  # isort: skip
from secateur.doctor.checks import gradients, masks, values  # isort: skip

__all__ = [
    "gradients",
    "graphs",
    "layers",
    "masks",
    "modes",
    "pruned",
    "references",
    "schedules",
    "shapes",
    "ties",
    "values",
    "wrappers",
]
