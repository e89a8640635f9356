"""MTP heads to localspec's form: AngelSpec's training, served and Hy3 layouts, speculators', and those
that ship inside Qwen3-Next, Qwen3.5, GLM-4.5, DeepSeek-V3, MiMo and Hy3 targets."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from localspec.converters.data import table
from localspec.converters.foreign import Foreign, layers_part
from localspec.converters.rope import read_rope
from localspec.errors import CheckpointRefused
from localspec.models.config import ChainConfig, DrafterConfig, LatentConfig, MixtureConfig

_NAMES = table("names")["mtp"]
_ZERO_CENTRED = ("qwen3_next", "qwen3_5")


def is_native(config: dict[str, Any]) -> bool:
    """Whether the folder is a whole target that may hold an MTP layer."""
    part = layers_part(config)
    return any(config.get(key) or part.get(key) for key in _COUNTS) or "qwen3_next" in str(
        config.get("model_type")
    )


_EXPERT_AXES = (("gate", 1), ("up", 1), ("down", 2))
_COUNTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")


def belongs(config: dict[str, Any]) -> Callable[[str], bool]:
    """Which of a target's tensors are its MTP layer's; the others need not be read."""
    part = layers_part(config)
    layer = re.escape(str(part.get("num_hidden_layers")))
    pattern = re.compile(rf"(mtp\.|(model\.)?mtp_layers\.|model\.layers\.{layer}\.)")
    served = "qwen3_mtp" in str(config.get("model_type"))
    return lambda name: bool(
        pattern.match(name)
        or (served and re.fullmatch(r"lm_head\.weight|(model\.)?embed_tokens\.weight", name))
    )


def translate(foreign: Foreign, dialect: str) -> tuple[DrafterConfig, dict[str, mx.array]]:
    """Configuration and tensors.

    Raises:
        CheckpointRefused: names the key or tensor that does not fit.
    """
    _keep_first_layer(foreign)
    own = _NAMES.get(dialect, [])
    if dialect in ("hy3", "glm4", "deepseek_v3"):
        own = [*own, (r"^", f"model.layers.{foreign.integer('num_hidden_layers')}.")]
    foreign.rename(_NAMES["canonical"], own, _is_copy)
    _stack_experts(foreign)
    tensors = foreign.tensors
    if "eh_proj.weight" not in tensors:
        raise CheckpointRefused("the checkpoint holds no MTP layer: no tensor eh_proj.weight")
    if dialect == "mimo" and not foreign.matrix("eh_proj.weight")[1] % 2:
        hidden_half, embedding_half = mx.split(tensors["eh_proj.weight"], 2, axis=1)
        tensors["eh_proj.weight"] = mx.concatenate([embedding_half, hidden_half], axis=1)
    zero_centred = _zero_centred(foreign, dialect)
    if zero_centred:
        for name in tensors:
            if re.search(r"norm\.weight$", name):
                tensors[name] = tensors[name] + 1
    hidden = foreign.hidden_size()
    latent = _latent(foreign) if any(".kv_a_proj" in name for name in tensors) else None
    if latent:
        heads, rotated = foreign.integer("num_attention_heads"), foreign.integer("qk_rope_head_dim")
        shape = (heads, heads, latent.unrotated_dim + rotated)
        # DeepSeek turns neighbours together, unless a configuration of transformers says otherwise.
        rope = read_rope(foreign, rotated, interleaved=foreign.flag("rope_interleave") is not False)
    else:
        shape = foreign.attention(hidden, gated=zero_centred)
        rope = read_rope(foreign, shape[-1])
    mixture = _mixture(foreign, dialect)
    config = foreign.drafter(
        shape,
        rope,
        architecture="mtp",
        intermediate_size=mixture.intermediate_size if mixture else foreign.intermediate_size(),
        draft_vocab_size=foreign.integer("vocab_size"),
        target_hidden_size=hidden,
        tap_layers=(),
        target_layers=foreign.target_layers(
            None
            if dialect in ("angelspec", "speculators")
            else foreign.integer("num_hidden_layers")
        ),
        chain=ChainConfig(
            feed_normed=dialect not in ("glm4", "deepseek_v3"),
            target_normed=_target_normed(foreign, dialect),
            zero_first_embedding=dialect not in (*_ZERO_CENTRED, "speculators"),
            gated_attention=zero_centred,
            mixture=mixture,
            latent=latent,
        ),
    )
    return config, tensors


def _stack_experts(foreign: Foreign) -> None:
    """Experts, one matrix each or fused, to [E, out, in] under `switch_mlp`."""
    tensors = foreign.tensors
    single: dict[str, dict[int, mx.array]] = defaultdict(dict)
    for name in list(tensors):
        if m := re.fullmatch(r"(.*mlp)\.experts\.(\d+)\.(\w+)\.weight", name):
            single[f"{m[1]}.switch_mlp.{m[3]}.weight"][int(m[2])] = tensors.pop(name)
        elif m := re.fullmatch(r"(.*mlp)\.experts(\.gate_up|\.down|_gate|_up|_down)_proj", name):
            fused = tensors.pop(name)
            if fused.ndim != 3 or (m[2] == ".gate_up" and fused.shape[1] % 2):
                raise CheckpointRefused(
                    f"{name} has the shape {list(fused.shape)}, not [experts, .., ..]"
                )
            if m[2][0] == "_":
                # AngelSpec's are [E, in, out].
                fused = mx.swapaxes(fused, 1, 2)
            halves = mx.split(fused, 2, axis=1) if m[2] == ".gate_up" else [fused]
            for part, tensor in zip(m[2][1:].split("_"), halves, strict=True):
                foreign.keep(f"{m[1]}.switch_mlp.{part}_proj.weight", tensor, name)
    count = max((max(stack) + 1 for stack in single.values()), default=0)
    for name, stack in single.items():
        usual = Counter((array.shape, array.dtype) for array in stack.values()).most_common(1)
        for index in range(count):
            # Canonical names of single experts lead back to the file's.
            one = name.replace("switch_mlp", f"experts.{index}")
            if index not in stack:
                raise CheckpointRefused(f"the checkpoint has no tensor {one}")
            shape, dtype = stack[index].shape, stack[index].dtype
            if (shape, dtype) != usual[0][0]:
                raise CheckpointRefused(
                    f"{one} differs from the other experts in shape or type: {list(shape)} {dtype}"
                )
        first = name.replace("switch_mlp", "experts.0")
        foreign.keep(name, mx.stack([stack[index] for index in range(count)]), first)


def _is_copy(name: str) -> bool:
    """Copies of the target's embedding and head."""
    copies = ("embed_tokens.weight", "lm_head.weight", "lm_head_weight", "shared_head.weight")
    return name in copies


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


