"""Tiny random models of mlx-lm's own classes, one per family, and what their caches hold.

Sizes are small enough for a forward pass of a millisecond, windows and chunks short enough to wrap
within a test, and weights sharp enough that greedy text varies and its best two logits lie apart.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.cache import ArraysCache, ChunkedKVCache, QuantizedKVCache, RotatingKVCache

from localspec.engine.rollback import leaves

VOCAB = 96
WINDOW = 8

# What most families call the same thing; `from_dict` of each family takes what it knows.
_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "layer_norm_eps": 1e-5,
    "layer_norm_epsilon": 1e-5,
    "layernorm_epsilon": 1e-5,
    "norm_eps": 1e-5,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "sliding_window": WINDOW,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "shared_intermediate_size": 16,
    "num_shared_experts": 1,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.0,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "first_k_dense_replace": 1,
    "partial_rotary_factor": 0.5,
    "conv_L_cache": 3,
}
_MLA: dict[str, Any] = {
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
_GATED_DELTA: dict[str, Any] = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 2,
}
_MAMBA2: dict[str, Any] = {
    "num_heads": 4,
    "mamba_num_heads": 4,
    "mamba_head_dim": 8,
    "state_size": 8,
    "ssm_state_size": 8,
    "conv_kernel": 4,
    "n_groups": 2,
    "use_bias": False,
    "use_conv_bias": True,
    "mamba_proj_bias": False,
    "time_step_limit": (0.001, 10.0),
    "time_step_rank": "auto",
}
_LONGCAT: dict[str, Any] = {
    **_MLA,
    "attention_method": "MLA",
    "zero_expert_type": "identity",
    "ffn_hidden_size": 48,
    "moe_topk": 2,
    "expert_ffn_hidden_size": 16,
    "zero_expert_num": 2,
    "num_layers": 4,
    "mla_scale_q_lora": True,
    "mla_scale_kv_lora": True,
}
_ROPES = {
    "full_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
}
_YARN = {
    "type": "yarn",
    "factor": 4.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 128,
}
_SLIDING, _FULL = "sliding_attention", "full_attention"
_ALTERNATE = [_SLIDING, _FULL, _SLIDING, _FULL]

_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": {},
    "gemma": {},
    "gemma2": {
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "query_pre_attn_scalar": 8.0,
    },
    "gemma3": {
        "text_config": {**_COMMON, "model_type": "gemma3_text", "sliding_window_pattern": 2}
    },
    "gemma3_text": {"sliding_window_pattern": 2},
    "gemma4": {
        "text_config": {
            **_COMMON,
            "model_type": "gemma4_text",
            "num_hidden_layers": 6,
            "global_head_dim": 16,
            "vocab_size_per_layer_input": VOCAB,
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 8,
            "final_logit_softcapping": 30.0,
            "layer_types": [_SLIDING, _FULL] * 3,
            "rope_parameters": {
                _FULL: {"partial_rotary_factor": 0.25, "rope_theta": 10000.0},
                _SLIDING: {"rope_theta": 1000.0},
            },
        }
    },
    "gpt_oss": {"layer_types": _ALTERNATE},
    "mistral": {"family": "llama", "layer_types": _ALTERNATE},
    "mistral3": {"text_config": {**_COMMON, "model_type": "llama"}},
    "ministral3": {
        "layer_types": _ALTERNATE,
        "rope_parameters": {
            "rope_theta": 10000.0,
            "type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "llama_4_scaling_beta": 0.1,
        },
    },
    "mixtral": {},
    "phi": {},
    "phi3": {},
    "glm4": {},
    "glm4_moe": {"use_qk_norm": True, "rope_scaling": None},
    "deepseek_v2": {
        **_MLA,
        "moe_layer_freq": 1,
        "topk_method": "greedy",
        "rope_scaling": _YARN,
    },
    "deepseek_v3": {**_MLA, "moe_layer_freq": 1, "topk_method": "noaux_tc"},
    "deepseek_v32": {
        **_MLA,
        "moe_layer_freq": 1,
        "index_n_heads": 2,
        "index_head_dim": 16,
        "index_topk": 8,
    },
    "minicpm3": {
        **_MLA,
        "dim_model_base": 16,
        "scale_depth": 1.4,
        "scale_emb": 2.0,
        "rope_scaling": {
            "type": "longrope",
            "original_max_position_embeddings": 512,
            "short_factor": [1.0] * 4,
            "long_factor": [1.0] * 4,
        },
    },
    "qwen3_next": _GATED_DELTA,
    "qwen3_5": {"text_config": {**_COMMON, **_GATED_DELTA, "model_type": "qwen3_5_text"}},
    "qwen3_5_moe": {"text_config": {**_COMMON, **_GATED_DELTA, "model_type": "qwen3_5_moe_text"}},
    "lfm2": {
        "conv_bias": True,
        "full_attn_idxs": [1, 3],
        "block_dim": 32,
        "block_ff_dim": 48,
        "block_multiple_of": 8,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
    },
    "nemotron_h": {**_MAMBA2, "hybrid_override_pattern": ["M", "*", "M", "-"]},
    "falcon_h1": {
        "mamba_d_ssm": 32,
        "mamba_d_state": 8,
        "mamba_d_conv": 4,
        "mamba_n_heads": 4,
        "mamba_d_head": 8,
        "mamba_n_groups": 1,
        "mamba_chunk_size": 16,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
        "mamba_rms_norm": False,
        "mamba_norm_before_gate": True,
        "embedding_multiplier": 1.0,
        "lm_head_multiplier": 1.0,
        "attention_in_multiplier": 1.0,
        "attention_out_multiplier": 1.0,
        "ssm_in_multiplier": 1.0,
        "ssm_out_multiplier": 1.0,
        "key_multiplier": 1.0,
        "mlp_multipliers": [1.0, 1.0],
        "ssm_multipliers": [1.0, 1.0, 1.0, 1.0, 1.0],
    },
    "mamba": {
        "state_size": 8,
        "conv_kernel": 4,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_rank": 4,
        "use_bcdt_rms": True,
    },
    "mamba2": _MAMBA2,
    "llama4": {
        "text_config": {
            **_COMMON,
            "model_type": "llama4_text",
            "attention_chunk_size": WINDOW,
            "interleave_moe_layer_step": 2,
            "intermediate_size_mlp": 48,
            "num_experts_per_tok": 1,
            "rope_scaling": None,
            "use_qk_norm": True,
        }
    },
    "jamba": {
        "attn_layer_offset": 1,
        "attn_layer_period": 2,
        "expert_layer_offset": 1,
        "expert_layer_period": 2,
        "mamba_d_conv": 4,
        "mamba_d_state": 8,
        "mamba_expand": 2,
    },
    "granitemoehybrid": {
        "embedding_multiplier": 1.0,
        "attention_multiplier": 0.35,
        "logits_scaling": 1.0,
        "residual_multiplier": 1.0,
        "mamba_n_heads": 4,
        "mamba_d_head": 8,
        "mamba_d_state": 8,
        "mamba_d_conv": 4,
        "mamba_n_groups": 1,
        "mamba_proj_bias": False,
        "mamba_conv_bias": True,
        "layer_types": ["mamba", "attention", "mamba", "attention"],
    },
    "kimi_linear": {
        **_MLA,
        "linear_attn_config": {
            "num_heads": 4,
            "head_dim": 8,
            "kda_layers": [1, 3],
            "short_conv_kernel_size": 4,
        },
        "model_max_length": 512,
    },
    "bailing_moe_linear": {"num_key_value_heads": 4, "layer_group_size": 2, "group_norm_size": 1},
    "rwkv7": {
        "a_low_rank_dim": 8,
        "v_low_rank_dim": 8,
        "gate_low_rank_dim": 8,
        "decay_low_rank_dim": 8,
    },
    "baichuan_m1": {
        "sliding_window_layers": [0, 2],
        "conv_window": 2,
        "num_swa_attention_heads": 4,
        "num_swa_key_value_heads": 2,
    },
    "recurrent_gemma": {
        "attention_window_size": WINDOW,
        "block_types": ["recurrent", "recurrent", "attention"],
        "logits_soft_cap": 30.0,
        "embeddings_scale_by_sqrt_dim": True,
        "conv1d_width": 4,
        "lru_width": 32,
    },
    "plamo2": {
        "mamba_d_state": 8,
        "mamba_d_conv": 4,
        "mamba_num_heads": 4,
        "mamba_step": 2,
        "hidden_size_per_head": 8,
    },
    "cohere2": {"sliding_window_pattern": 2, "logit_scale": 1.0},
    "olmo3": {"layer_types": _ALTERNATE},
    "exaone4": {"sliding_window_pattern": "LG", "rope_scaling": None},
    "mimo": {"num_nextn_predict_layers": 0},
    "mimo_v2_flash": {
        "hybrid_layer_pattern": [0, 1, 0, 1],
        "moe_layer_freq": [0, 1, 0, 1],
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
        "sliding_window_size": WINDOW,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "swa_rope_theta": 1000.0,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2,
        "swa_head_dim": 8,
        "swa_v_head_dim": 8,
        "v_head_dim": 8,
    },
    "afmoe": {"layer_types": _ALTERNATE},
    "afm7": {
        "hidden_dim": 32,
        "num_layers": 4,
        "num_kv_reuse_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
    },
    "gear": {"layer_types": ["conv_mixer", _SLIDING, "conv_mixer", _FULL]},
    "hunyuan": {
        "cla_share_factor": 2,
        "moe_topk": 2,
        "num_shared_expert": [1] * 4,
        "use_mixed_mlp_moe": True,
        "use_qk_norm": True,
        "use_cla": True,
        "rope_scaling": {"alpha": 1000.0, "factor": 1.0, "type": "dynamic"},
    },
    "hunyuan_v1_dense": {
        "use_qk_norm": True,
        "rope_scaling": {"alpha": 1000.0, "factor": 1.0, "type": "dynamic"},
    },
    "nanbeige": {"num_loops": 2},
    "openelm": {
        "head_dim": 8,
        "num_transformer_layers": 4,
        "model_dim": 32,
        "ffn_dim_divisor": 8,
        "num_query_heads": [4] * 4,
        "num_kv_heads": [2] * 4,
        "ffn_multipliers": [1.0] * 4,
        "share_input_output_layers": False,
    },
    "plamo": {"n_shared_head": 2},
    "gpt2": {"n_ctx": 512, "n_embd": 32, "n_head": 4, "n_layer": 4, "n_positions": 512},
    "smollm3": {},
    "spark2_5": {"layer_types": _ALTERNATE, "rope_parameters": _ROPES},
    "step3p5": {
        "layer_types": _ALTERNATE,
        "num_attention_groups": 2,
        "moe_num_experts": 4,
        "moe_top_k": 2,
        "share_expert_dim": 16,
        "attention_other_setting": {"num_attention_heads": 4, "num_attention_groups": 2},
    },
    "olmo_hybrid": {
        **_GATED_DELTA,
        "linear_allow_neg_eigval": True,
        "layer_types": ["linear_attention", _FULL] * 2,
    },
    "bailing_hybrid": {
        **_MLA,
        "num_key_value_heads": 4,
        "layer_group_size": 2,
        "group_norm_size": 1,
    },
    "bailing_moe_v3": {**_MLA, "layer_group_size": 2, "moe_shared_expert_intermediate_size": 16},
    "minimax_m3_vl": {
        "text_config": {
            **_COMMON,
            "dense_intermediate_size": 48,
            "sparse_attention_config": {
                "sparse_num_index_heads": 2,
                "sparse_index_dim": 8,
                "sparse_block_size": 4,
                "sparse_topk_blocks": 2,
                "sparse_attention_freq": [0, 1, 1, 1],
            },
        }
    },
    "longcat_flash": _LONGCAT,
    "exaone_moe": {"layer_types": _ALTERNATE, "is_moe_layer": [False, True, True, True]},
    "mellum": {"layer_types": _ALTERNATE, "rope_parameters": _ROPES},
    "muse_glimmer": {"layer_types": _ALTERNATE, "rope_parameters": _ROPES},
    "phixtral": {
        "num_vocab": VOCAB,
        "model_dim": 32,
        "num_heads": 4,
        "num_layers": 4,
        "rotary_dim": 4,
    },
    "gptj": {"n_embd": 32, "n_head": 4, "rotary_dim": 4, "n_layer": 4, "n_positions": 512},
    "nemotron-nas": {
        "block_configs": [
            {
                "attention": {
                    "n_heads_in_group": 2,
                    "no_op": layer == 1,
                    "replace_with_linear": False,
                },
                "ffn": {"ffn_mult": 1.0, "no_op": layer == 2, "replace_with_linear": False},
            }
            for layer in range(4)
        ]
    },
}

# Families that cannot be supported.
_REFUSED: dict[str, dict[str, Any]] = {
    "longcat_flash_ngram": {
        **_LONGCAT,
        "emb_neighbor_num": 3,
        "emb_split_num": 2,
        "ngram_vocab_size_ratio": 3,
    },
    "deepseek_v41": {
        "hc_mult": 2,
        "q_lora_rank": 16,
        "qk_rope_head_dim": 4,
        "o_groups": 2,
        "o_lora_rank": 8,
        "compress_ratios": (0, 0, 0, 0),
    },
    "gemma3n": {
        "text_config": {
            **_COMMON,
            "model_type": "gemma3n_text",
            "num_kv_shared_layers": 2,
            "vocab_size_per_layer_input": VOCAB,
            "rope_local_base_freq": 1000.0,
            "final_logit_softcapping": 30.0,
            "layer_types": _ALTERNATE,
            "activation_sparsity_pattern": [0.5] * 4,
            "hidden_size_per_layer_input": 8,
            "altup_num_inputs": 4,
            "altup_coef_clip": 1.0,
            "altup_correct_scale": True,
            "altup_active_idx": 0,
            "laurel_rank": 8,
        }
    },
    "iquestloopcoder": {"loop_num": 2, "loop_window_size": WINDOW},
    "gpt_neox": {"rotary_emb_base": 10000, "rotary_pct": 0.5},
    "plamo3": {"window_size": WINDOW, "sliding_window_pattern": 2},
    "kimi_k3": {
        "text_config": {
            **_COMMON,
            **_MLA,
            "linear_attn_config": {
                "num_heads": 4,
                "head_dim": 8,
                "kda_layers": [1, 3],
                "full_attn_layers": [2, 4],
                "short_conv_kernel_size": 4,
                "gate_lower_bound": -5.0,
            },
            "activation_situ_beta": 1.0,
            "activation_situ_linear_beta": 1.0,
            "attn_res_block_size": 2,
            "routed_expert_hidden_size": 32,
            "num_experts_per_token": 2,
        }
    },
}

FAMILIES = tuple(_FAMILIES)


def make_model(family: str, **overrides: Any) -> nn.Module:
    """A tiny float32 model of an mlx-lm family, with the same random weights at every call."""
    config = {**_COMMON, "model_type": family, **(_FAMILIES | _REFUSED)[family], **overrides}
    # Some layers initialise decay rates at random; `randomised` keeps near them.
    mx.random.seed(0)
    return randomised(build(config.pop("family", family), config))


def build(family: str, config: Mapping[str, Any]) -> nn.Module:
    """mlx-lm's model of a configuration, as it initialises it."""
    module = importlib.import_module(f"mlx_lm.models.{family}")
    model: nn.Module = module.Model(module.ModelArgs.from_dict(dict(config)))
    return model


