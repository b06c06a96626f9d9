"""What each ATen op does to labels: one short function an op family, in a table that users may add to."""

from secateur.graph.rules import attention as attention
from secateur.graph.rules import contraction as contraction
from secateur.graph.rules import creation as creation
from secateur.graph.rules import joining as joining
from secateur.graph.rules import pointwise as pointwise
from secateur.graph.rules import reduction as reduction
from secateur.graph.rules import shape as shape
from secateur.graph.rules._table import rule as rule
from secateur.graph.rules._table import rule_for as rule_for

__all__ = ["rule", "rule_for"]
