"""Weights that are computed from other tensors."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

from secateur import UnsupportedError, grow_, resize_, transaction
from secateur.surgery import Selection, parametrization_rule


def legacy(kind: str, module: nn.Module, **options: object) -> nn.Module:
    """One of the older hooks, without its advice to use a parametrization."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return getattr(nn.utils, kind)(module, **options)


WEIGHT_NORMS: dict[str, Callable[..., nn.Module]] = {
    "parametrization": parametrizations.weight_norm,
    "legacy": lambda module, **options: legacy("weight_norm", module, **options),
}
SPECTRAL_NORMS: dict[str, Callable[..., nn.Module]] = {
    "parametrization": parametrizations.spectral_norm,
    "legacy": lambda module, **options: legacy("spectral_norm", module, **options),
}
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(5, 6), (2, 5)),
    "conv": (lambda: nn.Conv2d(5, 6, 3), (2, 5, 4, 4)),
}


def check_trains(module: nn.Module, x: Tensor) -> None:
    """A forward and backward pass with gradients of the right shapes."""
    module(x).sum().backward()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in module.parameters())


# Weight norm ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("form", WEIGHT_NORMS)
@pytest.mark.parametrize("norm_dim", [0, 1, None])
@pytest.mark.parametrize("dim", [0, 1])
def test_weight_norm_keeps_the_kept_weights(layer: str, form: str, norm_dim: int | None, dim: int) -> None:
    make, shape = LAYERS[layer]
    module = WEIGHT_NORMS[form](make(), dim=norm_dim)
    module(torch.randn(shape))
    before = module.weight.detach().clone()
    identities = {name: id(p) for name, p in module.named_parameters()}
    keep = [0, 2, 3]
    with transaction(module) as t:
        t.resize("weight", dim=dim, keep=keep)
        if dim == 0:
            t.resize("bias", dim=0, keep=keep)
    torch.testing.assert_close(module.weight.detach(), before.index_select(dim, torch.tensor(keep)))
    assert {name: id(p) for name, p in module.named_parameters()} == identities
    check_trains(module, torch.randn(shape)[:, : module.weight.shape[1]])


@pytest.mark.parametrize("form", WEIGHT_NORMS)
def test_weight_norm_is_not_rescaled_where_only_zeros_go(form: str) -> None:
    layer = nn.Linear(5, 6)
    with torch.no_grad():
        layer.weight[:, [1, 4]] = 0
    module = WEIGHT_NORMS[form](layer)
    lengths = {n: p.detach().clone() for n, p in module.named_parameters() if n.endswith(("original0", "_g"))}
    resize_(module, "weight", dim=1, keep=[0, 2, 3])
    assert len(lengths) == 1
    for name, value in lengths.items():
        assert torch.equal(module.get_parameter(name), value)


@pytest.mark.parametrize("form", WEIGHT_NORMS)
@pytest.mark.parametrize("part", ["weight", "lengths", "directions"])
def test_weight_norm_parts_can_be_named_each(form: str, part: str) -> None:
    module = WEIGHT_NORMS[form](nn.Linear(5, 6))
    names = {
        "parametrization": {
            "lengths": "parametrizations.weight.original0",
            "directions": "parametrizations.weight.original1",
        },
        "legacy": {"lengths": "weight_g", "directions": "weight_v"},
    }[form]
    before = module.weight.detach().clone()
    resize_(module, names.get(part, part), dim=0, keep=[1, 3])
    assert module.get_parameter(names["lengths"]).shape == (2, 1)
    assert module.get_parameter(names["directions"]).shape == (2, 5)
    torch.testing.assert_close(module.weight.detach(), before[[1, 3]])


