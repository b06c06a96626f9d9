"""How single entries of an optimizer's state follow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.optimization import Adafactor as TransformersAdafactor

from secateur import UnknownStateError
from secateur.surgery import Change, Entry, Selection, state_rule
from secateur.surgery.entries import follow_entry
from secateur.surgery.rules import RULES


def follow(
    kind: type[torch.optim.Optimizer], name: str, value: object, *selections: Selection, shape: tuple[int, ...] = (3, 2)
) -> Any:
    parameter = nn.Parameter(torch.zeros(shape))
    optimizer = kind([parameter], lr=0.5) if kind is not TransformersAdafactor else kind([parameter])
    change = Change("fc.weight", parameter, selections or (Selection(0, shape[0], torch.tensor([0, 2])),))
    return follow_entry(optimizer, name, value, change, optimizer.param_groups[0])


def test_entry_of_the_parameters_shape_is_cut() -> None:
    found = follow(torch.optim.Adam, "exp_avg", torch.arange(6.0).view(3, 2))
    assert found.tolist() == [[0.0, 1.0], [4.0, 5.0]]


@pytest.mark.parametrize("value", [7, 0.5, True, None, "fast", 1j, torch.tensor(3.0), torch.tensor([3.0])], ids=str)
def test_single_values_are_kept(value: object) -> None:
    assert follow(torch.optim.Adam, "step", value) is value


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (torch.zeros(3), r"entry: \(3,\)"),
        (torch.zeros(3, 1), r"entry: \(3, 1\)"),
        (torch.zeros(2, 3), r"entry: \(2, 3\)"),
        ([torch.zeros(3, 3)], "entry: list"),
        ({"G": torch.zeros(3, 3)}, "entry: dict"),
        ((3, 2), "entry: tuple"),
        (object(), "entry: object"),
    ],
)
def test_anything_else_is_refused_by_name(value: object, shown: str) -> None:
    with pytest.raises(UnknownStateError, match=r"AdamW keeps 'mystery' for 'fc\.weight'") as caught:
        follow(torch.optim.AdamW, "mystery", value)
    assert caught.match(shown)
    assert caught.match(r"parameter: \(3, 2\) -> \(2, 2\)")


def test_error_for_a_users_class_says_how_to_register_it() -> None:
    class Shampoo(torch.optim.SGD):
        pass

    with pytest.raises(UnknownStateError, match=r"@secateur.surgery.state_rule\(Shampoo\)"):
        follow(Shampoo, "G", torch.zeros(3, 3))


def test_error_for_state_that_was_left_behind_by_hand_says_how_to_mend_it() -> None:
    with pytest.raises(UnknownStateError, match=r"secateur.relink_\(model, optimizer\)"):
        follow(torch.optim.SGD, "momentum_buffer", torch.zeros(3, 9))


def test_new_positions_of_complex_state_begin_with_both_parts() -> None:
    new = Selection(0, 3, torch.arange(3), num_new=1)
    found = follow(torch.optim.Rprop, "step_size", torch.zeros(3, 2, dtype=torch.complex64), new)
    assert found[3].tolist() == [0.5 + 0.5j, 0.5 + 0.5j], "as Rprop itself begins"


def test_copies_of_the_weights_hold_their_new_values() -> None:
    new = Selection(0, 3, torch.arange(3), num_new=1, init=torch.full((1, 2), 4.0))
    assert follow(torch.optim.ASGD, "ax", torch.ones(3, 2), new)[3].tolist() == [4.0, 4.0]


# Factored second moments: the oracle makes the factors of a matrix of squares -----------------------------------------

ADAFACTORS = {
    "torch": (torch.optim.Adafactor, "row_var", "col_var", True),
    "transformers": (TransformersAdafactor, "exp_avg_sq_row", "exp_avg_sq_col", False),
}


@pytest.mark.parametrize("library", ADAFACTORS)
@pytest.mark.parametrize("shape", [(4, 3), (4, 4), (2, 4, 3), (4, 1), (1, 3)])
def test_factors_are_those_of_the_cut_squares(library: str, shape: tuple[int, ...]) -> None:
    kind, row, column, keepdim = ADAFACTORS[library]
    rows, columns = shape[-2], shape[-1]
    squares = torch.rand(shape, dtype=torch.float64)
    keep_rows, keep_columns = list(range(0, rows, 2)), list(range((columns + 1) // 2))
    alive = torch.zeros(shape, dtype=torch.float64)
    alive[..., torch.tensor(keep_rows).unsqueeze(1), keep_columns] = 1
    squares *= alive
    selections = (
        Selection(len(shape) - 1, columns, torch.tensor(keep_columns)),
        Selection(len(shape) - 2, rows, torch.tensor(keep_rows)),
    )
    cut = squares[..., keep_rows, :][..., keep_columns]
    for name, dim in ((row, -1), (column, -2)):
        found = follow(kind, name, squares.mean(dim, keepdim=keepdim), *selections, shape=shape)
        torch.testing.assert_close(found, cut.mean(dim, keepdim=keepdim))


@pytest.mark.parametrize("library", ADAFACTORS)
def test_factors_of_a_grown_matrix_count_zeros(library: str) -> None:
    kind, row, column, keepdim = ADAFACTORS[library]
    squares = torch.rand(4, 3, dtype=torch.float64)
    grown = torch.cat([squares, torch.zeros(2, 3, dtype=torch.float64)])
    new = Selection(0, 4, torch.arange(4), num_new=2)
    for name, dim in ((row, 1), (column, 0)):
        found = follow(kind, name, squares.mean(dim, keepdim=keepdim), new, shape=(4, 3))
        torch.testing.assert_close(found, grown.mean(dim, keepdim=keepdim))


@pytest.mark.parametrize("library", ADAFACTORS)
@pytest.mark.parametrize(("name", "shape"), [("row", (5, 1)), ("mystery", (3, 1))])
def test_factors_of_another_shape_or_name_are_refused(library: str, name: str, shape: tuple[int, int]) -> None:
    kind, row, *_ = ADAFACTORS[library]
    with pytest.raises(UnknownStateError, match="Adafactor keeps"):
        follow(kind, row if name == "row" else name, torch.zeros(shape))


def test_shaped_entries_go_to_the_rule_even_if_they_look_like_the_parameter() -> None:
    class Square(torch.optim.SGD):
        pass

    @state_rule(Square, entries={"gram": Entry(is_shaped=True)})
    def gram(name: str, value: Tensor, change: Change, group: Mapping[str, Any]) -> Tensor:
        rows = change.along(0)
        return rows.on(1).take(rows.take(value)) if rows else value

    try:
        found = follow(Square, "gram", torch.arange(9.0).view(3, 3), shape=(3, 3))
        momentum = follow(Square, "momentum_buffer", torch.arange(9.0).view(3, 3), shape=(3, 3))
    finally:
        del RULES[Square]
    assert found.tolist() == [[0.0, 2.0], [6.0, 8.0]]
    assert momentum.shape == (2, 3)
