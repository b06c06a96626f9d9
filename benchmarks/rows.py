"""What it gains that every head may lose other columns than its neighbours: one-shot removal from trained nets.

A small transformer is trained on scikit-learn's digits (8 rows of 8 pixels as tokens), several seeds. Then a share of
the columns of its heads goes by L2 norm: the same columns in all heads, or each head's own least. Both are equally
large and cost the same; loss and accuracy on held-out digits right after the cut, without further training.

    python benchmarks/rows.py [--seeds 6] [--epochs 25]
"""

from __future__ import annotations

import argparse
import copy
import statistics

import torch
from torch import Tensor, nn

import secateur
from secateur.shrink import l2, plan_of


class Block(nn.Module):
    """Attention and an MLP, each behind a LayerNorm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.num_heads, self.head_dim = heads, width // heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        y = self.first(x)
        q, k, v = (p(y).view(b, n, self.num_heads, self.head_dim).transpose(1, 2) for p in (self.q, self.k, self.v))
        weights = torch.softmax(q @ k.transpose(-1, -2) * self.head_dim**-0.5, -1)
        x = x + self.o((weights @ v).transpose(1, 2).reshape(b, n, self.num_heads * self.head_dim))
        return x + self.down(torch.relu(self.up(self.second(x))))


class Transformer(nn.Module):
    """Three blocks over the rows of a digit."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.embed, self.position = nn.Linear(8, width), nn.Parameter(0.1 * torch.randn(8, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(3)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embed(x) + self.position)).mean(1))


def digits() -> tuple[Tensor, Tensor]:
    """Images (1797, 8, 8) about zero, and labels."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images / 16 - 0.3, dtype=torch.float32).view(-1, 8, 8), torch.tensor(labels)


def trained(images: Tensor, labels: Tensor, epochs: int) -> Transformer:
    """A net trained on these digits."""
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
    return model.eval()


@torch.no_grad()
def judged(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[float, float]:
    """Loss and accuracy."""
    outputs = model(images)
    loss = nn.functional.cross_entropy(outputs, labels)
    return float(loss), float((outputs.argmax(1) == labels).double().mean())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=25)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    images, labels = digits()
    found: dict[tuple[float, bool], list[tuple[float, float]]] = {}
    dense = []
    for seed in range(arguments.seeds):
        torch.manual_seed(seed)
        order = torch.randperm(len(images))
        train, test = order[:1400], order[1400:]
        model = trained(images[train], labels[train], arguments.epochs)
        dense.append(judged(model, images[test], labels[test]))
        coupling = secateur.analyze(model, images[:4])
        scores = l2(model, coupling)
        heads = [group for group in coupling.groups if group.kind == "head dims"]
        for share in (0.25, 0.5, 0.75):
            units = [
                unit
                for group in heads
                for unit in sorted(group.units, key=lambda unit: scores[unit])[: int(share * len(group.units))]
            ]
            for by_row in (False, True):
                plan = plan_of(model, coupling, units, by_row=scores if by_row else None)
                smaller = plan.apply_(copy.deepcopy(model))
                found.setdefault((share, by_row), []).append(judged(smaller, images[test], labels[test]))
    print(f"torch {torch.__version__}, one thread, {arguments.seeds} seeds: mean (standard deviation)")
    print(f"{'columns that go':>16}  {'':24} {'loss':>16} {'accuracy':>16}")
    for (share, by_row), values in {(0.0, False): dense, **found}.items():
        what = "dense" if not share else "each head's own least" if by_row else "the same in all heads"
        shown = (f"{statistics.mean(v):.3f} ({statistics.stdev(v):.3f})" for v in zip(*values, strict=True))
        print(f"{share:>16.0%}  {what:24} " + " ".join(f"{cell:>16}" for cell in shown))


if __name__ == "__main__":
    main()
