"""Every optimizer follows a resize: what was dead is removed, and the rest trains on as if nothing had happened.

The oracle is the same training without the removal. The rows come from the table of optimizers, so that a new member of
torch.optim is held to this by itself.
"""

from __future__ import annotations

import copy
import gc
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from secateur.surgery import transaction
from tests.contract.optimizer_table import BY_NAME, CASES, Dense, OptimizerCase, Problem, Table

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}

DENSE_KEEP = {
    ("first.weight", 0): [1, 2, 4, 5, 7],
    ("first.weight", 1): [0, 2, 3, 5],
    ("first.bias", 0): [1, 2, 4, 5, 7],
    ("last.weight", 1): [1, 2, 4, 5, 7],
}
TABLE_KEEP = {
    ("table.weight", 0): [0, 1, 3, 4, 6, 7, 9],
    ("table.weight", 1): [0, 2, 3, 5],
    ("readout", 0): [0, 2, 3, 5],
}


@pytest.fixture(autouse=True, scope="module")
def _small_census() -> Iterator[None]:
    """Keep what was alive before these tests out of the census that each resize takes, or they would take minutes."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


by_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
by_exact_case = pytest.mark.parametrize(
    "case", [case for case in CASES if not case.is_shape_dependent], ids=lambda case: case.name
)
by_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def keeps(problem: Problem) -> dict[tuple[str, int], list[int]]:
    """What stays, by tensor and dim."""
    names = dict(problem.model.state_dict())
    table = TABLE_KEEP if isinstance(problem.model, Table) else DENSE_KEEP
    return {(name, dim): keep for (name, dim), keep in table.items() if name in names}


def removed(keep: list[int], size: int) -> Tensor:
    """The positions that go."""
    return torch.tensor([i for i in range(size) if i not in keep])


def per_parameter(optimizer: Optimizer, parameter: Tensor) -> Iterator[Tensor]:
    """Tensors of an optimizer's state with one value for each entry of the parameter, as views."""
    for value in optimizer.state.get(parameter, {}).values():
        if isinstance(value, Tensor) and value.shape == parameter.shape:
            yield value
    members = optimizer.param_groups[0]["params"]
    if isinstance(optimizer, torch.optim.LBFGS):
        start = sum(p.numel() for p in members[: [id(p) for p in members].index(id(parameter))])
        total = sum(p.numel() for p in members)
        for value in optimizer.state[members[0]].values():
            for flat in value if isinstance(value, list) else [value]:
                if isinstance(flat, Tensor) and flat.numel() == total:
                    yield flat[start : start + parameter.numel()].view(parameter.shape)


def factors(optimizer: Optimizer, parameter: Tensor, dim: int) -> Iterator[tuple[Tensor, int]]:
    """Adafactor's row and column means that have one value a position of `dim`, with their dim for it."""
    names = (("row_var", "exp_avg_sq_row"), ("col_var", "exp_avg_sq_col"))[dim]
    for name in names:
        value = optimizer.state.get(parameter, {}).get(name)
        if value is not None:
            yield value, dim if value.dim() == parameter.dim() else 0


@torch.no_grad()
def kill(problem: Problem, optimizer: Optimizer) -> None:
    """Make what will be removed dead: zero weights, zero state, and from now on zero gradients."""
    for (name, dim), keep in keeps(problem).items():
        tensor = problem.model.state_dict(keep_vars=True)[name]
        gone = removed(keep, tensor.shape[dim])
        tensor.index_fill_(dim, gone, 0.0)
        if isinstance(tensor, nn.Parameter):
            for value in per_parameter(optimizer, tensor):
                value.index_fill_(dim, gone, 0.0)
            for value, at in factors(optimizer, tensor, dim) if tensor.dim() == 2 else ():
                value.index_fill_(at, gone, 0.0)
    for x in problem.inputs:
        if isinstance(problem.model, Table):
            x.copy_(torch.tensor(TABLE_KEEP["table.weight", 0])[x % len(TABLE_KEEP["table.weight", 0])])
        else:
            x.index_fill_(1, removed(DENSE_KEEP["first.weight", 1], 6), 0.0)


def cut_inputs(problem: Problem) -> list[Tensor]:
    """The inputs without the dead ones."""
    if isinstance(problem.model, Table):
        return [torch.searchsorted(torch.tensor(TABLE_KEEP["table.weight", 0]), x) for x in problem.inputs]
    return [x[:, DENSE_KEEP["first.weight", 1]] for x in problem.inputs]


def shrink(model: nn.Module, optimizer: Optimizer, problem: Problem) -> Problem:
    """Remove what is dead; the problem of the smaller model."""
    with transaction(model, optimizer) as t:
        for (name, dim), keep in keeps(problem).items():
            t.resize(name, dim=dim, keep=keep)
    return replace(problem, model=model, inputs=cut_inputs(problem))


