"""`relink_`: the optimizer goes on with the live parameters as if they had been changed in place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import secateur
from secateur import HolderError, InvalidInputError, StaleGraphError, UnsupportedError
from secateur._compat import optimizer_classes
from secateur.doctor import diagnose, relink_
from tests.doctor.broken import replace, step, trained
from tests.doctor.test_contract import snapshot
from tests.doctor.trainings import LM, in_ddp, lm_loss, mlp

KWARGS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9},
    "Adam": {"amsgrad": True},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "LBFGS": {"lr": 0.1, "max_iter": 3},
}
OPTIMIZERS = sorted(set(optimizer_classes()) - {"SparseAdam"})  # that one takes sparse gradients only


def made(name: str) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """A net of matrices only (Muon takes nothing else), with an optimizer that has been warmed up."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.Tanh(), nn.Linear(6, 3, bias=False))
    optimizer = optimizer_classes()[name](model.parameters(), **KWARGS.get(name, {"lr": 1e-2}))
    return model, train(model, optimizer, range(3))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, seeds: range) -> torch.optim.Optimizer:
    """One step for each seed, on inputs drawn from it."""
    for seed in seeds:
        inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))

        def closure(inputs: Tensor = inputs) -> Tensor:
            optimizer.zero_grad()
            loss = (model(inputs) - 1).pow(2).mean()
            loss.backward()
            return loss

        optimizer.step(closure)
    return optimizer


