"""What users ran into with masks, and what they get instead: cases 01, 02, 04, 07, 09, 10, 13, 14, 54, 61, 63, 64, 77.

And the second question that the project began with. Each has its neighbours: other layers, optimizers, dtypes.
"""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from secateur import InfeasibleError, Masks, UnsupportedError, allocation, patterns, prune_
from tests.masks.oracles import bits, is_zero


def saved_size(*parts: dict[str, Tensor]) -> int:
    """Bytes of a file with these tensors."""
    file = io.BytesIO()
    torch.save(parts, file)
    return file.getbuffer().nbytes


def reloaded(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A state dict, written to a file and read again."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


# ---- case 01: masked gradients are not enough, momentum brings pruned weights back


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RMSprop])
@pytest.mark.parametrize(
    "build", [lambda: nn.Linear(20, 8), lambda: nn.Bilinear(20, 20, 8)], ids=["Linear", "Bilinear"]
)
def test_case_01_mask_holds_through_adaptive_moments(
    build: Callable[[], nn.Module], kind: type[torch.optim.Optimizer], dtype: torch.dtype
) -> None:
    net = build().to(dtype)
    optimizer = kind(net.parameters(), lr=1e-2)
    x, y = torch.randn(64, 20, dtype=dtype), torch.randn(64, 8, dtype=dtype)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x, x) if isinstance(net, nn.Bilinear) else net(x), y).backward()
        optimizer.step()

    for _ in range(5):
        step()
    mask = net.weight.detach().abs() > net.weight.detach().abs().median()
    Masks.from_dict(net, {"weight": mask}, optimizer)
    before = net.weight.detach().clone()
    for _ in range(3):
        step()
        assert is_zero(net.weight[~mask])
        assert int((~mask).sum()) >= mask.numel() // 2
    assert bool((net.weight != before)[mask].float().mean() > 0.95)


# ---- case 02: filters masked in the middle of training with momentum


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_case_02_masked_filters_have_no_momentum_left(memory_format: torch.memory_format, named: bool) -> None:
    net = nn.Conv2d(3, 8, 3).to(memory_format=memory_format)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    x = torch.randn(4, 3, 8, 8)

    def step() -> None:
        optimizer.zero_grad()
        net(x).pow(2).mean().backward()
        optimizer.step()

    for _ in range(5):
        step()
    keep = torch.ones_like(net.weight, dtype=torch.bool)
    keep[::2] = False
    Masks.from_dict(net, {"weight": keep}, optimizer if named else None)
    for _ in range(3):
        step()
        assert is_zero(net.weight[::2])
        assert is_zero(optimizer.state[net.weight]["momentum_buffer"][::2])
    assert bool((net.weight[1::2] != 0).all())


# ---- case 04: a pruned checkpoint goes on sparse


def small_steps(net: nn.Module, size: int) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.randn(8, size)).pow(2).mean().backward()
        optimizer.step()


def test_case_04_zeros_of_a_checkpoint_are_adopted() -> None:
    a = nn.Linear(16, 16)
    prune.l1_unstructured(a, "weight", amount=0.5)
    prune.remove(a, "weight")
    b = nn.Linear(16, 16)
    b.load_state_dict(reloaded(a.state_dict()))
    Masks.from_zeros(b)
    assert int((b.weight == 0).sum()) == 128
    small_steps(b, 16)
    assert int((b.weight == 0).sum()) == 128


def test_case_04_masks_are_saved_and_loaded() -> None:
    a = nn.Linear(16, 16)
    masks = prune_(a, sparsity=0.5)
    b = nn.Linear(16, 16)
    Masks(b).load_state_dict(reloaded(masks.state_dict()))
    b.load_state_dict(reloaded(a.state_dict()))
    assert torch.equal(a.weight, b.weight)
    small_steps(b, 16)
    assert int((b.weight == 0).sum()) == 128


# ---- case 07: deep copies in the middle of training


