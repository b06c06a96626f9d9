"""For every check: what breaks a training setup so that it fires, and the same setup unbroken, where it must not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.optim.swa_utils import AveragedModel

import secateur
from tests.doctor.trainings import LM, in_ddp, mlp

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Broken:
    """A setup that `build(True)` breaks and `build(False)` leaves whole; both return the arguments of `diagnose`."""

    code: str
    names: tuple[str, ...]
    build: Callable[[bool], Arguments]
    repairable: bool


BROKEN: dict[str, Broken] = {}


def broken(code: str, *names: str, repairable: bool = False) -> Callable[[Callable[[bool], Arguments]], Any]:
    """Put a broken setup into the table: the code and the names that its one finding must have."""

    def register(build: Callable[[bool], Arguments]) -> Callable[[bool], Arguments]:
        BROKEN[build.__name__] = Broken(code, names, build, repairable)
        return build

    return register


def trained(model: nn.Module | None = None, *, steps: int = 2, momentum: float = 0.9) -> tuple[Any, torch.optim.SGD]:
    """An MLP with its optimizer after some steps; gradients of the last one are still there."""
    model = model or mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    for _ in range(steps):
        step(model, optimizer)
    return model, optimizer


def step(model: nn.Module, optimizer: Any) -> Tensor:
    """One step on random inputs; the loss."""
    optimizer.zero_grad()
    width = next(m.in_features for m in model.modules() if isinstance(m, nn.Linear))
    loss = model(torch.randn(8, width)).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss


def replace(model: nn.Module, name: str, change: Callable[[Tensor], Tensor]) -> None:
    """``model.name = nn.Parameter(change(model.name))``, the line that this is all about."""
    path, _, leaf = name.rpartition(".")
    owner = model.get_submodule(path)
    setattr(owner, leaf, nn.Parameter(change(getattr(owner, leaf).detach())))


@broken("stale-optimizer-reference", "0.weight", "2.weight", repairable=True)
def weights_copied(broken: bool) -> Arguments:
    model, optimizer = trained()
    if broken:
        replace(model, "0.weight", lambda w: 1.0 * w)
        replace(model, "2.weight", lambda w: 1.0 * w)
    return {"model": model, "optimizer": optimizer}


@broken("stale-optimizer-reference", "0.weight", repairable=True)
def weight_masked(broken: bool) -> Arguments:
    model, optimizer = trained()
    mask = torch.rand(6, 4) > 0.5
    if broken:
        replace(model, "0.weight", lambda w: w * mask)
    else:
        with torch.no_grad():
            model[0].weight.mul_(mask)
    return {"model": model, "optimizer": optimizer}


@broken("stale-optimizer-reference", "0.weight", "0.bias", "2.weight", "2.bias", repairable=True)
def whole_model_loaded_by_assignment(broken: bool) -> Arguments:
    model, optimizer = trained()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(state, assign=broken)
    return {"model": model, "optimizer": optimizer}


@broken("stale-optimizer-reference", "2.weight", "2.bias", repairable=True)
def last_layer_made_anew(broken: bool) -> Arguments:
    model, optimizer = trained()
    if broken:
        model[2] = nn.Linear(6, 3)
    return {"model": model, "optimizer": optimizer}


@broken("stale-optimizer-reference", "0.weight", repairable=True)
def other_values_of_a_named_parameter(broken: bool) -> Arguments:
    model = mlp()
    optimizer = torch.optim.Adam(model.named_parameters())
    step(model, optimizer)
    if broken:
        replace(model, "0.weight", torch.rand_like)
    return {"model": model, "optimizer": optimizer}


@broken("parameter-not-in-optimizer", "3.weight", "3.bias")
def layer_added_after_the_optimizer(broken: bool) -> Arguments:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.append(nn.Linear(3, 2))
    if not broken:
        optimizer.add_param_group({"params": list(model[3].parameters())})
    return {"model": model, "optimizer": optimizer}


@broken("parameter-not-in-optimizer", "0.weight", "0.bias")
def backbone_neither_trained_nor_frozen(broken: bool) -> Arguments:
    model = mlp()
    model[0].requires_grad_(broken)
    return {"model": model, "optimizer": torch.optim.SGD(model[2].parameters(), lr=0.1)}


@broken("foreign-optimizer", "0.weight", "0.bias", "2.weight", "2.bias")
def optimizer_of_another_model(broken: bool) -> Arguments:
    model, other = mlp(), nn.Linear(4, 3)
    optimizer = torch.optim.Adam((other if broken else model).parameters())
    optimizer.other = other  # it stays alive
    return {"model": model, "optimizer": optimizer}


@broken("foreign-optimizer", "0.weight", "0.bias", "2.weight", "2.bias")
def optimizer_of_a_model_of_the_same_class(broken: bool) -> Arguments:
    model, other = mlp(), mlp()
    optimizer = torch.optim.Adam((other if broken else model).parameters())
    optimizer.other = other
    return {"model": model, "optimizer": optimizer}


@broken("orphan-tensor", repairable=True)
def layer_removed_after_the_optimizer(broken: bool) -> Arguments:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if broken:
        model[2] = nn.Identity()
    return {"model": model, "optimizer": optimizer}


@broken("duplicate-parameter", "0.bias", repairable=True)
def parameter_in_two_groups(broken: bool) -> Arguments:
    model = mlp()
    optimizer = torch.optim.SGD([{"params": model[0].parameters()}, {"params": model[2].parameters()}], lr=0.1)
    if broken:
        optimizer.param_groups[1]["params"].append(model[0].bias)
    return {"model": model, "optimizer": optimizer}


@broken("stale-autograd-graph", "0.weight", "0.bias", "2.weight", repairable=True)
def cut_by_hand_while_an_output_is_alive(broken: bool) -> Arguments:
    model = mlp()
    output = model(torch.randn(5, 4))
    for parameter, index in (
        (model[0].weight, slice(4)),
        (model[0].bias, slice(4)),
        (model[2].weight, (..., slice(4))),
    ):
        parameter.data = parameter.data[index]
    model.alive = output if broken else None
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}


@broken("grad-shape", "0.weight", "0.bias", repairable=True)
def gradient_left_uncut(broken: bool) -> Arguments:
    model, optimizer = trained(momentum=0.0)
    for parameter in (model[0].weight, model[0].bias):
        gradient = parameter.grad[:4].clone()
        parameter.data = parameter.data[:4]
        if not broken:
            parameter.grad = None
            parameter.grad = gradient
    return {"model": model, "optimizer": optimizer}


@broken("state-shape", "0.weight", "0.bias", "2.weight", repairable=True)
def momentum_left_uncut(broken: bool) -> Arguments:
    model, optimizer = trained()
    optimizer.zero_grad()
    for parameter, index in (
        (model[0].weight, slice(4)),
        (model[0].bias, slice(4)),
        (model[2].weight, (..., slice(4))),
    ):
        parameter.data = parameter.data[index]
        if not broken:
            state = optimizer.state[parameter]
            state["momentum_buffer"] = state["momentum_buffer"][index].clone()
    return {"model": model, "optimizer": optimizer}


@broken("state-shape", "0.weight", repairable=True)
def history_of_lbfgs_left_uncut(broken: bool) -> Arguments:
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    inputs = torch.randn(8, 4)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(inputs).pow(2).mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    optimizer.zero_grad()
    if broken:
        model[0].weight.data = model[0].weight.data[:, :3]
    return {"model": model, "optimizer": optimizer}


@broken("state-shape", "weight", repairable=True)
def factors_of_adafactor_left_uncut(broken: bool) -> Arguments:
    layer = nn.Linear(5, 4, bias=False)
    optimizer = torch.optim.Adafactor(layer.parameters())
    step(layer, optimizer)
    optimizer.zero_grad()
    if broken:
        layer.weight.data = layer.weight.data[:3]
    return {"model": layer, "optimizer": optimizer}


@broken("ema-shape", "0.weight")
def average_left_uncut(broken: bool) -> Arguments:
    model = mlp()
    average = AveragedModel(model)
    for owner in (model, *(() if broken else (average.module,))):
        owner[0].weight.data = owner[0].weight.data[:, :3]
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "ema": average}


@broken("tied-weights-apart", "emb.weight", "head.weight", repairable=True)
def tied_embedding_replaced(broken: bool) -> Arguments:
    model = LM()
    optimizer = torch.optim.Adam(model.parameters())
    if broken:
        replace(model, "emb.weight", torch.clone)
    return {"model": model, "optimizer": optimizer}


@broken("tied-weights-apart", "emb.weight", "head.weight", repairable=True)
def tied_head_cut(broken: bool) -> Arguments:
    model = LM()
    optimizer = torch.optim.Adam(model.parameters())
    if broken:
        replace(model, "head.weight", lambda w: w[:, [0, 2, 5]])
    return {"model": model, "optimizer": optimizer}


@broken("tied-weights-apart", "emb.weight", "head.weight", repairable=True)
def tied_weights_apart_without_optimizer(broken: bool) -> Arguments:
    model = LM()
    if broken:
        replace(model, "emb.weight", lambda w: w[:18])
    return {"model": model}


class Declaring(LM):
    """A model that says which weights are tied, as those of Hugging Face do."""

    all_tied_weights_keys = {"head.weight": "emb.weight"}  # noqa: RUF012


@broken("tied-weights-apart", "emb.weight", "head.weight")
def declared_tie_apart_and_trained_apart(broken: bool) -> Arguments:
    model = Declaring()
    if broken:
        replace(model, "head.weight", torch.rand_like)
    return {"model": model, "optimizer": torch.optim.Adam(model.parameters())}


@broken("prune-names-reversed", "0.weight_orig", repairable=True)
def optimizer_holds_the_computed_weight(broken: bool) -> Arguments:
    model = mlp()
    prune.l1_unstructured(model[0], "weight", 0.5)
    with torch.no_grad():
        model(torch.randn(1, 4))  # the weight that is computed here looks like a leaf
    rest = [model[0].bias, model[2].weight, model[2].bias]
    optimizer = torch.optim.SGD([model[0].weight if broken else model[0].weight_orig, *rest], lr=0.1)
    return {"model": model, "optimizer": optimizer}


@broken("prune-names-reversed", "0.weight")
def pruned_weight_made_a_parameter(broken: bool) -> Arguments:
    model = mlp()
    prune.l1_unstructured(model[0], "weight", 0.5)
    if broken:
        replace(model, "0.weight", torch.clone)
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}


@broken("ddp-before-change", "2.weight")
def parameter_replaced_inside_ddp(broken: bool) -> Arguments:
    model = mlp()
    wrapper = in_ddp(model)
    if broken:
        replace(model, "2.weight", torch.clone)
    return {"model": wrapper, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}


@broken("ddp-before-change")
def dtype_changed_inside_ddp(broken: bool) -> Arguments:
    model = mlp()
    wrapper = in_ddp(model)
    if broken:
        model.double()
    return {"model": wrapper, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}


@broken("ddp-before-change")
def layer_removed_inside_ddp(broken: bool) -> Arguments:
    model = mlp()
    wrapper = in_ddp(model)
    if broken:
        model[2] = nn.Identity()
    return {"model": wrapper, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}


@broken("lr-zero", "0.weight", "0.bias", "2.weight", "2.bias")
def learning_rate_of_zero(broken: bool) -> Arguments:
    model = mlp()
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.0 if broken else 0.1)}


@broken("lr-zero", "0.weight", "0.bias", "2.weight", "2.bias")
def schedule_that_has_ended(broken: bool) -> Arguments:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2 if broken else 20)
    for _ in range(2):
        step(model, optimizer)
        scheduler.step()
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


@broken("foreign-scheduler")
def scheduler_of_the_optimizer_before(broken: bool) -> Arguments:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    if broken:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


@broken("eval-mode", "1")
def dropout_left_off(broken: bool) -> Arguments:
    model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 3)).train(not broken)
    model, optimizer = trained(model)
    return {"model": model, "optimizer": optimizer}


@broken("frozen-model", "0.weight", "0.bias", "2.weight", "2.bias")
def everything_frozen(broken: bool) -> Arguments:
    model, optimizer = trained()
    model.requires_grad_(not broken)
    return {"model": model, "optimizer": optimizer}


@broken("loss-without-graph")
def loss_under_no_grad(broken: bool) -> Arguments:
    model = mlp()
    with torch.set_grad_enabled(not broken):
        loss = model(torch.randn(8, 4)).pow(2).mean()
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "loss": loss}


@broken("no-gradient", "0.weight", "0.bias")
def hidden_layer_detached(broken: bool) -> Arguments:
    model = mlp()
    hidden = model[1](model[0](torch.randn(8, 4)))
    loss = model[2](hidden.detach() if broken else hidden).pow(2).mean()
    loss.backward()
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}


@broken("no-gradient", "0.weight", "0.bias")
def hidden_layer_out_of_reach_of_the_loss(broken: bool) -> Arguments:
    model = mlp()
    with torch.set_grad_enabled(not broken):
        hidden = model[1](model[0](torch.randn(8, 4)))
    loss = model[2](hidden).pow(2).mean()
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "loss": loss}


@broken("no-gradient", "0.weight", "0.bias", "2.weight", "2.bias")
def loss_of_another_model(broken: bool) -> Arguments:
    model = mlp()
    loss = (mlp() if broken else model)(torch.randn(8, 4)).pow(2).mean()
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "loss": loss}


@broken("zero-gradient", "0.weight", "0.bias", "2.weight")
def dead_units(broken: bool) -> Arguments:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    nn.init.constant_(model[0].bias, -100.0 if broken else 1.0)
    model, optimizer = trained(model)
    return {"model": model, "optimizer": optimizer}


@broken("zero-gradient", "0.weight", "0.bias", "2.weight")
def dead_units_known_from_the_moments(broken: bool) -> Arguments:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    nn.init.constant_(model[0].bias, -100.0 if broken else 1.0)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(5):
        step(model, optimizer)
    optimizer.zero_grad()
    return {"model": model, "optimizer": optimizer}


@broken("drifted-mask", "0.weight")
def mask_applied_once(broken: bool) -> Arguments:
    model, optimizer = trained()
    mask = torch.rand(6, 4) > 0.5
    with torch.no_grad():
        model[0].weight.mul_(mask)
    step(model, optimizer)
    if not broken:
        with torch.no_grad():
            model[0].weight.mul_(mask)
    return {"model": model, "optimizer": optimizer, "masks": {"0.weight": mask, "2.weight": torch.ones(3, 6) > 0}}


@broken("mask-shape", "0.weight", "4.weight")
def masks_of_another_model(broken: bool) -> Arguments:
    model = mlp()
    masks = {"0.weight": torch.ones(6, 5) > 0, "4.weight": torch.ones(2, 2) > 0} if broken else {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return {"model": model, "optimizer": optimizer, "masks": masks}


@broken("non-finite", "2.weight")
def parameter_with_nan(broken: bool) -> Arguments:
    model = mlp()
    if broken:
        with torch.no_grad():
            model[2].weight[0, 1] = torch.nan
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}


@broken("non-finite", "0.bias")
def gradient_with_infinity(broken: bool) -> Arguments:
    model, optimizer = trained()
    if broken:
        model[0].bias.grad[2] = torch.inf
    return {"model": model, "optimizer": optimizer}


@broken("non-finite", "0.bias")
def moment_with_nan(broken: bool) -> Arguments:
    model, optimizer = trained()
    if broken:
        optimizer.state[model[0].bias]["momentum_buffer"][0] = torch.nan
    return {"model": model, "optimizer": optimizer}


@broken("non-finite", "0.running_var")
def running_variance_with_infinity(broken: bool) -> Arguments:
    model = nn.Sequential(nn.BatchNorm1d(4))
    if broken:
        model[0].running_var[0] = torch.inf
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}


@broken("zero-layer", "2.weight")
def layer_emptied_by_its_mask(broken: bool) -> Arguments:
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    masks = {"2.weight": torch.zeros(32, 32, dtype=torch.bool)}
    masks["2.weight"][0, 0] = not broken
    with torch.no_grad():
        model[2].weight.mul_(masks["2.weight"])
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "masks": masks}


@broken("zero-layer", "2.weight")
def layer_pruned_as_a_whole(broken: bool) -> Arguments:
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    with torch.no_grad():
        model[2].weight.mul_(1e-3)
        threshold = 0.0 if not broken else 1e-2
        for layer in (model[0], model[2]):
            layer.weight[layer.weight.abs() < threshold] = 0.0
    return {"model": model}


@broken("layer-tensors-apart", "0")
def weight_cut_without_its_bias(broken: bool) -> Arguments:
    model, optimizer = trained()
    keep = [0, 2, 3]
    with secateur.transaction(model, optimizer) as surgery:
        surgery.resize("0.weight", dim=0, keep=keep)
        if not broken:
            surgery.resize("0.bias", dim=0, keep=keep)
            surgery.resize("2.weight", dim=1, keep=keep)
    return {"model": model, "optimizer": optimizer}
