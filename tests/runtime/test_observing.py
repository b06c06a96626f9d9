"""One run of a model, watched: what layers are given, and who alone reads what they return."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from secateur.runtime.observing import Observed, observe

KINDS = (nn.Linear, nn.Conv2d, nn.BatchNorm1d, nn.ReLU, nn.MultiheadAttention)


class Net(nn.Module):
    """A layer, a norm and two activations, used in a way that is given."""

    def __init__(self, run: Callable[[Any, Tensor], Any], inplace: bool = False) -> None:
        super().__init__()
        self.layer, self.norm, self.other = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.relu, self.second = nn.ReLU(inplace), nn.ReLU()
        self.run = run

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


def seen(run: Callable[[Any, Tensor], Any], inputs: Any = None, *, inplace: bool = False) -> Observed:
    return observe(Net(run, inplace).eval(), torch.randn(3, 4) if inputs is None else inputs, KINDS)


ALONE: dict[str, tuple[Callable[[Any, Tensor], Any], str]] = {
    "a norm": (lambda m, x: m.norm(m.layer(x)), "norm"),
    "a ReLU": (lambda m, x: m.relu(m.layer(x)), "relu"),
    "a ReLU whose result has several readers": (lambda m, x: [y := m.relu(m.layer(x)), m.other(y), y + 1], "relu"),
    "a layer": (lambda m, x: m.other(m.layer(x)), "other"),
    "a ReLU that is given a view": (lambda m, x: m.relu(m.layer(x)), "relu"),
    "given by keyword": (lambda m, x: m.relu(input=m.layer(input=x)), "relu"),
}


@pytest.mark.parametrize("how", ALONE)
def test_module_that_alone_reads_a_result_is_found(how: str) -> None:
    run, reader = ALONE[how]
    assert seen(run).readers["layer"] == reader


SHARED: dict[str, Callable[[Any, Tensor], Any]] = {
    "the result is returned, too": lambda m, x: [y := m.layer(x), m.relu(y)],
    "the result is returned in a dict": lambda m, x: {"a": (y := m.layer(x)), "b": m.relu(y)},
    "a view of the result is returned": lambda m, x: [(y := m.layer(x))[:1], m.relu(y)],
    "a residual reads it": lambda m, x: (y := m.layer(x)) + m.relu(y),
    "a residual has read it": lambda m, x: (y := m.layer(x)).sum() + m.relu(y),
    "two modules read it": lambda m, x: m.relu(y := m.layer(x)) + m.second(y),
    "a view is read": lambda m, x: (y := m.layer(x)).view(-1).sum() + m.relu(y),
    "the module reads a view": lambda m, x: m.relu(m.layer(x).view(2, 6)),
    "the module reads a part": lambda m, x: m.relu(m.layer(x)[:2]),
    "an op of torch reads it": lambda m, x: functional.relu(m.layer(x)),
    "an op in place": lambda m, x: functional.relu_(m.layer(x)),
    "it is changed before": lambda m, x: m.relu(m.layer(x).mul_(2)),
    "a copy is read": lambda m, x: m.relu(m.layer(x).clone()),
    "nobody reads it": lambda m, x: [m.layer(x), m.relu(x)][1],
    "the layer is called twice": lambda m, x: m.relu(m.layer(m.layer(x))),
    "the module is called twice": lambda m, x: m.relu(m.relu(m.layer(x))),
    "the module reads others, too": lambda m, x: m.relu(m.layer(x)) + m.relu(x),
    "the layer is read without being called": lambda m, x: m.relu(functional.linear(x, m.layer.weight)),
}


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("how", SHARED)
def test_no_module_is_found_where_others_may_have_read_the_result(how: str, inplace: bool) -> None:
    run = SHARED[how]
    found = seen(run, inplace=inplace).readers.get("layer")
    if how in LATER and inplace:
        assert found == "relu"
    else:
        assert found not in ("relu", "second", "norm", "other")


LATER = (
    "the result is returned, too",
    "the result is returned in a dict",
    "a residual reads it",
    "two modules read it",
)
"""A ReLU in place overwrites the result: all who come later read what the ReLU has made of it."""


def test_readers_after_a_relu_in_place_read_what_it_has_made() -> None:
    found = seen(lambda m, x: [m.relu(y := m.layer(x)), y, m.other(y)], inplace=True)
    assert found.readers["layer"] == "relu"


def test_readers_before_a_relu_in_place_read_the_result() -> None:
    found = seen(lambda m, x: [(y := m.layer(x)) + 1, m.relu(y)], inplace=True)
    assert "layer" not in found.readers


def test_a_part_overwritten_in_place_is_no_more_the_result() -> None:
    found = seen(lambda m, x: [m.relu((y := m.layer(x))[:1]), y], inplace=True)
    assert found.readers.get("layer") != "relu"


def test_shapes_of_every_call_are_noted_and_the_dims_of_results() -> None:
    found = seen(lambda m, x: m.layer(m.layer(x)[None]) + m.norm(x).sum(), torch.randn(3, 4))
    assert found.inputs["layer"] == [(3, 4), (1, 3, 4)]
    assert found.inputs["norm"] == [(3, 4)]
    assert "other" not in found.inputs
    assert found.results["layer"] == 3
    assert found.results["norm"] == 2


def test_inputs_of_every_form_are_taken() -> None:
    x = torch.randn(3, 4)
    for inputs in (x, (x,), {"x": x}, lambda model: model(x)):
        assert seen(lambda m, x: m.layer(x), inputs).inputs == {"layer": [(3, 4)]}


def test_attention_of_one_tensor_is_told_from_others() -> None:
    class Attends(nn.Module):
        def __init__(self, run: Callable[[Any, Tensor, Tensor], Any]) -> None:
            super().__init__()
            self.attention, self.run = nn.MultiheadAttention(4, 2, batch_first=True), run

        def forward(self, x: Tensor, y: Tensor) -> Any:
            return self.run(self.attention, x, y)[0]

    x, y = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    expected: dict[bool, list[Callable[[Any, Tensor, Tensor], Any]]] = {
        True: [lambda a, x, y: a(x, x, x), lambda a, x, y: a(query=x, key=x, value=x)],
        False: [lambda a, x, y: a(x, y, y), lambda a, x, y: a(x, x, y), lambda a, x, y: a(x, x, x.clone())],
    }
    for alike, runs in expected.items():
        for run in runs:
            assert observe(Attends(run).eval(), (x, y), KINDS).alike["attention"] is alike
    both = lambda a, x, y: (a(x, x, x)[0] + a(x, y, y)[0], None)  # noqa: E731
    assert observe(Attends(both).eval(), (x, y), KINDS).alike["attention"] is False


@pytest.mark.parametrize("raises", [False, True])
def test_model_is_left_as_it_was(raises: bool) -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        m.count = 1
        if raises:
            raise RuntimeError("of the model")
        return m.norm(m.layer(x)) + torch.randn(4)

    model = Net(run).train()
    before, x = {n: t.clone() for n, t in model.state_dict().items()}, torch.randn(3, 4)
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="of the model") if raises else nullcontext():
        observe(model, x, KINDS)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not hasattr(model, "count")
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)


def test_compiled_parts_are_seen_through() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    assert observe(torch.compile(model, backend="eager"), torch.randn(3, 4), KINDS).readers == {
        "_orig_mod.0": "_orig_mod.1"
    }
