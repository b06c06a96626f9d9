"""A sample of the catalogue in every run; `make coverage` runs all of it."""

from __future__ import annotations

import pytest

from tests.zoo.catalogue import entries
from tests.zoo.check import check
from tests.zoo.report import written

SAMPLE = (
    *("torchvision/shufflenet_v2_x0_5", "torchvision/mnasnet0_5", "torchvision/squeezenet1_1"),
    *("torchvision.segmentation/lraspp_mobilenet_v3_large", "timm/ghostnet_100", "timm/cait_xxs24_224"),
    *("timm/levit_128s", "transformers/bert", "transformers/gpt2", "transformers/llama", "transformers/t5"),
    *(
        "transformers/bart",
        "transformers/swinv2",
        "transformers/codegen",
        "transformers/gemma2",
        "transformers/mixtral",
    ),
    *("transformers/mixtral", "transformers/whisper", "transformers/clip", "transformers/wav2vec2"),
)


@pytest.mark.parametrize("key", SAMPLE)
def test_a_random_third_of_all_units_goes_exactly(key: str) -> None:
    entry = next(entry for entry in entries() if entry.key == key)
    outcome = check(entry)
    assert outcome.status == "exact", outcome.note
    assert outcome.after < outcome.before


def test_keys_of_the_catalogue_are_unique() -> None:
    keys = [entry.key for entry in entries()]
    assert len(keys) == len(set(keys)) > 250


def test_report_counts_what_it_is_given() -> None:
    row = {"key": "timm/a", "status": "exact", "error": 1e-15, "prunable": 0.5, "before": 9, "after": 4}
    kept = ["a.weight[0]: it is an output of the model"]
    page = written(
        [{"key": "timm/a", "status": "wrong"}, {**row, "kept": kept}, {"key": "timm/b", "status": "broken"}], ""
    )
    assert "| timm | 2 | 1 | 0 | 0 | 1 | 0 | 0.500 | 0.500 | 0 of 2 |" in page
    assert "| a | exact | 1e-15 | 0.500 | 9 → 4 | it is an output of the model |" in page
