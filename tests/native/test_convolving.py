"""Convolutions over packed patches: every level against torch in double precision, however the window moves."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from secateur._native.columns import Matrix
from secateur._native.convolving import Window, convolution
from secateur.runtime.formats import Geometry
from tests.native.plain_cells import plain_matrix
from tests.native.products import MACHINE_LEVELS, exact, fenced, fences, on

LEVEL = pytest.mark.parametrize("level", MACHINE_LEVELS)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16])
UNIT = 2.0**-24


def pairs(least: int, most: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(least, most), st.integers(least, most))


GEOMETRIES = st.builds(Geometry, pairs(1, 3), pairs(0, 3), pairs(1, 3))


def size_of(image: tuple[int, int], window: tuple[int, int], geometry: Geometry) -> tuple[int, int]:
    """What torch makes of an image."""
    return tuple(functional.conv2d(torch.zeros(1, 1, *image), torch.zeros(1, 1, *window), None, *geometry).shape[2:])


def random_weight(outputs: int, inputs: int, window: tuple[int, int], density: float) -> Tensor:
    shape = (outputs, inputs, *window)
    return torch.randn(shape) * ((torch.rand(shape) < density) & (torch.rand(outputs, 1, 1, 1) < 0.9))


def bound(
    weight: Tensor,
    geometry: Geometry,
    dtype: torch.dtype = torch.float32,
    bias: Tensor | None = None,
    relu: bool = False,
    panel: int = 16,
    width: int = 24,
):
    window = tuple(weight.shape[2:])
    matrix = plain_matrix(weight.flatten(1), dtype, panel, width, bias, relu)
    moves = Window(weight.shape[1], window, *geometry)
    return convolution(matrix, moves, lambda *image: size_of(image, window, geometry))


def smallest_image(window: tuple[int, int], geometry: Geometry) -> tuple[int, int]:
    """The least height and width that the window fits into, with its padding."""
    each = zip(window, geometry.padding, geometry.dilation, strict=True)
    return tuple(max(1, far * (size - 1) + 1 - 2 * pad) for size, pad, far in each)


def check(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool, geometry: Geometry) -> None:
    """As `products.check`: the error is at most gamma(n) of the sum of absolute values, with n = terms + 6."""
    x, weight, bias = x.double(), weight.double(), None if bias is None else bias.double()
    wanted = functional.conv2d(x, weight, bias, *geometry)
    size = functional.conv2d(x.abs(), weight.abs(), None if bias is None else bias.abs(), *geometry)
    roundings = ((weight != 0).flatten(1).sum(1) + 6)[:, None, None] * UNIT
    wanted = wanted.relu() if relu else wanted
    assert y.shape == wanted.shape
    assert y.dtype == torch.float32
    assert y.is_contiguous()
    assert ((y - wanted).abs() <= size * roundings / (1 - roundings) + 1e-44).all()


@LEVEL
@settings(max_examples=150)
@given(
    sizes=st.tuples(st.sampled_from([1, 3, 16, 17, 40]), st.sampled_from([1, 2, 7, 13])),
    window=pairs(1, 5),
    geometry=GEOMETRIES,
    more=pairs(0, 20),
    batch=st.integers(1, 5),
    density=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    dtype=DTYPES,
    biased=st.booleans(),
    relu=st.booleans(),
    seed=st.integers(0, 99),
)
@example((17, 7), (3, 3), Geometry((1, 1), (1, 1)), (54, 54), 1, 0.5, torch.float32, True, True, 0)
@example((17, 7), (3, 3), Geometry((1, 1), (1, 1)), (5, 5), 16, 0.5, torch.float32, True, False, 0)
@example((17, 7), (3, 3), Geometry((2, 2), (1, 1)), (12, 12), 9, 0.5, torch.bfloat16, True, False, 0)
@example((3, 2), (1, 11), Geometry(), (5, 19), 1, 1.0, torch.float32, False, False, 0)
@example((3, 3), (7, 7), Geometry((2, 2), (3, 3)), (40, 40), 1, 1.0, torch.float32, True, True, 0)
@example((3, 7), (1, 1), Geometry(), (15, 15), 3, 0.5, torch.float32, False, True, 0)
@example((3, 7), (1, 1), Geometry((2, 2)), (13, 13), 3, 0.5, torch.float32, False, False, 0)
@example((3, 2), (1, 1), Geometry(), (0, 0), 70, 1.0, torch.float32, False, False, 0)
@example((3, 2), (2, 2), Geometry((1, 1), (3, 3)), (0, 0), 40, 1.0, torch.float32, False, False, 0)
def test_the_convolution_is_the_dense_one_and_writes_nothing_else(
    level, sizes, window, geometry, more, batch, density, dtype, biased, relu, seed
):
    torch.manual_seed(seed)
    weight = random_weight(*sizes, window, density).to(dtype).float()
    image = [least + extra for least, extra in zip(smallest_image(window, geometry), more, strict=True)]
    x, bias = fenced(torch.randn(batch, sizes[1], *image)), fenced(torch.randn(sizes[0])) if biased else None
    with on(level), fences():
        y = bound(weight, geometry, dtype, bias, relu)(x)
    check(y, x, weight, bias, relu, geometry)


@LEVEL
@settings(max_examples=60)
@given(
    window=pairs(1, 4),
    geometry=GEOMETRIES,
    more=pairs(0, 20),
    batch=st.integers(1, 3),
    relu=st.booleans(),
    seed=st.integers(0, 99),
)
def test_inf_and_nan_reach_just_the_outputs_that_have_a_weight_for_them(
    level, window, geometry, more, batch, relu, seed
):
    torch.manual_seed(seed)
    weight = random_weight(5, 4, window, 0.3)
    image = [least + extra for least, extra in zip(smallest_image(window, geometry), more, strict=True)]
    x = torch.randn(batch, 4, *image)
    for value in (float("inf"), float("-inf"), float("nan")):
        x[torch.randint(batch, ()), torch.randint(4, ()), torch.randint(image[0], ()), torch.randint(image[1], ())] = (
            value
        )
    with on(level):
        y = bound(weight, geometry, relu=relu)(fenced(x))
    stride, padding, dilation = geometry
    patches = functional.unfold(x.double(), window, dilation, padding, stride).transpose(1, 2)
    wanted = torch.stack([exact(each, weight.flatten(1), weight.flatten(1) != 0, None, relu).t() for each in patches])
    wanted = wanted.view(y.shape)
    assert torch.equal(y.isnan(), wanted.isnan())
    assert torch.equal(y.isinf(), wanted.isinf())
    assert torch.equal(y[y.isinf()].double(), wanted[wanted.isinf()])
    finite = wanted.isfinite()
    size = functional.conv2d(x.nan_to_num(0.0, 0.0, 0.0).double().abs(), weight.double().abs(), None, *geometry)
    roundings = (weight[0].numel() + 6) * UNIT
    assert ((y - wanted).abs()[finite] <= size[finite] * roundings / (1 - roundings)).all()


@LEVEL
def test_no_image_gives_no_output(level):
    with on(level):
        y = bound(random_weight(5, 4, (3, 3), 0.3), Geometry(padding=(1, 1)))(torch.empty(0, 4, 6, 7))
    assert y.shape == (0, 5, 6, 7)


@LEVEL
@pytest.mark.parametrize("image", [(1, 40, 40), (1, 7, 7), (3, 8, 8), (40, 16, 16)], ids=str)
def test_threads_and_chunks_of_images_change_nothing(level, image):
    batch, *sides = image
    weight, geometry = random_weight(300, 40, (3, 3), 0.99), Geometry(padding=(1, 1))
    x = torch.randn(batch, 40, *sides)
    before, found = torch.get_num_threads(), []
    with on(level):
        convolved = bound(weight, geometry, bias=torch.randn(300), panel=64, width=128)
        try:
            for threads in (1, 2, 3, 5):
                torch.set_num_threads(threads)
                with fences():
                    found.append(convolved(x))
        finally:
            torch.set_num_threads(before)
        assert all(torch.equal(found[0], other) for other in found[1:])
        assert torch.equal(found[0], torch.cat([convolved(each) for each in x.split(1)]))


@LEVEL
def test_one_convolution_may_be_called_from_many_threads(level):
    batches = [torch.randn(1 + side % 3, 4, side, 40 - side) for side in range(3, 37)]
    with on(level):
        convolved = bound(random_weight(20, 4, (3, 3), 0.3), Geometry((2, 1), (1, 1)))
    alone = [convolved(x) for x in batches]
    with ThreadPoolExecutor(4) as pool:
        assert all(map(torch.equal, alone, pool.map(convolved, batches)))


@LEVEL
def test_too_large_images_are_an_error_of_python(level):
    inputs = 2**50
    starts = torch.zeros(2, 2, dtype=torch.int64)
    matrix = Matrix(1, inputs, 1, inputs, 0, 0, None, None, None, None, None, starts.data_ptr())
    window = Window(inputs, (1, 1), (1, 1), (1, 1), (1, 1))
    with on(level), pytest.raises(MemoryError, match="2 images of 3 x 4"):
        convolution(matrix, window, lambda *image: image)(torch.ones(2, 1, 3, 4))