@pytest.mark.parametrize("forward_first", [False, True])
def test_case_07_masked_model_can_be_copied(forward_first: bool) -> None:
    m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    masks = prune_(m, sparsity=0.5, allocation=allocation.global_)
    if forward_first:
        m(torch.randn(1, 4)).sum().backward()
    before = [bits(p) for p in m.parameters()]
    c = copy.deepcopy(m)
    assert Masks(c) == masks
    storages = [{p.untyped_storage().data_ptr() for p in each.parameters()} for each in (m, c)]
    assert not storages[0] & storages[1]
    small_steps(c, 4)
    assert [bits(p) for p in m.parameters()] == before
    assert all(is_zero(c.get_parameter(name)[~mask]) for name, mask in masks.items())


# ---- case 09: one weight of a recurrent layer


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_case_09_recurrent_weight_stays_a_parameter(kind: type[nn.RNNBase]) -> None:
    rnn = kind(6, 5)
    optimizer = torch.optim.SGD(rnn.parameters(), lr=0.1)
    masks = prune_(rnn, optimizer, sparsity=0.5, include="weight_hh_l0")
    zeros = 50 if kind is nn.LSTM else 38  # 37.5, to the even number
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(5):
            optimizer.zero_grad()
            rnn(torch.randn(3, 1, 6))[0].sum().backward()
            optimizer.step()
            assert int((rnn.weight_hh_l0 == 0).sum()) == masks.num_zeros() == zeros
    assert caught == []
    assert isinstance(rnn.weight_hh_l0, nn.Parameter)
    assert any(flat is rnn.weight_hh_l0 for flat in rnn._flat_weights)


# ---- case 10: many rounds


def test_case_10_ten_rounds_hold_one_mask_and_constant_memory() -> None:
    lin = nn.Linear(100, 100)
    sizes, counts = [], []
    for step in range(10):
        masks = prune_(lin, sparsity=1 - 0.9 ** (step + 1), allocation=allocation.global_)
        sizes.append(masks.num_bytes())
        counts.append(int((lin.weight == 0).sum()))
    assert [tuple(mask.shape) for mask in masks.values()] == [(100, 100)]
    assert len(set(sizes)) == 1
    assert counts[-1] == 6513
    assert all(
        round(0.1 * (10_000 - a)) in (b - a - 1, b - a, b - a + 1) for a, b in zip([0, *counts], counts, strict=False)
    )


# ---- case 13: computed weights


@pytest.mark.parametrize("norm", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_case_13_computed_weight_is_refused_by_the_name_of_its_parametrization(norm: Any) -> None:
    lin = norm(nn.Linear(6, 4))
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[0] = False
    before = [bits(p) for p in lin.parameters()]
    for name in ["weight", *(name for name, p in lin.named_parameters() if p.shape == (4, 6))]:
        with pytest.raises(NotImplementedError, match=rf"cannot mask '{name}'.*(WeightNorm|SpectralNorm)") as caught:
            Masks.from_dict(lin, {name: mask})
        assert isinstance(caught.value, UnsupportedError)
    assert [bits(p) for p in lin.parameters()] == before


def test_case_13_plain_weight_can_be_masked_once_the_parametrization_is_removed() -> None:
    lin = parametrizations.weight_norm(nn.Linear(6, 4))
    nn.utils.parametrize.remove_parametrizations(lin, "weight")
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[0] = False
    Masks.from_dict(lin, {"weight": mask})
    small_steps(lin, 6)
    assert is_zero(lin.weight[0])


# ---- case 14: a checkpoint between any two steps


@pytest.mark.parametrize("way", ["plain", "scaler", "closure", "compiled"])
def test_case_14_checkpoint_after_any_step_has_the_zeros(way: str) -> None:
    net = nn.Linear(8, 8)
    mask = torch.rand(8, 8) > 0.5
    kind = torch.optim.LBFGS if way == "closure" else torch.optim.SGD
    optimizer = kind(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=way == "scaler")
    Masks.from_dict(net, {"weight": mask}, optimizer)
    forward = torch.compile(net, backend="eager") if way == "compiled" else net

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = forward(torch.randn(4, 8)).pow(2).mean()
        scaler.scale(loss).backward()
        return loss

    for _ in range(3):
        if way == "closure":
            optimizer.step(closure)
        else:
            closure()
            scaler.step(optimizer)
            scaler.update()
        assert is_zero(net.state_dict()["weight"][~mask])


# ---- case 54: regrown entries start afresh


@pytest.mark.parametrize(
    ("kind", "options", "moments"),
    [
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}, ["momentum_buffer"]),
        (torch.optim.Adam, {"lr": 0.1, "amsgrad": True}, ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"]),
    ],
)
def test_case_54_dropped_and_grown_entries_have_no_moments(
    kind: type[torch.optim.Optimizer], options: dict[str, Any], moments: list[str]
) -> None:
    lin = nn.Linear(6, 6, bias=False)
    optimizer = kind(lin.parameters(), **options)
    x = torch.randn(8, 6)

    def backward() -> None:
        optimizer.zero_grad()
        lin(x).pow(2).mean().backward()

    mask = torch.ones(6, 6, dtype=torch.bool)
    mask[0, 0] = False
    for i in range(6):
        if i == 3:
            masks = Masks.from_dict(lin, {"weight": mask}, optimizer)
        backward()
        optimizer.step()
    before = {name: optimizer.state[lin.weight][name].clone() for name in moments}
    mask[0, 0], mask[1, 1] = True, False
    masks.update_({"weight": mask})
    others = torch.ones(6, 6, dtype=torch.bool)
    for position in ((0, 0), (1, 1)):
        others[position] = False
        assert [float(optimizer.state[lin.weight][name][position]) for name in moments] == [0.0] * len(moments)
    assert all(torch.equal(optimizer.state[lin.weight][name][others], before[name][others]) for name in moments)
    backward()
    gradient = float(lin.weight.grad[0, 0])
    optimizer.step()
    if kind is torch.optim.SGD:
        assert lin.weight[0, 0].item() == pytest.approx(-0.1 * gradient, rel=1e-6)
    assert lin.weight[1, 1].item() == 0.0


