"""Masks from and to ``torch.nn.utils.prune``: what torch computed before is what the plain model computes after."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import prune

from secateur import HolderError, InvalidInputError, Masks, ShapeError, UnsupportedError, patterns, prune_
from secateur.interchange import from_torch_prune, to_torch_prune
from tests.masks.oracles import bits, half, is_zero, snapshot


class EveryOther(prune.BasePruningMethod):
    """The tutorial's method of one's own."""

    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        mask = default_mask.clone()
        mask.view(-1)[::2] = 0
        return mask


def stacked(module: nn.Module, name: str) -> None:
    prune.l1_unstructured(module, name, amount=0.3)
    prune.ln_structured(module, name, amount=1, n=2, dim=0)
    prune.random_unstructured(module, name, amount=2)


METHODS: dict[str, Callable[[nn.Module, str], Any]] = {
    "random_unstructured": lambda m, n: prune.random_unstructured(m, n, amount=0.3),
    "l1_unstructured": lambda m, n: prune.l1_unstructured(m, n, amount=3),
    "random_structured": lambda m, n: prune.random_structured(m, n, amount=1, dim=0),
    "ln_structured": lambda m, n: prune.ln_structured(m, n, amount=0.5, n=math.inf, dim=-1),
    "identity": prune.identity,
    "custom": lambda m, n: EveryOther.apply(m, n),
    "custom_from_mask": lambda m, n: prune.custom_from_mask(m, n, half(getattr(m, n).shape)),
    "scores": lambda m, n: prune.l1_unstructured(m, n, 0.3, importance_scores=torch.rand(getattr(m, n).shape)),
    "stacked": stacked,
}

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "Linear": lambda: nn.Linear(6, 5),
    "Linear without bias": lambda: nn.Linear(6, 5, bias=False),
    "Conv1d": lambda: nn.Conv1d(6, 4, 3, groups=2),
    "ConvTranspose2d": lambda: nn.ConvTranspose2d(6, 4, 3),
    "Bilinear": lambda: nn.Bilinear(6, 6, 4),
    "Embedding": lambda: nn.Embedding(10, 6),
    "LayerNorm": lambda: nn.LayerNorm(6),
    "LSTM": lambda: nn.LSTM(6, 5, num_layers=2),
    "GRU": lambda: nn.GRU(6, 5, bidirectional=True, bias=False),
    "MultiheadAttention": lambda: nn.MultiheadAttention(6, 2, bias=True),
}


def output(layer: nn.Module) -> Tensor:
    """What a layer gives for an input that suits it, always the same one."""
    generator = torch.Generator().manual_seed(5)
    if isinstance(layer, nn.Embedding):
        return layer(torch.arange(10))
    shape = {nn.Conv1d: (2, 6, 8), nn.ConvTranspose2d: (2, 6, 4, 4)}.get(type(layer), (3, 2, 6))
    x = torch.randn(shape, generator=generator)
    if isinstance(layer, nn.MultiheadAttention):
        return layer(x, x, x)[0]
    found = layer(x, x) if isinstance(layer, nn.Bilinear) else layer(x)
    return found[0] if isinstance(found, tuple) else found


def visible(layer: nn.Module) -> dict[str, Tensor]:
    """The weights that a layer computes with, by the names of the plain parameters."""
    names = [name.removesuffix("_orig") for name, _ in layer.named_parameters()]
    return {name: getattr_at(layer, name).detach() for name in names}


def getattr_at(model: nn.Module, name: str) -> Any:
    path, _, leaf = name.rpartition(".")
    return getattr(model.get_submodule(path), leaf)


def pruned_names(model: nn.Module) -> list[str]:
    return [name.removesuffix("_mask") for name, _ in model.named_buffers() if name.endswith("_mask")]


BY_DIM = ("random_structured", "ln_structured", "stacked")
"""Methods for tensors of two or more dims."""

PAIRS = [(kind, method) for kind in LAYERS for method in METHODS if (kind, method in BY_DIM) != ("LayerNorm", True)]


@pytest.mark.parametrize(("kind", "method"), PAIRS)
def test_converted_layer_is_the_plain_one_with_the_same_output(kind: str, method: str) -> None:
    layer = LAYERS[kind]()
    plain = LAYERS[kind]()
    for name in [name for name, p in layer.named_parameters() if p.dim() > 1 or method not in BY_DIM]:
        path, _, leaf = name.rpartition(".")
        METHODS[method](layer.get_submodule(path), leaf)
    before = output(layer)
    weights = visible(layer)
    expected = {name: getattr_at(layer, f"{name}_mask") != 0 for name in pruned_names(layer)}
    ids = {name.removesuffix("_orig"): id(p) for name, p in layer.named_parameters()}
    masks = from_torch_prune(layer)
    assert {name: id(p) for name, p in layer.named_parameters()} == ids
    assert [name for name, _ in layer.named_parameters()] == [name for name, _ in plain.named_parameters()]
    assert list(layer.state_dict()) == list(plain.state_dict())
    assert not prune.is_pruned(layer)
    assert dict(masks).keys() == expected.keys()
    assert all(torch.equal(masks[name], mask) for name, mask in expected.items())
    assert all(torch.equal(p, weights[name]) for name, p in layer.named_parameters())
    assert torch.equal(output(layer), before)
    plain.load_state_dict(layer.state_dict(), strict=True)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {"lr": 0.1}),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
        (torch.optim.Adam, {"lr": 0.01}),
        (torch.optim.AdamW, {"lr": 0.01, "fused": True}),
        (torch.optim.RMSprop, {"lr": 0.01}),
        (torch.optim.Adagrad, {"lr": 0.01}),
    ],
)
def test_training_goes_on_as_torch_would_have(kind: type[torch.optim.Optimizer], options: Any, named: bool) -> None:
    """Values of kept weights depend on kept weights alone, so both trainings give the same ones bit for bit."""
    model, reference = net(), net()
    reference.load_state_dict(model.state_dict())
    optimizers = []
    for each in (model, reference):
        optimizers.append(kind(each.parameters(), **options))
        train(each, optimizers[-1], range(2))
        prune.global_unstructured([(each[0], "weight"), (each[2], "weight")], prune.L1Unstructured, amount=0.6)
        prune.l1_unstructured(each[2], "bias", amount=1)
        train(each, optimizers[-1], range(2, 4))
    masks = from_torch_prune(model, optimizers[0] if named else None)
    for step in range(4, 8):
        train(model, optimizers[0], range(step, step + 1))
        train(reference, optimizers[1], range(step, step + 1))
        reference(torch.zeros(1, 6))  # torch computes the weights of a step in the next forward
        weights = visible(reference)
        assert all(torch.equal(p, weights[name]) for name, p in model.named_parameters())
        assert all(is_zero(model.get_parameter(name).detach()[~mask]) for name, mask in masks.items())


def test_named_optimizer_forgets_masked_places_and_still_holds_the_parameters() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer, range(2))
    prune.random_unstructured(model[0], "weight", amount=0.5)
    masks = from_torch_prune(model, optimizer)
    momentum = optimizer.state[model[0].weight]["momentum_buffer"]
    assert is_zero(momentum[~masks["0.weight"]])
    assert bool((momentum[masks["0.weight"]] != 0).all())
    assert [id(p) for group in optimizer.param_groups for p in group["params"]] == [id(p) for p in model.parameters()]


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=3),
    st.integers(0, 10_000),
    st.floats(0, 1),
)
def test_round_trips_leave_masks_and_weights_bit_equal(
    shapes: list[tuple[int, int]], seed: int, density: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    model = nn.ModuleList([nn.Linear(*shape) for shape in shapes])
    masks = {name: torch.rand(p.shape, generator=generator) < density for name, p in model.named_parameters()}
    held = Masks.from_dict(model, masks)
    weights = {name: bits(p) for name, p in model.named_parameters()}
    ids = [id(p) for p in model.parameters()]
    pairs = to_torch_prune(model)
    assert len(pairs) == len(masks)
    assert len(Masks(model)) == 0
    assert all(torch.equal(getattr_at(model, f"{name}_mask"), mask.float()) for name, mask in masks.items())
    assert {name: bits(weight) for name, weight in visible(model).items()} == weights
    back = from_torch_prune(model)
    assert all(torch.equal(back[name], mask) for name, mask in masks.items())
    assert list(back) == list(masks)
    assert {name: bits(p) for name, p in model.named_parameters()} == weights
    assert [id(p) for p in model.parameters()] == ids
    assert back == held


def test_masks_that_were_handed_over_are_torch_s_own() -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    prune_(model, optimizer, sparsity=0.5, pattern=patterns.Channel(dim=1))
    train(model, optimizer, range(2))
    masks = dict(Masks(model).items())
    before = output_of(model)
    for module, name in to_torch_prune(model):
        assert prune.is_pruned(module)
        assert isinstance(module._forward_pre_hooks[next(iter(module._forward_pre_hooks))], prune.CustomFromMask)
        assert f"{name}_orig" in dict(module.named_parameters())
    assert torch.equal(output_of(model), before)
    train(model, optimizer, range(2, 4))
    model(torch.zeros(1, 6))
    assert all(not bool(getattr_at(model, name)[~mask].any()) for name, mask in masks.items())
    for module, name in ((model[0], "weight"), (model[2], "weight")):
        prune.remove(module, name)
    assert all(torch.equal(model.get_parameter(name) != 0, mask) for name, mask in masks.items())
    assert dict(Masks.from_zeros(model)).keys() == masks.keys()


def output_of(model: nn.Module) -> Tensor:
    return model(torch.randn(4, 6, generator=torch.Generator().manual_seed(9)))


def test_checkpoint_in_torch_s_format_loads_through_an_identity_mask() -> None:
    old = net()
    prune.l1_unstructured(old[0], "weight", amount=0.5)
    fresh = net()
    prune.identity(fresh[0], "weight")
    fresh.load_state_dict(old.state_dict())
    masks = from_torch_prune(fresh)
    assert torch.equal(masks["0.weight"], old[0].weight_mask != 0)
    assert torch.equal(output_of(fresh), output_of(old))


# ---- one parameter under several names


def tied() -> nn.ModuleDict:
    model = nn.ModuleDict({"table": nn.Embedding(5, 4), "head": nn.Linear(4, 5, bias=False)})
    model["head"].weight = model["table"].weight
    return model


def test_tied_parameter_that_is_pruned_alike_stays_tied() -> None:
    model = tied()
    mask = half((5, 4))
    for module in model.values():
        prune.custom_from_mask(module, "weight", mask)
    masks = from_torch_prune(model)
    assert model["head"].weight is model["table"].weight
    assert torch.equal(masks["head.weight"], mask)
    assert [name for _, name in to_torch_prune(model)] == ["weight", "weight"]
    assert model["head"].weight_orig is model["table"].weight_orig
    assert torch.equal(from_torch_prune(model)["table.weight"], mask)


def test_tied_parameter_that_is_not_pruned_alike_is_refused() -> None:
    for amounts in ([0.5], [0.5, 0.7]):
        model = tied()
        for module, amount in zip(model.values(), amounts, strict=False):
            prune.l1_unstructured(module, "weight", amount)
        before = snapshot(model)
        with pytest.raises(UnsupportedError, match=r"'table\.weight': it is tied, and not pruned alike"):
            from_torch_prune(model)
        assert snapshot(model) == before


def test_module_under_two_names_is_converted_once() -> None:
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    prune.l1_unstructured(layer, "weight", amount=0.5)
    masks = from_torch_prune(model)
    assert list(masks) == ["0.weight"]
    assert len(to_torch_prune(model)) == 1


def test_masks_that_the_parameters_have_already_stay_in_force() -> None:
    model = net()
    before = prune_(model, sparsity=0.5)["0.weight"]
    prune.random_unstructured(model[0], "weight", amount=0.5)
    theirs = model[0].weight_mask != 0
    masks = from_torch_prune(model)
    assert bool((theirs & ~before).any())
    assert torch.equal(masks["0.weight"], before & theirs)


# ---- what is refused


def test_model_without_anything_to_convert_is_refused() -> None:
    model = net()
    with pytest.raises(InvalidInputError, match=r"nothing in Sequential is pruned[\s\S]*Masks\.from_zeros"):
        from_torch_prune(model)
    with pytest.raises(InvalidInputError, match="has no masks to hand over"):
        to_torch_prune(model)


class Listed(nn.Module):
    """A model that uses parameters from a list, which has no forward."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(4, 4))])

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weights[0]


