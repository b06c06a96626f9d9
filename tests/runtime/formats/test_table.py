"""Every format of the tables keeps a weight exactly, and its product is the dense one to rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from secateur.runtime.formats import CONV_FORMATS, LINEAR_FORMATS, ConvFormat, Geometry, LinearFormat, Parts
from tests.runtime.formats.references import CONV, LINEAR, conv_weights, geometries, linear_weights, masked

EPS = torch.finfo(torch.float32).eps
VALUES = st.sampled_from([torch.float32, torch.bfloat16])
ROWS = st.sampled_from([0, 1, 2, 3, 7, 8, 9, 16, 17, 33, 64, 70])


def fitting(weights: st.SearchStrategy[Tensor], each: LinearFormat) -> st.SearchStrategy[Tensor]:
    return weights.filter(lambda weight: not each.misfit(weight))


def bias_of(weight: Tensor, is_there: bool) -> Tensor | None:
    return torch.randn(weight.shape[0]) if is_there else None


def is_close(found: Tensor, exact: Tensor, magnitude: Tensor, terms: int) -> bool:
    """Whether a sum in single precision, in whatever order, has no greater error than it may have."""
    return bool(((found.double() - exact).abs() <= (terms + 2) * EPS * magnitude).all())


def is_product(found: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> bool:
    x, weight = x.double(), weight.double()
    bias = torch.zeros(len(weight)).double() if bias is None else bias.double()
    exact, magnitude = x @ weight.T + bias, x.abs() @ weight.abs().T + bias.abs()
    return found.shape == exact.shape and is_close(found, exact.relu() if relu else exact, magnitude, weight.shape[1])


def convolved(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    return functional.conv2d(x.double(), weight.double(), None if bias is None else bias.double(), *geometry)


def memory(*tensors: Tensor) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()}


@pytest.mark.parametrize("table", [LINEAR_FORMATS, CONV_FORMATS], ids=["linear", "conv"])
def test_formats_stand_in_the_table_under_their_names(table: dict[str, Any]) -> None:
    assert [each.name for each in table.values()] == list(table)
    assert "dense" not in table


@pytest.mark.parametrize("name", LINEAR)
@given(st.data())
@settings(max_examples=40)
def test_linear_weight_comes_back_exactly_but_for_the_rounding_of_values(name: str, data: st.DataObject) -> None:
    each = LINEAR[name]
    weight, values = data.draw(fitting(linear_weights(), each)), data.draw(VALUES)
    before = weight.clone()
    parts = each.pack(weight, values)
    found = each.unpack(parts, weight.shape)
    assert found.dtype == torch.float32
    assert torch.equal(found, weight.to(values).float())
    assert torch.equal(weight, before)
    check_parts(parts)
    assert not memory(found) & memory(*parts)


def check_parts(parts: Parts) -> None:
    assert all(part.is_contiguous() and part.device.type == "cpu" and not part.requires_grad for part in parts)


@pytest.mark.parametrize("name", LINEAR)
@given(st.data(), st.booleans(), st.booleans())
@settings(max_examples=60)
def test_linear_product_is_the_dense_one(name: str, data: st.DataObject, relu: bool, has_bias: bool) -> None:
    each = LINEAR[name]
    weight, values, rows = data.draw(fitting(linear_weights(), each)), data.draw(VALUES), data.draw(ROWS)
    bias, x = bias_of(weight, has_bias), torch.randn(rows, weight.shape[1])
    given_bias, given_x = None if bias is None else bias.clone(), x.clone()
    parts = each.pack(weight, values)
    y = each.bind(parts, weight.shape, bias, relu)(x)
    assert y.dtype == torch.float32
    assert y.is_contiguous()
    assert is_product(y, x, weight.to(values), bias, relu)
    assert torch.equal(x, given_x)
    assert bias is None or torch.equal(bias, given_bias)
    assert not memory(y) & memory(x, *parts, *([] if bias is None else [bias]))


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("shape", [(1024, 512), (96, 4100), (2048, 70)])
@pytest.mark.parametrize("rows", [1, 5, 130])
def test_linear_product_is_the_dense_one_for_large_weights(name: str, shape: tuple[int, int], rows: int) -> None:
    weight, bias, x = masked(shape, 0.9, 32), torch.randn(shape[0]), torch.randn(rows, shape[1])
    each = LINEAR[name]
    assert not each.misfit(weight)
    assert is_product(each.bind(each.pack(weight, torch.float32), weight.shape, bias, False)(x), x, weight, bias, False)


@pytest.mark.parametrize("name", LINEAR)
def test_linear_product_has_new_memory_at_every_call_and_takes_any_number_of_rows(name: str) -> None:
    weight = masked((64, 48), 0.8, 32)
    parts = LINEAR[name].pack(weight, torch.float32)
    product = LINEAR[name].bind(parts, weight.shape, None, False)
    results = {rows: product(torch.ones(rows, 48)) for rows in (3, 0, 1, 40, 3)}
    first, second = product(torch.ones(3, 48)), product(2 * torch.ones(3, 48))
    assert not memory(first) & memory(second)
    for rows, y in results.items():
        assert is_product(y, torch.ones(rows, 48), weight, None, False)
    assert torch.equal(2 * first, second)


@pytest.mark.parametrize("name", LINEAR)
def test_linear_product_keeps_alive_what_it_points_to(name: str) -> None:
    weight, x = masked((64, 48), 0.8, 32), torch.randn(4, 48)
    product = LINEAR[name].bind(LINEAR[name].pack(weight, torch.float32), weight.shape, torch.ones(64), False)
    for _ in range(20):
        torch.full((64, 48), float("nan"))
    assert is_product(product(x), x, weight, torch.ones(64), False)


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize(
    "weight",
    [torch.zeros(0, 5), torch.zeros(5, 0), torch.zeros(1, 1), torch.ones(1, 1), torch.zeros(40, 7), torch.ones(40, 7)],
    ids=lambda weight: f"{tuple(weight.shape)} of {weight.sum():.0f}",
)
def test_linear_format_holds_a_weight_at_the_edge_or_says_why_not(name: str, weight: Tensor) -> None:
    each = LINEAR[name]
    why = each.misfit(weight)
    assert isinstance(why, str)
    if not why:
        parts, x = each.pack(weight, torch.float32), torch.randn(3, weight.shape[1])
        assert torch.equal(each.unpack(parts, weight.shape), weight)
        assert is_product(each.bind(parts, weight.shape, None, False)(x), x, weight, None, False)


@pytest.mark.parametrize("name", LINEAR)
def test_rows_for_which_a_format_is_tried_are_a_range(name: str) -> None:
    least, most = LINEAR[name].rows
    assert 0 <= least <= most


@pytest.mark.parametrize("name", CONV)
@given(st.data())
@settings(max_examples=40)
def test_conv_weight_comes_back_exactly_but_for_the_rounding_of_values(name: str, data: st.DataObject) -> None:
    each = CONV[name]
    weight, values = data.draw(fitting_conv(each, Geometry())), data.draw(VALUES)
    parts = each.pack(weight, values)
    found = each.unpack(parts, weight.shape)
    assert found.dtype == torch.float32
    assert torch.equal(found, weight.to(values).float())
    check_parts(parts)
    assert not memory(found) & memory(*parts)


def fitting_conv(each: ConvFormat, geometry: Geometry) -> st.SearchStrategy[Tensor]:
    return conv_weights().filter(lambda weight: not each.misfit(weight, geometry))


@pytest.mark.parametrize("name", CONV)
@given(st.data(), geometries(), st.booleans(), st.booleans())
@settings(max_examples=60)
def test_conv_product_is_the_dense_one(
    name: str, data: st.DataObject, geometry: Geometry, relu: bool, has_bias: bool
) -> None:
    each = CONV[name]
    weight, values = data.draw(fitting_conv(each, Geometry())), data.draw(VALUES)
    geometry = within(geometry, weight) if each.misfit(weight, geometry) else geometry
    batch, extra = data.draw(st.integers(0, 3)), data.draw(st.tuples(st.integers(0, 12), st.integers(0, 12)))
    least = [far * (window - 1) + 1 for far, window in zip(geometry.dilation, weight.shape[2:], strict=True)]
    x = torch.randn(batch, weight.shape[1], *(max(1, size + more) for size, more in zip(least, extra, strict=True)))
    bias = bias_of(weight, has_bias)
    parts = each.pack(weight, values)
    y = each.bind(parts, weight.shape, bias, relu, geometry)(x)
    rounded = weight.to(values)
    exact = convolved(x, rounded, bias, geometry)
    magnitude = convolved(x.abs(), rounded.abs(), None if bias is None else bias.abs(), geometry)
    assert y.shape == exact.shape
    assert y.dtype == torch.float32
    assert y.is_contiguous(memory_format=each.order)
    assert is_close(y, exact.relu() if relu else exact, magnitude, weight[0].numel())
    assert not memory(y) & memory(x, *parts, *([] if bias is None else [bias]))


def within(geometry: Geometry, weight: Tensor) -> Geometry:
    """The geometry with no more padding than leaves some of the image in every window."""
    sides = zip(geometry.padding, geometry.dilation, weight.shape[2:], strict=True)
    return geometry._replace(padding=tuple(min(pad, far * (window - 1)) for pad, far, window in sides))


@pytest.mark.parametrize(
    ("padding", "dilation", "overhangs"),
    [((2, 1), (1, 1), False), ((3, 1), (1, 1), True), ((2, 2), (1, 1), True), ((4, 2), (2, 2), False)],
)
def test_window_that_can_lie_beside_the_image_is_told(
    padding: tuple[int, int], dilation: tuple[int, int], overhangs: bool
) -> None:
    assert Geometry((1, 1), padding, dilation).overhangs((3, 2)) == overhangs


@pytest.mark.parametrize("name", CONV)
def test_conv_product_takes_images_of_any_size_and_has_new_memory_at_every_call(name: str) -> None:
    weight, geometry = masked((8, 8, 3, 3), 0.8), Geometry(padding=(1, 1))
    product = CONV[name].bind(CONV[name].pack(weight, torch.float32), weight.shape, None, False, geometry)
    for sides in ((5, 5), (1, 9), (33, 17), (5, 5)):
        x = torch.randn(2, 8, *sides)
        first, second = product(x), product(x)
        magnitude = convolved(x.abs(), weight.abs(), None, geometry)
        assert is_close(first, convolved(x, weight, None, geometry), magnitude, 72)
        assert torch.equal(first, second)
        assert not memory(first) & memory(second, x)


@pytest.mark.parametrize("window", [(1, 1), (3, 1)])
def test_prepacked_convolution_is_not_for_what_onednn_errs_at(window: tuple[int, int]) -> None:
    each, wide = CONV_FORMATS["prepacked"], tuple(size - 1 for size in window)
    assert each.misfit(torch.ones(16, 16, *window), Geometry(padding=wide)) == ""
    assert "padding" in each.misfit(torch.ones(16, 16, *window), Geometry(padding=(wide[0], 1)))
    assert "channels" in each.misfit(torch.ones(16, 1, *window), Geometry())
    assert "channels" in each.misfit(torch.ones(1, 16, *window), Geometry())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", [*(("linear", name) for name in LINEAR), *(("conv", name) for name in CONV)], ids=str)
def test_formats_are_of_float32_whatever_the_default_dtype_is(kind: tuple[str, str], dtype: torch.dtype) -> None:
    is_linear, name = kind[0] == "linear", kind[1]
    weight = masked((64, 48), 0.8, 32) if is_linear else masked((16, 8, 3, 3), 0.8)
    x = torch.randn(2, 48) if is_linear else torch.randn(2, 8, 6, 6)
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype)
        if is_linear:
            parts = LINEAR[name].pack(weight, torch.float32)
            found, back = (
                LINEAR[name].bind(parts, weight.shape, None, True)(x),
                LINEAR[name].unpack(parts, weight.shape),
            )
        else:
            parts = CONV[name].pack(weight, torch.float32)
            back = CONV[name].unpack(parts, weight.shape)
            found = CONV[name].bind(parts, weight.shape, None, True, Geometry())(x)
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(back, weight)
    exact = (x @ weight.T if is_linear else functional.conv2d(x, weight)).relu()
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-4)
