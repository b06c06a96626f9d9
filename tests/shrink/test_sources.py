"""Weights as other programs keep them, loaded into a model that may be larger: what fits, and what is refused."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import secateur
from secateur import InvalidInputError, Masks, ShapeError, UnsupportedError, load_, tickets
from secateur.checkpoints import Stored
from secateur.checkpoints.headers import encoded
from tests.shrink.models import is_unchanged, state_of


def mlp(width: int = 6) -> nn.Sequential:
    """A small net."""
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 2))


def trained(width: int = 6) -> nn.Sequential:
    """One whose buffers are not those of a new one."""
    model = mlp(width)
    model(torch.randn(8, 4))
    return model.eval()


def write_file(state: dict[str, Tensor], folder: Path) -> Path:
    safetensors.torch.save_file(state, folder / "model.safetensors", {"format": "pt"})
    return folder / "model.safetensors"


def write_shards(state: dict[str, Tensor], folder: Path) -> Path:
    """The hub's layout: one tensor a file, and the index."""
    where = {name: f"model-{n + 1:05d}-of-{len(state):05d}.safetensors" for n, name in enumerate(state)}
    for name, file in where.items():
        safetensors.torch.save_file({name: state[name]}, folder / file, {"format": "pt"})
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": where}))
    return path


def in_folder(write: Callable[[dict[str, Tensor], Path], Path]) -> Callable[[dict[str, Tensor], Path], Path]:
    return lambda state, folder: write(state, folder).parent


