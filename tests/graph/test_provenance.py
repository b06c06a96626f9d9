"""Integers that remember where they come from: they compute as ints do, and vanish without a trace."""

from __future__ import annotations

import copy
import math
import operator
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from secateur.graph.provenance import (
    Attribute,
    AttributeSizes,
    DimSize,
    Expression,
    PinnedSize,
    Size,
    Source,
    source_of,
    sources_in,
)

INTS = st.integers(-50, 50)
SYMBOLS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod}
BOTH = st.sampled_from([lambda n, old: Size(n, DimSize("d"), Notes()), PinnedSize])


class Notes:
    """A watcher that writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Source, Source | int]] = []

    def __call__(self, what: str, source: Source, other: Source | int) -> None:
        self.told.append((what, source, other))


@given(a=INTS, b=INTS, symbol=st.sampled_from(sorted(SYMBOLS)), tracked=st.sampled_from(["left", "right", "both"]))
def test_size_arithmetic_is_that_of_ints_and_remembers_its_operands(a: int, b: int, symbol: str, tracked: str) -> None:
    one, other = DimSize("one"), DimSize("other")
    left = Size(a, one) if tracked != "right" else a
    right = Size(b, other) if tracked != "left" else b
    if symbol in ("//", "%") and b == 0:
        with pytest.raises(ZeroDivisionError):
            SYMBOLS[symbol](left, right)
        return
    result = SYMBOLS[symbol](left, right)
    assert int(result) == SYMBOLS[symbol](a, b)
    assert isinstance(result, Size)
    assert isinstance(result.source, Expression)
    assert result.source.symbol == symbol
    assert result.source.operands == (one if tracked != "right" else a, other if tracked != "left" else b)


def test_size_negation_and_nested_expressions_list_all_sources() -> None:
    one, other = DimSize("one"), DimSize("other")
    result = -(Size(6, one) * 2 + Size(3, other))
    assert result == -15
    assert list(sources_in(result.source)) == [one, other]
    assert list(sources_in(7)) == []
    assert source_of(5) == 5


@given(a=INTS, b=INTS)
def test_size_comparisons_hashes_and_indexing_are_those_of_ints(a: int, b: int) -> None:
    size = Size(a, DimSize("d"), Notes())
    assert (size == b, size != b, size < b, size >= b, hash(size), bool(size)) == (
        a == b,
        a != b,
        a < b,
        a >= b,
        hash(a),
        bool(a),
    )
    assert list(range(100))[:size] == list(range(100))[:a]
    assert f"{size}" == str(a)
    assert size != "text"


def test_size_says_when_it_equals_another_and_only_then() -> None:
    notes = Notes()
    one, other = DimSize("one"), DimSize("other")
    assert Size(4, one, notes) == Size(4, other, notes)
    assert notes.told == [("==", one, other)]
    assert Size(4, one, notes) != Size(5, other, notes)
    assert Size(4, one, notes) != 5
    assert len(notes.told) == 1
    assert Size(4, one, notes) == 4
    assert notes.told[1:] == [("==", one, 4)]


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (lambda n: n**-0.5, 0.25),
        (lambda n: n / 2, 8.0),
        (lambda n: 2 / n, 0.125),
        (lambda n: n * 0.5, 8.0),
        (float, 16.0),
        (math.sqrt, 4.0),
        (np.sqrt, 4.0),
        (lambda n: np.float64(0.5) * n, 8.0),
    ],
    ids=["power", "divided", "divisor", "times float", "float()", "sqrt", "numpy's sqrt", "times numpy's float"],
)
def test_size_says_when_it_becomes_a_value(use: Any, expected: float) -> None:
    notes = Notes()
    source = DimSize("d")
    assert use(Size(16, source, notes)) == expected
    assert notes.told == [("value", source, 0)]


@given(make=BOTH, number=st.integers(1, 30), other=st.integers(1, 9), power=st.integers(0, 3))
def test_squares_and_quotients_with_remainder_are_sizes(make: Any, number: int, other: int, power: int) -> None:
    size = make(number, number + 1)
    results = (size**power, *divmod(size, other), *divmod(other, size))
    assert [int(result) for result in results] == [number**power, *divmod(number, other), *divmod(other, number)]
    assert {type(result) for result in results} == {type(size)}


@given(number=st.integers(1, 30), old=st.integers(1, 30), symbol=st.sampled_from(sorted(SYMBOLS)))
def test_arithmetic_with_a_float_behind_is_that_of_values(number: int, old: int, symbol: str) -> None:
    notes, source = Notes(), DimSize("d")
    operation = SYMBOLS[symbol]
    size, pinned = Size(number, source, notes), PinnedSize(number, old)
    assert operation(size, 2.5) == operation(number, 2.5)
    assert notes.told == [("value", source, 0)]
    assert operation(pinned, 2.5) == operation(old, 2.5)
    assert (size**-1, pinned**-1, 2**size, 2**pinned) == (number**-1, old**-1, 2**number, 2**old)


def test_size_repeats_sequences_like_an_int() -> None:
    notes = Notes()
    assert [0] * Size(3, DimSize("d"), notes) == [0, 0, 0]
    assert Size(2, DimSize("d"), notes) * (1, 2) == (1, 2, 1, 2)
    assert "a" * Size(2, DimSize("d"), notes) == "aa"
    assert notes.told == []


@given(
    new=st.integers(1, 30), old=st.integers(1, 30), other=st.integers(1, 30), symbol=st.sampled_from(sorted(SYMBOLS))
)
def test_pinned_size_is_the_new_number_and_computes_values_with_the_old_one(
    new: int, old: int, other: int, symbol: str
) -> None:
    pinned = PinnedSize(new, old)
    for one, two, before in ((pinned, other, (old, other)), (other, pinned, (other, old))):
        result = SYMBOLS[symbol](one, two)
        assert int(result) == SYMBOLS[symbol](int(one), int(two))
        assert float(result) == float(SYMBOLS[symbol](*before))
    assert (pinned == new, hash(pinned) == hash(new), pinned < 31) == (True, True, True)
    assert torch.zeros(pinned, 2).shape == (new, 2)
    assert torch.zeros(2 * new).view(pinned, -1).shape == (new, 2)
    assert pinned**-0.5 == old**-0.5
    assert math.sqrt(pinned) == math.sqrt(old)
    assert np.sqrt(pinned) == np.sqrt(old)
    assert np.array_equal(np.arange(3.0) / pinned, np.arange(3.0) / old)
    assert (1 / pinned, pinned / 2, pinned * 0.5, float(-pinned)) == (1 / old, old / 2, old * 0.5, -old)
    assert len([0] * pinned) == len("a" * pinned) == len(pinned * (1,)) == new


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda n: pickle.loads(pickle.dumps(n))])
def test_pinned_size_survives_copies_and_pickles(copied: Any) -> None:
    twin = copied(PinnedSize(3, 4))
    assert (type(twin), twin, twin.old) == (PinnedSize, 3, 4)


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda n: pickle.loads(pickle.dumps(n)), lambda n: copy.deepcopy([n])[0]],
    ids=["copy", "deepcopy", "pickle", "inside a list"],
)
def test_size_copies_and_pickles_to_a_plain_int(copied: Any) -> None:
    assert type(copied(Size(7, DimSize("d")))) is int
    assert copied(Size(7, DimSize("d"))) == 7


class Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.width, self.pair, self.parts = 12, (3, 4), [5, 6]
        self.flag, self.one, self.ratio, self.word, self._hidden = True, 1, 0.5, "a", 9
        self.mixed = (3, "a")
        self.config = SimpleNamespace(hidden_size=12)
        self.inner = nn.Linear(4, 3)
        self.inner.config = self.config


def stored(model: nn.Module) -> dict[str, tuple[int, Any]]:
    """Identity and value of everything stored in modules and the config."""
    owners = {**dict(model.named_modules()), "config": model.config}
    return {
        f"{label}|{name}": (id(value), copy.copy(value) if isinstance(value, list) else value)
        for label, owner in owners.items()
        for name, value in vars(owner).items()
        if not name.startswith("_")
    }


def test_attribute_sizes_cover_ints_tuples_lists_and_configs_and_leave_the_rest() -> None:
    model = Module()
    with AttributeSizes(model, Notes()):
        assert isinstance(model.width, Size)
        assert [type(entry) for entry in (*model.pair, *model.parts)] == [Size] * 4
        assert isinstance(model.pair, tuple)
        assert isinstance(model.parts, list)
        assert isinstance(model.config.hidden_size, Size)
        assert isinstance(model.inner.in_features, Size)
        for name in ("flag", "one", "ratio", "word", "_hidden", "training"):
            assert not isinstance(getattr(model, name), Size), name
        assert model.mixed == (3, "a")
        assert not isinstance(model.mixed[0], Size)


def test_attribute_sizes_know_their_place_and_a_shared_config_is_one_owner() -> None:
    model = Module()
    with AttributeSizes(model, Notes()):
        width, entry = model.width.source, model.parts[1].source
        assert (width.label, width.name, width.index, width.value) == ("", "width", None, 12)
        assert (entry.name, entry.index, entry.value) == ("parts", 1, 6)
        assert model.config.hidden_size.source.owner is model.config
    assert width == Attribute(model, "another label", "width")
    assert hash(width) == hash(Attribute(model, "another label", "width"))
    assert width != Attribute(model.inner, "", "width")
    assert width != "width"


@pytest.mark.parametrize("raises", [False, True])
def test_attribute_sizes_put_the_very_objects_back(raises: bool) -> None:
    model = Module()
    before = stored(model)
    if raises:
        with pytest.raises(RuntimeError, match="inside"), AttributeSizes(model, Notes()):
            raise RuntimeError("inside")
    else:
        with AttributeSizes(model, Notes()):
            assert stored(model) != before or isinstance(model.width, Size)
    assert stored(model) == before
    assert type(model.width) is int


def test_a_deep_copy_made_inside_the_block_has_plain_ints() -> None:
    model = Module()
    with AttributeSizes(model, Notes()):
        twin = copy.deepcopy(model)
    assert type(twin.width) is int
    assert [type(entry) for entry in (*twin.pair, *twin.parts)] == [int] * 4
    assert torch.equal(twin.inner.weight, model.inner.weight)
