"""What users ran into with lottery tickets and with checkpoints while pruning goes on: cases 50 and 77.

Each is mended for its whole kind: other layers, optimizers, dtypes, patterns, and Lightning's own checkpoints.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from secateur import Masks, load_, patterns, prune_, save
from secateur.tickets import Snapshot, rewind_
from tests.masks.oracles import bits, is_zero, moments

# ---- case 50: the start that a state_dict was to keep has been trained along


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(96, 6))


def recurrent() -> nn.Module:
    return nn.LSTM(6, 6, batch_first=True)


KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(6, 6), (4, 6)),
    "convolution and norm": (convolutional, (4, 2, 6, 6)),
    "recurrent": (recurrent, (4, 5, 6)),
    "transformer": (lambda: nn.TransformerEncoderLayer(6, 2, 12, dropout=0.0, batch_first=True), (4, 5, 6)),
}

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.5),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.05),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.05, initial_accumulator_value=0.1),
    "Rprop": lambda parameters: torch.optim.Rprop(parameters, lr=0.01),
}


def steps(net: nn.Module, optimizer: torch.optim.Optimizer, shape: tuple[int, ...], numbers: range) -> None:
    for number in numbers:
        optimizer.zero_grad()
        x = torch.randn(shape, generator=torch.Generator().manual_seed(number)).to(next(net.parameters()).dtype)
        out = net(x)
        (out[0] if isinstance(out, tuple) else out).pow(2).mean().backward()
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("net", KINDS)
@pytest.mark.parametrize("at", [0, 2])
def test_case_50_kept_weights_are_those_of_the_snapshot_and_momenta_are_gone(
    net: str, kind: str, dtype: torch.dtype, at: int
) -> None:
    build, shape = KINDS[net]
    model = build().to(dtype)
    optimizer = OPTIMIZERS[kind](model.parameters())
    before_training = copy.deepcopy(moments(optimizer, next(model.parameters())))
    steps(model, optimizer, shape, range(at))
    truth = {name: p.detach().clone() for name, p in model.named_parameters()}
    truth_buffers = {name: bits(buffer) for name, buffer in model.named_buffers()}
    snapshot = Snapshot.of(model, step=at)
    steps(model, optimizer, shape, range(at, at + 5))
    masks = prune_(model, optimizer, sparsity=0.5)
    assert masks.num_zeros() == sum(mask.numel() // 2 for mask in masks.values())
    trained_buffers = {name: bits(buffer) for name, buffer in model.named_buffers()}
    rewind_(model, snapshot, optimizer)
    for name, parameter in model.named_parameters():
        kept = masks[name] if name in masks else torch.ones_like(parameter, dtype=torch.bool)
        assert bits(parameter.detach()[kept]) == bits(truth[name][kept])
        assert is_zero(parameter.detach()[~kept])
    assert [bits(value) for value in moments(optimizer, next(model.parameters())).values()] == [
        bits(value) for value in before_training.values()
    ]
    assert {name: bits(buffer) for name, buffer in model.named_buffers()} == trained_buffers
    rewind_(model, snapshot, optimizer, buffers=True)
    assert {name: bits(buffer) for name, buffer in model.named_buffers()} == truth_buffers
    steps(model, optimizer, shape, range(2))
    assert all(is_zero(model.get_parameter(name).detach()[~mask]) for name, mask in masks.items())


# ---- case 77: a checkpoint each epoch, while half of what is left goes


class Conv(nn.Module):
    """A hundred weights as a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv1d(10, 10, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x[:, :, None])[:, :, 0]


def zeros(model: nn.Module) -> int:
    return sum(int((p == 0).sum()) for p in model.parameters())


def epoch(model: nn.Module, optimizer: torch.optim.Optimizer, number: int, pattern: patterns.Pattern) -> None:
    """Half of the weights that are left go, then the others train."""
    prune_(model, optimizer, sparsity=1 - 0.5 ** (number + 1), pattern=pattern)
    for step in range(3):
        optimizer.zero_grad()
        x = torch.randn(8, 10, generator=torch.Generator().manual_seed(10 * number + step))
        (model(x) - 1.0).pow(2).mean().backward()
        optimizer.step()


