"""Values of new units: which dims of which layers read, what is drawn, what is copied."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from secateur.shrink.placing import Layout
from secateur.shrink.starting import copied, drawn, is_unclear, negated, reads, slabs


def layout(old: int, at: list[int]) -> Layout:
    """New positions that are copies of position 0."""
    is_new = np.zeros(old + len(at), dtype=bool)
    is_new[at] = True
    source = np.zeros(old + len(at), dtype=np.int64)
    source[~is_new] = np.arange(old)
    return Layout(source, is_new)


@pytest.mark.parametrize(
    ("layer", "reading"),
    [
        (nn.Linear(2, 3), [("weight", 1)]),
        (nn.Conv2d(2, 4, 3), [("weight", 1)]),
        (nn.Conv1d(4, 4, 3, groups=2), [("weight", 1)]),
        (nn.ConvTranspose2d(2, 4, 3), [("weight", 0)]),
        (nn.Bilinear(2, 3, 4), [("weight", 1), ("weight", 2)]),
        (nn.Embedding(5, 2), []),
        (nn.BatchNorm2d(3), []),
        (nn.LSTM(2, 4, proj_size=3), [("weight_hh_l0", 1), ("weight_hr_l0", 1), ("weight_ih_l0", 1)]),
        (nn.GRUCell(2, 3), [("weight_hh", 1), ("weight_ih", 1)]),
        (nn.MultiheadAttention(4, 2), [("in_proj_weight", 1), ("out_proj.weight", 1)]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_layers_read_along_these_dims(layer: nn.Module, reading: list[tuple[str, int]]) -> None:
    places = [(name, dim) for name, tensor in layer.named_parameters() for dim in range(tensor.dim())]
    assert sorted(place for place in places if reads(layer, place)) == reading
    assert not any(is_unclear(layer, place) for place in places)


def test_a_tied_weight_reads_where_any_of_its_layers_does() -> None:
    model = nn.ModuleDict({"embedding": nn.Embedding(5, 2), "head": nn.Linear(2, 5)})
    model.head.weight = model.embedding.weight
    assert reads(model, ("embedding.weight", 1))
    assert not reads(model, ("embedding.weight", 0))


def test_raw_matrices_and_grouped_transposed_convolutions_are_unclear() -> None:
    model = nn.Module()
    model.matrix, model.vector = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(1, 3))
    model.buffer = nn.Buffer(torch.ones(2, 3))
    model.layer = nn.ConvTranspose1d(4, 4, 2, groups=2)
    assert [is_unclear(model, (name, 0)) for name in ("matrix", "vector", "buffer")] == [True, False, False]
    assert [is_unclear(model, ("layer.weight", dim)) for dim in (0, 1)] == [True, False]


def test_copied_tensors_hold_old_entries_and_copies_with_noise_only_in_new_ones() -> None:
    model = nn.Linear(3, 2)
    grown = {"weight": {0: layout(2, [1]), 1: layout(3, [3])}, "bias": {0: layout(2, [1])}}
    exact = copied(model, grown, noise=False, seed=0)
    assert torch.equal(exact["weight"], model.weight.detach()[[0, 0, 1]][:, [0, 1, 2, 0]])
    assert torch.equal(exact["bias"], model.bias.detach()[[0, 0, 1]])
    noisy = copied(model, grown, noise=True, seed=0)
    assert torch.equal(noisy["weight"][[0, 2], :3], model.weight.detach())
    new = torch.ones(3, 4, dtype=torch.bool)
    new[[0, 2], :3] = False
    assert bool((noisy["weight"][new] != exact["weight"][new]).all())
    assert torch.equal(noisy["bias"], exact["bias"])
    assert torch.equal(copied(model, grown, noise=True, seed=0)["weight"], noisy["weight"])
    assert not torch.equal(copied(model, grown, noise=True, seed=1)["weight"], noisy["weight"])


def test_slabs_are_what_growing_one_dim_after_the_other_asks_for() -> None:
    full = torch.arange(12.0).reshape(3, 4) + 1
    grown = {"w": {0: layout(2, [1]), 1: layout(3, [3])}}
    parts = slabs({"w": full}, grown, [])["w"]
    assert parts[0].tolist() == [[5.0, 6.0, 7.0]]
    assert parts[1].tolist() == [[4.0], [8.0], [12.0]]
    parts = slabs({"w": full}, grown, [("w", 1)])["w"]
    assert parts[0].tolist() == [[5.0, 6.0, 7.0]]
    assert parts[1].tolist() == [[0.0]] * 3
    parts = slabs({"w": full}, grown, [("w", 0)])["w"]
    assert parts[0].tolist() == [[0.0] * 3]
    assert parts[1].tolist() == [[4.0], [0.0], [12.0]]


def test_drawn_values_are_those_of_the_layer_and_leave_the_random_state_alone() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.PReLU(2))
    state = torch.get_rng_state()
    found = drawn(model, {"0.weight": {}, "1.weight": {}}, seed=4)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(4)
    assert torch.equal(found["0.weight"], nn.Linear(3, 2).weight.detach())
    assert found["1.weight"].tolist() == [0.25, 0.25]


def test_drawn_values_leave_out_what_no_layer_draws() -> None:
    class Raw(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

    assert drawn(Raw(), {"scale": {}}, seed=0) == {}


def test_negated_values_have_the_other_sign_in_parameters_only() -> None:
    values: dict[str, dict[int, Tensor]] = {"w": {0: torch.ones(2)}, "b": {0: torch.ones(2)}}
    found = negated(values, ["w"])
    assert found["w"][0].tolist() == [-1.0, -1.0]
    assert found["b"][0].tolist() == [1.0, 1.0]
