"""What keeping masks costs: one whole training step, as a ratio to the dense step of the same run.

Three models: an MLP 784-2048-2048-10 at batch 16, a 4-layer transformer (d=256, 64 tokens, batch
8) and ResNet-18 for 32x32 images at batch 16, all with AdamW and 90 % zeros. Every variant is stepped in turn, in one
process, so that all meet the same machine; process CPU time, medians, one thread.

    python benchmarks/masks.py [--models mlp transformer resnet] [--rounds 40]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.utils import prune as torch_prune

import secateur
import secateur._native as native

SPARSITY = 0.9


def mlp() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    """784-2048-2048-10, batch 16."""
    model = nn.Sequential(nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10))
    inputs, labels = torch.randn(16, 784), torch.randint(0, 10, (16,))
    return model, lambda m: nn.functional.cross_entropy(m(inputs), labels)


def transformer() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    """Four encoder layers of width 256, batch 8 of 64 tokens."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Linear(256, 256))
    inputs = torch.randn(8, 64, 256)
    return model, lambda m: m(inputs).pow(2).mean()


def resnet() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    """ResNet-18 with a 3x3 stem, batch 16 of 32x32 images."""
    from torchvision.models import resnet18

    model = resnet18(num_classes=10)
    model.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    model.maxpool = nn.Identity()
    inputs, labels = torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))
    return model, lambda m: nn.functional.cross_entropy(m(inputs), labels)


MODELS = {"mlp": mlp, "transformer": transformer, "resnet": resnet}


def weights(model: nn.Module) -> list[tuple[nn.Module, str]]:
    """The weights that `prune_` masks by default, as (module, name)."""
    return [
        (module, name)
        for module in model.modules()
        for name, p in module.named_parameters(recurse=False)
        if p.dim() > 1
    ]