# ---- case 61: a global allocation must not empty a layer


def uneven() -> nn.Module:
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    with torch.no_grad():
        net[2].weight.mul_(1e-3)
        net[2].bias.zero_()
    return net


@pytest.mark.parametrize("min_units", [1, 3])
def test_case_61_global_rows_leave_a_minimum_in_each_layer(min_units: int) -> None:
    net = uneven()
    allocate = partial(allocation.global_, min_units=min_units)
    masks = prune_(
        net, sparsity=0.5, pattern=patterns.Channel(dim=0), allocation=allocate, include=["0.weight", "2.weight"]
    )
    rows = {name: int(mask.any(dim=1).sum()) for name, mask in masks.items()}
    assert rows["2.weight"] == min_units
    assert sum(rows.values()) == 32


def test_case_61_layer_that_would_be_emptied_is_named_if_nothing_protects_it() -> None:
    net = uneven()
    before = [bits(p) for p in net.parameters()]
    allocate = partial(allocation.global_, min_units=0)
    for pattern in (patterns.Channel(dim=0), patterns.Unstructured()):
        with pytest.raises(ValueError, match=r"every unit of '2\.weight'") as caught:
            prune_(net, sparsity=0.9, pattern=pattern, allocation=allocate, include=["0.weight", "2.weight"])
        assert isinstance(caught.value, InfeasibleError)
    assert [bits(p) for p in net.parameters()] == before


# ---- case 63: names and keys are those of the dense model


def test_case_63_names_and_keys_do_not_change() -> None:
    m = nn.Linear(4, 4)
    prune_(m, sparsity=0.5)
    assert [name for name, _ in m.named_parameters()] == list(m.state_dict()) == ["weight", "bias"]
    dense = nn.Linear(4, 4)
    dense.load_state_dict(m.state_dict(), strict=True)
    assert int((dense.weight == 0).sum()) == 8


@pytest.mark.parametrize("assign", [False, True])
def test_case_63_dense_checkpoint_keeps_the_mask(assign: bool) -> None:
    m = nn.Linear(4, 4)
    masks = prune_(m, sparsity=0.5)
    m.load_state_dict(nn.Linear(4, 4).state_dict(), assign=assign)
    assert is_zero(m.weight[~masks["weight"]])
    assert int((m.weight == 0).sum()) == 8


# ---- case 64: what a masked layer takes in a file


def test_case_64_file_of_a_masked_layer_is_hardly_larger() -> None:
    m = nn.Linear(512, 512)
    dense = saved_size(m.state_dict())
    masks = prune_(m, sparsity=0.5, pattern=patterns.Channel(dim=0))
    assert saved_size(m.state_dict(), masks.state_dict()) <= 1.3 * dense
    assert saved_size(m.state_dict(), masks.state_dict()) <= 1.05 * dense
    assert abs(saved_size(m.state_dict()) - dense) < 2000


