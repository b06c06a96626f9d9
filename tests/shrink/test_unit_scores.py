"""What a unit is worth, against plain loops over the entries that really go with it, and what holds of every score."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from secateur import InvalidInputError
from secateur.graph import Coupling, Group, analyze
from secateur.shrink import (
    DATA_SCORES,
    UNIT_SCORES,
    UnitScore,
    activation_mean,
    batch_norm_scale,
    fisher,
    lamp,
    over_batches,
    plan_shrink,
    random,
    taylor,
)
from tests.shrink.models import Attention, SmallCNN, is_unchanged, randomized, state_of

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "cnn": (SmallCNN, (2, 3, 6, 6)),
    "attention": (lambda: Attention(12, 3, lambda a: a.head_dim**-0.5), (2, 5, 12)),
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 2)), (3, 4)),
}

Entries = list[tuple[str, Tensor, Tensor]]


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().sum()


def made(name: str) -> tuple[nn.Module, Coupling]:
    make, shape = MODELS[name]
    model, x = randomized(make()), torch.randn(shape, dtype=torch.float64)
    loss_fn(model, x).backward()
    return model, analyze(model, x)


def batches_for(name: str, number: int = 3) -> list[Tensor]:
    return [torch.randn(MODELS[name][1], dtype=torch.float64) for _ in range(number)]


def entries(model: nn.Module, coupling: Coupling, unit: int) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Entries of every parameter along every dim on which the unit takes positions, and their gradients."""
    parameters = dict(model.named_parameters())
    for (name, dim), kept in coupling.positions([unit]).items():
        if name in parameters:
            gone = torch.from_numpy(np.nonzero(~kept)[0])
            p = parameters[name]
            yield name, p.detach().index_select(dim, gone), p.grad.index_select(dim, gone)


def numbers(found: Entries) -> Iterator[tuple[float, float]]:
    """All entries, one by one, with their gradients."""
    for _, weights, gradients in found:
        yield from zip(weights.flatten().tolist(), gradients.flatten().tolist(), strict=True)


def each(worth: Callable[[Entries], float]) -> Callable[[nn.Module, Coupling, Group], list[float]]:
    """The oracle of a score that looks at one unit at a time."""
    return lambda model, coupling, group: [worth(list(entries(model, coupling, unit))) for unit in group.units]


def lamp_by_hand(model: nn.Module, coupling: Coupling, group: Group) -> list[float]:
    squares = [sum(w * w for w, _ in numbers(list(entries(model, coupling, unit)))) for unit in group.units]
    return [own / sum(other for other in squares if other >= own) for own in squares]


def fpgm_by_hand(model: nn.Module, coupling: Coupling, group: Group) -> list[float]:
    vectors = [torch.cat([t.flatten() for _, t, _ in entries(model, coupling, unit)]) for unit in group.units]
    return [sum(float((mine - other).norm()) for other in vectors) for mine in vectors]


def batch_norm_scale_by_hand(model: nn.Module, coupling: Coupling, group: Group) -> list[float]:
    scales = each(lambda found: sum(abs(w) for w, _ in numbers([e for e in found if e[0] == "norm.weight"])))
    return [scale or np.inf for scale in scales(model, coupling, group)]


ORACLES: dict[str, Callable[[nn.Module, Coupling, Group], list[float]]] = {
    "l1": each(lambda found: sum(abs(w) for w, _ in numbers(found))),
    "l2": each(lambda found: sum(w * w for w, _ in numbers(found)) ** 0.5),
    "lamp": lamp_by_hand,
    "taylor": each(lambda found: abs(sum(w * g for w, g in numbers(found)))),
    "fisher": each(lambda found: 0.5 * sum((w * g) ** 2 for w, g in numbers(found))),
    "batch_norm_scale": batch_norm_scale_by_hand,
    "fpgm": fpgm_by_hand,
    "random": lambda model, coupling, group: (
        np.random.default_rng(0).random(len(coupling.solution.parents))[list(group.units)].tolist()
    ),
}
"""What the units of one group are worth, written down a second time in plain loops."""


def models_for(score: str) -> list[str]:
    return ["cnn"] if score == "batch_norm_scale" else list(MODELS)


