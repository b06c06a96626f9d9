"""The capture: whose blocks count, which memory is known, and what several runs say together."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from secateur.graph.capture import Capture, tensors_in
from secateur.graph.labels import Dims, Labels
from secateur.graph.rules import RULES, rule, rule_for
from secateur.graph.solve import Solution, solve


class Watched:
    """Tensors under watch in one or several runs of a function of them."""

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        self.labels = Labels()
        self.tensors = [torch.randn(shape) for shape in shapes]
        self.dims = [self.labels.fresh_dims(shape) for shape in shapes]
        self.captures: list[Capture] = []

    def run(self, code: Callable[..., Any], outputs: Callable[[Any], Sequence[Tensor]] = tensors_in) -> Any:
        capture = Capture(self.labels, rule_for)
        self.captures.append(capture)
        for tensor, dims in zip(self.tensors, self.dims, strict=True):
            capture.enter_tensor(tensor, dims)
        with torch.no_grad(), capture:
            out = code(*self.tensors)
        capture.finish(outputs(out))
        return out

    def solved(self) -> Solution:
        return solve(self.labels)

    def free(self, tensor: int, dim: int) -> list[bool]:
        """Which positions may go."""
        solution = self.solved()
        (axis,) = self.dims[tensor][dim]
        return (~solution.blocked[solution.classes(axis)]).tolist()

    def reasons(self) -> set[str]:
        return set(self.solved().why.values())


def test_op_whose_result_is_not_used_adds_no_block() -> None:
    watched = Watched((3, 4))

    def code(x: Tensor) -> Tensor:
        x[:, -1]
        return x * 2

    watched.run(code)
    assert all(watched.free(0, 1))


def test_op_whose_result_is_used_adds_its_block() -> None:
    watched = Watched((3, 4))
    watched.run(lambda x: (x * 2)[:, -1])
    assert watched.free(0, 1) == [False] * 4
    assert watched.reasons() == {"one position of it is taken by number"}


def test_op_whose_result_is_not_used_keeps_its_equations() -> None:
    watched = Watched((3, 4), (4, 2))

    def code(x: Tensor, weight: Tensor) -> Tensor:
        x @ weight
        return x * 2

    watched.run(code)
    solution = watched.solved()
    (one,), (other,) = watched.dims[0][1], watched.dims[1][0]
    assert solution.classes(one).tolist() == solution.classes(other).tolist()


def test_write_into_a_view_makes_the_view_matter() -> None:
    watched = Watched((3, 4))

    def code(x: Tensor) -> Tensor:
        y = x * 2
        y[:, 0].zero_()
        return y

    watched.run(code)
    assert watched.free(0, 1) == [False] * 4


def test_view_of_a_view_makes_what_it_shows_matter() -> None:
    watched = Watched((3, 4))
    watched.run(lambda x: x.t().select(0, 1).view(3, 1).relu())
    assert watched.free(0, 1) == [False] * 4
    assert all(watched.free(0, 0))


def test_write_into_the_models_state_matters() -> None:
    watched = Watched((3, 4), (3,))

    def code(x: Tensor, state: Tensor) -> Tensor:
        state.copy_(x[:, 0])
        return x.sum()

    watched.run(code)
    assert watched.free(0, 1) == [False] * 4


def test_value_that_goes_to_python_matters() -> None:
    watched = Watched((3, 4))
    watched.run(lambda x: x.sum() if x[0].sum().item() > 0 else -x.sum())
    assert watched.free(0, 0) == [False] * 3


@pytest.mark.parametrize(("result", "free"), [(0, True), (1, False)])
def test_number_of_a_position_blocks_only_if_it_is_used(result: int, free: bool) -> None:
    watched = Watched((3, 4))
    watched.run(lambda x: x.max(1)[result])
    assert watched.free(0, 1) == [free] * 4


def test_tensor_never_met_is_a_constant() -> None:
    watched, constant = Watched((3, 4)), torch.ones(4)
    watched.run(lambda x: x + constant)
    assert watched.free(0, 1) == [False] * 4
    assert watched.reasons() == {"aten.add combines it with positions that stay"}


def test_constant_of_size_one_combines_with_anything() -> None:
    watched, constant = Watched((3, 4)), torch.ones(1)
    watched.run(lambda x: x + constant)
    assert all(watched.free(0, 1))


def test_known_memory_in_new_clothes_has_its_labels() -> None:
    watched = Watched((3, 4), (4,))
    watched.run(lambda x, y: x.data + y)
    solution = watched.solved()
    (one,), (other,) = watched.dims[0][1], watched.dims[1][0]
    assert solution.classes(one).tolist() == solution.classes(other).tolist()
    assert watched.captures[0].was_read(watched.tensors[0])


def test_known_memory_under_another_shape_stays() -> None:
    watched = Watched((3, 4))
    hidden = watched.tensors[0].view(12)
    watched.run(lambda x: hidden * 2)
    assert not any(watched.free(0, 0) + watched.free(0, 1))
    assert watched.reasons() == {"its memory is used under another shape, unseen"}


def test_gradients_inside_the_run_lose_no_labels() -> None:
    watched = Watched((3, 4), (4, 2))

    def code(x: Tensor, weight: Tensor) -> Tensor:
        with torch.enable_grad():
            return (x.requires_grad_().view(3, 4).t().t() @ weight).detach()

    out = watched.run(code)
    solution = watched.solved()
    (one,), (other,) = watched.dims[0][1], watched.dims[1][0]
    assert solution.classes(one).tolist() == solution.classes(other).tolist()
    assert not solution.blocked.any()
    assert watched.captures[0].dims(out) == (watched.dims[0][0], watched.dims[1][1])


def test_in_place_change_of_shape_changes_the_dims() -> None:
    watched = Watched((3, 4))
    out = watched.run(lambda x: x.mul(2).t_().unsqueeze_(0))
    assert watched.captures[0].dims(out) == ((), *watched.dims[0][::-1])


def test_result_that_is_put_into_an_empty_tensor_has_its_dims() -> None:
    watched = Watched((3, 4))
    out = watched.run(lambda x: torch.add(x, x, out=torch.empty(0)))
    assert watched.captures[0].dims(out) == watched.dims[0]


def test_result_that_is_put_into_a_known_tensor_is_tied_to_it() -> None:
    watched = Watched((3, 4), (3, 4))
    watched.run(lambda x, y: torch.mul(x, 2, out=y))
    solution = watched.solved()
    assert [solution.classes(*dim).tolist() for dim in watched.dims[0]] == [
        solution.classes(*dim).tolist() for dim in watched.dims[1]
    ]


def test_activations_are_not_kept_alive() -> None:
    watched = Watched((3, 4))
    seen: list[weakref.ref[Tensor]] = []

    def code(x: Tensor) -> Tensor:
        y = x * 2
        seen.append(weakref.ref(y))
        z = y.relu()
        del y
        gc.collect()
        assert seen[0]() is None
        return z

    watched.run(code)
    assert vars(watched.tensors[0]) == {}


def test_op_without_a_rule_blocks_with_its_name() -> None:
    watched = Watched((2, 3, 3))
    watched.run(lambda x: torch.linalg.inv_ex(x + torch.eye(3) * 9).inverse)
    assert not any(watched.free(0, 0))
    assert "aten.linalg_inv_ex has no rule" in watched.reasons()


def test_rule_of_ones_own_is_used() -> None:
    with torch.library._scoped_library("secateur_test", "DEF") as library:
        library.define("double(Tensor x) -> Tensor")
        library.impl("double", lambda x: torch.cat([x, x], 1), "CompositeExplicitAutograd")
        watched = Watched((3, 4))
        watched.run(torch.ops.secateur_test.double)
        assert not any(watched.free(0, 1))

        @rule("secateur_test.double")
        def double(call: Any) -> list[Dims]:
            rows, columns = call.dims(call.args[0])
            return [(rows, (call.labels.fixed(2), *columns))]

        assert rule_for(torch.ops.secateur_test.double.default) is double
        watched = Watched((3, 4))
        watched.run(torch.ops.secateur_test.double)
        assert all(watched.free(0, 1))


def test_rule_is_registered_once() -> None:
    before = dict(RULES)
    with pytest.raises(ValueError, match=r"aten\.mm has a rule already: matmul"):
        rule("secateur_test.other", "aten.mm")(lambda call: [])
    assert dict(RULES) == before


def test_runs_add_up_in_one_set_of_labels() -> None:
    watched = Watched((3, 4), (4, 2), (4, 5))
    watched.run(lambda x, one, other: x @ one)
    solution = watched.solved()
    (width,), (rows,) = watched.dims[0][1], watched.dims[2][0]
    assert solution.classes(width).tolist() != solution.classes(rows).tolist()
    assert not watched.captures[0].was_read(watched.tensors[2])
    watched.run(lambda x, one, other: x @ other)
    solution = watched.solved()
    assert solution.classes(width).tolist() == solution.classes(rows).tolist()
    assert watched.captures[1].was_read(watched.tensors[2])


class TwoModes(nn.Module):
    """A model that uses another head while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 6)
        self.heads = nn.ModuleList([nn.Linear(6, 2), nn.Linear(6, 4)])

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.heads[int(self.training)](self.body(x).relu())
        return out


