"""What users ran into, and what the doctor says and does about it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import secateur
from secateur.doctor import diagnose, relink_, watch


def lines(finding: object) -> str:
    """The finding's text on one line."""
    return " ".join(str(finding).split())


class TSP(nn.Module):
    """The feed-forward net of the second question."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.sc1, self.sc2 = nn.Linear(input_size, hidden_size), nn.Linear(hidden_size, input_size)
        for layer in (self.sc1, self.sc2):
            nn.init.normal_(layer.weight, mean=0, std=0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.sc2(self.predict_hidden(x))

    def predict_hidden(self, x: Tensor) -> Tensor:
        return torch.relu(self.sc1(x))


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "momentum": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
    "plain": lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
    "decay": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2),
    "adam": lambda m: torch.optim.Adam(m.parameters(), lr=1e-2),
}


@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
@pytest.mark.parametrize("masked", [False, True], ids=["times one", "times mask"])
def test_question_2_broken_loop_is_explained_and_mended(optimizer_name: str, masked: bool) -> None:
    model = TSP(32, 64)
    optimizer = OPTIMIZERS[optimizer_name](model)
    data = torch.randn(256, 32)
    masks = [torch.rand(64, 32) > 0.8 * masked, torch.rand(32, 64) > 0.8 * masked]

    def train(steps: int, *, by_hand: bool) -> list[float]:
        losses = []
        for step in range(steps):
            optimizer.zero_grad()
            loss = (model(data) - data).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if by_hand and step >= 5:
                model.sc1.weight = nn.Parameter(masks[0] * model.sc1.weight)
                model.sc2.weight = nn.Parameter(masks[1] * model.sc2.weight)
        return losses

    with watch(model, optimizer) as watching:
        train(60, by_hand=True)
    found = diagnose(model, optimizer)
    assert [(f.code, f.names) for f in found] == [("stale-optimizer-reference", ("sc1.weight", "sc2.weight"))]
    assert "model.sc1.weight = nn.Parameter(" + ("mask *" if masked else "1.0 *") in lines(found[0])
    assert [(f.code, f.names, f.step) for f in watching.findings] == [(found[0].code, found[0].names, 7)]

    before = [model.sc1.weight.clone(), model.sc2.weight.clone()]
    done = relink_(model, optimizer)
    assert done.relinked == ("sc1.weight", "sc2.weight")
    train(1, by_hand=False)
    assert all(bool((old != new).any()) for old, new in zip(before, (model.sc1.weight, model.sc2.weight), strict=True))
    assert not diagnose(model, optimizer)
    losses = train(150, by_hand=False)
    assert losses[-1] < 0.95 * losses[0]


def cut_by_hand(layer: nn.Linear) -> None:
    """The two lines of the first question."""
    layer.weight.data = layer.weight.data[:, :90]
    layer.weight.grad.data = layer.weight.grad.data[:, :90]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_question_1_as_written_is_a_stale_graph_and_is_mended(momentum: float) -> None:
    layer = nn.Linear(100, 10)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=momentum)
    loss = 5 - layer(torch.ones(100)).sum()
    loss.backward()
    optimizer.step()
    buffer = optimizer.state[layer.weight].get("momentum_buffer")
    cut_by_hand(layer)
    found = diagnose(layer, optimizer)
    assert found.codes == (("stale-autograd-graph", "state-shape") if momentum else ("stale-autograd-graph",))
    assert found[0].names == ("weight",)
    assert "(10, 100)" in lines(found[0])
    with pytest.raises(RuntimeError, match="invalid gradient"):
        layer(torch.ones(90)).sum().backward()

    done = relink_(layer, optimizer)
    assert done.graphs == ("weight",)
    before = layer.weight.clone()
    (5 - layer(torch.ones(90)).sum()).backward()
    optimizer.step()
    assert layer.weight.grad.shape == (10, 90)
    assert bool((layer.weight != before).all())
    if momentum:  # the kept part of the buffer, plus twice a gradient of -1 in every entry
        expected = 0.9 * buffer[:, :90] - 2
        assert torch.allclose(optimizer.state[layer.weight]["momentum_buffer"], expected)
    assert not diagnose(layer, optimizer, loss=None)


def test_question_1_rewrapped_is_held_by_no_optimizer_and_is_mended() -> None:
    layer = nn.Linear(100, 10)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    (5 - layer(torch.ones(100)).sum()).backward()
    optimizer.step()
    old = layer.weight
    buffer = optimizer.state[old]["momentum_buffer"]
    cut_by_hand(layer)
    layer.weight = nn.Parameter(layer.weight)
    (finding,) = diagnose(layer, optimizer)
    assert (finding.code, finding.names, finding.data["orphans"]) == ("stale-optimizer-reference", ("weight",), 1)
    assert "`model.weight = nn.Parameter(model.weight)`" in lines(finding)

    assert relink_(layer, optimizer).state == {"weight": "cut"}
    assert torch.equal(optimizer.state[layer.weight]["momentum_buffer"], buffer[:, :90])
    assert old not in optimizer.state
    before = layer.weight.clone()
    optimizer.zero_grad()
    layer(torch.ones(90)).sum().backward()
    optimizer.step()
    assert bool((layer.weight != before).any())


def test_case_27_one_replaced_weight_is_one_finding_and_moves_after_the_repair() -> None:
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    assert not diagnose(net, optimizer)
    net[0].weight = nn.Parameter(net[0].weight.detach().clone())
    for _ in range(10):
        optimizer.zero_grad()
        net(torch.randn(16, 6)).pow(2).mean().backward()
        optimizer.step()
    (finding,) = diagnose(net, optimizer)
    assert (finding.code, finding.names, finding.data["orphans"]) == ("stale-optimizer-reference", ("0.weight",), 1)
    assert finding.data["tensors"]["0.weight"]["shape"] == [6, 6]
    assert "secateur.relink_(model, optimizer)" in finding.fix
    before = net[0].weight.clone()
    relink_(net, optimizer)
    optimizer.zero_grad()
    net(torch.randn(16, 6)).pow(2).mean().backward()
    optimizer.step()
    assert bool((net[0].weight != before).any())


@pytest.mark.parametrize("order", ["of their norms", "of their positions"])
def test_case_28_four_of_four_parameters_are_unknown_to_the_optimizer(order: str) -> None:
    net = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    x = torch.randn(256, 5)
    y = x.prod(1, keepdim=True)

    def train(epochs: int) -> float:
        for _ in range(epochs):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(x), y)
            loss.backward()
            optimizer.step()
        return loss.item()

    train(21)
    moments = {p: optimizer.state[p]["exp_avg"].clone() for p in net.parameters()}
    keep = net[0].weight.norm(dim=1).topk(28).indices
    keep = keep if order == "of their norms" else keep.sort().values
    olds = list(net.parameters())
    cuts = [moments[olds[0]][keep], moments[olds[1]][keep], moments[olds[2]][:, keep], moments[olds[3]]]
    news = (net[0].weight[keep], net[0].bias[keep], net[2].weight[:, keep], net[2].bias)
    for (module, leaf), new in zip(
        ((net[0], "weight"), (net[0], "bias"), (net[2], "weight"), (net[2], "bias")), news, strict=True
    ):
        setattr(module, leaf, nn.Parameter(new.detach().clone()))
    assert train(50) == train(50)  # the symptom: nothing moves
    (finding,) = diagnose(net, optimizer)
    assert finding.code == "stale-optimizer-reference"
    assert finding.names == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert (finding.data["unknown"], finding.data["trainable"], finding.data["orphans"]) == (4, 4, 4)

    relink_(net, optimizer)
    for parameter, cut in zip(net.parameters(), cuts, strict=True):
        assert torch.equal(optimizer.state[parameter]["exp_avg"], cut)
    assert train(180) < 0.5


def test_case_29_stale_graph_names_every_cut_parameter() -> None:
    net = nn.Sequential(nn.Linear(10, 8), nn.Linear(8, 3))
    out = net(torch.randn(4, 10))
    net[0].weight.data, net[0].bias.data = net[0].weight.data[:6], net[0].bias.data[:6]
    net[1].weight.data = net[1].weight.data[:, :6]
    (finding,) = diagnose(net)
    assert (finding.code, finding.names) == ("stale-autograd-graph", ("0.weight", "0.bias", "1.weight"))

    relink_(net, None)
    net(torch.randn(4, 10)).sum().backward()
    assert [tuple(p.grad.shape) for p in net.parameters()] == [(6, 10), (6,), (3, 6), (3,)]
    with pytest.raises(secateur.StaleGraphError, match=r"built before 0\.weight, 0\.bias, 1\.weight changed"):
        out.sum().backward()
    assert not diagnose(net)


class LM(nn.Module):
    """The tied language model of case 30."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.mid, self.head = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 20, bias=False)
        self.head.weight = self.emb.weight


