"""Does shrinking in mid-training with the state carried pay? Small nets on digits and MNIST-1D, against six others.

Each net loses 50 % or 80 % of the units of every hidden layer in 8 cuts along a cubic curve between 10 % and 60 % of
the training, by group L2 norm. Compared at the same seeds (weights, batches), split and learning rate:

  dense                       nothing is removed
  carried                     `secateur.shrink_schedule`: the optimizer's state follows
  new optimizer               the same cuts, and a new AdamW after each of them
  stale optimizer             Torch-Pruning cuts, and the optimizer is left as it is (if torch-pruning is installed)
  masks                       the same units held at zero by `secateur.Masks`, nothing removed
  small, equal steps          a net of the final widths from scratch, for as many steps
  small, equal CPU            the same net, for as many steps as take the CPU time of "carried"
  small, equal CPU of steps   the same, but only the training steps of "carried" are counted, not its cuts

Accuracy is on the test set at the end of training, in percent: mean and sample standard deviation over the seeds.
"Jump" is the loss on 512 training examples right after a cut less that right before it, "10 steps on" the loss 10 steps
later less that before the cut, means over the cuts; for the dense net at the same steps. CPU is process time on one
thread, cuts included.

    python benchmarks/live_shrink.py [--data digits MNIST-1D] [--seeds 5] [--quick]

MNIST-1D comes from the `mnist1d` package, which makes it without the network; without the package only digits are run.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from _live_nets import NETS, Data, Net, digits, mnist_1d
from torch import Tensor, nn

import secateur
from secateur.schedules import cubic

CUTS, BEGIN, END = 8, 0.1, 0.6
SPARSITIES = (0.5, 0.8)
BATCH = 64
FIRST_SEED = 1000


# ---- one training


@dataclass
class Training:
    """One net in training; `cut` may replace the optimizer.

    Args:
        net: What is trained.
        widths: Its hidden widths.
        data: What it is trained on.
        seed: Seed of weights and batches.
        steps: Number of steps.
    """

    net: Net
    widths: list[int]
    data: Data
    seed: int
    steps: int
    done: int = 0
    jumps: list[float] = field(default_factory=list)
    later: list[float] = field(default_factory=list)
    seconds: float = 0.0
    seconds_cutting: float = 0.0

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        self.model = self.net.build(self.widths)
        self.batches = torch.Generator().manual_seed(self.seed)
        self.optimizer: torch.optim.Optimizer | None = self.new_optimizer()

    def new_optimizer(self) -> torch.optim.Optimizer:
        """AdamW for the parameters as they are."""
        return torch.optim.AdamW(self.model.parameters(), lr=self.net.rate, fused=True)

    @property
    def example(self) -> Tensor:
        """Two inputs."""
        return self.data.train[0][:2]

    @property
    def when(self) -> dict[str, int]:
        """When the cuts are made, for `shrink_schedule`."""
        return {"begin_step": int(BEGIN * self.steps), "end_step": int(END * self.steps), "num_cuts": CUTS}

    @property
    def cuts(self) -> list[int]:
        """Steps after which a cut is made."""
        return torch.linspace(self.when["begin_step"], self.when["end_step"], CUTS).round().int().tolist()

    def run(self, cut: Callable[[], object] = lambda: None) -> Training:
        """Train; the learning rate is constant, then falls to zero in the last 40 % of the steps.

        Args:
            cut: Called after every step; it is its own business to cut at the steps of `cuts`.
        """
        cuts = self.cuts
        before = 0.0
        while self.done < self.steps:
            self.seconds += timed(self.step)
            if self.done in cuts:
                before = self.probe()
            took = timed(cut)
            self.seconds += took
            self.seconds_cutting += took
            if self.done in cuts:
                self.jumps.append(self.probe() - before)
            if self.done - 10 in cuts:
                self.later.append(self.probe() - before)
        return self

    def step(self) -> None:
        """One step of the optimizer."""
        images, labels = self.data.train
        chosen = torch.randint(len(labels), (BATCH,), generator=self.batches)
        for group in self.optimizer.param_groups:
            group["lr"] = self.net.rate * min(1.0, (1.0 - self.done / self.steps) / (1.0 - END))
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(images[chosen]), labels[chosen]).backward()
        self.optimizer.step()
        self.done += 1

    def probe(self) -> float:
        """Loss on 512 training examples, in evaluation mode."""
        images, labels = self.data.train
        with torch.no_grad():
            loss = float(nn.functional.cross_entropy(self.model.eval()(images[:512]), labels[:512]))
        self.model.train()
        return loss

    @cached_property
    def accuracy(self) -> float:
        """Percent right on the test set."""
        images, labels = self.data.test
        with torch.no_grad():
            return 100 * float((self.model.eval()(images).argmax(1) == labels).float().mean())


def timed(call: Callable[[], object]) -> float:
    """Seconds of CPU time that a call takes."""
    start = time.process_time()
    call()
    return time.process_time() - start


# ---- what is compared


def carried(training: Training, sparsity: float) -> Training:
    """Cuts that the optimizer follows."""
    schedule = secateur.shrink_schedule(
        training.model, training.example, **training.when, final_sparsity=sparsity, optimizer=training.optimizer
    )
    assert list(schedule.cuts) == training.cuts
    return training.run(schedule.step)


def with_new_optimizer(training: Training, sparsity: float) -> Training:
    """The same cuts; the old optimizer is gone before each, and a new one is made after it."""
    schedule = secateur.shrink_schedule(training.model, training.example, **training.when, final_sparsity=sparsity)

    def cut() -> None:
        is_due = training.done in schedule.cuts
        if is_due:
            training.optimizer = None
        schedule.step()
        if is_due:
            training.optimizer = training.new_optimizer()

    return training.run(cut)


def with_stale_optimizer(training: Training, sparsity: float) -> Training:
    """Torch-Pruning's cuts, which replace parameters; nobody tells the optimizer."""
    tp = importlib.import_module("torch_pruning")
    pruner = tp.pruner.MetaPruner(
        training.model,
        training.example,
        importance=tp.importance.GroupMagnitudeImportance(p=2),
        pruning_ratio=sparsity,
        iterative_steps=CUTS,
        iterative_pruning_ratio_scheduler=lambda ratio, steps: [
            cubic(0.0, ratio, begin_step=0, end_step=steps)(i) for i in range(steps + 1)
        ],
        ignored_layers=[training.model[-1]],
    )
    return training.run(lambda: pruner.step() if training.done in training.cuts else None)


