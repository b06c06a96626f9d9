from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from secateur import InvalidInputError, prune_
from secateur.scores import wanda
from tests.scores.models import batches, net, whole_state


def run(model: nn.Module, x: Any) -> Any:
    return model(x)


def by_hand(layer: nn.Module, inputs: list[Tensor]) -> Tensor:
    """Every entry of the weight by itself: with a 1 there and 0 elsewhere the layer returns what it multiplies."""
    probe = copy.deepcopy(layer)
    norms = torch.zeros_like(layer.weight, requires_grad=False)
    with torch.no_grad():
        for parameter in probe.parameters():
            parameter.zero_()
        flat, result = probe.weight.view(-1), norms.view(-1)
        for entry in range(flat.numel()):
            flat[entry] = 1.0
            result[entry] = sum(probe(x).square().sum() for x in inputs).sqrt()
            flat[entry] = 0.0
    return layer.weight.detach().abs() * norms


LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Linear(3, 4), (5, 3)),
    "linear on sequences": (nn.Linear(3, 4), (2, 5, 3)),
    "linear on one example": (nn.Linear(3, 4), (3,)),
    "Conv1D of transformers": (Conv1D(4, 3), (2, 5, 3)),
    "convolution": (nn.Conv2d(2, 3, 3), (2, 2, 5, 6)),
    "padded, with strides": (nn.Conv2d(2, 3, (3, 2), stride=2, padding=(1, 0)), (2, 2, 5, 6)),
    "dilated": (nn.Conv2d(2, 3, 2, dilation=2, padding=1), (2, 2, 5, 6)),
    "the same size": (nn.Conv2d(2, 3, (1, 3), padding="same"), (2, 2, 5, 6)),
    "padded by reflection": (nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), (2, 2, 5, 6)),
    "grouped": (nn.Conv2d(4, 6, 3, groups=2), (2, 4, 5, 6)),
    "depthwise": (nn.Conv2d(4, 8, 3, groups=4), (2, 4, 5, 6)),
    "on one example": (nn.Conv2d(2, 3, 3), (2, 5, 6)),
    "one dim": (nn.Conv1d(2, 3, 3, stride=2), (2, 2, 7)),
    "three dims": (nn.Conv3d(2, 3, 2), (2, 2, 3, 4, 3)),
    "transposed": (nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, output_padding=1), (2, 2, 3, 4)),
    "transposed, grouped": (nn.ConvTranspose1d(4, 6, 3, groups=2), (2, 4, 5)),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_wanda_is_the_weight_times_the_norm_of_all_that_it_is_multiplied_with(kind: str) -> None:
    layer, shape = copy.deepcopy(LAYERS[kind])
    layer.double()
    seen = [torch.randn(shape, dtype=torch.float64) for _ in range(3)]
    torch.testing.assert_close(wanda(layer, run, seen)["weight"], by_hand(layer, seen))


@settings(max_examples=60)
@given(
    is_transposed=st.booleans(),
    groups=st.integers(1, 2),
    channels=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 1)),
    dilation=st.integers(1, 2),
    size=st.tuples(st.integers(5, 7), st.integers(5, 6)),
)
def test_wanda_reads_convolutions_of_every_kind(
    is_transposed: bool,
    groups: int,
    channels: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: int,
    size: tuple[int, int],
) -> None:
    kind = nn.ConvTranspose2d if is_transposed else nn.Conv2d
    inputs, outputs = (groups * number for number in channels)
    options: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    layer = kind(inputs, outputs, kernel, **options).double()
    x = torch.randn(2, inputs, *size, dtype=torch.float64)
    torch.testing.assert_close(wanda(layer, run, [x])["weight"], by_hand(layer, [x]))


