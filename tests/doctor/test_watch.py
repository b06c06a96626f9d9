"""`watch`: it notices at the right step, costs next to nothing, and goes away."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn

import secateur
from secateur import InvalidInputError
from secateur.doctor import Finding, relink_, watch
from tests.doctor.broken import replace, step
from tests.doctor.trainings import LM, lm_loss, mlp


def codes_and_steps(findings: secateur.doctor.Findings) -> list[tuple[str, tuple[str, ...], int | None]]:
    return [(f.code, f.names, f.step) for f in findings]


def test_watch_notices_at_the_step_at_which_a_weight_was_replaced() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[int] = []
    watching = watch(model, optimizer, on_finding=lambda finding: seen.append(len(steps)))
    steps: list[int] = []
    for number in range(5):
        steps.append(number)
        step(model, optimizer)
        if number == 2:
            replace(model, "0.weight", torch.clone)
    assert codes_and_steps(watching.findings) == [("stale-optimizer-reference", ("0.weight",), 4)]
    assert seen == [4]  # during the fourth step, not afterwards
    watching.close()


def test_watch_reports_each_weight_once_though_it_is_replaced_in_every_step() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with watch(model, optimizer) as watching:
        for number in range(6):
            step(model, optimizer)
            replace(model, "0.weight", lambda w: 0.5 * w)
            if number == 3:
                replace(model, "2.weight", torch.rand_like)
    first, second = watching.findings
    assert (first.names, first.step) == (("0.weight",), 2)
    assert ("2.weight" in second.names, second.step) == (True, 5)


@pytest.mark.parametrize(
    ("change", "code", "names"),
    [
        (lambda m: replace(m, "0.bias", torch.rand_like), "stale-optimizer-reference", ("0.bias",)),
        (lambda m: m.__setitem__(2, nn.Linear(6, 3)), "stale-optimizer-reference", ("2.weight", "2.bias")),
        (lambda m: m.__setitem__(2, nn.Identity()), "orphan-tensor", ()),
        (lambda m: m.append(nn.Linear(3, 2)), "parameter-not-in-optimizer", ("3.weight", "3.bias")),
        (lambda m: setattr(m[2].weight, "data", m[2].weight.data[:, :4]), "state-shape", ("2.weight",)),
    ],
    ids=["replaced", "layer replaced", "layer removed", "layer added", "cut by hand"],
)
def test_watch_notices_when_it_closes_what_happened_after_the_last_step(
    change: Callable[[nn.Sequential], None], code: str, names: tuple[str, ...]
) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with watch(model, optimizer) as watching:
        for _ in range(2):
            step(model, optimizer)
        optimizer.zero_grad()
        change(model)
    assert codes_and_steps(watching.findings) == [(code, names, 3)]


def test_watch_notices_tied_weights_that_come_apart() -> None:
    model = LM()
    optimizer = torch.optim.Adam(model.parameters())
    compute = lm_loss(model)
    with watch(model, optimizer) as watching:
        for number in range(3):
            optimizer.zero_grad()
            compute().backward()
            optimizer.step()
            if number == 0:
                replace(model, "head.weight", torch.clone)
    assert codes_and_steps(watching.findings) == [("tied-weights-apart", ("emb.weight", "head.weight"), 2)]


def test_watch_is_silent_about_surgery_that_takes_everything_along() -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    with watch(model, optimizer) as watching:
        step(model, optimizer)
        secateur.resize_(model, "2.weight", dim=0, keep=range(2), optimizer=optimizer)
        secateur.resize_(model, "2.bias", dim=0, keep=range(2), optimizer=optimizer)
        step(model, optimizer)
        with torch.no_grad():
            model[0].weight.mul_(0.5)
        step(model, optimizer)
    assert not watching.findings
    assert watching.num_steps == 3


def test_watch_is_silent_about_what_was_wrong_before() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    replace(model, "0.weight", torch.clone)
    with watch(model, optimizer) as watching:
        step(model, optimizer)
    assert not watching.findings


def test_watch_goes_on_after_a_repair() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer) as watching:
        step(model, optimizer)
        replace(model, "0.weight", torch.clone)
        step(model, optimizer)
        relink_(model, optimizer)
        step(model, optimizer)
        replace(model, "2.weight", torch.clone)
        step(model, optimizer)
    assert [(f.names, f.step) for f in watching.findings] == [(("0.weight",), 2), (("2.weight",), 4)]


def test_watch_lets_training_alone() -> None:
    model = mlp()
    twin = copy.deepcopy(model)
    optimizer, twin_optimizer = (torch.optim.Adam(m.parameters()) for m in (model, twin))
    with watch(model, optimizer):
        for m, o in ((model, optimizer), (twin, twin_optimizer)):
            torch.manual_seed(1)
            for _ in range(3):
                step(m, o)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_watch_removes_its_hooks_and_may_be_closed_twice() -> None:
    model = mlp()
    pair = [torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.SGD(model[2].parameters(), lr=0.1)]
    watching = watch(model, pair)
    assert [len(o._optimizer_step_pre_hooks) for o in pair] == [1, 1]
    watching.close()
    watching.close()
    assert [len(o._optimizer_step_pre_hooks) for o in pair] == [0, 0]
    assert repr(watching) == "Watch(closed, 0 steps, Findings())"


def test_watch_looks_a_last_time_when_the_block_ends_with_an_error() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    old = model(torch.randn(2, 4))
    watching = watch(model, optimizer)

    def break_off() -> None:
        with watching:
            model[0].weight.data = model[0].weight.data[:4]
            model[0].bias.data = model[0].bias.data[:4]
            model[2].weight.data = model[2].weight.data[:, :4]
            model(torch.randn(2, 4)).sum().backward()

    with pytest.raises(RuntimeError, match="invalid gradient"):
        break_off()
    assert old.shape == (2, 3)
    assert "stale-autograd-graph" in watching.findings.codes


def test_watch_hands_a_finding_to_the_callback_which_may_stop_training() -> None:
    def stop(finding: Finding) -> None:
        raise ArithmeticError(finding.code)

    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch(model, optimizer, on_finding=stop)
    step(model, optimizer)
    replace(model, "0.weight", torch.clone)
    before = model[0].bias.clone()
    with pytest.raises(ArithmeticError, match="stale-optimizer-reference"):
        step(model, optimizer)
    assert torch.equal(model[0].bias, before)


def test_watch_looks_at_no_values_while_nothing_is_replaced() -> None:
    class Loud(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(
            self, func: object, types: object, args: tuple = (), kwargs: dict | None = None
        ) -> object:
            calls.append(str(func))
            return func(*args, **(kwargs or {}))  # type: ignore[operator]

    calls: list[str] = []
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer) as watching:
        (hook,) = optimizer._optimizer_step_pre_hooks.values()
        with Loud():
            hook(optimizer, (), {})
        assert (calls, watching.num_steps) == ([], 1)


def test_watch_lets_go_of_a_model_that_nobody_else_refers_to() -> None:
    gc.collect()  # watches of earlier tests
    hooks = nn.modules.module._global_parameter_registration_hooks
    before = len(hooks)
    model = mlp()
    reference = weakref.ref(model)
    watch(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert len(hooks) == before + 1
    del model
    gc.collect()
    assert reference() is None
    assert len(hooks) == before


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [(nn.Linear(2, 2), "`optimizer` is not an optimizer"), (None, "no optimizer to watch"), ([], "no optimizer")],
)
def test_watch_refuses_what_is_no_optimizer(optimizer: object, message: str) -> None:
    hooks = len(nn.modules.module._global_parameter_registration_hooks)
    with pytest.raises(InvalidInputError, match=message):
        watch(mlp(), optimizer)
    assert len(nn.modules.module._global_parameter_registration_hooks) == hooks