def _zero_centred(foreign: Foreign, dialect: str) -> bool:
    """Norms of Qwen3-Next and 3.5 are stored less one, and their attention is gated."""
    source = dialect if dialect != "speculators" else str(foreign.geometry.get("model_type"))
    return source.startswith(_ZERO_CENTRED)


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


def _mixture(foreign: Foreign, dialect: str) -> MixtureConfig | None:
    prefix = "layers.0.mlp."
    if not foreign.has(prefix + "gate.weight", prefix + "switch_mlp.up_proj.weight"):
        return None
    shared = prefix + "shared_expert"
    # A bias that is announced and missing must be refused, not done without.
    biased = (
        prefix + "expert_bias" in foreign.tensors
        or bool(foreign.flag("moe_router_enable_expert_bias"))
        or dialect in ("glm4", "deepseek_v3")
    )
    sigmoid = biased or bool(foreign.flag("moe_router_use_sigmoid"))
    experts = [(f"{prefix}switch_mlp.{part}_proj.weight", axis) for part, axis in _EXPERT_AXES]
    has_shared = any(name.startswith(shared) for name in foreign.tensors)
    normalize = foreign.flag("route_norm", "norm_topk_prob")
    return MixtureConfig(
        num_experts=foreign.common(
            (prefix + "gate.weight", 0), *((name, 0) for name, _ in experts)
        ),
        num_chosen=foreign.integer("num_experts_per_tok"),
        intermediate_size=foreign.common(*experts),
        router="sigmoid" if sigmoid else "softmax",
        selection_bias=biased,
        normalize=True if normalize is None else normalize,
        scale=foreign.number("router_scaling_factor", "routed_scaling_factor", default=1.0),
        num_groups=foreign.integer("n_group", default=1),
        num_groups_kept=foreign.integer("topk_group", default=1),
        shared_size=foreign.intermediate_size(shared) if has_shared else None,
        shared_gate=has_shared
        and (foreign.has("shared_expert_gate.weight") or _zero_centred(foreign, dialect)),
    )
