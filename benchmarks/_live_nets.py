"""Data and nets of `live_shrink.py`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Data:
    """Images (n, channels, ...) and labels (n,)."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def digits() -> Data:
    """Scikit-learn's 1,797 digits of 8 x 8, a quarter of them for testing."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(7))
    x, y = x[order], torch.tensor(labels)[order]
    return Data((x[450:], y[450:]), (x[:450], y[:450]))


def mnist_1d() -> Data:
    """MNIST-1D, 4,000 sequences of 40 to train on and 1,000 to test; made anew, always the same."""
    made = importlib.import_module("mnist1d.data")
    data = made.make_dataset(made.get_dataset_args())
    x, test_x = (torch.tensor(data[key], dtype=torch.float32).unsqueeze(1) for key in ("x", "x_test"))
    y, test_y = (torch.tensor(data[key], dtype=torch.int64) for key in ("y", "y_test"))
    return Data((x, y), (test_x, test_y))


def lenet(dims: int, widths: list[int]) -> nn.Module:
    """Two convolutions with pooling, a hidden layer, a head."""
    a, b, c = widths
    conv, pool, places = (nn.Conv2d, nn.MaxPool2d, 4) if dims == 2 else (nn.Conv1d, nn.MaxPool1d, 10)
    kernel = 3 if dims == 2 else 5
    return nn.Sequential(
        conv(1, a, kernel, padding=kernel // 2), nn.ReLU(), pool(2),
        conv(a, b, kernel, padding=kernel // 2), nn.ReLU(), pool(2),
        nn.Flatten(), nn.Linear(b * places, c), nn.ReLU(), nn.Linear(c, 10),
    )  # fmt: skip


def batch_norm_cnn(dims: int, widths: list[int]) -> nn.Module:
    """Three convolutions with BatchNorm, the second and third with stride 2, average pooling, a head."""
    conv, norm, pool = (nn.Conv2d, nn.BatchNorm2d, nn.AdaptiveAvgPool2d) if dims == 2 else (
        nn.Conv1d, nn.BatchNorm1d, nn.AdaptiveAvgPool1d)  # fmt: skip
    kernel = 3 if dims == 2 else 5
    layers: list[nn.Module] = []
    for number, (before, after) in enumerate(pairwise([1, *widths])):
        layers += [conv(before, after, kernel, 1 + (number > 0), kernel // 2, bias=False), norm(after), nn.ReLU()]
    return nn.Sequential(*layers, pool(1), nn.Flatten(), nn.Linear(widths[-1], 10))


def mlp(inputs: int, widths: list[int]) -> nn.Module:
    """Hidden layers with ReLU, a head."""
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise([inputs, *widths]):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 10))


@dataclass(frozen=True)
class Net:
    """A net by its hidden widths, the full ones, the learning rate of AdamW, and how many steps it is trained for."""

    build: Callable[[list[int]], nn.Module]
    widths: list[int]
    rate: float
    steps: int


NETS: dict[str, dict[str, Net]] = {
    "digits": {
        "LeNet 16-32-128": Net(partial(lenet, 2), [16, 32, 128], 5e-3, 500),
        "BatchNorm CNN 16-32-64": Net(partial(batch_norm_cnn, 2), [16, 32, 64], 5e-3, 500),
        "MLP 800-800": Net(partial(mlp, 64), [800, 800], 1e-3, 500),
    },
    "MNIST-1D": {
        "LeNet 16-32-128": Net(partial(lenet, 1), [16, 32, 128], 5e-3, 500),
        "BatchNorm CNN 16-32-64": Net(partial(batch_norm_cnn, 1), [16, 32, 64], 5e-3, 500),
        "MLP 300-100": Net(partial(mlp, 40), [300, 100], 2e-3, 1000),
    },
}
