"""How fast models are without their zeros: wall-clock milliseconds of one run, and how many times faster than dense.

All ways to run a model are timed in turns in one process, so that all meet the same machine; medians. Beside each is
the ratio to dense fp32 (above 1 is faster), and for fp32 the share of what the machine can do: the time that it needs
to read the model's parameters and buffers once, at the bandwidth measured for so much memory, or for the products with
weights that are not zero, at the most operations a second measured, whichever is longer, over the time taken.

Weights are random and so are the masks: these are speeds, and say nothing of accuracy. Then models that were shrunk to
half their width, in multiples of 16: how many times faster they are, beside how many times fewer MACs they need: as
they are, and as `compress` makes them (BatchNorm folded, weights laid out once, channels last where that is faster).

    python benchmarks/inference.py [--models mlp …] [--inputs "batch 1" …] [--threads 1 2] [--parts masked] [--quick]
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from _inference_models import (
    SETTINGS,
    SPARSE,
    Call,
    Setting,
    bandwidth,
    flops,
    in_bfloat16,
    in_channels_last,
    in_onnx_runtime,
    in_torch_csr,
    limits,
    masked,
)
from torch import Tensor, nn

import secateur
from secateur import _native
from secateur.runtime import CONV_FORMATS, LINEAR_FORMATS
from secateur.runtime.compressing import compress
from secateur.runtime.profile_times import latencies
from secateur.runtime.profiling import profile

NAMES = 66
"""Width of the first column."""


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Have torch use so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    yield
    torch.set_num_threads(before)


def compressed(setting: Setting, x: Tensor) -> dict[str, nn.Module]:
    """Compressed models: with the native kernels, and for the widest blocks in pure torch."""
    in_torch = [name for name, form in (LINEAR_FORMATS | CONV_FORMATS).items() if form.library == "torch"]
    found: dict[str, nn.Module] = {"compress, dense": compress(setting.make(), x)}
    for name, (sparsity, pattern) in SPARSE.items():
        if setting.title.startswith("ResNet") and "x1" in name:
            continue
        is_wide = name.startswith("256")
        model = masked(setting, sparsity, pattern)
        title = f"compress, {name}{', torch' if is_wide else ''}"
        found[title] = compress(model, x, formats=in_torch if is_wide else None)
    return found


def ways(setting: Setting, x: Tensor, number: int) -> tuple[dict[str, Call], dict[str, nn.Module]]:
    """All ways to run a model on an input, and the models among them that have a limit."""
    dense, sparse = setting.make(), masked(setting, *SPARSE["unstructured 90 %"])
    models = {"dense fp32": dense, **compressed(setting, x)}
    calls: dict[str, Call] = {"dense fp32": partial(dense, x), "dense bf16": in_bfloat16(dense, x)}
    for name, model in {"dense, ONNX Runtime": dense, "ONNX Runtime, unstructured 90 %": sparse}.items():
        try:
            calls[name] = in_onnx_runtime(model, x, number)
        except ImportError as error:
            print(f"{name}: left out ({error})")
    if setting.title.startswith("ResNet"):
        calls["dense fp32, channels last"] = in_channels_last(dense, x)
    else:
        calls["torch CSR, F.linear, 90 %"] = in_torch_csr(sparse, x, is_weight_first=False)
        calls["torch CSR, (W @ x.T).T, 90 %"] = in_torch_csr(sparse, x, is_weight_first=True)
    calls |= {name: partial(model, x) for name, model in models.items() if name not in calls}
    return calls, models


def check(setting: Setting, calls: dict[str, Call], x: Tensor) -> None:
    """Every way gives what the model, with its zeros, gives in dense fp32.

    Raises:
        RuntimeError: One does not.
    """
    references = {kind: masked(setting, *how) for kind, how in SPARSE.items()}
    references |= {"CSR": references["unstructured 90 %"], "dense": setting.make()}
    with torch.no_grad():
        for name, call in calls.items():
            wanted = next(model for kind, model in references.items() if kind in name)(x)
            found = call()
            found = torch.from_numpy(found[0]) if isinstance(found, list) else found
            error = float((found.float() - wanted).abs().max() / wanted.abs().max())
            if not error < (5e-2 if found.dtype == torch.bfloat16 else 1e-4):
                raise RuntimeError(f"{name}: the output differs by {error:.1e} of its largest value")


def measure(setting: Setting, number: int, seconds: float, speed: float, names: list[str]) -> None:
    """Print the times of all ways on some inputs of a model."""
    for name in names:
        x = torch.randn(setting.inputs[name])
        calls, models = ways(setting, x, number)
        check(setting, calls, x)
        with torch.no_grad():
            times = dict(zip(calls, latencies(list(calls.values()), seconds * len(calls)), strict=True))
        least = limits(models, x, speed)
        print(f"\n{f'{setting.title}, {name}, threads: {number}':{NAMES}}{'ms':>9}{'faster':>9}{'of limit':>10}")
        for way, found in times.items():
            share = f"{least[way] / (1e-3 * found.median):.0%}" if way in least else ""
            ratio = times["dense fp32"].median / found.median
            print(f"{way:{NAMES}}{found.median:>9.3g}{ratio:>8.2f}x{share:>10}", flush=True)


class Classifier(nn.Module):
    """Tokens in, classes out: so that the planner may narrow the width between layers, too."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.table, self.encoder, self.head = nn.Embedding(1000, 512), encoder, nn.Linear(512, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.table(tokens)).mean(1))


