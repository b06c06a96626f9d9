"""What torch's own tests of ``nn.utils.prune`` ask for, restated for `prune_`, by their numbers.

1. Amounts that are no number in range are refused at once; those in range pass.
2. More zeros than there are entries cannot be asked for: sparsity is a fraction below 1.
3. Fractions are rounded to whole counts. (A count as an int does not exist: ``1`` and ``1.0`` would differ.)
4. Mask and weight keep their shape, for weights and biases, matrices and kernels.
5. The values of masked weights are not kept anywhere: a copy that is taken before still has them.
6. The weight itself is the old one times the mask: there is no hidden second one.
7. A mask of ones changes neither output nor gradients nor a second forward.
8. So does a sparsity of 0.
9. Gradients of masked entries are 0, those of others right; a plain SGD step leaves masked entries alone.
10. The output is that of the kept entries.
11. `remove` leaves the output unchanged.
12. The parameter is the same object before, after and after `remove`.
13. A pickled module comes back as the same type, masked.
14. A second call composes, a third one too, with another pattern.
15. There is no container: one mask a parameter, whatever the calls were; a mask for another name is refused.
16. Masks of successive calls are exact, given those before.
17. The smallest weights go, by hand, twice cumulatively.
18. Scores decide instead of weights, twice.
19. Ties are broken to the exact count.
20. 0.6 of a dim of two slices removes exactly one of them.
21. Channels, then columns go by norm, cumulatively.
22. The same with scores.
23. `remove` leaves names and buffers as they were, and values equal.
24. Removing from a model without masks is no error, as nothing is to do; there are none afterwards.
25. The smallest over two modules go.
26. The same with scores by name.
27. A mask by hand joins the old one with ``&``.
28. If making the mask fails, the module is as before.
29. A model that is saved whole keeps mask and weight.
30. A fresh dense model loads the state dict strictly, before and after `remove`.
31. The pruned tensor is the tensor times the new mask, given a prior one.
32. The same with scores.
33. Scores that are the magnitudes equal the default.
34. Weights of a recurrent layer stay parameters in its flat list, all four of them.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from secateur import InvalidInputError, Masks, allocation, patterns, prune_, scores
from tests.masks.oracles import bits, half, snapshot

ROWS, COLUMNS = patterns.Channel(dim=0), patterns.Channel(dim=1)


@pytest.fixture
def linear() -> nn.Linear:
    """The smallest three weights are those of the first row."""
    layer = nn.Linear(3, 4)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.1, -0.2, 0.3], [4.0, 5.0, -6.0], [7.0, -8.0, 9.0], [1.0, 2.0, 10.0]]))
    return layer


def masked_positions(masks: Masks, name: str = "weight") -> list[list[int]]:
    return (~masks[name]).nonzero().tolist()


@pytest.mark.parametrize("sparsity", ["0.5", None, -0.1, 1.0, 20, math.nan])
def test_01_amount_out_of_range_is_refused(linear: nn.Linear, sparsity: float) -> None:
    before = snapshot(linear)
    with pytest.raises(InvalidInputError, match=r"sparsity must be a number in \[0, 1\)"):
        prune_(linear, sparsity=sparsity)
    assert snapshot(linear) == before


@pytest.mark.parametrize("sparsity", [0, 0.0, 0.34, 0.9])
def test_01_amount_in_range_passes(linear: nn.Linear, sparsity: float) -> None:
    assert prune_(linear, sparsity=sparsity).num_zeros() == round(12 * sparsity)


def test_02_more_than_all_cannot_be_asked_for(linear: nn.Linear) -> None:
    with pytest.raises(InvalidInputError, match=r"in \[0, 1\)"):
        prune_(linear, sparsity=13)
    with pytest.raises(InvalidInputError, match="would remove every unit of 'weight'"):
        prune_(linear, sparsity=0.99)
    assert len(Masks(linear)) == 0


def test_03_fraction_is_rounded_to_a_whole_count() -> None:
    layer = nn.Linear(17, 1, bias=False)
    assert prune_(layer, sparsity=0.4).num_zeros() == 7


@pytest.mark.parametrize("build", [lambda: nn.Linear(5, 6), lambda: nn.Conv3d(2, 4, 3)], ids=["Linear", "Conv3d"])
@pytest.mark.parametrize("name", ["weight", "bias"])
def test_04_shapes_stay(build: Callable[[], nn.Module], name: str) -> None:
    layer = build()
    shape = getattr(layer, name).shape
    masks = prune_(layer, sparsity=0.5, score=scores.random, include=name)
    assert masks[name].shape == getattr(layer, name).shape == shape


def test_05_values_of_masked_weights_are_gone_unless_copied_before(linear: nn.Linear) -> None:
    before = linear.weight.detach().clone()
    masks = prune_(linear, sparsity=0.25)
    masks.remove()
    assert torch.equal(linear.weight, before.where(torch.arange(4)[:, None] > 0, torch.tensor(0.0)))


def test_06_weight_is_the_old_one_times_the_mask(linear: nn.Linear) -> None:
    before = linear.weight.detach().clone()
    masks = prune_(linear, sparsity=0.5, score=scores.random)
    assert torch.equal(linear.weight, before * masks["weight"])
    assert list(dict(linear.named_parameters())) == ["weight", "bias"]


def outputs_and_gradients(layer: nn.Module) -> list[bytes]:
    x = torch.ones(2, 3)
    layer.zero_grad()
    first = layer(x)
    first.sum().backward()
    return [bits(first), bits(layer(x)), *(bits(p.grad) for p in layer.parameters())]


def test_07_mask_of_ones_changes_nothing(linear: nn.Linear) -> None:
    before = outputs_and_gradients(linear)
    Masks.from_dict(linear, {"weight": torch.ones(4, 3, dtype=torch.bool)})
    assert outputs_and_gradients(linear) == before


def test_08_sparsity_of_zero_changes_nothing(linear: nn.Linear) -> None:
    before = outputs_and_gradients(linear)
    prune_(linear, sparsity=0.0, score=scores.random)
    assert outputs_and_gradients(linear) == before


def test_09_gradients_of_masked_entries_are_zero_and_a_step_leaves_them_alone(linear: nn.Linear) -> None:
    mask = half((4, 3))
    Masks.from_dict(linear, {"weight": mask})
    linear(torch.tensor([[1.0, 2.0, 3.0]])).sum().backward()
    assert torch.equal(linear.weight.grad, mask * torch.tensor([1.0, 2.0, 3.0]))
    before = linear.weight.detach().clone()
    torch.optim.SGD(linear.parameters(), lr=1.0).step()
    assert torch.equal(linear.weight, before - mask * torch.tensor([1.0, 2.0, 3.0]))


def test_10_output_is_that_of_the_kept_entries(linear: nn.Linear) -> None:
    mask, x = half((4, 3)), torch.randn(5, 3)
    expected = x @ (linear.weight.detach() * mask).t() + linear.bias.detach()
    Masks.from_dict(linear, {"weight": mask})
    torch.testing.assert_close(linear(x), expected)


def test_11_remove_leaves_the_output_unchanged(linear: nn.Linear) -> None:
    masks, x = prune_(linear, sparsity=0.5), torch.randn(5, 3)
    before = linear(x)
    masks.remove()
    assert torch.equal(linear(x), before)


def test_12_parameter_is_the_same_object_throughout(linear: nn.Linear) -> None:
    ids = [id(p) for p in linear.parameters()]
    masks = prune_(linear, sparsity=0.5)
    assert [id(p) for p in linear.parameters()] == ids
    masks.remove()
    assert [id(p) for p in linear.parameters()] == ids


def test_13_pickled_module_comes_back_masked(linear: nn.Linear) -> None:
    masks = prune_(linear, sparsity=0.5)
    loaded = pickle.loads(pickle.dumps(linear))
    assert type(loaded) is nn.Linear
    assert Masks(loaded) == masks


def test_14_calls_compose(linear: nn.Linear) -> None:
    first = prune_(linear, sparsity=0.25, pattern=ROWS)["weight"]
    second = prune_(linear, sparsity=0.5)["weight"]
    third = prune_(linear, sparsity=0.34, pattern=COLUMNS)["weight"]
    assert not bool((second & ~first).any())
    assert not bool((third & ~second).any())
    assert (~third).all(dim=0).tolist().count(True) == 1


def test_15_there_is_one_mask_a_parameter_and_none_for_other_names(linear: nn.Linear) -> None:
    for sparsity in (0.25, 0.5, 0.75):
        masks = prune_(linear, sparsity=sparsity)
    assert list(masks) == ["weight"]
    with pytest.raises(InvalidInputError, match="'bias' has no mask to update"):
        masks.update_({"bias": torch.ones(4, dtype=torch.bool)})


def test_16_masks_of_successive_calls_are_exact(linear: nn.Linear) -> None:
    masks = prune_(linear, sparsity=2 / 12)
    assert masked_positions(masks) == [[0, 0], [0, 1]]
    masks = prune_(linear, sparsity=0.25, pattern=ROWS)
    assert masked_positions(masks) == [[0, 0], [0, 1], [0, 2]]
    masks = prune_(linear, sparsity=1 / 3, pattern=COLUMNS)
    assert masked_positions(masks) == [[0, 0], [0, 1], [0, 2], [1, 0], [2, 0], [3, 0]]


def test_17_smallest_weights_go_twice(linear: nn.Linear) -> None:
    assert masked_positions(prune_(linear, sparsity=3 / 12)) == [[0, 0], [0, 1], [0, 2]]
    assert masked_positions(prune_(linear, sparsity=5 / 12)) == [[0, 0], [0, 1], [0, 2], [3, 0], [3, 1]]


def test_18_scores_decide_twice(linear: nn.Linear) -> None:
    score = {"weight": torch.arange(12.0).flip(0).view(4, 3)}
    assert masked_positions(prune_(linear, sparsity=2 / 12, score=score)) == [[3, 1], [3, 2]]
    assert masked_positions(prune_(linear, sparsity=3 / 12, score=score)) == [[3, 0], [3, 1], [3, 2]]


def test_19_ties_are_broken_to_the_exact_count(linear: nn.Linear) -> None:
    with torch.no_grad():
        linear.weight.fill_(1.0)
    assert masked_positions(prune_(linear, sparsity=5 / 12)) == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1]]


def test_20_more_than_half_of_two_slices_is_one() -> None:
    layer = nn.Conv2d(4, 5, (2, 3))
    masks = prune_(layer, sparsity=0.6, score=scores.random, pattern=patterns.Channel(dim=2))
    assert (~masks["weight"]).all(dim=3).all(dim=1).all(dim=0).tolist().count(True) == 1


def test_21_slices_go_by_norm_cumulatively() -> None:
    layer = nn.Conv2d(2, 2, 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([3.0, 1, 9, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 9, 1]).view(2, 2, 2, 2))
    masks = prune_(layer, sparsity=0.5, pattern=patterns.Channel(dim=1))
    assert (~masks["weight"]).all(dim=3).all(dim=2).all(dim=0).tolist() == [False, True]
    masks = prune_(layer, sparsity=0.5, pattern=patterns.Channel(dim=3))
    gone = torch.zeros(2, 2, 2, 2, dtype=torch.bool)
    gone[:, 1], gone[..., 1] = True, True
    assert torch.equal(~masks["weight"], gone)


def test_22_slices_go_by_the_norm_of_scores(linear: nn.Linear) -> None:
    score = {"weight": torch.tensor([[9.0, 9, 9], [1, 0, 0], [0, 9, 9], [9, 0, 9]])}
    masks = prune_(linear, sparsity=0.25, score=score, pattern=ROWS)
    assert masked_positions(masks) == [[1, 0], [1, 1], [1, 2]]
    masks = prune_(linear, sparsity=1 / 3, score={"weight": torch.tensor([[9.0, 1, 9]] * 4)}, pattern=COLUMNS)
    assert masked_positions(masks) == [[0, 1], [1, 0], [1, 1], [1, 2], [2, 1], [3, 1]]


def test_23_remove_leaves_names_and_buffers_as_they_were(linear: nn.Linear) -> None:
    names = [name for name, _ in linear.named_parameters()], [name for name, _ in linear.named_buffers()]
    masks = prune_(linear, sparsity=0.5)
    assert ([name for name, _ in linear.named_parameters()], [name for name, _ in linear.named_buffers()]) == names
    before = linear.weight.detach().clone()
    masks.remove()
    assert ([name for name, _ in linear.named_parameters()], [name for name, _ in linear.named_buffers()]) == names
    assert torch.equal(linear.weight, before)


def test_24_remove_without_masks_does_nothing(linear: nn.Linear) -> None:
    before = snapshot(linear)
    Masks(linear).remove()
    assert snapshot(linear) == before
    assert len(Masks(linear)) == 0


def two_modules() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 2, 3], [-4, 5, -6]]))
        model[1].weight.copy_(torch.tensor([[-1.0, 0.2], [-4, 5]]))
    return model


def test_25_smallest_over_two_modules_go() -> None:
    masks = prune_(two_modules(), sparsity=0.4, allocation=allocation.global_)
    assert masked_positions(masks, "0.weight") == [[0, 0], [0, 1]]
    assert masked_positions(masks, "1.weight") == [[0, 0], [0, 1]]


def test_26_lowest_scores_over_two_modules_go() -> None:
    score = {"0.weight": torch.tensor([[9.0, 9, 0], [9, 9, 1]]), "1.weight": torch.tensor([[9.0, 9], [2, 3]])}
    masks = prune_(two_modules(), sparsity=0.4, allocation=allocation.global_, score=score)
    assert masked_positions(masks, "0.weight") == [[0, 2], [1, 2]]
    assert masked_positions(masks, "1.weight") == [[1, 0], [1, 1]]


def test_27_mask_by_hand_joins_the_old_one(linear: nn.Linear) -> None:
    masks = prune_(linear, sparsity=0.25)
    old, new = masks["weight"], half((4, 3))
    masks.update_({"weight": new & old})
    assert torch.equal(masks["weight"], new & old)
    assert bool((linear.weight[~(new & old)] == 0).all())


def test_28_failing_score_leaves_the_module_as_before(linear: nn.Linear) -> None:
    def fail(weights: object) -> dict[str, Tensor]:
        raise RuntimeError("simulated")

    prune_(linear, sparsity=0.25)
    before = snapshot(linear)
    with pytest.raises(RuntimeError, match="simulated"):
        prune_(linear, sparsity=0.5, score=fail)
    assert snapshot(linear) == before


def test_29_model_that_is_saved_whole_keeps_mask_and_weight(linear: nn.Linear) -> None:
    model = nn.Sequential(nn.Linear(2, 3), linear)
    masks = prune_(model, sparsity=0.5)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert Masks(loaded) == masks
    assert torch.equal(loaded[1].weight, linear.weight)


@pytest.mark.parametrize("removed", [False, True])
def test_30_dense_model_loads_the_state_dict_strictly(linear: nn.Linear, removed: bool) -> None:
    masks = prune_(linear, sparsity=0.5)
    if removed:
        masks.remove()
    fresh = nn.Linear(3, 4)
    fresh.load_state_dict(linear.state_dict(), strict=True)
    assert torch.equal(fresh.weight, linear.weight)


def test_31_pruned_tensor_is_the_tensor_times_the_mask_given_a_prior_one(linear: nn.Linear) -> None:
    prior = half((4, 3))
    before = linear.weight.detach() * prior
    Masks.from_dict(linear, {"weight": prior})
    mask = prune_(linear, sparsity=0.8)["weight"]
    assert torch.equal(linear.weight, before * mask)
    assert not bool((mask & ~prior).any())


def test_32_so_it_is_with_scores(linear: nn.Linear) -> None:
    prior = half((4, 3))
    before = linear.weight.detach() * prior
    Masks.from_dict(linear, {"weight": prior})
    mask = prune_(linear, sparsity=0.8, score={"weight": torch.arange(12.0).view(4, 3)})["weight"]
    assert torch.equal(linear.weight, before * mask)
    kept_of_prior = prior.nonzero().tolist()
    assert mask.nonzero().tolist() == kept_of_prior[-2:]


def test_33_magnitudes_as_scores_are_the_default(linear: nn.Linear) -> None:
    other = pickle.loads(pickle.dumps(linear))
    given_scores = {"weight": linear.weight.detach().abs()}
    assert prune_(linear, sparsity=0.5, score=given_scores) == prune_(other, sparsity=0.5)


def test_34_recurrent_layer_keeps_four_parameters_in_its_flat_list() -> None:
    layer = nn.LSTM(32, 32)
    masks = prune_(layer, sparsity=0.5, include="weight_ih_l0")
    flat = dict(zip(layer._flat_weights_names, layer._flat_weights, strict=True))
    assert [name for name in flat if isinstance(flat[name], nn.Parameter)] == list(flat)
    assert len(flat) == 4
    assert flat["weight_ih_l0"] is layer.weight_ih_l0
    masks.remove()
    assert layer._flat_weights_names == ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]
