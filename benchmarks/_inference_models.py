"""What `inference.py` compares: the models, their masks, and ways to run them that are not secateur's."""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import secateur
from secateur import patterns
from secateur.runtime.profile_times import latencies
from secateur.runtime.profiling import profile

Call = Callable[[], Any]


def mlp() -> nn.Sequential:
    """Four layers of 1024."""
    torch.manual_seed(0)
    return nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(1024, 1024), nn.ReLU()))).eval()


def transformer() -> nn.TransformerEncoder:
    """Six layers of width 512, eight heads, 2048 within."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).eval()


def resnet18() -> nn.Module:
    """torchvision's, with random weights."""
    from torchvision import models

    torch.manual_seed(0)
    return models.resnet18().eval()


@dataclass(frozen=True)
class Setting:
    """A model, the inputs that it runs on by what they are called, and what is pruned of it."""

    title: str
    make: Callable[[], nn.Module]
    inputs: dict[str, tuple[int, ...]]
    include: Callable[[nn.Module], list[str] | None]


def _all(model: nn.Module) -> None:
    """All weights."""


def _square(model: nn.Module) -> list[str]:
    """The weights of 3x3 convolutions."""
    return [name for name, p in model.named_parameters() if p.dim() == 4 and p.shape[2:] == (3, 3)]


SETTINGS = {
    "mlp": Setting("MLP 4 x 1024", mlp, {f"batch {n}": (n, 1024) for n in (1, 8, 64, 512)}, _all),
    "transformer": Setting(
        "transformer, 6 layers, d = 512, 2048 within",
        transformer,
        {"1 token": (1, 1, 512), "16 tokens": (1, 16, 512), "128 tokens": (1, 128, 512), "8 x 128": (8, 128, 512)},
        _all,
    ),
    "resnet18": Setting(
        "ResNet-18, its 3x3 convolutions sparse",
        resnet18,
        {"224 px, batch 1": (1, 3, 224, 224), "32 px, batch 16": (16, 3, 32, 32)},
        _square,
    ),
}

SPARSE: dict[str, tuple[float, patterns.Pattern]] = {
    "unstructured 80 %": (0.8, patterns.Unstructured()),
    "unstructured 90 %": (0.9, patterns.Unstructured()),
    "16x1 blocks 90 %": (0.9, patterns.Block((16, 1))),
    "256x1 blocks 90 %": (0.9, patterns.Block((256, 1))),
}


def masked(setting: Setting, sparsity: float, pattern: patterns.Pattern) -> nn.Module:
    """The model with zeros, and without the masks that would keep them in training."""
    model = setting.make()
    secateur.prune_(model, sparsity=sparsity, pattern=pattern, include=setting.include(model)).remove()
    return model


# ---- other ways to run a model


def in_bfloat16(model: nn.Module, x: Tensor) -> Call:
    """The dense model in bfloat16."""
    return partial(copy.deepcopy(model).bfloat16(), x.bfloat16())


def in_channels_last(model: nn.Module, x: Tensor) -> Call:
    """The dense model with channels last in memory."""
    last = torch.channels_last
    return partial(copy.deepcopy(model).to(memory_format=last), x.contiguous(memory_format=last))


def in_onnx_runtime(model: nn.Module, x: Tensor, threads: int) -> Call:
    """The dense model in ONNX Runtime.

    Raises:
        ImportError: It is not installed.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "model.onnx"
        torch.onnx.export(model, (x,), path, dynamo=True, verbose=False)
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return partial(session.run, None, {session.get_inputs()[0].name: x.numpy()})


class SparseLinear(nn.Module):
    """A linear layer whose weight torch holds as CSR."""

    def __init__(self, layer: nn.Linear, *, is_weight_first: bool) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # CSR is in beta
            self.weight = layer.weight.detach().to_sparse_csr()
        self.bias, self.is_weight_first = layer.bias.detach(), is_weight_first

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        if self.is_weight_first:
            y = (self.weight @ rows.t()).t() + self.bias
        else:
            y = functional.linear(rows, self.weight, self.bias)
        return y.reshape(*x.shape[:-1], y.shape[-1])


class OpenLayer(nn.Module):
    """A layer of nn.TransformerEncoder with all its projections as layers of their own."""

    def __init__(self, layer: nn.TransformerEncoderLayer) -> None:
        super().__init__()
        attention = layer.self_attn
        self.heads = attention.num_heads
        self.into = nn.Linear(attention.embed_dim, 3 * attention.embed_dim)
        self.into.weight, self.into.bias = attention.in_proj_weight, attention.in_proj_bias
        self.out, self.first, self.second = attention.out_proj, layer.linear1, layer.linear2
        self.norm1, self.norm2 = layer.norm1, layer.norm2

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.into(x).chunk(3, dim=-1)
        )
        attended = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        x = self.norm1(x + self.out(attended))
        return self.norm2(x + self.second(torch.relu(self.first(x))))


def in_torch_csr(model: nn.Module, x: Tensor, *, is_weight_first: bool) -> Call:
    """A masked model whose linear layers hold CSR."""
    model = copy.deepcopy(model)
    if isinstance(model, nn.TransformerEncoder):
        model = nn.Sequential(*map(OpenLayer, model.layers))
    for parent in list(model.modules()):
        for name, layer in parent.named_children():
            if isinstance(layer, nn.Linear):
                setattr(parent, name, SparseLinear(layer, is_weight_first=is_weight_first))
    return partial(model, x)


# ---- what the machine can do


def best(calls: list[Call], seconds: float) -> float:
    """Seconds of the fastest of several ways, by the faster of its calls."""
    return 1e-3 * min(found.quartiles[0] for found in latencies(calls, seconds))


def bandwidth(num_bytes: int) -> float:
    """Bytes that are read in a second of a working set of that size."""
    values = torch.ones(max(1024, num_bytes // 4))
    return 4 * values.numel() / best([values.sum, values.amax], 0.2)


def flops() -> float:
    """Floating-point operations in a second: of a matrix product of 1024, or of a convolution if that has more."""
    square, image, kernel = torch.ones(1024, 1024), torch.ones(1, 128, 28, 28), torch.ones(128, 128, 3, 3)
    product = 2 * 1024**3 / best([partial(torch.mm, square, square)], 0.5)
    convolve = partial(functional.conv2d, image, kernel, padding=1)
    return max(product, 2 * 9 * 128 * 128 * 28 * 28 / best([convolve], 0.5))


def limits(models: dict[str, nn.Module], x: Tensor, speed: float) -> dict[str, float]:
    """Seconds that reading each model's memory, or multiplying by its weights that are not zero, takes at least."""
    rows = profile(models, x, seconds=0).rows
    return {row.name: max(row.bytes / bandwidth(row.bytes), 2 * (row.nonzero_macs or 0) / speed) for row in rows}
