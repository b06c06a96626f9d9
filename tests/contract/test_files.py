"""Each file that the library writes is there in whole or not at all, whatever interrupts the write."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

import secateur
from secateur import shrink, tickets


def network() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    secateur.prune_(model, sparsity=0.5)
    return model.eval()


X = torch.ones(2, 6)
WRITERS: dict[str, Callable[[nn.Module], Callable[[Path], object]]] = {
    "model": lambda model: partial(secateur.save, model),
    "plan": lambda model: secateur.plan_shrink(model, X, sparsity=0.5).save,
    "plan to grow": lambda model: shrink.plan_grow(model, X, growth=1.5).save,
    "ticket": lambda model: tickets.Ticket.of(model, tickets.Snapshot.of(model)).save,
    "snapshot": lambda model: tickets.Snapshot.of(model).save,
    "compressed model": lambda model: secateur.compress(model, X).save,
    "latency table": lambda model: shrink.LatencyTable(()).save,
    "report": lambda model: partial(secateur.report.write_html, plan=secateur.plan_shrink(model, X, sparsity=0.5)),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_an_interrupted_write_leaves_what_was_there(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = WRITERS[kind](network())
    write(tmp_path / "old")
    old = (tmp_path / "old").read_bytes()
    calls = []

    def interrupted(path: Path) -> None:
        calls.append(path)
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(safetensors.torch, "save_file", lambda tensors, path, *_: interrupted(Path(path)))
    monkeypatch.setattr(Path, "write_text", lambda path, *_, **__: interrupted(path))
    for name in ("old", "new"):
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path / name)
    assert len(calls) == 2
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"old": old}
