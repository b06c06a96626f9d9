"""Recurrent layers: all weights of all layers agree on one hidden size, and on the units within each layer.

A layer's rows are blocks of equal size, one a gate (4 for LSTM, 3 for GRU), and every block keeps the same units. The
same units are the columns of the weights that read the hidden state. Torch does not check this in forward: with other
shapes it reads past the end of a buffer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from secateur._errors import ShapeError, UnsupportedError
from secateur.surgery.selection import Selection
from secateur.surgery.shapes import Shapes
from secateur.surgery.sizes import size_rule

__all__ = ["kept_units"]


def kept_units(shapes: Shapes, name: str, gates: int) -> Tensor:
    """The units whose rows stay, the same in each gate's block of rows.

    Args:
        shapes: What becomes of the module's tensors.
        name: A tensor with gates · units rows.
        gates: Number of blocks.

    Returns:
        Ascending units, shape (number kept,).

    Raises:
        ShapeError: The blocks would keep different units.
        UnsupportedError: New rows would not lie inside each block.
    """
    rows = shapes.kept(name, 0)
    if rows is None:
        return torch.arange(shapes[name][0] // gates, device="cpu")
    width = rows.size // gates
    if rows.num_new:
        blocks = _grown_blocks(name, rows, gates)
    else:
        blocks = [rows.keep[rows.keep // width == gate] % width for gate in range(gates)]
    if not all(torch.equal(block, blocks[0]) for block in blocks):
        raise ShapeError(
            f"the {gates} blocks of rows of {name!r} would keep different units.",
            kept_per_block=[block.numel() for block in blocks],
            fix=f"keep = torch.cat([units + block * {width} for block in range({gates})])",
        )
    return blocks[0]


def _grown_blocks(name: str, rows: Selection, gates: int) -> list[Tensor]:
    """The units of each block, new ones numbered from the old width on."""
    width, wide = rows.size // gates, rows.new_size // gates
    found = []
    for gate, block in enumerate(rows.positions[: wide * gates].split(wide)):
        old = block < rows.size
        if rows.new_size % gates or bool((block[old] // width != gate).any()) or bool(rows.num_new % gates):
            raise UnsupportedError(
                f"cannot grow {name!r}: new rows would have to lie inside each of its {gates} blocks.",
                fix="grow_(…, at=…) says where they lie",
            )
        found.append(torch.where(old, block % width, block - rows.size + width - gate * (rows.num_new // gates)))
    return found


@size_rule(nn.RNNBase)
def _recurrent(module: nn.RNNBase, shapes: Shapes) -> dict[str, object]:
    """Weights (gates · hidden, in) and (gates · hidden, out), projections (out, hidden), biases (gates · hidden)."""
    gates = {"LSTM": 4, "GRU": 3}.get(module.mode, 1)
    ends = [f"{layer}{end}" for layer in range(module.num_layers) for end in _directions(module)]
    for end in ends:
        _check_layer(shapes, gates, end, is_projected=module.proj_size > 0)
    read = "weight_hr_l" if module.proj_size else "weight_hh_l"
    outputs = {end: shapes.positions(f"{read}{end}", 0 if module.proj_size else 1) for end in ends}
    _check_stack(module, shapes, outputs)
    hidden = {shapes[f"weight_hh_l{end}"][0] // gates for end in ends}
    if len(hidden) > 1 or len({o.numel() for o in outputs.values()}) > 1:
        raise _disagreement(module, "every layer and direction needs as many units", hidden)
    found: dict[str, object] = {"input_size": shapes["weight_ih_l0"][1], "hidden_size": hidden.pop()}
    return found | ({"proj_size": outputs["0"].numel()} if module.proj_size else {})


def _directions(module: nn.RNNBase) -> tuple[str, ...]:
    """Endings of the names of one layer's tensors."""
    return ("", "_reverse") if module.bidirectional else ("",)


def _check_layer(shapes: Shapes, gates: int, end: str, *, is_projected: bool) -> None:
    """One direction of one layer: rows keep the same units; what reads the hidden state keeps them as columns."""
    hidden = f"weight_hh_l{end}"
    units = kept_units(shapes, hidden, gates)
    for name in (f"weight_ih_l{end}", f"bias_ih_l{end}", f"bias_hh_l{end}"):
        if name in shapes:
            _check_same(shapes, kept_units(shapes, name, gates), name, units, hidden)
    if is_projected:
        projection = f"weight_hr_l{end}"
        _check_same(shapes, shapes.positions(projection, 1), projection, units, hidden)
        units = shapes.positions(projection, 0)
    _check_same(shapes, shapes.positions(hidden, 1), hidden, units, "its output")


def _check_stack(module: nn.RNNBase, shapes: Shapes, outputs: dict[str, Tensor]) -> None:
    """Inputs: the same for both directions, and in upper layers the outputs below, one direction after the other."""
    below: Tensor | None = None
    for layer in range(module.num_layers):
        names = [f"weight_ih_l{layer}{end}" for end in _directions(module)]
        expected = shapes.positions(names[0], 1) if below is None else below
        for name in names:
            _check_same(shapes, shapes.positions(name, 1), name, expected, "the layer below")
        size = module.proj_size or module.hidden_size
        below = _joined([outputs[f"{layer}{end}"] for end in _directions(module)], size)


def _joined(outputs: list[Tensor], size: int) -> Tensor:
    """Positions of outputs one after the other; old ones numbered first, then the new ones of each in turn."""
    parts, first_new = [], size * len(outputs)
    for number, positions in enumerate(outputs):
        parts.append(torch.where(positions < size, positions + number * size, positions - size + first_new))
        first_new += int((positions >= size).sum())
    return torch.cat(parts)


def _check_same(shapes: Shapes, kept: Tensor, name: str, expected: Tensor, other: str) -> None:
    """Refuse two tensors that keep different units."""
    if not torch.equal(kept, expected):
        raise ShapeError(
            f"{name!r} would keep other units than {other}.",
            tensor=tuple(shapes[name]),
            kept=kept[:8].tolist(),
            expected=expected[:8].tolist(),
            fix="resize every weight and bias of a recurrent layer in one transaction, the same units everywhere",
        )


def _disagreement(module: nn.Module, why: str, sizes: object) -> ShapeError:
    """The error for layers of different sizes."""
    return ShapeError(f"{type(module).__name__} has one hidden size: {why}.", asked=sizes)


@size_rule(nn.RNNCellBase)
def _recurrent_cell(module: nn.RNNCellBase, shapes: Shapes) -> dict[str, object]:
    """Weights (gates · hidden, in) and (gates · hidden, hidden), biases (gates · hidden)."""
    gates = module.weight_hh.shape[0] // module.hidden_size
    units = kept_units(shapes, "weight_hh", gates)
    for name in ("weight_ih", "bias_ih", "bias_hh"):
        if name in shapes:
            _check_same(shapes, kept_units(shapes, name, gates), name, units, "'weight_hh'")
    _check_same(shapes, shapes.positions("weight_hh", 1), "weight_hh", units, "its rows")
    return {"input_size": shapes["weight_ih"][1], "hidden_size": units.numel()}
