"""The format of sparse convolutions: what it keeps, the images it takes. The table's tests hold its products."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from secateur import ShapeError
from secateur.runtime.formats import Geometry
from secateur.runtime.formats.csr import CSR
from secateur.runtime.formats.direct import DIRECT
from tests.runtime.formats.references import conv_weights, geometries


@given(weight=conv_weights(), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
@settings(max_examples=40)
def test_a_weight_is_kept_as_the_matrix_of_all_that_an_output_reads(weight, dtype):
    parts = DIRECT.pack(weight, dtype)
    assert all(map(torch.equal, parts, CSR.pack(weight.flatten(1), dtype)))
    assert torch.equal(DIRECT.unpack(parts, weight.shape), weight.to(dtype).float())


@given(weight=conv_weights(), geometry=geometries(), height=st.integers(1, 12), width=st.integers(1, 12))
@settings(max_examples=60)
def test_images_that_torch_takes_are_taken_and_others_are_refused(weight, geometry, height, width):
    convolved = DIRECT.bind(DIRECT.pack(weight, torch.float32), weight.shape, None, False, geometry)
    x = torch.randn(2, weight.shape[1], height, width)
    try:
        expected = functional.conv2d(x, weight, None, *geometry).shape
    except RuntimeError:
        with pytest.raises(ShapeError, match="window of a convolution is larger than the padded image") as caught:
            convolved(x)
        assert caught.value.facts["image"] == (height, width)
        assert caught.value.facts["window"] == tuple(weight.shape[2:])
    else:
        assert convolved(x).shape == expected


def test_parameters_are_packed_and_give_no_graph():
    layer = nn.Conv2d(3, 5, 3)
    parts = DIRECT.pack(layer.weight, torch.float32)
    y = DIRECT.bind(parts, layer.weight.shape, layer.bias, False, Geometry())(torch.randn(2, 3, 6, 6))
    assert not y.requires_grad


@pytest.mark.parametrize(
    ("weight", "why"),
    [(torch.zeros(0, 3, 1, 1), "no entries"), (torch.ones(2, 2, 3, 3), "no zeros")],
    ids=["no output", "dense"],
)
def test_a_weight_that_need_not_be_kept_so_is_refused(weight, why):
    assert why in DIRECT.misfit(weight, Geometry())
    assert DIRECT.misfit(torch.eye(3)[..., None, None], Geometry()) == ""
