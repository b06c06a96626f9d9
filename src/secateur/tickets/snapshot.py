"""A model at one moment, in memory of its own: what weights are rewound to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Any, Self

import safetensors.torch
import torch
from torch import Tensor, nn

from secateur._errors import HolderError, InvalidInputError, ShapeError, UnsupportedError
from secateur._files import opened, written_file
from secateur._wrappers import refuse_model, unwrapped
from secateur.masks.commit import Optimizers, check_held, listed
from secateur.tickets.nested import from_json, owned, to_json
from secateur.tickets.optimizers import OptimizerSnapshot

__all__ = ["Schedulers", "Snapshot", "check_snapshot", "listed_schedulers", "read", "write"]

Schedulers = Any
"""One learning-rate scheduler (anything with ``state_dict`` and ``load_state_dict``), several, or None."""

_FORMAT = "secateur.snapshot.1"
_KEY = "snapshot"
_BY_NAME = ("parameters", "buffers", "random_state")


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A model, and what trains it, at one moment; nothing in it shares memory with the model.

    ``state_dict()`` is no such thing: its tensors are the model's own and change with every step.

    Args:
        parameters: First dotted name -> value.
        buffers: The same for the buffers that a state_dict has, such as a BatchNorm's running statistics.
        optimizers: What the optimizers kept, if they were given.
        schedulers: What the schedulers' ``state_dict`` returned, if they were given.
        random_state: Device -> state of torch's random numbers, if it was asked for.
        step: The training step at which it was taken.
        scheduler_kinds: Names of the schedulers' classes.

    Example:
        >>> layer = nn.Linear(4, 2)
        >>> snapshot = Snapshot.of(layer)
        >>> with torch.no_grad():
        ...     _ = layer.weight.zero_()
        >>> bool(snapshot.parameters["weight"].any())
        True
        >>> snapshot
        Snapshot: 2 parameters, 0 buffers, 0 optimizers at step 0
    """

    parameters: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    optimizers: Sequence[OptimizerSnapshot] = ()
    schedulers: Sequence[Any] = ()
    random_state: Mapping[str, Tensor] = field(default_factory=dict)
    step: int = 0
    scheduler_kinds: Sequence[str] = ()

    @classmethod
    def of(
        cls,
        model: nn.Module,
        optimizer: Optimizers = None,
        *,
        scheduler: Schedulers = None,
        random_state: bool = False,
        step: int = 0,
    ) -> Self:
        """Copy a model as it is now; what masks have set to zero is zero in the copy too.

        Args:
            model: The model.
            optimizer: The optimizer, or several, if their state is to be kept too.
            scheduler: The learning-rate scheduler, or several.
            random_state: Whether to keep the state of torch's random numbers, on the CPU and on the model's devices;
                those of Python and numpy are the caller's.
            step: The training step that it is; only kept, for `rewind_learning_rate_` and for the reader.

        Returns:
            The snapshot.

        Raises:
            InvalidInputError: `model` is no module.
            UnsupportedError: A parameter that is lazy or on meta has no value, or a wrapper keeps the parameters in
                another form.
            HolderError: The optimizer was made for another model.
        """
        refuse_model(model)
        model, optimizers = unwrapped(model), listed(optimizer)
        check_held(model, {}, optimizers)
        for name, parameter in model.named_parameters():
            if nn.parameter.is_lazy(parameter):
                raise UnsupportedError(f"{name!r} has no value yet: it is lazy.", fix="run one forward pass first")
            if parameter.is_meta:
                raise UnsupportedError(
                    f"{name!r} has no value: it is on meta.", fix="model.to_empty(device=…), then initialise it"
                )
        named, schedulers = model.state_dict().keys(), listed_schedulers(scheduler)
        return cls(
            {name: owned(parameter) for name, parameter in model.named_parameters()},
            {name: owned(buffer) for name, buffer in model.named_buffers() if name in named},
            [OptimizerSnapshot.of(model, each) for each in optimizers],
            [owned(each.state_dict()) for each in schedulers],
            _random_state(model) if random_state else {},
            step,
            [type(each).__name__ for each in schedulers],
        )

    def check_fits(self, model: nn.Module, *, buffers: bool) -> None:
        """Refuse a model of another architecture.

        Args:
            model: The model that is to be rewound.
            buffers: Whether its buffers are to be rewound too.

        Raises:
            ShapeError: The model has another tensor than the snapshot, one of another shape, or a real one where that
                is complex.
        """
        named = model.state_dict().keys()
        own: dict[str, Tensor] = dict(model.named_parameters())
        own |= {n: b for n, b in model.named_buffers() if buffers and n in named}
        kept = {**self.parameters, **(self.buffers if buffers else {})}
        for name in (*own, *kept):
            mine, its = _form(own.get(name)), _form(kept.get(name))
            if mine != its:
                raise ShapeError(
                    f"the snapshot was taken of another architecture: {name!r} does not fit.",
                    model=mine,
                    snapshot=its,
                    fix="take the snapshot of this model; for one that has been resized since, after the resize",
                )

    def check_schedulers(self, schedulers: Sequence[Any]) -> None:
        """Refuse schedulers of other classes, most of which would take a state of any kind without a word.

        Raises:
            HolderError: One of them is of another class than the one that was kept.
        """
        for scheduler, kind in zip(schedulers, self.scheduler_kinds, strict=False):
            if type(scheduler).__name__ != kind:
                raise HolderError(
                    "the snapshot holds another scheduler's state.",
                    snapshot=kind,
                    scheduler=type(scheduler).__name__,
                    fix="pass schedulers of the same classes, in the order in which the snapshot was taken",
                )

    def save(self, path: str | PathLike[str]) -> None:
        """Write the snapshot to one safetensors file; nothing is pickled.

        Raises:
            UnsupportedError: An optimizer or a scheduler keeps something else than numbers, words and tensors.
        """
        write(path, _KEY, _FORMAT, *self.content())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read what `save` has written; its tensors are on the CPU.

        Raises:
            InvalidInputError: The file is no snapshot.
        """
        tensors, header = read(path, _KEY, _FORMAT, "secateur.tickets.Snapshot.save")
        return cls.from_content(tensors, header, path)

    def content(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors of a file and what its JSON header says about them."""
        tensors: dict[str, Tensor] = {}
        header = {
            "parameters": to_json(dict(self.parameters), "parameters", tensors),
            "buffers": to_json(dict(self.buffers), "buffers", tensors),
            "optimizers": to_json(
                [{"kind": o.kind, "state": o.state, "groups": list(o.groups)} for o in self.optimizers],
                "optimizers",
                tensors,
            ),
            "schedulers": to_json(list(self.schedulers), "schedulers", tensors),
            "random_state": to_json(dict(self.random_state), "random_state", tensors),
            "step": self.step,
            "scheduler_kinds": list(self.scheduler_kinds),
        }
        return tensors, header

    @classmethod
    def from_content(cls, tensors: Mapping[str, Tensor], header: Mapping[str, Any], path: str | PathLike[str]) -> Self:
        """Undo `content`; the file from which both come is named in the error if something is missing."""
        try:
            found = {key: from_json(header[key], tensors) for key in ("schedulers", *_BY_NAME)}
            found |= {key: dict(found[key]) for key in _BY_NAME}
            optimizers = [OptimizerSnapshot(**each) for each in from_json(header["optimizers"], tensors)]
            step, kinds = int(header["step"]), list(header["scheduler_kinds"])
            return cls(**found, optimizers=optimizers, step=step, scheduler_kinds=kinds)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidInputError(
                f"{path} is damaged: its header and its tensors do not belong together.",
                found=f"{type(error).__name__}: {error}"[:80],
            ) from error

    def __repr__(self) -> str:
        """How much it holds, and of which step."""
        counts = {"parameters": self.parameters, "buffers": self.buffers, "optimizers": self.optimizers}
        return f"Snapshot: {', '.join(f'{len(each)} {key}' for key, each in counts.items())} at step {self.step}"


