"""The parts of a report that are about measurements: models side by side, and what `compress` has gained.

The results are taken as they are read: by their attributes, since the part of the library that makes them is no one's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from secateur._errors import InvalidInputError
from secateur.report.figures import Bars, Fact, Facts, Figure, Section, Table, table
from secateur.report.units import Cell, Unit

__all__ = ["COSTS", "comparison_bars", "comparison_sections", "data_of"]

_PROFILE = ("machine", "models")
_COMPRESSION = ("layers", "dense_seconds", "seconds", "dense_bytes", "bytes", "error", "threads", "notes", "speedup")
COSTS: dict[str, tuple[str, Unit]] = {
    "latency": ("Median time of a run", "seconds"),
    "parameters": ("Parameters", "count"),
    "nonzeros": ("Non-zero parameters", "count"),
    "macs": ("MACs", "count"),
    "nonzero_macs": ("Non-zero MACs", "count"),
    "bytes": ("Memory", "bytes"),
}
"""What a profile knows of each model: how it is called, and what it is of."""


def data_of(comparison: object) -> dict[str, Any]:
    """What a comparison holds.

    Args:
        comparison: The result of `secateur.profile`, a model that `secateur.compress` has made, or its report.

    Raises:
        InvalidInputError: It is none of these, or the model was loaded without being measured.
    """
    report = getattr(comparison, "report", comparison)
    if report is None:
        raise InvalidInputError(
            "this compressed model was loaded without being measured, so there is nothing to compare.",
            fix="secateur.profile({'dense': dense, 'compressed': compressed}, example_inputs)",
        )
    to_dict = getattr(report, "to_dict", None)
    data = to_dict() if callable(to_dict) and not isinstance(report, type) else None
    if not isinstance(data, Mapping) or not (set(_PROFILE) <= data.keys() or set(_COMPRESSION) <= data.keys()):
        raise InvalidInputError(
            f"{type(comparison).__name__} is no comparison.",
            fix="comparison=secateur.profile({'dense': dense, 'pruned': pruned}, example_inputs)",
        )
    return dict(data)


def comparison_sections(comparison: object) -> Iterator[Section]:
    """The part of a report on one comparison.

    Raises:
        InvalidInputError: It is none.
    """
    data = data_of(comparison)
    yield _profile(data) if "models" in data else _compression(data)


def comparison_bars(data: Mapping[str, Any], what: str) -> Bars | None:
    """One cost of each model of a profile.

    Args:
        data: What the profile holds.
        what: ``"latency"``, ``"parameters"``, ``"nonzeros"``, ``"macs"``, ``"nonzero_macs"`` or ``"bytes"``.

    Returns:
        The bars of the models of which it is known; None if there are none.
    """
    costs = {model["name"]: _cost(model, what) for model in data["models"]}
    known = {name: cost for name, cost in costs.items() if cost is not None}
    if not known:
        return None
    label, unit = COSTS[what]
    return Bars(f"{label} of each model", tuple(known), ((label, tuple(known.values())),), unit)


def _cost(model: Mapping[str, Any], what: str) -> float | None:
    """One cost of a model, times in seconds."""
    value = model[what]
    if what == "latency":
        return None if value is None else value["median"] / 1e3
    return None if value is None else float(value)


def _profile(data: Mapping[str, Any]) -> Section:
    """Models side by side."""
    bars = [comparison_bars(data, what) for what in ("latency", "nonzero_macs", "macs", "bytes")]
    figures: list[Figure] = [each for each in bars if each is not None]
    columns: list[tuple[str, Unit]] = [("model", ""), *COSTS.values()]
    columns += [("a quarter of the runs took at most", "seconds"), ("a quarter took at least", "seconds")]
    columns += [("times faster than the first", "times"), ("note", "")]
    models = data["models"]
    first = _cost(models[0], "latency") if models else None
    rows = [_model_row(model, first) for model in models]
    return Section(
        "Models side by side", (*figures, table("Models side by side", columns, rows)), f"On {data['machine']}."
    )


def _model_row(model: Mapping[str, Any], first: float | None) -> list[Cell]:
    """One model."""
    row: list[Cell] = [model["name"]]
    row += [_cost(model, what) for what in COSTS]
    own = _cost(model, "latency")
    row += [None, None] if own is None else [quartile / 1e3 for quartile in model["latency"]["quartiles"]]
    row.append(first / own if first and own else None)
    return [*row, model["note"] or None]


def _compression(data: Mapping[str, Any]) -> Section:
    """What `compress` has gained."""
    facts = Facts(
        (
            Fact("Time of a run", data["seconds"], data["dense_seconds"], "seconds"),
            Fact("Memory", data["bytes"], data["dense_bytes"], "bytes"),
            Fact("Times faster", data["speedup"], None, "times"),
            Fact("Largest difference of an output", data["error"]),
            Fact("Threads", data["threads"], None, "count"),
        )
    )
    layers = data["layers"]
    names = tuple(layer["name"] for layer in layers)
    sizes = tuple(tuple(float(layer[what]) for layer in layers) for what in ("dense_bytes", "bytes"))
    zeros = tuple(float(layer["sparsity"]) for layer in layers)
    figures: list[Figure] = [facts]
    if layers:
        figures += [
            Bars("Memory of each layer", names, (("dense", sizes[0]), ("packed", sizes[1])), "bytes"),
            Bars("Sparsity of each layer", names, (("sparsity", zeros),), "fraction", 1.0),
        ]
    return Section("The compressed model", (*figures, _layers(layers)), "; ".join(data["notes"]))


def _layers(layers: list[Mapping[str, Any]]) -> Table:
    """Every layer with the format that was chosen for it."""
    columns: list[tuple[str, Unit]] = [
        ("layer", "name"),
        ("shape", ""),
        ("sparsity", "fraction"),
        ("zeros lie", ""),
        ("format", ""),
        ("predicted", "times"),
        ("measured", "times"),
        ("dense", "bytes"),
        ("packed", "bytes"),
        ("stayed dense because", ""),
    ]
    rows = [
        (
            layer["name"],
            "×".join(map(str, layer["shape"])),
            *(
                layer[what]
                for what in ("sparsity", "pattern", "format", "predicted", "measured", "dense_bytes", "bytes")
            ),
            layer["why"] or None,
        )
        for layer in layers
    ]
    return table("Every layer and its format", columns, rows)
