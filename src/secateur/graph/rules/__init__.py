"""What each ATen op does to labels: one short function an op family, in a table that users may add to."""

from secateur.graph.rules import arrangement as arrangement
from secateur.graph.rules import attention as attention
from secateur.graph.rules import contraction as contraction
from secateur.graph.rules import counting as counting
from secateur.graph.rules import creation as creation
from secateur.graph.rules import fourier as fourier
from secateur.graph.rules import image as image
from secateur.graph.rules import joining as joining
from secateur.graph.rules import lookup as lookup
from secateur.graph.rules import loss as loss
from secateur.graph.rules import normalisation as normalisation
from secateur.graph.rules import pointwise as pointwise
from secateur.graph.rules import recurrent as recurrent
from secateur.graph.rules import reduction as reduction
from secateur.graph.rules import shape as shape
from secateur.graph.rules._table import RULES as RULES
from secateur.graph.rules._table import rule as rule
from secateur.graph.rules._table import rule_for as rule_for

__all__ = ["RULES", "rule", "rule_for"]
