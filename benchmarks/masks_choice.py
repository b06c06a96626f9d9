"""How long it takes to choose masks of 5.8 M weights: one thread, CPU milliseconds, the median of several rounds.

"choose" is from weights to bool masks; "prune_" is the whole call on a fresh model, which also zeroes weights and packs
masks; "in torch" is the same without the native kernels. Below it, what one would write by hand, and
torch.nn.utils.prune.

    python benchmarks/masks_choice.py [--rounds 15]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import secateur
from secateur import allocation, patterns, scores
from secateur.masks.choosing import chosen_masks

SPARSITY = 0.9
Weights = Mapping[str, Tensor]
Chosen = Mapping[str, Tensor]


def mlp() -> nn.Sequential:
    """784-2048-2048-10, with layers alike in scale as after training."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10))
    with torch.no_grad():
        for layer in model[::2]:
            layer.weight.normal_(std=0.02)
    return model


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in model.named_parameters() if p.dim() > 1}


CHOICES: dict[str, dict[str, object]] = {
    "uniform, 90 %": {"sparsity": SPARSITY},
    "global magnitude, 90 %": {"sparsity": SPARSITY, "allocation": allocation.global_},
    "erk, 90 %": {"sparsity": SPARSITY, "allocation": allocation.erk},
    "LAMP, 90 %": {"sparsity": SPARSITY, "allocation": allocation.global_, "score": scores.lamp},
    "2:4": {"pattern": patterns.NM(2, 4)},
    "4:8": {"pattern": patterns.NM(4, 8)},
    "16x1 blocks, 90 %": {"sparsity": SPARSITY, "pattern": patterns.Block((16, 1))},
    "4x4 blocks, 90 %": {"sparsity": SPARSITY, "pattern": patterns.Block((4, 4))},
    "rows, 50 %": {"sparsity": 0.5, "pattern": patterns.Channel(0)},
}


def choose(weights: Weights, choice: Mapping[str, object]) -> Chosen:
    """Masks, as `prune_` chooses them."""
    pattern = choice.get("pattern", patterns.Unstructured())
    return chosen_masks(
        choice.get("score", scores.magnitude)(weights),
        {},
        pattern=pattern,
        allocation=choice.get("allocation", allocation.uniform),
        sparsity=choice.get("sparsity", pattern.sparsity),
    )


def global_by_hand(weights: Weights) -> Chosen:
    """kthvalue over all weights in one vector."""
    flat = torch.cat([weight.abs().flatten() for weight in weights.values()])
    threshold = flat.kthvalue(round(SPARSITY * len(flat))).values
    return {name: weight.abs() > threshold for name, weight in weights.items()}


def global_by_sorting(weights: Weights) -> Chosen:
    """A sort of all weights."""
    flat = torch.cat([weight.abs().flatten() for weight in weights.values()])
    threshold = flat.sort().values[round(SPARSITY * len(flat)) - 1]
    return {name: weight.abs() > threshold for name, weight in weights.items()}


def groups_by_hand(weights: Weights) -> Chosen:
    """topk of each group of four."""
    masks = {}
    for name, weight in weights.items():
        groups = weight.abs().view(-1, 4)
        mask = torch.zeros_like(groups, dtype=torch.bool).scatter_(1, groups.topk(2, dim=1).indices, True)
        masks[name] = mask.view(weight.shape)
    return masks


def by_torch_prune(model: nn.Sequential) -> None:
    """torch.nn.utils.prune.global_unstructured."""
    layers = [(layer, "weight") for layer in model[::2]]
    prune.global_unstructured(layers, pruning_method=prune.L1Unstructured, amount=SPARSITY)


def milliseconds(call: Callable[[nn.Sequential], object], rounds: int) -> float:
    """Median CPU time of a call on a fresh model."""
    times = []
    for _ in range(rounds + 2):
        model = mlp()
        start = time.process_time()
        call(model)
        times.append(1e3 * (time.process_time() - start))
    return statistics.median(times[2:])


def without_kernels(call: Callable[[], float]) -> float:
    """The same call in pure torch."""
    library, secateur._native.library = secateur._native.library, lambda: None
    try:
        return call()
    finally:
        secateur._native.library = library


def check() -> None:
    """The masks are those of a sort and of topk: no two of these weights are equal in absolute value in one group."""
    weights = weights_of(mlp())
    pairs = (
        (choose(weights, CHOICES["global magnitude, 90 %"]), global_by_sorting(weights)),
        (choose(weights, CHOICES["2:4"]), groups_by_hand(weights)),
    )
    for ours, by_hand in pairs:
        different = sum(int((ours[name] != by_hand[name]).sum()) for name in weights)
        print(f"entries that differ from the masks by hand: {different}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    total = sum(weight.numel() for weight in weights_of(mlp()).values())
    print(f"torch {torch.__version__}, one thread, {total / 1e6:.2f} M weights, CPU milliseconds")
    print(secateur._native.status())
    check()
    print(f"{'':36} {'choose':>8} {'prune_':>8} {'in torch':>9}")
    for name, choice in CHOICES.items():
        chosen = milliseconds(lambda model, choice=choice: choose(weights_of(model), choice), rounds)
        prune = partial(milliseconds, lambda model, choice=choice: secateur.prune_(model, **choice), rounds)
        print(f"{name:36} {chosen:8.1f} {prune():8.1f} {without_kernels(prune):9.1f}")
    for name, by_hand in {
        "by hand: global, kthvalue": global_by_hand,
        "by hand: global, sort": global_by_sorting,
        "by hand: 2:4, topk": groups_by_hand,
    }.items():
        few = min(rounds, 5)
        print(f"{name:36} {milliseconds(lambda model, f=by_hand: f(weights_of(model)), few):8.1f}")
    print(f"{'torch.nn.utils.prune: global':36} {'':8} {milliseconds(by_torch_prune, min(rounds, 5)):8.1f}")


if __name__ == "__main__":
    main()
