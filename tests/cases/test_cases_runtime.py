"""What users ran into when a pruned model was neither smaller nor faster, done with the library: cases 64, 68.

The parts that need masks or surgery alone stand with their own: `test_cases_masks`, `test_cases_emptied`,
`test_cases_surgery`.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from secateur import patterns, prune_
from secateur.runtime import choosing, comparing, compress, load_compressed
from secateur.shrink import shrink_

SEEDS = [0, 1, 2]


@pytest.fixture(autouse=True)
def _measure_little(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (choosing, comparing):
        monkeypatch.setattr(module, "_SECONDS", 0)


def saved_bytes(model: nn.Module) -> int:
    """Bytes of a file of the model's state."""
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    return file.getbuffer().nbytes


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


# Case 64: dead rows become a smaller layer ----------------------------------------------------------------------------


def dead_by_torch(model: nn.Sequential) -> None:
    prune.ln_structured(model[0], "weight", 0.5, n=2, dim=0)


def dead_and_removed(model: nn.Sequential) -> None:
    dead_by_torch(model)
    prune.remove(model[0], "weight")


def dead_by_mask(model: nn.Sequential) -> None:
    prune_(model, sparsity=0.5, pattern=patterns.Channel(dim=0), include=["0.weight"])


@pytest.mark.parametrize("kill", [dead_by_torch, dead_and_removed, dead_by_mask])
@pytest.mark.parametrize("seed", SEEDS)
def test_case_64_dead_rows_go_when_the_model_is_compressed(
    kill: Callable[[nn.Sequential], None], seed: int, tmp_path: Path
) -> None:
    torch.manual_seed(seed)
    model, x = two_layers(), torch.randn(16, 512)
    dense = saved_bytes(model)
    kill(model)
    with torch.no_grad():
        expected = model(x)
    fast = compress(model, x, formats=[])
    assert tuple(fast.model[0].weight.shape) == (256, 512)
    assert tuple(fast.model[2].weight.shape) == (10, 256)
    torch.testing.assert_close(fast(x), expected, rtol=0, atol=1e-5)
    fast.save(tmp_path / "fast")
    assert (tmp_path / "fast").stat().st_size < 0.52 * dense
    torch.testing.assert_close(load_compressed(tmp_path / "fast")(x), fast(x), rtol=0, atol=0)
    assert tuple(model[0].weight.shape) == (512, 512)


@pytest.mark.parametrize("sparsity", [0.8, 0.9])
def test_case_64_zeros_anywhere_leave_the_file_of_a_compressed_model(sparsity: float, tmp_path: Path) -> None:
    model, x = two_layers(), torch.randn(16, 512)
    dense = saved_bytes(model)
    prune_(model, sparsity=sparsity)
    assert saved_bytes(model) > 0.99 * dense
    fast = compress(model, x)
    fast.save(tmp_path / "fast")
    assert (tmp_path / "fast").stat().st_size < (1 / 32 + 1 - sparsity + 0.01) * dense
    torch.testing.assert_close(load_compressed(tmp_path / "fast")(x), model.eval()(x).detach(), rtol=1e-4, atol=1e-5)


# Case 68: what is left owns what it is --------------------------------------------------------------------------------


def tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """Parameters, gradients, buffers and optimizer state."""
    for parameter in model.parameters():
        yield parameter
        if parameter.grad is not None:
            yield parameter.grad
        yield from (value for value in optimizer.state[parameter].values() if isinstance(value, Tensor))
    yield from model.buffers()


def owns_its_elements(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.itemsize


def trained(*layers: nn.Module, x: Tensor) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    model = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters())
    model(x).square().sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("seed", SEEDS)
def test_case_68_each_tensor_owns_exactly_its_elements_after_a_shrink(seed: int) -> None:
    torch.manual_seed(seed)
    x = torch.randn(8, 256)
    model, optimizer = trained(nn.Linear(256, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 10), x=x)
    shrink_(model, x, sparsity=0.75, optimizer=optimizer)
    assert model[0].out_features == model[1].num_features == model[3].in_features == 64
    found = list(tensors(model, optimizer))
    assert len(found) == 6 * 5 + 3
    assert all(map(owns_its_elements, found))
    assert saved_bytes(model) < 80_000


def test_case_68_layer_that_was_cut_by_hand_owns_its_elements_once_it_is_compressed(tmp_path: Path) -> None:
    model = nn.Linear(256, 256)
    model.weight.data, model.bias.data = model.weight.data[:64], model.bias.data[:64]
    assert saved_bytes(model) > 250_000
    x = torch.randn(2, 256)
    fast = compress(model, x)
    assert all(map(owns_its_elements, fast.parameters()))
    fast.save(tmp_path / "fast")
    assert (tmp_path / "fast").stat().st_size < 70_000
    assert torch.equal(fast(x), model(x))


def test_case_68_graph_has_the_new_shapes() -> None:
    x = torch.randn(8, 256)
    model, optimizer = trained(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10), x=x)
    shrink_(model, x, sparsity=0.75, optimizer=optimizer)
    program = torch.export.export(model.eval(), (x,))
    shapes = {name: tuple(tensor.shape) for name, tensor in program.state_dict.items()}
    assert shapes == {"0.weight": (64, 256), "0.bias": (64,), "2.weight": (10, 64), "2.bias": (10,)}
    assert torch.equal(program.module()(x), model(x))


@pytest.mark.slow
@pytest.mark.integration
def test_case_68_onnx_initialisers_have_the_new_shapes(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    x = torch.randn(8, 256)
    model, optimizer = trained(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10), x=x)
    shrink_(model, x, sparsity=0.75, optimizer=optimizer)
    torch.onnx.export(model.eval(), (x,), str(tmp_path / "model.onnx"), dynamo=True, external_data=False, verbose=False)
    graph = onnx.load(tmp_path / "model.onnx").graph
    shapes = sorted(tuple(tensor.dims) for tensor in graph.initializer)
    assert shapes == [(10,), (10, 64), (64,), (64, 256)]
