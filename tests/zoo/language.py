"""Small models of transformers: one configuration for each family, two layers and random weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.heads import headed
from tests.zoo.settings import OWN, SIZES

__all__ = ["language_models", "logits", "model_of", "token_pairs", "tokens"]

_TEXT = [
    "bert",
    "roberta",
    "distilbert",
    "gpt2",
    "llama",
    "qwen3",
    "mistral",
    "mixtral",
    "opt",
    "albert",
    "electra",
    "deberta-v2",
    "mpnet",
    "convbert",
    "roformer",
    "xlm-roberta",
    "camembert",
    "ernie",
    "megatron-bert",
    "nystromformer",
    "fnet",
    "gpt_neo",
    "gpt_neox",
    "gptj",
    "codegen",
    "bloom",
    "falcon",
    "phi",
    "phi3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "qwen2",
    "qwen2_moe",
    "qwen3_moe",
    "olmo",
    "olmo2",
    "olmoe",
    "stablelm",
    "starcoder2",
    "cohere",
    "cohere2",
    "granite",
    "granitemoe",
    "persimmon",
    "mpt",
    "glm",
    "glm4",
    "helium",
    "nemotron",
    "smollm3",
    "deepseek_v3",
    "gpt_oss",
    "modernbert",
    "xlm",
    "xlnet",
    "squeezebert",
    "rembert",
    "ctrl",
    "biogpt",
    "big_bird",
    "layoutlm",
    "tapas",
    "lilt",
    "ibert",
    "mobilebert",
    "longformer",
    "splinter",
    "ernie4_5",
    "exaone4",
    "arcee",
    "bitnet",
    "seed_oss",
]
_ENCODER_DECODER = [
    "t5",
    "bart",
    "mbart",
    "pegasus",
    "blenderbot",
    "blenderbot-small",
    "marian",
    "m2m_100",
    "mt5",
    "umt5",
    "plbart",
    "led",
    "longt5",
    "switch_transformers",
    "bigbird_pegasus",
    "prophetnet",
    "nllb-moe",
    "mvp",
]
_VISION = [
    "vit",
    "deit",
    "beit",
    "dinov2",
    "dinov2_with_registers",
    "vit_mae",
    "vit_msn",
    "swin",
    "swinv2",
    "convnext",
    "convnextv2",
    "resnet",
    "regnet",
    "mobilenet_v1",
    "mobilenet_v2",
    "segformer",
    "pvt",
    "pvt_v2",
    "poolformer",
    "levit",
    "cvt",
    "dpt",
    "bit",
    "efficientnet",
    "focalnet",
    "hiera",
    "ijepa",
    "swin2sr",
    "yolos",
    "siglip_vision_model",
    "clip_vision_model",
    "dinov3_vit",
    "textnet",
]
_AUDIO = [
    "whisper",
    "wav2vec2",
    "hubert",
    "wavlm",
    "audio-spectrogram-transformer",
    "unispeech",
    "unispeech-sat",
    "data2vec-audio",
    "sew",
]
_PAIRS = ["clip", "siglip", "chinese_clip", "altclip", "blip", "clipseg"]


def language_models() -> Iterator[tuple[str, Callable[[], nn.Module], Callable[[nn.Module], Any]]]:
    """Family, how to build the model, how to make its inputs."""
    for families, form, inputs in (
        (_TEXT, "text", tokens),
        (_ENCODER_DECODER, "pairs of texts", token_pairs),
        (_VISION, "vision", _pixels),
        (_AUDIO, "audio", _sounds),
        (_PAIRS, "pair", _captions),
    ):
        for family in families:
            yield family, model_of(family, form, OWN.get(family, {}), exact=family not in _SINGLE), inputs


def logits(result: Any) -> list[Tensor]:
    """What a model is used for; hidden states that it returns besides are not compared."""
    for name in (
        "logits",
        "logits_per_image",
        "reconstruction",
        "predicted_depth",
        "start_logits",
        "last_hidden_state",
    ):
        found = getattr(result, name, None)
        if isinstance(found, Tensor):
            return [found]
    raise LookupError(f"no known output in {list(result)}")


_HEADS = {
    "text": ("CAUSAL_LM", "MASKED_LM", "SEQUENCE_CLASSIFICATION"),
    "pairs of texts": ("SEQ_TO_SEQ_CAUSAL_LM",),
    "vision": ("IMAGE_CLASSIFICATION", "OBJECT_DETECTION", "DEPTH_ESTIMATION", "IMAGE_TO_IMAGE"),
    "audio": ("SPEECH_SEQ_2_SEQ", "CTC", "AUDIO_CLASSIFICATION"),
    "pair": (),
    "bare": (),
    "dense": ("SEMANTIC_SEGMENTATION", "UNIVERSAL_SEGMENTATION", "KEYPOINT_DETECTION"),
    "video": ("VIDEO_CLASSIFICATION",),
}
"""Mappings of transformers in which a class is looked for, the first that has one."""


def model_of(family: str, form: str, own: Mapping[str, Any], *, exact: bool = True) -> Callable[[], nn.Module]:
    """Builds a model of a family with a head, from a small configuration; in double precision if exact.

    Args:
        family: The model type of transformers.
        form: Which of the heads it gets, and which inputs.
        own: Sizes that the family needs besides those that hold for all.
        exact: Whether its kernels take double precision.
    """

    def build() -> nn.Module:
        from transformers import AutoConfig
        from transformers.models.auto import modeling_auto
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        config = AutoConfig.for_model(family, **_settings(CONFIG_MAPPING[family], family, form, own))
        _shrink(config)
        config.use_cache = False
        names = (*(f"MODEL_FOR_{head}_MAPPING" for head in _HEADS[form]), "MODEL_MAPPING")
        mapping = next(m for m in (getattr(modeling_auto, name) for name in names) if type(config) in m)
        found = mapping[type(config)]
        model: nn.Module = headed(family, found[0] if isinstance(found, tuple) else found, config)
        return model.double() if exact else model

    return build


_SINGLE = frozenset(("mixtral", "olmoe", "gpt_oss", "qwen2_moe", "qwen3_moe", "granitemoe", "deepseek_v3"))
"""Families whose kernels take single precision only."""

_LISTED = ("hidden_sizes", "depths", "depth", "conv_layer_in_channels")


def _settings(kind: Any, family: str, form: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """Small sizes for all fields that a configuration has; one that lists its stages is given as a whole."""
    if any(name in own for name in _LISTED) or family in ("efficientnet", "textnet", "mobilenet_v1", "mobilenet_v2"):
        return {"num_labels": 7, **own}
    settings = _small(kind())
    if form == "pair":
        for part in ("text_config", "vision_config"):
            inner = getattr(kind(), part)
            settings[part] = {**_small(inner), "projection_dim": 24, **({"image_size": 32} if "vision" in part else {})}
    return {**settings, "num_labels": 7, **own}


def _small(config: Any) -> dict[str, Any]:
    """Which of `SIZES` apply to a configuration: plain numbers that are larger there."""
    found = {}
    for name, value in SIZES.items():
        old = getattr(config, name, None)
        computed = isinstance(getattr(type(config), name, None), property)
        if isinstance(old, int) and not isinstance(old, bool) and not computed:
            found[name] = min(old, value) if "token_id" not in name else value
    return found


def _shrink(config: Any) -> None:
    """Lists that have one entry a layer."""
    for name in ("layer_types", "mlp_layer_types", "no_rope_layers"):
        value = vars(config).get(name)
        if isinstance(value, list) and hasattr(config, "num_hidden_layers"):
            setattr(config, name, value[: config.num_hidden_layers])


def tokens(model: nn.Module) -> dict[str, Tensor]:
    """Two sequences of eight tokens."""
    del model
    return {"input_ids": torch.randint(3, 90, (2, 8))}


def token_pairs(model: nn.Module) -> dict[str, Tensor]:
    """Sequences for an encoder and a decoder."""
    return {**tokens(model), "decoder_input_ids": torch.randint(3, 90, (2, 8))}


def _pixels(model: Any) -> dict[str, Tensor]:
    """Images of the size that the model asks for."""
    size = getattr(model.config, "image_size", 32)
    size = size[0] if isinstance(size, list | tuple) else size
    return {"pixel_values": torch.randn(1, 3, size, size, dtype=torch.float64)}


def _sounds(model: Any) -> dict[str, Tensor]:
    """A spectrogram or a wave, as the family takes it."""
    if model.config.model_type == "whisper":
        return {
            "input_features": torch.randn(1, 16, 128, dtype=torch.float64),
            "decoder_input_ids": torch.randint(3, 90, (1, 6)),
        }
    if model.config.model_type == "audio-spectrogram-transformer":
        return {"input_values": torch.randn(1, 32, 16, dtype=torch.float64)}
    return {"input_values": torch.randn(1, 640, dtype=torch.float64)}


def _captions(model: nn.Module) -> dict[str, Tensor]:
    """An image and a caption."""
    return {**tokens(model), "pixel_values": torch.randn(2, 3, 32, 32, dtype=torch.float64)}