def masked(training: Training, sparsity: float) -> Training:
    """The same units, held at zero in a net that keeps its size."""
    coupling = secateur.analyze(training.model, training.example)
    masks = secateur.Masks(training.model)
    gone = cubic(0.0, sparsity, begin_step=0, end_step=CUTS)
    shares = {step: gone(number) for number, step in enumerate(training.cuts, start=1)}

    def cut() -> None:
        if training.done not in shares:
            return
        plan = secateur.plan_shrink(training.model, training.example, sparsity=shares[training.done], coupling=coupling)
        kept = {}
        for name, dims in plan.keep.items():
            if name in coupling.parameters:
                kept[name] = torch.zeros(plan.shapes[name], dtype=torch.bool)
                places = [dims.get(dim, torch.arange(size)) for dim, size in enumerate(plan.shapes[name])]
                kept[name][torch.meshgrid(*places, indexing="ij")] = True
        masks.remove()
        masks.from_dict(training.model, kept, training.optimizer)

    return training.run(cut)


VARIANTS: dict[str, Callable[[Training, float], Training]] = {
    "carried": carried,
    "new optimizer": with_new_optimizer,
    "stale optimizer": with_stale_optimizer,
    "masks": masked,
}


def compare(
    net: Net, data: Data, sparsity: float, seed: int, variants: list[str], dense: Training
) -> dict[str, Training]:
    """Every variant once, with one seed."""
    gc.collect()  # old nets that are left over are live objects, which the cuts would pass over
    done = {"dense": dense}
    for name in variants:
        done[name] = VARIANTS[name](Training(net, net.widths, data, seed, net.steps), sparsity)
    widths = [width - round(sparsity * width) for width in net.widths]
    small = done["small, equal steps"] = Training(net, widths, data, seed, net.steps).run()
    whole, cutting = done["carried"].seconds, done["carried"].seconds_cutting
    for name, seconds in (("small, equal CPU", whole), ("small, equal CPU of steps", whole - cutting)):
        done[name] = Training(net, widths, data, seed, round(net.steps * seconds / small.seconds)).run()
    return done