@pytest.mark.parametrize(("score", "model_name"), [(s, m) for s in UNIT_SCORES for m in models_for(s)])
def test_scores_are_those_of_a_loop_over_the_entries(score: str, model_name: str) -> None:
    model, coupling = made(model_name)
    before = state_of(model)
    found = UNIT_SCORES[score](model, coupling)
    assert is_unchanged(model, before)
    assert found.shape == (len(coupling.solution.parents),)
    for group in coupling.groups:
        assert found[list(group.units)] == pytest.approx(ORACLES[score](model, coupling, group), rel=1e-10)


# ---- what holds of every score


@pytest.mark.parametrize("score", UNIT_SCORES)
@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1))
def test_scaling_all_weights_leaves_the_order(score: str, seed: int) -> None:
    torch.manual_seed(seed)
    model, coupling = made(models_for(score)[0])
    before = UNIT_SCORES[score](model, coupling)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0)
    after = UNIT_SCORES[score](model, coupling)
    for group in coupling.groups:
        units = list(group.units)
        assert after[units].argsort(kind="stable").tolist() == before[units].argsort(kind="stable").tolist()


class Normed(nn.Module):
    """Two layers with a BatchNorm between them: what every score can look at."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.norm(self.a(x))))


def permuted(order: Tensor, model: Normed) -> Normed:
    """A copy whose hidden units stand in another order."""
    twin = randomized(Normed())
    state = {
        name: tensor[order] if name.startswith(("a.", "norm.")) and tensor.dim() else tensor
        for name, tensor in model.state_dict().items()
    }
    twin.load_state_dict({**state, "b.weight": model.b.weight[:, order]})
    return twin


ALL_SCORES: dict[str, Callable[[list[Tensor]], UnitScore]] = {
    **{name: lambda batches, score=score: score for name, score in UNIT_SCORES.items()},
    **{f"{name} on data": partial(make, loss_fn) for name, make in DATA_SCORES.items()},
}


@pytest.mark.parametrize("name", [name for name in ALL_SCORES if name != "random"])
@settings(max_examples=15)
@given(order=st.permutations(range(6)))
def test_units_in_another_order_have_the_same_scores_in_that_order(name: str, order: list[int]) -> None:
    batches = [torch.randn(5, 3, dtype=torch.float64) for _ in range(2)]
    model = randomized(Normed())
    found = []
    for twin in (model, permuted(torch.tensor(order), model)):
        loss_fn(twin, batches[0]).backward()
        coupling = analyze(twin, batches[0])
        (group,) = coupling.groups
        found.append(ALL_SCORES[name](batches)(twin, coupling)[list(group.units)])
    assert found[1] == pytest.approx(found[0][order], rel=1e-9)


@pytest.mark.parametrize("name", ALL_SCORES)
def test_scores_choose_what_a_plan_removes(name: str) -> None:
    model, batches = randomized(Normed()), [torch.randn(5, 3, dtype=torch.float64)]
    loss_fn(model, batches[0]).backward()
    score = ALL_SCORES[name](batches)
    coupling = analyze(model, batches[0])
    worst = score(model, coupling)[list(coupling.groups[0].units)].argsort()[:2]
    plan = plan_shrink(model, batches[0], sparsity=1 / 3, score=score)
    assert sorted(set(range(6)) - set(plan.keep["a.weight"][0].tolist())) == sorted(worst.tolist())


# ---- scores that run the model


def per_batch_by_hand(worth: str, model: nn.Module, coupling: Coupling, group: Group, batches: list[Tensor]) -> Any:
    found = []
    for batch in batches:
        model.zero_grad()
        loss_fn(model, batch).backward()
        found.append(ORACLES[worth](model, coupling, group))
    return np.mean(found, axis=0)


@pytest.mark.parametrize("model_name", MODELS)
@pytest.mark.parametrize("score", ["taylor", "fisher"])
def test_gradient_scores_over_batches_are_the_mean_of_those_of_each_batch(score: str, model_name: str) -> None:
    model, coupling = made(model_name)
    batches = batches_for(model_name)
    whole, beginning = (DATA_SCORES[score](loss_fn, batches, steps=steps)(model, coupling) for steps in (None, 2))
    for group in coupling.groups:
        units = list(group.units)
        assert whole[units] == pytest.approx(per_batch_by_hand(score, model, coupling, group, batches), rel=1e-9)
        assert beginning[units] == pytest.approx(
            per_batch_by_hand(score, model, coupling, group, batches[:2]), rel=1e-9
        )


def activations_read(model: nn.Module, batches: list[Tensor]) -> dict[str, Tensor]:
    """What the second and third layer of the MLP, and the convolutions and the head of the CNN, are given."""
    found: dict[str, list[Tensor]] = {}
    for x in batches:
        if isinstance(model, SmallCNN):
            stem = torch.relu(model.norm(model.stem(x)))
            inner = torch.relu(model.a(stem))
            pooled = nn.functional.adaptive_avg_pool2d(stem + model.b(inner), 2)
            seen = {"a": stem.transpose(0, 1), "b": inner.transpose(0, 1), "head": pooled.transpose(0, 1)}
        else:
            first = model[1](model[0](x))
            seen = {"2": first.T, "4": model[3](model[2](first)).T}
        for name, values in seen.items():
            found.setdefault(name, []).append(values.detach().flatten(1))
    return {name: torch.cat(values, dim=1) for name, values in found.items()}


def test_activation_scores_of_an_mlp_are_those_of_what_the_next_layer_reads() -> None:
    model, coupling = made("mlp")
    batches = batches_for("mlp")
    seen = activations_read(model, batches)
    mean, variance = (
        DATA_SCORES[name](loss_fn, batches)(model, coupling) for name in ("activation_mean", "activation_variance")
    )
    for group, values in zip(coupling.groups, (seen["2"], seen["4"]), strict=True):
        units = list(group.units)
        assert mean[units] == pytest.approx(values.abs().mean(1).numpy(), rel=1e-9)
        assert variance[units] == pytest.approx(values.var(1, correction=0).numpy(), rel=1e-9)


def test_activation_scores_of_a_cnn_are_means_over_layers_that_read_and_positions() -> None:
    model, coupling = made("cnn")
    batches = batches_for("cnn")
    seen = activations_read(model, batches)
    found = activation_mean(loss_fn, batches, steps=3)(model, coupling)
    stem, inner = coupling.groups
    # the head reads each channel at four places, each a position of its weight; the convolution `a` reads it once
    places = seen["head"].reshape(8, -1, 4).abs().mean(1)
    expected = (seen["a"].abs().mean(1) + places.sum(1)) / 5
    assert found[list(stem.units)] == pytest.approx(expected.numpy(), rel=1e-9)
    assert found[list(inner.units)] == pytest.approx(seen["b"].abs().mean(1).numpy(), rel=1e-9)


def test_activations_that_no_layer_reads_are_looked_at_where_they_are_made() -> None:
    class Dots(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k = nn.Linear(3, 4), nn.Linear(3, 4)
            self.into, self.out = nn.Parameter(torch.randn(3, 5)), nn.Parameter(torch.randn(5, 1))

        def forward(self, x: Tensor) -> Tensor:
            return self.q(x) @ self.k(x).T + x @ self.into @ self.out

    model, x = randomized(Dots()), torch.randn(6, 3, dtype=torch.float64)
    coupling = analyze(model, x)
    found = activation_mean(loss_fn, [x])(model, coupling)
    by_first_tensor = {group.name: found[list(group.units)] for group in coupling.groups}
    expected = (model.q(x).abs().mean(0) + model.k(x).abs().mean(0)).detach().numpy() / 2
    assert by_first_tensor["q.weight[0]"] == pytest.approx(expected, rel=1e-9)
    assert np.isinf(by_first_tensor["into[1]"]).all()


class Restless(nn.Module):
    """A model that changes whatever a run can change."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.drop, self.b = nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Dropout(), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.drop(torch.relu(self.norm(self.a(x)))))


