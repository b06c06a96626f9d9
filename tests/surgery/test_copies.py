"""Copies of the model that follow by name."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from secateur import HolderError, StaleGraphError, UnsupportedError, grow_, resize_, transaction


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))


KEEPS = {("0.weight", 0): [0, 2, 5], ("0.bias", 0): [0, 2, 5], ("1.weight", 0): [0, 2, 5], ("1.bias", 0): [0, 2, 5]}
KEEPS |= {("3.weight", 1): [0, 2, 5]}
FOLLOWING = {**KEEPS, ("1.running_mean", 0): [0, 2, 5], ("1.running_var", 0): [0, 2, 5]}


def shrink(model: nn.Module, ema: object, optimizer: object = None) -> None:
    with transaction(model, optimizer, ema) as t:
        for (name, dim), keep in KEEPS.items():
            t.resize(name, dim=dim, keep=keep)


def cut(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The oracle: every tensor indexed by what is kept."""
    state = {name: value.clone() for name, value in state.items()}
    for (name, dim), keep in FOLLOWING.items():
        state[name] = state[name].index_select(dim, torch.tensor(keep))
    return state


def differing(model: nn.Module) -> nn.Module:
    """A copy with values of its own."""
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for value in (*twin.parameters(), twin[1].running_mean):
            value.add_(torch.randn_like(value))
    return twin


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def test_averaged_model_follows_and_goes_on_averaging() -> None:
    model = net()
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    model(torch.randn(8, 4))
    ema.update_parameters(model)
    with torch.no_grad():
        model[0].weight.add_(1)
    ema.update_parameters(model)
    whole_model, whole_ema = copy.deepcopy((model, ema))
    expected = cut(ema.module.state_dict())
    shrink(model, ema)
    assert_equal(ema.module.state_dict(), expected)
    assert (ema.module[0].out_features, ema.module[1].num_features, ema.module[3].in_features) == (3, 3, 3)
    for averaged, trained in ((whole_ema, whole_model), (ema, model)):
        with torch.no_grad():
            trained[3].weight.mul_(2)
        averaged.update_parameters(trained)
    assert_equal(ema.module.state_dict(), cut(whole_ema.module.state_dict()))


@pytest.mark.parametrize(
    "wrap",
    [lambda m: m, torch.compile, lambda m: AveragedModel(m), lambda m: nn.DataParallel(m)],
    ids=["module", "compiled", "averaged", "data parallel"],
)
def test_copy_follows_in_any_wrapper(wrap: Any) -> None:
    model = net()
    ema = wrap(differing(model))
    inner = getattr(ema, "module", None) or getattr(ema, "_orig_mod", None) or ema
    expected = cut(inner.state_dict())
    shrink(model, ema)
    assert_equal(inner.state_dict(), expected)


def test_copy_keeps_its_identity() -> None:
    model = net()
    ema = differing(model)
    before = {name: id(p) for name, p in ema.named_parameters()}
    shrink(model, ema)
    assert {name: id(p) for name, p in ema.named_parameters()} == before


@pytest.mark.parametrize("kind", ["state dict", "parameters"])
def test_dict_of_tensors_follows_by_name(kind: str) -> None:
    model, twin = net(), net()
    named = twin.state_dict() if kind == "state dict" else dict(twin.named_parameters())
    shadow = {name: value.detach().clone() for name, value in named.items()}
    expected = {name: value for name, value in cut(twin.state_dict()).items() if name in shadow}
    shrink(model, shadow)
    assert_equal(shadow, expected)


def test_dict_of_the_models_own_parameters_stays_the_models_own() -> None:
    model = net()
    own = dict(model.named_parameters())
    shrink(model, own)
    assert all(own[name] is p for name, p in model.named_parameters())


def test_several_copies_follow_together() -> None:
    model = net()
    ema, shadow = differing(model), {"3.weight": torch.zeros(2, 6)}
    shrink(model, [ema, shadow, ema])
    assert ema[0].weight.shape == (3, 4)
    assert shadow["3.weight"].shape == (2, 3)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.emb.weight


