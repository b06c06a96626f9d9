"""torch's own compressed rows, with the sparse operand first, where the native library is absent."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from secateur.runtime.formats._format import Bound, LinearFormat, Parts

__all__ = ["TORCH_CSR"]


def _misfit(weight: Tensor) -> str:
    """Every weight can be kept so."""
    return ""


def _pack(weight: Tensor, dtype: torch.dtype) -> Parts:
    """Row starts, columns, values."""
    rows, columns = (weight != 0).nonzero(as_tuple=True)
    starts = torch.zeros(weight.shape[0] + 1, dtype=torch.int32)
    starts[1:] = torch.bincount(rows, minlength=weight.shape[0]).cumsum(0)
    return starts, columns.int(), weight[rows, columns].to(dtype)


def _matrix(parts: Parts, shape: torch.Size) -> Tensor:
    """The sparse matrix that shares memory with its parts."""
    starts, columns, values = parts
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta", category=UserWarning)
        return torch.sparse_csr_tensor(starts, columns, values.float(), shape, check_invariants=False)


def _unpack(parts: Parts, shape: torch.Size) -> Tensor:
    """Put the values back into a dense weight."""
    return _matrix(parts, shape).to_dense()


def _bind(parts: Parts, shape: torch.Size, bias: Tensor | None, relu: bool) -> Bound:
    """The product, as ``(W @ x.T).T``: several times faster than ``x @ W.T``."""
    matrix = _matrix(parts, shape)

    def product(x: Tensor) -> Tensor:
        y = (matrix @ x.t()).t().contiguous()
        y = y if bias is None else y.add_(bias)
        return y.relu_() if relu else y

    return product


TORCH_CSR = LinearFormat("torch csr", "torch", _misfit, _pack, _unpack, _bind)
"""Pays from about 85 % zeros on."""
