"""Zeros: of masks, of the masks of a model, of its weights."""

from __future__ import annotations

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import secateur
from secateur.report import gather
from secateur.report.sparsity import zeros_of


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 4))


def test_zeros_are_those_of_given_masks() -> None:
    masks = {"a": torch.tensor([[True, False], [False, False]]), "b": torch.ones(3, dtype=torch.bool)}
    found = zeros_of(masks)
    assert [(line.name, line.shape, line.entries, line.zeros) for line in found] == [
        ("a", (2, 2), 4, 3),
        ("b", (3,), 3, 0),
    ]
    assert [line.sparsity for line in found] == [0.75, 0.0]


def test_zeros_are_those_of_the_masks_of_a_model() -> None:
    model = net()
    secateur.prune_(model, sparsity=0.5, include=["0.weight"])
    found = zeros_of(model=model)
    assert [(line.name, line.zeros) for line in found] == [("0.weight", 30)]


def test_zeros_of_weights_count_where_there_are_no_masks() -> None:
    model = net()
    with torch.no_grad():
        model[2].weight[:2] = 0
    assert [(line.name, line.zeros) for line in zeros_of(model=model)] == [("0.weight", 0), ("2.weight", 20)]


def test_a_few_zeros_are_not_worth_a_word() -> None:
    model = nn.Linear(100, 100)
    with torch.no_grad():
        model.weight[0, :9] = 0
    assert zeros_of(model=model) == []
    assert gather(model=model).to_dict()["sections"][0]["text"] == "No weight of the model is zero."


def test_a_model_without_values_has_no_zeros() -> None:
    with FakeTensorMode():
        assert zeros_of(model=net()) == []
    assert zeros_of(model=net().to("meta")) == []


def test_totals_are_of_all_tensors_together() -> None:
    masks = {"a": torch.tensor([True, False]), "b": torch.zeros(6, dtype=torch.bool)}
    facts = gather(masks=masks).to_dict()["sections"][0]["figures"][0]["facts"]
    assert {fact["label"]: fact["after"] for fact in facts} == {
        "Zeros": 7,
        "Entries of these tensors": 8,
        "Sparsity": 0.875,
    }
