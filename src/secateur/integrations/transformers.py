"""transformers: a callback that prunes what the trainer trains, logs it, and goes on from the trainer's checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from secateur._errors import InvalidInputError
from secateur.integrations.attachment import Attachment, Method, check_methods
from secateur.integrations.files import has_state, read_state, write_state
from secateur.integrations.needed import needed

__all__ = ["Pruning"]

_RESUME = "TrainingArguments(resume_from_checkpoint=folder), then trainer.train(resume_from_checkpoint=folder)"


class Pruning(needed("transformers", "transformers").TrainerCallback):  # type: ignore[misc]  # known when installed
    """Prune a model while a transformers `Trainer` trains it; give it to ``Trainer(callbacks=[…])``.

    Methods are called when training begins, as ``method(model, optimizer=…)``, with ``ema=`` and ``state=`` if they
    have these parameters: `secateur.prune_`, the classes of `secateur.dst`, `secateur.shrink_schedule`, each in a
    ``functools.partial`` with its settings, or functions of your own that return what these do. Shrinking acts after
    steps of the optimizer, before gradients are cleared. ``sparsity`` and ``num_parameters`` are added to the logs.

    To resume, say from where before the weights are loaded: ``TrainingArguments(resume_from_checkpoint=folder)``, and
    as always ``trainer.train(resume_from_checkpoint=folder)``. Each checkpoint gets a file ``pruning.safetensors``.
    Without methods, the callback does only this: for masks and cuts that you make yourself.

    Models of before a cut are too large to be loaded into the one after it, so a cut makes the trainer forget which
    checkpoint was the best so far (``load_best_model_at_end``).

    Args:
        *methods: What prunes.

    Attributes:
        parts: What the methods have returned.

    Raises:
        InvalidInputError: Something that cannot be called; a checkpoint that was made with other methods, or one that
            the trainer has loaded and the arguments do not name.
        ShapeError: The checkpoint's model does not fit. Nothing has been changed then.
        UnsupportedError: The model contains a wrapper such as ``DistributedDataParallel``, or several processes or
            devices train it and a method does more than to put masks on it.

    Example:
        >>> from functools import partial
        >>> import secateur
        >>> pruning = Pruning(partial(secateur.RigL, sparsity=0.9, every=100, end_step=7500))
        >>> # Trainer(model, arguments, callbacks=[pruning], …).train()
    """

    def __init__(self, *methods: Method) -> None:
        self._methods = check_methods(methods)
        self._attachment: Attachment | None = None
        self._restored_at: int | None = None

    @property
    def parts(self) -> list[Any]:
        """What the methods have returned, in their order; empty before the first training."""
        return [] if self._attachment is None else self._attachment.parts

    def on_init_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: object) -> None:
        """Make the model what it was when the checkpoint that the arguments name was saved."""
        folder = _checkpoint_of(args)
        if folder is None or not has_state(folder):
            return
        saved = read_state(folder)
        attachment = self._attached_to(model)
        attachment.restore_(saved["pruning"])
        self._attachment, self._restored_at = attachment, int(saved["step"])

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **_: object
    ) -> None:
        """Put the methods to work; the optimizer exists by now."""
        self._check_resumed(args, state.global_step, model)
        attachment = self._attached_to(model)
        attachment.begin([] if optimizer is None else [optimizer], num_processes=max(args.world_size, args.n_gpu))
        self._attachment, self._restored_at = attachment, None

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: object) -> None:
        """Make the cuts that are due."""
        if self._attachment is not None and self._attachment.after_batch():
            state.best_metric = state.best_model_checkpoint = state.best_global_step = None

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: object) -> None:
        """Add what is logged; callbacks that come before this one in the trainer's list do not see it."""
        if self._attachment is not None and logs is not None:
            for written in (logs, *state.log_history[-1:]):
                written.update(self._attachment.scalars())

    def on_save(self, args: Any, state: Any, control: Any, **_: object) -> None:
        """Write masks, sizes and the states of the methods beside the weights."""
        if self._attachment is not None and args.should_save:
            saved = {"step": state.global_step, "pruning": self._attachment.state_dict()}
            write_state(Path(args.output_dir) / f"checkpoint-{state.global_step}", saved)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: object) -> None:
        """Let go of the optimizer; where the best weights have been loaded, take the masks that they had."""
        if self._attachment is None:
            return
        self._attachment.end()
        best = state.best_model_checkpoint if args.load_best_model_at_end else None
        if best is not None and has_state(best):
            self._attachment.restore_(read_state(best)["pruning"])

    def _attached_to(self, model: nn.Module) -> Attachment:
        """The methods at work on a model, those of the last training if it is the same one."""
        if self._attachment is None or self._attachment.model is not model:
            return Attachment(model, self._methods)
        return self._attachment

    def _check_resumed(self, args: Any, step: int, model: nn.Module) -> None:
        """Refuse to go on with weights of one time and masks of another.

        Raises:
            InvalidInputError: The trainer has loaded another checkpoint than the arguments name, or another model.
        """
        folder = _checkpoint_of(args)
        if self._restored_at is None and (step == 0 or (folder is not None and not has_state(folder))):
            return
        if self._restored_at != step:
            raise InvalidInputError(
                "the trainer goes on from another checkpoint than the one that its arguments named when it was made.",
                trainer=f"step {step}",
                arguments="none" if self._restored_at is None else f"step {self._restored_at}",
                fix=_RESUME,
            )
        if self._attachment is None or self._attachment.model is not model:
            raise InvalidInputError(
                "the trainer has made its model anew since the checkpoint's sizes were restored.",
                fix="Trainer(model=…) instead of Trainer(model_init=…)",
            )


def _checkpoint_of(args: Any) -> str | None:
    """The folder of the checkpoint that the arguments name; the last one of the output folder if they say True."""
    named = args.resume_from_checkpoint
    if named is True:
        last: str | None = needed("transformers.trainer_utils", "transformers").get_last_checkpoint(args.output_dir)
        return last
    return named or None