def assert_same_weights(one: nn.Module, other: nn.Module) -> None:
    for (name, a), (_, b) in zip(one.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_relink_continues_as_if_nothing_had_been_replaced(name: str) -> None:
    model, optimizer = made(name)
    twin, twin_optimizer = made(name)
    for weight in ("0.weight", "2.weight"):
        replace(model, weight, torch.clone)
    done = relink_(model, optimizer)
    assert done.relinked == ("0.weight", "2.weight")
    train(model, optimizer, range(3, 6))
    train(twin, twin_optimizer, range(3, 6))
    assert_same_weights(model, twin)
    assert not torch.equal(model[0].weight, made(name)[0][0].weight)


@pytest.mark.parametrize("name", sorted(set(OPTIMIZERS) - {"LBFGS"}))
def test_relink_cuts_the_state_as_resize_does(name: str) -> None:
    model, optimizer = made(name)
    twin, twin_optimizer = made(name)
    keep = torch.tensor([0, 2, 3, 5])
    replace(model, "0.weight", lambda w: w[keep])
    replace(model, "2.weight", lambda w: w[:, keep])
    done = relink_(model, optimizer)
    assert done.state == {"0.weight": "cut", "2.weight": "cut"}
    with secateur.transaction(twin, twin_optimizer) as surgery:
        surgery.resize("0.weight", dim=0, keep=keep)
        surgery.resize("2.weight", dim=1, keep=keep)
    train(model, optimizer, range(3, 6))
    train(twin, twin_optimizer, range(3, 6))
    assert_same_weights(model, twin)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_relink_drops_the_state_and_trains_on_when_nothing_tells_what_was_kept(name: str) -> None:
    model, optimizer = made(name)
    replace(model, "0.weight", lambda w: torch.randn(4, 4))
    replace(model, "2.weight", lambda w: torch.randn(3, 4))
    done = relink_(model, optimizer)
    assert done.relinked == ("0.weight", "2.weight")
    assert set(done.state.values()) <= {"dropped", "none"}
    before = copy.deepcopy(model)
    train(model, optimizer, range(3, 5))
    assert not torch.equal(model[0].weight, before[0].weight)


def test_relink_lets_lbfgs_begin_anew_when_a_weight_was_cut() -> None:
    model, optimizer = made("LBFGS")
    replace(model, "0.weight", lambda w: w[:4])
    replace(model, "2.weight", lambda w: w[:, :4])
    done = relink_(model, optimizer)
    assert done.state["0.weight"] == "dropped"
    fresh = copy.deepcopy(model)
    train(model, optimizer, range(3, 6))
    train(fresh, torch.optim.LBFGS(fresh.parameters(), **KWARGS["LBFGS"]), range(3, 6))
    assert_same_weights(model, fresh)


def test_relink_keeps_groups_order_options_and_names() -> None:
    model = mlp()
    groups = [
        {"params": [("2.bias", model[2].bias), ("0.weight", model[0].weight)], "lr": 0.3},
        {"params": [("0.bias", model[0].bias), ("2.weight", model[2].weight)], "weight_decay": 0.2},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    for name in ("0.weight", "2.weight"):
        replace(model, name, torch.clone)
    relink_(model, optimizer)
    first, second = optimizer.param_groups
    assert [id(p) for p in first["params"]] == [id(model[2].bias), id(model[0].weight)]
    assert [id(p) for p in second["params"]] == [id(model[0].bias), id(model[2].weight)]
    assert (first["lr"], second["lr"], second["weight_decay"]) == (0.3, 0.1, 0.2)
    assert (first["param_names"], second["param_names"]) == (["2.bias", "0.weight"], ["0.bias", "2.weight"])


def test_relink_gives_the_new_weight_the_pending_gradient() -> None:
    model, optimizer = trained()
    twin, twin_optimizer = copy.deepcopy((model, optimizer))
    for m, o in ((model, optimizer), (twin, twin_optimizer)):
        o.zero_grad()
        m(torch.ones(2, 4)).sum().backward()
    replace(model, "0.weight", torch.clone)
    relink_(model, optimizer)
    optimizer.step()
    twin_optimizer.step()
    assert_same_weights(model, twin)


def test_relink_keeps_the_gradient_that_the_new_weight_has() -> None:
    model, optimizer = trained()
    replace(model, "0.weight", torch.clone)
    model[0].weight.grad = gradient = torch.ones(6, 4)
    relink_(model, optimizer)
    assert model[0].weight.grad is gradient


def test_relink_serves_two_optimizers_that_share_a_weight() -> None:
    model = mlp()
    both = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for _ in range(2)]
    for optimizer in both:
        step(model, optimizer)
    replace(model, "2.bias", lambda b: b + 1)
    relink_(model, both)
    assert all(optimizer.param_groups[0]["params"][3] is model[2].bias for optimizer in both)
    assert all("momentum_buffer" in optimizer.state[model[2].bias] for optimizer in both)


def test_relink_takes_the_cut_of_a_constant_bias_from_the_weight_beside_it() -> None:
    model, optimizer = trained()
    with torch.no_grad():
        model[0].bias.zero_()
    momentum = optimizer.state[model[0].bias]["momentum_buffer"].clone()
    replace(model, "0.weight", lambda w: w[[1, 4, 5]])
    replace(model, "0.bias", lambda b: b[[1, 4, 5]])
    done = relink_(model, optimizer)
    assert done.state["0.bias"] == "cut"
    assert torch.equal(optimizer.state[model[0].bias]["momentum_buffer"], momentum[[1, 4, 5]])


def test_relink_finds_the_place_of_new_values_by_the_order_of_parameters() -> None:
    model, optimizer = trained()
    kept = model[0].bias  # an old object that is still referred to
    replace(model, "0.bias", lambda b: torch.full_like(b, 7.0))
    done = relink_(model, optimizer)
    assert done.relinked == ("0.bias",)
    assert done.state == {"0.bias": "carried"}
    assert optimizer.param_groups[0]["params"][1] is model[0].bias is not kept


def test_relink_finds_the_place_of_new_values_by_shape_where_the_order_tells_nothing() -> None:
    model = mlp()
    mixed = [model[2].bias, model[0].weight, model[2].weight, model[0].bias]
    optimizer = torch.optim.SGD(mixed, lr=0.1)
    del mixed
    for name in ("0.weight", "2.weight"):
        replace(model, name, torch.rand_like)
    relink_(model, optimizer)
    held = optimizer.param_groups[0]["params"]
    assert [id(p) for p in held] == [id(p) for p in (model[2].bias, model[0].weight, model[2].weight, model[0].bias)]


def test_relink_leaves_two_of_one_shape_that_nothing_tells_apart() -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False), nn.Linear(3, 2, bias=False))
    optimizer = torch.optim.SGD([model[2].weight, model[0].weight], lr=0.1)
    replace(model, "0.weight", torch.rand_like)
    done = relink_(model, optimizer)  # it may have been 0.weight or 1.weight
    assert not done.relinked
    assert done.left.of("parameter-not-in-optimizer")[0].names == ("0.weight", "1.weight")


def test_relink_refuses_to_reset_memory_that_processes_share() -> None:
    layer = nn.Linear(4, 3)
    old = layer(torch.ones(4))
    layer.share_memory()
    layer.weight.data = layer.weight.data[:, :2]
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    before = snapshot({"model": layer, "optimizer": optimizer})
    with pytest.raises(UnsupportedError, match="cannot change 'weight': its memory is shared"):
        relink_(layer, optimizer)
    assert snapshot({"model": layer, "optimizer": optimizer}) == before
    assert old.shape == (3,)


def test_relink_drops_the_history_of_adagrad_to_its_initial_value() -> None:
    layer = nn.Linear(4, 3, bias=False)
    optimizer = torch.optim.Adagrad(layer.parameters(), initial_accumulator_value=0.25)
    step(layer, optimizer)
    replace(layer, "weight", lambda w: torch.randn(2, 4))
    relink_(layer, optimizer)
    state = optimizer.state[layer.weight]
    assert (state["sum"].tolist(), state["step"].item()) == ([[0.25] * 4] * 2, 0.0)


