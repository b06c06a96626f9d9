from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune, weight_norm

from secateur import InvalidInputError, Masks, UnsupportedError, prune_
from secateur._names import default_names
from secateur.masks.eligible import eligible_names
from tests.masks.oracles import half, snapshot


class Mixed(nn.Module):
    """Weights, norms, biases of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 4)
        self.conv = nn.Conv2d(1, 4, 3)
        self.batch = nn.BatchNorm2d(4)
        self.layer = nn.LayerNorm((3, 4))
        self.attention = nn.MultiheadAttention(4, 2, add_bias_kv=True)
        self.fc = nn.Linear(4, 3)
        self.position_bias = nn.Parameter(torch.zeros(2, 3))
        self.table = nn.Parameter(torch.randn(5, 4))


def test_weights_are_chosen_by_default_and_biases_and_norms_are_not() -> None:
    assert default_names(Mixed()) == [
        "table",
        "embed.weight",
        "conv.weight",
        "attention.in_proj_weight",
        "attention.out_proj.weight",
        "fc.weight",
    ]


@pytest.mark.parametrize(
    ("include", "exclude", "names"),
    [
        (["fc.*"], None, ["fc.weight", "fc.bias"]),
        ("conv.weight", None, ["conv.weight"]),
        (nn.LayerNorm, None, ["layer.weight", "layer.bias"]),
        ([nn.Linear, "conv.weight"], "*.bias", ["conv.weight", "attention.out_proj.weight", "fc.weight"]),
        (None, ["attention.*", nn.Embedding, "table"], ["conv.weight", "fc.weight"]),
        (("fc.weight", "conv.weight"), None, ["conv.weight", "fc.weight"]),
        ((name for name in ("fc.weight",)), None, ["fc.weight"]),
    ],
)
def test_parameters_are_chosen_by_glob_and_type(include: object, exclude: object, names: list[str]) -> None:
    assert eligible_names(Mixed(), include, exclude) == names


def test_tied_parameter_is_meant_by_any_of_its_names() -> None:
    model = nn.ModuleDict({"embedding": nn.Embedding(4, 3), "head": nn.Linear(3, 4)})
    model["head"].weight = model["embedding"].weight
    assert eligible_names(model, "head.weight", None) == ["embedding.weight"]
    assert eligible_names(model, "*", "head.weight") == ["head.bias"]


@pytest.mark.parametrize("include", [["fc.wight"], [nn.LSTM], [5]], ids=str)
def test_selector_that_means_nothing_is_refused(include: list[object]) -> None:
    model = Mixed()
    before = snapshot(model)
    with pytest.raises(InvalidInputError, match=r"matches no parameter of Mixed|chosen by globs"):
        prune_(model, sparsity=0.5, include=include)
    assert snapshot(model) == before


@pytest.mark.parametrize(
    ("model", "options"), [(nn.LayerNorm(4), {}), (nn.ReLU(), {}), (nn.Linear(3, 3), {"exclude": "*"})], ids=str
)
def test_model_without_matching_parameters_is_refused(model: nn.Module, options: dict[str, object]) -> None:
    before = snapshot(model)
    with pytest.raises(InvalidInputError, match=r"is left to mask[\s\S]*include=\['\*'\]"):
        prune_(model, sparsity=0.5, **options)
    assert snapshot(model) == before


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2))


def sparse() -> nn.Module:
    model = nn.Linear(3, 4)
    model.weight = nn.Parameter(model.weight.detach().to_sparse())
    return model


def quantized() -> nn.Module:
    model = nn.Linear(3, 4)
    model.weight = nn.Parameter(torch.quantize_per_tensor(torch.randn(4, 3), 0.1, 0, torch.qint8), requires_grad=False)
    return model


def made_in_inference_mode() -> nn.Module:
    with torch.inference_mode():
        return nn.Linear(3, 4)


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature", "ignore:.*quantize.*deprecated")
@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lazy, r"'0.weight': it is a lazy parameter[\s\S]*one forward pass"),
        (sparse, r"'weight': its layout is torch.sparse_coo[\s\S]*to_dense"),
        (quantized, r"'weight': it is quantized[\s\S]*float model"),
        (made_in_inference_mode, r"'weight': it was made inside torch.inference_mode"),
    ],
)
def test_parameter_that_cannot_be_masked_is_refused_with_the_reason(build: object, text: str) -> None:
    model = build()
    before = snapshot(model)
    with pytest.raises(UnsupportedError, match=text):
        prune_(model, sparsity=0.5)
    name = next(name for name, _ in model.named_parameters())
    with pytest.raises(UnsupportedError, match=text):
        Masks.from_dict(model, {name: half((4, 3))})
    assert snapshot(model) == before


def legacy_weight_norm() -> nn.Module:
    with pytest.warns(FutureWarning, match="weight_norm"):
        return weight_norm(nn.Linear(3, 4))


COMPUTED = {
    "weight_norm": (lambda: parametrizations.weight_norm(nn.Linear(3, 4)), "WeightNorm"),
    "spectral_norm": (lambda: parametrizations.spectral_norm(nn.Linear(3, 4)), "SpectralNorm"),
    "orthogonal": (lambda: parametrizations.orthogonal(nn.Linear(3, 4)), "Orthogonal"),
    "legacy weight_norm": (legacy_weight_norm, "WeightNorm"),
    "torch's prune": (lambda: prune.l1_unstructured(nn.Linear(3, 4), "weight", 0.5), "L1Unstructured"),
}


@pytest.mark.parametrize("kind", COMPUTED)
def test_weight_that_is_computed_is_refused_by_name(kind: str) -> None:
    build, text = COMPUTED[kind]
    model = build()
    before = snapshot(model)
    parts = [name for name, p in model.named_parameters() if p.dim() > 1]
    with pytest.raises(UnsupportedError, match=f"cannot mask .*{text}"):
        prune_(model, sparsity=0.5)
    for name in ["weight", *parts]:
        with pytest.raises(UnsupportedError, match=rf"cannot mask '{name}': .*{text}[\s\S]*remove"):
            Masks.from_dict(model, {name: half((4, 3))})
    assert snapshot(model) == before


def test_weights_that_are_computed_are_left_out_beside_others_and_the_table_says_so() -> None:
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 4)), nn.Linear(4, 2))
    masks = prune_(model, sparsity=0.5)
    assert list(masks) == ["1.weight"]
    assert "0.parametrizations.weight.original0" in repr(masks)
    with pytest.raises(UnsupportedError, match="WeightNorm"):
        prune_(model, sparsity=0.6, include=["0.*", "1.weight"])


def test_bias_of_a_layer_with_a_computed_weight_can_be_masked() -> None:
    model = parametrizations.weight_norm(nn.Linear(3, 4))
    mask = torch.tensor([True, False, True, False])
    Masks.from_dict(model, {"bias": mask})
    assert bool((model.bias[~mask] == 0).all())


def test_parameters_in_shared_memory_can_be_masked() -> None:
    model = nn.Linear(3, 4).share_memory()
    mask = half((4, 3))
    Masks.from_dict(model, {"weight": mask})
    assert model.weight.is_shared()
    assert bool((model.weight[~mask] == 0).all())


def test_parameters_in_one_memory_are_refused_unless_they_are_one_parameter() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[2].weight = nn.Parameter(model[0].weight.data)
    before = snapshot(model)
    with pytest.raises(
        UnsupportedError, match=r"cannot mask '0\.weight': '2\.weight' is another parameter in the same"
    ):
        prune_(model, sparsity=0.5)
    assert snapshot(model) == before
    prune_(model, sparsity=0.5, include="1.weight")
    model[2].weight = model[0].weight
    assert prune_(model, sparsity=0.5).num_zeros() == 16


def test_parameters_that_overlap_are_refused_whatever_lies_between_them() -> None:
    flat = torch.randn(40)
    model = nn.ParameterDict(
        {"whole": flat[:32].view(8, 4), "first": flat[:4].view(2, 2), "last": flat[28:36].view(2, 4)}
    )
    for name in model:
        with pytest.raises(UnsupportedError, match="in the same memory"):
            prune_(model, sparsity=0.5, include=name)


@pytest.mark.parametrize("strided", [False, True])
def test_parameters_side_by_side_in_one_buffer_can_be_masked(strided: bool) -> None:
    flat = torch.randn(8, 8)
    halves = (flat[:, ::2], flat[:, 1::2]) if strided else (flat[:4], flat[4:])
    model = nn.ParameterDict({name: nn.Parameter(half) for name, half in zip("ab", halves, strict=True)})
    assert prune_(model, sparsity=0.5).num_zeros() == 32
