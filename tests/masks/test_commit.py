from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from secateur import HolderError, InvalidInputError, Masks, ShapeError, UnsupportedError
from secateur.masks import commit
from secateur.masks.bits import Bits
from tests.masks.oracles import half, is_zero, snapshot


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model that has been trained, with gradients and momentum, and its optimizer."""
    made = model()
    optimizer = torch.optim.Adam(made.parameters())
    made(torch.randn(4, 6)).sum().backward()
    optimizer.step()
    return made, optimizer


GOOD = {"0.weight": half((8, 6))}

WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no such parameter": ({"0.wight": half((8, 6))}, InvalidInputError, r"no parameter '0.wight'[\s\S]*has: 0.weight"),
    "no such module": ({"7.weight": half((8, 6))}, InvalidInputError, "no module '7'"),
    "another shape": ({"2.weight": half((8, 3))}, ShapeError, r"'2.weight' has another shape[\s\S]*\(8, 3\).*\(3, 8\)"),
    "shape that would broadcast": ({"2.weight": half((1, 8))}, ShapeError, r"'2.weight' has another shape"),
    "another dtype": (
        {"2.weight": half((3, 8)).float()},
        InvalidInputError,
        r"not a bool tensor[\s\S]*float32[\s\S]*!= 0",
    ),
    "no tensor": ({"2.weight": [[True] * 8] * 3}, InvalidInputError, r"not a bool tensor[\s\S]*list"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_mask_is_refused_before_anything_changes(case: str) -> None:
    masks, error, text = WRONG[case]
    made, optimizer = trained()
    before = snapshot(made, optimizer)
    with pytest.raises(error, match=text):
        Masks.from_dict(made, {**GOOD, **masks}, optimizer)
    assert snapshot(made, optimizer) == before


def test_different_masks_for_one_tied_parameter_are_refused() -> None:
    made = nn.ModuleDict({"embedding": nn.Embedding(4, 3), "head": nn.Linear(3, 4, bias=False)})
    made["head"].weight = made["embedding"].weight
    before = snapshot(made)
    mask = half((4, 3))
    with pytest.raises(InvalidInputError, match=r"'head.weight' and 'embedding.weight' are one tied parameter"):
        Masks.from_dict(made, {"embedding.weight": mask, "head.weight": ~mask})
    assert snapshot(made) == before
    assert len(Masks.from_dict(made, {"embedding.weight": mask, "head.weight": mask.clone()})) == 1


def test_optimizer_of_another_model_is_refused() -> None:
    made, _ = trained()
    _, optimizer = trained()
    before = snapshot(made, optimizer)
    with pytest.raises(HolderError, match=r"Adam holds no parameter of Sequential[\s\S]*relink_"):
        Masks.from_dict(made, GOOD, optimizer)
    made.requires_grad_(False)
    with pytest.raises(HolderError, match="Adam holds no parameter of Sequential"):
        Masks.from_dict(made, GOOD, optimizer)
    made.requires_grad_(True)
    assert snapshot(made, optimizer) == before


def test_optimizer_that_has_lost_a_parameter_is_refused() -> None:
    made, optimizer = trained()
    made[0].weight = nn.Parameter(made[0].weight.detach().clone())
    before = snapshot(made, optimizer)
    with pytest.raises(HolderError, match=r"no optimizer that was passed holds '0.weight'[\s\S]*1 of 1[\s\S]*relink_"):
        Masks.from_dict(made, GOOD, optimizer)
    assert snapshot(made, optimizer) == before


def test_optimizer_need_not_hold_frozen_parameters() -> None:
    made = model()
    made[0].requires_grad_(False)
    optimizer = torch.optim.SGD(made[2].parameters(), lr=0.1)
    masks = Masks.from_dict(made, {**GOOD, "2.weight": half((3, 8))}, optimizer)
    assert len(masks) == 2


@pytest.mark.parametrize("thing", ["adam", 3, [torch.nn.Linear(2, 2)]], ids=str)
def test_what_is_no_optimizer_is_refused(thing: Any) -> None:
    made, _ = trained()
    before = snapshot(made)
    with pytest.raises(HolderError, match=r"is not an optimizer[\s\S]*attach"):
        Masks.from_dict(made, GOOD, thing)
    assert snapshot(made) == before


def test_call_inside_inference_mode_is_refused() -> None:
    made, optimizer = trained()
    masks = Masks.from_dict(made, GOOD, optimizer)
    before = snapshot(made, optimizer)
    state = masks.state_dict()
    calls: list[Callable[[], object]] = [
        lambda: Masks.from_dict(made, GOOD),
        lambda: Masks.from_zeros(made),
        lambda: masks.update_(GOOD),
        lambda: masks.load_state_dict(state),
        masks.apply_,
        lambda: masks.attach(optimizer),
    ]
    for call in calls:
        with torch.inference_mode(), pytest.raises(InvalidInputError, match=r"inference_mode\(\)"):
            call()
    assert snapshot(made, optimizer) == before


def test_call_under_no_grad_is_fine() -> None:
    made, optimizer = trained()
    with torch.no_grad():
        Masks.from_dict(made, GOOD, optimizer)
    made(torch.randn(4, 6)).sum().backward()
    assert is_zero(made[0].weight.grad[~GOOD["0.weight"]])


def test_wrapped_model_is_refused(tmp_path: Any) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        made = model()
        wrapped = nn.parallel.DistributedDataParallel(made)
        before = snapshot(made)
        for each, name in ((wrapped, "module.0.weight"), (nn.Sequential(wrapped), "0.module.0.weight")):
            with pytest.raises(UnsupportedError, match=r"DistributedDataParallel[\s\S]*then wrap it"):
                Masks.from_dict(each, {name: half((8, 6))})
        assert snapshot(made) == before
    finally:
        torch.distributed.destroy_process_group()


def test_failure_to_make_a_mask_leaves_everything_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    made, optimizer = trained()
    masks = Masks.from_dict(made, {"2.weight": half((3, 8))}, optimizer)
    before = snapshot(made, optimizer)

    class Failing(Bits):
        @classmethod
        def of(cls, mask: Tensor, like: Tensor, *, lean: bool = False) -> Bits:
            if mask.shape == (3, 8):
                raise MemoryError("simulated")
            return Bits.of(mask, like, lean=lean)

    monkeypatch.setattr(commit, "Bits", Failing)
    with pytest.raises(MemoryError, match="simulated"):
        Masks.from_dict(made, {**GOOD, "2.weight": ~half((3, 8))}, optimizer)
    assert snapshot(made, optimizer) == before
    assert torch.equal(masks["2.weight"], half((3, 8)))


def test_masks_put_again_replace_those_before() -> None:
    made, optimizer = trained()
    mask = GOOD["0.weight"]
    masks = Masks.from_dict(made, GOOD, optimizer)
    Masks.from_dict(made, {"0.weight": ~mask}, optimizer)
    assert len(masks) == 1
    assert torch.equal(masks["0.weight"], ~mask)
    assert is_zero(made[0].weight)
    made(torch.randn(4, 6)).pow(2).sum().backward()
    optimizer.step()
    assert is_zero(made[0].weight[mask])
