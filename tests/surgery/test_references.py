"""What is told by counting references: never that a tensor is alone while anything holds it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from secateur import HolderError, StaleGraphError, UnsupportedError, transaction
from secateur.surgery import admission
from secateur.surgery.references import accounted_for


class Net(nn.Module):
    """Parameters, buffers, a tie, a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.lstm = nn.LSTM(6, 3)
        self.table = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.norm(self.body(x)).unsqueeze(0))[0][0])


def alone(model: nn.Module, *optimizers: torch.optim.Optimizer) -> bool:
    """Whether all tensors of a model are accounted for; none may be referred to from here meanwhile."""
    found = accounted_for(model.modules(), optimizers)
    return found == {id(tensor) for tensor in (*model.parameters(), *model.buffers())}


def is_alone(model: nn.Module, name: str, *optimizers: torch.optim.Optimizer) -> bool:
    """Whether one of them is."""
    found = accounted_for(model.modules(), optimizers)
    return id(dict((*model.named_parameters(), *model.named_buffers()))[name]) in found


def trained(model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    model(torch.randn(4, 4)).square().mean().backward()
    optimizer.step()
    return optimizer


def test_tensors_of_a_fresh_model_are_accounted_for() -> None:
    assert alone(Net())


def test_tensors_of_a_trained_model_are_accounted_for_with_its_optimizers() -> None:
    model = Net()
    one = trained(model, torch.optim.Adam(model.parameters()))
    other = trained(model, torch.optim.SGD(model.body.parameters(), momentum=0.9))
    assert alone(model, one, other)
    assert alone(model, one, other, one)
    assert not is_alone(model, "body.weight", one)
    assert is_alone(model, "norm.weight", one)
    assert is_alone(model, "norm.running_mean", other)


def held_by_a_variable(model: Net) -> object:
    return model.body.weight


def held_by_an_optimizer(model: Net) -> object:
    return torch.optim.SGD(model.body.parameters())


def held_by_an_optimizer_that_waits_to_be_freed(model: Net) -> object:
    optimizer: Any = torch.optim.SGD(model.body.parameters())
    optimizer.cycle = optimizer
    return None


def held_by_a_loss(model: Net) -> object:
    return model(torch.randn(4, 4)).sum()


def held_by_an_intermediate(model: Net) -> object:
    return model.body(torch.randn(2, 4)).exp()


def held_by_its_accumulator(model: Net) -> object:
    return get_gradient_edge(model.body.weight).node


def held_by_a_hook(model: Net) -> object:
    weight = model.body.weight
    return model.register_forward_hook(lambda *_: print(weight.shape))


def held_by_another_module(model: Net) -> object:
    other = nn.Linear(4, 6)
    other.weight = model.body.weight
    return other


def held_by_ddp(model: Net) -> object:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        return DistributedDataParallel(model)
    finally:
        dist.destroy_process_group()


HELD: list[Callable[[Net], object]] = [
    held_by_a_variable,
    held_by_an_optimizer,
    held_by_an_optimizer_that_waits_to_be_freed,
    held_by_a_loss,
    held_by_an_intermediate,
    held_by_its_accumulator,
    held_by_a_hook,
    held_by_another_module,
    held_by_ddp,
]


@pytest.mark.parametrize("hold", HELD, ids=lambda hold: hold.__name__)
def test_tensor_that_anything_else_holds_is_not_accounted_for(hold: Callable[[Net], object]) -> None:
    model = Net()
    optimizer = trained(model, torch.optim.Adam(model.parameters()))
    holder = hold(model)
    assert not is_alone(model, "body.weight", optimizer)
    assert holder is not model


def test_ddp_with_a_live_group_leaves_nothing_accounted_for() -> None:
    model = Net()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["body.weight"])
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        wrapper = DistributedDataParallel(model)
        assert accounted_for(model.modules(), []) == frozenset()
        assert wrapper.module is model
    finally:
        dist.destroy_process_group()


def shares_the_groups(optimizer: torch.optim.Optimizer) -> object:
    return torch.optim.SGD(optimizer.param_groups)


def shares_the_list_of_groups(optimizer: torch.optim.Optimizer) -> object:
    other = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    other.param_groups = optimizer.param_groups
    return other


def shares_the_list_of_a_group(optimizer: torch.optim.Optimizer) -> object:
    other = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    other.param_groups[0]["params"] = optimizer.param_groups[0]["params"]
    return other


@pytest.mark.parametrize("share", [shares_the_groups, shares_the_list_of_groups, shares_the_list_of_a_group])
def test_optimizer_that_shares_containers_of_a_known_one_means_doubt(
    share: Callable[[torch.optim.Optimizer], object],
) -> None:
    model = Net()
    optimizer = trained(model, torch.optim.Adam(model.parameters()))
    other = share(optimizer)
    assert not is_alone(model, "body.weight", optimizer)
    assert other is not optimizer