def randomised(model: nn.Module) -> nn.Module:
    """Replace all weights by random ones; vectors, decay rates and step sizes stay near their own."""
    # With this seed every family's text varies.
    rng = np.random.default_rng(4)
    weights = []
    parameters: Any = tree_flatten(model.parameters())
    for name, weight in parameters:
        if mx.issubdtype(weight.dtype, mx.floating):
            noise = mx.array(rng.standard_normal(weight.shape, dtype=np.float32))
            weights.append((name, _random(name, weight.astype(mx.float32), noise)))
    model.update(tree_unflatten(weights))
    model.eval()
    mx.eval(model.parameters())
    return model


def _random(name: str, weight: mx.array, noise: mx.array) -> mx.array:
    if weight.ndim <= 1 or "A_log" in name or "dt_bias" in name:
        return weight + 0.1 * noise
    if "conv" in name and weight.ndim == 3:
        return noise / math.sqrt(weight.shape[1] * weight.shape[2])
    if "embed" in name or "wte" in name:
        return 0.3 * noise
    gain = 3.0 if "lm_head" in name else 1.5
    return noise * (gain / math.sqrt(weight.shape[-1]))


def contents(entries: list[Any]) -> list[mx.array]:
    """The arrays that the next token can depend on: key and value rows, recurrent states."""
    return [array for entry in entries for cache in leaves(entry) for array in _contents(cache)]


