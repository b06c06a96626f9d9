"""Units, groups, costs and reasons, against models that are really cut and counted."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from secateur import InvalidInputError
from secateur.graph import Coupling, analyze
from secateur.graph.coupling import check_units
from secateur.shrink import plan_of
from tests.graph.attentions import ATTENTIONS
from tests.shrink.models import Attention, SmallCNN, is_unchanged, randomized, state_of

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 2)), (3, 4)),
    "cnn": (SmallCNN, (2, 3, 6, 6)),
    "attention": (lambda: Attention(12, 3, lambda a: a.head_dim**-0.5), (2, 5, 12)),
    "depthwise": (
        lambda: nn.Sequential(nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 3, groups=6), nn.Conv2d(6, 2, 1)),
        (1, 3, 5, 5),
    ),
    "transposed": (
        lambda: nn.Sequential(nn.Conv1d(3, 6, 1), nn.ConvTranspose1d(6, 4, 3), nn.Conv1d(4, 2, 1)),
        (1, 3, 5),
    ),
}


def made(name: str) -> tuple[nn.Module, Tensor, Coupling]:
    make, shape = MODELS[name]
    model, x = randomized(make()), torch.randn(shape, dtype=torch.float64)
    return model, x, analyze(model, x)


def flops(model: nn.Module, x: Tensor) -> int:
    """What torch itself counts; a multiply-accumulate is two of its operations."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(x)
    return counter.get_total_flops() // 2


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=8)
@given(data=st.data())
def test_costs_are_those_of_the_model_that_is_really_cut(name: str, data: st.DataObject) -> None:
    torch.manual_seed(0)
    model, x, coupling = made(name)
    assert coupling.macs() == flops(model, x)
    assert coupling.num_parameters() == sum(p.numel() for p in model.parameters())
    units = []
    for group in coupling.groups:
        units += data.draw(st.lists(st.sampled_from(group.units), unique=True, max_size=len(group.units) - 1))
    smaller = plan_of(model, coupling, units).apply_(copy.deepcopy(model))
    assert coupling.macs(units) == flops(smaller, x)
    assert coupling.num_parameters(units) == sum(p.numel() for p in smaller.parameters())


def test_groups_kinds_and_footprints_of_a_cnn() -> None:
    _, _, coupling = made("cnn")
    assert [(g.name, g.kind, len(g.units)) for g in coupling.groups] == [
        ("stem.weight[0]", "channels", 8),
        ("a.weight[0]", "channels", 6),
    ]
    residual, inner = coupling.groups
    assert residual.footprint == {
        ("stem.weight", 0): 1,
        ("stem.bias", 0): 1,
        ("norm.weight", 0): 1,
        ("norm.bias", 0): 1,
        ("a.weight", 1): 1,
        ("b.weight", 0): 1,
        ("b.bias", 0): 1,
        ("head.weight", 1): 4,
        ("norm.running_mean", 0): 1,
        ("norm.running_var", 0): 1,
    }
    assert inner.footprint == {("a.weight", 0): 1, ("b.weight", 1): 1}


def test_groups_and_kinds_of_attention_and_mlp() -> None:
    _, _, attention = made("attention")
    assert {(g.kind, len(g.units), g.footprint["q.weight", 0]) for g in attention.groups} == {
        ("heads", 3, 4),
        ("head dims", 4, 3),
    }
    _, _, mlp = made("mlp")
    assert [(g.kind, len(g.units)) for g in mlp.groups] == [("neurons", 7), ("neurons", 5)]


@pytest.mark.parametrize("name", ["repeated", "expanded", "by_the_kernel"])
def test_key_heads_that_query_heads_share_are_kv_groups(name: str) -> None:
    structure = ATTENTIONS[f"grouped_queries_{name}"]
    coupling = analyze(structure.make(), torch.randn(*structure.inputs))
    assert {(g.kind, len(g.units), g.footprint["q.weight", 0]) for g in coupling.groups} == {
        ("kv groups", 3, 8),
        ("heads", 2, 12),
        ("head dims", 4, 6),
    }


def test_windows_of_convolutions_are_not_listed_and_inputs_are_named() -> None:
    _, _, coupling = made("cnn")
    assert {k.dim for k in coupling.kept} <= {0, 1}
    assert {k.name: k.why for k in coupling.kept if k.dim == 1} == {"stem.weight": "it is an input of the model"}
    assert coupling.why_kept("stem.weight", 2, 0) == "it is a position in a convolution's window"