def _form(tensor: Tensor | None) -> str:
    """The shape of a tensor, and whether it is complex: what must agree for one to be copied into the other."""
    return "no such tensor" if tensor is None else f"{tuple(tensor.shape)}{' complex' if tensor.is_complex() else ''}"


def check_snapshot(found: object) -> None:
    """Refuse what is no snapshot: nothing, or a state_dict."""
    if isinstance(found, Snapshot):
        return
    why = {"why": "a state_dict shares its memory with the model"} if isinstance(found, Mapping) else {}
    raise InvalidInputError(
        "there is no snapshot to rewind to.",
        **why,
        found=type(found).__name__,
        fix="snapshot = secateur.tickets.Snapshot.of(model), before the training that is to be undone",
    )


def listed_schedulers(schedulers: Schedulers) -> list[Any]:
    """One, several or no schedulers, as a list.

    Raises:
        InvalidInputError: Something without a state_dict.
    """
    found = list(schedulers) if isinstance(schedulers, Iterable) else [] if schedulers is None else [schedulers]
    for each in found:
        if not (hasattr(each, "state_dict") and hasattr(each, "load_state_dict")):
            raise InvalidInputError(f"{type(each).__name__} is not a scheduler: it has no state_dict to keep.")
    return found


def write(path: str | PathLike[str], key: str, kind: str, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    """Write a safetensors file with a JSON text under one key of its header; it is there in whole or not at all."""
    with written_file(path) as beside:
        safetensors.torch.save_file(tensors, beside, {key: json.dumps({"format": kind, **header})})


def read(path: str | PathLike[str], key: str, kind: str, writer: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write` has written; `writer` is named in the error."""
    with opened(fspath(path), key, kind, fix=f"{writer} writes such files") as (file, header):
        return {name: file.get_tensor(name) for name in file.keys()}, header  # noqa: SIM118 - not a dict


def _random_state(model: nn.Module) -> dict[str, Tensor]:
    """The state of torch's random numbers on the CPU and on the GPUs that the model is on."""
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    return {"cpu": torch.get_rng_state()} | {str(device): torch.cuda.get_rng_state(device) for device in devices}