def test_runs_in_both_modes_tie_both_heads() -> None:
    model, labels = TwoModes(), Labels()
    dims = {name: labels.fresh_dims(p.shape) for name, p in model.named_parameters()}
    for training in (False, True):
        capture = Capture(labels, rule_for)
        for name, parameter in model.named_parameters():
            capture.enter_tensor(parameter, dims[name])
        with torch.no_grad(), capture:
            out = model.train(training)(torch.randn(2, 3))
        capture.finish([out])
    solution = solve(labels)
    assert len({tuple(solution.classes(*dims[name][1])) for name in ("heads.0.weight", "heads.1.weight")}) == 1


def facts(model: nn.Module, x: Tensor) -> tuple[list[int], list[bool]]:
    labels = Labels()
    capture = Capture(labels, rule_for)
    axes = []
    for parameter in model.parameters():
        dims = labels.fresh_dims(parameter.shape)
        capture.enter_tensor(parameter, dims)
        axes += [axis for dim in dims for axis in dim]
    with torch.no_grad(), capture:
        out = model(x)
    capture.finish([out])
    solution = solve(labels)
    found = np.concatenate([solution.classes(axis) for axis in axes])
    _, first = np.unique(found, return_index=True)
    order = {int(found[i]): rank for rank, i in enumerate(sorted(first.tolist()))}
    return [order[int(c)] for c in found], solution.blocked[found].tolist()


