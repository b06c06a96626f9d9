"""The picture of a coupling: well-formed, complete, the same every time, with nothing on top of anything else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from secateur import InvalidInputError
from secateur.graph import Coupling, analyze, draw
from tests.shrink.models import Attention, SmallCNN

SVG = "{http://www.w3.org/2000/svg}"
LEFT = "16.0"
"""Where the names of layers begin."""


class Encoder(nn.Module):
    """A small transformer with a parameter of its own, and a name that XML must not see as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.randn(5, 16))
        layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.heads = nn.ModuleDict({'a<b>&"c"': nn.Linear(16, 3)})

    def forward(self, x: Tensor) -> Tensor:
        return self.heads['a<b>&"c"'](self.layers(x + self.position))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "cnn": (SmallCNN, (2, 3, 6, 6)),
    "attention": (lambda: Attention(12, 3), (2, 5, 12)),
    "encoder": (Encoder, (2, 5, 16)),
    "nothing to remove": (lambda: nn.Linear(3, 4), (2, 3)),
}


def coupling_of(name: str) -> Coupling:
    make, shape = MODELS[name]
    return analyze(make().eval(), torch.randn(shape))


def texts(svg: Element) -> list[str]:
    return [element.text or "" for element in svg.iter(f"{SVG}text")]


def groups(svg: Element) -> list[Element]:
    return [element for element in svg.iter(f"{SVG}g") if element.get("class") == "group"]


@pytest.mark.parametrize("name", MODELS)
def test_every_group_is_drawn_once_with_all_that_it_touches(name: str) -> None:
    coupling = coupling_of(name)
    found = groups(ElementTree.fromstring(draw(coupling)))
    assert sorted(element.get("data-name", "") for element in found) == sorted(group.name for group in coupling.groups)
    said = {element.findtext(f"{SVG}title") for element in found}
    assert said == {
        f"{len(group.units)} {group.kind}: {', '.join(f'{tensor}[{dim}]' for tensor, dim in group.footprint)}"
        for group in coupling.groups
    }


@pytest.mark.parametrize("name", MODELS)
def test_every_layer_has_a_row_and_every_reason_is_written(name: str) -> None:
    coupling = coupling_of(name)
    svg = ElementTree.fromstring(draw(coupling))
    written = [element.text or "" for element in svg.iter(f"{SVG}text") if element.get("x") == LEFT]
    layers = {tensor.rpartition(".")[0] or tensor for tensor in coupling.dims}
    assert all(written.count(layer) == 1 for layer in layers)
    for kept in coupling.kept:
        assert sum(text.endswith(f"  {kept.why}") for text in written) == 1


def rows_of(svg: Element) -> dict[str, str]:
    """Height of the names of the layers, as it is written, by name."""
    return {
        element.text or "": element.get("y", "") for element in svg.iter(f"{SVG}text") if element.get("x") == "16.0"
    }


@pytest.mark.parametrize("name", MODELS)
def test_a_line_has_a_dot_in_every_layer_that_its_group_touches_and_in_no_other(name: str) -> None:
    coupling = coupling_of(name)
    svg = ElementTree.fromstring(draw(coupling))
    heights = {layer: float(y) - 4 for layer, y in rows_of(svg).items()}
    by_title = {element.findtext(f"{SVG}title", "").split(": ", 1)[1]: element for element in groups(svg)}
    for group in coupling.groups:
        element = by_title[", ".join(f"{tensor}[{dim}]" for tensor, dim in group.footprint)]
        dots = {float(dot.get("cy", "")): dot.get("fill") for dot in element.iter(f"{SVG}circle")}
        touched: dict[float, set[int]] = {}
        for tensor, dim in group.footprint:
            touched.setdefault(heights[tensor.rpartition(".")[0] or tensor], set()).add(dim)
        assert dots == {y: None if 0 in dims else "#ffffff" for y, dims in touched.items()}


def test_the_picture_is_the_same_every_time_and_is_what_is_written(tmp_path: Path) -> None:
    torch.manual_seed(0)
    first = draw(coupling_of("encoder"))
    torch.manual_seed(1)
    assert draw(coupling_of("encoder"), tmp_path / "coupling.svg") == first
    assert (tmp_path / "coupling.svg").read_text(encoding="utf-8") == first


def boxes(svg: Element) -> Iterator[tuple[str, float, float, float, float]]:
    """What is drawn in ink: texts with a generous width for each character, and lines with their dots."""
    for element in svg.iter(f"{SVG}text"):
        x, y, wide = float(element.get("x", "")), float(element.get("y", "")), 7.3 if element.get("fill") else 6.7
        yield element.text or "", x, y - 10, x + wide * len(element.text or ""), y + 3
    for element in svg.iter(f"{SVG}path"):
        x, top, bottom = map(float, re.fullmatch(r"M([\d.]+) (\d+)V(\d+)", element.get("d", "")).groups())
        yield "line", x - 6, top - 6, x + 6, bottom + 6


class Chain(nn.Module):
    """Layers with skip connections between any of them: groups that overlap in any way."""

    def __init__(self, width: int, depth: int, skips: list[tuple[int, int]]) -> None:
        super().__init__()
        self.skips = skips
        self.a_layer_with_a_name = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        seen = [x]
        for number, layer in enumerate(self.a_layer_with_a_name):
            added = [seen[source] for source, target in self.skips if target == number and source <= number]
            seen.append(torch.relu(layer(seen[-1] + sum(added) if added else seen[-1])))
        return seen[-1]


@settings(max_examples=30)
@given(
    width=st.sampled_from([2, 1200]),
    depth=st.integers(1, 9),
    skips=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=6),
)
def test_nothing_overlaps_and_all_is_on_the_page(width: int, depth: int, skips: list[tuple[int, int]]) -> None:
    coupling = analyze(Chain(width, depth, skips), torch.randn(1, width))
    svg = ElementTree.fromstring(draw(coupling))
    assert len(groups(svg)) == len(coupling.groups)
    found = list(boxes(svg))
    for (one, left, top, right, bottom), (other, left2, top2, right2, bottom2) in combinations(found, 2):
        assert right <= left2 or right2 <= left or bottom <= top2 or bottom2 <= top, (one, other)
    page_width, page_height = float(svg.get("width", "")), float(svg.get("height", ""))
    assert all(min(left, top) >= 0 for _, left, top, _, _ in found)
    assert all(right <= page_width and bottom <= page_height for _, _, _, right, bottom in found)


def test_letters_go_on_after_z() -> None:
    class Refused(nn.Module):
        """Thirty tensors, each kept for a reason of its own: a size written in the code."""

        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ParameterList(torch.ones(n) for n in range(2, 32))

        def forward(self, x: Tensor) -> Tensor:
            return x + sum(part.view(n + 2).sum() for n, part in enumerate(self.parts))

    coupling = analyze(Refused(), torch.ones(1))
    reasons = list(dict.fromkeys(kept.why for kept in coupling.kept))
    written = texts(ElementTree.fromstring(draw(coupling)))
    letters = [text.split("  ", 1)[0] for text in written if text.split("  ", 1)[-1] in reasons]
    assert letters[:26] == list("abcdefghijklmnopqrstuvwxyz")[: len(letters)]
    assert len(letters) == len(reasons) > 26
    assert letters[26:28] == ["aa", "ab"]


def test_a_name_of_another_kind_of_file_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    coupling = coupling_of("encoder")
    with pytest.raises(InvalidInputError, match=r"written as SVG"):
        draw(coupling, tmp_path / "coupling.png")
    assert not list(tmp_path.iterdir())
