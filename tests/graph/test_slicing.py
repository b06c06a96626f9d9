"""Which part of which dim an index takes, against the ops that torch runs for it."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from secateur.graph.integers import Size
from secateur.graph.labels import Dim, Labels, size_of
from secateur.graph.literals import Site
from secateur.graph.slicing import Cut, cuts_of_index, cuts_of_narrow, negated, ties_of
from secateur.graph.solve import solve
from secateur.graph.sources import DimSize, Expression, Source


class Ops(TorchDispatchMode):
    """Writes down what slice and select take: op, dim, and the numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("slice", "select"):
            self.seen.append((name, args[1]))
        return func(*args, **(kwargs or {}))


SHAPE = (4, 5, 6, 7)

PARTS = st.one_of(
    st.just(None),
    st.integers(-4, 3),
    st.builds(slice, st.sampled_from([None, 1, 2, -2]), st.sampled_from([None, 3, -1]), st.sampled_from([None, 2])),
    st.just(torch.tensor([0, 1])),
)


@given(st.lists(PARTS, max_size=4), st.integers(0, 4), st.booleans())
def test_cuts_are_those_that_torch_makes(parts: list[Any], at: int, has_ellipsis: bool) -> None:
    if has_ellipsis:
        parts.insert(at, Ellipsis)
    index, x = tuple(parts), torch.randn(SHAPE)
    cuts = cuts_of_index(x, index, Site(sys._getframe()))
    with Ops() as ops:
        result = x[index]
    found = [(cut.op, cut.place) for cut in cuts if not is_whole(x, cut)]
    assert found == ops.seen
    taken = x
    for cut in reversed(cuts):  # from behind, so that dims before it keep their numbers
        if cut.op == "slice":
            taken = taken[(slice(None),) * cut.dim + (slice(*cut.numbers),)]
        else:
            taken = taken.select(cut.dim, cut.numbers[0])
    assert taken.numel() == result.numel() or any(isinstance(part, Tensor) for part in parts)


def is_whole(x: Tensor, cut: Cut) -> bool:
    """Whether a slice takes all of a dim, which torch leaves out."""
    return cut.op == "slice" and slice(*cut.numbers).indices(x.shape[cut.dim]) == (0, x.shape[cut.dim], 1)


@pytest.mark.parametrize("index", [torch.ones(4, 5) > 0, [0, 1], (slice(None), True)], ids=["mask", "list", "bool"])
def test_masks_and_lists_hide_which_dim_is_which(index: Any) -> None:
    assert cuts_of_index(torch.randn(SHAPE), index, Site(sys._getframe())) == []


def test_narrow_is_a_slice() -> None:
    (cut,) = cuts_of_narrow(torch.randn(SHAPE), -1, 2, 3, Site(sys._getframe()))
    assert (cut.op, cut.place, cut.numbers, cut.follows) == ("slice", 3, (2, 5, 1), (False, False, False))
    assert cuts_of_narrow(torch.randn(SHAPE), 0, torch.tensor(1), 2, Site(sys._getframe())) == []


def sliced(labels: Labels, size: int, start: Any, stop: Any) -> tuple[Dim, list[tuple[Source, Dim]]]:
    """A dim, and the ties of one slice of it."""
    dim = labels.fresh_dim(size)
    return dim, list(ties_of(Cut("slice", 0, 0, (start, stop, None), (False,) * 3, "here"), dim, labels))


@given(size=st.integers(3, 12), data=st.data())
def test_a_boundary_is_tied_to_the_positions_that_it_counts(size: int, data: st.DataObject) -> None:
    bound = data.draw(st.integers(2 - size, size - 1).filter(lambda n: abs(n) > 1))
    labels, source = Labels(), DimSize(())
    dim, ties = sliced(labels, size, None, Size(bound, source))
    ((found, counted),) = ties
    assert size_of(counted) == abs(bound)
    solution = solve(labels)
    all_classes = solution.classes(dim[0]).tolist()
    assert solution.classes(counted[0]).tolist() == (all_classes[:bound] if bound > 0 else all_classes[bound:])
    assert found is source if bound > 0 else found.operands == (source,)


def test_numbers_without_a_source_and_beyond_the_end_are_tied_to_nothing() -> None:
    labels = Labels()
    assert sliced(labels, 6, 2, 4)[1] == []
    assert sliced(labels, 6, None, Size(9, DimSize(())))[1] == []


def test_a_number_that_is_negated_twice_is_itself() -> None:
    source = DimSize(())
    assert negated(negated(source)) is source


@pytest.mark.parametrize("parts", [2, 3])
def test_parts_of_one_length_keep_the_same_positions(parts: int) -> None:
    labels, dim = Labels(), ()
    dim = labels.fresh_dim(4 * parts)
    length = Expression("//", (DimSize(dim), parts))
    cut = Cut("slice", 0, 0, (None, Size(4, length), None), (False,) * 3, "here")
    sources = [source for source, _ in ties_of(cut, dim, labels)]
    assert sources[0] is length
    classes = solve(labels).classes(dim[0]).tolist()
    assert classes == classes[:4] * parts
    assert len(set(classes)) == 4
