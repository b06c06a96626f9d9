"""What users ran into with densities and patterns, and what they get instead: cases 52 and 58, and their neighbours."""

from __future__ import annotations

from fractions import Fraction
from math import prod

import pytest
import torch
from torch import nn

from secateur import Masks, allocation, patterns, prune_

# ---- case 52: Erdős–Rényi densities above 1, and then fewer weights than were asked for


def layers() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.Conv2d(16, 32, 3), nn.Conv2d(16, 32, 1), nn.Conv2d(32, 64, 3), nn.Linear(64, 10)
    )


def kept_of(masks: Masks) -> list[int]:
    return [int(mask.sum()) for mask in masks.values()]


def capped(shapes: list[tuple[int, ...]], raw: list[Fraction], total: int) -> list[Fraction]:
    """Kept weights of each layer: whoever exceeds density 1 becomes dense, and the rest is solved again."""
    dense: set[int] = set()
    while True:
        rest = [i for i in range(len(shapes)) if i not in dense]
        left = total - sum(prod(shapes[i]) for i in dense)
        scale = left / sum(raw[i] * prod(shapes[i]) for i in rest)
        over = {i for i in rest if scale * raw[i] > 1}
        if not over:
            return [Fraction(prod(s)) if i in dense else scale * raw[i] * prod(s) for i, s in enumerate(shapes)]
        dense |= over


def test_case_52_layers_that_would_exceed_one_are_dense_and_the_total_is_exact() -> None:
    net = layers()
    masks = prune_(net, sparsity=0.8, allocation=allocation.erk)
    kept = kept_of(masks)
    assert sum(kept) == 4925
    assert [masks.sparsity(f"{i}.weight") for i in (0, 2, 4)] == [0.0, 0.0, 0.0]
    shapes = [tuple(mask.shape) for mask in masks.values()]
    expected = capped(shapes, [Fraction(sum(s), prod(s)) for s in shapes], 4925)
    assert all(abs(got - wanted) < 1 for got, wanted in zip(kept, expected, strict=True))