def by_hand(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """One ``torch._foreach_mul_`` of all weights with float masks after the step."""
    parameters = [getattr(module, name) for module, name in weights(model)]
    masks = []
    for parameter in parameters:
        threshold = parameter.detach().abs().flatten().kthvalue(int(SPARSITY * parameter.numel())).values
        masks.append((parameter.detach().abs() > threshold).float())

    def mask(*_: object) -> None:
        with torch.no_grad():
            torch._foreach_mul_(parameters, masks)

    mask()
    optimizer.register_step_post_hook(mask)


def by_torch_prune(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """``torch.nn.utils.prune.l1_unstructured`` on every weight but those of attention, where it raises."""
    inside = {id(m) for a in model.modules() if isinstance(a, nn.MultiheadAttention) for m in a.modules()}
    for module, name in weights(model):
        if id(module) not in inside:
            torch_prune.l1_unstructured(module, name, SPARSITY)


def by_secateur(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """`prune_` with what it does by default."""
    secateur.prune_(model, optimizer, sparsity=SPARSITY)


def lean(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """The same with `lean`, which makes a difference without the library only."""
    secateur.prune_(model, optimizer, sparsity=SPARSITY, lean=True)


PURE = ", pure torch"
"""Ends the names of variants for which the library is hidden whenever they run, as SECATEUR_NATIVE=0 hides it."""

VARIANTS: dict[str, tuple[bool, Callable[[nn.Module, torch.optim.Optimizer], object] | None]] = {
    "dense, fused=True": (True, None),
    "dense, default": (False, None),
    "secateur, fused=True": (True, by_secateur),
    f"secateur, fused=True{PURE}": (True, by_secateur),
    f"secateur lean, fused=True{PURE}": (True, lean),
    "secateur, default": (False, by_secateur),
    f"secateur, default{PURE}": (False, by_secateur),
    "by hand (_foreach_mul_), fused=True": (True, by_hand),
    "by hand (_foreach_mul_), default": (False, by_hand),
    "torch.nn.utils.prune, fused=True": (True, by_torch_prune),
    "torch.nn.utils.prune, default": (False, by_torch_prune),
}


@contextmanager
def library(name: str) -> Iterator[None]:
    """Hide the library from a variant that is to do without."""
    found = native.library
    native.library = (lambda: None) if name.endswith(PURE) else found
    try:
        yield
    finally:
        native.library = found


def stepper(name: str, build: Callable[[], tuple[nn.Module, Callable[[nn.Module], Tensor]]]) -> Callable[[], None]:
    """A function that makes one training step of a variant."""
    fused, mask = VARIANTS[name]
    torch.manual_seed(0)
    model, loss_of = build()
    if mask is by_torch_prune:  # makes its parameters before the optimizer can hold them
        mask(model, torch.optim.SGD(model.parameters()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    if mask is not None and mask is not by_torch_prune:
        with library(name):
            mask(model, optimizer)

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()

    return step


def compare(model: str, rounds: int) -> dict[str, float]:
    """Median milliseconds of one step for every variant."""
    steps = {name: stepper(name, MODELS[model]) for name in VARIANTS}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for i in range(rounds + 5):
        for name, step in steps.items():
            with library(name):
                start = time.process_time()
                step()
                took = time.process_time() - start
            if i >= 5:
                times[name].append(1e3 * took)
    return {name: statistics.median(values) for name, values in times.items()}


def dead_units(share: float, rounds: int) -> float:
    """Default AdamW on the MLP with a share of dead hidden units: masked step over dense step."""
    ratios = []
    steps = []
    for masked in (False, True):
        torch.manual_seed(0)
        model, loss_of = mlp()
        with torch.no_grad():
            model[0].bias[: int(share * 2048)] = -100.0
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        if masked:
            secateur.prune_(model, optimizer, sparsity=SPARSITY)
        steps.append((model, loss_of, optimizer))
    for i in range(rounds + 5):
        took = []
        for model, loss_of, optimizer in steps:
            start = time.process_time()
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
            took.append(time.process_time() - start)
        if i >= 5:
            ratios.append(took[1] / took[0])
    return statistics.median(ratios)


def making() -> float:
    """Milliseconds to make the masks of 5.8 M weights (the MLP's)."""
    times = []
    for _ in range(5):
        model, _loss = mlp()
        start = time.process_time()
        secateur.prune_(model, sparsity=SPARSITY)
        times.append(1e3 * (time.process_time() - start))
    return statistics.median(times)


def bytes_held(name: str, build: str) -> float:
    """Bytes a weight that the masks of a variant hold while a model is trained."""
    model, loss_of = MODELS[build]()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    with library(name):
        VARIANTS[name][1](model, optimizer)
        for _ in range(2):
            loss_of(model).backward()
            optimizer.step()
        masks = secateur.Masks(model)
        return masks.num_bytes() / sum(masks[name].numel() for name in masks)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread, {SPARSITY:.0%} zeros, AdamW; {native.status()}")
    for model in arguments.models:
        result = compare(model, arguments.rounds if model == "mlp" else max(8, arguments.rounds // 3))
        print(f"\n{model:40} ms/step  of dense fused  of dense default")
        for name, ms in result.items():
            fused, default = (ms / result[base] for base in ("dense, fused=True", "dense, default"))
            print(f"{name:40} {ms:7.2f}  {fused:14.3f}  {default:16.3f}")
    print("\ndefault AdamW, masked over dense, MLP batch 16, share of dead hidden units:")
    for share in (0.0, 0.5, 0.9):
        print(f"  {share:4.0%}  {dead_units(share, arguments.rounds):.3f}")
    print(f"\nmaking masks for 5.8 M weights: {making():.0f} ms")
    for name in ("secateur, fused=True", f"secateur, fused=True{PURE}", f"secateur lean, fused=True{PURE}"):
        held = ", ".join(f"{build} {bytes_held(name, build):.3f}" for build in arguments.models)
        print(f"bytes a weight, {name}: {held}")


if __name__ == "__main__":
    main()
