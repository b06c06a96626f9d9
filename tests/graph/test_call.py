"""Tensors in whatever a model returns."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from secateur import InvalidInputError
from secateur.graph import analyze
from secateur.graph.call import tensors_in


@dataclass
class Output:
    """What many models return."""

    logits: Tensor
    loss: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Slotted:
    """One without ``__dict__``."""

    logits: Tensor


class Named(NamedTuple):
    """A tuple with names."""

    logits: Tensor
    number: int = 3


class Plain:
    """An object that refers to itself, to a module, and to tensors in containers."""

    def __init__(self, logits: Tensor) -> None:
        self.me, self.layer, self.kind = self, nn.Linear(2, 2), Output
        self.inner = {"steps": [Output(logits)]}


class Dict(dict[str, Any]):
    """A subclass that torch does not know."""


FORMS = {
    "dataclass": Output,
    "slots": Slotted,
    "named tuple": Named,
    "object": Plain,
    "namespace": lambda y: SimpleNamespace(y=y),
    "dict subclass": lambda y: Dict(y=y),
    "user dict": lambda y: UserDict(y=y),
    "distribution": lambda y: torch.distributions.Normal(y, 1.0, validate_args=False),
    "nested": lambda y: [{"a": (Output(y), None)}],
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_tensors_are_found_in_every_form_and_stay_outputs(form: Callable[[Tensor], object]) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 6), nn.Linear(6, 4)

        def forward(self, x: Tensor) -> object:
            return form(self.b(self.a(x)))

    y = torch.ones(2)
    assert any(tensor is y for tensor in tensors_in(form(y)))
    coupling = analyze(Model(), torch.ones(2, 3))
    assert [list(group.footprint) for group in coupling.groups] == [[("a.weight", 0), ("a.bias", 0), ("b.weight", 1)]]


def test_classes_modules_and_cycles_hold_no_results() -> None:
    assert tensors_in(Plain(torch.ones(1))) == [torch.ones(1)]
    cyclic: list[object] = [SimpleNamespace()]
    cyclic[0].back = SimpleNamespace(front=cyclic[0])
    assert tensors_in((nn.Linear(2, 2), Output, tensors_in, torch, "text", 3, *cyclic)) == []


@pytest.mark.parametrize("result", [None, 3.5, "generator", {}], ids=repr)
def test_a_model_that_returns_no_tensors_is_refused(result: object) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(3, 6)

        def parts(self, y: Tensor) -> Iterator[Tensor]:
            yield y

        def forward(self, x: Tensor) -> object:
            y = self.a(x)
            return self.parts(y) if result == "generator" else result

    with pytest.raises(InvalidInputError, match=r"Model returned no tensors(?s:.*)interface="):
        analyze(Model(), torch.ones(2, 3))
    if result == "generator":
        kept = analyze(Model(), torch.ones(2, 3), interface=list).kept
        assert {(k.name, k.dim) for k in kept} == {("a.weight", 0), ("a.weight", 1), ("a.bias", 0)}
