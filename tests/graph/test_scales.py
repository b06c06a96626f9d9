"""Which dims keep their sizes because the code computes with them."""

from __future__ import annotations

from types import SimpleNamespace

from torch import nn

from secateur.graph.labels import Dim, Labels
from secateur.graph.scales import settle_values
from secateur.graph.solve import solve
from secateur.graph.sources import Attribute, DimSize, Expression
from secateur.graph.watching import Tie, Used


def attribute(name: str, value: int) -> Attribute:
    return Attribute(SimpleNamespace(**{name: value}), "", name)


def stays(labels: Labels, *dims: Dim) -> list[bool]:
    """Whether nothing of each dim can go."""
    solution = solve(labels)
    return [bool(solution.blocked[solution.classes(dim[0])].all()) for dim in dims]


def test_attributes_that_python_computes_with_are_pinned_and_others_keep_their_dims() -> None:
    labels = Labels()
    width, heads, shape = labels.fresh_dim(4), labels.fresh_dim(3), labels.fresh_dim(5)
    w, h = attribute("width", 4), attribute("heads", 3)
    known = {w: width, h: heads}
    assert settle_values(labels, [Used(w, True), Used(h, False), Used(DimSize(shape), True)], known, [], {}) == {w}
    assert stays(labels, width, heads, shape) == [False, True, True]


def test_an_expression_with_a_shape_keeps_the_dim_whose_size_it_is() -> None:
    labels = Labels()
    channels, heads, width = labels.fresh_dim(12), labels.fresh_dim(3), labels.fresh_dim(4)
    h = attribute("heads", 3)
    quotient = Expression("//", (DimSize(channels), h))
    ties = [Tie(Expression("//", (DimSize(channels), h)), width, "view")]
    assert settle_values(labels, [Used(quotient, True)], {h: heads}, ties, {}) == frozenset()
    assert stays(labels, channels, heads, width) == [False, False, True]


def test_a_quotient_keeps_the_axes_that_are_left() -> None:
    labels = Labels()
    channels, heads, width = labels.fresh_dim(12), labels.fresh_dim(3), labels.fresh_dim(4)
    labels.equal(channels, (*heads, *width))
    h = attribute("heads", 3)
    settle_values(labels, [Used(Expression("//", (DimSize(channels), h)), True)], {h: heads}, [], {})
    assert stays(labels, heads, width) == [False, True]


def test_an_expression_of_strangers_keeps_them_all() -> None:
    labels = Labels()
    channels, heads = labels.fresh_dim(12), labels.fresh_dim(3)
    h = attribute("heads", 3)
    settle_values(labels, [Used(Expression("//", (DimSize(channels), h)), True)], {h: heads}, [], {})
    assert stays(labels, channels, heads) == [True, True]


def test_an_attribute_that_is_pinned_and_meets_a_shape_keeps_its_dim() -> None:
    labels = Labels()
    channels, heads, width = labels.fresh_dim(12), labels.fresh_dim(3), labels.fresh_dim(4)
    h = attribute("heads", 3)
    quotient = Expression("//", (DimSize(channels), h))
    used = [Used(quotient, True), Used(h, True)]
    settle_values(labels, used, {h: heads}, [Tie(quotient, width, "view")], {})
    assert stays(labels, channels, heads, width) == [False, True, True]


def test_a_size_that_a_layer_has_recorded_keeps_the_dims_of_that_size_unless_it_can_be_pinned() -> None:
    labels, layer = Labels(), nn.Linear(5, 4)
    rows, columns, bias = labels.fresh_dim(4), labels.fresh_dim(5), labels.fresh_dim(4)
    tensors = {id(layer.weight): (rows, columns), id(layer.bias): (bias,)}
    recorded = Attribute(layer, "layer", "out_features")
    assert settle_values(labels, [Used(recorded, True)], {}, [], tensors) == {recorded}
    assert stays(labels, rows, columns, bias) == [False, False, False]
    assert settle_values(labels, [Used(recorded, False)], {}, [], tensors) == frozenset()
    assert stays(labels, rows, columns, bias) == [True, False, True]