def restless_loss(model: nn.Module, batch: Tensor) -> Tensor:
    loss = model(batch + torch.rand(1)).square().sum()
    model.norm.eval()
    return loss


@pytest.mark.parametrize("name", DATA_SCORES)
def test_scores_that_run_the_model_leave_no_trace(name: str) -> None:
    model = Restless()
    model.b.weight.requires_grad_(False)
    x = torch.randn(5, 3)
    model(x).square().sum().backward()
    steps_in_backward = []
    model.a.weight.register_post_accumulate_grad_hook(lambda p: steps_in_backward.append(p))
    coupling = analyze(model, x)
    before, modes = state_of(model), [module.training for module in model.modules()]
    gradients = {n: (id(p.grad), None if p.grad is None else p.grad.clone()) for n, p in model.named_parameters()}
    hooks = [len(module._forward_hooks) for module in model.modules()]
    random_state = torch.get_rng_state()
    DATA_SCORES[name](restless_loss, [x, x])(model, coupling)
    assert is_unchanged(model, before)
    assert [module.training for module in model.modules()] == modes
    assert [len(module._forward_hooks) for module in model.modules()] == hooks
    assert torch.equal(torch.get_rng_state(), random_state)
    assert not steps_in_backward
    for n, p in model.named_parameters():
        identity, values = gradients[n]
        assert id(p.grad) == identity
        assert values is None or torch.equal(p.grad, values)


