"""What it costs to make a model smaller: CPU time as a multiple of one forward of the same model in the same run.

Five classifiers of torchvision at 224 pixels, batch 1: half of the units of every group by their L2 norm. Beside it
Torch-Pruning (its MetaPruner with the same ratio and score; the classifier is ignored, as its documentation advises).
Each thing is run several times on fresh copies, in turns; medians, one thread. Then the depth of a chain of layers, and
a Llama of 70 B parameters under FakeTensorMode, analysed and planned.

    python benchmarks/shrink.py [--models resnet50 …] [--rounds 5] [--skip-llama]
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import resource
import signal
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

import secateur

MODELS = ("resnet50", "vit_b_16", "densenet121", "efficientnet_b0", "swin_t")
LIMIT = 60.0
"""Seconds of CPU time after which Torch-Pruning is stopped."""

MEMORY = 6 * 2**30
"""Bytes that it may take on top of what is there already."""


def build(name: str) -> tuple[nn.Module, torch.Tensor]:
    """A model with random weights, and an image."""
    from torchvision import models

    torch.manual_seed(0)
    return models.get_model(name, weights=None).eval(), torch.randn(1, 3, 224, 224)


def seconds(work: Callable[[], object]) -> float:
    """CPU time of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def forward(model: nn.Module, images: torch.Tensor) -> None:
    """One forward, as a user runs it."""
    with torch.no_grad():
        model(images)


def by_secateur(model: nn.Module, images: torch.Tensor) -> None:
    """Analysis, plan and apply."""
    secateur.shrink_(model, images, sparsity=0.5)


def by_secateur_verified(model: nn.Module, images: torch.Tensor) -> None:
    """The same, tried on a copy first."""
    secateur.shrink_(model, images, sparsity=0.5, verify=True)


def by_torch_pruning(model: nn.Module, images: torch.Tensor) -> None:
    """Torch-Pruning's graph, importance and cut."""
    import torch_pruning

    last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    with limited():
        pruner = torch_pruning.pruner.MetaPruner(
            model, images, torch_pruning.importance.MagnitudeImportance(p=2), pruning_ratio=0.5, ignored_layers=[last]
        )
        pruner.step()
    forward(model, images)


@contextmanager
def limited() -> Iterator[None]:
    """Stop what takes longer than `LIMIT` or more than `MEMORY`, with an error."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"no end after {LIMIT:.0f} s")

    before, most = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    handler = signal.signal(signal.SIGPROF, stop)
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, most))
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (before, most))
        signal.signal(signal.SIGPROF, handler)


def measure(name: str, rounds: int, ways: dict[str, Callable[[nn.Module, torch.Tensor], None]]) -> dict[str, Any]:
    """Median seconds of each way, or what went wrong."""
    model, images = build(name)
    forward(model, images)
    found: dict[str, Any] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, work in ways.items():
            if isinstance(found[way], list):
                fresh = model if work is forward else copy.deepcopy(model)
                try:
                    found[way].append(seconds(lambda work=work, fresh=fresh: work(fresh, images)))  # type: ignore[misc]
                except Exception as error:  # Torch-Pruning fails on some of them; the table says how
                    found[way] = f"{type(error).__name__}: {' '.join(str(error).split())[:60]}"
    return {way: statistics.median(value) if isinstance(value, list) else value for way, value in found.items()}


def chain(depth: int) -> float:
    """Seconds of analysis, plan and apply for a chain of linear layers."""
    layers = [layer for _ in range(depth) for layer in (nn.Linear(64, 64), nn.ReLU())]
    model = nn.Sequential(*layers)
    return seconds(lambda: secateur.shrink_(model, torch.randn(2, 64), sparsity=0.5))


def llama() -> tuple[float, float, float]:
    """Seconds for the analysis and for the plan of a 70 B Llama that takes no memory; GiB that it took."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8
    )
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = LlamaForCausalLM(config)
        tokens = torch.ones(1, 16, dtype=torch.long)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.process_time()
        coupling = secateur.analyze(model, {"input_ids": tokens, "use_cache": False}, interface=lambda r: [r.logits])
        middle = time.process_time()
        secateur.plan_shrink(
            model, {"input_ids": tokens}, sparsity=0.5, score=secateur.shrink.random, coupling=coupling
        )
        end = time.process_time()
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
    return middle - start, end - middle, peak


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--skip-llama", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    ways = {"forward": forward, "shrink_": by_secateur, "with verify": by_secateur_verified}
    if importlib.util.find_spec("torch_pruning"):
        ways["Torch-Pruning"] = by_torch_pruning
    print(f"torch {torch.__version__}, one thread, 224 px, batch 1, half of all units; multiples of one forward")
    print(f"{'':18} {'forward, ms':>12}" + "".join(f"{way:>16}" for way in list(ways)[1:]) + f"{'TP / shrink_':>14}")
    rows = []
    for name in arguments.models:
        found = measure(name, arguments.rounds, ways)
        base = found["forward"]
        row = [found[way] / base if isinstance(found[way], float) else found[way] for way in list(ways)[1:]]
        rows.append(row)
        shown = "".join(f"{value:>16.2f}" if isinstance(value, float) else f"{'failed':>16}" for value in row)
        ratio = f"{row[2] / row[0]:>14.1f}" if len(row) > 2 and isinstance(row[2], float) else f"{'-':>14}"
        print(f"{name:18} {1e3 * base:>12.1f}{shown}{ratio}", *(v for v in row if isinstance(v, str)))
    numbers = [[value for value in column if isinstance(value, float)] for column in zip(*rows, strict=True)]
    print(f"{'median':31}" + "".join(f"{statistics.median(column):>16.2f}" for column in numbers if column))
    print("\nchain of linear layers, analysis + plan + apply:")
    for depth in (25, 50, 100, 200):
        took = chain(depth)
        print(f"  {depth:>4} layers  {1e3 * took:7.1f} ms  {1e3 * took / depth:6.2f} ms a layer")
    if not arguments.skip_llama:
        analysis, plan, peak = llama()
        print(f"\nLlama, 70 B parameters, FakeTensorMode: analysis {analysis:.1f} s, plan {plan:.1f} s, {peak:.2f} GiB")


if __name__ == "__main__":
    main()
