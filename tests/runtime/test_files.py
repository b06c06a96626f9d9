"""A compressed model comes back from its file to the bit; a damaged file is refused before anything reads it."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from torch import Tensor, nn

from secateur import InvalidInputError, ShapeError, UnsupportedError, patterns, prune_, shrink_
from secateur.runtime import LINEAR_FORMATS, Compressed, compress, load_compressed
from secateur.runtime.layers import SparseLayer
from tests.runtime.models import (
    ALWAYS,
    Residual,
    Tied,
    Translates,
    Uses,
    cnn,
    encoder,
    hide_native,
    left_alone,
    masks_for,
    mlp,
    outputs,
    pack_all,
    packed,
    tensors,
    with_statistics,
)


@pytest.fixture(autouse=True)
def _pack_all(monkeypatch: pytest.MonkeyPatch) -> None:
    pack_all(monkeypatch)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def made(model: nn.Module, inputs: Any, **kwargs: Any) -> Compressed:
    return compress(model, inputs, masks_for(model), margin=ALWAYS, **kwargs)


def is_same(one: Compressed, other: Compressed) -> bool:
    """Whether two compressed models have the same parts, to the bit."""
    kinds = [{name: (type(m), m.extra_repr()) for name, m in each.model.named_modules()} for each in (one, other)]
    same_kinds = all(
        kinds[0][name] == kinds[1][name] for name in kinds[0] if isinstance(one.model.get_submodule(name), SparseLayer)
    )
    return (
        kinds[0].keys() == kinds[1].keys()
        and same_kinds
        and len(tensors(one)) == len(tensors(other))
        and all(
            a.dtype == b.dtype and torch.equal(a.detach(), b.detach())
            for a, b in zip(tensors(one), tensors(other), strict=True)
        )
        and (one.recipe, one.origin.names, one.origin.header) == (other.recipe, other.origin.names, other.origin.header)
    )


# There and back -------------------------------------------------------------------------------------------------------


def image() -> Tensor:
    return torch.randn(2, 3, 12, 12)


def sequence() -> Tensor:
    return torch.randn(2, 5, 32)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "MLP": (mlp, lambda: torch.randn(3, 48)),
    "CNN": (cnn, image),
    "residual": (lambda: nn.Sequential(Residual(), Residual()), lambda: torch.randn(2, 4, 6, 6)),
    "encoder": (encoder, sequence),
    "encoder and decoder": (Translates, lambda: (sequence(), torch.randn(2, 4, 32))),
    "tied": (Tied, lambda: torch.arange(12).view(2, 6)),
    "tied, head first": (lambda: Tied(head_first=True), lambda: torch.arange(12).view(2, 6)),
    "root": (lambda: nn.Linear(48, 64), lambda: torch.randn(3, 48)),
    "shared layers": (lambda: Uses(lambda m, x: m.first(m.first(x)) + m.second(x)), lambda: torch.randn(3, 48)),
}
NEEDS_NONE = {"MLP", "CNN", "root"}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("values", [torch.float32, torch.bfloat16], ids=str)
def test_model_comes_back_to_the_bit(name: str, values: torch.dtype, path: Path) -> None:
    build, make = MODELS[name]
    fast, inputs = made(build(), make(), values=values), make()
    with left_alone(fast):
        fast.save(path)
    fresh = build()
    with left_alone(fresh):
        again = load_compressed(path, fresh)
    assert packed(again)
    assert is_same(again, fast)
    assert torch.equal(outputs(again, inputs), outputs(fast, inputs))
    assert again.report is None
    again.save(path.with_name("second"))
    assert path.with_name("second").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["MLP", "CNN", "encoder"])
def test_model_in_sixteen_bits_comes_back_in_them(name: str, dtype: torch.dtype, path: Path) -> None:
    build, make = MODELS[name]
    x = make().to(dtype)
    fast = made(build().to(dtype), x)
    fast.save(path)
    for fresh in [build(), build().to(dtype)] + [None] * (name in NEEDS_NONE):
        again = load_compressed(path, fresh)
        assert is_same(again, fast)
        assert torch.equal(outputs(again, x), outputs(fast, x))


@pytest.mark.parametrize("name", ["MLP", "CNN", "encoder"])
def test_model_is_loaded_in_inference_mode_too(name: str, path: Path) -> None:
    build, make = MODELS[name]
    fast = made(build(), make())
    fast.save(path)
    with torch.inference_mode():
        again = load_compressed(path, build())
    assert is_same(again, fast)
    assert not any(tensor.is_inference() for tensor in tensors(again))


@pytest.mark.parametrize("name", sorted(NEEDS_NONE))
def test_model_of_torchs_own_layers_needs_no_instance(name: str, path: Path) -> None:
    build, make = MODELS[name]
    fast, x = made(build(), make()), make()
    fast.save(path)
    again = load_compressed(path)
    assert is_same(again, fast)
    assert torch.equal(outputs(again, x), outputs(fast, x))


@pytest.mark.parametrize("name", sorted(MODELS.keys() - NEEDS_NONE))
def test_model_with_code_of_its_own_needs_an_instance(name: str, path: Path) -> None:
    build, make = MODELS[name]
    made(build(), make()).save(path)
    with pytest.raises(InvalidInputError, match=r"code of its own(?s:.*)load_compressed\(path, model\)"):
        load_compressed(path)


def test_hooks_are_code_that_a_file_cannot_bring(path: Path) -> None:
    model, x = mlp(), torch.randn(3, 48)
    model[1].register_forward_hook(lambda _, args, y: 2 * y)
    fast = made(model, x)
    fast.save(path)
    with pytest.raises(InvalidInputError, match="code of its own"):
        load_compressed(path)
    assert torch.equal(outputs(load_compressed(path, model), x), outputs(fast, x))


@pytest.mark.parametrize("fresh", [True, False])
def test_model_without_empty_units_comes_back(fresh: bool, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from secateur.runtime import compressing

    monkeypatch.setattr(
        compressing, "run_seconds", lambda dense, fast, examples: {"dense": 1.0, "fast": float(fast[0].weight.numel())}
    )
    model, x = mlp(), torch.randn(3, 48)
    prune_(model, sparsity=0.5, pattern=patterns.Channel(), include=["0.weight"])
    fast = compress(model, x, masks_for(model), margin=ALWAYS)
    assert tuple(fast.model[0].weight.shape) == (32, 48)
    fast.save(path)
    again = load_compressed(path, mlp() if fresh else None)
    assert is_same(again, fast)
    assert torch.equal(outputs(again, x), outputs(fast, x))


def test_model_that_was_shrunk_before_comes_back(path: Path) -> None:
    model, x = encoder(), sequence()
    shrink_(model, x, sparsity=0.4)
    fast = made(model, x)
    fast.save(path)
    again = load_compressed(path, encoder())
    assert is_same(again, fast)
    assert torch.equal(outputs(again, x), outputs(fast, x))


def test_model_that_stayed_dense_comes_back(path: Path) -> None:
    model, x = cnn(), image()
    fast = compress(model, x, formats=[])
    assert packed(fast) == {}
    fast.save(path)
    again = load_compressed(path)
    assert is_same(again, fast)
    assert torch.equal(outputs(again, x), outputs(fast, x))


def test_buffers_that_are_in_no_state_come_back(path: Path) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(48, 48)
            self.register_buffer("scale", torch.rand(48), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * self.scale

    fast, x = made(Scaled(), torch.randn(2, 48)), torch.randn(2, 48)
    fast.save(path)
    assert torch.equal(outputs(load_compressed(path, Scaled()), x), outputs(fast, x))


def test_parametrized_model_is_loaded_into_an_instance_that_is_too(path: Path) -> None:
    def build() -> nn.Module:
        model = mlp()
        nn.utils.parametrizations.weight_norm(model[4])
        return model

    model, x = build(), torch.randn(3, 48)
    fast = compress(model, x, {"0.weight": masks_for(mlp())["0.weight"]}, margin=ALWAYS)
    fast.save(path)
    for fresh in (build(), mlp(), None):
        assert torch.equal(outputs(load_compressed(path, fresh), x), outputs(fast, x))


@pytest.mark.parametrize(("sparsity", "values", "most"), [(0.9, torch.float32, 0.14), (0.9, torch.bfloat16, 0.09)])
def test_file_is_a_bit_an_entry_and_the_values(sparsity: float, values: torch.dtype, most: float, path: Path) -> None:
    model = nn.Sequential(nn.Linear(1024, 1024))
    masks = masks_for(model, sparsity)
    fast = compress(model, torch.randn(1, 1024), masks, margin=ALWAYS, values=values)
    fast.save(path)
    kept = int(masks["0.weight"].sum())
    expected = 1024 * 1024 / 8 + kept * values.itemsize + 4 * 1024
    assert expected <= path.stat().st_size < expected + 2000
    assert path.stat().st_size < most * 4 * (1024 * 1024 + 1024)
    torch.save(model.state_dict(), path.with_name("dense"))
    assert path.stat().st_size < most * path.with_name("dense").stat().st_size


def test_files_hold_plain_tensors_and_text(path: Path) -> None:
    made(mlp(), torch.randn(3, 48)).save(path)
    with safe_open(path, "pt") as file:
        assert set(file.keys()) >= {"0.weight|bits", "0.weight|values", "0.bias"}
        header = json.loads(file.metadata()["compressed"])
    assert header["format"] == "secateur.compressed.1"
    assert header["recipe"]["layers"].keys() == {"0", "2", "4"}
    assert header["sparse"]["0.weight"] == [[64, 48], "float32"]


# Another machine ------------------------------------------------------------------------------------------------------


def test_format_that_is_not_here_is_replaced(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    native = dataclasses.replace(LINEAR_FORMATS["torch csr"], name="native", library="kernels")
    x = torch.randn(3, 48)
    with monkeypatch.context() as there:
        there.setitem(LINEAR_FORMATS, "native", native)
        there.setattr("secateur._native.library", lambda: object())
        fast = made(mlp(), x, formats=["native"])
        fast.save(path)
        expected = outputs(fast, x)
    assert set(packed(fast).values()) == {"native"}
    monkeypatch.setitem(LINEAR_FORMATS, "native", native)
    hide_native(monkeypatch)
    again = load_compressed(path)
    assert packed(again).keys() == packed(fast).keys()
    assert "native" not in packed(again).values()
    torch.testing.assert_close(outputs(again, x), expected)
    assert torch.equal(again.model[0].weight, fast.model[0].weight)


@pytest.mark.parametrize("name", MODELS)
def test_file_is_loaded_without_the_library(name: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build, make = MODELS[name]
    fast, inputs = made(build(), make()), make()
    fast.save(path)
    expected = outputs(fast, inputs)
    monkeypatch.setattr("secateur._native.library", lambda: None)
    again = load_compressed(path, build())
    torch.testing.assert_close(outputs(again, inputs), expected, rtol=1e-4, atol=1e-5)
    again.save(path)
    assert torch.equal(outputs(load_compressed(path, build()), inputs), outputs(again, inputs))


# What is refused ------------------------------------------------------------------------------------------------------


def test_model_of_another_architecture_is_refused(path: Path) -> None:
    made(mlp(), torch.randn(3, 48)).save(path)
    for other in (nn.Linear(48, 64), nn.Sequential(*mlp(), nn.Linear(40, 2)), nn.Sequential(nn.Linear(40, 64))):
        with left_alone(other), pytest.raises(ShapeError, match="of another architecture"):
            load_compressed(path, other)


def test_what_is_no_model_is_refused(path: Path) -> None:
    made(mlp(), torch.randn(3, 48)).save(path)
    with pytest.raises(InvalidInputError, match="model"):
        load_compressed(path, 5)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="load the weights first"):
        load_compressed(path, mlp().to("meta"))


def test_state_that_is_no_tensor_cannot_be_saved() -> None:
    class Extra(nn.Sequential):
        def get_extra_state(self) -> Any:
            return {"a": 1}

        def set_extra_state(self, state: Any) -> None: ...

    with pytest.raises(UnsupportedError, match="it is no tensor"):
        made(Extra(*mlp()), torch.randn(3, 48))


def test_file_of_another_kind_is_refused(path: Path) -> None:
    import secateur

    secateur.save(mlp(), path)
    with pytest.raises(
        InvalidInputError, match=r"not a file of the kind secateur.compressed.1(?s:.*)fast.save\(path\)"
    ):
        load_compressed(path)
    path.write_bytes(b"text")
    with pytest.raises(InvalidInputError, match="is not a safetensors file"):
        load_compressed(path)
    with pytest.raises(FileNotFoundError):
        load_compressed(path.with_name("absent"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file of a small model with everything in it: norms, an added bias, activations, attentions, empty buffers."""
    with pytest.MonkeyPatch.context() as patch:
        pack_all(patch)
        torch.manual_seed(0)
        file = tmp_path_factory.mktemp("whole") / "file"
        made(Everything(), torch.randn(2, 3, 8, 8)).save(file)
        yield file


