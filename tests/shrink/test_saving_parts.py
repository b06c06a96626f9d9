"""Masks and plans in the file of a model; and files that are there in whole or not at all."""

from __future__ import annotations

import copy
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from secateur import HolderError, InvalidInputError, Masks, ShapeError, UnsupportedError, prune_
from secateur.shrink import GrowPlan, ShrinkPlan, load_, plan_grow, plan_shrink, random, save
from tests.shrink.models import is_unchanged, randomized, state_of
from tests.shrink.test_saving import MODELS, smaller

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.float8_e4m3fn]
SPECIAL = torch.tensor([0.0, -0.0, float("nan"), 1.0, -2.0])


def values(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Values among which zeros of both signs and nan are frequent."""
    return SPECIAL[torch.randint(len(SPECIAL), shape)].clone().to(dtype)


def bytes_of(tensor: Tensor) -> bytes:
    """What is in memory, where nan is equal to itself."""
    return bytes(tensor.detach().contiguous().flatten().view(torch.uint8).tolist())


def header_of(path: Path) -> dict[str, str]:
    with safetensors.safe_open(path, "pt") as file:
        return dict(file.metadata())


def rewritten(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what a file says of its masks."""
    stored, metadata = safetensors.torch.load_file(path), header_of(path)
    part = json.loads(metadata["masks"])
    change(part["tensors"])
    safetensors.torch.save_file(stored, path, metadata | {"masks": json.dumps(part)})


class Free(nn.Module):
    """Parameters of any shapes and dtypes, the first of which may have a second name."""

    def __init__(self, shapes: list[tuple[int, ...]], dtypes: list[torch.dtype], *, tied: bool) -> None:
        super().__init__()
        for number, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True)):
            self.register_parameter(f"p{number}", nn.Parameter(values(shape, dtype), requires_grad=False))
        self.twin = self.p0 if tied else nn.Parameter(torch.randn(2))


SHAPES = st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), min_size=1, max_size=3)


@settings(max_examples=40, deadline=None)
@given(SHAPES, st.data())
def test_masks_of_any_shape_and_dtype_come_back_and_the_zeros_without_them(
    shapes: list[tuple[int, ...]], data: st.DataObject
) -> None:
    dtypes = data.draw(st.lists(st.sampled_from(DTYPES), min_size=len(shapes), max_size=len(shapes)))
    tied = data.draw(st.booleans())
    torch.manual_seed(data.draw(st.integers(0, 9)))
    model, fresh, plain = (Free(shapes, dtypes, tied=tied) for _ in range(3))
    masked = data.draw(st.lists(st.sampled_from(range(len(shapes))), unique=True))
    wanted = {f"p{number}": torch.rand(shapes[number]) < 0.6 for number in masked}
    expected = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for name, mask in wanted.items():
        expected[name] = torch.where(mask, expected[name], torch.zeros((), dtype=expected[name].dtype))
    masks = Masks.from_dict(model, wanted)
    for name, mask in wanted.items():  # between two steps, which the next one would undo
        parameter = model.get_parameter(name)
        parameter.data = torch.where(mask, parameter.data, torch.ones((), dtype=parameter.dtype))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save(model, path)
        stored = safetensors.torch.load_file(path)
        load_(fresh, path)
        load_(plain, path, masks=False)
    assert stored.keys() == expected.keys()
    for loaded in (fresh, plain):
        for name, parameter in loaded.named_parameters():
            assert bytes_of(parameter) == bytes_of(expected[name])
    assert {name: mask.tolist() for name, mask in Masks(fresh).items()} == {n: m.tolist() for n, m in wanted.items()}
    assert Masks(fresh) == masks
    assert len(Masks(plain)) == 0


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> list[Tensor]:
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("name", ["mlp", "cnn", "attention", "tied"])
def test_masks_that_are_loaded_are_in_force_for_any_optimizer(name: str, tmp_path: Path) -> None:
    model, x = smaller(name)
    masks = prune_(model, sparsity=0.5)
    save(model, tmp_path / "model.safetensors")
    fresh = load_(MODELS[name][0]().double().eval(), tmp_path / "model.safetensors")
    first, second = (torch.optim.AdamW(each.parameters(), lr=0.1) for each in (model, fresh))
    assert all(map(torch.equal, trained(model, first, x), trained(fresh, second, x)))
    assert all(not fresh.get_parameter(n)[~mask].any() for n, mask in masks.items())
    assert Masks(fresh) == masks


