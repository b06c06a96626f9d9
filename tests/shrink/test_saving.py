"""A smaller model in a file and back into a fresh instance of its class."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from secateur import HolderError, InvalidInputError, ShapeError, UnsupportedError
from secateur.shrink import load_, plan_shrink, random, save
from tests.shrink.models import Attention, SmallCNN, is_unchanged, randomized, state_of


class Torchs(nn.Module):
    """nn.MultiheadAttention in front of a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.out = nn.MultiheadAttention(12, 3, batch_first=True), nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x + self.attention(x, x, x)[0])


class Recurrent(nn.Module):
    """An LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.out = nn.Linear(4, 6), nn.Linear(6, 2)
        self.lstm = nn.LSTM(6, 6, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(self.a(x))[0])


class BothWays(nn.Module):
    """Layers of recurrent ones that go both ways, the second of which reads both directions of the first."""

    def __init__(self, kind: type[nn.RNNBase], **options: int) -> None:
        super().__init__()
        self.a = nn.Linear(4, 6)
        self.rnn = kind(6, 8, 2, batch_first=True, bidirectional=True, **options)
        self.out = nn.Linear(2 * options.get("proj_size", 8), 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(self.a(x))[0])


class Complex(nn.Module):
    """Complex weights, and a conjugated one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(4, 6, dtype=torch.cdouble)), nn.Linear(6, 2)
        self.register_buffer("phase", torch.randn(6, dtype=torch.cdouble).conj())

    def forward(self, x: Tensor) -> Tensor:
        return self.b((x.to(torch.cdouble) @ self.a * self.phase).abs())