# ---- case 77: a checkpoint each epoch while pruning goes on


def test_case_77_saving_does_not_touch_the_masks_and_epochs_add_up() -> None:
    torch.manual_seed(0)

    def epoch(m: nn.Module, number: int) -> None:
        prune_(m, sparsity=1 - 0.5 ** (number + 1))
        optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            x = torch.randn(8, 10, generator=torch.Generator().manual_seed(10 * number + step))
            m(x).pow(2).mean().backward()
            optimizer.step()

    m = nn.Linear(10, 10)
    files, zeros = [], []
    for number in range(3):
        epoch(m, number)
        before = Masks(m).state_dict()
        files.append((reloaded(m.state_dict()), reloaded(Masks(m).state_dict())))
        assert all(torch.equal(value, before[key]) for key, value in Masks(m).state_dict().items())
        zeros.append(int((files[-1][0]["weight"] == 0).sum()))
        assert list(files[-1][0]) == ["weight", "bias"]
    assert zeros == [50, 75, 88]  # 87.5, to the even number

    resumed = nn.Linear(10, 10)
    resumed.load_state_dict(files[1][0])
    Masks(resumed).load_state_dict(files[1][1])
    assert int((resumed.weight == 0).sum()) == 75
    epoch(resumed, 2)
    assert [bits(p) for p in resumed.parameters()] == [bits(p) for p in m.parameters()]


# ---- the second question


class TSP(nn.Module):
    """The net of the question."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.sc1, self.sc2 = nn.Linear(input_size, hidden_size), nn.Linear(hidden_size, input_size)
        for layer in (self.sc1, self.sc2):
            nn.init.normal_(layer.weight, mean=0, std=0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.sc2(self.predict_hidden(x))

    def predict_hidden(self, x: Tensor) -> Tensor:
        return torch.relu(self.sc1(x))


@pytest.mark.parametrize("warm_up", [0, 5])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}),
        (torch.optim.Adam, {"lr": 3e-3}),
        (torch.optim.Adam, {"lr": 3e-3, "weight_decay": 1e-4}),
        (torch.optim.AdamW, {"lr": 3e-3, "fused": True}),
    ],
)
def test_question_2_share_of_connections_is_held_at_zero_and_learning_goes_on(
    kind: type[torch.optim.Optimizer], options: dict[str, Any], warm_up: int
) -> None:
    torch.manual_seed(0)
    model = TSP(30, 65)
    optimizer = kind(model.parameters(), **options)
    data = torch.randn(256, 30)
    losses = []

    def step() -> None:
        optimizer.zero_grad()
        loss = (model(data) - data).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    for _ in range(warm_up):
        step()
    names, ids = [name for name, _ in model.named_parameters()], [id(p) for p in model.parameters()]
    masks = prune_(model, optimizer, sparsity=0.8)
    losses.clear()
    positions = None
    for _ in range(200):
        step()
        zeros = [layer.weight.detach() == 0 for layer in (model.sc1, model.sc2)]
        assert [int(zero.sum()) for zero in zeros] == [1560, 1560]  # 80 % of 1950
        positions = positions or zeros
        assert all(torch.equal(a, b) for a, b in zip(positions, zeros, strict=True))
        assert all(is_zero(model.get_parameter(name)[~mask]) for name, mask in masks.items())
    assert losses[-1] < 0.75 * losses[0]
    assert losses[-1] < losses[100] < losses[10]
    assert [name for name, _ in model.named_parameters()] == names
    assert [id(p) for p in model.parameters()] == ids
    assert model.predict_hidden(data).shape == (256, 65)


def test_question_2_line_of_the_question_keeps_the_zeros_though_nothing_is_learned() -> None:
    model = TSP(32, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    masks = prune_(model, optimizer, sparsity=0.8)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 32)).pow(2).mean().backward()
        optimizer.step()
        model.sc1.weight = nn.Parameter(1.0 * model.sc1.weight)
        assert is_zero(model.sc1.weight[~masks["sc1.weight"]])
    assert masks.sparsity("sc1.weight") == round(0.8 * 2048) / 2048
