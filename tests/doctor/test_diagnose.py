"""`diagnose` as a whole: what it takes, what it refuses, and the finer points of single checks."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel

from secateur import InvalidInputError
from secateur.doctor import CHECKS, Finding, Setup, check, diagnose, relink_
from tests.doctor.broken import BROKEN, replace, step, trained
from tests.doctor.trainings import LM, in_ddp, mlp


def codes(*args: Any, **kwargs: Any) -> list[tuple[str, tuple[str, ...]]]:
    return [(finding.code, finding.names) for finding in diagnose(*args, **kwargs)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "net"}, "`model` is not an nn.Module"),
        ({"optimizer": nn.Linear(2, 2)}, "`optimizer` is not an optimizer"),
        ({"optimizer": [torch.optim.SGD([torch.zeros(1)], lr=0.1), 3]}, "`optimizer` is not an optimizer"),
        ({"loss": 0.25}, r"`loss` is not a tensor(.|\n)*not loss\.item\(\)"),
        ({"masks": torch.ones(2, 2)}, r"`masks` has no items\(\)"),
        ({"masks": {"weight": None}}, "something else than tensors by name(.|\n)*'weight': NoneType"),
        ({"masks": {3: torch.ones(2, 2)}}, "something else than tensors by name(.|\n)*3: Tensor"),
    ],
)
def test_diagnose_refuses_what_it_cannot_look_at(arguments: dict[str, Any], message: str) -> None:
    model = nn.Linear(2, 2)
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(InvalidInputError, match=message):
        diagnose(**{"model": model, **arguments})
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


def test_diagnose_looks_at_a_model_alone() -> None:
    assert codes(mlp()) == []
    assert codes(nn.Identity()) == []
    assert codes(nn.Linear(3, 2, device="meta")) == []


def test_diagnose_works_without_gradients_and_in_inference_mode() -> None:
    arguments = BROKEN["cut_by_hand_while_an_output_is_alive"].build(True)
    wanted = [("stale-autograd-graph", ("0.weight", "0.bias", "2.weight"))]
    with torch.no_grad():
        assert codes(**arguments) == wanted
    with torch.inference_mode():
        assert codes(**arguments) == wanted


def test_diagnose_reports_several_things_at_once_errors_first() -> None:
    model, optimizer = trained()
    model.append(nn.Linear(3, 2))
    replace(model, "0.weight", torch.clone)
    optimizer.param_groups[0]["lr"] = 0.0
    found = diagnose(model, optimizer)
    assert found.codes == ("stale-optimizer-reference", "lr-zero", "parameter-not-in-optimizer")
    assert [f.severity for f in found] == ["error", "error", "warning"]


def test_diagnose_looks_through_a_compiled_model() -> None:
    model, optimizer = trained()
    compiled = torch.compile(model, backend="eager")
    replace(model, "0.weight", torch.clone)
    assert codes(compiled, optimizer) == [("stale-optimizer-reference", ("0.weight",))]
    assert relink_(compiled, optimizer).relinked == ("0.weight",)


def test_diagnose_finds_the_wrapper_when_only_the_inner_model_is_passed() -> None:
    model = mlp()
    wrapper = in_ddp(model)
    replace(model, "2.weight", torch.clone)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert codes(model, optimizer) == [("ddp-before-change", ("2.weight",))]
    assert wrapper.module is model


def test_diagnose_says_by_which_kind_of_line_each_weight_was_replaced() -> None:
    model, optimizer = trained()
    replace(model, "0.weight", lambda w: w * (w > 0))
    replace(model, "0.bias", lambda b: 0.5 * b)
    model[2].weight = nn.Parameter(model[2].weight)
    replace(model, "2.bias", lambda b: b + torch.arange(3.0))
    (finding,) = diagnose(model, optimizer)
    tensors = finding.data["tensors"]
    assert {name: facts["kind"] for name, facts in tensors.items()} == {
        "0.weight": "masked",
        "0.bias": "scaled",
        "2.weight": "same memory",
        "2.bias": "new values",
    }
    assert tensors["2.bias"]["matched_by"] == "order"
    for line in ("mask * model[0].weight", "0.5 * model[0].bias", "nn.Parameter(model[2].weight)", "with other values"):
        assert line in finding.why


def test_diagnose_shows_how_to_cut_in_place_what_was_cut() -> None:
    model, optimizer = trained()
    replace(model, "2.weight", lambda w: w[:, [0, 1, 4]])
    (finding,) = diagnose(model, optimizer)
    assert "`model[2].weight = nn.Parameter(model[2].weight[:, keep])`" in finding.why
    assert "secateur.resize_(model, '2.weight', dim=1, keep=keep, optimizer=optimizer)" in finding.fix


def test_diagnose_matches_weight_norm_that_came_after_the_optimizer() -> None:
    model, optimizer = trained()
    parametrizations.weight_norm(model[0])
    found = diagnose(model, optimizer)
    assert found.of("stale-optimizer-reference")[0].names == ("0.parametrizations.weight.original1",)
    assert found.of("parameter-not-in-optimizer")[0].names == ("0.parametrizations.weight.original0",)


def test_diagnose_is_silent_about_parameters_that_another_live_optimizer_holds() -> None:
    model = mlp()
    first, second = (torch.optim.SGD(model[i].parameters(), lr=0.1) for i in (0, 2))
    assert codes(model, first) == []
    del second
    assert codes(model, first) == [("parameter-not-in-optimizer", ("2.weight", "2.bias"))]


def test_diagnose_tells_a_kept_tensor_from_an_orphan() -> None:
    model, optimizer = trained()
    old = model[2]
    model[2] = nn.Identity()
    assert codes(model, optimizer) == []  # somebody still has a use for the old layer
    del old
    assert codes(model, optimizer) == [("orphan-tensor", ())]


def test_diagnose_does_not_judge_the_state_of_optimizers_that_it_does_not_know() -> None:
    class Blocked(torch.optim.Optimizer):
        """Keeps a square matrix for each dim, as Shampoo does."""

        def __init__(self, parameters: Iterator[nn.Parameter]) -> None:
            super().__init__(parameters, {"lr": 0.1})

        def step(self, closure: Any = None) -> None:
            for p in self.param_groups[0]["params"]:
                self.state[p]["factors"] = torch.eye(p.shape[0] + 1)

    model = mlp()
    optimizer = Blocked(model.parameters())
    step(model, optimizer)
    assert codes(model, optimizer) == []


def test_diagnose_knows_subclasses_of_known_optimizers() -> None:
    class Mine(torch.optim.AdamW):
        pass

    model = mlp()
    optimizer = Mine(model.parameters())
    step(model, optimizer)
    optimizer.zero_grad()
    model[0].weight.data = model[0].weight.data[:, :3]
    assert codes(model, optimizer) == [("state-shape", ("0.weight",))]


def test_diagnose_counts_drifted_weights() -> None:
    arguments = BROKEN["mask_applied_once"].build(True)
    mask = arguments["masks"]["0.weight"]
    weight = arguments["model"][0].weight
    wanted = sum(float(w) != 0 for w, kept in zip(weight.detach().flatten(), mask.flatten(), strict=True) if not kept)
    (finding,) = diagnose(**arguments)
    assert finding.data["counts"] == {"0.weight": wanted}
    assert wanted > 0


def test_diagnose_knows_a_mask_under_any_name_of_a_tied_weight() -> None:
    model = LM()
    mask = torch.rand(20, 8) > 0.5
    assert codes(model, masks={"head.weight": mask}) == [("drifted-mask", ("head.weight",))]


def test_diagnose_compares_every_kind_of_average() -> None:
    model = nn.Linear(4, 3)
    average, copy = AveragedModel(model), nn.Linear(4, 3)
    state = {name: p.detach().clone() for name, p in model.named_parameters()}
    model.weight.data = model.weight.data[:, :2]
    for ema in (average, copy, state, [average, copy]):
        assert codes(model, ema=ema) == [("ema-shape", ("weight",))]


@pytest.mark.parametrize("place", ["module", "ema_model"])
def test_diagnose_finds_the_copy_inside_an_average_of_another_library(place: str) -> None:
    model, average = mlp(), nn.Module()
    average.add_module(place, mlp())
    assert codes(model, ema=average) == []
    model[0] = nn.Linear(4, 5)
    assert codes(model, ema=average) == [("ema-shape", ("0.weight", "0.bias"))]


def test_diagnose_sees_a_frozen_dropout_only_where_something_around_it_is_trained() -> None:
    frozen = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5)).requires_grad_(False)
    model = nn.Sequential(frozen, nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5)), nn.Linear(6, 3)).eval()
    loss = model(torch.randn(8, 4)).sum()
    assert codes(model, loss=loss) == [("eval-mode", ("1.1",))]


def test_diagnose_accepts_a_gradient_of_another_dtype() -> None:
    model, optimizer = trained()
    optimizer.zero_grad()
    model(torch.randn(8, 4)).sum().backward()
    model[0].weight.data = model[0].weight.data.double()
    assert model[0].weight.grad is not None
    assert model[0].weight.grad.dtype == torch.float32
    nn.init.zeros_(model[0].bias.grad)
    assert codes(model, optimizer) == [("zero-gradient", ("0.bias",))]


def test_diagnose_reports_dead_units_beside_layers_whose_weights_are_all_one() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3), nn.LayerNorm(3))
    nn.init.constant_(model[0].bias, -100.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(8, 4)).pow(3).sum().backward()
    assert codes(model, optimizer) == [("zero-gradient", ("0.weight", "0.bias", "2.weight"))]


def test_diagnose_sees_a_warm_up_that_never_rises() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)
    assert codes(model, optimizer, scheduler=scheduler) == []
    step(model, optimizer)
    scheduler.step()
    (finding,) = diagnose(model, optimizer, scheduler=scheduler)
    assert (finding.code, finding.data["initial_lr"]) == ("lr-zero", 0.1)


def test_diagnose_only_warns_of_one_group_without_learning_rate() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters()}], lr=0.1
    )
    (finding,) = diagnose(model, optimizer)
    assert (finding.code, finding.names, finding.severity) == ("lr-zero", ("0.weight", "0.bias"), "warning")


def test_diagnose_accepts_an_optimizer_without_learning_rate() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["lr"] = None  # as Adafactor of transformers has it
    assert codes(model, optimizer) == []


def test_diagnose_reads_parameters_of_every_dtype() -> None:
    model = mlp()
    model.scale = nn.Parameter(torch.ones(2, 2).to(torch.float8_e4m3fn), requires_grad=False)
    model.empty = nn.Parameter(torch.zeros(2, 2).to(torch.float8_e4m3fn), requires_grad=False)
    model.codes = nn.Parameter(torch.ones(2, 2, dtype=torch.int8), requires_grad=False)
    assert codes(model) == [("zero-layer", ("empty",))]


def test_check_registers_and_replaces_by_code() -> None:
    def found(what: str) -> Iterator[Finding]:
        yield Finding("many-layers", (), what, "", "", "")

    try:
        check("many-layers")(lambda setup: found("first"))
        check("many-layers")(lambda setup: found(f"{len(setup.parameters)} parameters"))
        assert diagnose(mlp()).of("many-layers")[0].what == "4 parameters"
    finally:
        del CHECKS["many-layers"]
    assert not diagnose(mlp())


def test_setup_computes_once_what_several_checks_ask() -> None:
    asked: list[Setup] = []
    setup = Setup(mlp())

    def ask(given: Setup) -> int:
        asked.append(given)
        return len(given.parameters)

    assert [setup.once(ask), setup.once(ask)] == [4, 4]
    assert asked == [setup]


@pytest.mark.integration
def test_diagnose_knows_what_transformers_models_declare_as_tied() -> None:
    transformers = importlib.import_module("transformers")
    shape = {"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 11, "n_positions": 8}
    config = transformers.GPT2Config(**shape, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, 11, (2, 6))
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        assert codes(model, optimizer, loss) == []
        optimizer.step()
    names = ("transformer.wte.weight", "lm_head.weight")
    model.lm_head.weight = nn.Parameter(torch.rand_like(model.lm_head.weight))
    fresh = torch.optim.AdamW(model.parameters())
    assert codes(model, fresh) == [("tied-weights-apart", names)]
    config.tie_word_embeddings = False
    assert codes(transformers.GPT2LMHeadModel(config)) == []


def test_diagnose_knows_the_older_way_in_which_models_declare_ties() -> None:
    class Older(LM):
        _tied_weights_keys = ["head.weight"]  # noqa: RUF012

        def __init__(self, tied: bool) -> None:
            super().__init__()
            self.config = type("Config", (), {"tie_word_embeddings": tied})()
            self.head.weight = nn.Parameter(torch.rand(20, 8))

        def get_input_embeddings(self) -> nn.Module:
            return self.emb

        def get_output_embeddings(self) -> nn.Module:
            return self.head

    assert codes(Older(tied=True)) == [("tied-weights-apart", ("emb.weight", "head.weight"))]
    assert codes(Older(tied=False)) == []
