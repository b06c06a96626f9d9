from __future__ import annotations

import copy
import gc

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from secateur import HolderError, InvalidInputError, Masks, ShapeError, UnsupportedError, prune_
from tests.masks.oracles import bits, half, is_zero, moments, snapshot


def model(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3))


def step(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    net(torch.randn(4, 6)).pow(2).mean().backward()
    optimizer.step()


def masked(lean: bool = False) -> tuple[nn.Module, torch.optim.Optimizer, Masks]:
    net = model()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    return (
        net,
        optimizer,
        Masks.from_dict(net, {"0.weight": half((8, 6)), "2.weight": half((3, 8))}, optimizer, lean=lean),
    )


# ---- looking


def test_masks_are_a_mapping_from_names_to_bool_tensors() -> None:
    _, _, masks = masked()
    assert list(masks) == ["0.weight", "2.weight"]
    assert len(masks) == 2
    assert torch.equal(masks["0.weight"], half((8, 6)))
    assert masks["0.weight"].dtype == torch.bool
    assert "0.weight" in masks
    assert "0.bias" not in masks
    assert masks.get("0.bias") is None
    assert {name: mask.shape for name, mask in masks.items()} == {"0.weight": (8, 6), "2.weight": (3, 8)}


def test_masks_that_are_given_out_are_copies() -> None:
    _, _, masks = masked()
    masks["0.weight"].fill_(True)
    assert torch.equal(masks["0.weight"], half((8, 6)))


@pytest.mark.parametrize("name", ["0.bias", "nothing", "0"])
def test_name_without_a_mask_is_a_key_error_that_lists_those_with_one(name: str) -> None:
    _, _, masks = masked()
    with pytest.raises(KeyError, match=rf"'{name}' has no mask; masked: 0.weight, 2.weight"):
        masks[name]
    with pytest.raises(KeyError, match="has no mask"):
        masks.sparsity(name)


def test_counts_are_exact() -> None:
    net, _, masks = masked()
    zeros = {name: int((~mask).sum()) for name, mask in masks.items()}
    assert masks.num_zeros() == sum(zeros.values())
    assert masks.sparsity() == sum(zeros.values()) / (48 + 24)
    assert masks.sparsity("2.weight") == zeros["2.weight"] / 24
    masks.remove()
    assert masks.num_zeros() == 0
    assert masks.sparsity() == 0.0
    assert int((net[0].weight == 0).sum()) == zeros["0.weight"]


def test_table_shows_what_is_masked_and_what_is_not() -> None:
    net = model()
    masks = prune_(net, sparsity=0.5)
    assert repr(masks) == (
        "Masks: 36 of 72 weights are zero (50.00 %) in 2 tensors\n"
        "  0.weight  (8, 6)  24 zeros  50.00 %\n"
        "  2.weight  (3, 8)  12 zeros  50.00 %\n"
        "  not masked: 0.bias, 2.bias"
    )


def test_masks_are_equal_if_names_and_entries_are() -> None:
    net, _, masks = masked()
    other, _, its_masks = masked()
    assert masks == its_masks
    assert masks == Masks(net)
    its_masks.update_({"0.weight": ~half((8, 6))})
    assert masks != its_masks
    assert masks != Masks(model())
    assert masks != 3
    assert other is its_masks.model
    with pytest.raises(TypeError, match="unhashable"):
        hash(masks)


def test_any_number_of_objects_show_the_same_masks() -> None:
    net, _, masks = masked()
    other = Masks(net)
    masks.update_({"0.weight": ~half((8, 6))})
    assert torch.equal(other["0.weight"], ~half((8, 6)))
    assert list(Masks(net[0])) == ["weight"]


def test_masks_of_a_compiled_model_have_the_names_of_the_plain_one() -> None:
    net, _, masks = masked()
    assert Masks(torch.compile(net, backend="eager")) == masks


@pytest.mark.parametrize("thing", [nn.Parameter(torch.zeros(2)), "model", None], ids=str)
def test_masks_of_what_is_no_module_are_refused(thing: object) -> None:
    with pytest.raises(InvalidInputError, match="masks belong to a module"):
        Masks(thing)


def test_lean_masks_hold_an_eighth_of_a_byte_a_weight() -> None:
    net = nn.Linear(256, 256)
    optimizer = torch.optim.AdamW(net.parameters())
    masks = prune_(net, optimizer, sparsity=0.9, lean=True)
    for _ in range(2):
        net(torch.randn(2, 256)).sum().backward()
        optimizer.step()
    assert masks.num_bytes() == 256 * 256 / 8
    copied = Masks(copy.deepcopy(net))
    assert copied.num_bytes() == 256 * 256 / 8


def live_bytes() -> int:
    """Bytes of all tensors that are alive, each storage once."""
    gc.collect()
    tensors = [t for t in gc.get_objects() if type(t) is Tensor and t.layout == torch.strided and not t.is_meta]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def test_lean_masks_leave_no_other_tensors_alive() -> None:
    net = nn.Linear(512, 512)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.randn(2, 512)).sum().backward()
    optimizer.step()
    before = live_bytes()
    prune_(net, optimizer, sparsity=0.9, lean=True)
    net(torch.randn(2, 512)).sum().backward()
    optimizer.step()
    assert live_bytes() - before <= 0.2 * 512 * 512


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop])
def test_lean_masks_train_to_the_same_bits(kind: type[torch.optim.Optimizer]) -> None:
    results = []
    for lean in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 6))
        optimizer = kind(net.parameters(), lr=0.01)
        prune_(net, optimizer, sparsity=0.9, lean=lean)
        for _ in range(4):
            optimizer.zero_grad()
            net(torch.randn(8, 300)).pow(2).mean().backward()
            optimizer.step()
        results.append([bits(p) for p in net.parameters()])
    assert results[0] == results[1]