def shrinkable(names: list[str]) -> Iterator[tuple[str, nn.Module, Tensor]]:
    """Models to be halved, with an input."""
    if "resnet18" in names:
        for batch, size in ((1, 224), (8, 224), (16, 32)):
            model, x = SETTINGS["resnet18"].make(), torch.randn(batch, 3, size, size)
            yield f"ResNet-18, {size} px, batch {batch}", model, x
            last = torch.channels_last
            yield (
                f"ResNet-18, {size} px, batch {batch}, channels last",
                model.to(memory_format=last),
                x.contiguous(memory_format=last),
            )
    if "transformer" in names:
        for batch, length in ((1, 1), (1, 16), (1, 128), (8, 128)):
            tokens = torch.randint(1000, (batch, length))
            yield f"transformer, {batch} x {length} tokens", Classifier(SETTINGS["transformer"].make()).eval(), tokens


def shrink(names: list[str], seconds: float) -> None:
    """Print how much faster halved models are, by clock and by MACs: as they are, and with both models compressed."""
    heads = f"{'dense, ms':>12}{'shrunk, ms':>12}{'faster':>9}{'MACs':>9}{'share':>8}"
    print(f"\n{'half of all units, in 16s':{NAMES}}{heads}")
    for name, model, x in shrinkable(names):
        small = copy.deepcopy(model)
        secateur.shrink_(small, x, sparsity=0.5, round_to=16)
        dense, shrunk = profile({"dense": model, "shrunk": small}, x, seconds=0.0).rows
        models = {
            "dense": model,
            "shrunk": small,
            "dense, compress": compress(model, x),
            "shrunk, compress": compress(small, x),
        }
        with torch.no_grad():
            found = latencies([partial(each, x) for each in models.values()], seconds * len(models))
        ms = {kind: each.median for kind, each in zip(models, found, strict=True)}
        for title, before, after in (
            (name, "dense", "shrunk"),
            ("  compress: both", "dense, compress", "shrunk, compress"),
            ("  compress: the shrunk one", "dense", "shrunk, compress"),
        ):
            faster, fewer = ms[before] / ms[after], dense.macs / shrunk.macs
            times = f"{ms[before]:>12.3g}{ms[after]:>12.3g}"
            print(f"{title:{NAMES}}{times}{faster:>8.2f}x{fewer:>8.2f}x{faster / fewer:>8.2f}", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--parts", nargs="+", choices=["masked", "shrunk"], default=["masked", "shrunk"])
    parser.add_argument("--inputs", nargs="+", metavar="NAME", help="only these, as 'batch 64'")
    parser.add_argument("--quick", action="store_true", help="a fifth of the time, half of the inputs")
    arguments = parser.parse_args()
    seconds = 0.4 if arguments.quick else 2.0
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {_native.status()}")
    for number in arguments.threads:
        with threads(number):
            speed = flops()
            reads = ", ".join(f"{size} MB {bandwidth(size * 2**20) / 1e9:.0f}" for size in (1, 16, 64))
            print(f"\n== threads: {number}; at most {speed / 1e9:.0f} GFLOP/s; reads, GB/s: {reads}")
            for name in arguments.models if "masked" in arguments.parts else []:
                names = list(SETTINGS[name].inputs)
                some = names[: (len(names) + 1) // 2] if arguments.quick else names
                chosen = [each for each in names if each in arguments.inputs] if arguments.inputs else some
                measure(SETTINGS[name], number, seconds, speed, chosen)
            if "shrunk" in arguments.parts:
                shrink(arguments.models, seconds)


if __name__ == "__main__":
    main()
