"""What a plan was made for: the tensors that it changes, what else they are called, and what lies beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor, nn

from secateur import _compat
from secateur._errors import InvalidInputError, ShapeError, UnsupportedError
from secateur._names import computed_by
from secateur._wrappers import refuse_model
from secateur.graph.trace import named_tensors

__all__ = ["Fit", "shape_of"]

_NORMS = frozenset(("WeightNorm", "SpectralNorm"))
_FIX = "plans apply once, to the model that they were made for or to an equal one"


@dataclass(frozen=True)
class Fit:
    """What a plan was made for, and whether something else is the same.

    Args:
        shapes: Shape before of every tensor that changes, by its first dotted name.
        tied: Other names of tensors that change, where they have several.
        beside: Names of tensors that stay as they are, in modules that own one which changes.
        unsaved: Names of buffers that change and that no state_dict holds.
        normed: Names of tensors that change and that weight norm or spectral norm computes a weight from.
    """

    shapes: dict[str, tuple[int, ...]]
    tied: dict[str, tuple[str, ...]]
    beside: frozenset[str]
    unsaved: frozenset[str]
    normed: frozenset[str]

    @classmethod
    def of(cls, model: nn.Module, changed: Iterable[str]) -> Self:
        """What a plan is for that changes some tensors of a model, given by their first names."""
        tensors = named_tensors(model)
        shapes = {name: tuple(tensors[name].shape) for name in changed}
        first = {id(tensors[name]): name for name in shapes}
        every = _every_name(model)
        tied: dict[str, tuple[str, ...]] = {}
        for name, tensor in every.items():
            if first.get(id(tensor), name) != name:
                tied[first[id(tensor)]] = (*tied.get(first[id(tensor)], ()), name)
        places = {_place(name) for name, tensor in every.items() if id(tensor) in first}
        beside = (name for name, tensor in every.items() if id(tensor) not in first and _place(name) in places)
        normed = (name for name in shapes if not _NORMS.isdisjoint(computed_by(model, name).split(", ")))
        unsaved = _unsaved(model) & shapes.keys()
        return cls(shapes, tied, frozenset(beside), frozenset(unsaved), frozenset(normed))

    def refuse_model(self, model: nn.Module) -> None:
        """Refuse a model of another architecture.

        Raises:
            InvalidInputError: It is no module.
            ShapeError: A tensor that changes is missing or has another shape, is tied to others no longer, or has got
                a neighbour that the plan does not know, such as a bias.
            UnsupportedError: It is inside a wrapper that keeps parameters in forms of its own.
        """
        refuse_model(model)
        tensors = _every_name(model)
        for first, shape in self.shapes.items():
            for name in self._names(first):
                _refuse_other(name, tensors.get(name), shape)
                if tensors[name] is not tensors[first]:
                    raise ShapeError(f"the plan does not fit: {first!r} and {name!r} are two tensors now.", fix=_FIX)
        self._refuse_strangers(tensors)

    def converted(self, state: Mapping[str, Tensor], convert: Callable[[str, Tensor], Tensor]) -> dict[str, Tensor]:
        """A copy of a state_dict in which all tensors that change are converted, one with several names once.

        Args:
            state: Tensors by name.
            convert: (first name, tensor) -> the new one.

        Raises:
            InvalidInputError: It is no state_dict.
            ShapeError: A tensor that changes is missing or has another shape, or has got a neighbour.
            UnsupportedError: Some weight is under weight norm or spectral norm, whose other tensors get new values.
        """
        if not isinstance(state, Mapping):
            raise InvalidInputError(
                f"a state_dict is needed, not {type(state).__name__}.",
                fix="model.state_dict(); apply_(model) for a model",
            )
        if self.normed:
            raise UnsupportedError(
                f"{min(self.normed)!r} is a part of a weight under weight norm or spectral norm, whose parts get other "
                "values than a slice, which a bare state_dict cannot be given.",
                fix="plan.apply_(model).state_dict()",
            )
        there = {first: self._present(first, state) for first in self.shapes}
        self._refuse_strangers(state)
        result = dict(state)
        for first, names in there.items():
            done: dict[object, Tensor] = {}
            for name in names:
                memory = _memory(state[name])
                if memory not in done:
                    done[memory] = convert(first, state[name])
                result[name] = done[memory]
        return result

    def to_json(self) -> dict[str, Any]:
        """Plain lists and dicts, which JSON can hold."""
        return {name: sorted(value) if isinstance(value, frozenset) else value for name, value in vars(self).items()}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """What `to_json` was called on."""
        shapes = {name: tuple(shape) for name, shape in found["shapes"].items()}
        tied = {name: tuple(others) for name, others in found["tied"].items()}
        names = (frozenset(found[field]) for field in ("beside", "unsaved", "normed"))
        return cls(shapes, tied, *names)

    def _names(self, first: str) -> tuple[str, ...]:
        """All names of a tensor that changes."""
        return (first, *self.tied.get(first, ()))

    def _present(self, first: str, state: Mapping[str, Tensor]) -> list[str]:
        """Those names of a tensor that a state_dict has; one is enough, as files leave the others out."""
        present = [name for name in self._names(first) if name in state]
        if not present and first not in self.unsaved:
            present = [first]
        for name in present:
            _refuse_other(name, state.get(name), self.shapes[first])
        return present

    def _refuse_strangers(self, tensors: Mapping[str, Tensor]) -> None:
        """Refuse tensors that modules have got since, and that would stay as they are."""
        changed = {name for first in self.shapes for name in self._names(first)}
        places = {_place(name) for name in changed}
        for name, tensor in tensors.items():
            if name not in changed and name not in self.beside and _place(name) in places and _has_dims(tensor):
                raise ShapeError(
                    f"the plan does not fit: {name!r} was not there when the plan was made.",
                    found=shape_of(tensor),
                    fix=_FIX,
                )


def _every_name(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by all of their dotted names."""
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }


def _unsaved(model: nn.Module) -> set[str]:
    """Names of all buffers that no state_dict holds."""
    return {
        f"{path}.{leaf}".lstrip(".")
        for path, module in model.named_modules(remove_duplicate=False)
        for leaf in module._non_persistent_buffers_set
    }


def _refuse_other(name: str, tensor: object, shape: tuple[int, ...]) -> None:
    """Refuse a tensor that is not there or has another shape."""
    found = shape_of(tensor)
    if found != shape:
        raise ShapeError(
            f"the plan does not fit: {name!r} is not as it was when the plan was made.",
            planned=shape,
            found=found,
            fix=_FIX,
        )


def _memory(tensor: Tensor) -> object:
    """What two tensors have in common that are one in memory."""
    if _compat.is_fake(tensor):
        return id(tensor)
    return tensor.data_ptr() or id(tensor), tensor.shape, tensor.stride()


def _place(name: str) -> str:
    """The path of the module that owns a tensor."""
    return name.rpartition(".")[0]


def _has_dims(value: object) -> bool:
    """Whether something is a tensor that has dims, or will have some."""
    return isinstance(value, Tensor) and (nn.parameter.is_lazy(value) or value.dim() > 0)


def shape_of(value: object) -> tuple[int, ...] | str:
    """The shape of a tensor, or in words why there is none."""
    if value is None:
        return "no such tensor"
    if not isinstance(value, Tensor):
        return f"no tensor but {type(value).__name__}"
    return "it is lazy and has no shape yet" if nn.parameter.is_lazy(value) else tuple(value.shape)
