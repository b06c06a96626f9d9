"""The rest of a training loop after a resize: schedulers, scalers, clipping, accumulation, checkpoints, compiled code.

The oracle is the same loop on the whole model, in which the removed inputs and units are dead.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from secateur import grow_, transaction

UNITS, INPUTS = [0, 2, 3, 6], [0, 1, 4]


def net() -> nn.Sequential:
    """Seven hidden units, of which `UNITS` are alive."""
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)).double()
    gone = torch.tensor([i for i in range(7) if i not in UNITS])
    with torch.no_grad():
        model[0].weight.index_fill_(0, gone, 0)
        model[0].weight.index_fill_(1, torch.tensor([i for i in range(5) if i not in INPUTS]), 0)
        model[0].bias.index_fill_(0, gone, 0)
        model[2].weight.index_fill_(1, gone, 0)
    return model


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Inputs of which `INPUTS` are alive, and targets."""
    generator = torch.Generator().manual_seed(step)
    x, y = (torch.randn(6, n, generator=generator, dtype=torch.float64) for n in (5, 2))
    x[:, [i for i in range(5) if i not in INPUTS]] = 0
    return x, y


def shrink(model: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
    with transaction(model, list(optimizers)) as t:
        t.resize("0.weight", dim=0, keep=UNITS)
        t.resize("0.weight", dim=1, keep=INPUTS)
        t.resize("0.bias", dim=0, keep=UNITS)
        t.resize("2.weight", dim=1, keep=UNITS)


def loss_of(model: nn.Module, step: int) -> Tensor:
    x, y = batch(step)
    inner = getattr(model, "_orig_mod", model)
    x = x if inner[0].in_features == 5 else x[:, INPUTS]
    return nn.functional.mse_loss(model(x), y)


def assert_small_equals_whole(small: nn.Module, whole: nn.Module) -> None:
    expected = [whole[0].weight[UNITS][:, INPUTS], whole[0].bias[UNITS], whole[2].weight[:, UNITS], whole[2].bias]
    for found, target in zip(small.parameters(), expected, strict=True):
        torch.testing.assert_close(found, target, rtol=1e-12, atol=1e-14)


def both(make: Callable[[nn.Module], torch.optim.Optimizer]) -> list[tuple[nn.Module, torch.optim.Optimizer]]:
    """Two equal training runs, of which the second will be shrunk."""
    models = [net(), net()]
    models[1].load_state_dict(models[0].state_dict())
    return [(model, make(model)) for model in models]


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.05)


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, gamma=0.5),
    "one cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "plateau": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=0),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_go_on(name: str) -> None:
    (whole, whole_optimizer), (small, small_optimizer) = runs = both(adam)
    schedulers = [SCHEDULERS[name](optimizer) for _, optimizer in runs]
    for step in range(8):
        if step == 3:
            shrink(small, small_optimizer)
        for (model, optimizer), scheduler in zip(runs, schedulers, strict=True):
            optimizer.zero_grad()
            loss = loss_of(model, step)
            loss.backward()
            optimizer.step()
            scheduler.step(loss.item()) if name == "plateau" else scheduler.step()
    assert whole_optimizer.param_groups[0]["lr"] == pytest.approx(small_optimizer.param_groups[0]["lr"], rel=1e-12)
    assert_small_equals_whole(small, whole)


@pytest.mark.parametrize("where", ["before backward", "after backward", "after unscale_", "after step"])
def test_gradient_scaler_goes_on(where: str) -> None:
    (whole, _), (small, small_optimizer) = runs = both(adam)
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2) for _ in runs]
    for step in range(6):
        for (model, optimizer), scaler in zip(runs, scalers, strict=True):

            def cut_now(at: str, model: nn.Module = model, step: int = step) -> None:
                if (step, at) == (2, where) and model is small:
                    shrink(small, small_optimizer)

            optimizer.zero_grad()
            cut_now("before backward")
            scaler.scale(loss_of(model, step)).backward()
            cut_now("after backward")
            scaler.unscale_(optimizer)
            cut_now("after unscale_")
            scaler.step(optimizer)
            scaler.update()
            cut_now("after step")
    assert scalers[0].get_scale() == scalers[1].get_scale() == 2.0**11
    assert_small_equals_whole(small, whole)


def test_scaler_skips_a_step_with_infinite_gradients_after_a_resize() -> None:
    _, (small, optimizer) = both(adam)
    del _
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    shrink(small, optimizer)
    scaler.scale(loss_of(small, 0)).backward()
    small[0].weight.grad[0, 0] = torch.inf
    before = small[0].weight.detach().clone()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(small[0].weight, before)
    assert scaler.get_scale() == 2.0


