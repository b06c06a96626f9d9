"""Every switch on torch's version and every optional import; nowhere else."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.autograd import forward_ad
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import _Orthogonal, _SpectralNorm, _WeightNorm
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

__all__ = [
    "DispatchMode",
    "Orthogonal",
    "SpectralNorm",
    "WeightNorm",
    "has_inner_tensors",
    "has_tangent",
    "is_caching_parametrizations",
    "is_fake",
    "is_watched",
    "optimizer_classes",
    "optional",
    "uncompiled",
    "without_compiler",
    "without_torch_function",
    "wrappers",
]

P = ParamSpec("P")
T = TypeVar("T")

Orthogonal, SpectralNorm, WeightNorm = _Orthogonal, _SpectralNorm, _WeightNorm
"""The parametrizations that `torch.nn.utils.parametrizations` registers; their classes have no public names."""


class DispatchMode(TorchDispatchMode):
    """A mode that sees every op, to be used `without_compiler`: torch then need not keep its compiler from each call.

    That takes as long as a small op.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def without_compiler() -> AbstractContextManager[object]:
    """Have compiled functions run as they are written; nothing is compiled where the compiler was never loaded."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def uncompiled(function: Callable[P, T]) -> Callable[P, T]:
    """Have a function run as it is written where compiled code calls it, as torch does with parts of its optimizers."""
    made: Callable[P, T] = _disable_dynamo(function)
    return made


def optional(name: str) -> ModuleType | None:
    """The module `name` if it is installed, else None."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def has_tangent(tensor: Tensor) -> bool:
    """Whether forward-mode differentiation goes through a tensor."""
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None


def is_watched(tensor: Tensor) -> bool:
    """Whether somebody must see an op that takes this tensor: a compiler, a tracer, a mode, a transform, a subclass."""
    return (
        type(tensor) not in (Tensor, nn.Parameter)
        or torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or tensor.is_neg()  # its memory has other signs
        or tensor._is_zerotensor()  # it has no memory
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._len_torch_function_stack() > 0
        or torch._C._functorch.maybe_current_level() is not None
    )


def optimizer_classes() -> dict[str, type[torch.optim.Optimizer]]:
    """Every optimizer of the installed ``torch.optim``, by name."""
    found = {
        name: value
        for name, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer)
    }
    found.pop("Optimizer")
    return found


def wrappers() -> dict[type[nn.Module], str]:
    """Module classes that hold parameters in forms of their own, each with the reason why they are refused."""
    found: dict[type[nn.Module], str] = {
        nn.parallel.DistributedDataParallel: "its reducer keeps the old gradient accumulators and buckets"
    }
    fsdp = sys.modules.get("torch.distributed.fsdp")  # half a second to import, and nothing is of it if nobody has
    if fsdp is not None:
        found[fsdp.FullyShardedDataParallel] = "FSDP1 keeps parameters in flat shards that have no dims to cut"
    return found


def has_prepacking() -> bool:
    """Whether torch has the ops that run oneDNN on a weight laid out beforehand, as its compiler does."""
    names = ("_reorder_linear_weight", "_linear_pointwise", "_reorder_convolution_weight", "_convolution_pointwise")
    is_there = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
    return bool(is_there) and all(hasattr(torch.ops.mkldnn, name) for name in names)


def has_inner_tensors(tensor: Tensor) -> bool:
    """Whether a tensor is a wrapper around others (a DTensor, a nested or quantized tensor of a subclass)."""
    return is_traceable_wrapper_subclass(tensor)


def is_caching_parametrizations() -> bool:
    """Whether the call is made inside ``torch.nn.utils.parametrize.cached()``."""
    return bool(parametrize._cache_enabled)


def without_torch_function() -> AbstractContextManager[None]:
    """A context in which attributes of tensor subclasses are read without asking the subclass."""
    return torch._C.DisableTorchFunction()


def is_fake(tensor: Tensor) -> bool:
    """Whether a tensor has a shape and no values: one made under ``FakeTensorMode``, or on the meta device."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor) or tensor.is_meta
