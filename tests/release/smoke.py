"""What somebody does first with an installed secateur. Run outside the checkout; prints facts that tests look at."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterator
from importlib.metadata import metadata

import torch
from torch import Tensor, nn

import secateur
from secateur import _native, report


def net() -> nn.Sequential:
    """A small net for images (3, 8, 8)."""
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)),
    )


def train(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> float:
    """Some steps; the last loss."""
    for _ in range(5):
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def not_importable() -> Iterator[tuple[str, str]]:
    """Modules of the package that do not import, and what they say."""
    for module in pkgutil.walk_packages(secateur.__path__, "secateur."):
        if module.name in ("secateur.__main__", "secateur._native.kernels"):  # a program; a library that is no module
            continue
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            yield module.name, str(error)


def main() -> None:
    """Shrink, mask and compress a model that goes on training, and print what came of it as JSON."""
    torch.manual_seed(0)
    model, images, labels = net(), torch.randn(32, 3, 8, 8), torch.arange(32) % 10
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = [train(model, optimizer, images, labels)]
    plan = secateur.shrink_(model, images, sparsity=0.5, optimizer=optimizer)
    losses.append(train(model, optimizer, images, labels))
    secateur.prune_(model, optimizer, sparsity=0.9)
    losses.append(train(model, optimizer, images, labels))
    weights = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    compressed = secateur.compress(model.eval(), images)
    with torch.no_grad():
        difference = (compressed(images) - model(images)).abs().max().item()
    facts = {
        "file": secateur.__file__,
        "version": secateur.__version__,
        "summary": metadata("secateur")["Summary"],
        "native": _native.status(),
        "losses": losses,
        "channels": model[0].out_channels,
        "zeros": sum(int((weight == 0).sum()) for weight in weights) / sum(weight.numel() for weight in weights),
        "difference": difference,
        "page": report.gather(plan=plan).to_html()[:15],
        "not importable": dict(not_importable()),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
