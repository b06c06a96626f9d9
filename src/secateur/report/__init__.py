"""What was pruned and what came of it: one HTML page, plain data, and plots; and whether progress is shown.

Files: gathering (`gather`, `write_html`), document (`Report`), figures (its parts as values); plans, layers, trainings,
sparsity, comparisons and diagnoses (what they are made from); units, markup, charts, drawing and page, with page.css
and page.js (how they become HTML); plotting (how they become plots).
"""

from secateur._progress import without_progress
from secateur.report.document import Report
from secateur.report.figures import Section
from secateur.report.gathering import gather, write_html
from secateur.report.plotting import (
    plot_comparison,
    plot_costs,
    plot_groups,
    plot_masks,
    plot_sparsity,
    plot_training,
    plot_widths,
)

__all__ = [
    "Report",
    "Section",
    "gather",
    "plot_comparison",
    "plot_costs",
    "plot_groups",
    "plot_masks",
    "plot_sparsity",
    "plot_training",
    "plot_widths",
    "without_progress",
    "write_html",
]