@pytest.mark.parametrize("density", [0.01, 0.05, 0.2, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("allocate", [allocation.erk, allocation.erdos_renyi])
def test_case_52_for_every_density_and_both_formulas(density: float, allocate: allocation.Allocation) -> None:
    masks = prune_(layers(), sparsity=1 - density, allocation=allocate)
    shapes = [tuple(mask.shape) for mask in masks.values()]
    total = 24624 - round((1 - density) * 24624)
    by_kernel = [Fraction(sum(s), prod(s)) for s in shapes]
    by_channels = [Fraction(s[0] + s[1], s[0] * s[1]) for s in shapes]
    expected = capped(shapes, by_kernel if allocate is allocation.erk else by_channels, total)
    assert sum(kept_of(masks)) == total
    assert all(abs(got - wanted) < 1 for got, wanted in zip(kept_of(masks), expected, strict=True))


@pytest.mark.parametrize("pattern", [patterns.Block((4, 1)), patterns.Channel(0), patterns.Channel(1)], ids=str)
def test_case_52_units_of_a_pattern_add_up_as_well(pattern: patterns.Pattern) -> None:
    masks = prune_(layers(), sparsity=0.8, allocation=allocation.erk, pattern=pattern)
    kept = [(pattern.reduce(mask.float()) > 0) for mask in masks.values()]
    total = sum(len(units) for units in kept)
    assert sum(int(units.sum()) for units in kept) == total - round(0.8 * total)
    assert all(bool(units.any()) for units in kept)


@pytest.mark.parametrize("density", [1.2, 0.0, -0.2])
def test_case_52_density_that_is_none_is_refused(density: float) -> None:
    net = layers()
    with pytest.raises(ValueError, match=r"sparsity must be a number in \[0, 1\)"):
        prune_(net, sparsity=1 - density, allocation=allocation.erk)
    assert len(Masks(net)) == 0


# ---- case 58: 2:4 for a net that has layers which do not divide


def mixed() -> nn.ModuleDict:
    return nn.ModuleDict({"a": nn.Linear(30, 64), "b": nn.Conv2d(3, 16, 3), "c": nn.Linear(64, 64)})


def test_case_58_what_does_not_divide_is_skipped_with_the_reason_and_counts_as_dense() -> None:
    net = mixed()
    masks = prune_(net, pattern=patterns.NM(n=2, m=4))
    assert int((~masks["c.weight"]).sum()) == 2048
    assert masks["c.weight"].view(64, 16, 4).sum(dim=2).eq(2).all()
    assert masks.skipped == {
        "a.weight": "size 30 of dim 1 is not divisible by 4",
        "b.weight": "size 3 of dim 1 is not divisible by 4",
    }
    assert masks.sparsity() == 2048 / (1920 + 432 + 4096)
    report = str(masks).splitlines()
    assert report[0] == "Masks: 2,048 of 6,448 weights are zero (31.76 %) in 1 tensor, 2 skipped"
    assert [line.split()[0] for line in report[1:4]] == ["c.weight", "a.weight", "b.weight"]
    assert all(why in line for line, why in zip(report[2:4], masks.skipped.values(), strict=True))
    assert bool((net["a"].weight != 0).all())
    assert bool((net["b"].weight != 0).all())


def test_case_58_strict_refuses_by_name_and_changes_nothing() -> None:
    net = mixed()
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    with pytest.raises(ValueError, match=r"'a\.weight'.*size 30 of dim 1 is not divisible by 4[\s\S]*b\.weight"):
        prune_(net, pattern=patterns.NM(n=2, m=4), strict=True)
    assert all(torch.equal(p, before[name]) for name, p in net.named_parameters())
    assert len(Masks(net)) == 0


@pytest.mark.parametrize(
    ("build", "dim", "m", "fits"),
    [
        (lambda: nn.Conv1d(8, 4, 3), 1, 4, True),
        (lambda: nn.Conv2d(8, 6, 3, groups=2), 1, 4, True),
        (lambda: nn.Conv2d(8, 4, 3, groups=4), 1, 4, False),
        (lambda: nn.Conv2d(6, 8, 3), 0, 4, True),
        (lambda: nn.Conv3d(4, 5, 2), 1, 2, True),
        (lambda: nn.ConvTranspose2d(8, 6, 3), 0, 4, True),
        (lambda: nn.Embedding(10, 8), 1, 4, True),
        (lambda: nn.Embedding(10, 8), 0, 4, False),
        (lambda: nn.Bilinear(6, 4, 5), 2, 4, True),
        (lambda: nn.LSTM(8, 3), 1, 8, True),
    ],
)
@pytest.mark.parametrize("n", [1, 2])
def test_case_58_for_other_layers_and_dims(build: object, dim: int, m: int, fits: bool, n: int) -> None:
    net = build()
    n = min(n, m - 1)
    pattern = patterns.NM(n, m, dim)
    name = next(name for name, p in net.named_parameters() if p.dim() > 1)
    if not fits:
        with pytest.raises(ValueError, match=rf"'{name}'.*of dim {dim} is not divisible by {m}"):
            prune_(net, pattern=pattern)
        return
    mask = prune_(net, pattern=pattern)[name].movedim(dim, -1)
    assert mask.reshape(-1, m).sum(dim=1).eq(n).all()


def test_case_58_masks_of_groups_hold_while_training() -> None:
    net = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    masks = prune_(net, optimizer, pattern=patterns.NM(2, 4))
    for _ in range(5):
        optimizer.zero_grad()
        net(torch.randn(8, 30)).square().sum().backward()
        optimizer.step()
    assert ((net[2].weight != 0).view(4, 16, 4).sum(dim=2) == 2).all()
    assert masks.num_zeros() == 128