def test_wanda_takes_what_a_layer_is_really_given() -> None:
    model, seen = net(3, 4, 2), batches(4, 6)
    model[0].register_forward_pre_hook(lambda module, args: (args[0] * 3,))
    found = wanda(model, lambda m, batch: m(batch[0]), seen)
    x = torch.cat([batch[0] for batch in seen])
    hidden = torch.tanh(nn.functional.linear(3 * x, model[0].weight, model[0].bias)).detach()
    torch.testing.assert_close(found["0.weight"], model[0].weight.detach().abs() * (3 * x).norm(dim=0))
    torch.testing.assert_close(found["2.weight"], model[2].weight.detach().abs() * hidden.norm(dim=0))


class Named(nn.Linear):
    """A layer whose input has a name of its own."""

    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden)


def test_input_may_be_passed_by_the_name_that_the_layer_gives_it() -> None:
    x = torch.randn(5, 3)
    for layer, name in ((nn.Linear(3, 2), "input"), (nn.Conv1d(5, 2, 1), "input"), (Named(3, 2), "hidden")):
        found = wanda(layer, lambda m, x: m(**{name: x}), [x])  # noqa: B023 - called at once
        assert torch.equal(found["weight"], wanda(layer, run, [x])["weight"])


def test_all_inputs_of_a_layer_that_is_used_twice_count() -> None:
    layer = nn.Linear(2, 2, bias=False)
    x = torch.tensor([[3.0, 1.0]])
    found = wanda(layer, lambda m, x: (m(x), m(input=x + 1)), [x])["weight"]
    torch.testing.assert_close(found, layer.weight.detach().abs() * torch.tensor([25.0, 5.0]).sqrt())


def test_half_precision_inputs_do_not_overflow() -> None:
    layer = nn.Linear(2, 1, bias=False).half()
    found = wanda(layer, run, [torch.full((4, 2), 6e4).half()])["weight"]
    torch.testing.assert_close(found, layer.weight.detach().float().abs() * 2 * 60_000)


class Embedded(nn.Module):
    """A table that no linear layer reads, a linear one, and attention, whose projections are not called."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.attention = nn.Embedding(5, 4), nn.MultiheadAttention(4, 2, batch_first=True)
        self.head, self.spare = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        return self.head(self.attention(x, x, x)[0])


def test_weights_that_no_linear_layer_used_are_left_out_and_refused_by_name() -> None:
    model, seen = Embedded(), [torch.tensor([[0, 3, 1]])]
    found = wanda(model, run, seen)
    assert list(found) == ["head.weight"]
    masks = prune_(model, sparsity=0.5, score=found, include=list(found))
    assert int((~masks["head.weight"]).sum()) == 4
    before = whole_state(model)
    for name in ("table.weight", "attention.in_proj_weight", "spare.weight"):
        with pytest.raises(InvalidInputError, match=f"has used '{name}' on the batches"):
            wanda(model, run, seen, include=["head.weight", name])
    with pytest.raises(InvalidInputError, match=r"has used 'table\.weight'(.|\n)*unused: 1"):
        wanda(nn.ModuleDict({"table": model.table}), lambda m, t: m["table"](t), seen)
    assert whole_state(model) == before


def test_wanda_reads_the_layers_of_a_language_model() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=8, n_head=2, n_layer=1, n_positions=6, vocab_size=11)
    model = GPT2LMHeadModel(config).eval()
    tokens = torch.tensor([[1, 4, 2, 7]])
    seen = {}
    name = "transformer.h.0.mlp.c_proj"
    hook = model.get_submodule(name).register_forward_pre_hook(lambda module, args: seen.update(x=args[0].detach()))
    model(tokens)
    hook.remove()
    found = wanda(model, lambda m, t: m(t), [tokens])
    assert {n.split(".")[-2] for n in found} == {"c_attn", "c_proj", "c_fc", "wte"}
    norms = seen["x"].flatten(end_dim=1).norm(dim=0)
    weight = model.get_parameter(f"{name}.weight").detach()
    torch.testing.assert_close(found[f"{name}.weight"], weight.abs() * norms[:, None])
