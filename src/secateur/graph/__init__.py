"""Which positions of a model's tensors go together, from one watched run: labels, op rules, units and groups."""

from secateur.graph.coupling import Coupling as Coupling
from secateur.graph.coupling import Group as Group
from secateur.graph.coupling import Kept as Kept
from secateur.graph.coupling import analyze as analyze
from secateur.graph.drawing import draw as draw
from secateur.graph.rules import rule as rule

__all__ = ["Coupling", "Group", "Kept", "analyze", "draw", "rule"]
