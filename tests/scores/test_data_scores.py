"""What holds of every score that runs the model, over the table."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from secateur import InvalidInputError, allocation, prune_, scores
from tests.scores.models import Restless, batches, net, restless_loss, squared_error, weights_of, whole_state
from tests.scores.tables import (
    Scored,
    every_data_score,
    every_gradient_score,
    every_running_score,
    every_score,
    flowing,
    same,
)


@every_score
def test_scores_are_finite_numbers_by_the_names_and_in_the_shapes_of_the_weights(score: Scored) -> None:
    model = net(3, 5, 4, 2)
    found = score(model, squared_error, batches(4, 6))
    assert {name: s.shape for name, s in found.items()} == {n: w.shape for n, w in weights_of(model).items()}
    for name, values in found.items():
        assert values.is_floating_point()
        assert values.isfinite().all()
        assert not values.requires_grad
        assert values.unique().numel() > values.numel() // 2
        assert values.untyped_storage().data_ptr() != model.get_parameter(name).untyped_storage().data_ptr()


@every_score
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_of_smaller_numbers_are_in_single_precision_or_better(score: Scored, dtype: torch.dtype) -> None:
    model = net(3, 5, 2).to(dtype)
    given = [(x.to(dtype), y.to(dtype)) for x, y in batches(4)]
    for values in score(model, squared_error, given).values():
        assert values.dtype in (torch.float32, torch.float64)
        assert values.isfinite().all()


def restless() -> tuple[Restless, list[Tensor]]:
    """The model with gradients from before, half of its head masked, and batches."""
    model, given = Restless(), [torch.randn(5, 2, 4, 4) for _ in range(3)]
    prune_(model, sparsity=0.5, include="head.weight")
    restless_loss(model, given[0]).backward()
    model.train()
    model.drop.eval()
    return model, given


@every_running_score
def test_score_leaves_the_model_and_all_random_states_as_they_were(score: Scored) -> None:
    model, given = restless()
    loader = DataLoader(TensorDataset(torch.cat(given)), batch_size=5, shuffle=True)
    before = whole_state(model)
    score(model, lambda m, batch: restless_loss(m, batch[0]), loader)
    assert whole_state(model) == before


@every_running_score
def test_score_leaves_everything_as_it_was_when_the_model_raises(score: Scored) -> None:
    model, given = restless()
    model.head.register_forward_hook(_fail)
    before = whole_state(model)
    with pytest.raises(ArithmeticError, match="in the second layer"):
        score(model, restless_loss, given)
    assert whole_state(model) == before


def _fail(module: nn.Module, args: object, output: Tensor) -> None:
    raise ArithmeticError("in the second layer")


@every_data_score
def test_loss_function_that_runs_backward_or_clears_gradients_does_no_harm(score: Scored) -> None:
    model, given = restless()

    def meddling(model: nn.Module, x: Tensor) -> Tensor:
        with torch.enable_grad():
            model(x).sum().backward()
        model.zero_grad(set_to_none=False)
        return restless_loss(model, x)

    before = whole_state(model)
    score(model, meddling, given)
    assert whole_state(model) == before


def test_movement_leaves_training_as_it_is() -> None:
    def trained(*, watched: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = net(3, 5, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        movement = scores.Movement(model, optimizer) if watched else None
        for batch in batches(4, 6, 5):
            optimizer.zero_grad()
            squared_error(model, batch).backward()
            optimizer.step()
        if movement is not None:
            movement.remove()
        return model, optimizer

    (one, by_one), (other, by_other) = trained(watched=True), trained(watched=False)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert len(by_one._optimizer_step_pre_hooks) == len(by_other._optimizer_step_pre_hooks) == 0


@every_running_score
def test_scores_are_the_same_on_every_call_whatever_is_drawn_at_random(score: Scored) -> None:
    model, given = restless()
    loader = DataLoader(TensorDataset(torch.cat(given)), batch_size=5, shuffle=True)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return model(batch[0]).square().mean() + torch.rand(())

    first = score(model, loss, loader)
    assert same(first, score(model, loss, loader))


@every_score
def test_scores_do_not_depend_on_the_order_of_names_and_are_those_that_were_asked_for(score: Scored) -> None:
    model, given = net(3, 5, 4, 2), batches(4, 6)
    one = score(model, squared_error, given, include=["4.weight", "0.weight"])
    assert same(one, score(model, squared_error, given, include=["0.weight", "4.weight"]))
    assert list(one) == ["0.weight", "4.weight"]
    assert list(score(model, squared_error, given, include="2.weight")) == ["2.weight"]


@every_score
def test_selector_that_means_nothing_is_refused(score: Scored) -> None:
    with pytest.raises(InvalidInputError, match=r"'9\.weight' matches no parameter"):
        score(net(3, 5, 2), squared_error, batches(4), include="9.weight")


# ---- masked, tied, frozen


@every_score
def test_scores_of_a_masked_model_are_defined_and_choose_further_zeros(score: Scored) -> None:
    model, given = net(3, 8, 6, 2), batches(4, 6)
    first = dict(prune_(model, sparsity=0.3))
    found = score(model, squared_error, given)
    assert all(values.isfinite().all() for values in found.values())
    masks = prune_(model, sparsity=0.6, score=found, allocation=allocation.global_)
    kept = dict(masks)
    assert sum(int((~mask).sum()) for mask in kept.values()) == round(0.6 * (24 + 48 + 12))
    assert all(not bool((kept[name] & ~mask).any()) for name, mask in first.items())


@every_score
def test_masked_weights_score_nothing_unless_gradients_alone_count(score: Scored) -> None:
    model, given = net(3, 8, 2), batches(4)
    masks = dict(prune_(model, sparsity=0.5))
    for name, values in score(model, squared_error, given).items():
        if score is scores.gradient_magnitude:
            assert (values[~masks[name]] > 0).any()
        elif score is flowing:
            assert (values[~masks[name]] <= 0).all()
        else:
            assert (values[~masks[name]] == 0).all()


@every_score
def test_tied_weight_is_scored_once_and_by_both_of_its_uses(score: Scored) -> None:
    class Tied(nn.Module):
        def __init__(self, *, is_tied: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.one, self.two = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            if is_tied:
                self.two.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.two(torch.tanh(self.one(x)))

    model, given = Tied(is_tied=True).double(), batches(4, outputs=3)
    found = score(model, squared_error, given)
    assert list(found) == ["one.weight"]
    alone = Tied(is_tied=False).double()
    alone.load_state_dict(model.state_dict())
    apart = score(alone, squared_error, given, include="one.weight")
    assert not torch.allclose(found["one.weight"], apart["one.weight"])
    masks = prune_(model, sparsity=0.5, score={"two.weight": found["one.weight"]})
    assert int((~masks["one.weight"]).sum()) == 4


@every_gradient_score
def test_frozen_weight_is_left_out_and_refused_by_name(score: Scored) -> None:
    model, given = net(3, 5, 4, 2), batches(4)
    model[2].weight.requires_grad_(False)
    assert list(score(model, squared_error, given)) == ["0.weight", "4.weight"]
    before = whole_state(model)
    with pytest.raises(InvalidInputError, match=r"'2\.weight' by gradients: it is frozen"):
        score(model, squared_error, given, include=["0.weight", "2.weight"])
    model.requires_grad_(False)
    with pytest.raises(InvalidInputError, match=r"nothing in Sequential is left to score(.|\n)*frozen: 3"):
        score(model, squared_error, given)
    model.requires_grad_(True)
    model[2].weight.requires_grad_(False)
    assert whole_state(model) == before


@pytest.mark.parametrize("score", [scores.wanda, flowing], ids=["wanda", "synflow"])
def test_frozen_weight_is_scored_where_no_gradient_is_needed(score: Scored) -> None:
    model, given = net(3, 5, 2), batches(4)
    free = score(model, squared_error, given)
    assert same(free, score(model.requires_grad_(False), squared_error, given))


@every_gradient_score
def test_weight_that_the_loss_does_not_see_scores_zero(score: Scored) -> None:
    model = nn.ModuleDict({"used": nn.Linear(3, 2), "unused": nn.Linear(3, 2)}).double()
    found = score(model, lambda m, batch: squared_error(m["used"], batch), batches(4))
    assert found["used.weight"].any()
    assert not found["unused.weight"].any()


# ---- batches


@every_data_score
def test_batches_may_come_from_a_generator_and_as_many_as_asked_for_are_taken(score: Scored) -> None:
    model, given = net(3, 5, 2), batches(4, 6, 5)
    assert same(score(model, squared_error, (batch for batch in given)), score(model, squared_error, given))
    assert same(score(model, squared_error, given, steps=2), score(model, squared_error, given[:2]))
    assert not same(score(model, squared_error, given, steps=2), score(model, squared_error, given))


@every_data_score
def test_no_graph_outlives_its_batch(score: Scored) -> None:
    model, alive = net(3, 5, 2), []

    def loss(model: nn.Module, batch: Any) -> Tensor:
        assert all(reference() is None for reference in alive)
        output = model(batch[0])
        alive.append(weakref.ref(output))
        return (output - batch[1]).square().mean()

    score(model, loss, batches(4, 6, 5))
    assert len(alive) >= 3


@every_data_score
def test_score_works_under_no_grad(score: Scored) -> None:
    model, given = net(3, 5, 2), batches(4)
    with torch.no_grad():
        within = score(model, squared_error, given)
    assert same(within, score(model, squared_error, given))


@every_running_score
def test_compiled_model_has_the_names_of_the_model_inside(score: Scored) -> None:
    model, given = net(3, 5, 2), batches(4)
    compiled = torch.compile(model, backend="eager")
    found = score(compiled, squared_error, given)
    assert list(found) == ["0.weight", "2.weight"]
    for name, values in score(model, squared_error, given).items():
        torch.testing.assert_close(found[name], values)
    assert list(prune_(compiled, sparsity=0.4, score=found)) == list(found)


@every_data_score
def test_computed_weights_are_left_out_and_their_parts_scored_by_name(score: Scored) -> None:
    model, given = net(3, 5, 2), batches(4)
    nn.utils.parametrizations.weight_norm(model[0])
    assert list(score(model, squared_error, given)) == ["2.weight"]
    if score is not scores.wanda:
        name = "0.parametrizations.weight.original1"
        assert score(model, squared_error, given, include=name)[name].shape == (5, 3)
    with nn.utils.parametrize.cached(), pytest.raises(InvalidInputError, match="inside parametrize"):
        score(model, squared_error, given)
