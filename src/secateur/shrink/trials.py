"""Trials of a model in double precision: other inputs, other parameters, both modes; nothing that is left to chance.

What holds for a model's outputs by structure, and not by the values that it happens to have, holds in every trial: each
has the model's zeros and other numbers everywhere else.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from secateur._errors import InvalidInputError, SecateurError, UnsupportedError
from secateur._passes import in_double
from secateur._progress import track
from secateur.graph.capture import tensors_in
from secateur.graph.trace import Inputs, call_with, undisturbed
from secateur.shrink.folding import Reader, Seen, observed

__all__ = ["Mode", "Trial", "agree", "larger_images", "trials"]

Mode = Literal["eval", "train"]

_VARIANTS = 3
_LARGER = -1  # the variant with larger images
_PERTURBED = 2


class Trial:
    """One set of parameters: a copy of the model, what it computes, and what came in at its readers.

    Args:
        model: The copy.
        inputs: Example inputs.
        modes: Modes to run it in.
        readers: Layers to watch.
        variants: Number of runs in each mode: on the example inputs, then on variants of them. Where the model takes
            larger images than those of the example there is one more, with such: in a map of a single position a
            constant has no border.

    Raises:
        InvalidInputError: Modes that are none; or all entries of the example inputs are alike.
        UnsupportedError: The model does not run in double precision, or not in one of the modes.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Inputs,
        modes: Sequence[Mode],
        readers: Sequence[Reader] = (),
        variants: int = _VARIANTS,
    ) -> None:
        self.model = model
        self.inputs = inputs
        if not modes or not set(modes) <= set(get_args(Mode)):
            raise InvalidInputError("modes are 'eval', 'train' or both.", modes=modes, fix="modes=('eval', 'train')")
        self.variants = [*range(variants), *([_LARGER] if _takes_larger(model, inputs) else [])]
        self.seen: dict[Mode, dict[str, Seen]] = {}
        self.outputs: list[list[Tensor]] = []
        for mode in modes:
            steady = Steady()
            with observed(model, readers) as self.seen[mode]:
                self.outputs += self._runs(model, mode, steady)
            if steady.met:
                with observed(model, readers) as self.seen[mode]:
                    list(self._runs(model, mode, Steady(active=False)))

    @property
    def is_finite(self) -> bool:
        """Whether the outputs are numbers."""
        return all(bool(tensor.isfinite().all()) for several in self.outputs for tensor in several)

    def agrees(self, other: nn.Module) -> bool:
        """Whether another model computes the same in the same runs, to rounding; nothing runs after a difference."""

        def runs() -> Generator[list[Tensor], None, None]:
            for mode in self.seen:
                yield from self._runs(other, mode, Steady())

        with closing(runs()) as found:
            return all(agree(one, another) for one, another in zip(self.outputs, found, strict=True))

    def _runs(self, model: nn.Module, mode: Mode, steady: Steady) -> Iterator[list[Tensor]]:
        """Run a model on the example inputs and on variants of them."""
        flags = [(module, module.training) for module in model.modules()]
        if mode == "eval" or not model.training:
            model.train(mode == "train")
        try:
            for number in self.variants:
                with steady:
                    outputs = _run(model, self.inputs, number)
                yield outputs
        except SecateurError:
            raise
        except (RuntimeError, ValueError) as error:
            raise UnsupportedError(
                f"that nothing changes is told by running a copy in double precision, and that failed: {error}",
                mode=mode,
                fix="example inputs with several samples; modes=('eval',) if it cannot run in training",
            ) from error
        finally:
            for module, flag in flags:
                module.training = flag


def trials(model: nn.Module, inputs: Inputs, modes: Sequence[Mode], readers: Sequence[Reader]) -> list[Trial]:
    """A trial with the model's own parameters, then some with others.

    Args:
        model: The model; unchanged.
        inputs: Example inputs.
        modes: Modes to run it in.
        readers: Layers to watch.

    Raises:
        InvalidInputError: All entries of the example inputs are alike, so nothing could be learnt.
        UnsupportedError: The model does not run in double precision, or not in one of the modes.
    """
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(0)
        found = [Trial(_double(model), inputs, modes, readers)]
        for _ in track(range(_PERTURBED), "trying other parameters"):
            trial = Trial(_perturbed(model, signs=True), inputs, modes, readers)
            found.append(trial if trial.is_finite else Trial(_perturbed(model, signs=False), inputs, modes, readers))
    return found


