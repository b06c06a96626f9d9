"""One small model of each family of timm."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

__all__ = ["images", "timm_models"]

_TIMM = {
    "vision_transformer": "vit_tiny_patch16_224",
    "byobnet": "repvgg_a0",
    "beit": "beit_base_patch16_224",
    "byoanet": "lambda_resnet26t",
    "metaformer": "poolformer_s12",
    "cait": "cait_xxs24_224",
    "coat": "coat_lite_tiny",
    "maxxvit": "coatnet_0_rw_224",
    "convit": "convit_tiny",
    "convmixer": "convmixer_768_32",
    "convnext": "convnext_atto",
    "crossvit": "crossvit_9_240",
    "cspnet": "cspresnet50",
    "davit": "davit_tiny",
    "deit": "deit3_small_patch16_224",
    "densenet": "densenet121",
    "dla": "dla34",
    "nfnet": "nfnet_l0",
    "dpn": "dpn68",
    "vovnet": "ese_vovnet19b_dw",
    "resnet": "resnet26d",
    "edgenext": "edgenext_xx_small",
    "efficientformer": "efficientformer_l1",
    "efficientformer_v2": "efficientformerv2_s0",
    "efficientnet": "efficientnet_lite0",
    "efficientvit_mit": "efficientvit_b0",
    "efficientvit_msra": "efficientvit_m0",
    "eva": "eva02_tiny_patch14_224",
    "fasternet": "fasternet_t0",
    "fastvit": "fastvit_t8",
    "mobilenetv3": "mobilenetv3_small_100",
    "mobilenetv4": "mobilenetv4_conv_small",
    "focalnet": "focalnet_tiny_srf",
    "gcvit": "gcvit_xxtiny",
    "ghostnet": "ghostnet_100",
    "mlp_mixer": "mixer_s32_224",
    "hgnet": "hgnetv2_b0",
    "hiera": "hiera_tiny_224",
    "hrnet": "hrnet_w18_small",
    "inception_next": "inception_next_tiny",
    "inception_resnet_v2": "inception_resnet_v2",
    "inception_v4": "inception_v4",
    "senet": "seresnext26d_32x4d",
    "xception": "xception41",
    "levit": "levit_128s",
    "mambaout": "mambaout_femto",
    "mobilevit": "mobilevit_xxs",
    "mvitv2": "mvitv2_tiny",
    "nasnet": "nasnetalarge",
    "nest": "nest_tiny",
    "nextvit": "nextvit_small",
    "pit": "pit_ti_224",
    "pvt_v2": "pvt_v2_b0",
    "rdnet": "rdnet_tiny",
    "regnet": "regnety_002",
    "repghost": "repghostnet_050",
    "repvit": "repvit_m0_9",
    "res2net": "res2net50_14w_8s",
    "resnest": "resnest14d",
    "resnetv2": "resnetv2_50",
    "rexnet": "rexnet_100",
    "selecsls": "selecsls42b",
    "sequencer": "sequencer2d_s",
    "shvit": "shvit_s1",
    "sknet": "skresnet18",
    "starnet": "starnet_s1",
    "swiftformer": "swiftformer_xs",
    "swin_transformer": "swin_tiny_patch4_window7_224",
    "swin_transformer_v2": "swinv2_tiny_window8_256",
    "swin_transformer_v2_cr": "swinv2_cr_tiny_224",
    "vision_transformer_relpos": "vit_relpos_small_patch16_224",
    "tiny_vit": "tiny_vit_5m_224",
    "tnt": "tnt_s_legacy_patch16_224",
    "tresnet": "tresnet_m",
    "twins": "twins_svt_small",
    "vgg": "vgg11_bn",
    "visformer": "visformer_tiny",
    "vitamin": "vitamin_small_224",
    "volo": "volo_d1_224",
    "xcit": "xcit_nano_12_p16_224",
}
"""One small model a family; a family is a module of timm."""

_HEADS: dict[str, dict[str, float]] = {"eva": {"num_classes": 7, "head_init_scale": 1.0}}
"""Heads of families whose model has none unless one is asked for; a larger one than theirs, so that it can be seen."""

_TIMM_PIXELS = {"crossvit": 240, "swin_transformer_v2": 256}
_ANY_SIZE = frozenset(
    [
        "byobnet",
        "convmixer",
        "convnext",
        "cspnet",
        "densenet",
        "dla",
        "nfnet",
        "dpn",
        "vovnet",
        "resnet",
        "efficientnet",
        "fasternet",
        "mobilenetv3",
        "mobilenetv4",
        "ghostnet",
        "hgnet",
        "hrnet",
        "senet",
        "regnet",
        "repghost",
        "res2net",
        "resnest",
        "resnetv2",
        "rexnet",
        "selecsls",
        "sknet",
        "starnet",
        "tresnet",
        "metaformer",
        "mambaout",
        "repvit",
        "rdnet",
        "inception_next",
    ]
)


def timm_models() -> Iterator[tuple[str, str, Callable[[], nn.Module], Callable[[nn.Module], Tensor]]]:
    """Family, name, how to build the model, how to make its inputs."""
    for family, name in _TIMM.items():
        pixels = 96 if family in _ANY_SIZE else _TIMM_PIXELS.get(family, 224)
        yield family, name, _timm_model(name, **_HEADS.get(family, {})), images(pixels)


def _timm_model(name: str, **own: float) -> Callable[[], nn.Module]:
    """Builds a model of timm, with settings of its own."""

    def build() -> nn.Module:
        import timm

        return timm.create_model(name, pretrained=False, **own).double()

    return build


def images(pixels: int, count: int = 1, *, exact: bool = True) -> Callable[[nn.Module], Tensor]:
    """Random images."""
    dtype = torch.float64 if exact else torch.float32
    return lambda _: torch.randn(count, 3, pixels, pixels, dtype=dtype)
