"""What a resize in mid-training costs, beside rebuilding the parameters and the optimizer by hand.

Both remove the same half of all hidden units from the same model under AdamW, with momentum carried, and take the next
training step. *By hand* is what one writes without secateur: a new `nn.Parameter` for every weight, sizes set, a new
optimizer, and the old state indexed into it. It keeps neither hooks nor identity nor averages, and looks for nothing
that it could have missed. Models are made anew for every round, outside the clock; the sides take turns; process CPU
time, medians, one thread. The last columns leave out the census of live objects, which is taken once a transaction.

    python benchmarks/surgery.py [--rounds 15]
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

import secateur
from secateur.surgery import admission
from secateur.surgery.census import Census, census

Cuts = dict[tuple[str, int], Tensor]
"""Kept positions by parameter and dim."""


def mlp(*widths: int) -> Callable[[], nn.Sequential]:
    """Linear layers with a ReLU between."""

    def make() -> nn.Sequential:
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    return make


MODELS = {
    "MLP 64-300-100-10": mlp(64, 300, 100, 10),
    "MLP 784-2048-2048-10": mlp(784, 2048, 2048, 10),
    "500 layers of 32 (1000 parameters)": mlp(*[32] * 501),
}


def halves(model: nn.Sequential) -> Cuts:
    """Every second hidden unit."""
    linears = [(str(i), layer) for i, layer in enumerate(model) if isinstance(layer, nn.Linear)]
    cuts: Cuts = {}
    for (name, layer), (following, _) in pairwise(linears):
        keep = torch.arange(0, layer.out_features, 2)
        cuts |= {(f"{name}.weight", 0): keep, (f"{name}.bias", 0): keep, (f"{following}.weight", 1): keep}
    return cuts


def trained(make: Callable[[], nn.Sequential]) -> tuple[nn.Sequential, torch.optim.Optimizer, Tensor]:
    """A model with momentum, and inputs for it."""
    model = make()
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(16, model[0].in_features)
    step(model, optimizer, x)
    return model, optimizer, x


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    """One training step."""
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def by_secateur(model: nn.Sequential, optimizer: torch.optim.Optimizer, cuts: Cuts) -> torch.optim.Optimizer:
    """One transaction."""
    with secateur.transaction(model, optimizer) as t:
        for (name, dim), keep in cuts.items():
            t.resize(name, dim=dim, keep=keep)
    return optimizer


def by_hand(model: nn.Sequential, optimizer: torch.optim.Optimizer, cuts: Cuts) -> torch.optim.Optimizer:
    """New parameters, a new optimizer, the state indexed into it."""
    states = {}
    for name, old in list(model.named_parameters()):
        dims = [(dim, keep) for (other, dim), keep in cuts.items() if other == name]
        owner, leaf = model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]
        values = {"": old.detach(), **optimizer.state[old]}
        for key, value in values.items():
            for dim, keep in dims if value.dim() else ():
                values[key] = values[key].index_select(dim, keep)
        setattr(owner, leaf, nn.Parameter(values.pop("")))
        states[name] = values
        owner.out_features, owner.in_features = owner.weight.shape
    fresh = torch.optim.AdamW(model.parameters())
    for name, parameter in model.named_parameters():
        fresh.state[parameter] = states[name]
    return fresh


def timed(change: Callable[..., torch.optim.Optimizer], make: Callable[[], nn.Sequential]) -> float:
    """Seconds of CPU time for the change and the step after it."""
    model, optimizer, x = trained(make)
    cuts = halves(model)
    gc.collect()
    start = time.process_time()
    step(model, change(model, optimizer, cuts), x)
    return time.process_time() - start


def by_secateur_blindly(model: nn.Sequential, optimizer: torch.optim.Optimizer, cuts: Cuts) -> torch.optim.Optimizer:
    """One transaction that does not look for what was not passed."""
    admission.census = lambda tensors: Census()
    try:
        return by_secateur(model, optimizer, cuts)
    finally:
        admission.census = census


def main() -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    print(f"{len(gc.get_objects())} live Python objects\n")
    print(f"{'resize and next step':<36}{'by hand':>10}{'secateur':>10}{'ratio':>8}{'without census':>16}{'ratio':>8}")
    for name, make in MODELS.items():
        sides = (by_hand, by_secateur, by_secateur_blindly)
        times = [[timed(side, make) for side in sides] for _ in range(rounds)]
        hand, ours, blind = (statistics.median(column) for column in zip(*times, strict=True))
        shown = f"{hand * 1e3:>7.1f} ms{ours * 1e3:>7.1f} ms{ours / hand:>8.2f}"
        print(f"{name:<36}{shown}{blind * 1e3:>13.1f} ms{blind / hand:>8.2f}")


if __name__ == "__main__":
    main()
