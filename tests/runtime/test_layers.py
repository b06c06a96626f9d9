"""Packed layers are the dense ones, refuse what they cannot do, and can be seen by whoever watches torch."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from secateur import InvalidInputError, ShapeError, UnsupportedError
from secateur.runtime.formats import CONV_FORMATS, LINEAR_FORMATS, Geometry
from secateur.runtime.layers import SparseConv2d, SparseLayer, SparseLinear
from tests.runtime.formats.references import CONV, LINEAR, masked

INPUTS, OUTPUTS = 48, 64
EPS = torch.finfo(torch.float32).eps


@pytest.fixture(autouse=True)
def _all_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, each in LINEAR.items():
        monkeypatch.setitem(LINEAR_FORMATS, name, each)
    for name, conv in CONV.items():
        monkeypatch.setitem(CONV_FORMATS, name, conv)


def rounded(tensor: Tensor) -> Tensor:
    """Numbers that each of the dtypes can hold."""
    return tensor.half().bfloat16().half().float()


def linear(name: str, dtype: torch.dtype = torch.float32, *, bias: bool = True, relu: bool = False) -> SparseLinear:
    weight = rounded(masked((OUTPUTS, INPUTS), 0.8, 32))
    given_bias = rounded(torch.linspace(-1, 1, OUTPUTS)) if bias else None
    parts = LINEAR[name].pack(weight, torch.float32)
    return SparseLinear(name, parts, weight.shape, given_bias, relu=relu, dtype=dtype)


def conv(name: str, dtype: torch.dtype = torch.float32, *, bias: bool = True, relu: bool = False) -> SparseConv2d:
    weight = rounded(masked((8, 4, 3, 3), 0.7))
    given_bias = rounded(torch.linspace(-1, 1, 8)) if bias else None
    parts, geometry = CONV[name].pack(weight, torch.float32), Geometry((2, 1), (1, 1), (1, 2))
    return SparseConv2d(name, parts, weight.shape, given_bias, relu=relu, dtype=dtype, geometry=geometry)


def dense(layer: SparseLayer) -> nn.Module:
    """The dense layer in double precision."""
    if isinstance(layer, SparseLinear):
        same: nn.Module = nn.Linear(INPUTS, OUTPUTS, bias=layer.bias is not None)
    else:
        assert isinstance(layer, SparseConv2d)
        stride, padding, dilation = layer.geometry
        same = nn.Conv2d(4, 8, 3, stride, padding, dilation, bias=layer.bias is not None)
    same = same.double().requires_grad_(False)
    same.weight.copy_(layer.weight)
    if layer.bias is not None:
        same.bias.copy_(layer.bias)
    return nn.Sequential(same, nn.ReLU()) if layer.relu else same


def image(*shape: int) -> Tensor:
    return torch.randn(shape or (2, 4, 7, 9))


def is_dense_product(layer: SparseLayer, x: Tensor, y: Tensor) -> bool:
    exact = dense(layer)(x.double())
    limit = 1e-5 if layer.dtype == torch.float32 else 1e-2
    return (
        y.shape == exact.shape
        and y.dtype == layer.dtype
        and bool(((y.double() - exact).abs() <= limit * (1 + exact.abs())).all())
    )


LAYERS: dict[str, tuple[Callable[..., SparseLayer], Callable[[], Tensor]]] = {
    **{
        f"linear, {name}": (lambda name=name, **k: linear(name, **k), lambda: torch.randn(5, INPUTS)) for name in LINEAR
    },
    **{f"conv, {name}": (lambda name=name, **k: conv(name, **k), image) for name in CONV},
}
BOTH = pytest.mark.parametrize("make", [linear, conv])


def example(make: Callable[..., SparseLayer]) -> tuple[SparseLayer, Tensor]:
    """A layer in a format that every machine has, and an input."""
    return make("kept dense"), torch.randn(5, INPUTS) if make is linear else image()


# What they compute ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_layer_computes_what_the_dense_one_does(kind: str, relu: bool, bias: bool, dtype: torch.dtype) -> None:
    make, inputs = LAYERS[kind]
    layer, x = make(dtype=dtype, bias=bias, relu=relu), inputs().to(dtype)
    assert is_dense_product(layer, x, layer(x))


@pytest.mark.parametrize("name", LINEAR)
@given(st.lists(st.integers(0, 4), max_size=3), st.sampled_from(["", "strided", "transposed", "expanded", "offset"]))
def test_linear_takes_any_leading_dims_and_any_memory_order(name: str, dims: list[int], kind: str) -> None:
    layer, x = linear(name), laid_out((*dims, INPUTS), kind)
    y = layer(x)
    assert is_dense_product(layer, x, y)
    assert y.is_contiguous()


def laid_out(shape: tuple[int, ...], kind: str) -> Tensor:
    """A tensor of a shape whose memory is in another order."""
    if kind == "strided":
        return torch.randn(*shape[:-1], 2 * shape[-1])[..., ::2]
    if kind == "transposed":
        return torch.randn(shape[::-1]).permute(*reversed(range(len(shape))))
    if kind == "expanded":
        return torch.randn(shape[-1:]).expand(shape)
    if kind == "offset":
        return torch.randn(torch.Size(shape).numel() + 3)[3:].view(shape)
    return torch.randn(shape)


@pytest.mark.parametrize("name", CONV)
@pytest.mark.parametrize("shape", [(2, 4, 7, 9), (1, 4, 3, 30), (0, 4, 7, 7), (4, 7, 9)], ids=str)
@pytest.mark.parametrize("order", ["contiguous", "channels last", "transposed"])
def test_conv_takes_any_image_in_any_memory_order(name: str, shape: tuple[int, ...], order: str) -> None:
    layer, x = conv(name), torch.randn(shape)
    if order == "channels last" and len(shape) == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    if order == "transposed":
        x = torch.randn(*shape[:-2], shape[-1], shape[-2]).mT
    y = layer(x)
    assert is_dense_product(layer, x, y)
    assert (y if y.dim() == 4 else y[None]).is_contiguous(memory_format=CONV[name].order)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("mode", [nullcontext, torch.no_grad, torch.inference_mode])
def test_layer_runs_in_every_mode(kind: str, mode: Callable[[], AbstractContextManager[None]]) -> None:
    make, inputs = LAYERS[kind]
    layer, x = make(), inputs()
    with mode():
        y = layer(x)
    assert not y.requires_grad
    assert is_dense_product(layer, x, y.clone())


@BOTH
def test_layer_takes_an_input_that_requires_grad_where_nothing_is_recorded(make: Callable[..., SparseLayer]) -> None:
    layer, x = example(make)
    with torch.no_grad():
        assert torch.equal(layer(x.requires_grad_()), layer(x.detach()))


# What they are --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LAYERS)
def test_weight_and_bias_are_the_dense_ones(kind: str) -> None:
    layer = LAYERS[kind][0](dtype=torch.bfloat16)
    expected = masked((OUTPUTS, INPUTS), 0.8, 32) if isinstance(layer, SparseLinear) else masked((8, 4, 3, 3), 0.7)
    assert torch.equal(layer.weight, rounded(expected).bfloat16())
    assert layer.bias is not None
    assert torch.equal(layer.bias, rounded(torch.linspace(-1, 1, len(expected))).bfloat16())
    assert LAYERS[kind][0](bias=False).bias is None


def test_weight_of_a_transposed_layer_has_the_inputs_first() -> None:
    weight = masked((OUTPUTS, INPUTS), 0.8, 32)
    parts = LINEAR["kept dense"].pack(weight, torch.float32)
    layer = SparseLinear("kept dense", parts, weight.shape, None, relu=False, dtype=torch.float32, transposed=True)
    x = torch.randn(3, INPUTS)
    torch.testing.assert_close(layer(x), x @ layer.weight)
    assert torch.equal(layer.weight, weight.T)


@pytest.mark.parametrize("kind", LAYERS)
def test_counts_are_those_of_the_dense_layer(kind: str) -> None:
    layer = LAYERS[kind][0]()
    bias = layer.bias
    assert bias is not None
    zeros = int((layer.weight == 0).sum())
    assert layer.profile_counts() == (
        layer.weight.numel() + bias.numel(),
        layer.weight.numel() - zeros + int((bias != 0).sum()),
    )
    assert LAYERS[kind][0](bias=False).profile_counts() == (layer.weight.numel(), layer.weight.numel() - zeros)


@BOTH
def test_layer_shows_its_sizes_its_format_and_its_zeros(make: Callable[..., SparseLayer]) -> None:
    layer, _ = example(make)
    zeros = float((layer.weight == 0).float().mean())
    assert f"format='kept dense', sparsity={zeros:.2f}, relu=False" in repr(layer)
    assert ("48, 64" if make is linear else "4, 8, kernel_size=(3, 3), stride=(2, 1), padding=(1, 1)") in repr(layer)


@pytest.mark.parametrize("kind", LAYERS)
def test_copy_is_a_layer_of_its_own_whenever_it_is_made(kind: str) -> None:
    make, inputs = LAYERS[kind]
    layer, x = make(), inputs()
    early, y = copy.deepcopy(layer), layer(x)
    late = copy.deepcopy(layer)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    pickled = torch.load(file, weights_only=False)
    for twin in (early, late, pickled):
        own = {part.data_ptr() for part in layer.parts if part.numel()}
        assert not own & {part.data_ptr() for part in twin.parts if part.numel()}
        assert torch.equal(twin(x), y)
    del layer, early
    assert torch.equal(late(x), y)


@pytest.mark.parametrize("kind", LAYERS)
def test_layer_can_be_used_again_with_other_sizes(kind: str) -> None:
    make, _ = LAYERS[kind]
    layer = make()
    sizes = (
        [(3, INPUTS), (1, INPUTS), (70, INPUTS)] if isinstance(layer, SparseLinear) else [(1, 4, 5, 5), (2, 4, 9, 3)]
    )
    for shape in [*sizes, *reversed(sizes)]:
        x = torch.randn(shape)
        assert is_dense_product(layer, x, layer(x))


@BOTH
def test_layer_has_no_parameters_and_the_dense_weight_in_its_state(make: Callable[..., SparseLayer]) -> None:
    layer, _ = example(make)
    assert list(layer.parameters()) == []
    state = layer.state_dict()
    assert state.keys() == {"weight"} | ({"bias"} if layer.bias is not None else set())
    assert torch.equal(state["weight"], layer.weight)
    with pytest.raises(UnsupportedError, match="other weights cannot be loaded"):
        layer.load_state_dict(state)
    assert not layer.training


# What they refuse -----------------------------------------------------------------------------------------------------


@BOTH
def test_input_of_another_width_is_refused(make: Callable[..., SparseLayer]) -> None:
    layer, x = example(make)
    with pytest.raises(ShapeError, match=r"another width(?s:.*)wanted: "):
        layer(x[:, :-1])


def test_linear_refuses_a_scalar() -> None:
    with pytest.raises(ShapeError, match="another width"):
        linear("kept dense")(torch.tensor(1.0))


@pytest.mark.parametrize("shape", [(4, 5), (1, 2, 4, 5, 5), (4,), ()], ids=str)
def test_conv_refuses_what_is_no_image(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="SparseConv2d takes images"):
        conv("kept dense")(torch.randn(shape))


@pytest.mark.parametrize("name", CONV)
def test_conv_refuses_an_image_that_is_smaller_than_the_window(name: str) -> None:
    with pytest.raises(ShapeError, match="image is smaller than the window"):
        conv(name)(torch.randn(1, 4, 5, 2))


@BOTH
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64], ids=str)
def test_input_of_another_dtype_is_refused(make: Callable[..., SparseLayer], dtype: torch.dtype) -> None:
    layer, x = example(make)
    with pytest.raises(InvalidInputError, match=r"another dtype(?s:.*)wanted: torch.float32 .*input: "):
        layer(x.to(dtype))


@BOTH
def test_input_on_another_device_is_refused(make: Callable[..., SparseLayer]) -> None:
    layer, x = example(make)
    with pytest.raises(InvalidInputError, match=r"on the CPU, and its input is not(?s:.*)input: meta"):
        layer(x.to("meta"))


@BOTH
def test_training_through_a_layer_is_refused(make: Callable[..., SparseLayer]) -> None:
    layer, x = example(make)
    with pytest.raises(UnsupportedError, match=r"cannot train through(?s:.*)torch.inference_mode\(\)"):
        layer(x.requires_grad_())
    with pytest.raises(UnsupportedError, match=r"for inference(?s:.*)train the model that it was made of"):
        layer.train()
    assert not layer.training
    assert layer.train(False) is layer


CHANGES: dict[str, Callable[[nn.Module], object]] = {
    "half": lambda layer: layer.half(),
    "double": lambda layer: layer.double(),
    "to bfloat16": lambda layer: layer.to(torch.bfloat16),
    "to meta": lambda layer: layer.to("meta"),
    "to empty": lambda layer: layer.to_empty(device="meta"),
}


@BOTH
@pytest.mark.parametrize("change", CHANGES)
def test_another_dtype_or_device_is_refused_with_nothing_changed(make: Callable[..., SparseLayer], change: str) -> None:
    layer, x = example(make)
    y = layer(x)
    with pytest.raises(UnsupportedError, match=r"made for: torch.float32 on cpu .*asked: torch"):
        CHANGES[change](layer)
    assert torch.equal(layer(x), y)


@BOTH
def test_the_same_dtype_and_device_are_fine(make: Callable[..., SparseLayer]) -> None:
    layer, x = example(make)
    y = layer(x)
    assert layer.cpu() is layer
    assert layer.to(torch.float32).to("cpu").float() is layer
    assert torch.equal(layer.share_memory()(x), y)


@pytest.mark.parametrize(
    "bias", [torch.zeros(OUTPUTS - 1), torch.zeros(OUTPUTS, 1), torch.zeros(())], ids=lambda b: str(b.dim())
)
def test_bias_of_another_shape_is_refused(bias: Tensor) -> None:
    weight = masked((OUTPUTS, INPUTS), 0.8, 32)
    parts = LINEAR["kept dense"].pack(weight, torch.float32)
    with pytest.raises(ShapeError, match="the bias of a layer has another shape"):
        SparseLinear("kept dense", parts, weight.shape, bias, relu=False, dtype=torch.float32)


@pytest.mark.parametrize("name", CONV)
@pytest.mark.parametrize(
    "geometry",
    [
        Geometry(stride=(0, 1)),
        Geometry(stride=(1, -1)),
        Geometry(dilation=(1, 0)),
        Geometry(dilation=(-1, -1)),
        Geometry(padding=(-1, 0)),
        Geometry(padding=(0, 1 << 31)),
        Geometry(stride=(1 << 32, 1)),
        Geometry(stride=(0.5, 1)),  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_geometry_of_no_convolution_is_refused(name: str, geometry: Geometry) -> None:
    weight = masked((8, 4, 3, 3), 0.7)
    parts = CONV[name].pack(weight, torch.float32)
    with pytest.raises(InvalidInputError, match=r"no convolution moves like this(?s:.*)stride: "):
        SparseConv2d(name, parts, weight.shape, None, relu=False, dtype=torch.float32, geometry=geometry)


# Who sees them --------------------------------------------------------------------------------------------------------


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_graph_holds_the_product(kind: str, dtype: torch.dtype) -> None:
    make, inputs = LAYERS[kind]
    layer, x = make(dtype=dtype, relu=True), inputs().to(dtype)
    model = nn.Sequential(nn.Identity(), layer, nn.Tanh())
    assert torch.equal(torch.compile(model, fullgraph=True, backend="aot_eager")(x), model(x))


@pytest.mark.slow
@BOTH
@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_code_computes_the_product(make: Callable[..., SparseLayer]) -> None:
    layer, x = example(make)
    compiled = torch.compile(nn.Sequential(layer, nn.Tanh()), fullgraph=True)
    for images in (x, x[:1], torch.cat([x, x])):
        torch.testing.assert_close(compiled(images), layer(images).tanh())


@pytest.mark.parametrize("kind", LAYERS)
def test_exported_program_computes_the_product_for_any_batch_size(kind: str) -> None:
    make, inputs = LAYERS[kind]
    layer, x = make(), inputs()
    shapes = {0: torch.export.Dim("batch", min=1, max=64)}
    program = torch.export.export(nn.Sequential(layer), (x,), dynamic_shapes=(shapes,), strict=False)
    for batch in (x, torch.cat([x, x, x])):
        assert torch.equal(program.module()(batch), layer(batch))


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.filterwarnings("ignore:.torch.jit.trace:FutureWarning", "ignore::torch.jit.TracerWarning")
def test_traced_program_computes_the_product(kind: str) -> None:
    make, inputs = LAYERS[kind]
    layer, x = make(), inputs()
    traced = torch.jit.trace(nn.Sequential(layer), (x,))
    other = torch.randn_like(x)
    assert torch.equal(traced(other), layer(other))


@pytest.mark.parametrize("kind", LAYERS)
def test_fake_tensors_have_the_shape_of_the_product(kind: str) -> None:
    make, inputs = LAYERS[kind]
    layer, x = make(dtype=torch.bfloat16), inputs().bfloat16()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        y = layer(mode.from_tensor(x))
    assert (y.shape, y.dtype) == (layer(x).shape, torch.bfloat16)


@pytest.mark.parametrize("kind", LAYERS)
def test_vmap_computes_each_product(kind: str) -> None:
    make, inputs = LAYERS[kind]
    layer, x = make(), torch.stack([inputs() for _ in range(3)])
    torch.testing.assert_close(torch.vmap(layer)(x), torch.stack([layer(each) for each in x]))


class Seen(TorchDispatchMode):
    """Names of the ops that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", LAYERS)
