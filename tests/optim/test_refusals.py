"""What sparse optimizers refuse, before anything is changed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import secateur
from secateur import UnsupportedError
from secateur.optim import SparseAdamW, SparseSGD
from tests.optim.cases import Case, assert_same, by_kind, pair


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
