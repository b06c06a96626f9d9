"""The verb that looks at a training setup."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from secateur.doctor import checks as checks  # fills the table
from secateur.doctor.findings import Findings
from secateur.doctor.registry import CHECKS
from secateur.doctor.setup import MasksByName, Setup

__all__ = ["diagnose", "examine"]


def diagnose(
    model: nn.Module,
    optimizer: object = None,
    loss: Tensor | None = None,
    *,
    masks: MasksByName | None = None,
    ema: object = None,
    scheduler: object = None,
) -> Findings:
    """Find out why a model does not train as meant; a healthy setup has no findings.

    It looks and changes nothing. The best moment is between ``loss.backward()`` and ``optimizer.step()``, when there
    are gradients to look at; any other will do.

    Args:
        model: The model; ``torch.compile``, DDP and DataParallel are looked through.
        optimizer: The optimizer, or a list of all that train it.
        loss: The loss of the last forward pass, before or after its backward; tells which parameters it reaches.
        masks: Bool masks by dotted name, True = kept, where they are held by hand; those of `prune_` are known.
        ema: An ``AveragedModel``, a copy of the model, a dict of tensors by dotted name, or a list of them.
        scheduler: The learning-rate scheduler, or a list of them.

    Returns:
        The findings, errors first: printable, a sequence, false if empty.

    Raises:
        InvalidInputError: An argument is not what it should be.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> diagnose(model, optimizer)
        Findings()
        >>> model[0].weight = nn.Parameter(0.5 * model[0].weight.round(decimals=1) + model[0].weight * 0.5)
        >>> found = diagnose(model, optimizer)
        >>> found, found[0].repairable
        (Findings(stale-optimizer-reference: 0.weight), True)
    """
    return examine(Setup(model, optimizer, loss, masks=masks, ema=ema, scheduler=scheduler))


def examine(setup: Setup, *, only_structural: bool = False) -> Findings:
    """Run all checks on a setup, or only those that look at identities, shapes and graphs."""
    rows = [row for row in CHECKS.values() if row.structural or not only_structural]
    with torch.inference_mode(False), torch.no_grad():
        return Findings([finding for row in rows for finding in row.look(setup)])