class Everything(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head, self.twin = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.twin.weight = self.head.weight
        self.register_buffer("scale", torch.ones(8), persistent=False)
        with_statistics(self)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x).flatten(2).mT
        y = self.attention(y, y, y)[0] * self.scale
        return self.twin(self.head(y))


def parts(file: Path) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """The header of a safetensors file, the text in it, and the bytes of its tensors."""
    data = file.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    return header, json.loads(header["__metadata__"]["compressed"]), data[8 + size :]


def put_together(file: Path, header: dict[str, Any], text: Any, data: bytes) -> Path:
    header = header | {"__metadata__": {"compressed": json.dumps(text)}}
    raw = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return file


def check_refused_or_harmless(file: Path, model: nn.Module | None) -> None:
    """Load a file: it is refused by the errors that say so, or what it holds can be run, whatever comes out."""
    try:
        fast = load_compressed(file, model)
    except InvalidInputError:
        return
    with suppress(AttributeError, IndexError, RuntimeError, TypeError, ValueError):  # what torch says to such arguments
        fast(torch.randn(1, 3, 12, 12))


@pytest.mark.parametrize("share", [0, 0.001, 0.01, 0.3, 0.7, 0.99])
def test_truncated_file_is_refused(whole: Path, share: float, path: Path) -> None:
    data = whole.read_bytes()
    for size in {int(share * len(data)), len(data) - 1}:
        path.write_bytes(data[:size])
        with pytest.raises(InvalidInputError, match="is not a safetensors file"):
            load_compressed(path, Everything())


