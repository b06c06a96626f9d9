"""Which models are in a running program, and which parameters are theirs."""

from __future__ import annotations

import pytest
from torch import nn

from secateur.doctor.families import Family
from tests.doctor.trainings import mlp


def ids(*modules: nn.Module) -> set[int]:
    return {id(parameter) for module in modules for parameter in module.parameters()}


def family_of(*models: nn.Module) -> Family:
    family = Family()
    for model in models:
        family.add_all(model)
    return family


def test_roots_are_the_outermost_modules() -> None:
    inner = mlp()
    model = nn.ModuleDict({"inner": inner, "head": nn.Linear(3, 2)})
    assert family_of(model).roots(ids(inner[0])) == [model]
    assert family_of(inner).roots(ids(inner[0])) == [inner]


def test_roots_of_parameters_of_several_models_are_all_of_them() -> None:
    first, second, other = mlp(), mlp(), mlp()
    assert set(family_of(first, second, other).roots(ids(first[0], second))) == {first, second}


def test_smaller_one_of_two_modules_with_the_same_parameters_is_the_root() -> None:
    whole = mlp()
    part = nn.Sequential(whole[0], whole[1])
    assert family_of(whole, part).roots(ids(part)) == [part]
    assert family_of(part, whole).roots(ids(whole)) == [whole]


@pytest.mark.parametrize("is_called", [False, True])
def test_layer_that_was_taken_out_is_a_root_only_if_it_is_called(is_called: bool) -> None:
    model = mlp()
    family = family_of(model)
    old = model[2]
    model[2] = nn.Linear(6, 3)
    if is_called:
        family.call(old)
    assert family.roots(ids(old)) == [old] * is_called


def test_parameters_that_no_module_has_ever_had_are_told_from_those_that_were_lost() -> None:
    model = mlp()
    family = family_of(model)
    lost = model[0].weight
    model[0].weight = nn.Parameter(lost.detach().clone())
    assert family.was_owned(lost)
    assert not family.was_owned(nn.Parameter(lost.detach().clone()))
