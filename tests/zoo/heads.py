"""Heads for architectures that transformers would give as bare encoders, whose width nobody could cut."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

__all__ = ["headed"]

_LABELS = 7

_CLASSES = {
    "bros": "BrosForTokenClassification",
    "clip_vision_model": "CLIPForImageClassification",
    "git": "GitForCausalLM",
    "imagegpt": "ImageGPTForImageClassification",
    "layoutlmv3": "LayoutLMv3ForSequenceClassification",
    "lxmert": "LxmertForQuestionAnswering",
    "patchtsmixer": "PatchTSMixerForTimeSeriesClassification",
    "sapiens2": "Sapiens2ForSemanticSegmentation",
    "siglip_vision_model": "SiglipForImageClassification",
    "splinter": "SplinterForQuestionAnswering",
    "vilt": "ViltForQuestionAnswering",
    "visual_bert": "VisualBertForVisualReasoning",
}
"""Classes with a head that are in none of the mappings in which the rest of the catalogue finds its own."""

_HEADLESS = frozenset(
    [
        *("aimv2_vision_model", "dinov3_convnext", "dinov3_vit", "mlcd_vision_model", "pixio", "pixtral", "radio"),
        *("vit_mae", "vitdet"),
    ]
)
"""Image encoders for which transformers has no class with a head."""


def headed(family: str, kind: Any, config: Any) -> Any:
    """A model of a family, with a head.

    Args:
        family: The model type of transformers.
        kind: The class of models that the mappings of transformers have for it.
        config: Its configuration.
    """
    if family in _HEADLESS:
        return _Classifier(kind(config))
    if family not in _CLASSES:
        return kind(config)
    import transformers

    found = getattr(transformers, _CLASSES[family])
    whole = found.config_class
    return found(config if isinstance(config, whole) else whole(vision_config=config, num_labels=_LABELS))


class _Classifier(nn.Module):
    """An image encoder, and a linear layer on what it pools, or on the mean of its last states."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.config = encoder.config
        self.encoder = encoder
        sizes = getattr(self.config, "hidden_sizes", None)
        self.head = nn.Linear(sizes[-1] if sizes else self.config.hidden_size, _LABELS)

    def forward(self, pixel_values: Tensor) -> Any:
        """One number a label, as `logits`."""
        from transformers.modeling_outputs import ImageClassifierOutput

        result = self.encoder(pixel_values)
        pooled = getattr(result, "pooler_output", None)
        if pooled is None:
            states = result.last_hidden_state
            pooled = states.mean((2, 3)) if states.dim() == 4 else states.mean(1)
        return ImageClassifierOutput(logits=self.head(pooled))