def agree(one: list[Tensor], other: list[Tensor]) -> bool:
    """Whether the results of a run are equal but for rounding in double precision."""
    scale = max([float(tensor.abs().max()) for tensor in one if tensor.numel()], default=1.0)
    return all(
        a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=1e-11 * scale, equal_nan=True)
        for a, b in zip(one, other, strict=True)
    )


def _double(model: nn.Module) -> nn.Module:
    """A copy in double precision."""
    return copy.deepcopy(model).double()


def _perturbed(model: nn.Module, *, signs: bool) -> nn.Module:
    """A copy in double precision whose parameters are others, except that zeros stay zeros."""
    found = _double(model)
    with torch.no_grad():
        for parameter in found.parameters():
            factor = torch.rand(parameter.shape, dtype=torch.float64) + 0.5
            if signs:
                factor *= torch.randint(0, 2, parameter.shape) * 2 - 1
            parameter.mul_(factor.to(parameter))
    return found


def _takes_larger(model: nn.Module, inputs: Inputs) -> bool:
    """Whether the model is called with images, and runs with larger ones as well."""
    flags = [(module, module.training) for module in model.modules()]
    try:
        _run(model.eval(), inputs, _LARGER)
    except Exception:  # whatever a model raises at sizes that it is not made for
        return False
    finally:
        for module, flag in flags:
            module.training = flag
    return True


def larger_images(images: Tensor, generator: torch.Generator) -> Tensor:
    """Images of an odd height and another odd width, both larger."""
    height, width = images.shape[2:]
    shape = (*images.shape[:2], 2 * height + 1, 2 * width + 3)
    noise = torch.randn(shape, generator=generator, dtype=torch.float64).to(images.device)
    return noise * images.std(unbiased=False) + images.mean()


def _run(model: nn.Module, inputs: Inputs, variant: int) -> list[Tensor]:
    """The floating-point tensors of one result."""
    with undisturbed(model), in_double(), _other_inputs(model, variant):
        torch.manual_seed(abs(variant))
        result = call_with(model, inputs)
    return [tensor for tensor in tensors_in(result) if tensor.is_floating_point()]


@contextmanager
def _other_inputs(model: nn.Module, variant: int) -> Iterator[None]:
    """What the model is called with is put into double precision, and into another order with noise, unless 0."""
    generator = torch.Generator().manual_seed(abs(variant))
    changed = []

    def other(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.is_complex() or value.dtype == torch.bool:
            return value
        made = value.double() if value.is_floating_point() else value
        if variant == _LARGER:
            made = larger_images(made, generator) if made.dim() == 4 and made.is_floating_point() else made
        elif variant:
            order = torch.randperm(made.numel(), generator=generator).to(made.device)
            made = made.flatten()[order].reshape(made.shape)
            if made.is_floating_point() and bool(made.isfinite().all()):
                noise = torch.randn(made.shape, generator=generator, dtype=torch.float64).to(made.device)
                made = made + noise * (made.std(unbiased=False) + (made.std(unbiased=False) == 0))
        is_same = made.shape == value.shape and (made.dtype == value.dtype and torch.equal(made, value))
        changed.append(made.shape != value.shape if variant == _LARGER else not is_same)
        return made

    handle = model.register_forward_pre_hook(lambda _, args, kwargs: tree_map(other, (args, kwargs)), with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
    if variant and not any(changed):
        raise InvalidInputError(
            "the entries of the example inputs are all alike, so it cannot be told what depends on them.",
            fix="give example inputs with different entries, or call the model itself: lambda m: m(…)",
        )


class Steady(TorchDispatchMode):
    """Replaces what dropout draws by its mean, so that a dropout changes nothing.

    Args:
        active: Whether it does so at all.

    Attributes:
        met: Whether there was any.
    """

    def __init__(self, *, active: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.active = active
        self.met = False

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the op, or its mean."""
        name = str(func)
        if self.active and name in ("aten.bernoulli_.float", "aten.bernoulli.p"):
            self.met = True
            mean = args[1] if len(args) > 1 else 0.5
            return args[0].fill_(mean) if name.endswith("_.float") else torch.full_like(args[0], mean)
        if self.active and name == "aten.native_dropout.default":
            self.met = True
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        return func(*args, **(kwargs or {}))
