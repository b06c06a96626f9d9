"""Measure how long matrix products and convolutions take on this machine."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from secateur._errors import InvalidInputError
from secateur._machine import machine_name, wait_for
from secateur._progress import track
from secateur.graph.coupling import Coupling
from secateur.shrink.coupled import refuse_coupling
from secateur.shrink.latency import LatencyTable, Needed, TimeGrid, check_table, needs
from secateur.shrink.values import refuse_valueless

__all__ = ["measure_latency"]

_LEAST_SECONDS = 1e-3  # a clock reading costs about a microsecond, so that is a thousandth
_REPEATS = 3

_measured: dict[tuple[str, str, tuple[tuple[int, ...], ...]], TimeGrid] = {}


def measure_latency(model: nn.Module, coupling: Coupling, *, table: LatencyTable | None = None) -> LatencyTable:
    """Measure how long the products of a model take, now and with fewer units.

    Every product is run by itself, on memory that is warm, at five sizes of each dim that loses positions when units
    go: all of them, three quarters, half, a quarter and one. Convolutions are run with stride 1 and the image of their
    output. What was measured before in this process is not measured again.

    Args:
        model: The model, for the device and dtype of its parameters.
        coupling: Its coupling.
        table: What is known already, and not measured again.

    Returns:
        The table, for `plan_shrink(…, latency_table=table)`, or for a file.

    Raises:
        InvalidInputError: The model's parameters have no values (a fake or meta device); or it is no model, coupling or
            table.
        ShapeError: The coupling is that of another model.
    """
    refuse_coupling(model, coupling)
    check_table(table)
    device, dtype = _place(model)
    machine = machine_name(device, dtype)
    grids = list(table.grids) if table is not None else []
    for needed in track(_missing(coupling, table or LatencyTable(())), "timing products"):
        key = machine, needed.kind, needed.grid()
        if key not in _measured:
            _measured[key] = TimeGrid(
                needed.kind,
                needed.grid(),
                tuple(_seconds(needed.kind, sizes, device, dtype) for sizes in itertools.product(*needed.grid())),
            )
        grids.append(_measured[key])
    return LatencyTable(tuple(grids), table.machine if table is not None else machine)


def _missing(coupling: Coupling, table: LatencyTable) -> list[Needed]:
    """Products that a table does not cover, those of the same sizes as one."""
    found: dict[tuple[str, tuple[int, ...]], Needed] = {}
    for needed in needs(coupling):
        if table.find(needed) is None:
            same = found.setdefault((needed.kind, needed.sizes), needed)
            changes = tuple(one or other for one, other in zip(same.changes, needed.changes, strict=True))
            found[needed.kind, needed.sizes] = Needed(needed.kind, needed.sizes, changes)
    return list(found.values())


def _place(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Device and dtype of the first floating-point parameter."""
    fix = "latency_table=LatencyTable.load(path), measured where the model will run"
    refuse_valueless(model.parameters(), "timing products here", fix=fix)
    for parameter in model.parameters():
        if parameter.is_floating_point():
            return parameter.device, parameter.dtype
    raise InvalidInputError("the model has no floating-point parameter.")


def _seconds(kind: str, sizes: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> float:
    """Time of one product: the shortest mean of some rounds."""
    run = (_convolution if kind == "convolution" else _matmul)(sizes, device, dtype)
    with torch.no_grad():
        number, best = 1, _round(run, 1, device)
        while (taken := _round(run, number, device)) * number < _LEAST_SECONDS and number < 1000:
            number *= 2
        for _ in range(_REPEATS):
            best = min(best, taken, _round(run, number, device))
    return best


def _round(run: Callable[[], Tensor], number: int, device: torch.device) -> float:
    """Mean seconds of so many runs."""
    wait_for(device)
    start = time.perf_counter()
    for _ in range(number):
        run()
    wait_for(device)
    return (time.perf_counter() - start) / number


def _matmul(sizes: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Callable[[], Tensor]:
    """A matrix product of sizes (batch, n, k, m)."""
    batch, n, k, m = sizes
    left = torch.full((batch, n, k), 0.5, device=device, dtype=dtype)
    right = torch.full((batch, k, m), 0.5, device=device, dtype=dtype)
    if batch == 1:
        left, right = left[0], right[0]
    return lambda: left @ right


def _convolution(sizes: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Callable[[], Tensor]:
    """A convolution of sizes (batch, groups, outputs of a group, inputs of a group, window …, image …)."""
    batch, groups, outputs, inputs, *rest = sizes
    window, image = rest[: len(rest) // 2], rest[len(rest) // 2 :]
    padded = [size + width - 1 for size, width in zip(image, window, strict=True)]
    x = torch.full((batch, groups * inputs, *padded), 0.5, device=device, dtype=dtype)
    weight = torch.full((groups * outputs, inputs, *window), 0.5, device=device, dtype=dtype)
    convolve = (functional.conv1d, functional.conv2d, functional.conv3d)[len(window) - 1]
    return lambda: convolve(x, weight, groups=groups)