@pytest.mark.parametrize(
    "container",
    [lambda model: model.lstm._flat_weights, lambda model: model.lstm._parameters.values()],
    ids=["list of weights", "view of a table"],
)
def test_optimizer_that_holds_a_container_of_the_model_means_doubt(container: Callable[[Net], Any]) -> None:
    model = Net()
    other = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    other.param_groups[0]["params"] = container(model)
    assert not is_alone(model, "lstm.weight_ih_l0")
    assert is_alone(model, "body.weight")
    assert len(other.param_groups) == 1


def test_container_that_two_modules_share_is_counted_once() -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    model.append(copy.copy(model[0]))  # the same tables of parameters
    assert model[0]._parameters is model[1]._parameters
    assert is_alone(model, "0.weight")
    weight = model[0].weight
    assert not is_alone(model, "0.weight")
    assert weight is model[1].weight


def test_views_of_the_memory_and_weak_references_hold_nothing() -> None:
    model = Net()
    view = model.body.weight.detach()
    assert alone(model)
    assert view.shape == (6, 4)


def test_gradients_and_hooks_of_its_own_do_not_matter() -> None:
    model = Net()
    model(torch.randn(4, 4)).sum().backward()
    model.body.weight.register_post_accumulate_grad_hook(lambda p: None)
    model.body.weight.register_hook(lambda g: None)
    assert alone(model)


def test_counting_does_not_wake_tensor_subclasses() -> None:
    class Loud(nn.Parameter):
        @classmethod
        def __torch_function__(cls, func: object, types: object, args: object = (), kwargs: object = None) -> Tensor:
            raise AssertionError("asked")

    layer = nn.Linear(2, 2)
    layer._parameters["weight"] = torch.Tensor._make_subclass(Loud, torch.ones(2, 2))
    assert len(accounted_for([layer], [])) == 2


# ---- the pass over all live objects is left out where nothing can be found, and only there


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    made: list[int] = []
    census = admission.census
    monkeypatch.setattr(admission, "census", lambda tensors: made.append(1) or census(tensors))
    return made


def shrink(model: nn.Module, optimizer: object = None, ema: object = None) -> None:
    with transaction(model, optimizer, ema) as surgery:
        surgery.resize("body.weight", dim=0, keep=range(4))
        surgery.resize("body.bias", dim=0, keep=range(4))
        surgery.resize("norm.weight", dim=0, keep=range(4))
        surgery.resize("norm.bias", dim=0, keep=range(4))
        surgery.resize("lstm.weight_ih_l0", dim=1, keep=range(4))


def test_no_pass_is_made_for_a_model_that_nothing_holds(passes: list[int]) -> None:
    model = Net()
    shrink(model)
    assert model.body.out_features == 4
    assert passes == []
    model(torch.randn(3, 4)).sum().backward()


def test_no_pass_is_made_with_the_optimizer_and_an_average_that_are_passed(passes: list[int]) -> None:
    model = Net()
    optimizer, average = trained(model, torch.optim.Adam(model.parameters())), AveragedModel(model)
    shrink(model, optimizer, average)
    assert passes == []
    trained(model, optimizer)
    average.update_parameters(model)
    assert average.module.body.out_features == 4


@pytest.mark.parametrize(
    ("hold", "error"),
    [
        (held_by_a_variable, None),
        (held_by_an_optimizer, HolderError),
        (held_by_an_optimizer_that_waits_to_be_freed, None),
        (held_by_a_loss, None),
        (held_by_a_hook, None),
        (held_by_another_module, None),
        (held_by_ddp, UnsupportedError),
    ],
    ids=lambda hold: getattr(hold, "__name__", None),
)
def test_pass_is_made_where_anything_else_holds_a_tensor(
    passes: list[int], hold: Callable[[Net], object], error: type[Exception] | None
) -> None:
    model = Net()
    holder = hold(model)
    if error is None:
        shrink(model)
    else:
        with pytest.raises(error):
            shrink(model)
    assert passes
    assert model.body.out_features == (4 if error is None else 6)
    assert holder is not model


def test_average_that_an_optimizer_holds_is_found(passes: list[int]) -> None:
    model = Net()
    average = copy.deepcopy(model)
    optimizer = torch.optim.SGD(average.parameters())
    with pytest.raises(HolderError, match="an optimizer that was not passed holds"):
        shrink(model, ema=average)
    assert passes
    assert len(optimizer.param_groups) == 1


def test_graph_that_was_built_before_still_explains_itself(passes: list[int]) -> None:
    model = Net()
    loss = model(torch.randn(3, 4)).sum()
    shrink(model)
    assert passes == [1]
    with pytest.raises(StaleGraphError):
        loss.backward()


def test_call_from_a_hook_of_the_parameter_makes_the_pass(passes: list[int]) -> None:
    model = Net()
    model.body.weight.register_post_accumulate_grad_hook(lambda p: shrink(model))
    model(torch.randn(3, 4)).sum().backward()
    assert passes
    assert model.body.out_features == 4