@pytest.mark.parametrize("form", WEIGHT_NORMS)
def test_weight_norm_refuses_to_leave_a_row_without_direction(form: str) -> None:
    layer = nn.Linear(3, 2)
    with torch.no_grad():
        layer.weight[1, :2] = 0
    module = WEIGHT_NORMS[form](layer)
    state = copy.deepcopy(module.state_dict())
    with pytest.raises(UnsupportedError, match="a row would keep only zeros"):
        resize_(module, "weight", dim=1, keep=[0, 1])
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize("form", WEIGHT_NORMS)
def test_weight_norm_grows_by_rows_that_have_a_direction(form: str) -> None:
    module = WEIGHT_NORMS[form](nn.Linear(3, 2))
    before, new = module.weight.detach().clone(), torch.randn(2, 3)
    grow_(module, "weight", dim=0, size=4, init=new)
    torch.testing.assert_close(module.weight.detach(), torch.cat([before, new]))


@pytest.mark.parametrize("form", WEIGHT_NORMS)
def test_weight_norm_grows_by_columns_of_zeros(form: str) -> None:
    module = WEIGHT_NORMS[form](nn.Linear(3, 2))
    before = module.weight.detach().clone()
    grow_(module, "weight", dim=1, size=5)
    torch.testing.assert_close(module.weight.detach(), torch.cat([before, torch.zeros(2, 2)], 1))
    assert module.in_features == 5


@pytest.mark.parametrize("form", WEIGHT_NORMS)
@pytest.mark.parametrize(
    ("name", "dim", "init", "why"),
    [
        ("weight", 0, None, "no direction"),
        ("weight", 0, nn.init.zeros_, "no direction"),
        ("weight", 1, nn.init.ones_, "change the norms of the old ones"),
        ("lengths", 0, nn.init.ones_, "no direction"),
        ("lengths", 1, nn.init.ones_, "one length for all positions"),
    ],
)
def test_weight_norm_refuses_growth_that_has_no_meaning(
    form: str, name: str, dim: int, init: Callable[[Tensor], Tensor] | None, why: str
) -> None:
    module = WEIGHT_NORMS[form](nn.Linear(3, 2))
    lengths = {"parametrization": "parametrizations.weight.original0", "legacy": "weight_g"}[form]
    with pytest.raises(UnsupportedError, match=why):
        grow_(module, lengths if name == "lengths" else name, dim=dim, size=4, init=init)
    assert module(torch.randn(1, 3)).shape == (1, 2)


def test_weight_norm_records_the_sizes_of_the_layer() -> None:
    module = parametrizations.weight_norm(nn.Linear(5, 6))
    resize_(module, "weight", dim=1, keep=[0, 1])
    assert (module.in_features, module.out_features) == (2, 6)
    resize_(module, "bias", dim=0, keep=[0, 1, 2])
    assert module.out_features == 6
    resize_(module, "weight", dim=0, keep=[0, 1, 2])
    assert module.out_features == 3


