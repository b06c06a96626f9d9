"""Switches on versions and optional imports."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from secateur import _compat


def test_optional_import_is_the_module_or_none() -> None:
    assert _compat.optional("torch") is torch
    assert _compat.optional("no_such_module_anywhere") is None


def test_optimizer_classes_are_those_of_torch() -> None:
    found = _compat.optimizer_classes()
    assert found["AdamW"] is torch.optim.AdamW
    assert "Optimizer" not in found
    assert all(issubclass(kind, torch.optim.Optimizer) for kind in found.values())


def test_parametrizations_are_those_that_torch_registers() -> None:
    layers = {
        _compat.WeightNorm: parametrizations.weight_norm(nn.Linear(3, 3)),
        _compat.SpectralNorm: parametrizations.spectral_norm(nn.Linear(3, 3)),
        _compat.Orthogonal: parametrizations.orthogonal(nn.Linear(3, 3)),
    }
    for kind, layer in layers.items():
        assert type(layer.parametrizations.weight[0]) is kind


def test_caching_of_parametrizations_is_seen() -> None:
    assert not _compat.is_caching_parametrizations()
    with parametrize.cached():
        assert _compat.is_caching_parametrizations()


def test_fsdp_is_not_imported_to_look_for_it() -> None:
    code = (
        "import sys, torch, secateur;"
        "secateur.resize_(torch.nn.Linear(2, 2), 'weight', dim=0, keep=[0]);"
        "print('torch.distributed.fsdp' in sys.modules, len(secateur._compat.wrappers()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "1"]


def test_fsdp_is_known_once_it_is_imported() -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    assert fsdp.FullyShardedDataParallel in _compat.wrappers()


def test_subclass_is_not_asked_without_torch_function() -> None:
    class Loud(Tensor):
        @classmethod
        def __torch_function__(cls, func: object, types: object, args: object = (), kwargs: object = None) -> Tensor:
            raise AssertionError("asked")

    loud = torch.ones(2).as_subclass(Loud)
    with _compat.without_torch_function():
        assert loud.grad_fn is None
    assert not _compat.has_inner_tensors(torch.ones(2))