def test_dispatch_mode_sees_one_op(kind: str) -> None:
    make, inputs = LAYERS[kind]
    layer, x = make(), inputs()
    with Seen() as seen:
        y = layer(x)
    ops = {"secateur.sparse_linear.default", "secateur.sparse_conv2d.default"}
    if layer._table()[layer.format].is_dense:
        ops = {"aten.addmm.default", "aten.convolution.default"}
        assert is_dense_product(layer, x, y)
    else:
        assert torch.equal(y, layer(x))
    assert len([name for name in seen.names if name in ops]) == 1


@pytest.mark.parametrize("kind", [kind for kind in LAYERS if not kind.endswith(" prepacked")])
def test_op_is_sound(kind: str) -> None:
    make, inputs = LAYERS[kind]
    layer, x = make(), inputs()
    bias, parts = layer.get_buffer("float_bias"), list(layer.parts)
    if isinstance(layer, SparseLinear):
        given: tuple[Any, ...] = (x, parts, bias, list(layer.shape), layer.format, True)
        op = torch.ops.secateur.sparse_linear.default
    else:
        assert isinstance(layer, SparseConv2d)
        given = (x, parts, bias, list(layer.shape), layer.format, True, *map(list, layer.geometry))
        op = torch.ops.secateur.sparse_conv2d.default
    checked = ("test_schema", "test_faketensor")
    assert set(torch.library.opcheck(op, given, test_utils=checked).values()) == {"SUCCESS"}


