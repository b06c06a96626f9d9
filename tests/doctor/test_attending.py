"""The doctor in attendance: it finds models and optimizers by itself, and is silent where all is well."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import optimizer as optimizers

import secateur
from secateur.doctor.attending import Attendant
from secateur.doctor.sightings import Sighting
from tests.doctor.broken import replace, step
from tests.doctor.trainings import LM, TRAININGS, lm_loss, mlp

ALWAYS = float("inf")  # a share of the time that lets it look at values in every step


def codes(seen: list[Sighting]) -> list[tuple[str, tuple[str, ...], int | None]]:
    return [(each.finding.code, each.finding.names, each.finding.step) for each in seen]


@pytest.mark.parametrize("name", TRAININGS)
def test_healthy_training_is_met_with_silence(name: str) -> None:
    seen: list[Sighting] = []
    with Attendant(seen.append, share=ALWAYS) as attendant:
        training = TRAININGS[name]()
        for _ in training.moments(8):
            pass
    assert attendant.failure is None
    assert not seen, "\n".join(str(each.finding) for each in seen)
    assert attendant.num_steps >= 8


@pytest.mark.parametrize("name", ["mlp_adam", "lstm", "tied_language_model", "gan_in_one_module", "lbfgs"])
def test_training_is_the_same_to_the_last_bit(name: str) -> None:
    def trained() -> list[Tensor]:
        torch.manual_seed(3)
        training = TRAININGS[name]()
        for _ in training.moments(6):
            pass
        return list(training.model.parameters())

    alone = trained()
    with Attendant(lambda sighting: None, share=ALWAYS):
        attended = trained()
    assert all(torch.equal(a, b) for a, b in zip(alone, attended, strict=True))


@pytest.mark.parametrize(
    ("change", "code", "names"),
    [
        (lambda m: replace(m, "0.weight", torch.clone), "stale-optimizer-reference", ("0.weight",)),
        (lambda m: m.__setitem__(2, nn.Linear(6, 3)), "stale-optimizer-reference", ("2.weight", "2.bias")),
        (lambda m: m.append(nn.Linear(3, 2)), "parameter-not-in-optimizer", ("3.weight", "3.bias")),
        (lambda m: m.load_state_dict(copy.deepcopy(m.state_dict()), assign=True), "stale-optimizer-reference", None),
    ],
    ids=["replaced", "layer replaced", "layer added", "loaded by assignment"],
)
def test_change_is_noticed_before_the_next_step_with_its_line(
    change: Callable[[nn.Sequential], None], code: str, names: tuple[str, ...] | None
) -> None:
    seen: list[Sighting] = []
    with Attendant(seen.append, share=1e-9):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for number in range(4):
            step(model, optimizer)
            if number == 1:
                model.zero_grad()
                change(model)
    (sighting,) = seen
    names = names or tuple(dict(model.named_parameters()))
    assert codes(seen) == [(code, names, 3)]
    assert sighting.subject == "Sequential with SGD"
    assert sighting.seen is not None
    assert sighting.seen.code == "optimizer.step()"
    assert sighting.lines
    assert all(line.file in (__file__, step.__code__.co_filename) for line in sighting.lines)


def test_momentum_of_another_shape_is_noticed_before_the_step_that_raises() -> None:
    seen: list[Sighting] = []

    def train() -> None:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        step(model, optimizer)
        model.zero_grad()
        for weight, kept in (
            (model[0].weight, slice(4)),
            (model[0].bias, slice(4)),
            (model[2].weight, (..., slice(4))),
        ):
            weight.data = weight.data[kept].clone()
        step(model, optimizer)

    with pytest.raises(RuntimeError), Attendant(seen.append):
        train()
    assert codes(seen) == [("state-shape", ("0.weight", "0.bias", "2.weight"), 2)]
    assert [line.code for line in seen[0].lines] == ["weight.data = weight.data[kept].clone()"]


def test_replacement_before_the_first_step_is_noticed_at_the_first() -> None:
    seen: list[Sighting] = []
    with Attendant(seen.append):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model[2] = nn.Linear(6, 5)
        step(model, optimizer)
    assert codes(seen) == [("stale-optimizer-reference", ("2.weight", "2.bias"), 1)]
    assert [line.code for line in seen[0].lines] == ["model[2] = nn.Linear(6, 5)"]


def test_model_all_of_whose_parameters_were_replaced_before_the_first_step_is_found_by_its_calls() -> None:
    seen: list[Sighting] = []
    with Attendant(seen.append):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model = copy.deepcopy(model)
        for _ in range(3):
            step(model, optimizer)
    (sighting,) = seen
    assert sighting.finding.code == "stale-optimizer-reference"
    assert sighting.finding.names == ("0.weight", "0.bias", "2.weight", "2.bias")


def test_graph_of_another_shape_is_noticed_when_the_model_is_called_again() -> None:
    seen: list[Sighting] = []
    with Attendant(seen.append):
        layer = nn.Linear(10, 3)
        loss = layer(torch.ones(10)).sum()
        loss.backward()
        layer.weight.data = layer.weight.data[:, :7]
        layer.weight.grad = None
        with torch.no_grad():
            layer(torch.ones(7))
        assert not seen  # nothing is wrong with that
        new_loss = layer(torch.ones(7)).sum()
    assert codes(seen) == [("stale-autograd-graph", ("weight",), None)]
    assert [line.code for line in seen[0].lines] == ["layer.weight.data = layer.weight.data[:, :7]"]
    assert seen[0].seen is not None
    assert seen[0].seen.code == "new_loss = layer(torch.ones(7)).sum()"
    assert (loss.shape, new_loss.shape) == ((), ())


def test_cut_without_an_old_graph_is_met_with_silence() -> None:
    seen: list[Sighting] = []
    with Attendant(seen.append):
        layer = nn.Linear(10, 3)
        layer(torch.ones(10)).sum().backward()
        layer.weight.data = layer.weight.data[:, :7].clone()
        layer.weight.grad = None
        layer(torch.ones(7)).sum().backward()
    assert not seen


def test_hook_on_forward_passes_is_there_only_while_it_is_needed() -> None:
    hooks = nn.modules.module._global_forward_pre_hooks
    before = len(hooks)
    with Attendant(lambda sighting: None):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step(model, optimizer)
        assert len(hooks) == before
        model[0].bias.data = model[0].bias.data.repeat(2)
        assert len(hooks) == before + 1
        model[0].bias.data = model[0].bias.data[:6].clone()
        model[0].bias.grad = None
        step(model, optimizer)
        assert len(hooks) == before


def test_several_models_with_one_optimizer_are_one_subject() -> None:
    seen: list[Sighting] = []
    with Attendant(seen.append, share=ALWAYS):
        encoder, decoder = nn.Linear(4, 6), nn.Linear(6, 4)
        optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()])
        for number in range(4):
            optimizer.zero_grad()
            decoder(encoder(torch.randn(8, 4))).pow(2).mean().backward()
            optimizer.step()
            if number == 1:
                decoder.weight = nn.Parameter(decoder.weight.detach() * 2)
    (sighting,) = seen
    assert sighting.finding.code == "stale-optimizer-reference"
    assert [name.rpartition(".")[2] for name in sighting.finding.names] == ["weight"]
    assert sighting.lines[0].code == "decoder.weight = nn.Parameter(decoder.weight.detach() * 2)"
    assert sighting.subject == "Linear, Linear with Adam"


def test_models_with_optimizers_of_their_own_are_subjects_of_their_own() -> None:
    seen: list[Sighting] = []
    with Attendant(seen.append, share=ALWAYS):
        models = [mlp(), LM()]
        optimizers = [torch.optim.Adam(model.parameters()) for model in models]
        compute = lm_loss(models[1])
        for number in range(5):
            step(models[0], optimizers[0])
            optimizers[1].zero_grad()
            compute().backward()
            optimizers[1].step()
            if number == 2:
                replace(models[1], "head.weight", torch.clone)
    assert [(s.finding.code, s.subject) for s in seen] == [("tied-weights-apart", "LM with Adam")]


def test_optimizer_that_never_meets_a_gradient_is_noticed_after_some_steps() -> None:
    seen: list[Sighting] = []
    with Attendant(seen.append):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(8):
            model(torch.randn(8, 4)).pow(2).mean().backward()
            optimizer.zero_grad()
            optimizer.step()
    assert codes(seen) == [("no-gradient", (), 6)]


def test_learning_rate_of_zero_is_noticed_when_it_stays() -> None:
    seen: list[Sighting] = []
    with Attendant(seen.append):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for _ in range(8):
            step(model, optimizer)
    assert [(s.finding.code, s.finding.step) for s in seen] == [("lr-zero", 6)]


MASK = torch.arange(400).view(20, 20) % 2 == 0


def masked_by_data(weight: nn.Parameter) -> None:
    weight.data *= MASK


def masked_by_assignment(weight: nn.Parameter) -> None:
    weight.data = weight.data * MASK


def masked_without_gradient(weight: nn.Parameter) -> None:
    with torch.no_grad():
        weight.mul_(MASK)


@pytest.mark.parametrize("mask", [masked_by_data, masked_by_assignment, masked_without_gradient])
@pytest.mark.parametrize("at", [0, 3, 40])
def test_zeros_that_the_optimizer_moves_are_noticed_one_step_later(
    mask: Callable[[nn.Parameter], None], at: int
) -> None:
    seen: list[Sighting] = []
    with Attendant(seen.append, share=1e-9):
        model = nn.Sequential(nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for number in range(at + 4):
            if number == at:
                mask(model[0].weight)
            step(model, optimizer)
    assert codes(seen) == [("drifted-mask", ("0.weight",), at + 2)]
    assert seen[0].finding.data["counts"] == {"0.weight": 200}
    if at and mask is not masked_without_gradient:
        assert [line.code for line in seen[0].lines] in (
            ["weight.data *= MASK"],
            ["weight.data = weight.data * MASK"],
        )


@pytest.mark.parametrize("mask", [masked_by_data, masked_by_assignment, masked_without_gradient])
def test_zeros_that_are_set_again_after_each_step_are_met_with_silence(mask: Callable[[nn.Parameter], None]) -> None:
    seen: list[Sighting] = []
    with Attendant(seen.append, share=ALWAYS):
        model = nn.Sequential(nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 3))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1, weight_decay=0.1)
        for _ in range(8):
            mask(model[0].weight)
            step(model, optimizer)
    assert not seen


def test_masks_of_the_library_are_looked_at_after_they_were_held() -> None:
    seen: list[Sighting] = []
    with Attendant(seen.append, share=ALWAYS):
        model = nn.Sequential(nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 3))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        hooks = optimizers._global_optimizer_post_hooks
        late = optimizers.register_optimizer_step_post_hook(lambda *_: order.append("late"))
        order: list[str] = []
        secateur.prune_(model, optimizer, sparsity=0.5)
        step(model, optimizer)
        assert next(reversed(hooks)) != late.id
        late.remove()
        step(model, optimizer)
    assert (seen, order) == ([], ["late"])


def test_nothing_is_kept_alive() -> None:
    with Attendant(lambda sighting: None, share=ALWAYS):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step(model, optimizer)
        optimizer.zero_grad()
        gone: list[weakref.ref[Any]] = [weakref.ref(each) for each in (model, optimizer, model[0].weight)]
        del model, optimizer
        gc.collect()
        assert [reference() for reference in gone] == [None, None, None]


def test_models_can_be_copied_and_pickled_meanwhile() -> None:
    with Attendant(lambda sighting: None):
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters())
        step(model, optimizer)
        twin, other = copy.deepcopy((model, optimizer)), pickle.loads(pickle.dumps((model, optimizer)))
    for copied in (twin[0], other[0]):
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), copied.parameters(), strict=True))
        assert not copied._forward_pre_hooks
    assert b"secateur" not in pickle.dumps((model, optimizer))


def test_compiled_model_without_graph_breaks_is_attended_too() -> None:
    seen: list[Sighting] = []
    torch._dynamo.reset()
    with Attendant(seen.append, share=ALWAYS) as attendant:
        model = mlp()
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        optimizer = torch.optim.SGD(compiled.parameters(), lr=0.1)
        for _ in range(2):
            step(compiled, optimizer)
        replace(model, "0.weight", torch.clone)
        step(compiled, optimizer)
    assert attendant.failure is None
    assert codes(seen) == [("stale-optimizer-reference", ("0.weight",), 3)]


def test_everything_is_as_before_when_it_has_gone() -> None:
    tables = [
        nn.modules.module._global_parameter_registration_hooks,
        nn.modules.module._global_module_registration_hooks,
        nn.modules.module._global_forward_pre_hooks,
        optimizers._global_optimizer_pre_hooks,
        optimizers._global_optimizer_post_hooks,
    ]
    before = [len(table) for table in tables]
    with Attendant(lambda sighting: None):
        assert [len(table) for table in tables] != before
        assert "data" in vars(nn.Parameter)
    assert [len(table) for table in tables] == before
    assert "data" not in vars(nn.Parameter)


def test_failure_of_the_doctor_is_none_of_the_program() -> None:
    def fail(sighting: Sighting) -> None:
        raise ArithmeticError("no paper left")

    with Attendant(fail) as attendant:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        replace(model, "0.weight", torch.clone)
        for _ in range(3):
            step(model, optimizer)
    assert isinstance(attendant.failure, ArithmeticError)


def test_failing_program_is_looked_at_closely_at_its_end() -> None:
    seen: list[Sighting] = []

    def train() -> None:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step(model, optimizer)
        model[0].weight.data = model[0].weight.data[:5]
        step(model, optimizer)

    with pytest.raises(RuntimeError), Attendant(seen.append):
        train()
    assert "layer-tensors-apart" in [each.finding.code for each in seen]