def _contents(cache: Any) -> list[mx.array]:
    if type(cache) is ArraysCache:
        return [array for array in cache.cache if array is not None]
    if cache.empty():
        return []
    if type(cache) is QuantizedKVCache:
        return [
            mx.dequantize(rows, scales, biases, group_size=cache.group_size, bits=cache.bits)
            for rows, scales, biases in cache.keys_and_values()
        ]
    if type(cache) is RotatingKVCache:
        ordered = [cache._temporal_order(rows) for rows in (cache.keys, cache.values)]
        assert cache._idx <= cache.keys.shape[2]
        # The next token takes one place of the window; `keep` rows at the front never leave it.
        recent = min(cache.offset, cache.max_size - 1) - min(cache.offset, cache.keep)
        return [
            mx.concatenate(
                [
                    rows[..., : min(cache.offset, cache.keep), :],
                    rows[..., rows.shape[2] - recent :, :],
                ],
                axis=2,
            )
            for rows in ordered
        ]
    rows = cache.keys_and_values()
    if type(cache) is ChunkedKVCache:
        recent = min(cache.offset, cache.chunk_size)
        return [part[..., part.shape[2] - recent :, :] for part in rows]
    return [part[..., : cache.offset, :] for part in rows]


def offsets(entries: list[Any]) -> list[int]:
    return [
        cache.offset
        for entry in entries
        for cache in leaves(entry)
        if type(cache) is not ArraysCache
    ]


def assert_same_caches(left: list[Any], right: list[Any], tolerance: float = 2e-3) -> None:
    assert offsets(left) == offsets(right)
    pairs = zip(contents(left), contents(right), strict=True)
    for ours, theirs in pairs:
        assert_close(ours, theirs, tolerance)


def assert_close(left: mx.array, right: mx.array, tolerance: float = 2e-3) -> None:
    """Equal shapes and types, and values that differ by no more than float noise at their scale."""
    assert left.shape == right.shape
    assert left.dtype == right.dtype
    if left.size:
        scale = mx.maximum(mx.max(mx.abs(right)), 1.0)
        difference = float(np.array(mx.max(mx.abs(left - right)) / scale))
        assert difference <= tolerance