def test_relink_drops_entries_that_have_no_rule() -> None:
    class Odd(torch.optim.SGD):
        pass

    layer = nn.Linear(4, 3, bias=False)
    optimizer = Odd(layer.parameters(), lr=0.1, momentum=0.9)
    step(layer, optimizer)
    optimizer.state[layer.weight]["blocks"] = torch.randn(7)
    replace(layer, "weight", lambda w: w[:2])
    assert relink_(layer, optimizer).state == {"weight": "dropped"}
    step(layer, optimizer)


@pytest.mark.parametrize("index", [slice(0, 4), slice(1, 5), slice(None, None, 2)], ids=str)
def test_relink_after_a_cut_by_hand_keeps_the_right_momentum(index: slice) -> None:
    model, optimizer = trained()
    momentum = optimizer.state[model[0].weight]["momentum_buffer"].clone()
    gradient = model[0].weight.grad.clone()
    model[0].weight.data = model[0].weight.data[index]
    done = relink_(model, optimizer)
    assert (done.state, done.gradients) == ({"0.weight": "cut"}, {"0.weight": "cut"})
    assert torch.equal(optimizer.state[model[0].weight]["momentum_buffer"], momentum[index])
    assert torch.equal(model[0].weight.grad, gradient[index])


def test_relink_drops_what_a_cut_by_copying_leaves_unknown() -> None:
    model, optimizer = trained()
    model[0].weight.data = model[0].weight.data[[0, 3]]
    done = relink_(model, optimizer)
    assert (done.state, done.gradients) == ({"0.weight": "dropped"}, {"0.weight": "dropped"})
    assert model[0].weight.grad is None
    assert model[0].weight not in optimizer.state


def test_relink_frees_the_memory_of_a_cut_by_hand() -> None:
    layer = nn.Linear(100, 10)
    output = layer(torch.ones(100))
    layer.weight.data = layer.weight.data[:, :90]
    relink_(layer, torch.optim.SGD(layer.parameters(), lr=0.1))
    assert layer.weight.untyped_storage().nbytes() == 10 * 90 * 4
    assert output.shape == (10,)


def test_relink_leaves_memory_that_two_parameters_share() -> None:
    flat = torch.randn(10)
    model = nn.ParameterList([nn.Parameter(flat[:6]), nn.Parameter(flat[6:])])
    output = model[0].sum()
    model[0].data = flat[:4]
    relink_(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with torch.no_grad():
        model[0].fill_(7.0)
    assert flat[:4].tolist() == [7.0] * 4
    assert output.dim() == 0


def test_relink_makes_an_old_graph_explain_itself() -> None:
    layer = nn.Linear(4, 3)
    old = layer(torch.ones(4)).sum()
    layer.weight.data = layer.weight.data[:, :2]
    assert relink_(layer, None).graphs == ("weight",)
    layer(torch.ones(2)).sum().backward()
    before = layer.weight.grad.clone()
    with pytest.raises(StaleGraphError, match="built before weight changed shape and was relinked"):
        old.backward()
    assert torch.equal(layer.weight.grad, before)


def test_relink_leaves_a_graph_that_fits_alone_when_only_the_gradient_is_wrong() -> None:
    model, optimizer = trained(momentum=0.0)
    for parameter, index in (
        (model[0].weight, slice(4)),
        (model[0].bias, slice(4)),
        (model[2].weight, (..., slice(4))),
    ):
        parameter.data = parameter.data[index]
    loss = model(torch.ones(2, 4)).sum()
    before = model[2].weight.grad[:, :4].clone()
    done = relink_(model, optimizer)
    assert set(done.gradients) == {"0.weight", "0.bias", "2.weight"}
    assert done.graphs == ()
    loss.backward()
    assert not torch.equal(model[2].weight.grad, before)


@pytest.mark.parametrize(
    ("name", "change", "shape"),
    [
        ("emb.weight", lambda w: w[:, [0, 2, 5]], (20, 3)),
        ("emb.weight", lambda w: w[:18], (18, 8)),
        ("head.weight", lambda w: w[:18, :6], (18, 6)),
        ("head.weight", lambda w: w * (torch.arange(8) > 2), (20, 8)),
    ],
)
def test_relink_ties_again_with_state_and_gradients(
    name: str, change: Callable[[Tensor], Tensor], shape: tuple[int, int]
) -> None:
    model = LM()
    optimizer = torch.optim.Adam(model.parameters())
    lm_loss(model)().backward()
    optimizer.step()
    shared = model.emb.weight
    values, moment, gradient = (
        change(t.detach().clone()) for t in (shared, optimizer.state[shared]["exp_avg"], shared.grad)
    )
    replace(model, name, change)
    done = relink_(model, optimizer)
    assert done.retied == ((name, "head.weight" if name == "emb.weight" else "emb.weight"),)
    assert model.emb.weight is model.head.weight is shared
    assert torch.equal(shared, values)
    assert [id(p) for p in optimizer.param_groups[0]["params"]].count(id(shared)) == 1
    if shape != (20, 8):
        assert torch.equal(optimizer.state[shared]["exp_avg"], moment)
        assert torch.equal(shared.grad, gradient)
    assert tuple(shared.shape) == shape


def test_relink_ties_two_new_copies_of_what_was_one() -> None:
    model = LM()
    optimizer = torch.optim.Adam(model.parameters())
    shared = model.emb.weight.detach()
    model.emb.weight, model.head.weight = nn.Parameter(shared.clone()), nn.Parameter(shared.clone())
    done = relink_(model, optimizer)
    assert model.emb.weight is model.head.weight
    assert done.retied == (("head.weight", "emb.weight"),)
    assert sum(p is model.emb.weight for p in optimizer.param_groups[0]["params"]) == 1
    assert not diagnose(model, optimizer)


def test_relink_leaves_two_halves_that_differ_and_says_so() -> None:
    model = LM()
    optimizer = torch.optim.Adam(model.parameters())
    shared = model.emb.weight.detach()
    model.emb.weight = nn.Parameter(shared * (torch.arange(8) > 2))
    model.head.weight = nn.Parameter(shared * (torch.arange(8) < 5))
    done = relink_(model, optimizer)
    assert model.emb.weight is not model.head.weight
    assert (done.relinked, done.retied) == (("emb.weight",), ())
    assert [(f.code, f.names) for f in done.left] == [("parameter-not-in-optimizer", ("head.weight",))]
    assert done.relinked == ("emb.weight",)
    assert done.left


def test_relink_removes_duplicates_and_orphans_only() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    extra = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD(
        [{"params": [extra, *model.parameters()]}, {"params": [nn.Parameter(torch.ones(1))]}], lr=0.1
    )
    optimizer.param_groups[1]["params"].append(extra)
    model[2] = nn.Identity()
    done = relink_(model, optimizer)
    assert done.removed == 4  # the second `extra`, the lone tensor, and both of the removed layer
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(extra), id(model[0].weight), id(model[0].bias)]
    assert optimizer.param_groups[1]["params"] == []