LAYOUTS = {
    "file": write_file,
    "index": write_shards,
    "folder of a file": in_folder(write_file),
    "folder of shards": in_folder(write_shards),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("width", [6, 3])
def test_weights_as_large_as_the_model_s_or_smaller_are_loaded(width: int, layout: str, tmp_path: Path) -> None:
    source, model, x = trained(width), mlp(), torch.randn(5, 4)
    path = LAYOUTS[layout](source.state_dict(), tmp_path)
    identities = [id(parameter) for parameter in model.parameters()]
    assert load_(model, path) is model
    assert [id(parameter) for parameter in model.parameters()] == identities
    assert (model[0].out_features, model[1].num_features, model[3].in_features) == (width,) * 3
    assert torch.equal(model.eval()(x), source(x))
    assert all(map(torch.equal, model.state_dict().values(), source.state_dict().values()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_entries_take_the_model_s_dtype(dtype: torch.dtype, tmp_path: Path) -> None:
    source = nn.Linear(4, 3, dtype=dtype)
    model = load_(nn.Linear(4, 5), write_file(source.state_dict(), tmp_path))
    assert model.weight.dtype == torch.float32
    assert torch.equal(model.weight, source.weight.float())


@pytest.mark.parametrize("there", ["embed.weight", "head.weight"])
@pytest.mark.parametrize("layout", [*LAYOUTS, "state dict"])
def test_of_tied_tensors_one_name_is_enough(layout: str, there: str, tmp_path: Path) -> None:
    def build() -> nn.ModuleDict:
        model = nn.ModuleDict({"embed": nn.Embedding(9, 4), "head": nn.Linear(4, 9, bias=False)})
        model["head"].weight = model["embed"].weight
        return model

    state = {there: torch.randn(9, 3)}
    model = load_(build(), state if layout == "state dict" else LAYOUTS[layout](state, tmp_path))
    assert model["head"].weight is model["embed"].weight
    assert torch.equal(model["embed"].weight, state[there])


def test_tensors_are_read_one_after_another_and_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_shards(trained().state_dict(), tmp_path)
    whole, memories = Stored.tensor, []

    def read(stored: Stored) -> Tensor:
        assert all(memory() is None for memory in memories)
        found = whole(stored)
        memories.append(weakref.ref(found))
        return found

    monkeypatch.setattr(Stored, "tensor", read)
    load_(mlp(), path)
    assert len(memories) == len(mlp().state_dict())


def test_masks_in_a_file_beside_the_weights_come_along(tmp_path: Path) -> None:
    source = trained()
    masks = secateur.prune_(source, sparsity=0.5)
    write_file(source.state_dict(), tmp_path)
    safetensors.torch.save_file(masks.state_dict(), tmp_path / "masks.safetensors")
    assert Masks(load_(mlp(), tmp_path)) == masks
    assert len(Masks(load_(mlp(), tmp_path, masks=False))) == 0
    assert len(Masks(load_(mlp(), tmp_path / "model.safetensors"))) == 0


# ---- what is refused, with nothing changed


def refused(model: nn.Module, path: Path, kind: type[Exception], told: str) -> str:
    """Check that a load fails and changes nothing; its message."""
    before = state_of(model)
    with pytest.raises(kind, match=told) as caught:
        load_(model, path)
    assert is_unchanged(model, before)
    return str(caught.value)


def other_names(folder: Path) -> None:
    state = mlp(8).state_dict()
    state["strange"] = torch.zeros(3)
    del state["3.bias"]
    write_shards(state, folder)


def missing_shard(folder: Path) -> None:
    write_shards(mlp().state_dict(), folder)
    (folder / "model-00002-of-00009.safetensors").unlink()


def index_of_more(folder: Path) -> None:
    path = write_shards(mlp().state_dict(), folder)
    listed = json.loads(path.read_text())
    listed["weight_map"]["strange"] = listed["weight_map"]["0.weight"]
    path.write_text(json.dumps(listed))


def truncated_shard(folder: Path) -> None:
    write_shards(mlp().state_dict(), folder)
    path = folder / "model-00009-of-00009.safetensors"
    os.truncate(path, path.stat().st_size - 3)


def truncated_header(folder: Path) -> None:
    os.truncate(write_file(mlp().state_dict(), folder), 40)


def truncated_file_of_ours(folder: Path) -> None:
    path = folder / "model.safetensors"
    secateur.save(mlp(), path)
    os.truncate(path, path.stat().st_size - 3)


def pickles(folder: Path) -> None:
    torch.save(mlp().state_dict(), folder / "pytorch_model.bin")


def nothing(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


REFUSED: dict[str, tuple[Callable[[Path], None], type[Exception], str]] = {
    "other names": (
        other_names,
        ShapeError,
        r"'0\.weight' does not fit(?s:.*)missing: 3\.bias \(2,\)(?s:.*)unknown: strange \(3,\)(?s:.*)"
        r"other shapes: 0\.weight \(8, 4\) for \(6, 4\), 0\.bias \(8,\) for \(6,\)",
    ),
    "missing shard": (missing_shard, InvalidInputError, "lists files that are not there.*\n  missing: model-00002"),
    "index of more": (index_of_more, InvalidInputError, "do not belong together.*\n  tensors: strange"),
    "truncated shard": (truncated_shard, InvalidInputError, "model-00009-of-00009.safetensors is truncated"),
    "truncated header": (truncated_header, InvalidInputError, "model.safetensors is truncated"),
    "truncated file of ours": (truncated_file_of_ours, InvalidInputError, "model.safetensors is truncated"),
    "pickles": (pickles, InvalidInputError, r"in pickles only(?s:.*)found: pytorch_model\.bin(?s:.*)weights_only=True"),
    "nothing": (nothing, InvalidInputError, "no safetensors files"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_and_nothing_changes(case: str, tmp_path: Path) -> None:
    make, kind, told = REFUSED[case]
    make(tmp_path)
    refused(mlp(), tmp_path, kind, told)


def test_long_lists_are_cut_off(tmp_path: Path) -> None:
    path = write_file({f"x{n:02d}": torch.zeros(1) for n in range(20)}, tmp_path)
    assert "x07 (1,) and 12 more" in refused(mlp(), path, ShapeError, "does not fit")


def test_a_dtype_that_torch_lacks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(encoded([("weight", "F6_E2M3", (4, 4)), ("bias", "F32", (4,))], {}) + bytes(12 + 16))
    refused(nn.Linear(4, 4), path, UnsupportedError, "cannot load 'weight': torch has no such dtype")


KINDS: dict[str, tuple[Callable[[nn.Module, Path], object], str]] = {
    "plan": (
        lambda model, path: secateur.plan_shrink(model, torch.randn(3, 4), sparsity=0.5).save(path),
        r"holds a plan, and no weights(?s:.*)ShrinkPlan\.load",
    ),
    "compressed": (
        lambda model, path: secateur.compress(model, torch.randn(3, 4)).save(path),
        r"holds a compressed model, and no weights(?s:.*)load_compressed",
    ),
    "ticket": (
        lambda model, path: tickets.Ticket.of(model, tickets.Snapshot.of(model)).save(path),
        r"holds a ticket, and no weights(?s:.*)Ticket\.load",
    ),
    "snapshot": (
        lambda model, path: tickets.Snapshot.of(model).save(path),
        r"holds a snapshot, and no weights(?s:.*)Snapshot\.load",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_other_kinds_say_what_reads_them(kind: str, tmp_path: Path) -> None:
    write, told = KINDS[kind]
    model = trained()
    secateur.prune_(model, sparsity=0.5)
    write(model, tmp_path / "file.safetensors")
    refused(mlp(), tmp_path / "file.safetensors", InvalidInputError, told)


def test_a_file_of_torch_save_says_how_to_convert_it(tmp_path: Path) -> None:
    torch.save(mlp().state_dict(), tmp_path / "other.pt")
    refused(mlp(), tmp_path / "other.pt", InvalidInputError, r"not a safetensors file(?s:.*)fix:(?s:.*)other\.pt")
