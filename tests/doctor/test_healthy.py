"""A healthy training setup has no findings, whenever one asks."""

from __future__ import annotations

import pytest

from secateur.doctor import diagnose, relink_, watch
from tests.doctor.trainings import TRAININGS


@pytest.mark.parametrize("name", TRAININGS)
def test_healthy_training_has_no_findings(name: str) -> None:
    training = TRAININGS[name]()
    extra = {"optimizer": training.optimizer, **training.extra}
    for moment, loss in training.moments(training.steps):
        found = diagnose(training.model, **extra)
        assert not found, f"{moment}:\n{found}"
        if loss is not None:
            found = diagnose(training.model, loss=loss, **extra)
            assert not found, f"{moment}, with the loss:\n{found}"


@pytest.mark.parametrize("name", TRAININGS)
def test_healthy_training_gives_relink_nothing_to_do(name: str) -> None:
    training = TRAININGS[name]()
    optimizer = training.extra.get("optimizer", training.optimizer)
    for moment, _ in training.moments(training.steps):
        if moment in ("before", "backward", "between"):
            done = relink_(training.model, optimizer)
            assert not done, str(done)
            assert not done.left


@pytest.mark.parametrize("name", TRAININGS)
def test_healthy_training_gives_watch_nothing_to_notice(name: str) -> None:
    training = TRAININGS[name]()
    with watch(training.model, training.extra.get("optimizer", training.optimizer)) as watching:
        for _ in training.moments(20):
            pass
    assert not watching.findings