@pytest.mark.parametrize("make", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_normalised_weights_without_values_are_cut(make: Callable[[nn.Module], nn.Module]) -> None:
    module = make(nn.Linear(5, 6, device="meta"))
    resize_(module, "weight", dim=1, keep=[0, 2])
    assert module.weight.shape == (6, 2)
    if make is parametrizations.weight_norm:
        grow_(module, "weight", dim=0, size=8, init=nn.init.ones_)
        grow_(module, "weight", dim=1, size=3, init=nn.init.zeros_)
        assert module.weight.shape == (8, 3)


# Spectral norm --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("form", SPECTRAL_NORMS)
@pytest.mark.parametrize("norm_dim", [0, 1])
@pytest.mark.parametrize("dim", [0, 1])
def test_spectral_norm_keeps_cut_vectors_of_length_one(layer: str, form: str, norm_dim: int, dim: int) -> None:
    make, shape = LAYERS[layer]
    module = SPECTRAL_NORMS[form](make(), dim=norm_dim)
    module(torch.randn(shape))
    buffers = dict(module.named_buffers())
    before = {name: value.clone() for name, value in buffers.items()}
    keep = [0, 2, 3]
    rest = [size for d, size in enumerate(make().weight.shape) if d != norm_dim]
    with transaction(module) as t:
        t.resize("weight", dim=dim, keep=keep)
        if dim == 0:
            t.resize("bias", dim=0, keep=keep)
    for name, value in module.named_buffers():
        assert value is buffers[name], "the buffer keeps its identity"
        old = before[name]
        if name.endswith("u") and dim == norm_dim:
            old = old[keep]
        if name.endswith("v") and dim != norm_dim:
            at = [d for d in range(len(rest) + 1) if d != norm_dim].index(dim)
            old = old.view(rest).index_select(at, torch.tensor(keep)).flatten()
        torch.testing.assert_close(value, old / old.norm())
    check_trains(module, torch.randn(shape)[:, : module.weight.shape[1]])


@pytest.mark.parametrize("form", SPECTRAL_NORMS)
def test_spectral_norm_goes_on_to_normalise(form: str) -> None:
    module = SPECTRAL_NORMS[form](nn.Linear(8, 6))
    resize_(module, "weight", dim=1, keep=[0, 2, 3, 6])
    for _ in range(200):
        module(torch.randn(1, 4))  # each pass is one step of the power iteration
    assert torch.linalg.matrix_norm(module.weight.detach(), 2).item() == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize("form", SPECTRAL_NORMS)
def test_spectral_norm_does_not_step_its_iteration_to_look_at_the_shape(form: str) -> None:
    module = SPECTRAL_NORMS[form](nn.Linear(5, 6))
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(Exception, match="no dim 2"):
        resize_(module, "weight", dim=2, keep=[0])
    with pytest.raises(UnsupportedError, match="no entries for new positions"):
        grow_(module, "weight", dim=1, size=7)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_spectral_norm_starts_afresh_where_nothing_is_left_of_a_vector() -> None:
    module = parametrizations.spectral_norm(nn.Linear(4, 3))
    part = module.parametrizations.weight[0]
    part._v.copy_(torch.tensor([1.0, 0, 0, 0]))
    resize_(module, "weight", dim=1, keep=[1, 2])
    torch.testing.assert_close(part._v, torch.full((2,), 0.5**0.5))
    assert module(torch.randn(1, 2)).isfinite().all()


def test_spectral_norm_of_a_vector_is_cut_like_any() -> None:
    module = parametrizations.spectral_norm(nn.BatchNorm1d(4))
    resize_(module, "weight", dim=0, keep=[0, 2])
    assert module.running_mean.shape == (2,)
    torch.testing.assert_close(module.weight.detach(), torch.full((2,), 0.5**0.5))


# Pruning by torch -----------------------------------------------------------------------------------------------------


def test_torch_prune_mask_follows_the_weight() -> None:
    module = nn.Linear(6, 4)
    prune.random_unstructured(module, "weight", 0.5)
    weight, mask = module.weight_orig, module.weight_mask.clone()
    expected = (module.weight_orig * mask).detach()[:, [0, 2, 5]]
    resize_(module, "weight", dim=1, keep=[0, 2, 5])
    assert module.weight_orig is weight
    assert torch.equal(module.weight_mask, mask[:, [0, 2, 5]])
    assert torch.equal(module.weight.detach(), expected)
    assert module.in_features == 3
    check_trains(module, torch.randn(2, 3))


@pytest.mark.parametrize("name", ["weight", "weight_orig", "weight_mask"])
def test_torch_prune_parts_can_be_named_each(name: str) -> None:
    module = nn.Linear(6, 4)
    prune.l1_unstructured(module, "weight", 0.5)
    prune.random_unstructured(module, "weight", 0.2)  # several methods: one container
    resize_(module, name, dim=0, keep=[1, 3])
    assert module.weight_orig.shape == module.weight_mask.shape == module.weight.shape == (2, 6)


def test_torch_prune_keeps_new_positions() -> None:
    module = nn.Linear(3, 2)
    prune.l1_unstructured(module, "weight", 3)
    grow_(module, "weight", dim=1, size=4, init=nn.init.ones_)
    assert module.weight_mask[:, 3].tolist() == [1.0, 1.0]
    assert module.weight[:, 3].tolist() == [1.0, 1.0]


def test_torch_prune_mask_follows_a_weight_that_is_tied_elsewhere() -> None:
    model = nn.ModuleDict({"emb": nn.Embedding(6, 4), "head": nn.Linear(4, 6, bias=False)})
    model["head"].weight = model["emb"].weight
    prune.l1_unstructured(model["head"], "weight", 0.5)
    resize_(model, "emb.weight", dim=0, keep=range(5))
    assert model["head"].weight_mask.shape == (5, 4)
    assert model["head"](model["emb"](torch.tensor([4]))).shape == (1, 5)


# Everything else ------------------------------------------------------------------------------------------------------


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).mT


