"""Steps over kept weights: every level against torch's own fused step on the dense tensor, entry by entry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from secateur._native import stepping
from secateur._native.stepping import Batch, Job
from secateur.masks.packing import pack
from tests.native.products import MACHINE_LEVELS, on

LEVEL = pytest.mark.parametrize("level", MACHINE_LEVELS)
SIZES = [0, 1, 15, 17, 64, 1000, 1025, 4112]
DENSITIES = [0.0, 0.1, 0.5, 1.0]
LANES = 16

ADAMW: dict[str, dict[str, Any]] = {
    "defaults": {},
    "no decay": {"weight_decay": 0.0},
    "amsgrad": {"amsgrad": True, "weight_decay": 0.1},
    "maximize": {"maximize": True},
    "short memory": {"betas": (0.3, 0.4)},
    "no memory": {"betas": (0.0, 0.0)},
    "large eps": {"eps": 0.1},
}
SGD: dict[str, dict[str, Any]] = {
    "plain": {},
    "decay": {"weight_decay": 0.1},
    "momentum": {"momentum": 0.9},
    "dampening": {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1},
    "nesterov": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    "maximize": {"momentum": 0.9, "maximize": True},
}


def random_mask(size: int, density: float, generator: torch.Generator) -> Tensor:
    return torch.rand(size, generator=generator) < density


@contextmanager
def fence(*tensors: Tensor) -> Iterator[list[Tensor]]:
    """Copies of tensors between numbers that must stay as they are."""
    whole = [torch.full((t.numel() + 128,), 12345.0, dtype=t.dtype) for t in tensors]
    inside = [w[64 : 64 + t.numel()].copy_(t) for w, t in zip(whole, tensors, strict=True)]
    yield inside
    for w, t in zip(whole, tensors, strict=True):
        assert (w[:64] == 12345.0).all()
        assert (w[64 + t.numel() :] == 12345.0).all()


class Reference:
    """torch's optimizer on the dense tensor, whose masked entries are set to zero by hand."""

    def __init__(self, kind: type[torch.optim.Optimizer], weights: Tensor, mask: Tensor, **options: Any) -> None:
        self.parameter, self.mask = nn.Parameter(weights.clone()), mask
        self.optimizer = kind([self.parameter], fused=True, **options)  # type: ignore[call-arg]

    def step(self, gradients: Tensor) -> None:
        self.parameter.grad = torch.where(self.mask, gradients, torch.zeros_like(gradients))
        self.optimizer.step()
        with torch.no_grad():
            self.parameter.copy_(torch.where(self.mask, self.parameter, torch.zeros_like(self.parameter)))

    def state(self, name: str) -> Tensor:
        return self.optimizer.state[self.parameter][name][self.mask]


