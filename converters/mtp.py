"""MTP heads to localspec's form: AngelSpec's training, served and Hy3 layouts, speculators', and those
that ship inside Qwen3-Next, Qwen3.5, GLM-4.5, DeepSeek-V3, MiMo and Hy3 targets."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from localspec.converters.foreign import Foreign
from localspec.errors import CheckpointRefused
from localspec.models.config import ChainConfig, DrafterConfig, LatentConfig, MixtureConfig

_RENAMES = [
    (r"^model\.layers\.\d+\.(?=eh_proj|enorm|hnorm|final_layernorm|embed_tokens)", ""),
    (r"^model\.layers\.\d+\.shared_head\.norm\.", "norm."),
    (r"^model\.layers\.\d+\.shared_head\.head\.", "lm_head."),
    (r"^model\.layers\.\d+\.", "layers.0."),
    (r"^(model\.)?mtp_layers\.0\.", ""),
    (r"^mtp\.", ""),
    (r"^model\.", ""),
    (r"^midlayer\.", "layers.0."),
    (r"^(fc|input_proj)\.", "eh_proj."),
    (r"^final_layernorm\.", "norm."),
    (r"^(pre_fc_norm_embedding|token_layernorm)\.", "enorm."),
    (r"^(pre_fc_norm_hidden|hidden_layernorm)\.", "hnorm."),
    (r"^(input_layernorm|post_attention_layernorm|self_attn|mlp)\.", r"layers.0.\1."),
    (r"\.mlp\.router\.gate\.", ".mlp.gate."),
    (r"\.mlp\.gate\.e_score_correction_bias$", ".mlp.expert_bias"),
    (r"\.mlp\.(shared_mlp|shared_experts)\.", ".mlp.shared_expert."),
]
_ZERO_CENTRED = ("qwen3_next", "qwen3_5")


def is_native(config: dict[str, Any]) -> bool:
    """Whether the folder is a whole target that may hold an MTP layer."""
    part = config.get("text_config")
    part = part if isinstance(part, dict) else config
    return any(config.get(key) or part.get(key) for key in _COUNTS) or "qwen3_next" in str(
        config.get("model_type")
    )


_COUNTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")


def belongs(config: dict[str, Any]) -> Callable[[str], bool]:
    """Which of a target's tensors are its MTP layer's; the others need not be read."""
    part = config.get("text_config")
    part = part if isinstance(part, dict) else config
    layer = part.get("num_hidden_layers")
    pattern = re.compile(rf"(mtp\.|(model\.)?mtp_layers\.|model\.layers\.{layer}\.)")
    served = "qwen3_mtp" in str(config.get("model_type"))
    return lambda name: (
        bool(pattern.match(name))
        or (
            served
            and name in ("lm_head.weight", "model.embed_tokens.weight", "embed_tokens.weight")
        )
    )


def translate(foreign: Foreign, dialect: str) -> tuple[DrafterConfig, dict[str, mx.array]]:
    """Configuration and tensors.

    Raises:
        CheckpointRefused: names the key or tensor that does not fit.
    """
    _keep_first_layer(foreign)
    foreign.rename(_RENAMES, drop=_is_copy)
    foreign.stack_experts()
    tensors = foreign.tensors
    if not any(name.startswith("eh_proj.") for name in tensors):
        raise CheckpointRefused("the checkpoint holds no MTP layer: no tensor eh_proj.weight")
    if dialect == "mimo":
        hidden_half, embedding_half = mx.split(tensors["eh_proj.weight"], 2, axis=1)
        tensors["eh_proj.weight"] = mx.concatenate([embedding_half, hidden_half], axis=1)
    if dialect in _ZERO_CENTRED:
        for name in tensors:
            if re.search(r"norm\.weight$", name):
                tensors[name] = tensors[name] + 1
    hidden = foreign.shape("norm.weight")[0]
    latent = _latent(foreign) if any(".kv_a_proj" in name for name in tensors) else None
    gated = dialect in _ZERO_CENTRED
    if latent:
        heads = kv_heads = foreign.integer("num_attention_heads")
        rotated = foreign.integer("qk_rope_head_dim")
        head_dim = latent.unrotated_dim + rotated
        rope = foreign.rope(rotated)
    else:
        heads, kv_heads, head_dim = foreign.attention(hidden)
        heads = heads // 2 if gated else heads
        rope = foreign.rope(head_dim)
    vocab = foreign.integer("vocab_size")
    mixture = _mixture(foreign)
    dense = "layers.0.mlp.gate_proj.weight"
    config = DrafterConfig(
        architecture="mtp",
        hidden_size=hidden,
        intermediate_size=mixture.intermediate_size if mixture else foreign.rows(dense),
        num_layers=foreign.num_layers(),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=foreign.number("rms_norm_eps", default=1e-6),
        rope=rope,
        vocab_size=vocab,
        draft_vocab_size=vocab,
        target_hidden_size=hidden,
        tap_layers=(),
        target_layers=_target_layers(foreign, dialect),
        qk_norm="layers.0.self_attn.q_norm.weight" in tensors,
        qkv_bias="layers.0.self_attn.q_proj.bias" in tensors,
        o_bias="layers.0.self_attn.o_proj.bias" in tensors,
        chain=ChainConfig(
            feed_normed=dialect not in ("glm4", "deepseek_v3"),
            target_normed=_target_normed(foreign, dialect),
            zero_first_embedding=dialect not in (*_ZERO_CENTRED, "speculators"),
            gated_attention=gated,
            mixture=mixture,
            latent=latent,
        ),
    )
    return config, tensors


def _is_copy(name: str) -> bool:
    """Copies of the target's embedding and head, and tables that are computed."""
    copies = ("embed_tokens.weight", "lm_head.weight", "lm_head_weight", "shared_head.weight")
    return name in copies or name.endswith("rotary_emb.inv_freq")