def spread(values: list[float]) -> str:
    """Mean and sample standard deviation."""
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values) if len(values) > 1 else 0.0:.1f}"


def mean_of(part: str, runs: list[Training]) -> float:
    """Mean of an attribute, over the runs and over its entries if it is a list."""
    values = [getattr(run, part) for run in runs]
    return statistics.mean(statistics.mean(value) if isinstance(value, list) else value for value in values)


def table(
    title: str,
    rows: dict[str, list[dict[str, Training]]],
    names: list[str],
    cell: Callable[[list[Training], float], str],
) -> None:
    """Print one figure of all runs as a table in Markdown: a row for each net and sparsity, a column for each variant.

    Args:
        title: What is shown.
        rows: The runs of all seeds.
        names: The variants that are shown.
        cell: The runs of one variant, and the mean CPU seconds of the dense net -> what to write.
    """
    print(f"\n{title}\n\n| net | {' | '.join(names)} |\n|{' --- |' * (len(names) + 1)}")
    for row, runs in rows.items():
        dense = mean_of("seconds", [run["dense"] for run in runs])
        print(f"| {row} | {' | '.join(cell([run[name] for run in runs], dense) for name in names)} |")


def report(rows: dict[str, list[dict[str, Training]]]) -> None:
    """Print everything."""
    names = list(next(iter(rows.values()))[0])
    table("accuracy, %", rows, names, lambda runs, _: spread([run.accuracy for run in runs]))
    table(
        "CPU seconds (of dense; of which cutting)",
        rows,
        [name for name in names if "CPU" not in name],
        lambda runs, dense: (
            f"{(seconds := mean_of('seconds', runs)):.2f} ({seconds / dense:.2f}; "
            f"{mean_of('seconds_cutting', runs):.2f})"
        ),
    )
    table(
        "loss jump at a cut, and 10 steps on",
        rows,
        [name for name in names if "small" not in name],
        lambda runs, _: f"{mean_of('jumps', runs):+.3f}, {mean_of('later', runs):+.3f}",
    )
    print("\ncarried less new optimizer, points of accuracy, seed by seed\n")
    for row, runs in rows.items():
        pairs = [run["carried"].accuracy - run["new optimizer"].accuracy for run in runs]
        print(f"- {row}: {', '.join(f'{pair:+.1f}' for pair in pairs)}, mean {statistics.mean(pairs):+.1f}")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", choices=list(NETS), default=list(NETS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one seed, a quarter of the steps")
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds, first_seed, share = (1, 0, 0.25) if options.quick else (options.seeds, FIRST_SEED, 1.0)
    data = {"digits": digits()}
    variants = list(VARIANTS)
    for package, without in (("mnist1d", "digits only"), ("torch_pruning", "no stale optimizer")):
        if importlib.util.find_spec(package) is None:
            print(f"{package} is not installed: {without}")
    if importlib.util.find_spec("mnist1d") is not None:
        data["MNIST-1D"] = mnist_1d()
    if importlib.util.find_spec("torch_pruning") is None:
        variants.remove("stale optimizer")
    print(f"torch {torch.__version__}, one thread, AdamW(fused=True), {seeds} seeds from {first_seed}")
    rows: dict[str, list[dict[str, Training]]] = {}
    wanted = [name for name in options.data if name in data]
    for data_name, net_name, net in [(name, title, net) for name in wanted for title, net in NETS[name].items()]:
        net = replace(net, steps=int(share * net.steps))
        chosen = [first_seed + number for number in range(seeds)]
        denses = {seed: Training(net, net.widths, data[data_name], seed, net.steps).run() for seed in chosen}
        for sparsity in SPARSITIES:
            runs = [compare(net, data[data_name], sparsity, seed, variants, denses[seed]) for seed in chosen]
            sizes = [sum(p.numel() for p in runs[0][name].model.parameters()) for name in ("dense", "carried")]
            row = f"{net_name}, {data_name}, {sparsity:.0%}: {sizes[0]:,} to {sizes[1]:,}"
            print(row, file=sys.stderr, flush=True)
            rows[row] = runs
    report(rows)


if __name__ == "__main__":
    main()
