from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from secateur.masks.bits import Bits
from secateur.masks.mask import Mask
from secateur.masks.state import clear_state_, fill_neutral_, freshen_state_, neutral_period, state_evidence
from tests.contract.optimizer_table import BY_NAME
from tests.masks.oracles import half

pytestmark = pytest.mark.usefixtures("by")


def trained(kind: str, shape: tuple[int, ...] = (4, 5), dtype: torch.dtype = torch.float32) -> tuple[Optimizer, Mask]:
    """An optimizer with warm state, and a mask that has not been applied to it."""
    case = BY_NAME[kind]
    parameter = nn.Parameter(torch.randn(shape).to(dtype))
    optimizer = case.make([parameter])
    for _ in range(2):
        case.step(optimizer, lambda: (parameter - 1).abs().pow(2).sum())
    return optimizer, Mask(parameter, Bits.of(half(shape), parameter))


def test_momenta_are_cleared_at_masked_places_only() -> None:
    optimizer, mask = trained("Adam-amsgrad-loop")
    state = optimizer.state[mask.parameter]
    before = {name: value.clone() for name, value in state.items()}
    clear_state_(optimizer, mask)
    kept = half((4, 5))
    for name in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"):
        assert torch.equal(state[name], before[name] * kept)
    assert torch.equal(state["step"], before["step"])


def test_entries_with_a_neutral_value_can_be_left() -> None:
    optimizer, mask = trained("Adam-loop")
    state = optimizer.state[mask.parameter]
    before = state["exp_avg_sq"].clone()
    clear_state_(optimizer, mask, neutral=False)
    assert torch.equal(state["exp_avg_sq"], before)
    assert bool((state["exp_avg"][~half((4, 5))] == 0).all())


def test_step_sizes_of_rprop_are_left() -> None:
    optimizer, mask = trained("Rprop-loop")
    before = optimizer.state[mask.parameter]["step_size"].clone()
    clear_state_(optimizer, mask)
    fill_neutral_(optimizer, mask)
    assert torch.equal(optimizer.state[mask.parameter]["step_size"], before)


def test_optimizer_without_state_is_left_without() -> None:
    parameter = nn.Parameter(torch.randn(4, 5))
    optimizer = torch.optim.Adam([parameter])
    mask = Mask(parameter, Bits.of(half((4, 5)), parameter))
    clear_state_(optimizer, mask)
    assert not fill_neutral_(optimizer, mask)
    freshen_state_(optimizer, mask, half((4, 5)))
    assert len(optimizer.state) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_second_moments_are_neutral_at_masked_places_only(dtype: torch.dtype) -> None:
    optimizer, mask = trained("Adam-loop", dtype=dtype)
    state, kept = optimizer.state[mask.parameter], half((4, 5))
    before = state["exp_avg_sq"].clone()
    assert fill_neutral_(optimizer, mask)
    assert torch.equal(state["exp_avg_sq"][kept], before[kept])
    number = complex(1, 1) if dtype.is_complex else 1.0
    assert bool((state["exp_avg_sq"][~kept] == number).all())


@pytest.mark.parametrize(
    ("kind", "entry", "value"),
    [
        ("Adagrad-initial_accumulator_value-loop", "sum", 0.1),
        ("Adagrad-loop", "sum", 0.0),
        ("Rprop-loop", "step_size", 0.01),
        ("ASGD-loop", "ax", 0.0),
        ("SGD-momentum-loop", "momentum_buffer", 0.0),
    ],
)
def test_regrown_weights_have_the_state_of_weights_without_history(kind: str, entry: str, value: float) -> None:
    optimizer, mask = trained(kind)
    state, grown = optimizer.state[mask.parameter], ~half((4, 5))
    before = state[entry].clone()
    freshen_state_(optimizer, mask, grown)
    torch.testing.assert_close(state[entry][grown], torch.full((int(grown.sum()),), value), rtol=0, atol=0)
    assert torch.equal(state[entry][~grown], before[~grown])


def test_regrown_complex_weights_have_two_initial_values() -> None:
    optimizer, mask = trained("Adagrad-initial_accumulator_value-loop", dtype=torch.complex64)
    grown = ~half((4, 5))
    freshen_state_(optimizer, mask, grown)
    assert bool((optimizer.state[mask.parameter]["sum"][grown] == torch.tensor(complex(0.1, 0.1))).all())


def test_factors_of_the_parameters_shape_are_no_entries_of_single_weights() -> None:
    optimizer, mask = trained("Adafactor-loop", shape=(4, 1))
    state = optimizer.state[mask.parameter]
    assert state["row_var"].shape == (4, 1)
    before = {name: value.clone() for name, value in state.items()}
    clear_state_(optimizer, mask)
    fill_neutral_(optimizer, mask)
    freshen_state_(optimizer, mask, half((4, 1)))
    assert all(torch.equal(state[name], before[name]) for name in before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_history_of_lbfgs_is_dropped_if_it_has_anything_at_masked_places(dtype: torch.dtype) -> None:
    optimizer, mask = trained("LBFGS", dtype=dtype)
    history = optimizer.state[mask.parameter]
    assert "old_dirs" in history
    clear_state_(optimizer, mask)
    assert len(history) == 0


def test_history_of_lbfgs_is_kept_if_it_has_nothing_at_masked_places() -> None:
    case = BY_NAME["LBFGS"]
    kept = half((4, 5))
    parameter, bias = nn.Parameter(torch.randn(4, 5) * kept), nn.Parameter(torch.randn(3, dtype=torch.complex64))
    optimizer = case.make([bias, parameter])
    mask = Mask(parameter, Bits.of(kept, parameter))
    for _ in range(2):
        case.step(optimizer, lambda: (parameter - 1).pow(2).sum() + bias.abs().pow(2).sum())
    before = optimizer.state[bias]["d"].clone()
    clear_state_(optimizer, mask)
    assert torch.equal(optimizer.state[bias]["d"], before)


@pytest.mark.parametrize(
    ("group", "steps"),
    [
        ({"betas": (0.9, 0.999)}, 6904),
        ({"betas": (0.9, 0.5)}, 9),
        ({"betas": (0.9, 0.0)}, 1),
        ({"alpha": 0.99}, 687),
        ({"rho": 0.9}, 65),
    ],
)
def test_neutral_values_are_due_when_a_thousandth_is_left(group: dict[str, object], steps: int) -> None:
    assert neutral_period(group) == steps


def test_neutral_values_that_do_not_fade_are_never_due() -> None:
    assert neutral_period({"lr": 0.1}) > 10**12
    assert neutral_period({"rho": 1.0}) > 10**12


def test_evidence_changes_with_the_state() -> None:
    optimizer, mask = trained("Adam-loop")
    state = optimizer.state[mask.parameter]
    seen = [state_evidence(optimizer, mask)]
    assert state_evidence(optimizer, mask) == seen[0]
    state["exp_avg"].add_(1.0)
    seen.append(state_evidence(optimizer, mask))
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    seen.append(state_evidence(optimizer, mask))
    assert len(set(seen)) == 3


def test_evidence_of_lbfgs_is_that_of_its_flat_history() -> None:
    case = BY_NAME["LBFGS"]
    first, second = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(4, 5))
    optimizer = case.make([first, second])
    mask = Mask(second, Bits.of(half((4, 5)), second))
    case.step(optimizer, lambda: first.pow(2).sum() + second.pow(2).sum())
    seen = state_evidence(optimizer, mask)
    case.step(optimizer, lambda: first.pow(2).sum() + second.pow(2).sum())
    assert state_evidence(optimizer, mask) != seen