class Tied(nn.Module):
    """Tied embedding and head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.inner, self.head = nn.Embedding(9, 6), nn.Linear(6, 5), nn.Linear(6, 9, bias=False)
        self.back = nn.Linear(5, 6)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.back(torch.relu(self.inner(self.embed(x)))))


def grouped() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 1), nn.GroupNorm(4, 8), nn.Conv2d(8, 12, 3, groups=4), nn.Conv2d(12, 12, 3, groups=12)),
        nn.Conv2d(12, 2, 1),
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 2)), torch.ones(2, 6).double()),
    "cnn": (SmallCNN, torch.ones(1, 3, 6, 6).double()),
    "attention": (lambda: Attention(12, 3, lambda a: a.head_dim**-0.5), torch.rand(1, 4, 12).double()),
    "torch's attention": (Torchs, torch.rand(1, 4, 12).double()),
    "lstm": (Recurrent, torch.rand(1, 3, 4).double()),
    "two layers both ways": (lambda: BothWays(nn.GRU), torch.rand(1, 3, 4).double()),
    "projections both ways": (lambda: BothWays(nn.LSTM, proj_size=5), torch.rand(1, 3, 4).double()),
    "complex": (Complex, torch.rand(2, 4).double()),
    "tied": (Tied, torch.tensor([[1, 2, 3]])),
    "groups": (grouped, torch.rand(1, 3, 7, 7).double()),
}


def smaller(name: str, seed: int = 0) -> tuple[nn.Module, Tensor]:
    make, x = MODELS[name]
    model = randomized(make())
    plan_shrink(model, x, sparsity=0.4, min_units=1, score=lambda m, c: random(m, c, seed=seed)).apply_(model)
    return model, x


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_loads_into_a_fresh_instance_and_computes_the_same_bits(
    name: str, seed: int, tmp_path: Path
) -> None:
    model, x = smaller(name, seed)
    save(model, tmp_path / "model.safetensors")
    fresh = MODELS[name][0]().double().eval()
    assert fresh.state_dict().keys() == model.state_dict().keys()
    identities = [id(p) for p in fresh.parameters()]
    assert load_(fresh, tmp_path / "model.safetensors") is fresh
    assert [id(p) for p in fresh.parameters()] == identities
    assert [p.shape for p in fresh.parameters()] == [p.shape for p in model.parameters()]
    assert sum(p.numel() for p in fresh.parameters()) < sum(p.numel() for p in MODELS[name][0]().parameters())
    assert torch.equal(fresh(x), model(x))


def test_case_62_shapes_and_recorded_sizes_come_back() -> None:
    build = MODELS["mlp"][0]
    model, keep = build(), torch.arange(7)
    state = {"0.weight": model[0].weight[keep], "0.bias": model[0].bias[keep], "2.weight": model[2].weight[:, keep]}
    state |= {"2.bias": model[2].bias}
    file = io.BytesIO()
    torch.save({name: t.detach().clone() for name, t in state.items()}, file)
    file.seek(0)
    fresh = load_(build(), torch.load(file, weights_only=True))
    assert [tuple(p.shape) for p in fresh.parameters()] == [(7, 6), (7,), (2, 7), (2,)]
    assert (fresh[0].out_features, fresh[2].in_features) == (7, 7)
    x = torch.rand(3, 6)
    expected = torch.relu(x @ state["0.weight"].T + state["0.bias"]) @ state["2.weight"].T + state["2.bias"]
    torch.testing.assert_close(fresh(x), expected)


@pytest.mark.parametrize("name", ["mlp", "cnn", "tied", "lstm", "two layers both ways", "complex"])
def test_a_state_dict_alone_brings_back_what_torch_modules_record(name: str) -> None:
    model, x = smaller(name)
    fresh = load_(MODELS[name][0]().double().eval(), model.state_dict())
    assert torch.equal(fresh(x), model(x))


def test_a_state_dict_of_torchs_attention_is_refused_since_its_shapes_are_ambiguous() -> None:
    model, _ = smaller("torch's attention")
    fresh = Torchs().double()
    before = state_of(fresh)
    with pytest.raises(UnsupportedError, match="'attention' do not say whether heads have gone"):
        load_(fresh, model.state_dict())
    assert is_unchanged(fresh, before)
    assert type(fresh.attention) is nn.MultiheadAttention


def normed(channels: int, groups: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, channels, 1), nn.GroupNorm(groups, channels), nn.Conv2d(channels, 2, 1))


@pytest.mark.parametrize(
    ("channels", "found"),
    [(12, 3), (9, 3), (8, 2), (4, "1 or 2 of 3"), (2, "1 or 2 of 3"), (1, 1), (6, 3)],
)
def test_a_state_dict_says_how_many_groups_there_are_or_is_refused(channels: int, found: int | str) -> None:
    fresh = normed(12, 3)
    before = state_of(fresh)
    state = normed(channels, 1).state_dict()
    if isinstance(found, int):
        assert load_(fresh, state)[1].num_groups == found
    else:
        with pytest.raises(UnsupportedError, match=rf"does not say how many groups(?s:.*)groups: {found}"):
            load_(fresh, state)
        assert is_unchanged(fresh, before)
        fresh[1].num_groups = 2
        assert load_(fresh, state)[1].num_groups == 2


def test_copies_follow_with_sizes_and_free_heads(tmp_path: Path) -> None:
    for name in ("attention", "torch's attention"):
        model, x = smaller(name)
        save(model, tmp_path / "model.safetensors")
        fresh = MODELS[name][0]().double().eval()
        twin = copy.deepcopy(fresh)
        load_(fresh, tmp_path / "model.safetensors", ema=twin)
        twin.load_state_dict(fresh.state_dict())
        assert torch.equal(twin(x), model(x))


def test_a_load_that_fails_leaves_heads_bound(tmp_path: Path) -> None:
    model, _ = smaller("torch's attention")
    save(model, tmp_path / "model.safetensors")
    fresh = Torchs().double()
    optimizer = torch.optim.SGD(fresh.parameters(), lr=0.1)
    before = state_of(fresh)
    with pytest.raises(HolderError, match="was not passed"):
        load_(fresh, tmp_path / "model.safetensors")
    assert is_unchanged(fresh, before)
    assert type(fresh.attention) is nn.MultiheadAttention
    load_(fresh, tmp_path / "model.safetensors", optimizer=optimizer)


OTHERS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "too small": (lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)), r"'0\.weight' does not fit"),
    "another layer": (lambda: nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Conv1d(10, 2, 1)), r"'2\.weight' does not"),
    "more layers": (
        lambda: nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 2), nn.Linear(2, 2)),
        r"'3\.weight' does not fit(?s:.*)loaded: no such tensor",
    ),
    "fewer layers": (lambda: nn.Sequential(nn.Linear(6, 10)), r"'2\.\w+' does not fit(?s:.*)model: no such tensor"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_case_62_another_architecture_is_refused_with_the_first_layer_that_differs(other: str, tmp_path: Path) -> None:
    model, _ = smaller("mlp")
    save(model, tmp_path / "model.safetensors")
    make, message = OTHERS[other]
    fresh = make().double()
    before = state_of(fresh)
    for source in (tmp_path / "model.safetensors", model.state_dict()):
        with pytest.raises(ShapeError, match=message):
            load_(fresh, source)
    assert is_unchanged(fresh, before)


def test_the_file_holds_tensors_and_numbers_and_nothing_else(tmp_path: Path) -> None:
    model, _ = smaller("tied")
    path = tmp_path / "model.safetensors"
    save(model, path)
    with safetensors.safe_open(path, "pt") as file:
        header = json.loads(file.metadata()["model"])
        names = set(file.keys())
    assert names == set(model.state_dict()) - {"head.weight"}
    assert header["aliases"] == {"head.weight": "embed.weight"}
    assert ["inner", "out_features", None, model.inner.out_features, model.inner.out_features] in header["numbers"]
    assert b"pickle" not in path.read_bytes()


def test_state_that_is_no_tensor_is_refused_before_a_file_is_written(tmp_path: Path) -> None:
    class Extra(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"a": 1}

        def set_extra_state(self, state: object) -> None:
            pass

    with pytest.raises(UnsupportedError, match="'_extra_state': it is no tensor"):
        save(Extra(2, 2), tmp_path / "model.safetensors")
    assert not (tmp_path / "model.safetensors").exists()


def test_a_pinned_size_comes_back_pinned(tmp_path: Path) -> None:
    make, x = MODELS["attention"]
    model = randomized(make())
    plan_shrink(model, x, sparsity=0.5, min_units=1).apply_(model)
    assert model.head_dim.old == 4
    save(model, tmp_path / "model.safetensors")
    fresh = load_(make().double().eval(), tmp_path / "model.safetensors")
    assert (fresh.head_dim, fresh.head_dim.old) == (model.head_dim, 4)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda bias: bias.to("meta"),
        lambda bias: bias.to_sparse(),
        lambda bias: torch.quantize_per_tensor(bias, 0.1, 0, torch.qint8),
    ],
    ids=["meta", "sparse", "quantized"],
)
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_tensors_without_dense_values_are_refused_before_anything_is_cut(spoil: Callable[[Tensor], Tensor]) -> None:
    small, x = SmallCNN(), torch.randn(2, 3, 8, 8)
    plan_shrink(small, x, sparsity=0.5).apply_(small)
    state = small.state_dict()
    name = next(name for name in state if name.endswith("bias"))
    state[name] = spoil(state[name])
    model = SmallCNN()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = state_of(model)
    with pytest.raises(UnsupportedError, match=f"cannot load '{name}'"):
        load_(model, state, optimizer=optimizer)
    assert is_unchanged(model, before)


def test_a_model_whose_entries_share_memory_is_refused_before_anything_is_cut(tmp_path: Path) -> None:
    class Expanded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 2)
            self.register_buffer("scale", torch.ones(1).expand(2))

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x).relu()) * self.scale

    small = Expanded()
    plan_shrink(small, torch.randn(2, 4), sparsity=0.5).apply_(small)
    save(small, tmp_path / "small.safetensors")
    model = Expanded()
    with pytest.raises(UnsupportedError, match="cannot load into 'scale'"):
        load_(model, tmp_path / "small.safetensors")
    assert model.a.weight.shape == (6, 4)


def test_tensors_that_read_the_same_memory_in_several_ways_come_back_each(tmp_path: Path) -> None:
    class Views(nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            whole = torch.randn(4, generator=torch.Generator().manual_seed(seed))
            wave = torch.view_as_complex(torch.randn(4, 2, generator=torch.Generator().manual_seed(seed)))
            for name, tensor in {
                "a": whole,
                "bits": whole.view(torch.int32),
                "wave": wave,
                "back": wave.conj(),
            }.items():
                self.register_buffer(name, tensor)

    model, other = Views(0), Views(1)
    save(model, tmp_path / "views.safetensors")
    fresh = nn.Module()
    for name, tensor in other.named_buffers():
        fresh.register_buffer(name, tensor.resolve_conj().clone())
    load_(fresh, tmp_path / "views.safetensors")
    assert all(torch.equal(tensor, getattr(model, name)) for name, tensor in fresh.named_buffers())


def test_what_is_no_plan_is_refused_and_no_file_is_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="a plan is needed"):
        save(nn.Linear(3, 2), tmp_path / "model.safetensors", plan=3)
    assert list(tmp_path.iterdir()) == []
