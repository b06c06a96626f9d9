"""What one run of a model costs: multiply-accumulate operations, and those whose weight is not zero."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from secateur import _compat
from secateur._passes import Inputs, call_with
from secateur.graph.capture import tensors_in
from secateur.graph.memory import geometry_of, storage_of
from secateur.runtime.profile_products import PRODUCTS, Term
from secateur.runtime.profile_sizes import nonzeros_of, packed

__all__ = ["Work", "work_of"]


class Work(NamedTuple):
    """Multiply-accumulate operations of matrix products, convolutions and attention on some inputs.

    Args:
        macs: All.
        nonzero_macs: Those whose weight is not zero: products of two activations count in full. None for a model
            without values.
    """

    macs: int
    nonzero_macs: int | None


def work_of(model: nn.Module, inputs: Inputs) -> Work:
    """Run a model once and count. The run is to be made without the opaque fast paths of torch.

    Args:
        model: The model.
        inputs: Example inputs.

    Returns:
        The counts. A module with a packed weight counts as the product that it stands for.
    """
    watch = _Watch(model)
    with watch.packed_modules(), watch:
        call_with(model, inputs)
    return Work(watch.macs, watch.nonzero_macs)


class _Watch(_compat.DispatchMode):
    """Counts the products that it sees, and follows what is computed from parameters and buffers alone.

    Those are the weights: also one that is computed anew in each run, ``weight_orig * weight_mask``.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._model = model
        self._computed: list[Tensor] = []  # kept, so that no other tensor takes their place in memory
        self._constant = {storage_of(tensor) for tensor in (*model.parameters(), *model.buffers())}
        self._nonzeros: dict[tuple[object, ...], int | None] = {}
        self._depth = 0
        self.macs = 0
        self.nonzero_macs: int | None = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an op and count it."""
        result = func(*args, **(kwargs or {}))
        made = tensors_in(result)
        terms: Callable[..., Sequence[Term]] | None = PRODUCTS.get(str(getattr(func, "overloadpacket", func)))
        if terms is not None and self._depth == 0:
            for term in terms(args, made[0]):
                self._count(term)
        self._follow(tensors_in((args, kwargs)), made)
        return result

    @contextmanager
    def packed_modules(self) -> Iterator[None]:
        """Count modules with packed weights by what they stand for, and nothing of what they do inside."""
        with ExitStack() as stack:
            for module in packed(self._model):
                stack.callback(module.register_forward_pre_hook(self._entered).remove)
                stack.callback(module.register_forward_hook(self._left).remove)
            yield

    def _entered(self, module: nn.Module, inputs: object) -> None:
        """A module with a packed weight begins."""
        self._depth += 1

    def _left(self, module: Any, inputs: object, output: Tensor) -> None:
        """It ends: every entry of its weight was used once for each position of the output."""
        self._depth -= 1
        positions = output.numel() // max(1, module.shape[0])
        self._add(positions * module.shape.numel(), positions * module.num_nonzero)

    def _count(self, term: Term) -> None:
        """Add one product."""
        weights = [factor for factor in term.factors if self._is_constant(factor)]
        if not weights:
            self._add(term.macs, term.macs)
            return
        nonzeros = self._nonzeros_of(weights[-1])
        uses = term.macs // max(1, weights[-1].numel())
        self._add(term.macs, None if nonzeros is None else uses * nonzeros)

    def _add(self, macs: int, nonzero: int | None) -> None:
        """Add to both counts."""
        self.macs += macs
        self.nonzero_macs = None if self.nonzero_macs is None or nonzero is None else self.nonzero_macs + nonzero

    def _nonzeros_of(self, weight: Tensor) -> int | None:
        """How many entries of a weight are not zero; it is looked at once."""
        storage = storage_of(weight)
        if not storage:
            return nonzeros_of(weight)
        place = (storage, *geometry_of(weight))
        if place not in self._nonzeros:
            self._nonzeros[place] = nonzeros_of(weight)
        return self._nonzeros[place]

    def _is_constant(self, tensor: Tensor) -> bool:
        """Whether a tensor depends on parameters and buffers alone; sparse ones are taken for such."""
        storage = storage_of(tensor)
        return not storage or storage in self._constant

    def _follow(self, given: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        """Note whether an op's results depend on parameters and buffers alone."""
        is_constant = bool(given) and all(map(self._is_constant, given))
        for tensor in made:
            if is_constant:
                self._constant.add(storage_of(tensor))
                self._computed.append(tensor)
            else:
                self._constant.discard(storage_of(tensor))
