"""nn.MultiheadAttention with a number of heads of its own: the same tensors under the same names.

It is the same function, too: only the sizes that are fixed in it differ.

torch's own forward takes the width of all heads together to be the width of the input, so heads cannot go without the
residual stream. This class computes the same function of the same parameters, but reads the number and the width of
heads from the module, and the scale from a number that was fixed before. A module becomes one by taking on the class,
so its identity, parameters, hooks and state names stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from secateur._errors import UnsupportedError

__all__ = ["FreeHeadsAttention", "bind_heads_", "can_be_freed", "free_heads", "free_heads_"]


class FreeHeadsAttention(nn.MultiheadAttention):
    """nn.MultiheadAttention whose heads together may be narrower than its input; made by `free_heads_`."""

    scale: float

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute what nn.MultiheadAttention does; see there for arguments and shapes."""
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")  # as torch does
        if query.is_nested:
            return self._of_nested(query), None
        batched = query.dim() == 3
        if not batched:
            query, key, value = _each(lambda tensor: tensor.unsqueeze(0), query, key, value)
        elif not self.batch_first:
            query, key, value = _each(lambda tensor: tensor.transpose(0, 1), query, key, value)
        if not batched and key_padding_mask is not None:
            key_padding_mask = key_padding_mask.unsqueeze(0)
        q, k, v = (self._heads(tensor) for tensor in self._projected(query, key, value))
        mask = _additive(attn_mask, key_padding_mask, q, k)
        dropout = self.dropout if self.training else 0.0
        weights: Tensor | None = None
        if need_weights:
            scores = (q * self.scale) @ k.transpose(-2, -1)
            weights = functional.softmax(scores if mask is None else scores + mask, dim=-1)
            weights = functional.dropout(weights, dropout)
            heads = weights @ v
            weights = weights.mean(dim=1) if average_attn_weights else weights
        else:
            causal = is_causal and mask is None
            heads = functional.scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale=self.scale)
        out = self._merged(heads.transpose(1, 2).flatten(2))
        if not batched:
            return out.squeeze(0), None if weights is None else weights.squeeze(0)
        return (out if self.batch_first else out.transpose(0, 1)), weights

    def _of_nested(self, query: Tensor) -> Tensor:
        """Self-attention of a nested tensor, which nn.TransformerEncoder makes of a batch that is padded."""
        lengths = [len(sequence) for sequence in query.unbind()]
        padded = query.to_padded_tensor(0.0)
        places = torch.arange(padded.shape[1], device=padded.device)
        padding = places >= torch.tensor(lengths, device=padded.device)[:, None]
        out = self.forward(padded, padded, padded, padding, need_weights=False)[0]
        return torch.nested.as_nested_tensor([each[:n] for each, n in zip(out, lengths, strict=True)])

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> Iterator[Tensor]:
        """Query, key and value after their projections, (batch, positions, heads together)."""
        if self.in_proj_weight is None:
            weights = [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight]
        else:
            weights = list(self.in_proj_weight.chunk(3))
        biases = [None] * 3 if self.in_proj_bias is None else list(self.in_proj_bias.chunk(3))
        for tensor, weight, bias in zip((query, key, value), weights, biases, strict=True):
            yield functional.linear(tensor, weight, bias)

    def _merged(self, heads: Tensor) -> Tensor:
        """The output of all heads together, (batch, positions, heads together), projected back."""
        return functional.linear(heads, self.out_proj.weight, self.out_proj.bias)

    def _heads(self, tensor: Tensor) -> Tensor:
        """(batch, positions, heads together) -> (batch, heads, positions, width of a head)."""
        return tensor.view(tensor.shape[0], tensor.shape[1], self.num_heads, self.head_dim).transpose(1, 2)


def _each(change: Callable[[Tensor], Tensor], *tensors: Tensor) -> Iterator[Tensor]:
    """Change each tensor; one that is given several times stays one."""
    changed = {id(tensor): change(tensor) for tensor in tensors}
    return (changed[id(tensor)] for tensor in tensors)


def _additive(attn_mask: Tensor | None, padding: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """Both masks as one that is added to the scores, or None; True means: not to be attended to."""
    masks = []
    if attn_mask is not None:
        own = _minus_infinity(attn_mask, query.dtype)
        batch, length, source = query.shape[0], query.shape[2], key.shape[2]
        masks.append(own if own.dim() == 2 else own.view(batch, -1, length, source))
    if padding is not None:
        masks.append(_minus_infinity(padding, query.dtype)[:, None, None, :])
    return sum(masks[1:], masks[0]) if masks else None


def _minus_infinity(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A bool mask as numbers: -inf where it is True, 0 elsewhere."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, float("-inf"))


def can_be_freed(module: nn.Module) -> bool:
    """Whether a module is an nn.MultiheadAttention (itself, no subclass) without learned or zero extra positions."""
    return type(module) is nn.MultiheadAttention and module.bias_k is None and not module.add_zero_attn


def free_heads_(module: nn.MultiheadAttention) -> None:
    """Turn an nn.MultiheadAttention into a `FreeHeadsAttention` in place; its function stays the same.

    Raises:
        UnsupportedError: The module has ``add_bias_kv`` or ``add_zero_attn``.
    """
    if isinstance(module, FreeHeadsAttention):
        return
    if not can_be_freed(module):
        raise UnsupportedError("nn.MultiheadAttention with add_bias_kv or add_zero_attn cannot have free heads.")
    module.__class__ = FreeHeadsAttention
    module.scale = float(module.head_dim) ** -0.5
    module._qkv_same_embed_dim = False  # encoder layers look at this before they take their fused path


def bind_heads_(module: nn.Module, same_embed_dim: bool) -> None:
    """Undo `free_heads_`, as long as no head has gone."""
    module.__class__ = nn.MultiheadAttention
    del module.scale
    module._qkv_same_embed_dim = same_embed_dim  # type: ignore[assignment]


@contextmanager
def free_heads(model: nn.Module) -> Iterator[None]:
    """For as long as the block lasts, every nn.MultiheadAttention in the model has free heads."""
    freed = [m for m in model.modules() if isinstance(m, nn.MultiheadAttention) and can_be_freed(m)]
    same = [module._qkv_same_embed_dim for module in freed]
    try:
        for module in freed:
            free_heads_(module)
        yield
    finally:
        for module, flag in zip(freed, same, strict=True):
            bind_heads_(module, flag)
