"""A model that is left in evaluation mode, or frozen."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from secateur.doctor.findings import Finding
from secateur.doctor.registry import check
from secateur.doctor.setup import Setup
from secateur.doctor.wording import listed


@check("eval-mode")
def eval_mode(setup: Setup) -> Iterator[Finding]:
    """The whole model is in evaluation mode while gradients are computed, and it has layers for which that matters."""
    training = setup.loss is not None and setup.loss.requires_grad
    training = training or any(p.grad is not None for p in setup.trainable.values())
    if setup.model.training or not training:
        return
    layers = [(name, m) for name, m in setup.model.named_modules() if _differs(m) and not m.training]
    names = tuple(name for name, module in layers if _is_trained(setup.model, name, module))
    if names:
        yield Finding(
            "eval-mode",
            names,
            f"the model is in evaluation mode while gradients are computed; it matters for {listed(names)}.",
            "model.eval() for a validation, and no model.train() after it.",
            "Dropout is off, and batch norms use their running statistics and do not update them.",
            "model.train()   # at the start of each training epoch",
            severity="warning",
        )


def _differs(module: nn.Module) -> bool:
    """Whether a layer does something else in training than in evaluation."""
    if isinstance(module, _DropoutNd):
        return module.p > 0
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
        return module.dropout > 0
    return isinstance(module, _NormBase) and module.track_running_stats


def _is_trained(model: nn.Module, name: str, module: nn.Module) -> bool:
    """Whether a layer, or the part around one without parameters, is trained: a frozen part may well be evaluated."""
    if next(module.parameters(), None) is None:
        module = model.get_submodule(name.rpartition(".")[0])
    return any(p.requires_grad for p in module.parameters())


@check("frozen-model", structural=True)
def frozen_model(setup: Setup) -> Iterator[Finding]:
    """An optimizer holds parameters of the model, and every parameter of the model is frozen."""
    frozen = [name for name, p in setup.parameters.items() if id(p) in setup.held]
    if frozen and not setup.trainable:
        yield Finding(
            "frozen-model",
            tuple(frozen),
            f"no parameter of the model requires a gradient; the optimizer holds {len(frozen)} of them.",
            "model.requires_grad_(False), or `p.requires_grad = False` in a loop, as for a feature extractor.",
            "Nothing is trained, and loss.backward() raises if the inputs need no gradient either.",
            "model.requires_grad_(True)   # or only of the layers that are to learn",
            data={"frozen": len(frozen)},
        )