def test_kept_dims_come_with_their_reasons() -> None:
    _, _, coupling = made("mlp")
    found = {(k.name, k.dim): (k.positions, k.why) for k in coupling.kept}
    assert found.keys() == {("0.weight", 1), ("4.weight", 0), ("4.bias", 0)}
    assert found["4.weight", 0] == (2, "it is an output of the model")
    assert found["0.weight", 1] == (4, "it is an input of the model")
    shown = repr(coupling)
    assert "Coupling: 12 units in 2 groups, 87 parameters" in shown
    assert "neurons    0.weight[0], 0.bias[0], 2.weight[1]" in shown
    assert "kept whole: 4.weight[0], 4.bias[0]: it is an output of the model" in shown


def test_inputs_and_outputs_are_free_when_asked() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    x = torch.randn(5, 4)
    free = analyze(model, x, prune_inputs=True, prune_outputs=True)
    assert {(g.name, len(g.units)) for g in free.groups} == {
        ("0.weight[1]", 4),
        ("0.weight[0]", 3),
        ("1.weight[0]", 2),
    }
    assert [g.name for g in analyze(model, x, prune_outputs=True).groups] == ["0.weight[0]", "1.weight[0]"]


def test_ignore_takes_globs_and_types_and_refuses_names_that_match_nothing() -> None:
    model, x, _ = made("mlp")
    assert [g.name for g in analyze(model, x, ignore="0.*").groups] == ["2.weight[0]"]
    assert analyze(model, x, ignore=[nn.Linear]).groups == ()
    assert {k.why for k in analyze(model, x, ignore=nn.Linear).kept} >= {"it is to be ignored"}
    before = state_of(model)
    with pytest.raises(InvalidInputError, match="'head' matches no parameter"):
        analyze(model, x, ignore=["head"])
    assert is_unchanged(model, before)


def test_interface_chooses_which_outputs_are_fixed() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            hidden = self.a(x)
            return {"hidden": hidden, "out": self.b(hidden)}

    model, x = Two(), torch.randn(3, 4)
    assert analyze(model, x).groups == ()
    assert [g.name for g in analyze(model, x, interface=lambda result: [result["out"]]).groups] == ["a.weight[0]"]


def test_analysis_is_the_same_every_time_and_changes_nothing() -> None:
    model, x, coupling = made("cnn")
    before = state_of(model)
    again = analyze(model, x)
    assert repr(again) == repr(coupling)
    assert [g.units for g in again.groups] == [g.units for g in coupling.groups]
    assert is_unchanged(model, before)


def test_unit_of_a_position_and_reason_of_one_that_stays() -> None:
    _, _, coupling = made("attention")
    units = {g.kind: g.units for g in coupling.groups}
    assert coupling.units_at("q.weight", 0, 6) == tuple(sorted((units["heads"][1], units["head dims"][2])))
    assert coupling.units_at("o.weight", 0, 3) == ()
    assert coupling.why_kept("o.weight", 0, 3) == "it is an output of the model"


def test_positions_of_a_unit_are_those_of_all_tensors_that_it_touches() -> None:
    _, _, coupling = made("cnn")
    unit = coupling.groups[0].units[2]
    found = {
        place: [i for i, kept in enumerate(mask) if not kept] for place, mask in coupling.positions([unit]).items()
    }
    assert found.keys() == coupling.groups[0].footprint.keys()
    assert found["head.weight", 1] == [8, 9, 10, 11]
    assert found["stem.weight", 0] == found["norm.running_var", 0] == [2]
    assert coupling.positions([]) == {}


def test_what_norms_and_softmaxes_combine_is_known_as_mixed() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    coupling = analyze(model, torch.randn(3, 4))
    assert [(g.name, bool(coupling.mixes[list(g.units)].all())) for g in coupling.groups] == [
        ("0.weight[0]", True),
        ("2.weight[0]", False),
    ]


def test_numbers_that_are_no_units_are_refused() -> None:
    _, _, coupling = made("mlp")
    check_units(coupling, coupling.groups[0].units)
    with pytest.raises(InvalidInputError, match=r"these are no units(?s:.*)10000"):
        check_units(coupling, [coupling.groups[0].units[0], 10_000])


@pytest.mark.parametrize(("heads", "width"), [(4, 4), (3, 3), (4, 2), (2, 4)])
def test_as_many_heads_as_columns_in_each_are_two_kinds(heads: int, width: int) -> None:
    coupling = analyze(Attention(heads * width, heads, lambda _: 0.5), torch.randn(2, 5, heads * width))
    found = [(group.kind, len(group.units)) for group in coupling.groups]
    assert ("heads", heads) in found
    assert all(number == {"heads": heads, "head dims": width}.get(kind, number) for kind, number in found)
    assert "head dims" in dict(found)