@pytest.mark.parametrize("name", DATA_SCORES)
def test_scores_that_run_the_model_put_it_back_when_the_loss_raises(name: str) -> None:
    model, x = Restless(), torch.randn(5, 3)
    model(x).square().sum().backward()
    coupling, before = analyze(model, x), state_of(model)
    gradients = [id(p.grad) for p in model.parameters()]

    def failing(model: nn.Module, batch: Tensor) -> Tensor:
        restless_loss(model, batch)
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        DATA_SCORES[name](failing, [x])(model, coupling)
    assert is_unchanged(model, before)
    assert [id(p.grad) for p in model.parameters()] == gradients
    assert all(module.training and not module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("name", DATA_SCORES)
def test_no_batch_is_refused(name: str) -> None:
    model, coupling = made("mlp")
    with pytest.raises(InvalidInputError, match="no batch"):
        DATA_SCORES[name](loss_fn, [])(model, coupling)
    with pytest.raises(InvalidInputError, match="no batch"):
        DATA_SCORES[name](loss_fn, batches_for("mlp"), steps=0)(model, coupling)


@pytest.mark.parametrize("returned", [lambda m, b: m(b), lambda m, b: 1.0, lambda m, b: torch.zeros(())])
def test_a_loss_function_that_returns_no_loss_is_refused(returned: Callable[[nn.Module, Tensor], Any]) -> None:
    model, coupling = made("mlp")
    gradients = [id(p.grad) for p in model.parameters()]
    with pytest.raises(InvalidInputError, match="must return a scalar"):
        over_batches(taylor, returned, batches_for("mlp"))(model, coupling)
    assert [id(p.grad) for p in model.parameters()] == gradients


# ---- single scores


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


def test_lamp_gives_equal_units_equal_scores_and_dead_units_none() -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    coupling = analyze(model, torch.ones(1, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        assert lamp(model, coupling)[list(coupling.groups[0].units)].tolist() == [0, 0, 0, 0]
        model[0].bias.copy_(torch.tensor([0.0, 2.0, 2.0, 4.0]))
    assert lamp(model, coupling)[list(coupling.groups[0].units)].tolist() == [0, 4 / 24, 4 / 24, 1]


@pytest.mark.parametrize("score", [taylor, fisher])
def test_scores_that_lack_gradients_are_refused(score: UnitScore) -> None:
    model = nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 2))
    coupling, before = analyze(model, torch.ones(1, 4)), state_of(model)
    with pytest.raises(InvalidInputError, match="needs gradients"):
        score(model, coupling)
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


def test_taylor_reads_sparse_gradients() -> None:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows, self.out = nn.Embedding(5, 4, sparse=True), nn.Linear(4, 2)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.out(torch.relu(self.rows(tokens)))

    model, tokens = randomized(Bag()), torch.tensor([[0, 3, 3]])
    coupling = analyze(model, tokens)
    found = over_batches(taylor, loss_fn, [tokens])(model, coupling)
    model.rows.sparse = False
    assert found == pytest.approx(over_batches(taylor, loss_fn, [tokens])(model, coupling))


def test_random_is_seeded_and_leaves_the_global_state_alone() -> None:
    model, coupling = made("mlp")
    before = torch.get_rng_state()
    assert np.array_equal(random(model, coupling), random(model, coupling))
    assert not np.array_equal(random(model, coupling), random(model, coupling, seed=1))
    assert torch.equal(torch.get_rng_state(), before)
