"""Masked, shrunk and compressed-to-dense models as ONNX files, run by ONNX Runtime."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from secateur import _native, compress, prune_
from tests.export.models import CASES, FORMS, LARGE, MODELS, batches, compressed, image
from tests.runtime.models import hide_native, left_alone, mlp

pytestmark = pytest.mark.integration

BOUND = 1e-5
"""Of the largest output: both sum up to some hundred float32 products, each in an order of its own."""


@dataclass
class Exported:
    """A model in a form, and its file; the weights of what it was made of have so many entries."""

    form: str
    numel: int
    model: nn.Module
    x: Tensor
    path: Path

    def run(self, x: Tensor) -> Tensor:
        session = onnxruntime.InferenceSession(self.path, providers=["CPUExecutionProvider"])
        return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])

    def weights(self) -> list[Tensor]:
        """The numbers in the file that are no vectors."""
        tensors = map(onnx.numpy_helper.to_array, onnx.load(self.path).graph.initializer)
        return [torch.from_numpy(copy.copy(each)) for each in tensors if each.ndim > 1 and each.dtype.kind == "f"]


def export(model: nn.Module, x: Tensor, path: Path) -> None:
    shapes = ({0: Dim("batch", min=1, max=64)},)
    torch.onnx.export(model, (x,), path, dynamo=True, external_data=False, dynamic_shapes=shapes, verbose=False)


def made(build: Callable[[], nn.Module], make: Callable[[], Tensor], form: str, folder: Path) -> Exported:
    torch.manual_seed(0)
    whole, x = build(), make()
    numel = sum(parameter.numel() for parameter in whole.parameters() if parameter.dim() > 1)
    model = FORMS[form](whole, x)
    with left_alone(model):
        export(model, x, folder / "model.onnx")
    return Exported(form, numel, model, x, folder / "model.onnx")


@pytest.fixture(scope="module", params=CASES, ids=" ".join)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    name, form = request.param
    return made(*MODELS[name], form, tmp_path_factory.mktemp("onnx"))


def check(case: Exported) -> None:
    for batch in batches(case.x):
        found, wanted = case.run(batch), case.model(batch).detach()
        assert found.shape == wanted.shape
        assert float((found - wanted).abs().max() / wanted.abs().max()) < BOUND


def test_file_computes_what_the_model_does_for_any_batch_size(case: Exported) -> None:
    check(case)


def test_file_is_a_sound_model(case: Exported) -> None:
    onnx.checker.check_model(onnx.load(case.path), full_check=True)


def zeros(tensors: list[Tensor]) -> list[tuple[int, int]]:
    """Size and number of zeros of each tensor that has some."""
    counted = ((tensor.numel(), int((tensor == 0).sum())) for tensor in tensors)
    return sorted((size, count) for size, count in counted if count)


def test_file_has_the_zeros_of_the_model_and_a_shrunk_one_fewer_weights(case: Exported) -> None:
    found, wanted = zeros(case.weights()), zeros([p.detach() for p in case.model.parameters() if p.dim() > 1])
    for each in wanted:
        assert each in found
        found.remove(each)
    stored = sum(weight.numel() for weight in case.weights())
    if case.form == "shrunk":
        assert stored < 0.75 * case.numel
    else:
        assert sum(count for _, count in wanted) > 0.7 * sum(size for size, _ in wanted)
        assert stored >= case.numel


@pytest.mark.slow
@pytest.mark.parametrize("form", sorted(FORMS.keys() - {"RigL"}))
@pytest.mark.parametrize("name", LARGE)
def test_file_of_a_larger_model_computes_what_the_model_does(name: str, form: str, tmp_path: Path) -> None:
    check(made(*LARGE[name], form, tmp_path))


# What cannot be exported ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", ["wrapper", "model", "program"])
@pytest.mark.parametrize("layer", [lambda: nn.Linear(32, 48), lambda: nn.Conv2d(3, 8, 3)], ids=["linear", "conv"])
def test_compressed_model_is_refused_with_the_way_out(
    layer: Callable[[], nn.Module], of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if _native.library() is None:
        hide_native(monkeypatch)
    fast = compressed(nn.Sequential(layer()), x := image())
    model = {"wrapper": fast, "model": fast.model}.get(of) or torch.export.export(fast.model, (x,))
    path = tmp_path / "model.onnx"
    with pytest.raises(torch.onnx.OnnxExporterError, match=r"ONNX has no sparse product(?s:.*)fast\.to_dense\(\)"):
        torch.onnx.export(model, (x,), path, dynamo=True, verbose=False)
    assert not path.exists()
    torch.export.export(fast.model, (x,))  # the refusal is for ONNX alone


def test_training_mode_is_warned_of(tmp_path: Path) -> None:
    model, x = MODELS["CNN"][0](), MODELS["CNN"][1]()
    prune_(model, sparsity=0.5)
    with pytest.warns(UserWarning, match="Exporting a model while it is in training mode"):
        export(model.train(), x, tmp_path / "model.onnx")


def test_computed_weights_that_onnx_has_no_ops_for_are_exported_by_way_of_compress(tmp_path: Path) -> None:
    model, x = mlp().eval(), torch.randn(2, 48)
    nn.utils.parametrizations.orthogonal(model[2])
    prune_(model, sparsity=0.9, include=["0.weight", "4.weight"])
    with pytest.raises(torch.onnx.OnnxExporterError, match="No ONNX function found"):
        export(model, x, tmp_path / "model.onnx")
    plain = compress(model, x).to_dense()
    export(plain, x, tmp_path / "model.onnx")
    check(Exported("compressed to dense", 0, model, x, tmp_path / "model.onnx"))
