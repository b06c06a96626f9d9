"""Measurements: what `profile` and `compress` found is what is shown, and nothing else is taken for one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import secateur
from secateur import InvalidInputError
from secateur.report import gather


def nets() -> dict[str, nn.Module]:
    dense, masked = (nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 4)) for _ in range(2))
    secateur.prune_(masked, sparsity=0.9)
    return {"dense": dense, "masked": masked}


X = torch.randn(4, 32)


@pytest.mark.parametrize("seconds", [0.0, 0.02])
def test_a_profile_is_shown_as_it_is(seconds: float) -> None:
    profile = secateur.profile(nets(), X, seconds=seconds)
    (section,) = gather(comparison=profile).to_dict()["sections"]
    table = section["figures"][-1]
    found = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    assert section["text"] == f"On {profile.machine}."
    for row, own in zip(profile.rows, found, strict=True):
        assert own["model"] == row.name
        assert own["Parameters"] == row.parameters
        assert own["Non-zero parameters"] == row.nonzeros
        assert own["MACs"] == row.macs
        assert own["Non-zero MACs"] == row.nonzero_macs
        assert own["Memory"] == row.bytes
        assert own["Median time of a run"] == (row.latency and row.latency.median / 1e3)
        assert own["times faster than the first"] == profile.speed_ups.get(row.name)
    charts = [figure["caption"] for figure in section["figures"] if figure["kind"] == "bars"]
    assert ("Median time of a run of each model" in charts) == (seconds > 0)


def test_what_compress_reports_is_shown_as_it_is() -> None:
    fast = secateur.compress(nets()["masked"], X)
    assert fast.report is not None
    for given in (fast, fast.report):
        (section,) = gather(comparison=given).to_dict()["sections"]
        facts = {fact["label"]: (fact["before"], fact["after"]) for fact in section["figures"][0]["facts"]}
        assert facts["Time of a run"] == (fast.report.dense_seconds, fast.report.seconds)
        assert facts["Memory"] == (fast.report.dense_bytes, fast.report.bytes)
        assert facts["Times faster"] == (None, fast.report.speedup)
        rows = section["figures"][-1]["rows"]
        assert [row[0] for row in rows] == [layer.name for layer in fast.report.layers]
        assert [row[2:9] for row in rows] == [
            [one.sparsity, one.pattern, one.format, one.predicted, one.measured, one.dense_bytes, one.bytes]
            for one in fast.report.layers
        ]


def test_several_comparisons_follow_one_another() -> None:
    models = nets()
    comparison = [secateur.profile(models, X, seconds=0), secateur.compress(models["masked"], X)]
    titles = [section.title for section in gather(comparison=comparison).sections]
    assert titles == ["Models side by side", "The compressed model"]


def test_a_compressed_model_that_was_not_measured_is_refused(tmp_path: Path) -> None:
    secateur.compress(nets()["masked"], X).save(tmp_path / "fast")
    with pytest.raises(InvalidInputError, match="loaded without being measured"):
        gather(comparison=secateur.load_compressed(tmp_path / "fast"))


@pytest.mark.parametrize("comparison", [3, {"dense": 1.0}, nn.Linear(2, 2), secateur.runtime.Profile, "profile"])
def test_what_is_no_comparison_is_refused(comparison: object) -> None:
    with pytest.raises(InvalidInputError, match="is no comparison"):
        gather(comparison=comparison)
