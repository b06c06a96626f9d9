"""The demo's training runs: one CNN on scikit-learn's digits, dense, masked and shrunk while it trains."""

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
    """Images (n, 1, 8, 8) in [0, 1] and labels (n,)."""

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


@dataclass(frozen=True)
class Change:
    """What happens to a model while it trains: a function called after every step, and what to say of it in the end."""

    after_step: Callable[[int], object]
    note: Callable[[], str]


Method = Callable[[nn.Module, torch.optim.Optimizer, int], Change]
"""(model, optimizer, number of steps) -> what will be done to the model."""


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
    x, y = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8)[order] / 16, torch.tensor(labels)[order]
    return Data(x[450:], y[450:], x[:450], y[:450])


def leave_dense(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> Change:
    """Do nothing."""
    return Change(lambda step: None, str)


def mask(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> Change:
    """From a third of the training on, hold nine tenths of the weights at zero."""

    def after_step(step: int) -> None:
        if step == steps // 3:
            secateur.prune_(model, optimizer, sparsity=0.9)

    return Change(after_step, lambda: repr(secateur.Masks(model)))


def shrink(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> Change:
    """Remove four fifths of the channels and neurons in eight cuts between 10 % and 60 % of the training."""
    schedule = secateur.shrink_schedule(
        model,
        torch.zeros(2, 1, 8, 8),
        begin_step=steps // 10,
        end_step=steps * 6 // 10,
        final_sparsity=0.8,
        optimizer=optimizer,
    )
    return Change(lambda step: schedule.step(), lambda: repr(schedule).splitlines()[0])


RUNS: dict[str, Method] = {
    "dense": leave_dense,
    "masked, 90 % zeros": mask,
    "shrunk, 80 % of units": shrink,
}


def cnn() -> nn.Module:
    """Two convolutions and two linear layers, 32, 64 and 256 units wide between input and output."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )


def train(title: str, method: Method, data: Data, *, steps: int, seed: int, advance: Callable[[], None]) -> Outcome:
    """Train the net once.

    Args:
        title: Name of the run.
        method: What is done to the model while it trains.
        data: The digits.
        steps: Optimizer steps, batches of 64 drawn with an own generator.
        seed: Seed of weights and batches.
        advance: Called after every step.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = cnn()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    start = time.perf_counter()
    change = method(model, optimizer, steps)
    for step in range(1, steps + 1):
        batch = torch.randint(len(data.train_labels), (64,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data.train_images[batch]), data.train_labels[batch]).backward()
        optimizer.step()
        change.after_step(step)
        advance()
    return _outcome(title, model, data, time.perf_counter() - start, change.note())


def _outcome(title: str, model: nn.Module, data: Data, seconds: float, note: str) -> Outcome:
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
        note=note,
    )