def test_relink_leaves_what_it_cannot_know_and_reports_it() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.append(nn.Linear(3, 2))
    done = relink_(model, optimizer)
    assert not done
    assert done.left.codes == ("parameter-not-in-optimizer",)
    assert "left to be done by hand" in str(done)


def test_relink_report_says_what_was_done() -> None:
    model, optimizer = trained()
    replace(model, "0.weight", lambda w: w[:, :3])
    replace(model, "2.bias", lambda b: torch.randn(2))
    text = str(relink_(model, optimizer)).split("\n")
    assert text == ["now held by the optimizer: 0.weight, 2.bias", "state cut: 0.weight", "state dropped: 2.bias"]


def test_relink_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    model, optimizer = trained()
    replace(model, "0.weight", torch.clone)
    relink_(model, optimizer)
    assert capsys.readouterr() == ("", "")


def test_relink_refuses_the_optimizer_of_another_model() -> None:
    model, other = mlp(), nn.Linear(4, 3)
    optimizer = torch.optim.Adam(other.parameters())
    before = snapshot({"model": model, "optimizer": optimizer})
    with pytest.raises(HolderError, match="holds nothing that is or was this model's"):
        relink_(model, optimizer)
    assert snapshot({"model": model, "optimizer": optimizer}) == before


def test_relink_refuses_to_work_in_inference_mode() -> None:
    model, optimizer = trained()
    replace(model, "0.weight", torch.clone)
    before = snapshot({"model": model, "optimizer": optimizer})
    with torch.inference_mode(), pytest.raises(InvalidInputError, match=r"inside torch\.inference_mode"):
        relink_(model, optimizer)
    assert snapshot({"model": model, "optimizer": optimizer}) == before


def test_relink_refuses_a_model_inside_ddp() -> None:
    model = mlp()
    wrapper = in_ddp(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    replace(model, "0.weight", torch.clone)
    before = snapshot({"model": wrapper, "optimizer": optimizer})
    with pytest.raises(UnsupportedError, match="inside DistributedDataParallel"):
        relink_(wrapper, optimizer)
    assert snapshot({"model": wrapper, "optimizer": optimizer}) == before


@pytest.mark.parametrize(
    ("model", "optimizer", "message"),
    [(3, None, "`model` is not an nn.Module"), (nn.Linear(2, 2), nn.Linear(2, 2), "`optimizer` is not an optimizer")],
)
def test_relink_refuses_other_arguments(model: Any, optimizer: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        relink_(model, optimizer)
