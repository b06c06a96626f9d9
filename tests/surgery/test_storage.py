"""Other data in the same tensor, and what autograd makes of it."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from secateur import StaleGraphError
from secateur.surgery import Change, Selection
from secateur.surgery.edits import carry_out
from secateur.surgery.storage import Poison, Replace, accumulator_resets, set_shape_

ANY_DTYPE = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.uint8,
]


def cut(tensor: Tensor, keep: int) -> Change:
    return Change("weight", tensor, (Selection(0, tensor.shape[0], torch.arange(keep)),))


def replaced(tensor: Tensor, keep: int = 2) -> Replace:
    return Replace(cut(tensor, keep), tensor.detach()[:keep].clone(), None)


def test_accumulators_reset_in_this_torch() -> None:
    assert accumulator_resets()


def test_accumulators_reset_under_no_grad_and_inference_mode() -> None:
    with torch.no_grad():
        assert accumulator_resets()
    with torch.inference_mode():
        assert accumulator_resets()


@pytest.mark.parametrize("dtype", ANY_DTYPE, ids=str)
def test_set_shape_gives_a_parameter_of_any_dtype_another_shape(dtype: torch.dtype) -> None:
    is_trained = dtype.is_floating_point or dtype.is_complex
    weight = nn.Parameter(torch.zeros(4, 3).to(dtype), requires_grad=is_trained)
    set_shape_(weight, torch.ones(2, 5).to(dtype), None)
    assert type(weight) is nn.Parameter
    assert (weight.shape, weight.dtype, weight.requires_grad) == ((2, 5), dtype, is_trained)


def test_set_shape_lets_a_new_graph_accumulate_while_an_old_one_lives() -> None:
    weight = nn.Parameter(torch.ones(4))
    old = weight.sum()
    old_node = get_gradient_edge(weight).node
    set_shape_(weight, torch.ones(2), None)
    assert get_gradient_edge(weight).node is not old_node
    (weight * 3).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [3.0, 3.0]
    assert old.grad_fn is not None


def test_set_shape_makes_graphs_that_saved_the_weight_refuse() -> None:
    weight, x = nn.Parameter(torch.ones(2)), torch.ones(2, requires_grad=True)
    product = weight * x
    set_shape_(weight, torch.zeros(2), None)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(product.sum(), x)


def test_set_shape_frees_the_old_memory() -> None:
    weight = nn.Parameter(torch.ones(4))
    old = weakref.ref(weight.untyped_storage())
    set_shape_(weight, torch.ones(2), None)
    gc.collect()
    assert old() is None


def test_replace_and_undo_restore_data_and_gradient_objects() -> None:
    weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
    weight.grad = gradient = torch.tensor([4.0, 5.0, 6.0])
    edit = Replace(cut(weight, 2), torch.tensor([1.0, 2.0]), torch.tensor([4.0, 5.0]))
    edit.do()
    assert weight.tolist() == [1.0, 2.0]
    assert weight.grad is not None
    assert weight.grad.tolist() == [4.0, 5.0]
    edit.undo()
    assert weight.tolist() == [1.0, 2.0, 3.0]
    assert weight.grad is gradient


def test_undo_lets_gradients_flow_again() -> None:
    weight = nn.Parameter(torch.ones(3))
    edit = replaced(weight)
    edit.do()
    edit.undo()
    (weight * 2).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [2.0, 2.0, 2.0]


def test_replace_undoes_a_half_done_change(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))

    def fail(tensor: Tensor) -> None:
        monkeypatch.undo()
        raise MemoryError

    monkeypatch.setattr("secateur.surgery.storage.increment_version", fail)
    with pytest.raises(MemoryError):
        carry_out([replaced(weight)])
    assert weight.tolist() == [1.0, 2.0, 3.0]


def test_poison_stops_the_gradient_of_an_old_graph() -> None:
    weight = nn.Parameter(torch.ones(4, 2))
    loss = weight.sum()
    carry_out([Poison([cut(weight, 2)], []), replaced(weight)])
    with pytest.raises(StaleGraphError, match=r"'weight' \(4, 2\) -> \(2, 2\)"):
        loss.backward()
    assert weight.grad is None


def test_poison_stops_at_the_root_before_anything_is_accumulated() -> None:
    weight, other = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
    loss = (other * 2).sum() + weight.sum()
    carry_out([Poison([cut(weight, 2)], [loss.grad_fn]), replaced(weight)])
    with pytest.raises(StaleGraphError, match="built before a parameter in it was resized"):
        loss.backward()
    assert other.grad is None


def test_poison_can_be_taken_back() -> None:
    weight = nn.Parameter(torch.ones(4))
    loss = weight.sum()
    poison = Poison([cut(weight, 2)], [loss.grad_fn])
    poison.do()
    poison.undo()
    loss.backward()
    assert weight.grad is not None


def test_stale_graph_error_names_the_parameter_that_was_reached_first() -> None:
    weights = [nn.Parameter(torch.ones(4)) for _ in range(12)]
    changes = [Change(f"{i}.weight", w, (Selection(0, 4, torch.arange(2)),)) for i, w in enumerate(weights)]
    loss = weights[11].sum()
    Poison(changes, []).do()
    with pytest.raises(StaleGraphError) as caught:
        loss.backward()
    assert "resized since: '11.weight' (4,) -> (2,), '0.weight'" in str(caught.value)
    assert "and 4 more" in str(caught.value)
