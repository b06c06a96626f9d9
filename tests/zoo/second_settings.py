"""Small sizes of the second set's architectures of transformers."""

from __future__ import annotations

from typing import Any

__all__ = ["SECOND"]

_LATENT = {
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 6,
    "head_dim": 8,
}
"""Multi-head latent attention."""

_MIXED = {"mamba_n_heads": 12, "mamba_d_head": 8, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_chunk_size": 8}
"""Mamba 2 beside attention."""

_TEXT: dict[str, dict[str, Any]] = {
    "afmoe": {},
    "apertus": {},
    "axk1": {**_LATENT, "n_group": 2, "topk_group": 1, "mlp_layer_types": ["dense", "sparse"]},
    "bailing_hybrid": {},
    "bamba": {**_MIXED, "attn_layer_indices": [1]},
    "bert-generation": {},
    "cpmant": {},
    "deberta": {},
    "deepseek_v2": {**_LATENT, "num_experts_per_tok": 2, "first_k_dense_replace": 1},
    "deepseek_v4": {},
    "diffllama": {},
    "doge": {},
    "dots1": {
        **{"num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "n_shared_experts": 1, "n_routed_experts": 4},
    },
    "ernie4_5_moe": {},
    "esm": {"vocab_size": 96, "pad_token_id": 1, "mask_token_id": 3, "position_embedding_type": "rotary"},
    "exaone_moe": {},
    "falcon_h1": {**_MIXED, "mamba_d_ssm": 96},
    "falcon_mamba": {"state_size": 8, "time_step_rank": 4},
    "flaubert": {"emb_dim": 48},
    "flex_olmo": {},
    "funnel": {"block_sizes": [1, 1], "num_decoder_layers": 1, "d_head": 8, "d_inner": 80, "n_head": 6},
    "gemma3n_text": {
        "hidden_size_per_layer_input": 8,
        "intermediate_size": [80] * 4,
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "laurel_rank": 8,
        "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
        "vocab_size_per_layer_input": 96,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "glm4_moe": {},
    "gpt_bigcode": {},
    "gpt_neox_japanese": {},
    "granitemoehybrid": {**_MIXED, "layer_types": ["linear_attention", "full_attention"]},
    "granitemoeshared": {},
    "gte": {},
    "hrm_text": {},
    "hunyuan_v1_moe": {"head_dim": 8, "num_experts": 4, "moe_topk": 2},
    "jamba": {"mamba_d_state": 8, "mamba_dt_rank": 4, "attn_layer_offset": 1, "attn_layer_period": 2},
    "jetmoe": {"num_local_experts": 4, "num_experts_per_tok": 4},
    "jina_embeddings_v3": {},
    "kimi_linear": {
        **_LATENT,
        "q_lora_rank": None,
        "linear_head_dim": 8,
        "linear_num_heads": 6,
        "layer_types": ["linear_attention", "full_attention"],
        "mlp_layer_types": ["dense", "sparse"],
        "num_experts_per_token": 2,
    },
    "lfm2": {},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "llama4_text": {},
    "longcat_flash": {
        **_LATENT,
        "ffn_hidden_size": 80,
        "expert_ffn_hidden_size": 80,
        "moe_topk": 2,
        "zero_expert_num": 2,
    },
    "luke": {"entity_vocab_size": 20, "entity_emb_size": 16},
    "mamba": {"state_size": 8, "time_step_rank": 4},
    "mamba2": {"num_heads": 12, "head_dim": 8, "n_groups": 2, "state_size": 16, "chunk_size": 8},
    "markuplm": {"max_depth": 8},
    "minicpm3": {**_LATENT},
    "minimax": {"block_size": 8},
    "nanochat": {},
    "nemotron_h": {},
    "nomic_bert": {},
    "olmo3": {},
    "olmo_hybrid": {},
    "openai-gpt": {},
    "phimoe": {},
    "qwen3_next": {},
    "recurrent_gemma": {
        "lru_width": 48,
        "num_hidden_layers": 3,
        "attention_window_size": 8,
        "num_key_value_heads": 2,
    },
    "reformer": {
        "is_decoder": True,
        "attn_layers": ["local"],
        "attention_head_size": 8,
        "axial_pos_embds": False,
        "local_attn_chunk_length": 4,
        "feed_forward_size": 80,
        "num_hidden_layers": 1,
    },
    "roberta-prelayernorm": {},
    "roc_bert": {"pronunciation_vocab_size": 96, "shape_vocab_size": 96, "shape_embed_dim": 16},
    "rwkv": {},
    "vaultgemma": {},
    "xglm": {"attention_heads": 6},
    "xlm-roberta-xl": {},
    "xlstm": {},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "yoso": {},
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid"],
        "num_hidden_layers": 2,
        "n_mamba_heads": 12,
        "mamba_headdim": 8,
        "mamba_d_state": 16,
        "attention_head_dim": 16,
        "attention_hidden_size": 96,
        "num_mem_blocks": 1,
        "adapter_rank": 8,
        "chunk_size": 8,
        "num_key_value_heads": 6,
    },
}
"""Architectures for text, and sizes of their own."""

_HALF = {
    **{"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 6, "head_dim": 8},
    **{"num_key_value_heads": 2, "vocab_size": 96, "sliding_window": 4, "query_pre_attn_scalar": 8},
}
_ENCODER_DECODER: dict[str, dict[str, Any]] = {
    "fsmt": {"src_vocab_size": 96, "tgt_vocab_size": 96, "langs": ["en", "de"]},
    "pegasus_x": {},
    "seamless_m4t": {},
    "t5gemma": {**dict.fromkeys(("encoder", "decoder"), _HALF)},
}
"""Those with an encoder and a decoder for text."""

_WAVES = {
    "conv_dim": (16, 16),
    "conv_kernel": (5, 3),
    "conv_stride": (4, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
    "vocab_size": 32,
}
_STAGES = {"hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 1, 1]}
_TEXT_SIDE = {"vocab_size": 96, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2}
_VISION_SIDE = {"image_size": 32, "patch_size": 8, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2}

_QUERIES = {
    **{"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64},
    **{"encoder_layers": 1, "decoder_layers": 2, "num_queries": 10},
}

_VISION: dict[str, dict[str, Any]] = {
    "aimv2_vision_model": {},
    "conditional_detr": {"decoder_layers": 1, "encoder_layers": 1, "num_queries": 6},
    "deformable_detr": {**_QUERIES, "d_model": 64, "hidden_size": 64, "num_attention_heads": 4},
    "depth_anything": {
        "backbone_config": {
            "model_type": "dinov2",
            **_VISION_SIDE,
            "out_indices": [1, 2],
            "num_attention_heads": 6,
            "reshape_hidden_states": False,
        },
        **{"reassemble_hidden_size": 48, "neck_hidden_sizes": [16, 24], "reassemble_factors": [2, 1], "patch_size": 8},
        **{"fusion_hidden_size": 16, "head_hidden_size": 8, "depth_estimation_type": "metric"},
    },
    "data2vec-vision": {},
    "detr": {"decoder_layers": 1, "encoder_layers": 1, "num_queries": 6},
    "dinov3_convnext": {**_STAGES},
    "donut-swin": {"embed_dim": 24, "depths": [1, 1], "num_heads": [2, 4], "window_size": 2, "image_size": 32},
    "glpn": {**_STAGES, "num_attention_heads": [1, 2, 4, 4], "decoder_hidden_size": 16},
    "hgnet_v2": {},
    "mgp-str": {"image_size": [32, 128], "num_bpe_labels": 40, "num_wordpiece_labels": 40},
    "mlcd_vision_model": {},
    "mobilevit": {"image_size": 64},
    "mobilevitv2": {"image_size": 64},
    "pixio": {},
    "pixtral": {},
    "pp_lcnet": {},
    "radio": {},
    "rt_detr": {
        **_QUERIES,
        **{"d_model": 48, "encoder_hidden_dim": 48, "decoder_in_channels": [48] * 3},
    },
    "sam_vision_model": {
        "window_size": 2,
        "global_attn_indexes": [1],
        "output_channels": 16,
        "mlp_dim": 80,
        "num_attention_heads": 6,
        "initializer_range": 0.02,
    },
    "sapiens2": {"head_config": {"upsample_out_channels": [16, 16], "conv_out_channels": [16]}},
    "swiftformer": {"depths": [1, 1, 1, 1], "embed_dims": [16, 24, 32, 40], "image_size": 64},
    "vitdet": {},
}
_DENSE: dict[str, dict[str, Any]] = {
    "superpoint": {},
    "upernet": {},
    "mask2former": {
        "backbone_config": {
            **{"model_type": "swin", "embed_dim": 24, "depths": [1, 1, 1, 1], "num_heads": [2, 2, 4, 4]},
            **{"window_size": 2, "out_features": ["stage1", "stage2", "stage3", "stage4"], "image_size": 64},
        },
        **{"num_attention_heads": 4, "feature_size": 64, "mask_feature_size": 64, "num_queries": 10},
        **{"hidden_dim": 64, "hidden_size": 64},
        **{"encoder_layers": 1, "decoder_layers": 2, "dim_feedforward": 64, "encoder_feedforward_dim": 64},
    },
}
_VIDEO: dict[str, dict[str, Any]] = {
    "timesformer": {"num_frames": 4},
    "videomae": {"num_frames": 4},
    "vivit": {"num_frames": 4, "tubelet_size": [2, 8, 8]},
}
_AUDIO: dict[str, dict[str, Any]] = {
    "dac": {
        "encoder_hidden_size": 8,
        "decoder_hidden_size": 128,
        "hidden_size": 128,
        "downsampling_ratios": [2, 4, 8, 8],
        "codebook_size": 16,
        "codebook_dim": 4,
        "n_codebooks": 2,
    },
    "encodec": {"num_filters": 4, "codebook_size": 16, "hidden_size": 32, "codebook_dim": 32},
    "mimi": {
        "num_filters": 4,
        "hidden_size": 48,
        "upsample_groups": 48,
        "codebook_size": 16,
        "codebook_dim": 16,
        "vector_quantization_hidden_dimension": 16,
        "num_quantizers": 3,
        "num_key_value_heads": 6,
    },
    "moonshine": {
        "encoder_num_hidden_layers": 1,
        "decoder_num_hidden_layers": 1,
        **dict.fromkeys(("encoder_num_attention_heads", "decoder_num_attention_heads"), 6),
        **dict.fromkeys(("encoder_num_key_value_heads", "decoder_num_key_value_heads"), 6),
    },
    "parakeet_encoder": {"subsampling_conv_channels": 16},
    "sew-d": {**_WAVES, "squeeze_factor": 2, "position_buckets": 16},
    "speech_to_text": {"conv_channels": 32, "input_feat_per_channel": 16},
    "univnet": {"model_hidden_channels": 8, "kernel_predictor_hidden_channels": 8, "model_in_channels": 8},
    "wav2vec2-bert": {"vocab_size": 32, "feature_projection_input_dim": 32},
    "wav2vec2-conformer": {**_WAVES, "conv_depthwise_kernel_size": 7},
}
_SERIES: dict[str, dict[str, Any]] = {
    "autoformer": {"prediction_length": 8, "context_length": 16, "label_length": 4, "moving_average": 5},
    "informer": {"prediction_length": 8, "context_length": 16},
    "patchtsmixer": {"d_model": 16, "context_length": 32, "patch_length": 8, "patch_stride": 8},
    "patchtst": {"context_length": 32, "patch_length": 8, "patch_stride": 8, "num_attention_heads": 4},
    "time_series_transformer": {"prediction_length": 8, "context_length": 16},
}
_PAIRS: dict[str, dict[str, Any]] = {
    "aimv2": {},
    "align": {
        "projection_dim": 160,
        "text_config": {**_TEXT_SIDE, "num_attention_heads": 6},
        "vision_config": {"image_size": 32, "width_coefficient": 0.5, "depth_coefficient": 0.3, "hidden_dim": 640},
    },
    "groupvit": {},
    "metaclip_2": {},
    "owlvit": {},
    "tipsv2": {},
}
_OTHERS: dict[str, dict[str, Any]] = {
    "bros": {"hidden_size": 64, "num_attention_heads": 4},
    "decision_transformer": {"n_head": 2, "max_ep_len": 64},
    "fastspeech2_conformer": {"speech_decoder_postnet_units": 24, "encoder_layers": 1, "decoder_layers": 1},
    "git": {"vision_config": {**_VISION_SIDE, "num_attention_heads": 6}},
    "imagegpt": {},
    "layoutlmv3": {
        **{
            "input_size": 32,
            "coordinate_size": 8,
            "shape_size": 8,
            "max_2d_position_embeddings": 64,
            "num_channels": 3,
        },
    },
    "lxmert": {"l_layers": 1, "r_layers": 1, "x_layers": 1, "visual_feat_dim": 20, "num_qa_labels": 7},
    "perceiver": {
        **{"d_latents": 48, "num_latents": 8, "num_self_attends_per_block": 2},
        **{"num_cross_attention_heads": 6, "num_self_attention_heads": 6},
    },
    "vilt": {},
    "visual_bert": {"visual_embedding_dim": 20},
    "vits": {
        **{
            "ffn_dim": 80,
            "flow_size": 48,
            "spectrogram_bins": 33,
            "upsample_initial_channel": 32,
            "num_attention_heads": 2,
        },
        **{"duration_predictor_filter_channels": 24, "noise_scale": 0.0, "noise_scale_duration": 0.0},
        **{
            "prior_encoder_num_flows": 2,
            "prior_encoder_num_wavenet_layers": 2,
            "posterior_encoder_num_wavenet_layers": 2,
        },
    },
}

SECOND: dict[str, dict[str, dict[str, Any]]] = {
    "text": _TEXT,
    "pairs of texts": _ENCODER_DECODER,
    "vision": _VISION,
    "dense": _DENSE,
    "video": _VIDEO,
    "audio": _AUDIO,
    "bare": {**_SERIES, **_OTHERS},
    "pair": _PAIRS,
}
"""Architectures by the form of their inputs and heads, with the sizes that each needs besides those of all."""
