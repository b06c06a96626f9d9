"""Models in the forms that are exported: masked, after training by RigL, shrunk, compressed and dense again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from secateur import Masks, RigL, prune_, shrink_
from secateur.runtime import CONV_FORMATS, LINEAR_FORMATS, Compressed, choosing, comparing, compress, compressing
from tests.runtime.models import ALWAYS, Residual, packed, with_statistics

__all__ = ["CASES", "FORMS", "LARGE", "MODELS", "Logits", "batches", "compressed", "image", "loss"]


class Logits(nn.Module):
    """A model of transformers that returns a tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(tokens).logits


def cnn() -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.Conv2d(16, 4, 1),
        Residual(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    return with_statistics(model)


def vit() -> nn.Module:
    import timm

    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 1, "num_heads": 3, "num_classes": 10}
    return timm.create_model("vit_tiny_patch16_224", **sizes)


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        use_cache=False,
    )
    return Logits(LlamaForCausalLM(config))


def image() -> Tensor:
    return torch.randn(2, 3, 32, 32)


def sequence() -> Tensor:
    return torch.randn(2, 6, 32)


def text() -> Tensor:
    return torch.randint(0, 64, (2, 8))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "CNN": (cnn, image),
    "ViT": (vit, image),
    "Llama": (llama, text),
    "encoder": (encoder, sequence),
}


def resnet() -> nn.Module:
    import torchvision

    return torchvision.models.resnet18(num_classes=10)


def mobilenet() -> nn.Module:
    import torchvision

    return torchvision.models.mobilenet_v3_small(num_classes=10)


def bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    return Logits(BertForSequenceClassification(BertConfig(num_attention_heads=4, **sizes)))


def gpt() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    ends = {"bos_token_id": 0, "eos_token_id": 0}
    config = GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=32, use_cache=False, **ends)
    return Logits(GPT2LMHeadModel(config))


LARGE: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "resnet18": (resnet, image),
    "mobilenet v3": (mobilenet, image),
    "BERT": (bert, text),
    "GPT-2": (gpt, text),
}


# Forms ----------------------------------------------------------------------------------------------------------------


def loss(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean()


def masked(model: nn.Module, x: Tensor) -> nn.Module:
    """With masks and an optimizer that they have been trained by."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    prune_(model, optimizer, sparsity=0.8)
    loss(model.train(), x).backward()
    optimizer.step()
    return model.eval()


def trained(model: nn.Module, x: Tensor) -> nn.Module:
    """In the middle of a training whose masks move."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    RigL(model, optimizer, sparsity=0.8, every=1, end_step=10)
    before = {name: mask.clone() for name, mask in Masks(model).items()}
    model.train()
    for _ in range(3):
        optimizer.zero_grad()
        loss(model, x).backward()
        optimizer.step()
    assert any(not torch.equal(mask, before[name]) for name, mask in Masks(model).items())
    return model.eval()


def shrunk(model: nn.Module, x: Tensor) -> nn.Module:
    shrink_(model.eval(), x, sparsity=0.5)
    return model


def compressed(model: nn.Module, x: Tensor) -> Compressed:
    """Compressed, with all packed that this machine has a format for, whatever the clock says."""
    model = masked(model, x)
    assert Masks(model).num_zeros() > 0
    with pytest.MonkeyPatch.context() as patched:
        measure_little(patched)
        fast = compress(model, x, margin=ALWAYS, formats=[*LINEAR_FORMATS, *CONV_FORMATS])
    assert packed(fast)
    return fast


def dense(model: nn.Module, x: Tensor) -> nn.Module:
    return compressed(model, x).to_dense()


def measure_little(patched: pytest.MonkeyPatch) -> None:
    """Have the clock asked as little as possible, and not for whole models: empty units stay."""
    for module in (choosing, comparing):
        patched.setattr(module, "_SECONDS", 0)
    patched.setattr(comparing, "_RUNS", 1)
    patched.setattr(compressing, "run_seconds", lambda dense, fast, examples: {"dense": 2.0, "fast": 1.0})


FORMS: dict[str, Callable[[nn.Module, Tensor], nn.Module]] = {
    "masked": masked,
    "RigL": trained,
    "shrunk": shrunk,
    "compressed to dense": dense,
}
CASES = [
    *((name, form) for name in ("CNN", "ViT", "Llama") for form in ("masked", "shrunk", "compressed to dense")),
    *(("encoder", form) for form in ("shrunk", "compressed to dense")),
    ("CNN", "RigL"),
]


def batches(x: Tensor) -> list[Tensor]:
    """Inputs of other batch sizes than the one that a program was made with."""
    return [x, torch.cat([x, x.flip(1), x]), x[:1]]
