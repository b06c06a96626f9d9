"""What a forward writes into its own parameters (``Embedding(max_norm=…)``, clamped weights) is put back afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from torch import Tensor, nn

from secateur import _compat
from secateur.graph.call import operands
from secateur.graph.memory import storage_of
from secateur.graph.outlining import Execute

__all__ = ["weights_restored"]


@contextmanager
def weights_restored(model: nn.Module, execute: Execute) -> Iterator[Execute]:
    """Put the parameters of a model back, when the block ends, to what they were before ops wrote into them.

    Args:
        model: The model.
        execute: How an op is run.

    Yields:
        How an op is to be run meanwhile.
    """
    memory = [(parameter, parameter.data) for parameter in model.parameters() if not _compat.is_fake(parameter)]
    own: dict[int, list[Tensor]] = {}
    for _, data in memory:
        own.setdefault(storage_of(data), []).append(data)
    written: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def careful(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if _is_writing(func):
            for tensor in operands((*args, *kwargs.values())):
                storage = storage_of(tensor)
                if storage in own and storage not in written:
                    written[storage] = [(data, data.clone()) for data in own[storage]]
        return execute(func, args, kwargs)

    try:
        yield careful
    finally:
        for parameter, data in memory:
            if parameter.shape != data.shape or parameter.data_ptr() != data.data_ptr():
                parameter.data = data
        for data, before in (pair for pairs in written.values() for pair in pairs):
            data.copy_(before)


@cache
def _is_writing(func: Any) -> bool:
    """Whether an op writes into one of its arguments."""
    schema = getattr(func, "_schema", None)
    return schema is not None and schema.is_mutable
