"""Scale of BatchNorm: a norm that was trained to a small scale lets little of its channel through."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from secateur._errors import InvalidInputError
from secateur.graph.coupling import Coupling
from secateur.shrink.unit_scores._sums import Scores, summed

__all__ = ["batch_norm_scale"]


def batch_norm_scale(model: nn.Module, coupling: Coupling) -> Scores:
    r"""Scale of BatchNorm: :math:`\sum |\gamma|` over the norms that the unit passes; units that pass none stay.

    Args:
        model: The model that was analysed, best trained with an L1 penalty on the scales.
        coupling: Its coupling.

    Returns:
        Shape (classes,); infinite for units without a BatchNorm.

    Raises:
        InvalidInputError: No BatchNorm in the model has a scale.

    References:
        Liu et al., Learning Efficient Convolutional Networks through Network Slimming (2017).
    """
    scales = {
        f"{prefix}.weight" if prefix else "weight"
        for prefix, module in model.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.affine
    } & coupling.parameters
    if not scales:
        raise InvalidInputError("no BatchNorm in the model has a scale to score by.", fix="score=shrink.l2")
    total = summed(model, coupling, lambda name, weight: weight.abs() * (name in scales))
    passed = summed(model, coupling, lambda name, weight: torch.full_like(weight, name in scales))
    return np.where(passed > 0, total, np.inf)