@pytest.mark.parametrize("cut_at", [0, 1, 2, 3])
def test_accumulation_goes_on_half_way(cut_at: int) -> None:
    (whole, _), (small, small_optimizer) = runs = both(adam)
    for step in range(8):
        if step == 4 + cut_at:
            shrink(small, small_optimizer)
        for model, optimizer in runs:
            (loss_of(model, step) / 4).backward()
            if step % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
    assert_small_equals_whole(small, whole)


def test_clipping_sees_the_same_norm() -> None:
    (whole, _), (small, small_optimizer) = runs = both(adam)
    for step in range(6):
        norms = []
        for model, optimizer in runs:
            optimizer.zero_grad()
            loss_of(model, step).backward()
            if step == 3 and model is small:
                shrink(small, small_optimizer)
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())
            optimizer.step()
        assert norms[0] == pytest.approx(norms[1], rel=1e-12)
    assert_small_equals_whole(small, whole)


def test_several_groups_and_optimizers_go_on() -> None:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1}]
        groups.append({"params": [p for p in model.parameters() if p.dim() == 1], "lr": 0.5})
        return torch.optim.SGD(groups, lr=0.05, momentum=0.9)

    (whole, _), (small, small_optimizer) = runs = both(make)
    for step in range(6):
        if step == 3:
            shrink(small, small_optimizer)
        for model, optimizer in runs:
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
    assert [len(group["params"]) for group in small_optimizer.param_groups] == [2, 2]
    assert_small_equals_whole(small, whole)


def test_step_hooks_still_fire_once() -> None:
    _, (small, optimizer) = both(adam)
    log: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: log.append("pre"))
    optimizer.register_step_post_hook(lambda *_: log.append("post"))
    del _
    shrink(small, optimizer)
    loss_of(small, 0).backward()
    optimizer.step()
    assert log == ["pre", "post"]


def test_checkpoint_of_the_whole_training_resumes() -> None:
    _, (small, optimizer) = both(adam)
    del _
    scheduler = SCHEDULERS["cosine"](optimizer)
    for step in range(4):
        if step == 2:
            shrink(small, optimizer)
        optimizer.zero_grad()
        loss_of(small, step).backward()
        optimizer.step()
        scheduler.step()
    saved = copy.deepcopy([small.state_dict(), optimizer.state_dict(), scheduler.state_dict()])
    fresh = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    fresh_optimizer = adam(fresh)
    fresh_scheduler = SCHEDULERS["cosine"](fresh_optimizer)
    for obj, state in zip((fresh, fresh_optimizer, fresh_scheduler), saved, strict=True):
        obj.load_state_dict(state)
    for step in range(4, 8):
        for model, o, s in ((small, optimizer, scheduler), (fresh, fresh_optimizer, fresh_scheduler)):
            o.zero_grad()
            loss_of(model, step).backward()
            o.step()
            s.step()
    assert all(map(torch.equal, small.parameters(), fresh.parameters()))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointed_activations_go_on(use_reentrant: bool) -> None:
    (whole, _), (small, small_optimizer) = runs = both(adam)

    def loss(model: nn.Module, step: int) -> Tensor:
        x, y = batch(step)
        x = (x if model[0].in_features == 5 else x[:, INPUTS]).requires_grad_()
        out = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=use_reentrant)
        return nn.functional.mse_loss(out, y)

    for step in range(5):
        if step == 2:
            shrink(small, small_optimizer)
        for model, optimizer in runs:
            optimizer.zero_grad()
            loss(model, step).backward()
            optimizer.step()
    assert_small_equals_whole(small, whole)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_compiled_model_and_step_go_on() -> None:
    def make(model: nn.Module) -> torch.optim.Optimizer:  # compiled Adam itself counts its steps in float32
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    torch.compiler.reset()
    (whole, whole_optimizer), (small, small_optimizer) = both(make)
    compiled = torch.compile(small, backend="aot_eager")
    step_small = torch.compile(small_optimizer.step, backend="aot_eager")
    for step in range(4):
        if step == 2:
            shrink(compiled, small_optimizer)
        for model, optimizer, take in (
            (whole, whole_optimizer, whole_optimizer.step),
            (compiled, small_optimizer, step_small),
        ):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            take()
    assert_small_equals_whole(small, whole)
    torch.compiler.reset()


def test_new_inputs_that_are_zero_leave_the_trajectory() -> None:
    (whole, _), (grown, grown_optimizer) = runs = both(adam)
    for step in range(6):
        if step == 3:
            grow_(grown[0], "weight", dim=1, size=8, optimizer=grown_optimizer)
        for model, optimizer in runs:
            x, y = batch(step)
            x = nn.functional.pad(x, (0, model[0].in_features - 5))
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    assert torch.equal(grown[0].weight[:, :5], whole[0].weight) or torch.allclose(
        grown[0].weight[:, :5], whole[0].weight, rtol=1e-12, atol=1e-14
    )
    assert not grown[0].weight[:, 5:].any()