def assert_equal_but_for_rounding(found: Tensor, expected: Tensor) -> None:
    """Two or three roundings at each of the steps, relative to the largest number: sums may cancel."""
    largest = float(expected.abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(found, expected, rtol=0.0, atol=16 * 2.0**-24 * largest)


def run(kind: str, size: int, density: float, options: dict[str, Any], seed: int, steps: int = 6) -> list[Any]:
    """Step a tensor both ways: pairs of what was found and expected, each whole or of kept entries, and the mask."""
    generator = torch.Generator().manual_seed(seed)
    mask = random_mask(size, density, generator)
    weights = torch.randn(size, generator=generator) * mask
    names = {"adamw": ["exp_avg", "exp_avg_sq"], "sgd": ["momentum_buffer"] if "momentum" in options else []}[kind]
    names += ["max_exp_avg_sq"] if options.get("amsgrad") else []
    reference = Reference({"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[kind], weights, mask, lr=0.01, **options)
    kept, bits = int(mask.sum()), None if density == 1.0 else pack(mask)
    count = torch.zeros(())
    with fence(weights, *[torch.zeros(kept) for _ in names]) as (mine, *states):
        for step in range(1, steps + 1):
            gradients = torch.randn(size, generator=generator)
            reference.step(gradients)
            gradients[~mask] = torch.nan
            job = Job(mine, gradients, bits, tuple(states), kept, count if kind == "adamw" else None, step == 1)
            step_once(kind, job, {"lr": 0.01, **options})
        assert count == (steps if kind == "adamw" else 0)
    pairs = [(mine[mask], reference.parameter.detach()[mask])]
    pairs += [(state, reference.state(name)) for state, name in zip(states, names, strict=True)]
    return [pairs, mine[~mask], mask]


def step_once(kind: str, job: Job, options: dict[str, Any]) -> None:
    if kind == "adamw":
        defaults = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01, "maximize": False}
        given_ = {**defaults, **{k: v for k, v in options.items() if k != "amsgrad"}}
        stepping.step_adamw(Batch([job]), **given_)
    else:
        plain = {"momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False, "maximize": False}
        stepping.step_sgd(Batch([job]), **{**plain, **options})


REFUSED = r"kept weights|another number"

CASES = [("adamw", name, options) for name, options in ADAMW.items()]
CASES += [("sgd", name, options) for name, options in SGD.items()]
OPTIONS = pytest.mark.parametrize(("kind", "options"), [pytest.param(k, o, id=f"{k}-{n}") for k, n, o in CASES])


@LEVEL
@OPTIONS
def test_kept_weights_and_state_are_those_of_torch_and_masked_ones_are_zero(level, kind, options):
    for seed, (size, density) in enumerate((s, d) for s in SIZES for d in DENSITIES):
        with on(level):
            pairs, masked, mask = run(kind, size, density, options, seed)
        assert (masked == 0).all()
        assert not masked.signbit().any()
        whole = int(mask[: size - size % LANES].sum())  # torch steps the last lanes of a tensor with other instructions
        for found, expected in pairs:
            if level != "portable":  # which has no fused product and sum; torch has
                assert torch.equal(found[:whole], expected[:whole])
            assert_equal_but_for_rounding(found, expected)


@given(
    kind=st.sampled_from(["adamw", "sgd"]),
    size=st.integers(0, 3000),
    density=st.floats(0, 1),
    seed=st.integers(0, 2**31),
)
@LEVEL
def test_any_size_and_mask_is_stepped_within_its_memory(level, kind, size, density, seed):
    options = {"amsgrad": True} if kind == "adamw" else {"momentum": 0.9}
    with on(level):
        pairs, masked, _ = run(kind, size, density, options, seed, steps=2)
    assert (masked == 0).all()
    for found, expected in pairs:
        assert_equal_but_for_rounding(found, expected)


@LEVEL
@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_threads_change_nothing(level, kind):
    found = []
    for threads in (1, 2, 3, 7):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            with on(level):
                pairs, masked, _ = run(kind, 700_001, 0.1, {"momentum": 0.9} if kind == "sgd" else {}, 0, steps=2)
        finally:
            torch.set_num_threads(before)
        found.append([masked, *(one for one, _ in pairs)])
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


@LEVEL
def test_several_tensors_are_stepped_in_one_call_each_by_its_own_count_of_steps(level):
    generator = torch.Generator().manual_seed(0)
    masks = [random_mask(size, 0.3, generator) for size in (70, 0, 2000)]
    weights = [torch.randn(m.shape, generator=generator) * m for m in masks]
    gradients = [torch.randn(m.shape, generator=generator) for m in masks]

    def jobs() -> list[Job]:
        kept = [int(m.sum()) for m in masks]
        return [
            Job(w.clone(), g, pack(m), (torch.ones(n), torch.ones(n)), n, torch.tensor(float(i)))
            for i, (w, g, m, n) in enumerate(zip(weights, gradients, masks, kept, strict=True))
        ]

    together, alone = jobs(), jobs()
    numbers: dict[str, Any] = {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1, "maximize": False}
    with on(level):
        stepping.step_adamw(Batch(together), **numbers)
        for job in alone:
            stepping.step_adamw(Batch([job]), **numbers)
    for one, other in zip(together, alone, strict=True):
        assert all(map(torch.equal, (one.weights, *one.states), (other.weights, *other.states)))


@LEVEL
def test_state_of_another_length_is_refused_before_anything_is_changed(level):
    mask = torch.arange(200) % 3 == 0
    good = Job(torch.ones(200), torch.ones(200), pack(mask), (torch.ones(67),), 67)
    for wrong in (good._replace(states=(torch.ones(66),)), good._replace(states=(torch.ones(66),), num_kept=66)):
        with on(level), pytest.raises(ValueError, match=REFUSED):
            step_once("sgd", wrong, {"lr": 0.1, "momentum": 0.9})
        with on(level), pytest.raises(ValueError, match=REFUSED):
            stepping.step_sgd(
                Batch([good, wrong]), lr=1.0, momentum=0.9, dampening=0, weight_decay=0, nesterov=False, maximize=False
            )
        assert (good.weights == 1).all()
        assert (wrong.weights == 1).all()


STATES = {
    "bfloat16": torch.ones(67).bfloat16(),
    "float64": torch.ones(67).double(),
    "meta": torch.ones(67, device="meta"),
    "gaps": torch.ones(134)[::2],
}


@pytest.mark.parametrize("state", STATES.values(), ids=STATES.keys())
def test_state_of_another_form_is_not_for_the_kernels(state):
    weights, bits = torch.ones(200), pack(torch.arange(200) % 3 == 0)
    assert stepping.can_step(weights, weights, bits, [torch.ones(67)])
    assert not stepping.can_step(weights, weights, bits, [torch.ones(67), state])


@LEVEL
def test_autograd_sees_that_weights_and_state_have_changed(level):
    job = Job(torch.ones(70), torch.ones(70), pack(torch.ones(70) > 0), (torch.zeros(70),), 70)
    before = [t._version for t in (job.weights, *job.states)]
    with on(level):
        step_once("sgd", job, {"lr": 0.1, "momentum": 0.9})
    assert [t._version for t in (job.weights, *job.states)] == [version + 1 for version in before]


@given(size=st.integers(0, 500), old=st.floats(0, 1), new=st.floats(0, 1), seed=st.integers(0, 2**31))
@LEVEL
def test_state_moves_to_the_weights_of_another_mask(level, size, old, new, seed):
    generator = torch.Generator().manual_seed(seed)
    before, after = random_mask(size, old, generator), random_mask(size, new, generator)
    dense = torch.randn(size, generator=generator) * before
    with on(level):
        moved = stepping.move_state(dense[before].contiguous(), pack(before), pack(after), int(after.sum()))
    assert torch.equal(moved, dense[after])
