"""What holds for every check, over the table of checks and the table of broken setups."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from secateur.doctor import CHECKS, diagnose, relink_
from tests.doctor.broken import BROKEN


def snapshot(arguments: dict[str, Any]) -> list[Any]:
    """Identities, values and state of a setup, to tell whether anything changed."""
    model, optimizer = arguments["model"], arguments.get("optimizer")
    seen: list[Any] = []
    for name, tensor in [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]:
        gradient = None if tensor.grad is None else (id(tensor.grad), tensor.grad.tolist())
        seen.append((name, id(tensor), tensor.tolist(), gradient, tensor._version, tensor.requires_grad))
    if optimizer is not None:
        seen.append([[id(p) for p in group["params"]] for group in optimizer.param_groups])
        for tensor, state in optimizer.state.items():
            seen.append((id(tensor), [(k, v.tolist() if isinstance(v, torch.Tensor) else v) for k, v in state.items()]))
    return [repr(entry) for entry in seen]  # nan is not equal to itself


def test_every_check_has_a_broken_setup() -> None:
    assert {row.code for row in BROKEN.values()} == set(CHECKS)


@pytest.mark.parametrize("name", BROKEN)
def test_check_fires_alone_and_names_what_is_broken(name: str) -> None:
    row = BROKEN[name]
    found = diagnose(**row.build(True))
    assert [(f.code, f.names, f.repairable) for f in found] == [(row.code, row.names, row.repairable)], str(found)


@pytest.mark.parametrize("name", BROKEN)
def test_check_is_silent_on_the_healthy_neighbour(name: str) -> None:
    found = diagnose(**BROKEN[name].build(False))
    assert not found, str(found)


@pytest.mark.parametrize("name", BROKEN)
def test_diagnose_changes_nothing(name: str) -> None:
    arguments = BROKEN[name].build(True)
    before = snapshot(arguments)
    diagnose(**arguments)
    assert snapshot(arguments) == before


@pytest.mark.parametrize("name", BROKEN)
def test_finding_explains_itself_as_text_and_as_data(name: str) -> None:
    for finding in diagnose(**BROKEN[name].build(True)):
        assert all((finding.what, finding.why, finding.effect, finding.fix))
        text = str(finding)
        assert finding.code in text
        assert all(line in text for line in finding.fix.split("\n"))
        assert max(len(line) for line in text.split("\n")) <= 125
        plain = json.loads(json.dumps(finding.to_dict()))
        assert (plain["code"], tuple(plain["names"])) == (finding.code, finding.names)


@pytest.mark.parametrize("name", [name for name, row in BROKEN.items() if row.repairable])
def test_relink_repairs_what_is_said_to_be_repairable(name: str) -> None:
    arguments = BROKEN[name].build(True)
    done = relink_(arguments["model"], arguments.get("optimizer"))
    assert done
    assert not done.left, str(done)
    assert not diagnose(**arguments), str(diagnose(**arguments))


@pytest.mark.parametrize("code", CHECKS)
def test_check_says_in_its_docstring_what_it_looks_for(code: str) -> None:
    assert CHECKS[code].look.__doc__