# ---- from what is there


def test_zeros_of_a_model_can_be_adopted() -> None:
    net = model()
    with torch.no_grad():
        net[0].weight[half((8, 6))] = 0
    optimizer = torch.optim.AdamW(net.parameters())
    masks = Masks.from_zeros(net, optimizer)
    assert list(masks) == ["0.weight"]
    assert torch.equal(masks["0.weight"], ~half((8, 6)))
    step(net, optimizer)
    assert is_zero(net[0].weight[half((8, 6))])


def test_negative_zeros_are_adopted_as_zeros() -> None:
    net = nn.Linear(3, 2, bias=False)
    with torch.no_grad():
        net.weight[0] = -0.0
    Masks.from_zeros(net)
    assert is_zero(net.weight[0])


def test_zeros_are_adopted_from_chosen_parameters_only() -> None:
    net = model()
    with torch.no_grad():
        net[0].weight[0], net[2].weight[0], net[0].bias[0] = 0, 0, 0
    assert list(Masks.from_zeros(net, include=["0.*"])) == ["0.weight", "0.bias"]


def test_model_without_zeros_has_nothing_to_adopt() -> None:
    net = model()
    before = snapshot(net)
    with pytest.raises(InvalidInputError, match=r"no zero among the weights[\s\S]*0.weight, 2.weight"):
        Masks.from_zeros(net)
    assert snapshot(net) == before


def test_masks_made_by_hand_join_those_that_are_there() -> None:
    net, optimizer, masks = masked()
    Masks.from_dict(net, {"0.bias": torch.arange(8) > 2}, optimizer)
    assert list(masks) == ["0.weight", "0.bias", "2.weight"]
    assert is_zero(net[0].bias[:3])


# ---- changing


def test_update_changes_some_masks_and_leaves_the_others() -> None:
    net, optimizer, masks = masked()
    step(net, optimizer)
    other = [bits(net[2].weight), *(bits(v) for v in moments(optimizer, net[2].weight).values())]
    masks.update_({"0.weight": ~half((8, 6))})
    assert is_zero(net[0].weight)
    assert [bits(net[2].weight), *(bits(v) for v in moments(optimizer, net[2].weight).values())] == other


