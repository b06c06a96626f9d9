"""`resize_` and `grow_` on one parameter: what changes, what stays, and what is refused."""

from __future__ import annotations

import copy
import pickle
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from secateur import InvalidInputError, ShapeError, StaleGraphError, grow_, resize_, transaction
from tests.contract.optimizer_table import BY_NAME

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


class Weight(nn.Module):
    """One parameter of any shape."""

    def __init__(self, value: Tensor, requires_grad: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(value, requires_grad=requires_grad)


@st.composite
def cuts(draw: st.DrawFn) -> tuple[list[int], int, list[int]]:
    """A shape, one of its dims, and the positions of it that stay."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    dim = draw(st.integers(-len(shape), len(shape) - 1))
    keep = sorted(draw(st.sets(st.integers(0, shape[dim] - 1), min_size=1)))
    return shape, dim, keep


FORMS = {
    "list": lambda keep, size: keep,
    "tensor": lambda keep, size: torch.tensor(keep),
    "mask": lambda keep, size: torch.tensor([i in keep for i in range(size)]),
    "array": lambda keep, size: np.array(keep),
}
ANY_SHAPE = [
    name
    for name, case in BY_NAME.items()
    if not (case.needs_closure or case.needs_sparse or case.needs_matrices or case.is_shape_dependent)
]


# The oracle: plain indexing -------------------------------------------------------------------------------------------


@given(
    cuts(),
    st.sampled_from(DTYPES),
    st.sampled_from(list(FORMS)),
    st.sampled_from(ANY_SHAPE),
    st.booleans(),
)
def test_resize_is_plain_indexing_of_everything(
    cut: tuple[list[int], int, list[int]], dtype: torch.dtype, form: str, optimizer_name: str, has_grad: bool
) -> None:
    shape, dim, keep = cut
    case = BY_NAME[optimizer_name]
    if dtype in (torch.float16, torch.bfloat16) and case.form == "fused":
        dtype = torch.float32  # fused kernels do not serve them on the CPU
    module = Weight(torch.randn(shape).to(dtype))
    optimizer = case.make(module.parameters())
    for _ in range(2):
        module.weight.grad = torch.randn(shape).to(dtype)
        optimizer.step()
    if not has_grad:
        optimizer.zero_grad()
    index = torch.tensor(keep)
    expected = module.weight.detach().index_select(dim, index)
    gradient = module.weight.grad.index_select(dim, index) if module.weight.grad is not None else None
    state = copy.deepcopy(optimizer.state[module.weight])
    for name, value in state.items():
        if isinstance(value, Tensor) and value.shape == torch.Size(shape):
            state[name] = value.index_select(dim, index)
    weight = resize_(module, "weight", dim=dim, keep=FORMS[form](keep, shape[dim]), optimizer=optimizer)
    assert weight is module.weight
    assert torch.equal(weight.detach(), expected)
    assert (weight.grad is None) if gradient is None else torch.equal(weight.grad, gradient)
    assert state.keys() == optimizer.state[weight].keys()
    for name, value in optimizer.state[weight].items():
        assert torch.equal(value, state[name]) if isinstance(value, Tensor) else value == state[name]


@given(cuts(), st.integers(1, 3), st.sampled_from(DTYPES))
def test_growing_and_cutting_back_is_nothing(
    cut: tuple[list[int], int, list[int]], num_new: int, dtype: torch.dtype
) -> None:
    shape, dim, _ = cut
    module = Weight(torch.randn(shape).to(dtype))
    module.weight.grad = torch.randn(shape).to(dtype)
    before, gradient = module.weight.detach().clone(), module.weight.grad.clone()
    grow_(module, "weight", dim=dim, size=shape[dim] + num_new, init=nn.init.ones_)
    assert module.weight.shape[dim] == shape[dim] + num_new
    assert module.weight.narrow(dim, shape[dim], num_new).eq(1).all()
    assert not module.weight.grad.narrow(dim, shape[dim], num_new).any()
    resize_(module, "weight", dim=dim, keep=range(shape[dim]))
    assert torch.equal(module.weight.detach(), before)
    assert torch.equal(module.weight.grad, gradient)


# What stays -----------------------------------------------------------------------------------------------------------


def test_identity_names_and_attributes_stay() -> None:
    layer = nn.Linear(6, 4)
    weight, reference = layer.weight, weakref.ref(layer.weight)
    weight.note, weight.is_special = "mine", True
    names, identity, listed = list(layer.state_dict()), id(weight), [weight]
    assert resize_(layer, "weight", dim=1, keep=[0, 2, 5]) is weight
    assert layer.weight is reference() is listed[0]
    assert id(layer.weight) == identity
    assert (weight.note, weight.is_special) == ("mine", True)
    assert type(weight) is nn.Parameter
    assert list(layer.state_dict()) == names


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64, torch.float8_e4m3fn], ids=str)
def test_dtype_and_requires_grad_stay(dtype: torch.dtype, requires_grad: bool) -> None:
    module = Weight(torch.ones(4, 6).to(dtype), requires_grad)
    resize_(module, "weight", dim=1, keep=[0, 2])
    assert (module.weight.dtype, module.weight.requires_grad, module.weight.is_leaf) == (dtype, requires_grad, True)
    assert module.weight.shape == (4, 2)
    assert module.weight.grad is None


def test_meta_device_stays() -> None:
    layer = nn.Linear(6, 4, device="meta")
    resize_(layer, "weight", dim=1, keep=[0, 2])
    grow_(layer, "weight", dim=0, size=5, init=nn.init.ones_)
    assert layer.weight.is_meta
    assert layer.weight.shape == (5, 2)


def test_device_of_default_does_not_matter() -> None:
    layer = nn.Linear(6, 4)
    with torch.device("meta"):
        resize_(layer, "weight", dim=1, keep=[0, 2])
        grow_(layer, "weight", dim=1, size=3)
    assert layer.weight.device.type == "cpu"
    assert layer.weight.shape == (4, 3)


@pytest.mark.parametrize("dim", [0, 1])
def test_channels_last_stays_with_its_state(dim: int) -> None:
    conv = nn.Conv2d(6, 8, 3).to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(conv.parameters())
    conv(torch.randn(2, 6, 5, 5).to(memory_format=torch.channels_last)).sum().backward()
    optimizer.step()
    resize_(conv, "weight", dim=dim, keep=[0, 2, 5], optimizer=optimizer)
    state = optimizer.state[conv.weight]
    for tensor in (conv.weight, conv.weight.grad, state["exp_avg"], state["exp_avg_sq"]):
        assert tensor.is_contiguous(memory_format=torch.channels_last)


def test_hooks_stay() -> None:
    layer = nn.Linear(3, 2)
    log: list[str] = []
    layer.weight.register_hook(lambda g: log.append(f"tensor {tuple(g.shape)}"))
    layer.weight.register_post_accumulate_grad_hook(lambda p: log.append(f"accumulated {tuple(p.grad.shape)}"))
    layer.register_forward_hook(lambda *_: log.append("forward"))
    layer.register_full_backward_hook(lambda *_: log.append("backward"))
    kept_alive = layer(torch.ones(1, 3, requires_grad=True))
    log.clear()
    resize_(layer, "weight", dim=1, keep=[0, 2])
    layer(torch.ones(1, 2, requires_grad=True)).sum().backward()
    assert sorted(log) == ["accumulated (2, 2)", "backward", "forward", "tensor (2, 2)"]
    assert kept_alive.grad_fn is not None


def test_resize_works_inside_a_hook() -> None:
    layer = nn.Linear(3, 2, bias=False)

    def shrink(weight: Tensor) -> None:
        if weight.shape[1] == 3:
            resize_(layer, "weight", dim=1, keep=[0, 2])

    layer.weight.register_post_accumulate_grad_hook(shrink)
    layer(torch.tensor([[1.0, 2.0, 3.0]])).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.tolist() == [[1.0, 3.0], [1.0, 3.0]]
    layer(torch.ones(1, 2)).sum().backward()
    assert layer.weight.grad.tolist() == [[2.0, 4.0], [2.0, 4.0]]


def test_tied_parameter_is_cut_once_and_stays_tied() -> None:
    model = nn.ModuleList([nn.Linear(4, 4, bias=False) for _ in range(3)])
    for layer in model:
        layer.weight = model[0].weight
    expected = model[0].weight.detach()[:, [1, 2]]
    resize_(model, "1.weight", dim=1, keep=[1, 2])
    assert all(layer.weight is model[0].weight for layer in model)
    assert torch.equal(model[0].weight.detach(), expected)
    assert [layer.in_features for layer in model] == [2, 2, 2]


def test_old_memory_is_freed() -> None:
    layer = nn.Linear(6, 4)
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.ones(1, 6)).sum().backward()
    optimizer.step()
    tensors = [layer.weight, layer.weight.grad, *optimizer.state[layer.weight].values()]
    old = [weakref.ref(t.untyped_storage()) for t in tensors if t.dim()]
    del tensors
    resize_(layer, "weight", dim=1, keep=[0, 2], optimizer=optimizer)
    assert [reference() for reference in old] == [None] * 4


def test_model_can_be_copied_pickled_moved_and_loaded_afterwards() -> None:
    layer = nn.Linear(6, 4)
    resize_(layer, "weight", dim=1, keep=[0, 2])
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(twin.weight, layer.weight)
    layer.load_state_dict(nn.Linear(2, 4).state_dict())
    assert layer.double().weight.dtype == torch.float64
    assert torch.func.functional_call(layer, dict(layer.named_parameters()), torch.ones(1, 2).double()).shape == (1, 4)


# Gradients and graphs -------------------------------------------------------------------------------------------------


def test_half_accumulated_gradient_goes_on() -> None:
    layer, whole = nn.Linear(4, 3), nn.Linear(4, 3)
    whole.load_state_dict(layer.state_dict())
    x = torch.randn(2, 5, 4)
    for module in (layer, whole):
        module(x[0]).square().sum().backward()
    resize_(layer, "weight", dim=0, keep=[0, 2])
    resize_(layer, "bias", dim=0, keep=[0, 2])
    layer(x[1]).square().sum().backward()
    whole(x[1])[:, [0, 2]].square().sum().backward()
    assert torch.allclose(layer.weight.grad, whole.weight.grad[[0, 2]])
    assert torch.allclose(layer.bias.grad, whole.bias.grad[[0, 2]])


@pytest.mark.parametrize("dim", [0, 1])
def test_sparse_gradient_follows(dim: int) -> None:
    table = nn.Embedding(6, 4, sparse=True)
    table(torch.tensor([0, 2, 2, 5])).sum().backward()
    expected = table.weight.grad.to_dense().index_select(dim, torch.tensor([0, 2]))
    resize_(table, "weight", dim=dim, keep=[0, 2])
    assert table.weight.grad.is_sparse
    assert torch.equal(table.weight.grad.to_dense(), expected)
    table(torch.tensor([1])).sum().backward()


def test_gradient_of_an_old_graph_never_arrives() -> None:
    layer = nn.Linear(4, 3)
    loss = layer(torch.ones(1, 4)).sum()
    resize_(layer, "weight", dim=1, keep=[0, 2])
    with pytest.raises(StaleGraphError, match=r"'weight' \(3, 4\) -> \(3, 2\)"):
        loss.backward()
    assert layer.weight.grad is None
    assert layer.bias.grad is None


def test_old_graph_is_stopped_from_an_intermediate_on() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    hidden = model[1](model[0](torch.ones(1, 4)))  # all that is left alive of the graph
    resize_(model, "0.weight", dim=1, keep=[0, 1])
    loss = model[2](hidden).sum()
    with pytest.raises(StaleGraphError, match=r"'0\.weight'"):
        loss.backward()
    assert model[0].weight.grad is None


def test_graph_of_which_only_c_plus_plus_knows_is_stopped() -> None:
    weight, x = nn.Parameter(torch.ones(3)), torch.ones(3, requires_grad=True)
    module = nn.ParameterDict({"w": weight})
    inner = (weight * 2).sum()
    loss = torch.stack([inner, x.sum()]).sum()
    del inner
    resize_(module, "w", dim=0, keep=[0])
    with pytest.raises(StaleGraphError, match="'w'"):
        loss.backward()


def test_old_graph_that_does_not_reach_the_parameter_is_left_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    loss = model[0](torch.ones(1, 4)).sum()
    resize_(model, "1.weight", dim=1, keep=[0, 1])
    loss.backward()
    assert model[0].weight.grad is not None


def test_new_graph_works_while_old_ones_live_on() -> None:
    layer = nn.Linear(4, 3)
    alive = [layer(torch.ones(1, 4))]
    for keep in ([0, 1, 2], [0, 1], [0]):
        resize_(layer, "weight", dim=1, keep=keep)
        alive.append(layer(torch.ones(1, len(keep))))
    alive[-1].sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.shape == (3, 1)
    for old in alive[:-1]:
        with pytest.raises(StaleGraphError, match="'weight'"):
            old.sum().backward()
    assert layer.weight.grad.shape == (3, 1)


def test_second_order_graph_is_stopped() -> None:
    layer = nn.Linear(4, 3)
    loss = layer(torch.ones(1, 4)).square().sum()
    (gradient,) = torch.autograd.grad(loss, layer.weight, create_graph=True)
    resize_(layer, "weight", dim=1, keep=[0, 2])
    with pytest.raises(StaleGraphError, match="'weight'"):
        gradient.square().sum().backward()


def test_frozen_weight_in_an_old_graph_cannot_be_read_anew() -> None:
    layer = nn.Linear(4, 3).requires_grad_(False)
    x = torch.ones(1, 4, requires_grad=True)
    out = layer(x).sum()
    resize_(layer, "weight", dim=1, keep=[0, 2])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_cast_weights_of_autocast_are_made_anew() -> None:
    layer = nn.Linear(4, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer(torch.ones(1, 4)).sum().backward()
        resize_(layer, "weight", dim=1, keep=[0, 2])
        assert layer(torch.ones(1, 2)).shape == (1, 3)


# Where tensors are ----------------------------------------------------------------------------------------------------


def test_parameter_lists_and_dicts_are_served() -> None:
    model = nn.ModuleDict({"l": nn.ParameterList([torch.ones(3, 2)]), "d": nn.ParameterDict({"w": torch.ones(3)})})
    resize_(model, "l.0", dim=0, keep=[0, 2])
    resize_(model, "d.w", dim=0, keep=[1])
    assert (model["l"][0].shape, model["d"]["w"].shape) == ((2, 2), (1,))


def test_buffers_are_served() -> None:
    module = nn.Module()
    module.register_buffer("index", torch.arange(5), persistent=False)
    index = module.index
    resize_(module, "index", dim=0, keep=[1, 4])
    assert module.index is index
    assert index.tolist() == [1, 4]


def test_compiled_module_is_looked_into() -> None:
    layer = nn.Linear(4, 3)
    compiled = torch.compile(layer)
    for name in ("weight", "_orig_mod.bias"):
        if name == "weight":
            assert resize_(compiled, name, dim=1, keep=[0, 2]) is layer.weight
    assert layer.in_features == 2
    model = nn.Sequential(compiled)
    for name in ("0.weight", "0._orig_mod.weight"):
        assert resize_(model, name, dim=0, keep=[0, 1, 2][: 3 if name == "0.weight" else 2]) is layer.weight
    assert layer.weight.shape == (2, 2)


def test_tied_embedding_and_head_of_a_language_model_follow() -> None:
    model = nn.ModuleDict({"emb": nn.Embedding(8, 4, padding_idx=1), "head": nn.Linear(4, 8)})
    model["head"].weight = model["emb"].weight
    optimizer = torch.optim.AdamW(model.parameters())
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 2
    with transaction(model, optimizer) as t:
        t.resize("emb.weight", dim=0, keep=range(1, 8))
        t.resize("head.bias", dim=0, keep=range(1, 8))
    assert (model["emb"].num_embeddings, model["head"].out_features, model["emb"].padding_idx) == (7, 7, 0)


# Wrong input ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"name": "wieght"}, InvalidInputError, "Linear has no parameter or buffer 'wieght'"),
        ({"name": "fc.weight"}, InvalidInputError, "no module 'fc' in Linear"),
        ({"name": 3}, InvalidInputError, "a parameter is named by a string"),
        ({"dim": 2}, ShapeError, r"'weight' has no dim 2.\n  shape: \(4, 6\)"),
        ({"dim": -3}, ShapeError, "'weight' has no dim -3"),
        ({"dim": 1.0}, InvalidInputError, "`dim` must be a whole number"),
        ({"dim": "1"}, InvalidInputError, "`dim` must be a whole number"),
        ({"dim": True}, InvalidInputError, "`dim` must be a whole number"),
        ({"dim": None}, InvalidInputError, "`dim` must be a whole number"),
        ({"keep": [0, 6]}, ShapeError, "cannot resize 'weight' along dim 1: `keep` has an index outside the dim"),
        ({"keep": [-1]}, ShapeError, "outside the dim"),
        ({"keep": []}, InvalidInputError, "`keep` is empty"),
        ({"keep": [1, 0]}, InvalidInputError, "not strictly ascending"),
        ({"keep": torch.ones(5, dtype=torch.bool)}, ShapeError, "mask of another length"),
        ({"keep": {0, 1}}, InvalidInputError, "not a sequence of integers"),
        ({"keep": iter([0, 1])}, InvalidInputError, "not a sequence of integers"),
        ({"keep": 3}, InvalidInputError, "not a sequence of integers"),
    ],
)
def test_wrong_input_is_refused_before_anything_changes(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    layer = nn.Linear(6, 4)
    before, version = layer.weight.detach().clone(), layer.weight._version
    with pytest.raises(error, match=message):
        resize_(layer, **{"name": "weight", "dim": 1, "keep": [0], **arguments})
    assert torch.equal(layer.weight, before)
    assert layer.weight._version == version
    assert layer.in_features == 6


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"size": 6}, ShapeError, "cannot grow 'weight' along dim 1: `size` is its size afterwards"),
        ({"size": 2}, ShapeError, "must be larger"),
        ({"size": 7.0}, InvalidInputError, "`size` must be a whole number"),
        ({"size": True}, InvalidInputError, "`size` must be a whole number"),
        ({"init": torch.ones(4, 3)}, ShapeError, "cannot grow 'weight' along dim 1: `init` has another shape"),
        ({"init": torch.ones(4, 2) * 1j}, InvalidInputError, "another kind of dtype"),
        ({"at": [7]}, ShapeError, "`at` has another number of places than there are new positions"),
        ({"at": [7, 8]}, ShapeError, "cannot grow 'weight' along dim 1: `keep` has an index outside the dim"),
        ({"init": "zeros"}, InvalidInputError, "`init` is neither a tensor nor a function"),
        ({"init": 0.5}, InvalidInputError, "`init` is neither a tensor nor a function"),
        ({"init": lambda slab: 1 / 0}, ZeroDivisionError, "division by zero"),
    ],
)
def test_wrong_growth_is_refused_before_anything_changes(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    layer = nn.Linear(6, 4)
    before = layer.weight.detach().clone()
    with pytest.raises(error, match=message):
        grow_(layer, **{"name": "weight", "dim": 1, "size": 8, **arguments})
    assert torch.equal(layer.weight, before)


def test_numpy_integers_are_whole_numbers() -> None:
    layer = nn.Linear(6, 4)
    resize_(layer, "weight", dim=np.int64(1), keep=np.arange(3))
    grow_(layer, "weight", dim=np.int64(-1), size=np.int32(5))
    assert layer.weight.shape == (4, 5)


def test_scalar_has_no_dim() -> None:
    module = Weight(torch.tensor(1.0))
    with pytest.raises(ShapeError, match=r"'weight' has no dim 0.\n  shape: \(\)"):
        resize_(module, "weight", dim=0, keep=[0])


def test_parameter_that_is_none_is_missing() -> None:
    layer = nn.Linear(2, 2, bias=False)
    with pytest.raises(InvalidInputError, match=r"no parameter or buffer 'bias'.\n  has: weight"):
        resize_(layer, "bias", dim=0, keep=[0])
    assert layer.bias is None


def test_plain_tensor_attribute_is_no_parameter() -> None:
    layer = nn.Linear(2, 2)
    layer.plain = torch.ones(2)
    with pytest.raises(InvalidInputError, match="no parameter or buffer 'plain'"):
        resize_(layer, "plain", dim=0, keep=[0])
    assert layer.plain.shape == (2,)


def test_refusal_inside_a_transaction_leaves_what_was_asked_before() -> None:
    norm = nn.Sequential(nn.BatchNorm1d(4))
    with transaction(norm) as t:
        t.resize("0.weight", dim=0, keep=[0, 1])
        with pytest.raises(InvalidInputError, match="in two different ways"):
            t.resize("0.bias", dim=0, keep=[1, 2])
    assert norm[0].weight.shape == norm[0].running_mean.shape == (2,)
    assert norm[0].bias.shape == (4,)


@pytest.mark.parametrize("at", [[1, 4], [0, 1], slice(2, 4), torch.tensor([False, True, False, False, True, False])])
def test_new_positions_lie_where_they_are_asked_to_with_all_that_follows(at: Any) -> None:
    layer = nn.Linear(4, 3)
    optimizer = torch.optim.Adam(layer.parameters())
    average = {"weight": torch.arange(12.0).reshape(3, 4)}
    layer(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    before, moment = layer.weight.detach().clone(), optimizer.state[layer.weight]["exp_avg"].clone()
    gradient = layer.weight.grad.clone()
    grow_(layer, "weight", dim=1, size=6, init=nn.init.ones_, at=at, optimizer=optimizer, ema=average)
    new = torch.zeros(6, dtype=torch.bool)
    new[at] = True
    for grown, old, value in (
        (layer.weight.detach(), before, 1.0),
        (layer.weight.grad, gradient, 0.0),
        (optimizer.state[layer.weight]["exp_avg"], moment, 0.0),
        (average["weight"], torch.arange(12.0).reshape(3, 4), 1.0),
    ):
        assert torch.equal(grown[:, ~new], old)
        assert torch.equal(grown[:, new], torch.full((3, 2), value))
    assert layer.in_features == 6
