"""Tied weights that came apart: two names that were one object, and are two since one of them was replaced."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from secateur.doctor.origins import Origin, derive
from secateur.doctor.setup import Setup

__all__ = ["Tie", "declared", "lost_to", "of_unlike_layers"]


@dataclass(frozen=True, eq=False)
class Tie:
    """Two parameters that were one.

    Args:
        new: Dotted name of the one that was replaced.
        old: Dotted name of the one that is still the object that both were.
        by: What the claim rests on.
        origin: How the new one came from the old one; None where the values do not tell.
    """

    new: str
    old: str
    by: str
    origin: Origin | None


def declared(setup: Setup) -> list[Tie]:
    """Pairs that the model itself declares as tied (Hugging Face models do), and that are two objects."""
    ties = []
    for prefix, module in setup.model.named_modules():
        for new, old in _declarations(module):
            names = [f"{prefix}.{name}" if prefix else name for name in (new, old)]
            tensors = [_get(setup.model, name) for name in names]
            if all(t is not None for t in tensors) and tensors[0] is not tensors[1]:
                ties.append(_directed(setup, *names))
    return list({frozenset((tie.new, tie.old)): tie for tie in ties}.values())


def _declarations(module: nn.Module) -> Iterable[tuple[str, str]]:
    """(name, name) of what a module says is tied."""
    known = getattr(module, "all_tied_weights_keys", None)  # transformers >= 5
    if isinstance(known, Mapping):
        return list(known.items())
    if not getattr(module, "_tied_weights_keys", None):
        return []
    if not getattr(getattr(module, "config", None), "tie_word_embeddings", False):
        return []
    ends = [_weight_name(module, getter) for getter in ("get_output_embeddings", "get_input_embeddings")]
    return [(ends[0], ends[1])] if ends[0] and ends[1] else []


def _weight_name(module: nn.Module, getter: str) -> str:
    """Dotted name of the weight of the layer that a method of the model returns, empty if there is none."""
    layer = getattr(module, getter, lambda: None)()
    if getattr(layer, "weight", None) is None:
        return ""
    return next((f"{name}.weight" for name, child in module.named_modules() if child is layer), "")


def _get(model: nn.Module, name: str) -> Tensor | None:
    """The parameter of a dotted name, None if there is none."""
    try:
        return model.get_parameter(name)
    except AttributeError:
        return None


def _directed(setup: Setup, one: str, other: str) -> Tie:
    """The tie between two names, seen from the one that is new."""
    tensors: dict[str, Any] = {name: setup.model.get_parameter(name) for name in (one, other)}
    for new, old in ((one, other), (other, one)):
        origin = derive(tensors[new], tensors[old])
        if origin is not None and (id(tensors[new]) not in setup.held or id(tensors[old]) in setup.held):
            return Tie(new, old, "the model's own declaration", origin)
    return Tie(one, other, "the model's own declaration", None)


def lost_to(setup: Setup, free: Mapping[str, Tensor]) -> Iterator[Tie]:
    """Parameters that no optimizer holds, made from one that an optimizer holds: it held both while they were one."""
    held = {name: p for name, p in setup.parameters.items() if id(p) in setup.held}
    for new, tensor in free.items():
        for old, other in held.items():
            origin = derive(tensor, other)
            if origin is not None and not _is_copied_module(setup, new, old):
                yield Tie(new, old, "the optimizer and the values", origin)
                break


def _is_copied_module(setup: Setup, name: str, other: str) -> bool:
    """Whether `name` lies in a module that is a copy as a whole (a target network), of which nothing is held."""
    parts = name.split(".")
    common = next((i for i, (a, b) in enumerate(zip(parts, other.split("."), strict=False)) if a != b), 0)
    prefix = ".".join(parts[: common + 1]) + "."
    inside = [p for n, p in setup.parameters.items() if n.startswith(prefix)]
    return len(inside) > 1 and not any(id(p) in setup.held for p in inside)


def of_unlike_layers(setup: Setup) -> Iterator[Tie]:
    """An embedding and a linear layer, one weight made from the other; looked for where no optimizer tells more."""
    embeddings = list(_weights(setup.model, nn.Embedding))
    heads = list(_weights(setup.model, nn.Linear))
    for name, weight in embeddings:
        for other, head in heads:
            if weight is head:
                continue
            for new, old in (((name, weight), (other, head)), ((other, head), (name, weight))):
                origin = derive(new[1], old[1])
                if origin is not None:
                    yield Tie(new[0], old[0], "the values", origin)
                    break


def _weights(model: nn.Module, kind: type[nn.Module]) -> Iterator[tuple[str, Tensor]]:
    """Dotted name and weight of each layer of a kind that has its weight as a parameter of its own."""
    for name, module in model.named_modules():
        weight = module._parameters.get("weight") if isinstance(module, kind) else None
        if weight is not None:
            yield f"{name}.weight".lstrip("."), weight
