"""Lottery tickets on MNIST-1D: a published table, beside what secateur's masks, snapshots and rounds give.

Published: the printed outputs of ``notebooks/lottery-tickets.ipynb`` in github.com/greydanus/mnist1d, two trials. An
MLP 40-500-500-10 whose second layer is residual; Adam at 2e-2, batches of 100 in a fixed order, 1502 steps a training.
Test accuracy is taken every 100 steps; shown are the best, the last and the mean of these. Weights and biases of a
layer are one vector that is masked by magnitude; then all weights are rewound to initialisation and trained again. As
in the notebook, the magnitudes are those of its last checkpoint, at step 1000.

The published rounds are 100, at sparsities 0, 1/99, 2/99 …; that is ``--full``. By default there are twenty: the eight
of the table, and some in between, as fewer and larger steps give worse tickets. Random masks are drawn anew at every
sparsity, so rounds in between are nothing to them.

    python benchmarks/mnist1d_lottery.py [--full] [--trials 0 1] [--rounds 0 0.2 …]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from _live_nets import Data, mnist_1d
from torch import Tensor, nn

import secateur
from secateur import allocation, scores, tickets

Accuracies = tuple[float, float, float]
"""Best, last and mean, in per cent."""

PUBLISHED: dict[float, tuple[list[Accuracies], list[Accuracies]]] = {
    0.00: ([(63.8, 60.6, 57.5), (65.2, 61.4, 57.7)], [(66.4, 66.4, 57.5), (65.4, 64.8, 58.4)]),
    0.70: ([(67.6, 65.2, 59.6), (67.3, 66.3, 59.1)], [(70.7, 70.2, 65.1), (71.9, 68.4, 63.8)]),
    0.80: ([(70.4, 68.6, 61.6), (69.7, 66.3, 61.0)], [(72.9, 72.9, 66.7), (72.1, 72.1, 66.4)]),
    0.90: ([(64.6, 60.5, 57.5), (65.7, 65.7, 57.1)], [(74.3, 74.3, 67.7), (74.1, 74.1, 67.1)]),
    0.92: ([(61.1, 60.6, 55.2), (62.4, 61.8, 56.1)], [(76.1, 75.6, 68.4), (74.4, 74.4, 66.3)]),
    0.95: ([(58.0, 55.9, 50.4), (56.1, 54.6, 49.3)], [(71.8, 69.2, 65.4), (70.8, 70.5, 64.9)]),
    0.97: ([(41.2, 41.2, 37.1), (43.9, 43.7, 38.7)], [(69.0, 68.1, 62.5), (68.3, 67.3, 61.7)]),
    0.98: ([(35.0, 34.6, 32.0), (27.4, 27.2, 25.4)], [(63.9, 63.0, 58.0), (65.0, 63.8, 59.3)]),
}
"""Sparsity -> random and magnitude masks, each trial 0 and trial 1."""

SHORT = [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.88, 0.9, 0.92, 0.935, 0.95, 0.96, 0.97, 0.975, 0.98]
FULL = [number / 99 for number in range(99)]  # the hundredth keeps nothing

STEPS, CHECKPOINT, EVERY, BATCH, RATE = 1502, 1000, 100, 100, 2e-2


class Net(nn.Module):
    """The MLP of the notebook; made in its order, so that equal seeds give equal weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(40, 500), nn.Linear(500, 500), nn.Linear(500, 10)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x))
        return self.last(hidden + torch.relu(self.second(hidden)))


@dataclass
class Training:
    """One training of the protocol, and the weights of its checkpoint, by which the next pruning goes."""

    data: Data
    checkpoint: Mapping[str, Tensor] = field(default_factory=dict)

    def __call__(self, model: nn.Module) -> Accuracies:
        """Train; the accuracies of the evaluations."""
        (x, y), (test_x, test_y) = self.data.train, self.data.test
        optimizer = torch.optim.Adam(model.parameters(), RATE, fused=True)
        found = []
        for step in range(STEPS):
            start = step * BATCH % len(x)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[start : start + BATCH]), y[start : start + BATCH]).backward()
            optimizer.step()
            if step == CHECKPOINT:
                self.checkpoint = tickets.Snapshot.of(model).parameters
            if step % EVERY == 0:
                with torch.no_grad():
                    found.append(100 * (model(test_x).argmax(1) == test_y).double().mean().item())
        return max(found), found[-1], sum(found) / len(found)

    def score(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Magnitude at the checkpoint; before the first one, of the weights themselves."""
        return scores.magnitude({name: self.checkpoint.get(name, weight) for name, weight in weights.items()})


def by_layer(units: Mapping[str, allocation.Units], sparsity: float) -> dict[str, int]:
    """The same sparsity in every layer; its weight and its bias compete, and each keeps at least one entry."""
    removed: dict[str, int] = {}
    for layer in dict.fromkeys(name.split(".")[0] for name in units):
        own = {name: each for name, each in units.items() if name.split(".")[0] == layer}
        removed |= allocation.global_(own, sparsity)
    return {name: removed[name] for name in units}


def fresh(trial: int) -> Net:
    """The model of a trial at initialisation."""
    torch.manual_seed(42 + trial)
    return Net()


def magnitude_tickets(data: Data, trial: int, sparsities: Sequence[float]) -> dict[float, Accuracies]:
    """Accuracies of the rounds that come nearest to the sparsities of the table."""
    training = Training(data)
    rounds = tickets.imp_(
        fresh(trial), training, sparsities=sparsities, score=training.score, allocation=by_layer, include="*"
    )
    return {wanted: min(rounds, key=lambda done: abs(done.sparsity - wanted)).result for wanted in PUBLISHED}


def random_tickets(data: Data, trial: int) -> dict[float, Accuracies]:
    """Accuracies with random masks at the sparsities of the table."""
    found = {}
    for number, sparsity in enumerate(PUBLISHED):
        model = fresh(trial)
        score = partial(scores.random, seed=100 * trial + number)
        secateur.prune_(model, sparsity=sparsity, score=score, allocation=by_layer, include="*")
        found[sparsity] = Training(data)(model)
    return found


def cell(trials: Sequence[Accuracies]) -> str:
    """Best / last / mean of each trial."""
    return " ; ".join("/".join(f"{value:.1f}" for value in each) for each in trials)


def last(trials: Sequence[Accuracies]) -> float:
    """The last accuracy, averaged over trials."""
    return sum(each[1] for each in trials) / len(trials)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="the published 100 rounds instead of a few")
    parser.add_argument("--trials", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--rounds", type=float, nargs="+", help="sparsities of the rounds")
    options = parser.parse_args()
    sparsities = options.rounds or (FULL if options.full else SHORT)
    began = time.perf_counter()
    made = mnist_1d()
    data = Data((made.train[0].flatten(1), made.train[1]), (made.test[0].flatten(1), made.test[1]))
    random = [random_tickets(data, trial) for trial in options.trials]
    magnitude = [magnitude_tickets(data, trial, sparsities) for trial in options.trials]
    print(f"{len(sparsities)} trainings a trial; trials {options.trials}; test accuracy %, best/last/mean\n")
    print("| sparsity | random, published | random, here | magnitude, published | magnitude, here | last, difference |")
    print("|---|---|---|---|---|---|")
    for sparsity, (random_before, magnitude_before) in PUBLISHED.items():
        here = [trial[sparsity] for trial in magnitude]
        cells = [cell(random_before), cell([trial[sparsity] for trial in random]), cell(magnitude_before), cell(here)]
        print(f"| {sparsity:.2f} | {' | '.join(cells)} | {last(here) - last(magnitude_before):+.1f} |")
    print(f"\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