# Tensors that are not what their memory says --------------------------------------------------------------------------


@BOTH
def test_input_whose_memory_was_freed_is_refused(make: Callable[..., SparseLayer]) -> None:
    layer, x = example(make)
    x = x.clone()
    x.untyped_storage().resize_(0)
    with pytest.raises(InvalidInputError, match="no memory"):
        layer(x)


@BOTH
def test_signs_that_are_yet_to_come_are_taken_into_account(make: Callable[..., SparseLayer]) -> None:
    layer, x = example(make)
    torch.testing.assert_close(layer(torch._neg_view(x)), layer(-x))
    torch.testing.assert_close(layer(torch._efficientzerotensor(x.shape)), layer(torch.zeros_like(x)))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")
@BOTH
def test_forward_mode_differentiation_is_refused(make: Callable[..., SparseLayer]) -> None:
    layer, x = example(make)
    with pytest.raises(UnsupportedError, match="no gradients"):
        torch.func.jvp(layer, (x,), (x,))
    with torch.autograd.forward_ad.dual_level(), pytest.raises(UnsupportedError, match="no gradients"):
        layer(torch.autograd.forward_ad.make_dual(x, x))


def test_sparse_input_is_refused() -> None:
    layer, x = example(linear)
    with pytest.raises(InvalidInputError, match="takes dense tensors"):
        layer(x.to_sparse())