def test_masks_that_only_lose_entries_leave_no_momentum_there() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    masks = prune_(net, optimizer, sparsity=0.5)
    for _ in range(2):
        step(net, optimizer)
    prune_(net, sparsity=0.75)
    for _ in range(2):
        for name, mask in masks.items():
            assert is_zero(optimizer.state[net.get_parameter(name)]["momentum_buffer"][~mask])
        step(net, optimizer)


def test_update_masks_gradients_too() -> None:
    net, _, masks = masked()
    net(torch.randn(4, 6)).sum().backward()
    masks.update_({"2.weight": torch.arange(24).view(3, 8) > 20})
    assert is_zero(net[2].weight.grad[:2])


def test_update_of_what_has_no_mask_is_refused() -> None:
    net, optimizer, masks = masked()
    before = snapshot(net, optimizer)
    with pytest.raises(
        InvalidInputError, match=r"'0.bias' has no mask to update[\s\S]*0.weight, 2.weight[\s\S]*from_dict"
    ):
        masks.update_({"0.weight": ~half((8, 6)), "0.bias": torch.ones(8, dtype=torch.bool)})
    with pytest.raises(ShapeError, match="another shape"):
        masks.update_({"2.weight": ~half((3, 8)), "0.weight": half((6, 8))})
    assert snapshot(net, optimizer) == before


def test_apply_zeroes_weights_and_gradients_now() -> None:
    net, _, masks = masked()
    net(torch.randn(4, 6)).sum().backward()
    for parameter in net.parameters():
        parameter.data.fill_(1.0)
        parameter.grad.data.fill_(torch.nan)
    masks.apply_()
    for name, mask in masks.items():
        assert torch.equal(net.get_parameter(name).data, mask.float())
        assert is_zero(net.get_parameter(name).grad[~mask])


def test_attached_optimizer_has_its_state_cleared_now() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    step(net, optimizer)
    state = copy.deepcopy(optimizer.state_dict())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)  # one that has not stepped
    optimizer.load_state_dict(state)
    masks = prune_(net, sparsity=0.5)
    assert not is_zero(optimizer.state[net[0].weight]["momentum_buffer"][~masks["0.weight"]])
    masks.attach(optimizer)
    assert is_zero(optimizer.state[net[0].weight]["momentum_buffer"][~masks["0.weight"]])


def test_optimizers_that_do_not_hold_all_are_not_attached() -> None:
    net, optimizer, masks = masked()
    parts = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (net[0], net[2])]
    before = snapshot(net, optimizer)
    with pytest.raises(HolderError, match=r"holds '2.weight'[\s\S]*as a list"):
        masks.attach(parts[0])
    with pytest.raises(HolderError, match="holds no parameter of Sequential"):
        masks.attach(torch.optim.SGD(model().parameters(), lr=0.1))
    with pytest.raises(HolderError, match="is not an optimizer"):
        masks.attach(3)
    masks.attach(parts)
    assert snapshot(net, optimizer) == before


def test_masks_can_be_put_on_again_after_they_were_removed() -> None:
    net, optimizer, masks = masked()
    masks.remove()
    step(net, optimizer)
    assert not is_zero(net[0].weight[~half((8, 6))])
    Masks.from_dict(net, {"0.weight": half((8, 6))}, optimizer)
    step(net, optimizer)
    assert is_zero(net[0].weight[~half((8, 6))])


