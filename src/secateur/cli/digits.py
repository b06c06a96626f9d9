"""The demo's training runs: one net on scikit-learn's digits, dense, masked and shrunk while it trains."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import safetensors.torch
import torch
from torch import Tensor, nn

import secateur
from secateur import _compat

__all__ = ["RUNS", "Data", "Outcome", "digits", "train"]


@dataclass(frozen=True)
class Data:
    """Images (n, 64) in [0, 1] and labels (n,)."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


@dataclass(frozen=True)
class Outcome:
    """What one run came to; `saved_bytes` is the size of a safetensors file with the weights, and masks if any."""

    title: str
    parameters: int
    nonzero: int
    accuracy: float
    seconds: float
    saved_bytes: int
    note: str


Event = Callable[[nn.Module, torch.optim.Optimizer, int, int], None]
"""(model, optimizer, step, number of steps): what is done to the model before a step."""


def digits() -> Data:
    """Scikit-learn's 1,797 handwritten digits, a quarter of them for testing.

    Raises:
        InvalidInputError: scikit-learn is not installed.
    """
    datasets = _compat.optional("sklearn.datasets")
    if datasets is None:
        raise secateur.InvalidInputError("the demo's data comes with scikit-learn.", fix="pip install 'secateur[demo]'")
    images, labels = datasets.load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(labels)[order]
    return Data(x[450:], y[450:], x[:450], y[:450])


def leave_dense(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, steps: int) -> None:
    """Do nothing."""


def mask(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, steps: int) -> None:
    """From a third of the training on, hold nine tenths of the weights at zero."""
    if step == steps // 3:
        secateur.prune_(model, optimizer, sparsity=0.9)


def shrink(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, steps: int) -> None:
    """Remove a quarter of the hidden units at a third of the training, and another quarter at half of it."""
    if step == steps // 3:
        _keep_units(model, optimizer, 225, 75)
    elif step == steps // 2:
        _keep_units(model, optimizer, 150, 50)


RUNS: dict[str, Event] = {
    "dense": leave_dense,
    "masked, 90 % zeros": mask,
    "shrunk in two cuts": shrink,
}


def _keep_units(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, second: int) -> None:
    """Keep the hidden units with the largest weights, in one transaction with the optimizer."""
    with secateur.transaction(model, optimizer) as surgery:
        for layer, following, size in (("0", "2", first), ("2", "4", second)):
            incoming = model.get_parameter(f"{layer}.weight").detach().norm(dim=1)
            outgoing = model.get_parameter(f"{following}.weight").detach().norm(dim=0)
            keep = (incoming * outgoing).topk(size).indices.sort().values
            surgery.resize(f"{layer}.weight", dim=0, keep=keep)
            surgery.resize(f"{layer}.bias", dim=0, keep=keep)
            surgery.resize(f"{following}.weight", dim=1, keep=keep)


def train(title: str, event: Event, data: Data, *, steps: int, seed: int, advance: Callable[[], None]) -> Outcome:
    """Train the net once.

    Args:
        title: Name of the run.
        event: Called before every step.
        data: The digits.
        steps: Optimizer steps, batches of 64 drawn with an own generator.
        seed: Seed of weights and batches.
        advance: Called after every step.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    start = time.perf_counter()
    for step in range(steps):
        event(model, optimizer, step, steps)
        batch = torch.randint(len(data.train_labels), (64,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data.train_images[batch]), data.train_labels[batch]).backward()
        optimizer.step()
        advance()
    return _outcome(title, model, data, time.perf_counter() - start)


def _outcome(title: str, model: nn.Module, data: Data, seconds: float) -> Outcome:
    """Count and test a trained model."""
    masks = secateur.Masks(model)
    with torch.no_grad():
        right = model(data.test_images).argmax(dim=1) == data.test_labels
    return Outcome(
        title=title,
        parameters=sum(p.numel() for p in model.parameters()),
        nonzero=sum(int(p.count_nonzero()) for p in model.parameters()),
        accuracy=float(right.float().mean()),
        seconds=seconds,
        saved_bytes=len(safetensors.torch.save({**model.state_dict(), **masks.state_dict()})),
        note=repr(masks),
    )
