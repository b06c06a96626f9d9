"""What a RigL run costs: the mean training step, changes of the masks included, as a ratio to the dense step.

An MLP 784-2048-2048-10 at batch 16, AdamW, 90 % zeros, masks changed every 100 steps. Every variant is stepped in turn,
in one process, so that all meet the same machine; process CPU time, one thread, medians over stretches of 100 steps,
each of which has one change in it. rigl-torch and sparsimony run beside it where they are installed; both leave the
first layer dense or not as their own defaults have it, except that linear layers are not left out.

Below it, what one change of the masks of RigL adds: the step with it and the step after, less two of the usual ones,
with the native kernels, without them, and by hand with topk.

    python benchmarks/dst_overhead.py [--stretches 3] [--updates 20]
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

import secateur

SPARSITY, EVERY, END = 0.9, 100, 1_000_000
OFTEN = 6
"""Steps from one change to the next where only the changes are of interest."""


def secateur_rigl(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """Attaches to the optimizer's steps by itself."""
    secateur.RigL(model, optimizer, sparsity=SPARSITY, every=EVERY, end_step=END)
    return optimizer.step


def secateur_static(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """The same masks, never changed."""
    secateur.dst.Static(model, optimizer, sparsity=SPARSITY)
    return optimizer.step


def rigl_torch(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """``rigl_torch.RigL.RigLScheduler``: asked before each step, which it replaces by its own when masks change."""
    from rigl_torch.RigL import RigLScheduler

    pruner = RigLScheduler(
        model, optimizer, dense_allocation=1 - SPARSITY, T_end=END, delta=EVERY, ignore_linear_layers=False
    )

    def step() -> None:
        if pruner():
            optimizer.step()

    return step


def sparsimony(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """``sparsimony.dst.rigl.RigL``: stepped after the optimizer."""
    from sparsimony.distributions.base import UniformDistribution
    from sparsimony.dst.rigl import RigL
    from sparsimony.schedulers.base import CosineDecayScheduler

    sparsifier = RigL(CosineDecayScheduler(0.3, END, EVERY), UniformDistribution(), optimizer, SPARSITY)
    sparsifier.prepare(model, [{"tensor_fqn": f"{name}.weight"} for name in ("0", "2", "4")])

    def step() -> None:
        optimizer.step()
        sparsifier.step()

    return step


def dense(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """No masks."""
    return optimizer.step


METHODS = {
    "dense": dense,
    "secateur Static": secateur_static,
    "secateur RigL": secateur_rigl,
    "rigl-torch": rigl_torch,
    "sparsimony": sparsimony,
}


def stepper(attach: Callable[..., Callable[[], None]], *, fused: bool) -> Callable[[], None]:
    """A function that makes one training step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    inputs, labels = torch.randn(16, 784), torch.randint(0, 10, (16,))
    update = attach(model, optimizer)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        update()

    return step


def rigl_by_hand(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """What one would write: float masks, topk of each layer, the state of regrown weights set to zero."""
    weights = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    masks = [(torch.rand_like(weight) > SPARSITY).float() for weight in weights]
    steps = itertools.count(1)

    @torch.no_grad()
    def step() -> None:
        optimizer.step()
        if next(steps) % OFTEN == 0:
            for weight, mask in zip(weights, masks, strict=True):
                count = round(0.3 * int(mask.count_nonzero()))
                drop = weight.abs().masked_fill_(mask == 0, torch.inf).view(-1).topk(count, largest=False).indices
                grow = weight.grad.abs().masked_fill_(mask == 1, -1.0).view(-1).topk(count).indices
                mask.view(-1)[drop] = 0.0
                mask.view(-1)[grow] = 1.0
                for moment in ("exp_avg", "exp_avg_sq"):
                    optimizer.state[weight][moment].view(-1)[grow] = 0.0
        torch._foreach_mul_(weights, masks)

    return step


def rigl_often(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """As `secateur_rigl`, with changes that are close together."""
    secateur.RigL(model, optimizer, sparsity=SPARSITY, every=OFTEN, end_step=END)
    return optimizer.step


def update_times(updates: int) -> dict[str, float]:
    """What a change adds, in CPU milliseconds: the median over changes of three trainings that are stepped in turn."""
    native = secateur._native.library
    variants = {"native": (rigl_often, native), "torch": (rigl_often, lambda: None), "topk": (rigl_by_hand, native)}
    steps: dict[str, Callable[[], None]] = {}
    times: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range((updates + 1) * OFTEN):
        for name, (attach, library) in variants.items():
            secateur._native.library = library
            if turn == 0:
                steps[name] = stepper(attach, fused=True)
            start = time.process_time()
            steps[name]()
            times[name].append(1e3 * (time.process_time() - start))
    secateur._native.library = native
    added = {}
    for name, taken in times.items():
        usual = statistics.median(taken[i] for i in range(OFTEN, len(taken)) if i % OFTEN not in (0, OFTEN - 1))
        due = range(2 * OFTEN - 1, len(taken) - 1, OFTEN)
        added[name] = statistics.median(taken[i] + taken[i + 1] - 2 * usual for i in due)
    return added


def main() -> None:
    """Print two Markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stretches", type=int, default=3)
    parser.add_argument("--updates", type=int, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.stretches:
        print_steps(arguments.stretches)
    print(f"RigL update, {secateur._native.status()}\n")
    print("| variant | ms | of topk by hand |\n|---|---|---|")
    added = update_times(arguments.updates)
    for name, label in {"native": "native kernels", "torch": "pure torch", "topk": "topk by hand"}.items():
        print(f"| {label} | {added[name]:.1f} | {added[name] / added['topk']:.3f} |")


def print_steps(stretches: int) -> None:
    """What training steps take, as a table."""
    steps: dict[tuple[str, bool], Callable[[], None]] = {}
    for name, attach in METHODS.items():
        for fused in (True, False):
            try:
                steps[name, fused] = stepper(attach, fused=fused)
            except ImportError as error:
                print(f"{name}: {error}")
    times: dict[tuple[str, bool], list[float]] = {variant: [] for variant in steps}
    for _ in range((stretches + 1) * EVERY):
        for variant, step in steps.items():
            start = time.process_time()
            step()
            times[variant].append(1e3 * (time.process_time() - start))
    mean = {
        variant: statistics.median(
            statistics.mean(taken[i : i + EVERY]) for i in range(EVERY // 2, len(taken) - EVERY // 2, EVERY)
        )
        for variant, taken in times.items()
    }
    print(f"torch {torch.__version__}, one thread, {SPARSITY:.0%} zeros, AdamW, a change every {EVERY} steps\n")
    print("| variant | fused=True: ms/step | of dense | default: ms/step | of dense |\n|---|---|---|---|---|")
    for name in METHODS:
        cells = [
            f"{mean[name, fused]:.2f} | {mean[name, fused] / mean['dense', fused]:.3f}"
            for fused in (True, False)
            if (name, fused) in mean
        ]
        if cells:
            print(f"| {name} | " + " | ".join(cells) + " |")
    print()


if __name__ == "__main__":
    main()