def test_all_names_of_a_tied_tensor_follow() -> None:
    model = Tied()
    shadow = {name: value.clone() for name, value in model.state_dict().items()}
    untied = Tied()
    untied.head.weight = nn.Parameter(torch.randn(6, 4))
    expected = untied.head.weight.detach()[:, [0, 1]]
    resize_(model, "emb.weight", dim=1, keep=[0, 1], ema=[shadow, untied])
    assert {name: tuple(value.shape) for name, value in shadow.items()} == {"emb.weight": (6, 2), "head.weight": (6, 2)}
    assert torch.equal(untied.head.weight, expected)
    assert untied.emb.weight.shape == (6, 2)


def test_copies_get_the_new_values_themselves() -> None:
    layer = nn.Linear(2, 2)
    ema, shadow = copy.deepcopy(layer), {"weight": torch.zeros(2, 2)}
    grow_(layer, "weight", dim=1, size=3, init=nn.init.normal_, ema=[ema, shadow])
    new = layer.weight[:, 2]
    assert new.any()
    assert torch.equal(ema.weight[:, 2], new)
    assert torch.equal(shadow["weight"][:, 2], new)


def test_optimizer_of_a_copy_follows_and_must_be_passed() -> None:
    model = net()
    teacher = differing(model)
    optimizer = torch.optim.SGD(teacher.parameters(), lr=0.1, momentum=0.9)
    teacher(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    expected = optimizer.state[teacher[0].weight]["momentum_buffer"][[0, 2, 5]]
    with pytest.raises(HolderError, match=r"an optimizer that was not passed holds '0\.weight'"):
        shrink(model, teacher)
    assert teacher[0].weight.shape == model[0].weight.shape == (6, 4)
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    shrink(model, teacher, [own, optimizer])
    assert torch.equal(optimizer.state[teacher[0].weight]["momentum_buffer"], expected)


def test_old_graph_through_a_copy_is_stopped() -> None:
    model = net()
    teacher = differing(model)
    loss = teacher(torch.randn(8, 4)).sum()
    shrink(model, teacher)
    with pytest.raises(StaleGraphError, match=r"'0\.weight' \(6, 4\) -> \(3, 4\)"):
        loss.backward()


def without(state: dict[str, Tensor], *names: str) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if name not in names}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda model: model, "what was passed as `ema` is no copy: its '0.weight' is the model's own"),
        (lambda model: nn.Sequential(*model), "is no copy"),
        (lambda model: nn.Linear(4, 6), r"the copy \(Linear\) has no '0.weight'"),
        (lambda model: nn.Sequential(nn.Linear(4, 5)), "the copy's '0.weight' has another shape than the model's"),
        (lambda model: {}, "the dict of copies has no '0.weight'"),
        (lambda model: {"0.weight": torch.zeros(5, 5)}, "the copy's '0.weight' has another shape"),
        (lambda model: {"0.weight": "zeros"}, "copy: str"),
        (lambda model: torch.optim.SGD(nn.Linear(1, 1).parameters()), "SGD is an optimizer"),
        (lambda model: 3, "int is not a kind of holder"),
    ],
)
def test_copy_that_cannot_follow_is_refused(make: Any, message: str) -> None:
    model = net()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(HolderError, match=message):
        shrink(model, make(model))
    assert_equal(model.state_dict(), before)


def test_copy_inside_ddp_is_refused() -> None:
    model = net()
    wrapper = DistributedDataParallel.__new__(DistributedDataParallel)
    nn.Module.__init__(wrapper)
    wrapper.module = copy.deepcopy(model)
    for ema in (wrapper, AveragedModel(net())):
        if isinstance(ema, AveragedModel):
            ema.module = wrapper
        with pytest.raises(UnsupportedError, match="inside DistributedDataParallel"):
            shrink(model, ema)
    assert model[0].weight.shape == wrapper.module[0].weight.shape == (6, 4)
