"""Lines of the user's own code."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from secateur.doctor.attending import Attendant
from secateur.doctor.places import Place, Places, user_place


def test_line_is_that_of_the_user_who_calls_through_torch_and_python() -> None:
    found = []
    model = nn.Linear(2, 2)
    model.register_forward_hook(lambda *_: None)
    hook = nn.modules.module.register_module_forward_pre_hook(lambda *_: found.append(user_place()))
    model(torch.ones(2))
    hook.remove()
    (place,) = found
    assert place is not None
    assert place.file == __file__


def test_place_shows_file_line_and_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch\n    model.weight = other\n")
    place = Place(str(tmp_path / "train.py"), 2)
    assert str(place) == "train.py:2: model.weight = other"
    assert place.to_dict() == {"file": str(tmp_path / "train.py"), "line": 2, "code": "model.weight = other"}
    assert Place(str(tmp_path / "gone.py"), 1).code == ""


def test_lines_are_those_since_all_was_well_if_there_are_any() -> None:
    places, model = Places(), nn.Sequential(nn.Linear(2, 2))
    first, second = Place("a.py", 1), Place("a.py", 2)
    places.note(model, "0", first)
    places.note(model[0], "bias", first)
    now = places.now()
    places.note(model[0], "weight", second)
    assert places.lines(model, ["0.weight", "0.bias"], now) == (second,)
    assert places.lines(model, ["0.bias"], now) == (first,)
    assert places.lines(model, ["0.weight", "0.bias"], 0) == (second, first)
    assert places.lines(model, ["no.such", "name"], 0) == ()


def test_lines_of_a_training_lie_in_this_file() -> None:
    seen = []
    with Attendant(seen.append):
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.weight = nn.Parameter(model.weight * 2)
        model(torch.ones(2)).sum().backward()
        optimizer.step()
    assert [line.code for line in seen[0].lines] == ["model.weight = nn.Parameter(model.weight * 2)"]
