"""``secateur demo``: the library's main job on real data, in under a minute."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import nn

import secateur
from secateur._progress import task, track
from secateur.cli.digits import RUNS, Outcome, digits, train
from secateur.cli.numbers import count
from secateur.cli.screen import Screen, table

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["add_parser"]

_LEAST_STEPS = 30


def add_parser(commands: _SubParsersAction[Any]) -> None:
    """Add ``demo`` to the command line."""
    parser = commands.add_parser(
        "demo",
        help="train, mask, shrink and mend a small net on real data",
        description="Trains a CNN on the digits of scikit-learn three times: dense, with 90 % of the weights held at "
        "zero, and with 80 % of its channels and neurons removed in eight cuts while it trains. Then shows how two "
        "common mistakes are found and mended.",
    )
    parser.add_argument("--steps", type=_steps, default=600, help="optimizer steps of each training run (default 600)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and batches (default 0)")
    parser.set_defaults(run=run)


def _steps(text: str) -> int:
    """Steps that suffice for all cuts."""
    steps = count(text)
    if steps < _LEAST_STEPS:
        raise argparse.ArgumentTypeError(f"the demo needs at least {_LEAST_STEPS} steps")
    return steps


def run(options: argparse.Namespace, screen: Screen) -> dict[str, Any]:
    """Train, compare, then break two training loops and mend them."""
    torch.set_num_threads(1)  # more of them only wait for each other on a net as small as this
    data = digits()
    outcomes = []
    for title, method in track(RUNS.items(), "training"):
        with task(title, options.steps) as bar:
            outcomes.append(train(title, method, data, steps=options.steps, seed=options.seed, advance=bar.advance))
    console = screen.console
    console.print(_table(outcomes))
    console.print(
        "Masks are stored at one bit a weight beside the weights; only the shrunk model is smaller.", style="dim"
    )
    for outcome in outcomes[1:]:
        console.print(outcome.note)
    console.print()
    _replaced_weights(console)
    _cut_by_hand(console)
    return {"runs": [vars(outcome) for outcome in outcomes]}


def _table(outcomes: list[Outcome]) -> Table:
    """The runs side by side."""
    title = "CNN 32-64-256-10 on the digits of scikit-learn (450 images to test)"
    shown = table(title, "run", "parameters", "non-zero", "accuracy", "seconds", "bytes", sides="lrrrrr")
    for outcome in outcomes:
        shown.add_row(
            outcome.title,
            f"{outcome.parameters:,}",
            f"{outcome.nonzero:,}",
            f"{outcome.accuracy:.1%}",
            f"{outcome.seconds:.1f}",
            f"{outcome.saved_bytes:,}",
        )
    return shown


def _net() -> tuple[nn.Module, nn.Linear, torch.optim.SGD, torch.Tensor]:
    """A small net, its first layer, its optimizer with some momentum, and an input."""
    torch.manual_seed(0)
    first = nn.Linear(8, 16)
    net = nn.Sequential(first, nn.ReLU(), nn.Linear(16, 8))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    data = torch.randn(64, 8)
    _step(net, optimizer, data)
    return net, first, optimizer, data


def _step(net: nn.Module, optimizer: torch.optim.Optimizer, data: torch.Tensor) -> torch.Tensor:
    """One step on giving ones for any input."""
    optimizer.zero_grad()
    loss: torch.Tensor = (net(data) - 1).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss


def _replaced_weights(console: Console) -> None:
    """The second question: weights are replaced by masked copies, and learning stops."""
    console.rule(Text("1. Masked by hand: learning stops", style="bold"), align="left")
    console.print("net[0].weight = nn.Parameter(mask * net[0].weight)", style="dim")
    net, first, optimizer, data = _net()
    first.weight = nn.Parameter((torch.rand(16, 8) > 0.5) * first.weight)
    _step(net, optimizer, data)
    _mend(console, net, optimizer, data)


def _cut_by_hand(console: Console) -> None:
    """The first question: data is cut while an old loss is alive, and autograd raises."""
    console.rule(Text("2. Cut by hand between two backward passes: autograd raises", style="bold"), align="left")
    console.print("net[0].weight.data = net[0].weight.data[:, 2:]; the old loss is alive", style="dim")
    net, first, optimizer, data = _net()
    loss = _step(net, optimizer, data)
    first.weight.data = first.weight.data[:, 2:]
    try:
        _step(net, optimizer, data[:, 2:])
    except RuntimeError as error:
        console.print(f"RuntimeError: {error}", style="red", soft_wrap=True)
    _mend(console, net, optimizer, data[:, 2:])
    del loss


def _mend(console: Console, net: nn.Module, optimizer: torch.optim.Optimizer, data: torch.Tensor) -> None:
    """Diagnose, relink, and show that the next step moves the weights."""
    for report in (secateur.diagnose(net, optimizer), secateur.relink_(net, optimizer)):
        console.print(str(report), soft_wrap=True)
    weight = net.get_parameter("0.weight")
    before = weight.detach().clone()
    _step(net, optimizer, data)
    moved = float((weight.detach() - before).norm())
    console.print(f"After relink_(net, optimizer) the next step moves 0.weight by {moved:.4f}.\n", style="green")
