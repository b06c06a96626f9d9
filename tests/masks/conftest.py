"""Masks as kernels apply them, and as torch does where there are none."""

from __future__ import annotations

import pytest

import secateur._native as native


@pytest.fixture(params=["kernels", "torch"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What applies masks, in turn; on a machine that has no library it is torch both times."""
    if request.param == "torch":
        monkeypatch.setattr(native, "library", lambda: None)
    return "torch" if native.library() is None else "kernels"
