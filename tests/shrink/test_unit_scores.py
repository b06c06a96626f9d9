"""What a unit is worth, against plain loops over the entries that really go with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from secateur import InvalidInputError
from secateur.graph import Coupling, analyze
from secateur.shrink import UnitScore, batch_norm_scale, fpgm, l1, l2, plan_shrink, random, taylor
from tests.shrink.models import Attention, SmallCNN, is_unchanged, randomized, state_of

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "cnn": (SmallCNN, (2, 3, 6, 6)),
    "attention": (lambda: Attention(12, 3, lambda a: a.head_dim**-0.5), (2, 5, 12)),
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 2)), (3, 4)),
}


def made(name: str) -> tuple[nn.Module, Coupling]:
    make, shape = MODELS[name]
    model, x = randomized(make()), torch.randn(shape, dtype=torch.float64)
    model(x).square().sum().backward()
    return model, analyze(model, x)


def entries(model: nn.Module, coupling: Coupling, unit: int) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Entries of every parameter along every dim on which the unit takes positions, and their gradients."""
    parameters = dict(model.named_parameters())
    for (name, dim), kept in coupling.positions([unit]).items():
        if name in parameters:
            gone = torch.from_numpy(np.nonzero(~kept)[0])
            p = parameters[name]
            yield name, p.detach().index_select(dim, gone), p.grad.index_select(dim, gone)


LOOPS: dict[str, tuple[UnitScore, Callable[[list[tuple[str, Tensor, Tensor]]], float]]] = {
    "l1": (l1, lambda found: sum(abs(w) for _, t, _ in found for w in t.flatten().tolist())),
    "l2": (l2, lambda found: sum(w * w for _, t, _ in found for w in t.flatten().tolist()) ** 0.5),
    "taylor": (
        taylor,
        lambda found: abs(
            sum(
                w * g
                for _, t, grad in found
                for w, g in zip(t.flatten().tolist(), grad.flatten().tolist(), strict=True)
            )
        ),
    ),
}


@pytest.mark.parametrize("model_name", MODELS)
@pytest.mark.parametrize("score_name", LOOPS)
def test_scores_are_those_of_a_loop_over_the_entries(score_name: str, model_name: str) -> None:
    model, coupling = made(model_name)
    before = state_of(model)
    score, loop = LOOPS[score_name]
    found = score(model, coupling)
    assert is_unchanged(model, before)
    assert found.shape == (len(coupling.solution.parents),)
    for group in coupling.groups:
        for unit in group.units:
            assert found[unit] == pytest.approx(loop(list(entries(model, coupling, unit))), rel=1e-10)


@pytest.mark.parametrize("model_name", MODELS)
def test_fpgm_is_the_sum_of_distances_to_all_others_of_the_group(model_name: str) -> None:
    model, coupling = made(model_name)
    found = fpgm(model, coupling)
    for group in coupling.groups:
        vectors = [torch.cat([t.flatten() for _, t, _ in entries(model, coupling, u)]) for u in group.units]
        for unit, mine in zip(group.units, vectors, strict=True):
            assert found[unit] == pytest.approx(sum(float((mine - other).norm()) for other in vectors), rel=1e-10)


def test_batch_norm_scale_is_that_of_the_norms_on_the_way_and_other_units_stay() -> None:
    model, coupling = made("cnn")
    found = batch_norm_scale(model, coupling)
    first, second = coupling.groups
    assert found[list(first.units)] == pytest.approx(model.norm.weight.detach().abs().numpy())
    assert np.isinf(found[list(second.units)]).all()
    plan = plan_shrink(model, torch.ones(1, 3, 6, 6).double(), sparsity=0.2, score=batch_norm_scale)
    assert [g.before - g.after for g in plan.groups] == [2, 0]  # a fifth of 8 units, and none of those that must stay
    gone = sorted(set(range(8)) - set(plan.keep["norm.weight"][0].tolist()))
    assert gone == sorted(model.norm.weight.detach().abs().argsort()[:2].tolist())


def test_scores_that_lack_what_they_need_are_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 2))
    coupling = analyze(model, torch.ones(1, 4))
    before = state_of(model)
    with pytest.raises(InvalidInputError, match="needs gradients"):
        taylor(model, coupling)
    with pytest.raises(InvalidInputError, match="no BatchNorm"):
        batch_norm_scale(model, coupling)
    assert is_unchanged(model, before)


def test_taylor_counts_parameters_without_a_gradient_as_zero() -> None:
    model, coupling = made("mlp")
    for name, p in model.named_parameters():
        p.grad = None if name != "0.weight" else p.grad
    found = taylor(model, coupling)
    expected = (model[0].weight * model[0].weight.grad).sum(1).abs().detach().numpy()
    assert found[list(coupling.groups[0].units)] == pytest.approx(expected)
    assert not found[list(coupling.groups[1].units)].any()


def test_random_is_seeded_and_leaves_the_global_state_alone() -> None:
    model, coupling = made("mlp")
    before = torch.get_rng_state()
    assert np.array_equal(random(model, coupling), random(model, coupling))
    assert not np.array_equal(random(model, coupling), random(model, coupling, seed=1))
    assert torch.equal(torch.get_rng_state(), before)