def checkpoint(model: nn.Module, optimizer: torch.optim.Optimizer, path: Path) -> None:
    safetensors.torch.save_file(model.state_dict(), path.with_suffix(".model"))
    safetensors.torch.save_file(Masks(model).state_dict(), path.with_suffix(".masks"))
    torch.save(optimizer.state_dict(), path.with_suffix(".optimizer"))


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize(
    ("pattern", "expected"), [(patterns.Unstructured(), [50, 75, 88]), (patterns.Channel(dim=0), [50, 80, 90])]
)  # 87.5 entries, 7.5 and 8.75 rows: halves go to the even number
@pytest.mark.parametrize("build", [lambda: nn.Linear(10, 10), Conv], ids=["Linear", "Conv1d"])
def test_case_77_each_file_has_its_epoch_s_zeros_and_resuming_from_one_is_bit_equal(
    build: Callable[[], nn.Module], pattern: patterns.Pattern, expected: list[int], kind: str, tmp_path: Path
) -> None:
    model = build()
    keys = list(model.state_dict())
    optimizer = OPTIMIZERS[kind](model.parameters())
    for number in range(3):
        epoch(model, optimizer, number, pattern)
        live = [bits(tensor) for tensor in (*model.parameters(), *Masks(model).values())]
        checkpoint(model, optimizer, tmp_path / str(number))
        assert [bits(tensor) for tensor in (*model.parameters(), *Masks(model).values())] == live
        saved = safetensors.torch.load_file(tmp_path / f"{number}.model")
        assert sorted(saved) == sorted(keys)
        assert sum(int((value == 0).sum()) for value in saved.values()) == expected[number] == zeros(model)
    resumed = build()
    its_optimizer = OPTIMIZERS[kind](resumed.parameters())
    resumed.load_state_dict(safetensors.torch.load_file(tmp_path / "1.model"))
    Masks(resumed).load_state_dict(safetensors.torch.load_file(tmp_path / "1.masks"))
    its_optimizer.load_state_dict(torch.load(tmp_path / "1.optimizer", weights_only=True))
    assert zeros(resumed) == expected[1]
    epoch(resumed, its_optimizer, 2, pattern)
    assert [bits(p) for p in resumed.parameters()] == [bits(p) for p in model.parameters()]
    masks = dict(Masks(resumed))
    for (name, one), other in zip(resumed.named_parameters(), model.parameters(), strict=True):
        mine, its = moments(its_optimizer, one), moments(optimizer, other)
        kept = masks.get(name, torch.ones(one.shape, dtype=torch.bool))
        assert {k: bits(v[kept]) for k, v in mine.items()} == {k: bits(v[kept]) for k, v in its.items()}


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("build", [lambda: nn.Linear(10, 10), Conv], ids=["Linear", "Conv1d"])
def test_case_77_one_file_each_epoch_has_its_zeros_and_its_masks_and_goes_on_bit_equal(
    build: Callable[[], nn.Module], kind: str, tmp_path: Path
) -> None:
    model = build()
    keys, expected = list(model.state_dict()), [50, 75, 88]
    optimizer = OPTIMIZERS[kind](model.parameters())
    for number in range(3):
        epoch(model, optimizer, number, patterns.Unstructured())
        live = [bits(tensor) for tensor in (*model.parameters(), *Masks(model).values())]
        save(model, tmp_path / f"{number}.safetensors")
        torch.save(optimizer.state_dict(), tmp_path / f"{number}.pt")
        assert [bits(tensor) for tensor in (*model.parameters(), *Masks(model).values())] == live
        saved = safetensors.torch.load_file(tmp_path / f"{number}.safetensors")
        plain = build()
        plain.load_state_dict({key: saved[key] for key in keys})  # as by anyone else, and the zeros are there
        assert zeros(plain) == expected[number]
    resumed = load_(build(), tmp_path / "1.safetensors")
    assert (zeros(resumed), Masks(resumed).num_zeros()) == (75, 75)
    its_optimizer = OPTIMIZERS[kind](resumed.parameters())
    its_optimizer.load_state_dict(torch.load(tmp_path / "1.pt", weights_only=True))
    epoch(resumed, its_optimizer, 2, patterns.Unstructured())
    assert [bits(p) for p in resumed.parameters()] == [bits(p) for p in model.parameters()]
    assert Masks(resumed) == Masks(model)


@contextmanager
def quiet() -> Iterator[None]:
    """Lightning warns of what a test has on purpose: no workers, a folder that is not empty, a short epoch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.integration
def test_case_77_lightning_s_checkpoints_have_each_epoch_s_zeros_and_resume_bit_equal(tmp_path: Path) -> None:
    import lightning

    x = torch.randn(24, 10, generator=torch.Generator().manual_seed(3))

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(10, 10)

        def on_train_epoch_start(self) -> None:
            prune_(self, self.optimizers().optimizer, sparsity=1 - 0.5 ** (self.current_epoch + 1))

        def training_step(self, batch: list[Tensor], _: int) -> Tensor:
            return (self.net(batch[0]) - 1.0).pow(2).mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=0.01)

        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["masks"] = Masks(self).state_dict()

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            Masks(self).load_state_dict(checkpoint["masks"])

    def fit(module: Module, folder: str, start: Path | None = None) -> Module:
        saver = lightning.pytorch.callbacks.ModelCheckpoint(
            tmp_path / folder, "{epoch}", save_top_k=-1, save_on_train_epoch_end=True
        )
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=3,
            callbacks=[saver],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, DataLoader(TensorDataset(x), batch_size=8), ckpt_path=start)
        return module

    with quiet():
        whole = fit(Module(), "whole")
        files = [tmp_path / "whole" / f"epoch={number}.ckpt" for number in range(3)]
        states = [torch.load(file, weights_only=True)["state_dict"] for file in files]
        resumed = fit(Module(), "resumed", files[1])
    assert [list(state) for state in states] == [["net.weight", "net.bias"]] * 3
    assert [int((state["net.weight"] == 0).sum()) for state in states] == [50, 75, 88]
    assert bits(states[2]["net.weight"]) == bits(whole.net.weight)
    assert [bits(p) for p in resumed.parameters()] == [bits(p) for p in whole.parameters()]
    assert all(torch.equal(Masks(resumed)[name], mask) for name, mask in Masks(whole).items())
