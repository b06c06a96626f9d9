"""One run of the model, watched op by op: what each op does to the labels of its tensors is written down.

The run is the model's own forward under a `TorchDispatchMode`, so Python control flow, hooks and custom modules just
happen. Composite ops arrive taken apart.

An op whose result nobody uses runs again after the cut, so what its sizes demand holds. What only its values demand
does not (a model may look at ``x[:, -1]`` for its shape only): such blocks wait until it is known which ops matter.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

from torch import Tensor

from secateur._compat import DispatchMode, without_torch_function
from secateur.graph.call import Call, Kind, Rule, operands, tensors_in
from secateur.graph.costs import Activation, Product
from secateur.graph.labels import Axis, Dim, Dims, Labels, size_of
from secateur.graph.memory import geometry_of, storage_of
from secateur.graph.outlining import Execute, in_earnest
from secateur.graph.ran import Ran as Ran
from secateur.graph.scalars import scalars_of
from secateur.graph.slicing import Cut
from secateur.graph.zeros import gives_clean, is_free, spoiled

__all__ = ["Call", "Capture", "Ran", "Rule", "tensors_in"]


class _Held(NamedTuple):
    """A block that waits: for the op, or for one of its results only."""

    dim: Dim
    why: str
    where: str
    result: int | None


@dataclass
class _Step:
    """What liveness needs of one op: keys of what it reads and writes, and the blocks that wait for the answer.

    A tensor is read with its memory, which an op may have written through another view of it.
    """

    reads: tuple[int, ...]
    is_root: bool
    writes: tuple[int, ...] = ()
    mutates: bool = False
    blocks: list[_Held] = field(default_factory=list)


@dataclass
class _Record:
    """What is known of one tensor: its labels, a number of its own, and one that all views of its memory share."""

    tensor: weakref.ref[Tensor]
    dims: Dims
    key: int
    memory: int
    is_clean: bool = False


class Capture(DispatchMode):
    """Watches one run of one model and collects the labels of its tensors.

    Args:
        labels: Where facts are written down; several captures of one model share it.
        rule_for: The rule of an op.
        execute: How an op is run, see `secateur.graph.outlining`.

    Attributes:
        mixed: Dims whose positions some op combines, with the op's name.
        spoiled: Dims over which an op adds up what zeroing does not make zero, with its name; see `is_clean`.
        random: Dims of tensors of random numbers, of which fewer positions are another draw.
        groups: The axes that numbers of groups, given to ops, stand for.
        products: Every matrix product and convolution, for costs.
        activations: Every result that takes memory of its own, for costs.
        multiples: Dims of which an op needs a multiple of some number.
        made: New dims whose sizes numbers in the code give (copies, zeros), until someone empties the list.
        following: Whether the sizes given to the op under way will change with the tensors; see `size_follows`.
        ran: The ops in their order.
        cuts: The parts that the function of torch under way takes of its tensor, in their order.
        trusts_literals: Whether a number that does not follow is known to be the same in every run, so that only the
            positions that it counts must stay (``x[:, :12]``: the first twelve), and not the whole dim.
    """

    supports_higher_order_operators = True

    def __init__(self, labels: Labels, rule_for: Callable[[Any], Rule], execute: Execute = in_earnest) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.labels = labels
        self._execute = execute
        self.mixed: list[tuple[Dim, str]] = []
        self.spoiled: list[tuple[Dim, str]] = []
        self.random: list[tuple[Dim, str]] = []
        self.groups: list[Axis] = []
        self.products: list[Product] = []
        self.activations: list[Activation] = []
        self.multiples: list[tuple[Dim, int]] = []
        self.made: list[Dim] = []
        self.ran: list[Ran] = []
        self.following = False
        self.trusts_literals = False
        self.cuts: list[Cut] = []
        self._rule_for = rule_for
        self._kinds: dict[Any, Kind] = {}
        self._records: dict[int, _Record] = {}
        self._entered: dict[int, str] = {}
        self._read: set[int] = set()
        self._origins: dict[int, frozenset[int]] = {}
        self._weights: set[int] = set()
        self._steps: list[_Step] = []
        self._dirty: set[int] = set()
        self._numbers = count()

    # ---- tensors

    def enter_tensor(
        self, tensor: Tensor, dims: Dims, *, name: str = "", is_state: bool = True, is_clean: bool = True
    ) -> None:
        """Give a tensor its labels: a parameter (which is clean), a buffer, or an input (which is no state)."""
        record = self._remember(tensor, dims)
        record.is_clean = is_clean
        if is_state:
            self._entered[record.memory] = name
            self._origins[record.memory] = frozenset((record.memory,))

    def dims(self, tensor: Tensor) -> Dims:
        """Labels of a tensor; one that was never met before is a constant, of which nothing can be removed."""
        return self._record(tensor).dims

    def knows(self, tensor: Tensor) -> bool:
        """Whether a tensor has labels."""
        return self._known(tensor) is not None

    def is_clean(self, tensor: Tensor) -> bool:
        """Whether a tensor is zero wherever positions can be removed, once the parameters are zero there."""
        record = self._record(tensor)
        return not is_free(record.dims) or (record.is_clean and record.memory not in self._dirty)

    def was_read(self, tensor: Tensor) -> bool:
        """Whether some op has read the tensor itself or a view of it."""
        record = self._known(tensor)
        return record is not None and record.memory in self._read

    def _known(self, tensor: Tensor) -> _Record | None:
        """The record of a tensor; ids are used again, so it must be of this very tensor."""
        record = self._records.get(id(tensor))
        return record if record is not None and record.tensor() is tensor else None

    def _remember(self, tensor: Tensor, dims: Dims, memory: int | None = None) -> _Record:
        """Make the record of a tensor."""
        key = next(self._numbers)
        record = _Record(weakref.ref(tensor), dims, key, next(self._numbers) if memory is None else memory)
        self._records[id(tensor)] = record
        return record

    def _record(self, tensor: Tensor) -> _Record:
        """The record of a tensor, a new one if it was never met before."""
        return self._known(tensor) or self._meet(tensor)

    def _meet(self, tensor: Tensor) -> _Record:
        """Make the record of a tensor that no op has made: a constant, or known memory in new clothes (``x.data``)."""
        storage = storage_of(tensor) if tensor.numel() > 1 else 0
        for record in list(self._records.values()) if storage else ():
            other = record.tensor()
            if other is None or storage_of(other) != storage:
                continue
            if geometry_of(other) == geometry_of(tensor):
                return self._remember(tensor, record.dims, record.memory)
            for dim in record.dims:
                self.labels.block(dim, "its memory is used under another shape, unseen")
            return self._remember(tensor, self.labels.fixed_dims(tensor.shape), record.memory)
        return self._remember(tensor, self.labels.fixed_dims(tensor.shape))

    def _keys(self, tensors: Iterable[Tensor]) -> Iterator[int]:
        """Numbers of tensors and of their memory."""
        for tensor in tensors:
            record = self._record(tensor)
            yield record.key
            yield record.memory

    # ---- what rules write down

    def size_follows(self, value: int) -> bool:
        """Whether a size given to the op under way will be another one when positions are gone.

        It is so where the code computes it from attributes and shapes; `secateur.graph.watching` sees that and says so
        in `following` for as long as the call lasts.
        """
        del value
        return self.following

    def cut_of(self, op: str, place: int, numbers: int) -> Cut:
        """What is known of the numbers with which an op takes a part of a dim."""
        for k, cut in enumerate(self.cuts):
            if (cut.op, cut.place) == (op, place):
                del self.cuts[: k + 1]
                return cut
        return Cut(op, place, place, (None,) * numbers, (self.trusts_literals,) * numbers, "")

    def multiplied(self, *dims: Dim, groups: Dim = ()) -> None:
        """Note one matrix product or convolution (in so many groups): it costs the product of the sizes of its dims."""
        self.products.append(Product(self.labels.doing, dims, groups))

    def groups_of(self, group: Axis) -> None:
        """Note which axis a number of groups, given to an op as an argument, stands for."""
        self.groups.append(group)

    def hold(self, dim: Dim, why: str, result: int | None = None, *, always: bool = False) -> None:
        """Block a dim; unless always, only if the op under way (or, if given, this result) turns out to matter."""
        if always:
            self.labels.block(dim, why)
        elif self._steps and not all(axis.is_fixed for axis in dim):
            self._steps[-1].blocks.append(_Held(dim, why, self.labels.where, result))

    def hold_for(self, results: Iterable[Tensor], dim: Dim, why: str) -> None:
        """Block a dim if these results of a function of torch turn out to matter."""
        self._steps.append(_Step((), is_root=False, writes=tuple(self._record(tensor).key for tensor in results)))
        self.hold(dim, why)

    def handed_out(self, tensor: Tensor) -> None:
        """Keep a tensor whose values leave torch: what is made of them there is unseen."""
        self._steps.append(_Step(tuple(self._keys([tensor])), is_root=True))
        for dim in self.dims(tensor):
            self.labels.block(dim, "its values are handed to code outside torch")

    # ---- watching

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the op, then apply its rule."""
        kwargs = kwargs or {}
        out = self._execute(func, args, kwargs)
        with without_torch_function():
            self._note(func, args, kwargs, out)
        return out

    def _note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Write down what an op did."""
        kind = self._kinds.get(func)
        if kind is None:
            kind = self._kinds[func] = Kind.of(func, self._rule_for(func))
        written = [tensor for name in kind.written for tensor in operands(kind.argument(name, args, kwargs))]
        if kind.out:
            kwargs = {name: value for name, value in kwargs.items() if name not in kind.out}
        inputs = list(operands((args, tuple(kwargs.values())) if kwargs else args))
        call = Call(self, kind, func, args, kwargs, out, inputs, list(operands(out)))
        if not call.inputs and not call.outputs:
            return
        records = [self._record(tensor) for tensor in inputs]
        reads = tuple(number for record in records for number in (record.key, record.memory))
        self._read.update(reads)
        self._steps.append(_Step(reads, kind.is_root and not call.outputs, mutates=bool(written)))
        self.labels.doing = kind.name
        before = tuple(record.dims for record in records)
        mixing, products = len(self.mixed), len(self.products)
        results = kind.rule(call)
        self.spoiled += ((dim, kind.name) for dim in spoiled(call, self.is_clean))
        clean = gives_clean(call, results, self.is_clean)
        self._settle(kind, call, results, written)
        made = [self._record(tensor) for tensor in call.outputs]
        for record in made:
            record.is_clean = clean
        if not clean:
            self._dirty.update(self._record(tensor).memory for tensor in written)
        after = tuple(record.dims for record in made)
        mixed = tuple(dim for dim, _ in self.mixed[mixing:])
        scalars = scalars_of(kind.name, args, kwargs, out)
        self.ran.append(Ran(kind.name, kind.rule, before, after, mixed, scalars, kind.is_view))
        self._follow_weights(kind, records, made, self.products[products:])

    def _settle(self, kind: Kind, call: Call, results: Sequence[Dims], written: Iterable[Tensor]) -> None:
        """Give the results their labels and say what the op has written."""
        step = self._steps[-1]
        memory = self._record(call.inputs[0]).memory if kind.is_view and call.inputs else None
        storages = set() if memory is not None else {storage_of(tensor) for tensor in call.inputs}
        writes = []
        for tensor, dims in zip(call.outputs, results, strict=True):
            record = self._known(tensor)
            if record is None:
                record = self._remember(tensor, dims, memory)
                if memory is None and storage_of(tensor) not in storages:
                    self.activations.append(Activation(dims, tensor.element_size()))
            elif kind.restrides or not _fits(record.dims, tensor):
                record.dims = dims
            else:
                for mine, theirs in zip(record.dims, dims, strict=True):
                    self.labels.equal(mine, theirs)
            writes.append(record.key)
        step.writes = (*writes, *self._keys(written))

    def _follow_weights(self, kind: Kind, read: list[_Record], made: list[_Record], products: list[Product]) -> None:
        """Note which tensors of the model, or what is computed from them alone, a layer reads as its weights."""
        memories = [record.memory for record in read if _holds_values(record.tensor())]  # and not indices of such
        if products or kind.name in _LAYERS:
            weights = frozenset[int]().union(*(self._origins.get(memory, ()) for memory in memories))
            self._weights |= weights
            names = tuple(self._entered[memory] for memory in sorted(weights))
            first = len(self.products) - len(products)
            self.products[first:] = [product._replace(reads=names) for product in products]
        if memories and not kind.is_view and all(memory in self._origins for memory in memories):
            origins = frozenset[int]().union(*(self._origins[memory] for memory in memories))
            self._origins |= {record.memory: origins for record in made}

    def is_weight(self, tensor: Tensor) -> bool:
        """Whether some layer has read the tensor as its weight: no table of tokens, no scale, no statistic."""
        record = self._known(tensor)
        return record is not None and record.memory in self._weights

    def finish(self, outputs: Iterable[Tensor]) -> None:
        """Decide which ops matter to these results, or to the model's own state, and put down the blocks of those."""
        needed = set(self._keys(outputs))
        for step in reversed(self._steps):
            state = step.mutates and not self._entered.keys().isdisjoint(step.writes)
            if not (step.is_root or state or not needed.isdisjoint(step.writes)):
                continue
            for dim, why, where, result in step.blocks:
                if result is None or step.writes[result] in needed:
                    self.labels.where = where
                    self.labels.block(dim, why)
            needed.update(step.reads)
        self.labels.where = ""
        self._steps.clear()


_LAYERS = frozenset(
    (
        *("aten.embedding", "aten.embedding_bag", "aten._embedding_bag", "aten._embedding_bag_forward_only"),
        *("aten.lstm", "aten.gru", "aten.rnn_tanh", "aten.rnn_relu", "aten.mkldnn_rnn_layer", "aten._cudnn_rnn"),
    )
)
"""Ops besides products that read weights."""


def _holds_values(tensor: Tensor | None) -> bool:
    """Whether a tensor holds numbers to compute with."""
    return tensor is not None and (tensor.is_floating_point() or tensor.is_complex())


def _fits(dims: Dims, tensor: Tensor) -> bool:
    """Whether dims describe a tensor of this shape."""
    return len(dims) == tensor.dim() and all(size_of(d) == size for d, size in zip(dims, tensor.shape, strict=True))