def _keep_first_layer(foreign: Foreign) -> None:
    """One MTP layer is run for every step; further ones are left out."""
    pattern = re.compile(r"^(?:model\.)?mtp_layers\.(\d+)\.|^mtp\.layers\.(\d+)\.")
    extra = [
        name
        for name in foreign.tensors
        if (m := pattern.match(name)) and int(m[1] or m[2] or 0) > 0
    ]
    for name in extra:
        del foreign.tensors[name]
    if extra:
        foreign.warnings.append("the checkpoint has several MTP layers; the first is used alone")


def _target_layers(foreign: Foreign, dialect: str) -> int | None:
    if foreign.target is not None and foreign.target.num_layers is not None:
        return foreign.target.num_layers
    if dialect in ("angelspec", "speculators"):
        return None
    return foreign.integer("num_hidden_layers")


def _target_normed(foreign: Foreign, dialect: str) -> bool:
    if foreign.options.target_normed is not None:
        return foreign.options.target_normed
    if dialect in ("angelspec", "hy3", "qwen3_mtp"):
        foreign.warnings.append(
            "the file does not say whether the target's state is read after its final norm; it is "
            "assumed to be"
        )
    return True


def _latent(foreign: Foreign) -> LatentConfig:
    """Multi-head latent attention: kv_b_proj is split as mlx-lm's DeepSeek-V3 does."""
    prefix = "layers.0.self_attn."
    heads = foreign.integer("num_attention_heads")
    unrotated, value = foreign.integer("qk_nope_head_dim"), foreign.integer("v_head_dim")
    rank = foreign.integer("kv_lora_rank")
    joint = foreign.tensors.pop(prefix + "kv_b_proj.weight", None)
    if joint is None or joint.shape != (heads * (unrotated + value), rank):
        shape = None if joint is None else list(joint.shape)
        raise CheckpointRefused(
            f"{prefix}kv_b_proj.weight must have the shape [{heads * (unrotated + value)}, {rank}], "
            f"not {shape}"
        )
    joint = joint.reshape(heads, unrotated + value, rank)
    foreign.tensors[prefix + "embed_q.weight"] = mx.swapaxes(joint[:, :unrotated], 1, 2)
    foreign.tensors[prefix + "unembed_out.weight"] = joint[:, unrotated:]
    q_rank = foreign.find("q_lora_rank")
    return LatentConfig(rank, unrotated, value, q_rank if type(q_rank) is int else None)


def _mixture(foreign: Foreign) -> MixtureConfig | None:
    router = "layers.0.mlp.gate.weight"
    if router not in foreign.tensors:
        return None
    shared = "layers.0.mlp.shared_expert.gate_proj.weight"
    biased = "layers.0.mlp.expert_bias" in foreign.tensors
    sigmoid = biased or bool(foreign.flag("moe_router_use_sigmoid"))
    normalize = foreign.flag("route_norm", "norm_topk_prob")
    return MixtureConfig(
        num_experts=foreign.rows(router),
        num_chosen=foreign.integer("num_experts_per_tok"),
        intermediate_size=foreign.shape("layers.0.mlp.switch_mlp.up_proj.weight")[1],
        router="sigmoid" if sigmoid else "softmax",
        selection_bias=biased,
        normalize=True if normalize is None else normalize,
        scale=foreign.number("router_scaling_factor", "routed_scaling_factor", default=1.0),
        num_groups=foreign.integer("n_group", default=1),
        num_groups_kept=foreign.integer("topk_group", default=1),
        shared_size=foreign.rows(shared) if shared in foreign.tensors else None,
        shared_gate="layers.0.mlp.shared_expert_gate.weight" in foreign.tensors,
    )
