"""Models of torchvision, timm and transformers by suite, family and name, with random weights."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.language import language_models, logits
from tests.zoo.second_set import ONLY_IN_TRAINING, second_set
from tests.zoo.timm_models import images, timm_models

__all__ = ["Entry", "entries", "is_held_out"]

SEEN = frozenset(
    [
        "alexnet",
        "convnext",
        "densenet",
        "efficientnet",
        "googlenet",
        "inception",
        "maxvit",
        "mnasnet",
        "mobilenet",
        "regnet",
        "resnet",
        "resnext",
        "shufflenet",
        "squeezenet",
        "swin",
        "vgg",
        "vit",
        "wide",
        "bert",
        "roberta",
        "distilbert",
        "gpt2",
        "llama",
        "qwen3",
        "mistral",
        "mixtral",
        "t5",
        "bart",
        "clip",
        "whisper",
        "opt",
    ]
)
"""Families that rules were developed on before the catalogue was made."""


@dataclass(frozen=True)
class Entry:
    """One model.

    Args:
        suite: The library, or the part of it.
        family: Models of one family share their code.
        name: The model's name there.
        build: Makes it, in double precision if it can run in it.
        inputs: Makes example inputs for the model, in any form that `analyze` takes.
        interface: Which tensors of the result are compared; all of them if left out.
        second: Whether it is of the second set, which was run for the first time after all others had been mended.
        only_in_training: Whether its backward pass asks for training mode; all others are trained in evaluation mode.
    """

    suite: str
    family: str
    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[nn.Module], Any]
    interface: Callable[[Any], list[Tensor]] | None = None
    second: bool = False
    only_in_training: bool = False

    @property
    def key(self) -> str:
        """Suite and name."""
        return f"{self.suite}/{self.name}"


def is_held_out(entry: Entry) -> bool:
    """Whether the family is one of the third that no rule was developed on."""
    if entry.second or (entry.family in SEEN and entry.suite != "timm"):
        return False
    return hashlib.sha256(f"{entry.suite}/{entry.family}".encode()).digest()[0] % 3 == 0


def entries() -> Iterator[Entry]:
    """The whole catalogue."""
    yield from _classifiers()
    yield from _dense_predictors()
    yield from (Entry("timm", *row) for row in timm_models())
    for family, build, inputs in language_models():
        yield Entry("transformers", family, family, build, inputs, logits)
    yield from (Entry(*row, second=True, only_in_training=row[1] in ONLY_IN_TRAINING) for row in second_set())


# ---- torchvision

_TOO_LARGE = frozenset(("regnet_y_128gf", "vit_h_14", "regnet_y_32gf", "vit_l_32"))
_SINGLE = frozenset(("vit_l_16", "regnet_y_16gf", "convnext_large", "raft_large", "raft_small"))
"""Models that are run in single precision: large ones, and those whose code makes single-precision tensors."""

_PIXELS = {"inception_v3": 96, "swin_v2_t": 64, "alexnet": 96, "maxvit_t": 64}


def _classifiers() -> Iterator[Entry]:
    """Torchvision's classification models, at 64 pixels where they allow it."""
    from torchvision import models

    for name in models.list_models(module=models):
        if name in _TOO_LARGE:
            continue
        pixels = _PIXELS.get(name, 64)
        options: dict[str, Any] = {"weights": None}
        if name.startswith("vit_"):
            options["image_size"] = pixels
        if name == "maxvit_t":
            options["input_size"] = (pixels, pixels)
            options.update(stem_channels=16, block_channels=[16, 32, 64, 128], block_layers=[1, 1, 1, 1], head_dim=8)
            options.update(partition_size=2)
            yield Entry("torchvision", "maxvit", name, _maxvit(options), images(pixels))
            continue
        if name in ("googlenet", "inception_v3"):
            options.update(aux_logits=False, init_weights=False)
        exact = name not in _SINGLE
        yield Entry("torchvision", _family(name), name, _torchvision(name, options, exact), images(pixels, exact=exact))


