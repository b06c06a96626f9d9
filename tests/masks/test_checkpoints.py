"""Save and resume: a run that was interrupted goes on bit for bit, in whichever order its parts are put together."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from secateur import Masks, prune_, scores
from tests.masks.oracles import bits, is_zero


class Run:
    """A model, its optimizer and its average; steps are numbered, and equal numbers see equal data."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 4))
        self.optimizer: Optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    def train(self, steps: range) -> None:
        for step in steps:
            self.optimizer.zero_grad()
            data = torch.randn(8, 300, generator=torch.Generator().manual_seed(step))
            self.model(data).pow(2).mean().backward()
            self.optimizer.step()
            self.average.update_parameters(self.model)

    def save(self) -> dict[str, Any]:
        """One file with everything, written and read again."""
        masks = Masks(self.model)
        parts = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.average.state_dict(),
            "masks": masks.state_dict(),
        }
        file = io.BytesIO()
        torch.save(parts, file)
        file.seek(0)
        return torch.load(file, weights_only=True)

    def load(self, part: str, saved: dict[str, Any], **options: bool) -> None:
        """Load one part of the file."""
        holder = Masks(self.model) if part == "masks" else getattr(self, part)
        holder.load_state_dict(copy.deepcopy(saved[part]), **options)

    def content(self) -> list[bytes]:
        """The weights and their average."""
        return [bits(p) for p in (*self.model.parameters(), *self.average.parameters())]


def masked_run() -> Run:
    run = Run(0)
    run.train(range(2))
    prune_(run.model, run.optimizer, sparsity=0.8).attach(run.average)
    run.train(range(2, 4))
    return run


@pytest.fixture(scope="module")
def uninterrupted() -> tuple[dict[str, Any], Run]:
    """A file of a run, and the run three steps later."""
    run = masked_run()
    saved = run.save()
    run.train(range(4, 7))
    return saved, run


def no_masks(run: Run) -> None:
    """Nothing yet."""


def other_masks(run: Run) -> None:
    """Masks that the resuming script makes of its random weights, as the first script did."""
    prune_(run.model, run.optimizer, sparsity=0.8, score=scores.random).attach(run.average)


def other_masks_in_use(run: Run) -> None:
    """The same, and some steps with them."""
    other_masks(run)
    run.train(range(90, 92))


@pytest.mark.parametrize("start", [no_masks, other_masks, other_masks_in_use])
@pytest.mark.parametrize("order", list(permutations(["model", "optimizer", "average", "masks"])), ids="-".join)
def test_parts_may_be_loaded_in_any_order(
    uninterrupted: tuple[dict[str, Any], Run], start: Callable[[Run], None], order: tuple[str, ...]
) -> None:
    saved, wanted = uninterrupted
    run = Run(1)
    start(run)
    for part in order:
        run.load(part, saved)
    Masks(run.model).attach(run.average)
    run.train(range(4, 7))
    assert run.content() == wanted.content()
    assert Masks(run.model) == Masks(wanted.model)


def test_optimizer_may_be_made_last(uninterrupted: tuple[dict[str, Any], Run]) -> None:
    saved, wanted = uninterrupted
    run = Run(1)
    for part in ("masks", "model", "average"):
        run.load(part, saved)
    run.optimizer = torch.optim.AdamW(run.model.parameters(), lr=0.01)
    run.load("optimizer", saved)
    Masks(run.model).attach(run.average)
    run.train(range(4, 7))
    assert run.content() == wanted.content()


def test_weights_may_be_assigned(uninterrupted: tuple[dict[str, Any], Run]) -> None:
    saved, wanted = uninterrupted
    for start in (no_masks, other_masks):
        run = Run(1)
        start(run)
        run.load("model", saved, assign=True)
        run.load("masks", saved)
        run.optimizer = torch.optim.AdamW(run.model.parameters(), lr=0.01)
        run.load("optimizer", saved)
        run.load("average", saved)
        run.train(range(4, 7))
        assert run.content() == wanted.content()


def test_masks_of_an_earlier_step_can_be_gone_back_to_without_the_rest() -> None:
    run = masked_run()
    saved = run.save()
    masks = Masks(run.model)
    old = dict(masks)
    prune_(run.model, run.optimizer, sparsity=0.9)
    run.train(range(4, 6))
    weights = run.model[0].weight.detach().clone()
    dropped = old["0.weight"] & ~masks["0.weight"]
    run.load("masks", saved)
    assert dict(masks).keys() == old.keys()
    assert all(torch.equal(masks[name], old[name]) for name in old)
    assert torch.equal(run.model[0].weight, weights)
    state = run.optimizer.state[run.model[0].weight]
    assert is_zero(state["exp_avg"][dropped])
    assert is_zero(state["exp_avg_sq"][dropped])


def test_masks_that_are_not_in_the_file_are_removed() -> None:
    run = masked_run()
    saved = {key: value for key, value in run.save()["masks"].items() if key.startswith("0.")}
    Masks(run.model).load_state_dict(saved)
    assert list(Masks(run.model)) == ["0.weight"]
    run.train(range(4, 6))
    assert not bool((run.model[2].weight == 0).any())


def test_masks_of_another_model_are_refused() -> None:
    run = masked_run()
    saved = run.save()["masks"]
    narrow = nn.Sequential(nn.Linear(300, 200), nn.Tanh(), nn.Linear(200, 4))
    with pytest.raises(ValueError, match=r"'0.weight' has another shape[\s\S]*\(300, 300\)[\s\S]*\(200, 300\)"):
        Masks(narrow).load_state_dict(saved)
    with pytest.raises(ValueError, match=r"no module '2'"):
        Masks(nn.Sequential(nn.Linear(300, 300))).load_state_dict(saved)
    assert len(Masks(narrow)) == 0


def test_file_of_weights_and_masks_without_pickle() -> None:
    run = masked_run()
    masks = Masks(run.model)
    file = safetensors.torch.save({**run.model.state_dict(), **masks.state_dict()})
    loaded = safetensors.torch.load(file)
    assert sum(bits in key for key in loaded for bits in (".bits", ".shape")) == 4
    fresh = Run(1).model
    saved: dict[str, Tensor] = {key: value for key, value in loaded.items() if key.endswith((".bits", ".shape"))}
    Masks(fresh).load_state_dict(saved)
    fresh.load_state_dict({key: value for key, value in loaded.items() if key not in saved})
    assert [bits(p) for p in fresh.parameters()] == [bits(p) for p in run.model.parameters()]


def test_plain_model_loads_the_checkpoint_of_a_masked_one() -> None:
    run = masked_run()
    plain = Run(1).model
    plain.load_state_dict(run.model.state_dict())
    assert int((plain[0].weight == 0).sum()) == 72_000
