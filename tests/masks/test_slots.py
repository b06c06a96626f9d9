from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from secateur import Masks, ShapeError, UnsupportedError, prune_
from secateur.masks.registry import mask_of
from tests.masks.oracles import half, is_zero, snapshot


def layer() -> tuple[nn.Linear, Tensor]:
    """A masked layer and its mask."""
    made, mask = nn.Linear(6, 5), half((5, 6))
    Masks.from_dict(made, {"weight": mask})
    return made, mask


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 6)).pow(2).mean().backward()
        optimizer.step()


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).relu())


def test_names_keys_and_identities_do_not_change() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    names = [name for name, _ in model.named_parameters()]
    keys, ids = list(model.state_dict()), [id(p) for p in model.parameters()]
    modules, buffers = [name for name, _ in model.named_modules()], list(model.buffers())
    prune_(model, sparsity=0.5)
    assert [name for name, _ in model.named_parameters()] == names
    assert list(model.state_dict()) == keys
    assert [id(p) for p in model.parameters()] == ids
    assert [name for name, _ in model.named_modules()] == modules
    assert list(model.buffers()) == buffers


def test_parameter_put_in_the_place_of_a_masked_one_is_masked() -> None:
    model, mask = layer()
    model.weight = nn.Parameter(torch.ones(5, 6))
    assert torch.equal(model.weight.data, mask.float())
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    train(model, optimizer)
    assert is_zero(model.weight[~mask])


def test_tensor_that_a_new_parameter_was_made_of_is_left_alone() -> None:
    model, mask = layer()
    teacher = nn.Linear(6, 5)
    before = teacher.weight.detach().clone()
    model.weight = nn.Parameter(teacher.weight.data)
    assert torch.equal(teacher.weight, before)
    assert is_zero(model.weight[~mask])


def test_parameter_that_was_replaced_keeps_its_mask_too() -> None:
    model, mask = layer()
    old = model.weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.weight = nn.Parameter(1.0 * old)
    old.grad = torch.ones(5, 6)
    optimizer.step()
    assert is_zero(old[~mask])
    assert is_zero(model.weight[~mask])
    assert mask_of(old) is not mask_of(model.weight)


def test_parameter_of_another_shape_is_refused_in_the_place_of_a_masked_one() -> None:
    model, _ = layer()
    before = snapshot(model)
    with pytest.raises(ShapeError, match=r"in the place of 'weight'[\s\S]*\(5, 6\)[\s\S]*\(4, 6\)[\s\S]*resize_"):
        model.weight = nn.Parameter(torch.ones(4, 6))
    assert snapshot(model) == before


def test_parameter_that_cannot_be_masked_is_refused_in_the_place_of_a_masked_one() -> None:
    model, _ = layer()
    before = snapshot(model)
    with pytest.raises(UnsupportedError, match=r"in the place of 'weight', which is masked: its layout[\s\S]*remove"):
        model.weight = nn.Parameter(torch.ones(5, 6).to_sparse())
    assert snapshot(model) == before


