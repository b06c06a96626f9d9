"""What sparse optimizers refuse, before anything is changed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import secateur
from secateur import InvalidInputError, UnsupportedError
from secateur.optim import SparseAdamW, SparseSGD
from tests.optim.cases import Case, assert_same, assert_zero, by_kind, by_path, pair, path


@pytest.mark.parametrize("kind", [SparseAdamW, SparseSGD])
@pytest.mark.parametrize("option", ["foreach", "fused", "capturable", "differentiable"])
def test_forms_that_there_are_none_of_are_refused(kind: Any, option: str) -> None:
    if option == "capturable" and kind is SparseSGD:
        with pytest.raises(TypeError, match="capturable"):
            kind([nn.Parameter(torch.ones(2))], capturable=True)
        return
    with pytest.raises(UnsupportedError, match=f"{kind.__name__} has no {option} form"):
        kind([nn.Parameter(torch.ones(2))], **{option: True})
    optimizer = kind([nn.Parameter(torch.ones(2))], **{option: None if option in ("foreach", "fused") else False})
    with pytest.raises(UnsupportedError, match=f"{kind.__name__} has no {option} form"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], option: True})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("kind", [SparseAdamW, SparseSGD])
def test_numbers_that_torch_refuses_are_refused(kind: Any) -> None:
    with pytest.raises(ValueError, match="Invalid learning rate"):
        kind([nn.Parameter(torch.ones(2))], lr=-1.0)
    with pytest.raises(ValueError, match="Invalid weight_decay"):
        kind([nn.Parameter(torch.ones(2))], weight_decay=-1.0)


@pytest.mark.parametrize("kind", [SparseAdamW, SparseSGD])
@pytest.mark.parametrize("value", ["no", 0, None])
def test_what_is_no_bool_is_not_taken_for_one(kind: Any, value: object) -> None:
    with pytest.raises(InvalidInputError, match="mask_gradients"):
        kind([nn.Parameter(torch.ones(3))], mask_gradients=value)


@pytest.mark.parametrize("kind", [SparseAdamW, SparseSGD])
def test_complex_parameters_are_refused(kind: Any) -> None:
    wild = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(UnsupportedError, match="complex parameters"):
        kind([wild])
    with pytest.raises(UnsupportedError, match="complex parameters"):
        kind([("name", wild)])
    with pytest.raises(UnsupportedError, match="complex parameters"):
        kind([{"params": iter([wild])}])


@by_kind
def test_sparse_gradients_are_refused_before_any_weight_is_changed(case: Case) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Embedding(5, 4, sparse=True))
    optimizer = case.make(model.parameters())
    secateur.prune_(model, optimizer, sparsity=0.5)
    model[1](torch.tensor([1, 2])).sum().backward()
    model[0](torch.ones(1, 4)).sum().backward()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(UnsupportedError, match="sparse gradients"):
        optimizer.step()
    assert_same(model.state_dict(), before)


@by_kind
def test_parameters_may_be_passed_as_a_generator_or_one_by_one(case: Case) -> None:
    model = nn.Linear(3, 2)
    optimizer = case.make([{"params": (p for p in model.parameters())}])
    assert list(map(id, optimizer.param_groups[0]["params"])) == list(map(id, model.parameters()))
    optimizer.add_param_group({"params": nn.Parameter(torch.ones(2))})
    assert len(optimizer.param_groups[1]["params"]) == 1


@by_kind
def test_weights_that_were_cut_by_hand_are_refused(case: Case) -> None:
    both = pair(case)
    both.mask(0.3)
    both.step(0)
    weight = both.model.last.weight
    weight.data, weight.grad = weight.data[:1].clone(), torch.ones(1, 33)
    before = copy.deepcopy([p.detach() for p in both.model.parameters()])
    with pytest.raises(secateur.ShapeError, match="another shape than its mask"):
        both.optimizer.step()
    with pytest.raises(secateur.ShapeError, match="another shape than its parameter"):
        both.optimizer.state_dict()
    assert all(map(torch.equal, [p.detach() for p in both.model.parameters()], before))


def weights_of(model: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


CONVERSIONS = {
    "bfloat16 to float32": (torch.bfloat16, torch.float32),
    "float64 to float32": (torch.float64, torch.float32),
    "float32 to float64": (torch.float32, torch.float64),
    "float32 to bfloat16": (torch.float32, torch.bfloat16),
}


@pytest.mark.parametrize("change", CONVERSIONS.values(), ids=CONVERSIONS.keys())
@by_path
@by_kind
def test_conversion_after_steps_is_refused_before_any_weight_is_changed(
    case: Case, is_native: bool, change: tuple[torch.dtype, torch.dtype]
) -> None:
    with path(is_native):
        both = pair(case, change[0])
        both.mask(0.3)
        both.step(0, 1)
        both.model.to(change[1])
        before = weights_of(both.model)
        with pytest.raises(UnsupportedError, match="state has another dtype or device than its parameter"):
            both.step_one(both.model, both.optimizer, 2)
        assert all(map(torch.equal, both.model.parameters(), before))
        both.optimizer.load_state_dict(both.optimizer.state_dict())  # as the message says
        both.step_one(both.model, both.optimizer, 2)
        values = [*both.optimizer.state[both.model.last.weight].values()]
        assert {value.dtype for value in values if value.dim() and value.is_floating_point()} == {change[1]}
        for name, mask in secateur.Masks(both.model).items():
            weight = both.model.get_parameter(name).detach()
            assert weight.isfinite().all()
            assert_zero(weight[~mask])


@by_kind
def test_state_of_one_parameter_that_was_converted_is_refused_before_others_are_stepped(case: Case) -> None:
    both = pair(case)
    both.mask(0.3)
    both.step(0)
    bias = both.model.first.bias
    name = "exp_avg" if case.sparse is SparseAdamW else "momentum_buffer"
    both.optimizer.state[bias][name] = both.optimizer.state[bias][name].double()
    before = weights_of(both.model)
    with pytest.raises(UnsupportedError, match="state has another dtype"):
        both.step_one(both.model, both.optimizer, 1)
    assert all(map(torch.equal, both.model.parameters(), before))


@by_kind
def test_gradients_from_before_a_conversion_are_refused(case: Case) -> None:
    both = pair(case)
    both.mask(0.3)
    weight = both.model.last.weight
    weight.grad = torch.ones_like(weight)
    weight.data = weight.data.double()
    before = weights_of(both.model)
    with pytest.raises(UnsupportedError, match="gradient has another dtype"):
        both.optimizer.step()
    weight.data = torch.ones(2, 2, dtype=torch.float32)
    with pytest.raises(secateur.ShapeError):
        both.optimizer.step()
    bias = both.model.first.bias
    bias.grad = torch.ones_like(bias)
    weight.data, bias.data = before[-1].float(), torch.ones(2)
    with pytest.raises(secateur.ShapeError, match="gradient has another shape"):
        both.optimizer.step()


def shorten(state: dict[str, Any], name: str) -> None:
    state[name] = state[name][:-1].clone()


def lengthen_mask(state: dict[str, Any], name: str) -> None:
    state["kept"] = torch.full_like(state["kept"], 255)


def cut_mask(state: dict[str, Any], name: str) -> None:
    state["kept"] = state["kept"][:8].clone()


def lose_mask(state: dict[str, Any], name: str) -> None:
    state["kept"] = "all"


@pytest.mark.parametrize("spoil", [shorten, lengthen_mask, cut_mask, lose_mask], ids=lambda spoil: spoil.__name__)
@pytest.mark.parametrize("changes_masks", [True, False], ids=["mask changes", "mask stays"])
@by_path
@by_kind
def test_state_that_was_changed_by_hand_is_refused(
    case: Case, is_native: bool, changes_masks: bool, spoil: Any
) -> None:
    with path(is_native):
        both = pair(case)
        both.mask(0.3)
        both.step(0)
        name = "exp_avg" if case.sparse is SparseAdamW else "momentum_buffer"
        state = both.optimizer.state[both.model.last.weight]
        spoil(state, name)
        before = weights_of(both.model)
        if changes_masks:
            with pytest.raises(secateur.ShapeError, match="state has another shape than"):
                both.mask(0.5, seed=1)
        else:
            with pytest.raises(secateur.ShapeError, match="state has another shape than"):
                both.step_one(both.model, both.optimizer, 1)
            assert all(map(torch.equal, both.model.parameters(), before))


@by_path
@by_kind
def test_masked_weights_that_share_memory_within_are_refused_as_by_any_optimizer(case: Case, is_native: bool) -> None:
    with path(is_native):
        both = pair(case)
        both.mask(0.3)
        both.step(0)
        for model, optimizer in ((both.model, both.optimizer), (both.twin, both.reference)):
            model.last.weight.data = torch.ones(1, 33).expand(3, 33)
            with pytest.raises(UnsupportedError, match="entries may share memory"):
                both.step_one(model, optimizer, 1)


@pytest.mark.parametrize("other", ["weight", "bias"])
@by_path
@by_kind
def test_masked_weights_that_share_memory_with_others_are_refused(case: Case, is_native: bool, other: str) -> None:
    with path(is_native):
        model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5))
        optimizer = case.make(model.parameters())
        secateur.prune_(model, optimizer, sparsity=0.5)
        model(torch.ones(1, 5)).sum().backward()
        optimizer.step()
        whole = torch.ones(30)
        model[0].weight.data = whole[:25].view(5, 5)
        getattr(model[1], other).data = whole[:25].view(5, 5).t() if other == "weight" else whole[20:25]
        before = weights_of(model)
        for _ in range(2):
            with pytest.raises(UnsupportedError, match="shares memory with another parameter"):
                optimizer.step()
        assert all(map(torch.equal, model.parameters(), before))


@by_kind
def test_weights_may_be_neighbours_in_one_piece_of_memory(case: Case) -> None:
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5))
    optimizer = case.make(model.parameters())
    masks = secateur.prune_(model, optimizer, sparsity=0.5)
    whole = torch.ones(60)
    model[1].weight.data, model[0].weight.data = whole[:25].view(5, 5), whole[25:50].view(5, 5)
    model[0].bias.data, model[1].bias.data = whole[50:55], whole[55:]
    model(torch.ones(1, 5)).sum().backward()
    optimizer.step()
    for name, mask in masks.items():
        assert_zero(model.get_parameter(name).detach()[~mask])
