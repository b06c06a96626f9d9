"""How a profile is shown."""

from __future__ import annotations

from secateur.runtime.profile_result import ModelProfile, Profile
from secateur.runtime.profile_times import Latency


def test_a_profile_prints_a_table() -> None:
    rows = (
        ModelProfile("dense", 1200, 1200, 5000, 5000, 4800, Latency(2.0, (1.9, 2.25), 10)),
        ModelProfile("masked", 1200, 120, 5000, 500, 4800, Latency(2.5, (2.4, 2.6), 10), "zeros are multiplied"),
        ModelProfile("none", 7, None, 8, None, 9, None),
    )
    assert str(Profile(rows, "cpu")).splitlines() == [
        "Profile: cpu",
        "          parameters  non-zero   MACs  non-zero MACs  bytes  median, ms  quartiles, ms  speed-up",
        "  dense        1,200     1,200  5,000          5,000  4,800           2    1.9 to 2.25      1.00",
        "  masked       1,200       120  5,000            500  4,800         2.5     2.4 to 2.6      0.80",
        "  none             7         -      8              -      9           -              -         -",
        "  masked: zeros are multiplied",
    ]
