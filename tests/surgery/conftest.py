"""What the tests of surgery start from."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def _small_census() -> Iterator[None]:
    """Keep what was alive before out of the census that each resize takes of all objects; property tests take many."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