def test_removed_weights_train_on_without_hidden_energy() -> None:
    net = nn.Linear(6, 5, bias=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        step(net, optimizer)
    masks = prune_(net, optimizer, sparsity=0.5)
    mask = masks["weight"]
    step(net, optimizer)
    masks.remove()
    optimizer.zero_grad()
    net(torch.randn(4, 6)).pow(2).mean().backward()
    gradient = net.weight.grad.clone()
    optimizer.step()
    assert torch.equal(net.weight[~mask], -0.1 * gradient[~mask])


# ---- averages and copies


@pytest.mark.parametrize("when", ["before", "after"])
def test_average_follows_whether_it_was_made_before_or_after(when: str) -> None:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    step(net, optimizer)
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9)) if when == "before" else None
    masks = prune_(net, optimizer, sparsity=0.5)
    average = average or AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    masks.attach(average)
    for sparsity in (0.5, 0.7, 0.9):
        masks = prune_(net, optimizer, sparsity=sparsity)
        for _ in range(3):
            step(net, optimizer)
            average.update_parameters(net)
            for name, mask in masks.items():
                assert is_zero(average.module.get_parameter(name)[~mask])
    assert Masks(average.module) == masks
    average.load_state_dict({k: torch.ones_like(v) for k, v in average.state_dict().items()})
    assert is_zero(average.module[0].weight[~masks["0.weight"]])


def test_average_that_was_attached_twice_follows_once_and_leaves_with_the_masks() -> None:
    net, optimizer, masks = masked()
    average = AveragedModel(net)
    masks.attach(average)
    masks.attach(average)
    masks.update_({"0.weight": ~half((8, 6))})
    assert Masks(average.module) == masks
    masks.remove()
    assert len(Masks(average.module)) == 0
    average.load_state_dict({k: torch.ones_like(v) for k, v in average.state_dict().items()})
    assert bool((average.module[0].weight == 1).all())
    step(net, optimizer)


def test_masks_of_an_average_take_one_bit_a_weight() -> None:
    net = nn.Linear(256, 256)
    masks = prune_(net, sparsity=0.5)
    average = AveragedModel(nn.Linear(256, 256))
    masks.attach(average)
    assert Masks(average.module).num_bytes() == 256 * 256 / 8


@pytest.mark.parametrize(
    "build", [lambda net: model(5), lambda net: nn.Linear(6, 8), lambda net: net], ids=["wide", "other", "same"]
)
def test_what_is_no_copy_of_the_model_is_not_attached(build: object) -> None:
    net, optimizer, masks = masked()
    other = build(net)
    before = snapshot(net, optimizer, other)
    with pytest.raises(HolderError, match=r"is no copy of the model that could follow its masks"):
        masks.attach(other)
    assert snapshot(net, optimizer, other) == before


def test_copy_of_model_average_and_masks_stays_together() -> None:
    net, optimizer, masks = masked()
    average = AveragedModel(net)
    masks.attach(average)
    its_net, its_average, its_optimizer, its_masks = copy.deepcopy((net, average, optimizer, masks))
    before = snapshot(net, average, optimizer)
    its_masks.update_({"0.weight": ~half((8, 6))})
    step(its_net, its_optimizer)
    its_average.update_parameters(its_net)
    assert Masks(its_average.module) == its_masks
    assert snapshot(net, average, optimizer) == before


def test_copy_of_the_model_alone_is_independent() -> None:
    net, optimizer, masks = masked()
    step(net, optimizer)
    before = snapshot(net, optimizer)
    copied = copy.deepcopy(net)
    its_optimizer = torch.optim.AdamW(copied.parameters(), lr=0.1)
    storages = {p.untyped_storage().data_ptr() for p in net.parameters()}
    assert not storages & {p.untyped_storage().data_ptr() for p in copied.parameters()}
    for _ in range(3):
        step(copied, its_optimizer)
    assert all(is_zero(copied.get_parameter(name)[~mask]) for name, mask in masks.items())
    assert Masks(copied) == masks
    assert snapshot(net, optimizer) == before
    Masks(copied).remove()
    assert len(masks) == 2


def test_masks_for_two_parameters_in_one_memory_are_refused() -> None:
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    model["b"].weight = nn.Parameter(model["a"].weight.data)
    before = model["a"].weight.detach().clone()
    with pytest.raises(UnsupportedError, match="another parameter in the same memory"):
        Masks.from_dict(model, {"a.weight": torch.eye(4) == 0})
    assert torch.equal(model["a"].weight, before)