def test_longer_file_is_refused(whole: Path, path: Path) -> None:
    path.write_bytes(whole.read_bytes() + b"\0")
    with pytest.raises(InvalidInputError, match="is not a safetensors file"):
        load_compressed(path, Everything())


def everywhere(found: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of each value inside a JSON text."""
    yield way
    entries = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    for key, value in entries:
        yield from everywhere(value, (*way, key))


def replaced(found: Any, way: tuple[Any, ...], value: Any) -> Any:
    """A JSON text with another value in one place; ... for none."""
    if not way:
        return value
    key, *rest = way
    pairs = found.items() if isinstance(found, dict) else enumerate(found)
    made = [
        (k, replaced(v, tuple(rest), value) if k == key else v) for k, v in pairs if (k, rest, value) != (key, [], ...)
    ]
    return dict(made) if isinstance(found, dict) else [v for _, v in made]


NONSENSE = st.one_of(
    st.sampled_from([..., None, True, -1, 0, 1, 2, 3, 7, 64, 2**31, 2**63, 10**30, 0.5, float("nan"), "", "0", "load"]),
    st.sampled_from(
        ["float32", "float64", "int8", "complex64", "Tensor", "direct", "grouped", "csr", "head", "body.0"]
    ),
    st.sampled_from(["body.1", "body.2", "body.3", "attention", "attention.in_proj", "scale", "model", "body", "twin"]),
    st.sampled_from(
        [
            [],
            {},
            [1],
            [[1]],
            {"a": 1},
            ["a", "b"],
            [-1, -1],
            [0, 1],
            {"body.0": "body.2"},
            {"head": "direct"},
            [8, 8],
            [64],
        ]
    ),
)


@given(st.data())
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nonsense_anywhere_in_the_text_is_refused_or_harmless(whole: Path, path: Path, data: st.DataObject) -> None:
    header, text, tensors = parts(whole)
    changed = replaced(text, data.draw(st.sampled_from(list(everywhere(text)))), data.draw(NONSENSE))
    if changed is not ...:
        check_refused_or_harmless(put_together(path, header, changed, tensors), Everything())


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file of a model that is described in it."""
    with pytest.MonkeyPatch.context() as patch:
        pack_all(patch)
        torch.manual_seed(0)
        file = tmp_path_factory.mktemp("described") / "file"
        made(cnn(), image()).save(file)
        yield file


@given(st.data())
@settings(max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nonsense_in_a_description_is_refused_or_harmless(described: Path, path: Path, data: st.DataObject) -> None:
    header, text, tensors = parts(described)
    ways = [way for way in everywhere(text) if way[:1] in (("structure",), ("numbers",))]
    text = replaced(text, data.draw(st.sampled_from(ways)), data.draw(NONSENSE))
    check_refused_or_harmless(put_together(path, header, text, tensors), None)


@given(st.data())
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nonsense_in_the_table_of_tensors_is_refused_or_harmless(whole: Path, path: Path, data: st.DataObject) -> None:
    header, text, tensors = parts(whole)
    del header["__metadata__"]
    way = data.draw(st.sampled_from([way for way in everywhere(header) if way]))
    value = data.draw(NONSENSE | st.sampled_from(["F32", "F64", "U8", "I8", "BF16", "BOOL", "C64", "F8_E4M3"]))
    check_refused_or_harmless(put_together(path, replaced(header, way, value), text, tensors), Everything())


@given(st.integers(0, 10**6), st.integers(0, 7))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_flipped_bit_is_refused_or_harmless(whole: Path, path: Path, place: int, bit: int) -> None:
    data = bytearray(whole.read_bytes())
    data[place % len(data)] ^= 1 << bit
    path.write_bytes(data)
    check_refused_or_harmless(path, Everything())


def test_every_flipped_bit_of_a_mask_is_refused(whole: Path, path: Path) -> None:
    header, text, tensors = parts(whole)
    for name in text["sparse"]:
        first, last = header[f"{name}|bits"]["data_offsets"]
        for place in (first, (first + last) // 2, last - 1):
            changed = bytearray(tensors)
            changed[place] ^= 4
            with pytest.raises(InvalidInputError, match=f"bits and values of '{name}' do not belong together"):
                load_compressed(put_together(path, header, text, bytes(changed)), Everything())


def test_bits_behind_the_last_entry_are_refused(path: Path) -> None:
    model = nn.Linear(7, 5, bias=False)
    made(model, torch.randn(3, 7), formats=["torch csr"]).save(path)
    header, text, tensors = parts(path)
    first, _ = header["weight|bits"]["data_offsets"]
    changed = bytearray(tensors)
    kept = next(bit for bit in range(8) if changed[first] >> bit & 1)
    changed[first] ^= 1 << kept
    changed[first + 7] ^= 1
    with pytest.raises(InvalidInputError, match="the bits of 'weight' go beyond its entries"):
        load_compressed(put_together(path, header, text, bytes(changed)))


Change = Callable[[dict[str, Any]], object]
ALTERED: dict[str, tuple[Change, str]] = {
    "layer of no module": (lambda t: t["recipe"]["layers"].update(absent="csr"), "damaged|does not fit"),
    "layer that is none": (lambda t: t["recipe"]["layers"].update({"body.1": "csr"}), "cannot be packed"),
    "unknown format": (lambda t: t["recipe"]["layers"].update(head="cells"), "damaged"),
    "format for another kind": (lambda t: t["recipe"]["layers"].update(head="kept dense"), "damaged"),
    "norm that is none": (lambda t: t["recipe"]["norms"].update({"body.0": "body.2"}), "does not fit"),
    "layer of a norm that is none": (lambda t: t["recipe"]["norms"].update({"body.2": "body.1"}), "damaged"),
    "norm that was not folded": (lambda t: t["recipe"].update(norms={}), "does not fit"),
    "activation that is none": (lambda t: t["recipe"]["activations"].update({"body.0": "body.3"}), "does not fit"),
    "activation after no layer": (lambda t: t["recipe"]["activations"].update({"absent": "body.2"}), "does not fit"),
    "attention that is none": (lambda t: t["recipe"]["attentions"].update(head=True), "does not fit"),
    "attention that is neither": (lambda t: t["recipe"]["attentions"].update(attention=3), "recipe .* is damaged"),
    "values in another dtype": (lambda t: t["recipe"].update(values="int8"), "recipe .* is damaged"),
    "values that are no dtype": (lambda t: t["recipe"].update(values="load"), "recipe .* is damaged"),
    "more in the recipe": (lambda t: t["recipe"].update(more={}), "damaged"),
    "less in the recipe": (lambda t: t.pop("recipe"), "damaged"),
    "stride of zero": (lambda t: strided(t, 0), "sizes that a file records are damaged"),
    "negative stride": (lambda t: strided(t, -1), "sizes that a file records are damaged"),
    "endless stride": (lambda t: strided(t, 2**40), "sizes that a file records are damaged"),
    "another shape": (lambda t: t["sparse"]["body.3.weight"].__setitem__(0, [8, 8, 9, 1]), "of another architecture"),
    "a larger shape": (lambda t: t["sparse"]["head.weight"].__setitem__(0, [8, 9]), "do not belong together"),
    "a negative shape": (lambda t: t["sparse"]["head.weight"].__setitem__(0, [-8, -8]), "do not belong together"),
    "no dtype": (lambda t: t["sparse"]["head.weight"].__setitem__(1, "load"), "damaged"),
    "an alias of nothing": (lambda t: t["aliases"].update({"twin.weight": "absent"}), "damaged"),
    "fewer sparse tensors": (lambda t: t["sparse"].pop("head.weight"), "damaged|another architecture"),
}  # fmt: skip


def strided(text: dict[str, Any], value: int) -> None:
    """Record another stride for a convolution."""
    entry = next(n for n in text["numbers"] if n[:3] == ["body.3", "stride", 0])
    entry[3:] = [value, value]


@pytest.mark.parametrize("what", ALTERED)
def test_altered_text_is_refused(whole: Path, what: str, path: Path) -> None:
    change, match = ALTERED[what]
    header, text, tensors = parts(whole)
    change(text)
    with pytest.raises(InvalidInputError, match=match):
        load_compressed(put_together(path, header, text, tensors), Everything())


@pytest.mark.parametrize("shape", [[7], [9], [8, 1], [0]], ids=str)
def test_added_bias_of_another_shape_is_refused(whole: Path, shape: list[int], path: Path) -> None:
    from safetensors.torch import load_file, save_file

    _, text, _ = parts(whole)
    tensors = load_file(whole)
    tensors["added|body.0.bias"] = torch.ones(shape)
    save_file(tensors, path, {"compressed": json.dumps(text)})
    with pytest.raises(InvalidInputError, match="does not fit"):
        load_compressed(path, Everything())


@pytest.mark.parametrize("shape", [[7], [0]], ids=str)
def test_bias_that_does_not_belong_to_its_weight_is_refused(whole: Path, shape: list[int], path: Path) -> None:
    from safetensors.torch import load_file, save_file

    _, text, _ = parts(whole)
    tensors = load_file(whole)
    tensors["body.3.bias"] = torch.ones(shape)
    save_file(tensors, path, {"compressed": json.dumps(text)})
    with pytest.raises(InvalidInputError, match=r"the bias of a layer has another shape|cannot resize 'body\.3\.bias'"):
        load_compressed(path, Everything())


@pytest.mark.parametrize(
    ("argument", "value"), [("dilation", [-1, -1]), ("stride", [0, 0]), ("padding", [-1, -1]), ("stride", [2**40, 1])]
)
def test_description_of_a_convolution_that_moves_like_none_is_refused(
    argument: str, value: list[int], path: Path
) -> None:
    made(nn.Conv2d(4, 8, 3), torch.randn(1, 4, 6, 6)).save(path)
    header, text, tensors = parts(path)
    text["structure"]["arguments"][argument] = value
    text["numbers"] = []
    with pytest.raises(InvalidInputError, match="no convolution moves like this"):
        load_compressed(put_together(path, header, text, tensors))


HUGE = {
    "Linear": {"in_features": 10**6, "out_features": 10**7, "bias": False},
    "Embedding": {"num_embeddings": 2**40, "embedding_dim": 2**20},
    "BatchNorm1d": {"num_features": -1},
    "Identity": {},
}


@pytest.mark.parametrize("kind", HUGE)
def test_description_of_another_model_is_refused_before_it_gets_memory(kind: str, path: Path) -> None:
    made(nn.Linear(48, 64), torch.randn(3, 48)).save(path)
    header, text, tensors = parts(path)
    text["structure"] = {"type": kind, "arguments": HUGE[kind]}
    with pytest.raises(InvalidInputError, match=r"damaged|describes a model of other tensors"):
        load_compressed(put_together(path, header, text, tensors))


class Gated(nn.Module):
    """A model whose tensors do not tell which activation and how many heads it has."""

    def __init__(self, activation: type[nn.Module] = nn.ReLU, heads: int = 4) -> None:
        super().__init__()
        self.layer, self.activation, self.heads = nn.Linear(48, 48), activation(), heads

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.layer(x)).unflatten(-1, (self.heads, -1)).softmax(-1).flatten(-2)


@pytest.mark.parametrize(("other", "what"), [(Gated(nn.GELU), "'activation' is of another"), (Gated(heads=2), "heads")])
def test_model_with_other_code_and_the_same_tensors_is_refused(other: nn.Module, what: str, path: Path) -> None:
    fast = made(Gated(), x := torch.randn(2, 48))
    fast.save(path)
    assert torch.equal(outputs(load_compressed(path, Gated()), x)[0], outputs(fast, x)[0])
    with pytest.raises(ShapeError, match=what):
        load_compressed(path, other)
