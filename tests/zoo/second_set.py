"""Families that were put together after everything else was mended, to be run once before anything is mended for them.

None of them is in the rest of the catalogue. While the list was made, only the models themselves were run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.language import model_of, token_pairs, tokens
from tests.zoo.second_settings import SECOND
from tests.zoo.timm_models import images

__all__ = ["ONLY_IN_TRAINING", "second_set"]

Row = tuple[str, str, str, Callable[[], nn.Module], Callable[[nn.Module], Any], Callable[[Any], list[Tensor]] | None]
"""Suite, family, name, how to build the model, how to make its inputs, what is compared."""

_TIMM: dict[str, tuple[str, int, dict[str, Any]]] = {
    "cpubone": ("cpubone_b0_bfrobust", 96, {}),
    "csatv2": ("csatv2", 512, {}),
    "cspnext": ("cspnext_tiny", 96, {}),
    "deepseek_vit": ("deepseek_vit_412m", 112, {"embed_dim": 96, "depth": 2, "num_heads": 4, "num_classes": 7}),
    "efficientvim": ("efficientvim_m1", 224, {}),
    "gemma4_vit": ("gemma4_vit_167m", 96, {"embed_dim": 96, "depth": 2, "num_heads": 4, "num_classes": 7}),
    "hieradet_sam2": ("hieradet_small", 96, {}),
    "iformer": ("iformer_t", 224, {}),
    "lcnetv2": ("lcnetv2_small", 96, {}),
    "lowformer": ("lowformer_b0", 96, {}),
    "mobilenetv5": ("mobilenetv5_base", 96, {}),
    "naflexvit": ("naflexvit_base_patch16_gap", 96, {"embed_dim": 96, "depth": 2, "num_heads": 4}),
    "pnasnet": ("pnasnet5large", 96, {}),
    "qwen3_vit": ("qwen3_vit_306m", 96, {"embed_dim": 96, "depth": 2, "num_heads": 4, "num_classes": 7}),
    "legacy_senet": ("legacy_seresnet18", 96, {}),
    "vision_transformer_hybrid": ("vit_tiny_r_s16_p8_224", 224, {}),
    "vision_transformer_sam": (
        "samvit_base_patch16_224",
        224,
        {"embed_dim": 96, "depth": 4, "num_heads": 4, "global_attn_indexes": (1, 3), "window_size": 7},
    ),
    "legacy_xception": ("legacy_xception", 96, {}),
}
"""One small model of each module of timm that is left, its pixels and sizes of its own."""

_SINGLE = frozenset(
    [
        *("afmoe", "axk1", "deepseek_v2", "deepseek_v4", "dots1", "ernie4_5_moe", "exaone_moe", "flex_olmo"),
        *("glm4_moe", "granitemoehybrid", "granitemoeshared", "hunyuan_v1_moe", "jamba", "kimi_linear", "lfm2_moe"),
        *("minimax", "nemotron_h", "phimoe", "qwen3_next", "xglm", "fsmt", "autoformer", "fastspeech2_conformer"),
        *("llama4_text", "longcat_flash", "aimv2", "aimv2_vision_model", "radio", "deepseek_vit"),
    ]
)
"""Architectures whose kernels or constants take single precision only, or whose code rounds to it on the way."""

ONLY_IN_TRAINING = frozenset({"reformer"})
"""Architectures whose backward pass asks for training mode."""

_OUTPUTS = (
    *("logits", "logits_per_image", "class_queries_logits", "predicted_depth", "prediction_outputs", "state_preds"),
    *("question_answering_score", "last_hidden_state", "audio_values", "waveform", "waveforms", "spectrogram"),
    *("descriptors",),
)
"""What a model is used for, the first that it has; what it returns besides is not compared."""


def second_set() -> Iterator[Row]:
    """The whole set."""
    for family, (name, pixels, own) in _TIMM.items():
        exact = family not in _SINGLE
        yield "timm", family, name, _timm_model(name, own, exact), images(pixels, exact=exact), None
    for form, families in SECOND.items():
        for family, own in families.items():
            build = model_of(family, form, own, exact=family not in _SINGLE)
            yield "transformers", family, family, build, _typed(_INPUTS.get(family, _INPUTS.get(form))), _used


def _timm_model(name: str, own: dict[str, Any], exact: bool) -> Callable[[], nn.Module]:
    """Builds a model of timm, smaller than published where sizes are given; in double precision if exact."""

    def build() -> nn.Module:
        import timm

        model: nn.Module = timm.create_model(name, pretrained=False, **own)
        return model.double() if exact else model

    return build


def _used(result: Any) -> list[Tensor]:
    """The output that a model is used for."""
    for name in _OUTPUTS:
        found = getattr(result, name, None)
        if isinstance(found, Tensor):
            return [found]
        if isinstance(found, tuple) and found:
            return [tensor for tensor in found if isinstance(tensor, Tensor)]
    raise LookupError(f"no known output in {list(result)}")


# ---- inputs

Inputs = Callable[[Any], dict[str, Tensor]]


def _typed(inputs: Inputs) -> Inputs:
    """The inputs in the precision of the model."""

    def made(model: nn.Module) -> dict[str, Tensor]:
        dtype = next(parameter.dtype for parameter in model.parameters())
        given = inputs(model)
        return {name: value.to(dtype) if value.is_floating_point() else value for name, value in given.items()}

    return made


def _pixels(model: Any, name: str = "pixel_values") -> dict[str, Tensor]:
    """One image of the size that the model asks for, of 64 pixels where it asks for none."""
    size = getattr(model.config, "image_size", None) or 64
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return {name: torch.randn(1, 3, height, width)}


def _video(model: Any) -> dict[str, Tensor]:
    """Four images."""
    return {"pixel_values": torch.randn(1, 4, *_pixels(model)["pixel_values"].shape[1:])}


def _described(model: Any) -> dict[str, Tensor]:
    """Two images of 32 pixels and two texts."""
    return {**tokens(model), "pixel_values": torch.randn(2, 3, 32, 32)}


def _wave(*shape: int, name: str = "input_values") -> Inputs:
    """A sound, or a spectrogram of one."""
    return lambda _: {name: torch.randn(shape)}


def _spoken(inputs: Inputs) -> Inputs:
    """A sound, and the text so far."""
    return lambda model: {**inputs(model), "decoder_input_ids": torch.randint(3, 90, (1, 6))}


def _with(**shapes: tuple[int, ...]) -> Inputs:
    """Two texts, and random numbers between zero and one."""
    return lambda model: {**tokens(model), **{name: torch.rand(shape) for name, shape in shapes.items()}}


def _few_tokens(model: nn.Module) -> dict[str, Tensor]:
    """One short text of a small vocabulary."""
    del model
    return {"input_ids": torch.randint(1, 30, (1, 8))}


def _page(model: Any) -> dict[str, Tensor]:
    """A text, where each word is, and the picture of the page."""
    return {**_described(model), "bbox": torch.randint(0, 60, (2, 8, 1)).repeat(1, 1, 4)}


def _patches(model: Any) -> dict[str, Tensor]:
    """Two time series of as many channels as the model has."""
    return {"past_values": torch.randn(2, 32, model.config.num_input_channels)}


def _series(model: Any) -> dict[str, Tensor]:
    """Two time series up to now, and how they went on."""
    config = model.config
    past = config.context_length + max(config.lags_sequence)
    return {
        "past_values": torch.randn(2, past),
        "past_time_features": torch.randn(2, past, config.num_time_features),
        "past_observed_mask": torch.ones(2, past),
        "future_values": torch.randn(2, 8),
        "future_time_features": torch.randn(2, 8, config.num_time_features),
    }


def _decisions(model: nn.Module) -> dict[str, Tensor]:
    """Two episodes of five steps."""
    del model
    return {
        "states": torch.randn(2, 5, 17),
        "actions": torch.randn(2, 5, 4),
        "returns_to_go": torch.randn(2, 5, 1),
        "timesteps": torch.arange(5).repeat(2, 1),
        "attention_mask": torch.ones(2, 5),
    }


_INPUTS: dict[str, Inputs] = {
    "text": tokens,
    "pairs of texts": token_pairs,
    "vision": _pixels,
    "dense": _pixels,
    "video": _video,
    "audio": _wave(1, 640),
    "pair": _described,
    **dict.fromkeys(("autoformer", "informer", "time_series_transformer"), _series),
    **dict.fromkeys(("patchtst", "patchtsmixer"), _patches),
    **dict.fromkeys(("dac", "encodec", "mimi"), _wave(1, 1, 1024)),
    "parakeet_encoder": _wave(1, 64, 16, name="input_features"),
    "speech_to_text": _spoken(_wave(1, 64, 16, name="input_features")),
    "moonshine": _spoken(_wave(1, 2048)),
    "univnet": lambda _: {"input_features": torch.randn(1, 16, 16), "noise_sequence": torch.randn(1, 16, 8)},
    "wav2vec2-bert": _wave(1, 64, 32, name="input_features"),
    "bros": _with(bbox=(2, 8, 4)),
    "lxmert": _with(visual_feats=(2, 5, 20), visual_pos=(2, 5, 4)),
    "visual_bert": _with(visual_embeds=(2, 5, 20)),
    "imagegpt": tokens,
    "perceiver": lambda model: {"inputs": torch.randn(2, 10, model.config.d_model)},
    **dict.fromkeys(("fastspeech2_conformer", "vits"), _few_tokens),
    **dict.fromkeys(("git", "vilt"), _described),
    "layoutlmv3": _page,
    "decision_transformer": _decisions,
}
"""Inputs by the form, and by the architecture where it takes others."""