def test_fake_tensors_give_the_same_classes() -> None:
    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2), nn.GroupNorm(2, 8),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 5), nn.LayerNorm(5), nn.Linear(5, 2),
        ).eval()  # fmt: skip

    real = facts(make(), torch.randn(2, 3, 8, 8))
    with FakeTensorMode():
        assert facts(make(), torch.randn(2, 3, 8, 8)) == real


def test_counted_dims_are_told_apart() -> None:
    watched = Watched((3, 4))
    out = watched.run(lambda x: x[torch.tensor([True, False, True])] * 2)
    (rows,), columns = watched.captures[0].dims(out)
    assert rows.is_counted
    assert columns == watched.dims[0][1]


def test_sizes_of_strides_are_noted_as_multiples() -> None:
    watched = Watched()
    rows, weights = torch.randn(8, 16).bfloat16(), torch.randn(2, 16, 8).bfloat16()
    watched.tensors, watched.dims = [weights], [watched.labels.fresh_dims(weights.shape)]
    watched.run(lambda w: torch._grouped_mm(rows, w, torch.tensor([4, 8], dtype=torch.int32)))
    assert watched.captures[0].multiples == [(watched.dims[0][1], 8), (watched.dims[0][2], 8)]


class Reading(nn.Module):
    """Products that read one tensor, parts of one, what is computed from two, and none."""

    def __init__(self) -> None:
        super().__init__()
        self.whole, self.halves = nn.Linear(4, 4), nn.Parameter(torch.randn(8, 4))
        self.direction, self.length = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.ones(4, 1))

    def forward(self, x: Tensor) -> Tensor:
        upper, lower = self.halves.chunk(2)
        x = self.whole(x) @ upper.t() @ lower.t()
        x = x @ (self.direction * self.length)
        return x @ x.t()


def test_products_know_which_tensors_of_the_model_they_read() -> None:
    model, labels = Reading(), Labels()
    capture = Capture(labels, rule_for)
    for name, parameter in model.named_parameters():
        capture.enter_tensor(parameter, labels.fresh_dims(parameter.shape), name=name)
    with torch.no_grad(), capture:
        model(torch.randn(3, 4))
    linear, first, second, computed, none = (product.reads for product in capture.products)
    assert linear == ("whole.weight", "whole.bias")
    assert first == second == ("halves",)
    assert computed == ("direction", "length")
    assert none == ()