@pytest.mark.parametrize(
    ("make", "text"),
    [(Listed, "'0' of a ParameterList"), (lambda: nn.MultiheadAttention(8, 2), "'weight' of a NonDynamically")],
    ids=["list", "attention"],
)
def test_parameter_of_a_module_that_is_never_called_is_not_handed_over(make: Any, text: str) -> None:
    model = make()
    prune_(model, sparsity=0.5)
    before = snapshot(model)
    with pytest.raises(UnsupportedError, match=rf"cannot hand over the mask of {text}[\s\S]*exclude"):
        to_torch_prune(model)
    assert snapshot(model) == before


def soft(model: nn.Sequential) -> None:
    model[0].weight_mask.fill_(0.5)


def cut(model: nn.Sequential) -> None:
    model[0].weight_mask = model[0].weight_mask[:3]


@pytest.mark.parametrize(
    ("spoil", "error", "text"),
    [
        (soft, UnsupportedError, "its mask has other values than 0 and 1"),
        (cut, ShapeError, r"0\.weight_mask has another shape"),
    ],
)
def test_mask_that_is_none_is_refused_before_anything_changes(spoil: Any, error: type[Exception], text: str) -> None:
    model = net()
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    prune.l1_unstructured(model[2], "weight", amount=0.5)
    spoil(model)
    before = snapshot(model)
    with pytest.raises(error, match=text):
        from_torch_prune(model)
    assert snapshot(model) == before
    assert prune.is_pruned(model[2])


