"""Layers whose own tensors do not fit each other, as is left when only one of them was cut."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from secateur._errors import ShapeError
from secateur.doctor.findings import Finding
from secateur.doctor.registry import check
from secateur.doctor.setup import Setup
from secateur.doctor.wording import listed
from secateur.surgery.sizes import SIZES, Shapes


@check("layer-tensors-apart")
def layer_tensors_apart(setup: Setup) -> Iterator[Finding]:
    """A layer of torch.nn whose weight, bias or statistics have different sizes."""
    found = {
        prefix: {leaf: list(tensor.shape) for leaf, tensor in _tensors(module)}
        for prefix, module in setup.model.named_modules()
        if _is_apart(module)
    }
    if not found:
        return
    shown = [
        f"{prefix or 'the model'} ({', '.join(f'{leaf} {tuple(shape)}' for leaf, shape in shapes.items())})"
        for prefix, shapes in found.items()
    ]
    yield Finding(
        "layer-tensors-apart",
        tuple(prefix or "model" for prefix in found),
        f"tensors of one layer do not fit each other: {listed(shown)}.",
        "One of them was cut or grown, by hand or by resize_, and the others were not.",
        "The next forward pass raises, or reads what it should not.",
        "with secateur.transaction(model, optimizer) as t:   # cut all of them together\n"
        "    t.resize('….weight', dim=0, keep=keep)\n"
        "    t.resize('….bias', dim=0, keep=keep)\n"
        "secateur.shrink_(model, example_inputs, …)          # or let it find what goes together",
        data={"layers": found},
    )


def _tensors(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """A module's own parameters and buffers by short name."""
    named = (*module._parameters.items(), *module._buffers.items())
    return [(leaf, tensor) for leaf, tensor in named if tensor is not None]  # type: ignore[misc]


def _is_apart(module: nn.Module) -> bool:
    """Whether a layer of exactly a known class (others may keep their tensors in forms of their own) is not whole."""
    tensors = dict(_tensors(module))
    if type(module) not in SIZES or len(tensors) < 2:
        return False
    if any(isinstance(tensor, UninitializedTensorMixin) for tensor in tensors.values()):
        return False
    try:
        sizes = SIZES[type(module)](module, Shapes(module, {}))
    except ShapeError:
        return True
    return "weight" in tensors and "bias" in tensors and None in sizes.values()