class Scaled(nn.Module):
    """A parametrization that works position by position, with one scale a row."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.arange(1.0, rows + 1).unsqueeze(1))

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.scale


@pytest.mark.parametrize("name", ["weight", "parametrizations.weight.original"])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: parametrizations.orthogonal(nn.Linear(4, 4)), "computed by Orthogonal"),
        (lambda: _parametrized(nn.Linear(4, 4), Symmetric()), "computed by Symmetric"),
        (
            lambda: parametrizations.spectral_norm(_parametrized(nn.Linear(4, 4), Symmetric())),
            "computed by Symmetric, SpectralNorm",
        ),
    ],
    ids=["orthogonal", "unknown", "two"],
)
def test_other_parametrizations_are_refused(make: Callable[[], nn.Module], message: str, name: str) -> None:
    module = make().eval()
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(UnsupportedError, match=message) as caught:
        resize_(module, name, dim=0, keep=[0, 1])
    assert "remove_parametrizations(module, name, leave_parametrized=True), resize, then" in str(caught.value)
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())


def _parametrized(module: nn.Module, part: nn.Module) -> nn.Module:
    parametrize.register_parametrization(module, "weight", part)
    return module


def test_recipe_for_orthogonal_weights_works() -> None:
    module = parametrizations.orthogonal(nn.Linear(6, 6))
    original = module.parametrizations.weight.original
    parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)
    with transaction(module) as t:
        t.resize("weight", dim=0, keep=range(4))
        t.resize("bias", dim=0, keep=range(4))
    parametrizations.orthogonal(module)
    assert module.parametrizations.weight.original is original
    torch.testing.assert_close(module.weight @ module.weight.T, torch.eye(4), atol=1e-5, rtol=0)


def test_bias_of_a_layer_whose_weight_is_refused_can_be_cut() -> None:
    module = _parametrized(nn.Linear(4, 4), Symmetric())
    resize_(module, "bias", dim=0, keep=[0, 1])
    assert module.bias.shape == (2,)
    assert module.out_features == 4


def test_registered_parametrization_follows_its_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    from secateur.surgery.computed import PARAMETRIZATIONS

    monkeypatch.setattr("secateur.surgery.computed.PARAMETRIZATIONS", PARAMETRIZATIONS)
    monkeypatch.delitem(PARAMETRIZATIONS, Scaled, raising=False)

    @parametrization_rule(Scaled)
    def scale_follows(part: Scaled, selection: Selection) -> dict[str, Selection]:
        return {"scale": selection} if selection.dim == 0 else {}

    module = _parametrized(nn.Linear(3, 4), Scaled(4))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    module(torch.randn(1, 3)).sum().backward()
    optimizer.step()
    expected = module.weight.detach()[[1, 3]][:, [0, 2]]
    with transaction(module, optimizer) as t:
        t.resize("weight", dim=0, keep=[1, 3])
        t.resize("weight", dim=1, keep=[0, 2])
    assert torch.equal(module.weight.detach(), expected)
    assert optimizer.state[module.parametrizations.weight[0].scale]["momentum_buffer"].shape == (2, 1)
    assert (module.in_features, module.out_features) == (2, 4)


def test_cached_parametrizations_are_refused() -> None:
    module = parametrizations.weight_norm(nn.Linear(3, 4))
    with parametrize.cached(), pytest.raises(ValueError, match=r"inside parametrize\.cached"):
        resize_(module, "weight", dim=1, keep=[0, 1])
    assert module.weight.shape == (4, 3)