def test_an_optimizer_that_is_passed_is_attached_with_its_state(tmp_path: Path) -> None:
    model, x = smaller("mlp")
    masks = prune_(model, sparsity=0.5)
    save(model, tmp_path / "model.safetensors")
    fresh = MODELS["mlp"][0]().double()
    optimizer = torch.optim.SGD(fresh.parameters(), lr=0.1, momentum=0.9)
    trained(fresh, optimizer, x)
    load_(fresh, tmp_path / "model.safetensors", optimizer=optimizer)
    for name, mask in masks.items():
        momentum = optimizer.state[fresh.get_parameter(name)]["momentum_buffer"]
        assert not momentum[~mask].any()
        assert momentum.any()


def test_other_masks_of_the_model_give_way_and_weights_come_back(tmp_path: Path) -> None:
    model, other = nn.Linear(8, 8), nn.Linear(8, 8)
    masks = prune_(model, sparsity=0.25)
    save(model, tmp_path / "model.safetensors")
    prune_(other, sparsity=0.75)
    load_(other, tmp_path / "model.safetensors")
    assert Masks(other) == masks
    assert torch.equal(other.weight, model.weight)


def test_masks_may_be_named_or_left_out(tmp_path: Path) -> None:
    model = nn.Linear(8, 8)
    masks = prune_(model, sparsity=0.5)
    for given_masks, is_there in ((masks, True), (True, True), (False, False)):
        save(model, tmp_path / "model.safetensors", masks=given_masks)
        stored = safetensors.torch.load_file(tmp_path / "model.safetensors")
        assert ("masks" in header_of(tmp_path / "model.safetensors")) == is_there
        assert torch.equal(stored["weight"], model.weight)
    with pytest.raises(InvalidInputError, match="the masks are those of another Linear"):
        save(nn.Linear(8, 8), tmp_path / "other.safetensors", masks=masks)
    assert not (tmp_path / "other.safetensors").exists()


def test_a_compiled_model_has_the_names_of_the_plain_one(tmp_path: Path) -> None:
    model = nn.Linear(8, 8)
    masks = prune_(model, sparsity=0.5)
    save(torch.compile(model), tmp_path / "model.safetensors")
    assert set(safetensors.torch.load_file(tmp_path / "model.safetensors")) >= {"weight", "bias"}
    fresh = torch.compile(nn.Linear(8, 8))
    assert load_(fresh, tmp_path / "model.safetensors") is fresh
    assert torch.equal(fresh.weight, model.weight)
    assert Masks(fresh) == masks


def test_a_mask_of_another_shape_is_refused_before_anything_changes(tmp_path: Path) -> None:
    model = nn.Linear(8, 8)
    prune_(model, sparsity=0.5)
    path = tmp_path / "model.safetensors"
    save(model, path)
    rewritten(path, lambda masks: masks["weight"].__setitem__(1, [4, 16]))
    fresh = nn.Linear(8, 8)
    before = state_of(fresh)
    with pytest.raises(InvalidInputError, match="the mask of 'weight' is of another shape than what is loaded"):
        load_(fresh, path)
    assert is_unchanged(fresh, before)
    assert torch.equal(load_(fresh, path, masks=False).weight, model.weight)


DAMAGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "no base64": lambda masks: masks["weight"].__setitem__(2, "????"),
    "no zlib": lambda masks: masks["weight"].__setitem__(2, "AAAA"),
    "no text": lambda masks: masks.__setitem__("weight", 3),
    "other kind": lambda masks: masks["weight"].__setitem__(0, "float31"),
    "size below zero": lambda masks: masks["weight"].__setitem__(1, [-8, 8]),
    "too large": lambda masks: masks["weight"].__setitem__(1, [800, 8]),
    "too small": lambda masks: masks["weight"].__setitem__(1, [0, 8]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_mask_that_cannot_be_decoded_is_refused_before_anything_changes(damage: str, tmp_path: Path) -> None:
    model, path = nn.Linear(8, 8), tmp_path / "model.safetensors"
    prune_(model, sparsity=0.5)
    save(model, path)
    rewritten(path, DAMAGES[damage])
    fresh = nn.Linear(8, 8)
    before = state_of(fresh)
    with pytest.raises(InvalidInputError, match="'weight' in the header of the file is damaged"):
        load_(fresh, path)
    assert is_unchanged(fresh, before)
    assert torch.equal(load_(fresh, path, masks=False).weight, model.weight)


def test_a_header_that_no_program_would_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(800, 100)
    with torch.no_grad():
        model.weight.mul_(torch.rand(100, 800) < 0.5)
    Masks.from_dict(model, {"weight": torch.rand(100, 800) < 0.5})
    monkeypatch.setattr("secateur.shrink.files.LONGEST", 4000)  # kept zeros at random take most of a bit each
    with pytest.raises(UnsupportedError, match=r"header of a safetensors file can hold: masks(?s:.*)masks=False"):
        save(model, tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())
    save(model, tmp_path / "model.safetensors", masks=False)


def test_masks_take_next_to_nothing_where_no_kept_weight_is_zero(tmp_path: Path) -> None:
    model = nn.Linear(1000, 1000)
    prune_(model, sparsity=0.9)
    save(model, tmp_path / "model.safetensors")
    assert len(header_of(tmp_path / "model.safetensors")["masks"]) < 500


ELSEWHERE = """
import sys

import safetensors.torch
import torch
from torch import nn

model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
model[2].register_buffer("table", torch.zeros(3), persistent=False)
model[2].weight = nn.Parameter(model[2].weight)
model.load_state_dict(safetensors.torch.load_file(sys.argv[1]), strict=True)
safetensors.torch.save_file({"it": model(torch.linspace(-1, 1, 12).view(2, 6)).detach()}, sys.argv[2])
assert "secateur" not in sys.modules
"""


def test_another_program_loads_the_file_strictly_and_computes_the_same(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    model[2].register_buffer("table", torch.ones(3), persistent=False)
    prune_(model, sparsity=0.5)
    plan = plan_shrink(copy.deepcopy(model), torch.ones(2, 6), sparsity=0.5)
    save(model, tmp_path / "model.safetensors", plan=plan)
    words = [sys.executable, "-c", ELSEWHERE, tmp_path / "model.safetensors", tmp_path / "out"]
    subprocess.run(words, check=True)
    found = safetensors.torch.load_file(tmp_path / "out")["it"]
    assert torch.equal(found, model(torch.linspace(-1, 1, 12).view(2, 6)))


def test_tied_tensors_are_loaded_as_safetensors_loads_a_model(tmp_path: Path) -> None:
    model, fresh = Free([(4, 3)], [torch.float32], tied=True), Free([(4, 3)], [torch.float32], tied=True)
    Masks.from_dict(model, {"p0": torch.rand(4, 3) < 0.5})
    save(model, tmp_path / "model.safetensors")
    assert safetensors.torch.load_model(fresh, tmp_path / "model.safetensors") == (set(), [])
    assert bytes_of(fresh.twin) == bytes_of(model.p0)


@pytest.mark.parametrize("entries", [3, 1 << 22, (1 << 22) + 1])
def test_buffers_in_no_state_dict_come_back_whatever_their_size(entries: int, tmp_path: Path) -> None:
    def build(value: float) -> nn.Linear:
        model = nn.Linear(2, 2)
        model.register_buffer("table", torch.full((entries,), value), persistent=False)
        return model

    save(build(3.0), tmp_path / "model.safetensors")
    assert bool((load_(build(0.0), tmp_path / "model.safetensors").table == 3).all())
    others = safetensors.torch.load_file(tmp_path / "model.safetensors").keys() - {"weight", "bias"}
    assert bool(others) == (4 * entries > 1 << 24)


def test_masks_of_another_architecture_are_refused_with_what_differs(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    prune_(model, sparsity=0.5)
    save(model, tmp_path / "model.safetensors")
    fresh = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    before = state_of(fresh)
    with pytest.raises(ShapeError, match=r"missing: 2\.weight(?s:.*)unknown: 1\.bias"):
        load_(fresh, tmp_path / "model.safetensors")
    assert is_unchanged(fresh, before)


@pytest.mark.parametrize("change", [{"aliases": None}, {"numbers": [["", "in_features"]]}, {"complex": None}])
def test_a_header_that_is_damaged_is_told(change: dict[str, object], tmp_path: Path) -> None:
    model, path = nn.Linear(8, 8), tmp_path / "model.safetensors"
    save(model, path)
    stored = safetensors.torch.load_file(path)
    with safetensors.safe_open(path, "pt") as file:
        header = json.loads(file.metadata()["model"])
    safetensors.torch.save_file(stored, path, {"model": json.dumps(header | change)})
    with pytest.raises(InvalidInputError, match="damaged"):
        load_(nn.Linear(8, 8), path)


def test_an_optimizer_of_another_model_is_refused_before_anything_changes(tmp_path: Path) -> None:
    model = nn.Linear(8, 8)
    prune_(model, sparsity=0.5)
    save(model, tmp_path / "model.safetensors")
    fresh = nn.Linear(8, 8)
    before = state_of(fresh)
    with pytest.raises(HolderError, match="holds no parameter of Linear"):
        load_(fresh, tmp_path / "model.safetensors", optimizer=torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1))
    assert is_unchanged(fresh, before)
    assert len(Masks(fresh)) == 0


@pytest.mark.parametrize("name", MODELS)
def test_the_plan_is_read_from_the_file_of_the_model(name: str, tmp_path: Path) -> None:
    make, x = MODELS[name]
    model = randomized(make())
    plan = plan_shrink(model, x, sparsity=0.4, min_units=1, score=random)
    dense = copy.deepcopy(model)
    plan.apply_(model)
    save(model, tmp_path / "model.safetensors", plan=plan)
    again = ShrinkPlan.load(tmp_path / "model.safetensors")
    assert again == plan
    assert repr(again) == repr(plan)
    assert torch.equal(again.apply_(dense)(x), model(x))
    assert torch.equal(load_(make().double().eval(), tmp_path / "model.safetensors")(x), model(x))


def test_masks_and_a_plan_to_grow_are_in_one_file(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 2))
    masks = prune_(model, sparsity=0.5)
    plan = plan_grow(model, torch.ones(2, 6), growth=1.5)
    save(model, tmp_path / "model.safetensors", plan=plan)
    assert GrowPlan.load(tmp_path / "model.safetensors") == plan
    assert Masks(load_(copy.deepcopy(model), tmp_path / "model.safetensors")) == masks


@pytest.mark.parametrize("plan", [ShrinkPlan, GrowPlan])
def test_a_file_without_a_plan_says_so(plan: type[ShrinkPlan] | type[GrowPlan], tmp_path: Path) -> None:
    save(nn.Linear(2, 2), tmp_path / "model.safetensors")
    with pytest.raises(InvalidInputError, match=rf"not a file of the kind secateur\.{plan.__name__}"):
        plan.load(tmp_path / "model.safetensors")


# ---- all or nothing


KILLED = """
import os, signal, sys
import safetensors.torch
from torch import nn
import secateur

whole = safetensors.torch.save_file

def killed(tensors, path, *rest):
    whole(tensors, path, *rest)
    os.truncate(path, os.path.getsize(path) // 2)
    os.kill(os.getpid(), signal.SIGKILL)

safetensors.torch.save_file = killed
secateur.save(nn.Linear(64, 64), sys.argv[1])
"""


def test_a_killed_run_leaves_the_file_of_before(tmp_path: Path) -> None:
    model, path = nn.Linear(64, 64), tmp_path / "model.safetensors"
    save(model, path)
    assert subprocess.run([sys.executable, "-c", KILLED, path], check=False).returncode == -signal.SIGKILL
    assert torch.equal(load_(nn.Linear(64, 64), path).weight, model.weight)


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"no such folder(?s:.*)mkdir -p"):
        save(nn.Linear(2, 2), tmp_path / "no" / "model.safetensors")