def test_model_may_be_wrapped_after_it_was_masked(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        model, mask = layer()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        wrapped = nn.parallel.DistributedDataParallel(model)
        for _ in range(3):
            optimizer.zero_grad()
            wrapped(torch.randn(4, 6)).pow(2).mean().backward()
            assert is_zero(model.weight.grad[~mask])
            optimizer.step()
            assert is_zero(model.weight[~mask])
    finally:
        torch.distributed.destroy_process_group()


def test_deleted_parameter_comes_back_masked() -> None:
    model, mask = layer()
    del model.weight
    model.weight = nn.Parameter(torch.ones(5, 6))
    assert torch.equal(model.weight.data, mask.float())


def test_other_parameters_can_be_registered_as_always() -> None:
    model, _ = layer()
    model.scale = nn.Parameter(torch.ones(3))
    model.bias = nn.Parameter(torch.ones(7))
    assert torch.equal(model.bias.data, torch.ones(7))
    assert mask_of(model.scale) is None


@pytest.mark.parametrize("assign", [False, True])
def test_dense_checkpoint_that_is_loaded_is_masked_at_once(assign: bool) -> None:
    model, mask = layer()
    dense = nn.Linear(6, 5).state_dict()
    before = {key: value.clone() for key, value in dense.items()}
    model.load_state_dict(dense, assign=assign)
    assert torch.equal(model.weight, torch.where(mask, before["weight"], torch.zeros(5, 6)))
    assert torch.equal(model.bias, before["bias"])
    assert all(torch.equal(dense[key], before[key]) for key in dense)
    train(model, torch.optim.AdamW(model.parameters()))
    assert is_zero(model.weight[~mask])


def test_checkpoint_may_be_loaded_again_and_again() -> None:
    model, mask = layer()
    for value in (1.0, 2.0, 3.0):
        model.load_state_dict({"weight": torch.full((5, 6), value), "bias": torch.zeros(5)})
        assert torch.equal(model.weight.data, value * mask)


def test_entries_that_are_regrown_after_loading_start_at_zero() -> None:
    model, mask = layer()
    model.load_state_dict({"weight": torch.ones(5, 6), "bias": torch.zeros(5)})
    Masks(model).update_({"weight": ~mask})
    assert is_zero(model.weight)


def test_checkpoint_loaded_through_a_parent_or_in_part_is_masked() -> None:
    inner, mask = layer()
    model = nn.Sequential(nn.Identity(), nn.Sequential(inner))
    model.load_state_dict({"1.0.weight": torch.ones(5, 6)}, strict=False)
    assert torch.equal(inner.weight.data, mask.float())
    model.load_state_dict({"1.0.bias": torch.ones(5)}, strict=False)
    assert torch.equal(inner.weight.data, mask.float())


def test_module_with_several_masks_is_watched_once() -> None:
    model, _ = layer()
    Masks.from_dict(model, {"bias": torch.arange(5) > 2, "weight": half((5, 6), seed=1)})
    assert len(model._load_state_dict_post_hooks) == 1


def test_masks_hold_through_a_stay_on_meta() -> None:
    model, mask = layer()
    model.to("meta")
    assert list(Masks(model)) == ["weight"]
    model.to_empty(device="cpu")
    model.load_state_dict({"weight": torch.ones(5, 6), "bias": torch.zeros(5)})
    assert torch.equal(model.weight.data, mask.float())
    train(model, torch.optim.AdamW(model.parameters()))
    assert is_zero(model.weight[~mask])


def test_conversion_that_makes_new_parameters_is_followed() -> None:
    model, mask = layer()
    old = model.weight
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        model.double()
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    assert model.weight is not old
    assert torch.equal(Masks(model)["weight"], mask)
    model.weight.sum().backward()
    assert torch.equal(model.weight.grad, mask.double())


def test_tied_weight_has_one_mask_under_all_its_names() -> None:
    model = Tied()
    masks = prune_(model, sparsity=0.5)
    assert list(masks) == ["first.weight"]
    assert torch.equal(masks["last.weight"], masks["first.weight"])
    for each in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert each.last.weight is each.first.weight
        assert list(Masks(each)) == ["first.weight"]
        optimizer = torch.optim.AdamW(each.parameters(), weight_decay=0.1)
        train(each, optimizer)
        assert int((each.first.weight == 0).sum()) == 18


def test_untied_weight_keeps_the_mask_at_both_places() -> None:
    model = Tied()
    mask = prune_(model, sparsity=0.5)["first.weight"]
    model.last.weight = nn.Parameter(model.last.weight.detach().clone())
    assert list(Masks(model)) == ["first.weight", "last.weight"]
    train(model, torch.optim.AdamW(model.parameters()))
    assert is_zero(model.first.weight[~mask])
    assert is_zero(model.last.weight[~mask])


def test_weights_tied_again_share_the_mask_of_the_one_that_stays() -> None:
    model = Tied()
    mask = prune_(model, sparsity=0.5)["first.weight"]
    model.last.weight = nn.Parameter(torch.ones(6, 6))
    model.last.weight = model.first.weight
    assert list(Masks(model)) == ["first.weight"]
    Masks(model).update_({"last.weight": ~mask})
    assert torch.equal(Masks(model)["first.weight"], ~mask)


def test_part_of_a_model_can_be_copied_with_its_masks() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    masks = prune_(model, sparsity=0.5)
    part = copy.deepcopy(model[0])
    assert torch.equal(Masks(part)["weight"], masks["0.weight"])
    train(part, torch.optim.AdamW(part.parameters()))
    assert is_zero(part.weight[~masks["0.weight"]])


def test_model_saved_whole_holds_its_zeros_in_another_process(tmp_path: Path) -> None:
    model, mask = layer()
    torch.save(model, tmp_path / "model.pt")
    code = f"""
import torch
model = torch.load({str(tmp_path / "model.pt")!r}, weights_only=False)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 6)).pow(2).mean().backward()
    optimizer.step()
dense = torch.nn.Linear(6, 5).state_dict()
print(int((model.weight == 0).sum()), end=" ")
model.load_state_dict(dense)
print(int((model.weight == 0).sum()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    zeros = int((~mask).sum())
    assert done.stdout.split() == [str(zeros), str(zeros)]


def test_saved_model_takes_one_bit_a_weight_more() -> None:
    def size(model: nn.Module) -> int:
        file = io.BytesIO()
        torch.save(model, file)
        return file.getbuffer().nbytes

    model = nn.Linear(512, 512)
    before = size(model)
    prune_(model, sparsity=0.5)
    assert 512 * 512 / 8 <= size(model) - before < 512 * 512 / 8 + 4000


def test_removed_masks_leave_nothing_behind() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    clean = snapshot(model)
    masks = prune_(model, sparsity=0.5)
    masks.remove()
    assert snapshot(model)[0][1:] == clean[0][1:]
    assert len(masks) == 0
    model[0].weight = nn.Parameter(torch.ones(9, 6))
    model[0].load_state_dict({"weight": torch.ones(9, 6), "bias": torch.zeros(5)})
    assert bool((model[0].weight == 1).all())