def cut(name: str, tensor: Tensor, problem: Problem) -> Tensor:
    """The oracle: plain indexing of one tensor of the unshrunk model."""
    for (other, dim), keep in keeps(problem).items():
        tensor = tensor.index_select(dim, torch.tensor(keep)) if other == name else tensor
    return tensor


def relative_error(found: nn.Module, expected: nn.Module, problem: Problem) -> float:
    """Largest difference between the shrunk and the unshrunk model, relative to the largest weight of each tensor."""
    errors = []
    for (name, value), (_, other) in zip(found.named_parameters(), expected.named_parameters(), strict=True):
        target = cut(name, other.detach(), problem)
        errors.append(((value.detach() - target).abs().max() / target.abs().max()).item())
    return max(errors)


def trained(case: OptimizerCase, dtype: torch.dtype, steps: int = 4, **overrides: object) -> tuple[Problem, Optimizer]:
    """A model in mid-training, of which a part is dead."""
    problem = case.problem(dtype)
    optimizer = case.make(problem.model.parameters(), **overrides)
    case.train(problem.model, optimizer, problem, range(steps))
    optimizer.zero_grad()
    kill(problem, optimizer)
    return problem, optimizer


@by_exact_case
@by_dtype
def test_removing_dead_positions_leaves_the_trajectory(case: OptimizerCase, dtype: torch.dtype) -> None:
    problem, optimizer = trained(case, dtype)
    twin, small_optimizer = trained(case, dtype)
    small = shrink(twin.model, small_optimizer, twin)
    # each step of LBFGS is several evaluations, and its curvature pairs amplify rounding: float32 would reach 6e-6
    steps = range(4, 5 if case.needs_closure and dtype == torch.float32 else 10)
    case.train(problem.model, optimizer, problem, steps)
    case.train(small.model, small_optimizer, small, steps)
    for (name, dim), keep in keeps(problem).items():
        tensor = problem.model.state_dict()[name]
        assert not tensor.index_select(dim, removed(keep, tensor.shape[dim])).any(), "the oracle is not dead"
    assert relative_error(small.model, problem.model, problem) <= TOLERANCE[dtype]


