"""Lightning: a callback that prunes what the trainer trains, logs it, and goes on from the trainer's checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from secateur.integrations.attachment import Attachment, Method, check_methods
from secateur.integrations.needed import needed
from secateur.integrations.sizes import check_sizes, resize_to_
from secateur.masks import Masks

__all__ = ["Pruning"]


class Pruning(needed("lightning.pytorch", "lightning").Callback):  # type: ignore[misc]  # known when it is installed
    """Prune a `LightningModule` while it is trained; give it to ``Trainer(callbacks=[…])``.

    Methods are called when the fit begins, as ``method(pl_module, optimizer=…)``, with ``ema=`` and ``state=`` if they
    have these parameters: `secateur.prune_`, the classes of `secateur.dst`, `secateur.shrink_schedule`, each in a
    ``functools.partial`` with its settings, or functions of your own that return what these do. Shrinking acts after
    batches in which the optimizer has stepped. Averages (``EMAWeightAveraging``) follow. ``sparsity`` and
    ``num_parameters`` are logged.

    ``trainer.fit(model, ckpt_path=…)`` goes on from a checkpoint as if nothing had happened, also when units were
    removed before it. Without methods, the callback does only this: for masks and cuts that your own hooks make.

    Args:
        *methods: What prunes.

    Attributes:
        parts: What the methods have returned.

    Raises:
        InvalidInputError: Something that cannot be called; when the fit begins, a module without optimizer; or a
            checkpoint that was made with other methods, before anything is changed.
        ShapeError: The checkpoint's model does not fit. Nothing has been changed then.
        UnsupportedError: The module contains a wrapper such as ``DistributedDataParallel``, or several processes train
            it and a method does more than to put masks on it.

    Example:
        >>> from functools import partial
        >>> import secateur
        >>> pruning = Pruning(partial(secateur.RigL, sparsity=0.9, every=100, end_step=7500))
        >>> # Trainer(callbacks=[pruning]).fit(module, loader)
    """

    def __init__(self, *methods: Method) -> None:
        self._methods = check_methods(methods)
        self._attachment: Attachment | None = None
        self._forget: Callable[[], None] | None = None

    @property
    def parts(self) -> list[Any]:
        """What the methods have returned, in their order; empty before the first fit."""
        return [] if self._attachment is None else self._attachment.parts

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Be called before a checkpoint's weights are loaded into the module."""
        own, hook = "on_load_checkpoint" in vars(pl_module), pl_module.on_load_checkpoint

        def forget() -> None:
            self._forget = None
            if own:
                pl_module.on_load_checkpoint = hook
            else:
                del pl_module.on_load_checkpoint

        def before_load(checkpoint: dict[str, Any]) -> None:
            forget()
            self._before_load(trainer, pl_module, checkpoint, trains=stage == "fit")
            hook(checkpoint)

        pl_module.on_load_checkpoint, self._forget = before_load, forget

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Put the methods to work; the optimizers exist by now."""
        self._forget_load()
        attachment = self._attached_to(pl_module)
        attachment.begin(trainer.optimizers, _averages(trainer), trainer.world_size)
        self._attachment = attachment

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Make the cuts that are due; log now and then, as the trainer does."""
        attachment = self._attached_to(pl_module)
        attachment.after_batch()
        if trainer.log_every_n_steps and trainer.global_step % trainer.log_every_n_steps == 0:
            pl_module.log_dict(attachment.scalars(), on_step=True, on_epoch=False)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log what the epoch has come to."""
        if not trainer.barebones:
            pl_module.log_dict(self._attached_to(pl_module).scalars(), on_step=False, on_epoch=True)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Let go of the trainer and its optimizers."""
        self._forget_load()
        if self._attachment is not None:
            self._attachment.end()

    def state_dict(self) -> dict[str, Any]:
        """What goes into the trainer's checkpoint: masks, sizes and the states of the methods, one bit a weight."""
        return {} if self._attachment is None else self._attachment.state_dict()

    def _attached_to(self, pl_module: nn.Module) -> Attachment:
        """The methods at work on a module, those of the last fit if it is the same one."""
        if self._attachment is None or self._attachment.model is not pl_module:
            return Attachment(pl_module, self._methods)
        return self._attachment

    def _before_load(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any], *, trains: bool) -> None:
        """Make the module what it was when the checkpoint was saved, as far as its weights need it."""
        state = checkpoint.get("callbacks", {}).get(self.state_key)
        if not state:
            return
        attachment = self._attached_to(pl_module)
        if trains or attachment is self._attachment:
            attachment.restore_(state, trainer.optimizers, _averages(trainer))
            self._attachment = attachment
        else:
            check_sizes(pl_module, state["sizes"])
            resize_to_(pl_module, state["sizes"])
            Masks(pl_module).load_state_dict(state["masks"])

    def _forget_load(self) -> None:
        """Be called before a load no more."""
        if self._forget is not None:
            self._forget()


def _averages(trainer: Any) -> list[nn.Module]:
    """The averages that other callbacks keep of the module."""
    kept = (getattr(callback, "_average_model", None) for callback in trainer.callbacks)
    return [average for average in kept if isinstance(average, nn.Module)]