def _family(name: str) -> str:
    """The family of a torchvision model."""
    return name.split("_")[0].rstrip("0123456789").removesuffix("_v") or name


def _maxvit(options: dict[str, Any]) -> Callable[[], nn.Module]:
    """A small MaxViT: the published one allows multiples of 224 pixels only."""

    def build() -> nn.Module:
        from torchvision.models.maxvit import MaxVit

        small = {key: value for key, value in options.items() if key != "weights"}
        return MaxVit(num_classes=1000, stochastic_depth_prob=0.2, **small).double()

    return build


def _torchvision(name: str, options: dict[str, Any], exact: bool = True) -> Callable[[], nn.Module]:
    """Builds a torchvision model, in double precision if exact."""

    def build() -> nn.Module:
        from torchvision import models

        model: nn.Module = models.get_model(name, **options)
        return model.double() if exact else model

    return build


def _dense_predictors() -> Iterator[Entry]:
    """Torchvision's segmentation, detection, video and flow models, with their heads."""
    from torchvision import models

    bare: dict[str, Any] = {"weights": None, "weights_backbone": None}
    for name in models.list_models(module=models.segmentation):
        yield Entry("torchvision.segmentation", name.split("_")[0], name, _torchvision(name, bare), images(64, 2))
    for name in models.list_models(module=models.detection):
        options = {**bare, "num_classes": 7}
        pixels = images(300 if name.startswith("ssd300") else 96)
        yield Entry("torchvision.detection", name.split("_")[0], name, _detector(name, options), pixels, _raw_outputs)
    for name in models.list_models(module=models.video):
        size = 224 if name.startswith(("mvit", "s3d")) else 64
        clip = _clip(16 if name.startswith("mvit") or name == "s3d" else 8, size)
        yield Entry(
            "torchvision.video", name.split("_")[0].rstrip("d3"), name, _torchvision(name, {"weights": None}), clip
        )
    for name in models.list_models(module=models.optical_flow):
        build = _torchvision(name, {"weights": None}, exact=False)
        yield Entry("torchvision.flow", "raft", name, build, _two_images(128))


def _clip(frames: int, pixels: int) -> Callable[[nn.Module], Tensor]:
    """A random video."""
    return lambda _: torch.randn(1, 3, frames, pixels, pixels, dtype=torch.float64)


def _two_images(pixels: int) -> Callable[[nn.Module], tuple[Tensor, ...]]:
    """Two random images."""
    return lambda _: (*torch.randn(2, 1, 3, pixels, pixels),)


class _HeadOutputs(nn.Module):
    """A detector up to where boxes are chosen: what follows (top k, suppression) is luck without training."""

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, images: Tensor) -> list[Tensor]:
        """Outputs of all heads on the feature maps, on given boxes where a head needs boxes."""
        model: Any = self.detector
        features = model.backbone(images)
        features = {"0": features} if isinstance(features, Tensor) else features
        maps = list(features.values())
        if not hasattr(model, "rpn"):
            return list(model.head(maps).values())
        results = [tensor for several in model.rpn.head(maps) for tensor in several]
        boxes = [torch.tensor([[0.0, 0.0, 40.0, 40.0], [20.0, 8.0, 90.0, 60.0]], dtype=images.dtype)]
        sizes = [tuple(images.shape[-2:])]
        heads = model.roi_heads
        pooled = heads.box_roi_pool(features, boxes, sizes)
        results += heads.box_predictor(heads.box_head(pooled))
        if heads.has_mask():
            results.append(heads.mask_predictor(heads.mask_head(heads.mask_roi_pool(features, boxes, sizes))))
        if heads.has_keypoint():
            pooled = heads.keypoint_roi_pool(features, boxes, sizes)
            results.append(heads.keypoint_predictor(heads.keypoint_head(pooled)))
        return results


def _detector(name: str, options: dict[str, Any]) -> Callable[[], nn.Module]:
    """Builds a detector, up to the outputs of its heads."""
    build = _torchvision(name, options)
    return lambda: _HeadOutputs(build())


def _raw_outputs(result: Any) -> list[Tensor]:
    """All tensors of a list."""
    return list(result)