@by_case
def test_objects_groups_and_options_stay_what_they_are(case: OptimizerCase) -> None:
    problem = case.problem()
    optimizer = case.make(problem.model.parameters())
    case.train(problem.model, optimizer, problem, range(2))
    parameters = list(problem.model.parameters())
    groups = [[id(p) for p in group["params"]] for group in optimizer.param_groups]
    options = copy.deepcopy([{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups])
    states = {id(p): id(state) for p, state in optimizer.state.items()}
    shrink(problem.model, optimizer, problem)
    assert all(p is q for p, q in zip(problem.model.parameters(), parameters, strict=True))
    assert [[id(p) for p in group["params"]] for group in optimizer.param_groups] == groups
    assert [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups] == options
    assert {id(p): id(state) for p, state in optimizer.state.items()} == states
    assert all(p.grad is not None and p.grad.shape == p.shape for p in parameters)


@by_case
def test_state_is_indexed_by_keep(case: OptimizerCase) -> None:
    problem = case.problem(torch.float64)
    optimizer = case.make(problem.model.parameters())
    case.train(problem.model, optimizer, problem, range(3))
    names = [name for name, _ in problem.model.named_parameters()]
    before = copy.deepcopy(optimizer.state_dict()["state"])
    values = {
        name: [cut(name, value.clone(), problem) for value in per_parameter(optimizer, parameter)]
        for name, parameter in problem.model.named_parameters()
    }
    shrink(problem.model, optimizer, problem)
    for name, parameter in problem.model.named_parameters():
        found = list(per_parameter(optimizer, parameter))
        assert len(found) == len(values[name])
        assert all(map(torch.equal, found, values[name]))
    after = optimizer.state_dict()["state"]
    assert before.keys() == after.keys()
    for index, entries in before.items():
        for key, value in entries.items():
            if not isinstance(value, Tensor | list) or (isinstance(value, Tensor) and value.numel() == 1):
                assert after[index][key] == value, f"{key} of {names[index]} is one number and stays"


@by_case
def test_checkpoint_of_the_small_model_continues_equally(case: OptimizerCase) -> None:
    problem, optimizer = trained(case, torch.float32)
    small = shrink(problem.model, optimizer, problem)
    fresh = Table(7, 4) if case.needs_sparse else Dense(4, 5, bias=not case.needs_matrices)
    fresh.load_state_dict(copy.deepcopy(small.model.state_dict()))
    fresh_optimizer = case.make(fresh.parameters())
    fresh_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    case.train(small.model, optimizer, small, range(4, 8))
    case.train(fresh, fresh_optimizer, small, range(4, 8))
    for found, expected in zip(small.model.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(found, expected)


# What two optimizers make of the shape by definition ------------------------------------------------------------------


def muon_factor(case: OptimizerCase, shape: torch.Size) -> float:
    """What Muon multiplies the learning rate of a matrix by."""
    rows, columns = shape
    matches_rms = case.arguments.get("adjust_lr_fn") == "match_rms_adamw"
    return 0.2 * math.sqrt(max(rows, columns)) if matches_rms else math.sqrt(max(1, rows / columns))


@pytest.mark.parametrize("case", [c for c in CASES if c.kind.__name__ == "Muon"], ids=lambda case: case.name)
@by_dtype
def test_muon_continues_exactly_when_its_shape_dependent_rate_is_undone(
    case: OptimizerCase, dtype: torch.dtype
) -> None:
    # a learning rate in a float32 tensor would be scaled in float32
    exact: dict[str, Any] = {"lr": torch.tensor(0.02, dtype=torch.float64)} if case.option == "tensor_lr" else {}
    problem, optimizer = trained(case, dtype, **exact)
    twin = trained(case, dtype, **exact)[0]
    small_optimizer = case.make([{"params": [p]} for p in twin.model.parameters()], **exact)
    for p, q in zip(twin.model.parameters(), problem.model.parameters(), strict=True):
        small_optimizer.state[p] = copy.deepcopy(optimizer.state[q])
    small = shrink(twin.model, small_optimizer, twin)
    for group, parameter in zip(small_optimizer.param_groups, problem.model.parameters(), strict=True):
        ratio = muon_factor(case, parameter.shape) / muon_factor(case, group["params"][0].shape)
        group["lr"], group["weight_decay"] = group["lr"] * ratio, group["weight_decay"] / ratio
    case.train(problem.model, optimizer, problem, range(4, 10))
    case.train(small.model, small_optimizer, small, range(4, 10))
    assert relative_error(small.model, problem.model, problem) <= TOLERANCE[dtype]


ADAFACTORS = [case for case in CASES if case.kind.__name__ == "Adafactor"]
FREE_OF_SIZE: dict[str, dict[str, object]] = {
    "torch": {"d": 1e9, "eps": (None, 10.0), "lr": 0.001},
    "transformers": {
        "clip_threshold": 1e9,
        "scale_parameter": False,
        "relative_step": False,
        "warmup_init": False,
        "lr": 0.01,
    },
}
"""Options under which Adafactor neither clips by the number of weights nor scales by their mean square."""


def library(case: OptimizerCase) -> str:
    """Which of the two Adafactors it is."""
    return case.kind.__module__.partition(".")[0]


@pytest.mark.parametrize("case", ADAFACTORS, ids=lambda case: case.name)
@by_dtype
def test_adafactor_continues_exactly_where_it_does_not_look_at_the_size(
    case: OptimizerCase, dtype: torch.dtype
) -> None:
    problem, optimizer = trained(case, dtype, **FREE_OF_SIZE[library(case)])
    twin, small_optimizer = trained(case, dtype, **FREE_OF_SIZE[library(case)])
    small = shrink(twin.model, small_optimizer, twin)
    case.train(problem.model, optimizer, problem, range(4, 10))
    case.train(small.model, small_optimizer, small, range(4, 10))
    assert relative_error(small.model, problem.model, problem) <= TOLERANCE[dtype]


@pytest.mark.parametrize(
    ("name", "clips"),
    [
        ("Adafactor-loop", False),
        ("Adafactor-foreach", False),
        ("transformers-Adafactor", False),
        ("transformers-Adafactor", True),  # torch's refuses a threshold that clips every step
    ],
)
def test_adafactor_takes_the_same_step_but_for_the_size_in_its_scale(name: str, clips: bool) -> None:
    case = BY_NAME[name]
    threshold = {"torch": "d", "transformers": "clip_threshold"}[library(case)]
    problem, optimizer = trained(case, torch.float64, **{threshold: 1e-3 if clips else 1e9})
    twin, small_optimizer = trained(case, torch.float64, **{threshold: 1e-3 if clips else 1e9})
    small = shrink(twin.model, small_optimizer, twin)
    before = {name: p.detach().clone() for name, p in problem.model.named_parameters()}
    case.train(problem.model, optimizer, problem, [4])
    case.train(small.model, small_optimizer, small, [4])
    for (name, whole), part in zip(problem.model.named_parameters(), small.model.parameters(), strict=True):
        dilution = math.sqrt(whole.numel() / part.numel())  # zeros lower a root mean square by this
        rms = before[name].square().mean().sqrt().item()
        scale = max(1e-3, rms * dilution) / max(1e-3, rms) / (dilution if clips else 1.0)
        expected = scale * cut(name, whole.detach() - before[name], problem)
        torch.testing.assert_close(part.detach() - cut(name, before[name], problem), expected, rtol=1e-9, atol=1e-15)


# Growing --------------------------------------------------------------------------------------------------------------

DENSE_SIZES = {("first.weight", 0): 16, ("first.weight", 1): 12, ("first.bias", 0): 16, ("last.weight", 1): 16}
TABLE_SIZES = {("table.weight", 0): 20, ("table.weight", 1): 12, ("readout", 0): 12}


def sizes(problem: Problem) -> dict[tuple[str, int], int]:
    """Twice what each dim that can grow has, so that Adafactor's means are rescaled without rounding."""
    table = TABLE_SIZES if isinstance(problem.model, Table) else DENSE_SIZES
    return {key: size for key, size in table.items() if key[0] in problem.model.state_dict()}


def grow(problem: Problem, optimizer: Optimizer, init: Any = None) -> None:
    """Grow every dim that can."""
    with transaction(problem.model, optimizer) as t:
        for (name, dim), size in sizes(problem).items():
            t.grow(name, dim=dim, size=size, init=init)


def snapshot(problem: Problem, optimizer: Optimizer) -> dict[str, Any]:
    """Everything that training depends on, copied."""
    gradients = {n: p.grad.clone() for n, p in problem.model.named_parameters() if p.grad is not None}
    return copy.deepcopy({"m": problem.model.state_dict(), "o": optimizer.state_dict()["state"], "g": gradients})


def assert_identical(found: Any, expected: Any) -> None:
    """Compare nested dicts and lists of tensors and numbers, bit by bit."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_identical(found[key], value)
    elif isinstance(expected, list):
        for one, other in zip(found, expected, strict=True):
            assert_identical(one, other)
    elif isinstance(expected, Tensor) and expected.is_sparse:
        assert_identical(found.to_dense(), expected.to_dense())
    elif isinstance(expected, Tensor):
        assert found.dtype == expected.dtype
        assert found.stride() == expected.stride()
        assert torch.equal(found, expected)
    else:
        assert found == expected


@by_case
def test_growing_and_shrinking_back_returns_the_start(case: OptimizerCase) -> None:
    problem = case.problem()
    optimizer = case.make(problem.model.parameters())
    case.train(problem.model, optimizer, problem, range(3))
    start = snapshot(problem, optimizer)
    grow(problem, optimizer, init=nn.init.ones_)
    with transaction(problem.model, optimizer) as t:
        for name, dim in sizes(problem):
            t.resize(name, dim=dim, keep=range(start["m"][name].shape[dim]))
    assert_identical(snapshot(problem, optimizer), start)


FRESH = {"sum": 0.1, "step_size": 0.01, "ax": 1.0}
"""Entries that do not begin at 0: Adagrad's initial value, Rprop's learning rate, ASGD's average of the weights (1)."""


@by_case
def test_grown_positions_have_the_state_of_positions_without_history(case: OptimizerCase) -> None:
    overrides: dict[str, Any] = {"initial_accumulator_value": 0.1} if case.kind.__name__ == "Adagrad" else {}
    problem = case.problem()
    optimizer = case.make(problem.model.parameters(), **overrides)
    case.train(problem.model, optimizer, problem, range(3))
    grow(problem, optimizer, init=nn.init.ones_)
    for name, parameter in problem.model.named_parameters():
        grown = [(dim, size // 2) for (other, dim), size in sizes(problem).items() if other == name]
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                for dim, old in grown:
                    new = value.narrow(dim, old, old)
                    assert torch.equal(new, torch.full_like(new, FRESH.get(key, 0.0))), key


@by_case
def test_training_goes_on_after_growing(case: OptimizerCase) -> None:
    problem = case.problem()
    optimizer = case.make(problem.model.parameters())
    case.train(problem.model, optimizer, problem, range(3))
    grow(problem, optimizer)
    inputs = problem.inputs if case.needs_sparse else [torch.cat([x, x], 1) for x in problem.inputs]
    larger = replace(problem, inputs=inputs)
    before = [p.detach().clone() for p in problem.model.parameters()]
    case.train(problem.model, optimizer, larger, range(3, 6))
    for parameter, old in zip(problem.model.parameters(), before, strict=True):
        assert parameter.isfinite().all()
        assert not torch.equal(parameter, old)
