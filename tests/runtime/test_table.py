"""The report of `compress` as people read it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from secateur.runtime import CompressionReport, LayerLine

LINE = LayerLine("fc1", (64, 48), 0.9, "unstructured", "csr", 4.5, 4.25, 12_288, 2_500)
DENSE = LayerLine("conv", (8, 3, 3, 3), 0.125, "dense", "dense", 1.0, 1.0, 864, 864, "less than 30% zeros")
REPORT = CompressionReport(
    (LINE, DENSE), 2e-3, 5e-4, 1_234_567, 123_456, 3.2e-7, 1, ("no empty units", "native kernels: avx2, OpenMP")
)


def test_report_is_a_table_with_the_whole_model_below() -> None:
    assert str(REPORT).splitlines() == [
        "layer  shape          sparsity  pattern       format  predicted  measured  bytes",
        "fc1    64 x 48        90.0%     unstructured  csr     4.50x      4.25x     12.3 kB -> 2.5 kB",
        "conv   8 x 3 x 3 x 3  12.5%     dense         dense                        864 B",
        "dense because less than 30% zeros: conv",
        "whole model: 2 -> 0.5 ms, 4.00x (1 thread); 1.23 MB -> 123 kB; outputs within 3.2e-07",
        "no empty units",
        "native kernels: avx2, OpenMP",
    ]


def test_report_without_layers_has_heads_and_the_whole_model() -> None:
    lines = str(replace(REPORT, layers=(), threads=2, notes=())).splitlines()
    assert len(lines) == 2
    assert "(2 threads)" in lines[1]


def test_reasons_are_given_once_with_the_first_layers() -> None:
    several = [replace(DENSE, name=f"c{i}") for i in range(5)]
    four = replace(REPORT, layers=tuple(several[:4]))
    five = replace(REPORT, layers=(*several, replace(DENSE, name="x", why="it has hooks")))
    assert "dense because less than 30% zeros: c0, c1, c2, c3" in str(four).splitlines()
    assert str(five).splitlines()[7:9] == [
        "dense because it has hooks: x",
        "dense because less than 30% zeros: c0, c1, c2, … (5)",
    ]


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (2_500_000, "2.5 MB"), (7_250_000_000, "7.25 GB")]
)
def test_sizes_have_units(count: int, shown: str) -> None:
    assert str(replace(REPORT, layers=(replace(DENSE, bytes=count),))).splitlines()[1].endswith(f"  {shown}")


def test_figures_are_plain_values() -> None:
    found = REPORT.to_dict()
    assert found["speedup"] == REPORT.speedup == 4.0
    assert found["layers"][0]["predicted"] == 4.5
    assert found["notes"] == REPORT.notes
