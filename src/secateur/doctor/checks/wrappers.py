"""Wrappers that remember the parameters as they were when the model was wrapped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from secateur.doctor.findings import Finding
from secateur.doctor.registry import check
from secateur.doctor.setup import Setup
from secateur.doctor.wording import listed
from secateur.surgery.census import census


@check("ddp-before-change", structural=True)
def ddp_before_change(setup: Setup) -> Iterator[Finding]:
    """The model was wrapped in DistributedDataParallel and then changed."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    for wrapper in census(setup.parameters.values()).wrappers:
        if isinstance(wrapper, nn.parallel.DistributedDataParallel):
            names, reason = _changed(wrapper)
            if reason:
                yield Finding(
                    "ddp-before-change",
                    names,
                    f"DistributedDataParallel was wrapped around the model before it was changed: {reason}.",
                    "A parameter was replaced, cut, added or frozen after DistributedDataParallel(model).",
                    "Its reducer keeps the old parameters and buckets: gradients of changed ones are not averaged over "
                    "the processes, which drift apart, or the next forward raises.",
                    "model = nn.parallel.DistributedDataParallel(model.module)   # wrap after the change",
                    data={"reason": reason},
                )


def _changed(wrapper: Any) -> tuple[tuple[str, ...], str]:
    """Names of parameters that the wrapper does not know, and what changed; an empty reason if nothing did."""
    known = {id(p) for p in wrapper._module_parameters}
    current = {name: p for name, p in wrapper.module.named_parameters() if p.requires_grad}
    ignored = wrapper.parameters_to_ignore
    new = tuple(name for name, p in current.items() if id(p) not in known and name not in ignored)
    if new:
        return new, f"{listed(new)} is new to it"
    if len(current) < len([p for p in wrapper._module_parameters if p.requires_grad]):
        return (), "it holds parameters that the model no longer has"
    data = wrapper._get_ddp_logging_data() if hasattr(wrapper, "_get_ddp_logging_data") else {}
    size = sum(p.numel() * p.element_size() for name, p in current.items() if name not in ignored)
    wrapped = data.get("total_parameter_size_bytes", size)
    return ((), f"it was {wrapped} bytes then and is {size} bytes now") if wrapped != size else ((), "")
