"""Accelerate: prune what one's own loop trains, and go on from the accelerator's checkpoints."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from secateur._errors import InvalidInputError
from secateur._wrappers import unwrapped
from secateur.integrations.attachment import Attachment, Method, check_methods
from secateur.integrations.files import read_state, write_state
from secateur.integrations.needed import needed
from secateur.surgery.admission import copies_among, optimizers_among
from secateur.surgery.transaction import Holders

__all__ = ["Pruning"]

needed("accelerate", "accelerate")


class Pruning:
    """Prune a model while a loop of yours trains it with Accelerate; `attach` it after ``accelerator.prepare``.

    Methods are called by `attach`, as ``method(model, optimizer=…)``, with ``ema=`` and ``state=`` if they have these
    parameters: `secateur.prune_`, the classes of `secateur.dst`, `secateur.shrink_schedule`, each in a
    ``functools.partial`` with its settings, or functions of your own that return what these do. Shrinking acts at the
    end of ``optimizer.step()``; steps in which gradients are only accumulated, or that are skipped, do not count.

    ``accelerator.save_state(folder)`` writes a file ``pruning.safetensors`` beside the weights, and
    ``accelerator.load_state(folder)`` goes on from it, also when units were removed before. Without methods, this is
    all: for masks and cuts that you make yourself.

    Args:
        *methods: What prunes.

    Attributes:
        parts: What the methods have returned.

    Raises:
        InvalidInputError: Something that cannot be called.

    Example:
        >>> from functools import partial
        >>> import secateur
        >>> pruning = Pruning(partial(secateur.RigL, sparsity=0.9, every=100, end_step=7500))
        >>> # pruning.attach(accelerator, model, optimizer)
    """

    def __init__(self, *methods: Method) -> None:
        self._methods = check_methods(methods)
        self._attachment: Attachment | None = None

    @property
    def parts(self) -> list[Any]:
        """What the methods have returned, in their order; empty before `attach`."""
        return [] if self._attachment is None else self._attachment.parts

    def attach(self, accelerator: Any, model: nn.Module, optimizer: Holders, *, ema: Holders = None) -> None:
        """Begin to prune; once for each model.

        Args:
            accelerator: The ``Accelerator``.
            model: The model that it has prepared.
            optimizer: The optimizer that it has prepared, or several.
            ema: Averages of the model: masks and sizes follow.

        Raises:
            InvalidInputError: No optimizer, or this object is attached already.
            HolderError: What was passed is no optimizer, or that of another model.
            UnsupportedError: The model contains a wrapper such as ``DistributedDataParallel`` that is not the
                accelerator's, or several processes train it and a method does more than to put masks on it.
            SecateurError: Those of the methods.
        """
        if self._attachment is not None:
            raise InvalidInputError(
                "this Pruning is attached to a model already.", fix="Pruning(…) for each model, attach() once"
            )
        inner = unwrapped(accelerator.unwrap_model(model))
        optimizers = optimizers_among(optimizer)
        averages = [each for each in copies_among(ema) if isinstance(each, nn.Module)]
        attachment = Attachment(inner, self._methods)
        attachment.begin(optimizers, averages, accelerator.num_processes)
        self._attachment, self._accelerator = attachment, accelerator
        self._optimizers, self._averages = optimizers, averages
        accelerator.register_save_state_pre_hook(self._save)
        accelerator.register_load_state_pre_hook(self._load)
        _after_steps_of(optimizers[0], attachment)

    def scalars(self) -> dict[str, float]:
        """The sparsity of the masked tensors and the number of parameters, for ``accelerator.log``.

        Raises:
            InvalidInputError: `attach` has not been called.
        """
        return self._attached().scalars()

    def _attached(self) -> Attachment:
        """The methods at work."""
        if self._attachment is None:
            raise InvalidInputError(
                "this Pruning is attached to no model yet.", fix="attach(accelerator, model, optimizer)"
            )
        return self._attachment

    def _save(self, models: list[nn.Module], weights: list[Any], output_dir: str) -> None:
        """Called before the accelerator writes a checkpoint."""
        if self._accelerator.is_main_process:
            write_state(output_dir, self._attached().state_dict(), self._number_among(models))

    def _load(self, models: list[nn.Module], input_dir: str) -> None:
        """Called before the accelerator reads a checkpoint."""
        state = read_state(input_dir, self._number_among(models))
        self._attached().restore_(state, self._optimizers, self._averages)

    def _number_among(self, models: Sequence[nn.Module]) -> int:
        """Which of the accelerator's models this one is."""
        return [unwrapped(self._accelerator.unwrap_model(model)) for model in models].index(self._attached().model)


_AT_STEPS: weakref.WeakKeyDictionary[Optimizer, list[weakref.ref[Attachment]]] = weakref.WeakKeyDictionary()
_hook: list[RemovableHandle] = []


def _after_steps_of(optimizer: Optimizer, attachment: Attachment) -> None:
    """Have an attachment act at the end of an optimizer's steps, for as long as both exist."""
    _AT_STEPS.setdefault(optimizer, []).append(weakref.ref(attachment))
    while _hook:
        _hook.pop().remove()
    _hook.append(register_optimizer_step_post_hook(_act))  # behind the one by which masks are held


def _act(optimizer: Optimizer, *_: object) -> None:
    """Called after each step of any optimizer."""
    for reference in _AT_STEPS.get(optimizer, ()):
        attachment = reference()
        if attachment is not None:
            attachment.after_batch()
