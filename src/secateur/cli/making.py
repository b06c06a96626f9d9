"""How a command made what it wrote, as facts for its report."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from importlib.metadata import version

__all__ = ["facts_of"]

_BUDGETS = {"macs": "MACs", "params": "parameters", "latency": "time of products"}
_LIBRARIES = {"torchvision": "torchvision", "timm": "timm", "hf": "transformers"}


def facts_of(options: argparse.Namespace) -> dict[str, str]:
    """What `secateur shrink` was asked for, and with what it was done.

    Args:
        options: Those of the command.

    Returns:
        Facts by name. Those that were left to the command are among them if the numbers depend on them.
    """
    limits = {label: getattr(options, name) for name, label in _BUDGETS.items()}
    parts = {
        "model": " ".join([str(options.model), *(f"{name}={value!r}" for name, value in options.arg)]),
        "weights": _weights(options),
        "input": ", ".join(map(str, options.input)),
        "budget": ", ".join(f"{label} at most {share:.4g}" for label, share in limits.items() if share is not None),
        "sparsity of units": "" if options.sparsity is None else f"{options.sparsity:.4g}",
        "score": options.score,
        "scope": options.scope,
        "least units of a group": str(options.min_units),
        "round to": "" if options.round_to is None else str(options.round_to),
        "ignored": ", ".join(options.ignore),
        "overrides": ", ".join(f"{group}={share:.4g}" for group, share in options.override),
        "kinds that stay": ", ".join(options.keep),
        "compared with the full model": "yes" if options.verify else "no",
        "date": datetime.now(UTC).date().isoformat(),
        "versions": ", ".join(f"{name} {version(name)}" for name in _libraries(options)),
    }
    if parts["budget"]:
        parts["budget"] += " of what the full model has"
    return {name: told for name, told in parts.items() if told}


def _weights(options: argparse.Namespace) -> str:
    """Where the weights are from, which decide on the units that go."""
    if options.checkpoint is not None:
        return str(options.checkpoint)
    if options.model.source == "hf":
        return "those of the folder"
    made = "those that the factory gives" if options.model.source not in _LIBRARIES else "random: no --checkpoint"
    return f"{made}, seed {options.seed}"


def _libraries(options: argparse.Namespace) -> list[str]:
    """Distributions that the result depends on."""
    own = _LIBRARIES.get(options.model.source)
    return ["secateur", "torch", *([own] if own else [])]
