"""Masked, shrunk and compressed models go through torch.export, and their programs through files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from secateur import Masks, compress
from secateur.runtime.recipe import CHANNELS_LAST
from tests.export.models import CASES, FORMS, LARGE, MODELS, batches, cnn, compressed, image, loss, trained
from tests.runtime.models import ALWAYS, left_alone, mlp


def exported(model: nn.Module, x: Tensor) -> ExportedProgram:
    """The program for any batch size."""
    return torch.export.export(model, (x,), dynamic_shapes=({0: Dim("batch", min=1, max=64)},))


def same(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def check(model: nn.Module, x: Tensor) -> None:
    with left_alone(model):
        program = exported(model, x)
    assert program.state_dict.keys() == model.state_dict().keys()
    for batch in batches(x):
        same(program.module()(batch), model(batch))


@pytest.mark.integration
@pytest.mark.parametrize(("name", "form"), CASES)
def test_program_computes_what_the_model_does_for_any_batch_size(name: str, form: str) -> None:
    build, make = MODELS[name]
    x = make()
    check(FORMS[form](build(), x), x)


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("form", sorted(FORMS.keys() - {"RigL"}))
@pytest.mark.parametrize("name", LARGE)
def test_program_of_a_larger_model_computes_what_the_model_does(name: str, form: str) -> None:
    build, make = LARGE[name]
    x = make()
    check(FORMS[form](build(), x), x)


def test_program_has_the_zeros_of_the_masks_and_no_mask() -> None:
    x = image()
    model = trained(cnn(), x)
    masks = Masks(model)
    state = exported(model, x).state_dict
    assert state.keys() == cnn().state_dict().keys()
    for name, mask in masks.items():
        assert not state[name][~mask].any()
        assert state[name][mask].any()


def test_training_goes_on_after_an_export_and_masks_hold() -> None:
    x, model = image(), cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    masks = Masks.from_dict(model, {"6.weight": torch.rand(32, 4, 3, 3) > 0.7}, optimizer)
    exported(model.eval(), x)
    before = model[6].weight.detach().clone()
    loss(model.train(), x).backward()
    optimizer.step()
    assert torch.equal(model[6].weight != 0, masks["6.weight"])
    assert not torch.equal(model[6].weight, before)


def test_exported_model_in_training_mode_uses_the_statistics_of_the_batch() -> None:
    x = image()
    model = trained(cnn(), x).train()
    program = exported(model, x).module()
    found, wanted = program(x), model(x)
    same(found, wanted)
    assert not torch.allclose(found, model.eval()(x), rtol=1e-2)


# Files ----------------------------------------------------------------------------------------------------------------

RUN = """
import json, sys
import torch
from safetensors.torch import load_file, save_file

IMPORT
results = {}
for name, (program, inputs) in json.loads(sys.argv[1]).items():
    results[name] = torch.export.load(program).module()(load_file(inputs)["x"]).detach()
save_file(results, sys.argv[2])
"""


def run(code: str, models: dict[str, tuple[nn.Module, Tensor]], folder: Path) -> subprocess.CompletedProcess[str]:
    """Save the programs of models, load them in a fresh interpreter and run them there."""
    paths = {}
    for name, (model, x) in models.items():
        paths[name] = str(folder / f"{name}.pt2"), str(folder / f"{name}.safetensors")
        torch.export.save(exported(model, x), paths[name][0])
        save_file({"x": batches(x)[1]}, paths[name][1])
    script = [sys.executable, "-W", "error", "-c", code, json.dumps(paths), str(folder / "results")]
    return subprocess.run(script, capture_output=True, text=True, check=False)


def check_results(models: dict[str, tuple[nn.Module, Tensor]], folder: Path) -> None:
    found = load_file(folder / "results")
    assert found.keys() == models.keys()
    for name, (model, x) in models.items():
        same(found[name], model(batches(x)[1]).detach())


SAVED = [("CNN", "masked"), ("encoder", "shrunk"), ("Llama", "compressed to dense")]


@pytest.mark.integration
def test_saved_programs_of_dense_models_need_no_secateur(tmp_path: Path) -> None:
    models = {name: (FORMS[form](MODELS[name][0](), x := MODELS[name][1]()), x) for name, form in SAVED}
    done = run(RUN.replace("IMPORT", "sys.modules['secateur'] = None"), models, tmp_path)
    assert done.returncode == 0, done.stderr
    check_results(models, tmp_path)


@pytest.mark.integration
def test_saved_programs_of_compressed_models_need_secateur(tmp_path: Path) -> None:
    chosen = (MODELS["CNN"], MODELS["encoder"])
    models = {build.__name__: (compressed(build(), x := make()).model, x) for build, make in chosen}
    done = run(RUN.replace("IMPORT", "import secateur"), models, tmp_path)
    assert done.returncode == 0, done.stderr
    check_results(models, tmp_path)


def test_program_of_a_compressed_model_says_which_op_is_missing_without_secateur(tmp_path: Path) -> None:
    x = torch.randn(2, 48)
    done = run(RUN.replace("IMPORT", ""), {"MLP": (compressed(mlp(), x).model, x)}, tmp_path)
    assert done.returncode != 0
    assert "torch.ops.secateur.sparse_linear" in done.stderr
    assert "Please import the custom op" in done.stderr


def test_batch_size_of_the_compressed_model_itself_is_named_by_its_arguments() -> None:
    x = torch.randn(2, 48)
    fast = compressed(mlp(), x)
    program = torch.export.export(fast, (x,), dynamic_shapes={"args": ({0: Dim("batch", min=1, max=64)},)})
    for batch in batches(x):
        same(program.module()(batch), fast(batch))


def test_channels_last_are_saved_and_loaded_though_torch_warns(tmp_path: Path) -> None:
    x = image()
    fast = compress(cnn(), x, margin=ALWAYS, formats=[CHANNELS_LAST])
    assert set(fast.recipe.layers.values()) == {CHANNELS_LAST}
    with pytest.warns(UserWarning, match="No complete tensor found"):
        torch.export.save(exported(fast.model, x), tmp_path / "fast.pt2")
    same(torch.export.load(tmp_path / "fast.pt2").module()(x), fast(x))
