from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

from secateur import Masks, ShapeError, prune_, resize_
from secateur.masks.bits import Bits
from secateur.masks.mask import Mask
from secateur.masks.registry import mask_of
from tests.masks.oracles import bits as memory
from tests.masks.oracles import half, is_zero

pytestmark = pytest.mark.usefixtures("by")


def masked(parameter: nn.Parameter, mask: Tensor | None = None, *, lean: bool = False) -> tuple[Mask, Tensor]:
    """A mask in force, and its entries."""
    mask = half(parameter.shape) if mask is None else mask
    made = Mask(parameter, Bits.of(mask, parameter, lean=lean))
    made.apply_()
    return made, mask


def large() -> tuple[nn.Linear, torch.optim.Optimizer, Tensor]:
    """A layer whose weight is not masked as a whole after every step, its optimizer, and the mask that it has."""
    layer = nn.Linear(300, 300)
    mask = half((300, 300))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    Masks.from_dict(layer, {"weight": mask}, optimizer)
    return layer, optimizer, mask


def step(layer: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    layer(torch.randn(4, 300)).pow(2).mean().backward()
    optimizer.step()


def test_gradients_are_masked_as_they_arrive() -> None:
    parameter = nn.Parameter(torch.randn(4, 5))
    _, mask = masked(parameter)
    (parameter * torch.tensor(torch.inf)).sum().backward()
    assert torch.equal(parameter.grad, torch.where(mask, torch.inf, 0.0))
    assert is_zero(parameter.grad[~mask])


def test_gradient_hook_of_a_frozen_parameter_works_once_it_is_unfrozen() -> None:
    parameter = nn.Parameter(torch.randn(4, 5), requires_grad=False)
    _, mask = masked(parameter)
    assert not parameter.requires_grad
    parameter.requires_grad_(True)
    parameter.sum().backward()
    assert torch.equal(parameter.grad, mask.float())


def test_integer_parameter_can_be_masked() -> None:
    parameter = nn.Parameter(torch.arange(1, 7).view(2, 3), requires_grad=False)
    mask = torch.tensor([[True, False, True], [False, True, True]])
    masked(parameter, mask)
    assert torch.equal(parameter.data, torch.tensor([[1, 0, 3], [0, 5, 6]]))


def test_gradient_with_shared_entries_gets_memory_of_its_own() -> None:
    parameter = nn.Parameter(torch.randn(4, 5))
    made, mask = masked(parameter)
    parameter.grad = torch.ones(()).expand(4, 5)
    made.prepare_step()
    assert torch.equal(parameter.grad, mask.float())


def test_mask_follows_its_parameter_to_another_dtype() -> None:
    layer = nn.Linear(5, 4)
    _, mask = masked(layer.weight)
    for dtype in (torch.bfloat16, torch.float64, torch.float16):
        layer.to(dtype)
        layer.weight.data.fill_(torch.nan)
        mask_of(layer.weight).apply_()
        assert is_zero(layer.weight[~mask])
        assert layer.weight[mask].isnan().all()
        layer.weight.grad = None
        layer.weight.sum().backward()
        assert torch.equal(layer.weight.grad, mask.to(dtype))


def test_data_of_another_shape_put_in_place_by_hand_is_refused_at_the_next_step() -> None:
    layer = nn.Linear(5, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    Masks.from_dict(layer, {"weight": half((4, 5))}, optimizer)
    layer.weight.data = layer.weight.data[:, :3].clone()
    with pytest.raises(ShapeError, match=r"another shape than its mask[\s\S]*\(4, 3\)[\s\S]*\(4, 5\)[\s\S]*resize_"):
        optimizer.step()


def test_weights_written_to_between_steps_are_zero_again_after_the_next() -> None:
    layer, optimizer, mask = large()
    step(layer, optimizer)
    with torch.no_grad():
        layer.weight.add_(1.0)
    step(layer, optimizer)
    assert is_zero(layer.weight[~mask])
    layer.weight.data = torch.ones(300, 300)
    step(layer, optimizer)
    assert is_zero(layer.weight[~mask])


def test_single_unseen_write_into_a_large_tensor_is_found_when_the_window_passes() -> None:
    layer, optimizer, mask = large()
    step(layer, optimizer)
    row, column = (~mask).nonzero()[40_000].tolist()
    layer.weight.data[row, column] = 5.0
    for _ in range(-(-layer.weight.numel() // (1 << 13))):
        step(layer, optimizer)
    assert is_zero(layer.weight[~mask])


def test_single_unseen_write_into_a_large_tensor_is_found_by_apply_at_once() -> None:
    layer, optimizer, mask = large()
    step(layer, optimizer)
    row, column = (~mask).nonzero()[40_000].tolist()
    layer.weight.data[row, column] = 5.0
    Masks(layer).apply_()
    assert is_zero(layer.weight[~mask])


def test_single_unseen_write_into_a_small_tensor_is_undone_by_the_next_step() -> None:
    layer = nn.Linear(30, 30)
    mask = half((30, 30))
    optimizer = torch.optim.Adam(layer.parameters())
    Masks.from_dict(layer, {"weight": mask}, optimizer)
    layer(torch.randn(4, 30)).sum().backward()
    row, column = (~mask).nonzero()[7].tolist()
    layer.weight.data[row, column] = 5.0
    layer.weight.grad.data[row, column] = 5.0
    optimizer.step()
    assert is_zero(layer.weight[~mask])


def test_resize_takes_the_mask_along() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters())
    masks = Masks.from_dict(model, {"0.weight": half((8, 6)), "2.weight": half((3, 8))}, optimizer)
    old = masks["0.weight"]
    resize_(model[0], "weight", dim=1, keep=[0, 2, 3], optimizer=optimizer)
    assert torch.equal(masks["0.weight"], old[:, [0, 2, 3]])
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(5, 3)).pow(2).sum().backward()
        optimizer.step()
        assert is_zero(model[0].weight[~masks["0.weight"]])
        assert is_zero(optimizer.state[model[0].weight]["exp_avg"][~masks["0.weight"]])


def test_failed_resize_leaves_the_mask_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Linear(6, 8)
    optimizer = torch.optim.Adam(layer.parameters())
    masks = Masks.from_dict(layer, {"weight": half((8, 6))}, optimizer)
    mask = mask_of(layer.weight)
    old, bits = masks["weight"], mask.bits
    set_bits = Mask.set

    def fail_afterwards(self: Mask, bits: Bits) -> None:
        set_bits(self, bits)
        if bits.shape != (8, 6):
            raise MemoryError("simulated")

    monkeypatch.setattr(Mask, "set", fail_afterwards)
    with pytest.raises(MemoryError, match="simulated"):
        resize_(layer, "weight", dim=1, keep=[0, 1], optimizer=optimizer)
    assert layer.weight.shape == (8, 6)
    assert mask.bits is bits
    assert torch.equal(masks["weight"], old)


def test_deep_copy_belongs_to_the_copied_parameter() -> None:
    parameter = nn.Parameter(torch.randn(4, 5))
    made, mask = masked(parameter)
    twin, its_parameter = copy.deepcopy((made, parameter))
    assert twin.parameter is its_parameter
    assert mask_of(its_parameter) is twin
    assert torch.equal(twin.bits.dense, mask)
    assert twin.bits.packed.data_ptr() != made.bits.packed.data_ptr()


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_copies_of_leader_and_follower_stay_together_in_either_order(order: list[int]) -> None:
    owners = [nn.Parameter(torch.randn(4, 5)) for _ in range(2)]
    leader, follower = (masked(owner)[0] for owner in owners)
    leader.lead(follower)
    leader.lead(follower)
    pair = [leader, follower]
    copied = copy.deepcopy([(pair[i], owners[i]) for i in order])
    its_leader, its_follower = (copied[order.index(i)][0] for i in (0, 1))
    assert list(its_leader.followers()) == [its_follower]
    assert list(leader.followers()) == [follower]


def test_follower_is_forgotten_with_its_copy() -> None:
    keep = nn.Parameter(torch.randn(4, 5))
    leader, _ = masked(keep)
    parameter = nn.Parameter(torch.randn(4, 5))
    follower, _ = masked(parameter)
    leader.lead(follower)
    del parameter, follower
    assert list(leader.followers()) == []


@pytest.mark.parametrize("lean", [False, True])
def test_pickled_mask_is_in_force_again_with_its_parameter(lean: bool) -> None:
    parameter = nn.Parameter(torch.randn(4, 5))
    made, mask = masked(parameter, lean=lean)
    twin, its_parameter = pickle.loads(pickle.dumps((made, parameter)))
    assert twin.parameter is its_parameter
    assert twin.bits.lean is lean
    its_parameter.sum().backward()
    assert torch.equal(its_parameter.grad, mask.float())


def test_released_mask_stays_released_in_copies() -> None:
    parameter = nn.Parameter(torch.randn(4, 5))
    made, _ = masked(parameter)
    made.release()
    twin, its_parameter = copy.deepcopy((made, parameter))
    assert not twin.is_active
    assert mask_of(its_parameter) is None
    its_parameter.sum().backward()
    assert torch.equal(its_parameter.grad, torch.ones(4, 5))


def test_mask_of_a_parameter_that_is_gone_can_be_copied_and_says_so() -> None:
    parameter = nn.Parameter(torch.randn(4, 5))
    made, mask = masked(parameter)
    del parameter
    for each in (made, copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        with pytest.raises(ReferenceError, match="no longer exists"):
            _ = each.parameter
        assert torch.equal(each.bits.dense, mask)


def test_loaded_weights_are_kept_aside_only_if_masking_changes_them() -> None:
    parameter = nn.Parameter(torch.randn(4, 5))
    made, mask = masked(parameter)
    made.apply_to_loaded_()
    assert made.salvage is None
    parameter.data.fill_(2.0)
    made.apply_to_loaded_()
    assert torch.equal(made.salvage, torch.full((4, 5), 2.0))
    assert torch.equal(parameter.data, 2.0 * mask)
    made.prepare_step()
    assert made.salvage is None


def test_data_given_to_a_new_parameter_is_left_alone() -> None:
    given = torch.full((4, 5), 2.0)
    parameter = nn.Parameter(given)
    mask = half((4, 5))
    made = Mask(parameter, Bits.of(mask, parameter))
    made.apply_to_given_()
    assert memory(given) == memory(torch.full((4, 5), 2.0))
    assert torch.equal(parameter.data, 2.0 * mask)


def test_data_given_to_a_new_parameter_stays_its_own_if_it_is_zero_there_already() -> None:
    mask = half((4, 5))
    given = 2.0 * mask
    parameter = nn.Parameter(given)
    Mask(parameter, Bits.of(mask, parameter)).apply_to_given_()
    assert parameter.data_ptr() == given.data_ptr()


def test_large_embedding_with_sparse_gradients_trains_and_keeps_its_zeros() -> None:
    model = nn.Embedding(2000, 64, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    masks = prune_(model, optimizer, sparsity=0.9)
    assert model.weight.numel() > 1 << 16
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randint(0, 2000, (50,))).square().sum().backward()
        optimizer.step()
    assert (model.weight[~masks["weight"]] == 0).all()
