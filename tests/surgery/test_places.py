"""Where tensors are, and what names lead to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from secateur import InvalidInputError
from secateur._wrappers import unwrapped
from secateur.surgery.places import Place, find_place, own_tensors, places, sharers


def tied() -> nn.ModuleDict:
    model = nn.ModuleDict({"emb": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False), "norm": nn.BatchNorm1d(3)})
    model["head"].weight = model["emb"].weight
    return model


def test_find_place_leads_to_the_module_that_owns_the_tensor() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))
    place = find_place(model, "0.0.weight")
    assert place.tensor is model[0][0].weight
    assert (place.prefix, place.leaf, place.name) == ("0.0", "weight", "0.0.weight")
    assert find_place(model[0][0], "weight").name == "weight"


def test_find_place_looks_into_compiled_modules() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    compiled = nn.Sequential(torch.compile(model[0]))
    assert find_place(compiled, "0.weight").tensor is model[0].weight
    assert unwrapped(torch.compile(model)) is model
    assert unwrapped(model) is model


def test_find_place_refuses_modules_that_do_not_exist() -> None:
    with pytest.raises(InvalidInputError, match="no module 'fc3' in Sequential"):
        find_place(nn.Sequential(), "fc3.weight")


@pytest.mark.parametrize("name", [None, 3, nn.Linear(1, 1).weight], ids=["none", "int", "tensor"])
def test_find_place_refuses_names_that_are_no_strings(name: Any) -> None:
    with pytest.raises(InvalidInputError, match="named by a string"):
        find_place(nn.Linear(2, 2), name)


@pytest.mark.parametrize("name", ["weights", "in_features", "forward", "", "bias"])
def test_place_without_a_tensor_says_which_there_are(name: str) -> None:
    place = find_place(nn.Linear(2, 2, bias=False), name)
    with pytest.raises(InvalidInputError, match=r"Linear has no parameter or buffer '.*'.\n  has: weight"):
        _ = place.tensor


def test_places_lists_all_names_of_tied_tensors_and_shared_modules() -> None:
    model = tied()
    model["again"] = model["norm"]
    found = {key: [place.name for place in among] for key, among in places(model).items()}
    assert found[id(model["emb"].weight)] == ["emb.weight", "head.weight"]
    assert found[id(model["norm"].running_mean)] == ["norm.running_mean", "again.running_mean"]


def test_sharers_are_the_tensors_in_one_memory() -> None:
    flat = torch.zeros(6)
    model = nn.ParameterDict({"a": nn.Parameter(flat[:2]), "b": nn.Parameter(flat[2:]), "c": torch.zeros(2)})
    among = sharers(places(model))
    assert [place.name for place in among[id(model["a"])]] == ["a", "b"]
    assert [place.name for place in among[id(model["c"])]] == ["c"]


def test_sharers_of_meta_and_lazy_tensors_are_themselves() -> None:
    model = nn.ModuleList([nn.Linear(2, 2, device="meta"), nn.LazyLinear(2)])
    assert all(len(among) == 1 for among in sharers(places(model)).values())


def test_own_tensors_are_parameters_then_buffers() -> None:
    assert [leaf for leaf, _ in own_tensors(nn.BatchNorm1d(2))] == [
        "weight",
        "bias",
        "running_mean",
        "running_var",
        "num_batches_tracked",
    ]
    assert Place(nn.BatchNorm1d(2), "bn", "running_mean").tensor.shape == (2,)
