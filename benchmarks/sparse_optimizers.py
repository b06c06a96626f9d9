"""What a whole training step costs with optimizers that step kept weights only, as a ratio to the dense fused step.

Models and sparsity are those of `benchmarks/masks.py`. All variants make a step in every round, in another order each
time, in one process whose allocator keeps its memory; process CPU time. "Of dense" is the median over the rounds of the
ratio to the dense step of the same round. Two variants leave gradients of masked weights as they arrive
(``mask_gradients=False``).

    python benchmarks/sparse_optimizers.py [--models mlp transformer resnet] [--rounds 40] [--threads 1]
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from _memory import keep_freed_memory
from masks import MODELS, SPARSITY
from torch import Tensor, nn

import secateur
from secateur.optim import SparseAdamW, SparseSGD

WARM = 5
"""Steps that are not counted."""

ADAMW = {"lr": 1e-3}
SGD = {"lr": 1e-3, "momentum": 0.9, "weight_decay": 1e-4}


def dense_adamw(model: nn.Module) -> torch.optim.Optimizer:
    """The step that all others are compared with."""
    return torch.optim.AdamW(model.parameters(), fused=True, **ADAMW)


def masked_adamw(model: nn.Module) -> torch.optim.Optimizer:
    """Masks, and torch's optimizer."""
    optimizer = dense_adamw(model)
    secateur.prune_(model, optimizer, sparsity=SPARSITY)
    return optimizer


def sparse_adamw(model: nn.Module, *, mask_gradients: bool = True) -> torch.optim.Optimizer:
    """Masks, and the optimizer of kept weights."""
    optimizer = SparseAdamW(model.parameters(), mask_gradients=mask_gradients, **ADAMW)
    secateur.prune_(model, optimizer, sparsity=SPARSITY)
    return optimizer


def dense_sgd(model: nn.Module) -> torch.optim.Optimizer:
    """Momentum, in torch's fused form."""
    return torch.optim.SGD(model.parameters(), fused=True, **SGD)


def sparse_sgd(model: nn.Module, *, mask_gradients: bool = True) -> torch.optim.Optimizer:
    """Momentum of kept weights."""
    optimizer = SparseSGD(model.parameters(), mask_gradients=mask_gradients, **SGD)
    secateur.prune_(model, optimizer, sparsity=SPARSITY)
    return optimizer


VARIANTS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "AdamW(fused=True), dense": dense_adamw,
    "AdamW(fused=True), masked": masked_adamw,
    "SparseAdamW": sparse_adamw,
    "SparseAdamW, gradients left": partial(sparse_adamw, mask_gradients=False),
    "SGD(fused=True), dense": dense_sgd,
    "SparseSGD": sparse_sgd,
    "SparseSGD, gradients left": partial(sparse_sgd, mask_gradients=False),
}


class Training:
    """A model in training."""

    def __init__(self, build: Callable[[], tuple[nn.Module, Callable[[nn.Module], Tensor]]], name: str) -> None:
        torch.manual_seed(0)
        self.model, self.loss_of = build()
        self.optimizer = VARIANTS[name](self.model)
        self.times: list[tuple[float, float]] = []

    def step(self) -> None:
        """One step; the time of all of it and that of the optimizer's part."""
        start = time.process_time()
        self.optimizer.zero_grad()
        self.loss_of(self.model).backward()
        between = time.process_time()
        self.optimizer.step()
        end = time.process_time()
        self.times.append((1e3 * (end - start), 1e3 * (end - between)))

    def median(self, part: int) -> float:
        """Median milliseconds, without the first steps."""
        return statistics.median([times[part] for times in self.times[WARM:]])

    def ratio(self, base: Training) -> float:
        """Median ratio to another training's step of the same round."""
        pairs = zip(self.times[WARM:], base.times[WARM:], strict=True)
        return statistics.median([one / other for (one, _), (other, _) in pairs])

    def num_bytes(self) -> float:
        """Bytes of state and of masks for each weight that is masked."""
        masks = secateur.Masks(self.model)
        masked = [self.model.get_parameter(name) for name in masks]
        if not masked:
            masked = [p for p in self.model.parameters() if p.dim() > 1]
        states = [self.optimizer.state[p] for p in masked]
        held = sum(v.nbytes for state in states for k, v in state.items() if isinstance(v, Tensor) and k != "kept")
        return (held + masks.num_bytes()) / sum(p.numel() for p in masked)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"torch {torch.__version__}, {arguments.threads} thread(s), {SPARSITY:.0%} zeros; {keep_freed_memory()}")
    order = random.Random(0)
    for model in arguments.models:
        trainings = {name: Training(MODELS[model], name) for name in VARIANTS}
        for _ in range(WARM + (arguments.rounds if model == "mlp" else max(8, arguments.rounds // 2))):
            for training in order.sample(list(trainings.values()), len(trainings)):
                training.step()
        print(f"\n{model:36} ms/step  of dense  optimizer ms  bytes a weight")
        for name, training in trainings.items():
            base = trainings["SGD(fused=True), dense" if "SGD" in name else "AdamW(fused=True), dense"]
            print(
                f"{name:36} {training.median(0):7.2f}  {training.ratio(base):8.3f}  "
                f"{training.median(1):12.3f}  {training.num_bytes():14.2f}"
            )


if __name__ == "__main__":
    main()
