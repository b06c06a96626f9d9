"""More small models of linear layers, sequences and odd code, and of ways through a model that nobody uses."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.graph.structures import FEATURES, IMAGE, TOKENS, Net, Structure, conv, raw
from tests.graph.structures import structure as any_structure
from tests.graph.variants import simple

MORE_VARIANTS: dict[str, Structure] = {}

structure = partial(any_structure, table=MORE_VARIANTS)

# ---- linear layers and weights of one's own


@structure(FEATURES, units=3 + 8)
def adapter_of_low_rank() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.last(self.first(x) + x @ self.down.T @ self.up.T * 0.5)

    return Net(forward, first=nn.Linear(6, 8), down=raw(3, 6), up=raw(8, 3), last=nn.Linear(8, 4))


@structure(FEATURES, units=3 + 8)
def weight_that_is_a_product() -> nn.Module:
    return simple(lambda self, x: self.last(F.linear(x, self.up @ self.down)), up=raw(8, 3), down=raw(3, 6),
                  last=nn.Linear(8, 4))  # fmt: skip


@structure(FEATURES, units=7 + 5)
def bilinear() -> nn.Module:
    return simple(lambda self, x: self.both(self.one(x), self.other(x)), one=nn.Linear(6, 7), other=nn.Linear(6, 5),
                  both=nn.Bilinear(7, 5, 4))  # fmt: skip


@structure(FEATURES, units=8 + 7)
def einsum_of_weights() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = torch.einsum("bi,oi->bo", x, self.first).relu()
        return torch.einsum("...i,io->...o", torch.einsum("bi,io->bo", y, self.second).relu(), self.last)

    return Net(forward, first=raw(8, 6), second=raw(8, 7), last=raw(7, 4))


@structure(FEATURES, units=8, exact=8)
def distances_to_prototypes() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        return torch.cdist(self.first(x), self.prototypes)

    return Net(forward, first=nn.Linear(6, 8), prototypes=raw(4, 8))


@structure(FEATURES, units=8)
def weights_in_lists_and_dicts() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = x @ self.several[0] + self.named["bias"]
        return y.tanh() @ self.several[1]

    return Net(forward, several=nn.ParameterList([raw(6, 8), raw(8, 4)]), named=nn.ParameterDict({"bias": raw(8)}))


@structure(FEATURES, units=8)
def module_in_a_checkpoint() -> nn.Module:
    return simple(lambda self, x: self.last(checkpoint(self.first, x, use_reentrant=False).relu()),
                  first=nn.Linear(6, 8), last=nn.Linear(8, 4))  # fmt: skip


@structure(TOKENS, units=8, exact=8)
def mean_of_tokens_and_an_extra_one() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.first(x)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position[:, : x.shape[1] + 1]
        return self.last(x[:, 0]) + self.other(x[:, 1:].mean(1))

    parts = {"token": raw(1, 1, 8), "position": raw(1, 9, 8)}
    return Net(forward, first=nn.Linear(6, 8), last=nn.Linear(8, 4), other=nn.Linear(8, 4), **parts)


@structure(TOKENS, units=8 + 7)
def layers_along_the_tokens() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x + self.down(F.gelu(self.up(x.transpose(1, 2)))).transpose(1, 2)
        return self.last(x)

    return Net(forward, first=nn.Linear(6, 8), up=nn.Linear(5, 7), down=nn.Linear(7, 5), last=nn.Linear(8, 4))


# ---- what runs without being used, and what decides the way through the code


@structure(IMAGE, units=8)
def convolution_that_nobody_uses() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        self.unused(x) + x
        return self.last(self.first(x))

    return Net(forward, unused=conv(3, 3), first=conv(3, 8), last=conv(8, 4))


@structure(FEATURES, units=0, why=("its size 2 is written in the code (unflatten)",))
def view_that_nobody_uses() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.first(x)
        x.unflatten(1, (2, 4))
        return self.last(x)

    return Net(forward, first=nn.Linear(6, 8), last=nn.Linear(8, 4))


@structure(FEATURES, units=8)
def last_position_that_nobody_uses() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(x).view(*x[:, -1].shape, -1)

    return Net(forward, first=nn.Linear(6, 8), last=nn.Linear(8, 4))


@structure(FEATURES, units=7, why=("the code compares its size with 8",))
def size_compared_with_a_number() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.first(x)
        if x.shape[1] == 8:
            x = x * 2
        return self.last(self.hidden(x).relu())

    return Net(forward, first=nn.Linear(6, 8), hidden=nn.Linear(8, 7), last=nn.Linear(7, 4))


@structure(FEATURES, units=7, why=("the code computes with its size",))
def attribute_compared_with_a_number() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.first(x).view(-1, self.width)
        if self.width in (4, 8):
            x = x * 2
        return self.last(self.hidden(x).relu())

    return Net(forward, first=nn.Linear(6, 8), hidden=nn.Linear(8, 7), last=nn.Linear(7, 4), width=8)


# ---- experts


@structure(TOKENS, units=2 * 7)
def experts_that_all_run() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        weights = self.router(x).softmax(-1)
        return sum(weights[..., i, None] * expert(x) for i, expert in enumerate(self.experts))

    experts = nn.ModuleList(nn.Sequential(nn.Linear(6, 7), nn.GELU(), nn.Linear(7, 6)) for _ in range(2))
    return Net(forward, router=nn.Linear(6, 2), experts=experts)


@structure((12, 6), units=7, why=("one position of it is taken by number",))
def experts_in_one_weight() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        weight, chosen = self.router(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number in range(3):
            rows = torch.where(chosen == number)[0]
            gate, up = F.linear(x[rows], self.both[number]).chunk(2, -1)
            out[rows] += F.linear(F.silu(gate) * up, self.down[number]) * weight[rows, None]
        return out

    return Net(forward, router=nn.Linear(6, 3), both=raw(3, 14, 6), down=raw(3, 6, 7))


# ---- recurrent layers


@structure(TOKENS, units=3, why=("needs a projection narrower than the state",))
def lstm_with_a_projection() -> nn.Module:
    layer = nn.LSTM(6, 5, proj_size=3, batch_first=True)
    return simple(lambda self, x: self.last(self.layer(x)[0]), layer=layer, last=nn.Linear(3, 4))


@structure(TOKENS, units=5)
def plain_recurrent_layer() -> nn.Module:
    layer = nn.RNN(6, 5, batch_first=True)
    return simple(lambda self, x: self.last(self.layer(x)[1][-1]), layer=layer, last=nn.Linear(5, 4))


@structure(TOKENS, units=5)
def gru_cell_with_a_given_state() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        state = x.new_zeros(x.shape[0], self.hidden)
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.last(state)

    return Net(forward, cell=nn.GRUCell(6, 5), last=nn.Linear(5, 4), hidden=5)


@structure(TOKENS, units=5)
def encoder_and_decoder_with_states() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        _, state = self.encoder(x)
        return self.last(self.decoder(x.flip(1), state)[0])

    layers = {"encoder": nn.LSTM(6, 5, batch_first=True), "decoder": nn.LSTM(6, 5, batch_first=True)}
    return Net(forward, **layers, last=nn.Linear(5, 4))


# ---- torch's own attention


@structure(TOKENS, units=2 + 3 + 8 + 6)
def attention_to_another_sequence() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        memory = self.memory(x)
        return self.out(self.attention(x, memory, memory, need_weights=False)[0])

    attention = nn.MultiheadAttention(6, 2, kdim=8, vdim=8, batch_first=True)
    return Net(forward, attention=attention, memory=nn.Linear(6, 8), out=nn.Linear(6, 4))


@structure(TOKENS, units=8 + 2 * (2 + 4 + 8), exact=2 * (2 + 4 + 8))
def torch_encoder_of_two_layers_with_norms_first() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True, norm_first=True)
    return nn.Sequential(nn.Linear(6, 8), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(8, 4))


@structure(TOKENS, units=8 + 8 + 2 * (2 + 4), exact=8 + 2 * (2 + 4))
def torch_decoder_layer() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        memory = self.memory(x)
        mask = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        return self.out(self.layer(memory, memory, tgt_mask=mask))

    layer = nn.TransformerDecoderLayer(8, 2, 8, batch_first=True)
    return Net(forward, memory=nn.Linear(6, 8), layer=layer, out=nn.Linear(8, 4))