def inside(model: nn.Sequential) -> None:
    nn.utils.parametrizations.weight_norm(model[0])
    prune.l1_unstructured(model[0].parametrizations.weight, "original1", amount=0.5)


def around(model: nn.Sequential) -> None:
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    nn.utils.parametrizations.weight_norm(model[0], "weight_orig")


def hooked(model: nn.Sequential) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        nn.utils.weight_norm(model[0])
    prune.l1_unstructured(model[0], "weight_v", amount=0.5)


def hooked_around(model: nn.Sequential) -> None:
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    nn.utils.spectral_norm(model[0], "weight_orig")


@pytest.mark.parametrize("put", [inside, around, hooked, hooked_around])
def test_tensor_that_something_else_computes_too_is_refused_before_anything_changes(put: Any) -> None:
    model = net()
    prune.l1_unstructured(model[2], "weight", amount=0.5)
    put(model)
    before = snapshot(model)
    with pytest.raises(UnsupportedError, match=r"cannot convert '0\.[\s\S]*(Weight|Spectral)Norm too"):
        from_torch_prune(model)
    assert snapshot(model) == before
    assert prune.is_pruned(model[2])


def test_optimizer_that_lacks_a_pruned_parameter_is_refused_before_anything_changes() -> None:
    model = net()
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    before = snapshot(model, optimizer)
    with pytest.raises(HolderError, match=r"holds '0\.weight'"):
        from_torch_prune(model, optimizer)
    assert snapshot(model, optimizer) == before
    assert prune.is_pruned(model)