@pytest.mark.parametrize("with_optimizer", [False, True])
@pytest.mark.parametrize(("index", "shape"), [((slice(None), slice(6)), (20, 6)), ((slice(18),), (18, 8))])
def test_case_30_tied_weights_came_apart(
    with_optimizer: bool, index: tuple[slice, ...], shape: tuple[int, int]
) -> None:
    model = LM()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if with_optimizer else None
    model.emb.weight = nn.Parameter(model.emb.weight.detach()[index])
    if shape == (20, 6):
        model.mid.weight = nn.Parameter(model.mid.weight.detach()[:6, :6])
        model.mid.bias = nn.Parameter(model.mid.bias.detach()[:6])
    found = diagnose(model, optimizer)
    (finding,) = found.of("tied-weights-apart")
    assert finding.names == ("emb.weight", "head.weight")
    assert "tied weights came apart: emb.weight / head.weight" in lines(finding)

    relink_(model, optimizer)
    assert model.head.weight is model.emb.weight
    assert tuple(model.emb.weight.shape) == shape
    if optimizer is not None:
        assert sum(p is model.emb.weight for p in optimizer.param_groups[0]["params"]) == 1
    assert not diagnose(model, optimizer)


def test_case_31_gradient_of_the_old_shape_is_found_and_cut() -> None:
    net = nn.Linear(4, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.randn(2, 4)).sum().backward()
    old = net.weight.grad.clone()
    net.weight.data, net.bias.data = net.weight.data[:6], net.bias.data[:6]
    (finding,) = diagnose(net, optimizer)
    assert (finding.code, finding.names) == ("grad-shape", ("weight", "bias"))
    assert "grad shape (8, 4) differs from parameter (6, 4) for 'weight'" in lines(finding)

    relink_(net, optimizer)
    assert torch.equal(net.weight.grad, old[:6])
    net(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    assert not diagnose(net, optimizer)


def test_case_61_an_all_zero_layer_is_reported() -> None:
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    with torch.no_grad():
        net[2].weight.mul_(1e-3)
        net[2].bias.zero_()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    assert not diagnose(net, optimizer)
    threshold = torch.cat([net[i].weight.detach().abs().flatten() for i in (0, 2)]).sort().values[1099]
    masks = {f"{i}.weight": net[i].weight.detach().abs() > threshold for i in (0, 2)}
    with torch.no_grad():
        net[0].weight.mul_(masks["0.weight"])
        net[2].weight.mul_(masks["2.weight"])
    for found in (diagnose(net), diagnose(net, optimizer, masks=masks)):
        assert [(f.code, f.names) for f in found] == [("zero-layer", ("2.weight",))]


def test_case_61_an_all_zero_layer_under_the_librarys_own_mask_is_reported() -> None:
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    secateur.Masks.from_dict(net, {"2.weight": torch.zeros(32, 32, dtype=torch.bool)}, optimizer)
    (finding,) = diagnose(net, optimizer)
    assert (finding.code, finding.names) == ("zero-layer", ("2.weight",))
    assert "Its mask keeps no weight" in lines(finding)
