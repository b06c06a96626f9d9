"""The parts of a report that are about a training: curves, changes of masks, cuts, with the steps of each."""

from __future__ import annotations

import pytest

from secateur import InvalidInputError, RigL
from secateur.dst import History
from secateur.report import gather
from secateur.report.trainings import Points, events_of, points_of
from secateur.shrink import ShrinkSchedule
from tests.report.pages import trained


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([0.5, 0.25], [(1, 0.5), (2, 0.25)]),
        ((3,), [(1, 3.0)]),
        ([(10, 1.0), (5, 2.0)], [(5, 2.0), (10, 1.0)]),
        ({7: 1.0, 3: 0.5}, [(3, 0.5), (7, 1.0)]),
        ([], []),
    ],
)
def test_curves_come_in_three_forms(points: Points, expected: list[tuple[int, float]]) -> None:
    assert points_of("loss", points) == expected


@pytest.mark.parametrize("points", [3, ["much"], [(1, 2, 3)], {"first": 1.0}, [None]])
def test_what_is_no_curve_is_refused_by_name(points: object) -> None:
    with pytest.raises(InvalidInputError, match="'loss' is none"):
        gather(curves={"loss": points})  # type: ignore[dict-item]


def test_changes_of_masks_are_those_of_the_history() -> None:
    model, _, training, losses = trained()
    assert isinstance(training, RigL)
    data = gather(training=training, curves={"loss": losses}).to_dict()["sections"]
    (curve,) = data[0]["figures"]
    assert curve["lines"]["loss"] == [[step, loss] for step, loss in enumerate(losses, 1)]
    assert [event["step"] for event in curve["events"]] == [4, 8, 12]
    shares, rows = data[1]["figures"]
    assert shares["lines"]["sparsity"] == [[change.step, change.sparsity] for change in training.history]
    assert [row[0] for row in rows["rows"]] == [0, 4, 8, 12]
    assert [row[2] for row in rows["rows"]] == [change.churn for change in training.history]
    zeros = data[2]["figures"][2]
    expected = [["0.weight", "16×6"], ["2.weight", "3×16"]]
    assert [row[:2] for row in zeros["rows"]] == expected
    assert [row[3] for row in zeros["rows"]] == [int((m == 0).sum()) for m in (model[0].weight, model[2].weight)]


def test_a_history_alone_is_enough() -> None:
    _, _, training, _ = trained()
    assert isinstance(training, RigL)
    data = gather(training=training.history).to_dict()["sections"]
    rows = data[-1]["figures"][2]["rows"]
    last = training.history[-1].layers
    assert [(row[0], row[1], row[3]) for row in rows] == [
        (name, None, layer.num_entries - layer.num_kept) for name, layer in last.items()
    ]


def test_cuts_are_those_of_the_schedule() -> None:
    model, _, schedule, losses = trained("cuts")
    assert isinstance(schedule, ShrinkSchedule)
    data = gather(training=schedule, curves={"loss": losses}).to_dict()["sections"]
    assert [event["step"] for event in data[0]["figures"][0]["events"]] == [4, 8, 12]
    (rows,) = data[1]["figures"]
    assert [row[:3] for row in rows["rows"]] == [[step, gone, "yes"] for step, gone in schedule.cuts.items()]
    assert [tuple(row[5:7]) for row in rows["rows"]] == [plan.parameters for plan in schedule.plans]
    assert rows["rows"][-1][6] == sum(parameter.numel() for parameter in model.parameters())


def test_cuts_to_come_have_no_costs_and_are_no_events() -> None:
    _, _, schedule, _ = trained("cuts")
    assert isinstance(schedule, ShrinkSchedule)
    schedule.num_steps, schedule.plans = (
        9,
        schedule.plans[1:2],
    )  # as after a resume between the first and the second cut
    (rows,) = gather(training=schedule).to_dict()["sections"][0]["figures"]
    assert [row[2] for row in rows["rows"]] == ["yes", "yes", "no"]
    assert [row[5] for row in rows["rows"]] == [None, schedule.plans[0].parameters[0], None]
    assert [step for step, _ in events_of([], [schedule])] == [4, 8]


def test_an_empty_history_has_no_part() -> None:
    assert [section.title for section in gather(training=History(), curves={"loss": [1.0]}).sections] == [
        "The training"
    ]


def test_charts_of_one_training_show_the_same_steps() -> None:
    _, _, training, losses = trained()
    first, second = gather(training=training, curves={"loss": losses, "score": {2: 0.5}}).sections[0].figures
    assert (first.span, second.span) == ((1, 16), (1, 16))  # type: ignore[union-attr]
