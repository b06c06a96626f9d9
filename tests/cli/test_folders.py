"""``hf:FOLDER``: folders of transformers, of which nothing is unpickled."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers.utils import logging

import secateur
from secateur import InvalidInputError, ShapeError
from secateur.cli.folders import load_folder, without_cache
from tests.cli.conftest import Run, llama


def test_folder_gives_the_model_with_its_weights(llama_folder: Path) -> None:
    expected = llama()
    found = load_folder(str(llama_folder))
    assert type(found) is type(expected)
    assert all(torch.equal(a, b) for a, b in zip(found.parameters(), expected.parameters(), strict=True))


def test_dtype_is_that_of_the_folder(tmp_path: Path) -> None:
    llama().bfloat16().save_pretrained(tmp_path / "llama")
    assert next(load_folder(str(tmp_path / "llama")).parameters()).dtype == torch.bfloat16


def test_folder_that_no_config_describes_gives_the_smaller_model_with_its_dtypes_and_masks(tmp_path: Path) -> None:
    llama().bfloat16().save_pretrained(tmp_path / "llama")
    model, inputs = load_folder(str(tmp_path / "llama")), torch.arange(8)[None]
    masks = secateur.prune_(model, sparsity=0.5)
    with without_cache(model):
        secateur.shrink_(model, inputs, sparsity=0.5)
        assert not secateur.shrink.save_pretrained(model, tmp_path / "small", inputs)
    again = load_folder(str(tmp_path / "small"))
    assert {p.dtype for p in again.parameters()} == {torch.bfloat16}
    assert again.model.rotary_emb.inv_freq.dtype == torch.float32
    assert secateur.Masks(again) == masks
    assert torch.equal(again(inputs).logits, model(inputs).logits)


def test_bars_of_transformers_are_as_they_were(llama_folder: Path) -> None:
    logging.enable_progress_bar()
    load_folder(str(llama_folder))
    assert logging.is_progress_bar_enabled()


def test_pickles_are_not_read_and_the_way_out_is_shown(run: Run, tmp_path: Path) -> None:
    model = llama()
    model.config.architectures = ["LlamaForCausalLM"]
    model.config.save_pretrained(tmp_path / "old")
    torch.save(model.state_dict(), tmp_path / "old" / "pytorch_model.bin")
    result = run("analyze", f"hf:{tmp_path / 'old'}", "--input", "ids:1x8")
    assert (result.status, result.out) == (1, "")
    for expected in ("found: pytorch_model.bin", "convert the weights once", "weights_only=True"):
        assert expected in result.err


def test_folder_without_weights_is_refused(tmp_path: Path) -> None:
    llama().config.save_pretrained(tmp_path / "empty")
    with pytest.raises(InvalidInputError, match="no safetensors files"):
        load_folder(str(tmp_path / "empty"))


def edit(folder: Path, **changes: object) -> None:
    """Change the config of a folder."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"auto_map": {"AutoModel": "modeling.Net"}}, "comes with code of its own, which is not run"),
        ({"architectures": ["NoSuchModel"]}, "names no class of transformers.\n  architectures: NoSuchModel"),
        ({"architectures": None}, "names no class of transformers"),
    ],
)
def test_config_of_no_known_class_is_refused(changes: dict[str, object], told: str, llama_folder: Path) -> None:
    edit(llama_folder, **changes)
    with pytest.raises(InvalidInputError, match=told):
        load_folder(str(llama_folder))


@pytest.mark.parametrize(
    ("changes", "told"),
    [({"num_hidden_layers": 3}, "missing: model.layers.2."), ({"intermediate_size": 40}, "do not fit its config")],
)
def test_weights_that_do_not_fit_the_config_are_refused(
    changes: dict[str, object], told: str, llama_folder: Path
) -> None:
    edit(llama_folder, **changes)
    with pytest.raises(ShapeError, match=told):
        load_folder(str(llama_folder))


def test_truncated_shard_is_refused(run: Run, llama_folder: Path) -> None:
    path = max(llama_folder.glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-7])
    result = run("analyze", f"hf:{llama_folder}", "--input", "ids:1x8")
    assert result.status == 1
    assert f"{path} is truncated" in result.err


def test_other_weights_may_come_from_a_checkpoint(run: Run, llama_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(llama_folder, tmp_path / "copy")
    words = ["--input", "ids:1x8", "--seconds", "0", "--checkpoint", tmp_path / "copy"]
    assert run("profile", f"hf:{llama_folder}", *words).status == 0


def test_arguments_are_refused(run: Run, llama_folder: Path) -> None:
    result = run("analyze", f"hf:{llama_folder}", "--input", "ids:1x8", "--arg", "hidden_size=3")
    assert result.status == 1
    assert "takes no arguments" in result.err


def test_cache_is_off_for_a_while_only() -> None:
    model = llama()
    with without_cache(model):
        assert model.config.use_cache is False
    assert model.config.use_cache is True
    with without_cache(torch.nn.Linear(2, 2)):
        pass
