"""Methods of sparse training beside each other: test accuracy at the same training budget, mean and sd over seeds.

An MLP n-300-300-10 on MNIST-1D (40 inputs) and on scikit-learn's digits (64), AdamW with a cosine learning rate, the
same number of steps for every method and for dense training. Masks change every 100 steps up to three quarters of the
training (every 25 steps on digits, whose training is shorter). Every method has the allocation of its paper, which
matters as much as the method where little is left, or all have the one that is named.

    python benchmarks/dst.py [--data mnist1d digits] [--seeds 3] [--sparsities 0.8 0.9 0.95 0.98] [--allocation erk]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secateur import allocation, dst

METHODS = tuple(dst.METHODS)
SPARSITIES = (0.8, 0.9, 0.95, 0.98)


@dataclass(frozen=True)
class Data:
    """Training and test sets, standardised, and how long to train on them."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    steps: int
    every: int
    batch: int = 100


def mnist1d() -> Data:
    """4,000 signals of 40 numbers to train on, 1,000 to test; generated, not downloaded."""
    from mnist1d.data import get_dataset_args, make_dataset

    made = make_dataset(get_dataset_args())
    return _data(made["x"], made["y"], made["x_test"], made["y_test"], steps=3000, every=100)


def digits() -> Data:
    """1,347 images of 8x8 to train on, 450 to test."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(x, y, test_size=0.25, random_state=0, stratify=y)
    return _data(x, y, x_test, y_test, steps=800, every=25)


def _data(x: object, y: object, x_test: object, y_test: object, *, steps: int, every: int) -> Data:
    inputs, tests = (torch.as_tensor(each, dtype=torch.float32) for each in (x, x_test))
    mean, spread = inputs.mean(), inputs.std()
    labels, test_labels = (torch.as_tensor(each, dtype=torch.int64) for each in (y, y_test))
    return Data(((inputs - mean) / spread, labels), ((tests - mean) / spread, test_labels), steps, every)


DATA: dict[str, Callable[[], Data]] = {"mnist1d": mnist1d, "digits": digits}


def accuracy(data: Data, method: str, sparsity: float, seed: int, shares: str | None = None) -> float:
    """Test accuracy in per cent after training; `method` "dense" has no masks."""
    torch.manual_seed(seed)
    features = data.train[0].shape[1]
    model = nn.Sequential(nn.Linear(features, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, data.steps)
    if method != "dense":
        times = {} if method == "static" else {"every": data.every, "end_step": 3 * data.steps // 4}
        shared = {} if shares is None else {"allocation": allocation.ALLOCATIONS[shares]}
        training = dst.METHODS[method](model, optimizer, sparsity=sparsity, seed=seed, **times, **shared)
    inputs, labels = data.train
    for _ in range(data.steps):
        batch = torch.randint(len(inputs), (data.batch,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[batch]), labels[batch]).backward()
        optimizer.step()
        schedule.step()
    if method != "dense":
        zeros = sum(int((p == 0).sum()) for p in model.parameters() if p.dim() > 1)
        total = sum(p.numel() for p in model.parameters() if p.dim() > 1)
        if zeros < round(sparsity * total) or training.masks.num_zeros() != round(sparsity * total):
            raise AssertionError(f"{method}: {zeros} zeros of {total} at {sparsity}")
    with torch.no_grad():
        return 100.0 * float((model(data.test[0]).argmax(dim=1) == data.test[1]).float().mean())


def shown(values: list[float]) -> str:
    """Mean ± standard deviation."""
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values) if len(values) > 1 else 0.0:.1f}"


def main() -> None:
    """Print one Markdown table for each data set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--methods", nargs="+", choices=dst.METHODS, default=METHODS)
    parser.add_argument("--allocation", choices=allocation.ALLOCATIONS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sparsities", nargs="+", type=float, default=SPARSITIES)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.data:
        started, data, seeds = time.perf_counter(), DATA[name](), range(arguments.seeds)
        dense = shown([accuracy(data, "dense", 0.0, seed) for seed in seeds])
        print(f"\n{name}: test accuracy %, mean ± sd of {arguments.seeds} seeds, {data.steps} steps; dense {dense}")
        print(f"allocation: {arguments.allocation or 'that of the paper'}\n")
        print("| method | " + " | ".join(f"{100 * sparsity:g} %" for sparsity in arguments.sparsities) + " |")
        print("|---" * (1 + len(arguments.sparsities)) + "|", flush=True)
        for method in arguments.methods:
            cells = [
                shown([accuracy(data, method, sparsity, seed, arguments.allocation) for seed in seeds])
                for sparsity in arguments.sparsities
            ]
            print(f"| {method} | " + " | ".join(cells) + " |", flush=True)
        print(f"\n{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
