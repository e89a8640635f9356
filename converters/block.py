"""DFlash, DFlare, DSpark and DFly of every dialect to localspec's own form (formats of z-lab,
AngelSpec, AngelSlim, DeepSpec, SpecForge, ModelOpt and speculators)."""

from __future__ import annotations

import re
from typing import Any, Literal

import mlx.core as mx

from localspec.converters.data import table
from localspec.converters.eagle3 import mapped_vocabulary
from localspec.converters.foreign import Foreign, TapReading, check_taps
from localspec.converters.rope import read_rope
from localspec.errors import CheckpointRefused
from localspec.models.config import (
    Architecture,
    BlockConfig,
    ConfidenceConfig,
    DrafterConfig,
    LayerConfig,
    Layout,
    MarkovConfig,
)

_NAMES = table("names")["block"]
_TAP_KEYS: tuple[tuple[str, TapReading], ...] = (
    ("target_layer_ids", "outputs"),
    ("dspark_target_layer_ids", "outputs"),
    ("layer_ids", "outputs"),
    ("aux_hidden_state_layer_ids", "inputs"),
    ("eagle_aux_hidden_state_layer_ids", "inputs"),
)
_DEFAULT_BLOCK = 16

Result = tuple[DrafterConfig, dict[str, mx.array], bool]


def architecture_of(names: set[str]) -> Architecture:
    """Which of the four, by canonical tensor names, which beat what the configuration says."""
    if any(name.startswith("hidden_correction.") for name in names):
        return "dfly"
    if any(name.startswith("markov_head.") for name in names):
        return "dspark"
    if any(name == "layer_fusion_weights" or "_proj_target." in name for name in names):
        return "dflare"
    return "dspark" if any(name.startswith("confidence_head.") for name in names) else "dflash"


def translate(foreign: Foreign, dialect: str) -> Result:
    """Configuration, tensors, and whether the block layout was declared by the files or the user.

    Raises:
        CheckpointRefused: names the key or tensor that does not fit.
    """
    own = any(re.match(r"(context_|final_norm)", name) for name in foreign.tensors)
    foreign.rename(_NAMES["canonical"], _NAMES["angelspec"] if own else [])
    _refuse_unknown_parts(foreign)
    architecture = architecture_of(set(foreign.tensors))
    hidden = foreign.hidden_size()
    num_layers = foreign.num_layers()
    taps, num_target_layers = _taps(foreign, dialect, num_layers)
    target_hidden = _target_hidden(foreign, architecture, hidden, len(taps))
    shape = foreign.attention(hidden)
    vocab = foreign.integer("vocab_size")
    layout, declared = _layout(foreign, dialect, architecture)
    draft_vocab = mapped_vocabulary(foreign, vocab)
    reduced = draft_vocab < vocab
    tensors = foreign.tensors
    if hidden == target_hidden:
        # Frozen copies of the target's.
        tensors.pop("embed_tokens.weight", None)
        if not reduced:
            tensors.pop("lm_head.weight", None)
    config = foreign.drafter(
        shape,
        # AngelSpec's block drafters were trained without rope_scaling, whatever the file says.
        read_rope(foreign, shape[-1], scaled=dialect != "angelspec"),
        architecture=architecture,
        intermediate_size=foreign.intermediate_size(),
        draft_vocab_size=draft_vocab,
        target_hidden_size=target_hidden,
        tap_layers=taps,
        target_layers=num_target_layers,
        own_embedding=hidden != target_hidden,
        own_head=reduced or hidden != target_hidden,
        embedding_scale=foreign.number("input_embedding_scale", default=1.0),
        logit_scale=foreign.number("output_multiplier", default=1.0),
        logit_softcap=foreign.number("final_logit_softcapping", default=0.0) or None,
        block=_block(foreign, architecture, layout, num_layers),
    )
    return config, tensors, declared


def _block(
    foreign: Foreign, architecture: Architecture, layout: Layout, num_layers: int
) -> BlockConfig:
    size = foreign.find("block_size")
    if size is None:
        foreign.warnings.append(
            f"block_size is not given; {_DEFAULT_BLOCK}, the usual training block, is assumed"
        )
    correction = None
    if architecture == "dfly":
        correction = foreign.intermediate_size("hidden_correction")
    return BlockConfig(
        block_size=foreign.integer("block_size", default=_DEFAULT_BLOCK),
        layout=layout,
        mask_token_id=foreign.integer("mask_token_id"),
        layers=_layers(foreign, num_layers),
        markov=_markov(foreign) if architecture == "dspark" else None,
        confidence=_confidence(foreign) if architecture == "dspark" else None,
        correction_size=correction,
    )


def _refuse_unknown_parts(foreign: Foreign) -> None:
    for name in foreign.tensors:
        for part, what in (
            ("candidate_selector", "DFlash2DraftModel (DFlash 2) is not one of the six"),
            ("attention_conv", "DFlash2DraftModel (DFlash 2) is not one of the six"),
            ("layer_gate", "AngelSpec's gated DFlash is not supported"),
            ("pos_alpha", "a Markov head that depends on the position is not supported"),
            ("sink", "attention sinks are not supported"),
            ("layer_scalar", "Gemma 4 bodies are not supported"),
            ("qkv_proj", "fused qkv_proj is not supported"),
        ):
            if part in name:
                raise CheckpointRefused(f"the checkpoint has the tensor {name}: {what}")
    names = foreign.tensors
    kind = foreign.find("hidden_correction_type")
    if kind not in (None, "swiglu") and "hidden_correction.gate_proj.weight" not in names:
        raise CheckpointRefused(
            "hidden_correction.gate_proj.weight is missing: low-rank corrections are not supported"
        )
    if foreign.nested.get("attention_sink_bias"):
        raise CheckpointRefused("config.json: attention_sink_bias is not supported")


def _target_hidden(foreign: Foreign, architecture: Architecture, hidden: int, num_taps: int) -> int:
    if architecture == "dflare":
        return foreign.common(
            ("k_proj_target.weight", 1), ("v_proj_target.weight", 1), ("hidden_norm.weight", 0)
        )
    return foreign.fused_hidden(hidden, num_taps)


def _taps(foreign: Foreign, dialect: str, num_layers: int) -> tuple[tuple[int, ...], int | None]:
    """Taps as layer outputs, and the number of the target's layers where it is known."""
    # AngelSpec's num_target_layers counts taps; everybody else's counts layers.
    key_of_count = (
        ("target_num_hidden_layers",)
        if dialect == "angelspec"
        else ("target_num_hidden_layers", "num_target_layers")
    )
    count = foreign.target_layers(foreign.find(*key_of_count))
    given = foreign.taps(((foreign.find(key), key, usual) for key, usual in _TAP_KEYS), count)
    if given is not None:
        return given, count
    if count is None:
        raise CheckpointRefused("config.json has no target_layer_ids, and the target is not known")
    foreign.warnings.append(
        "target_layer_ids is not given; z-lab's evenly spread layers are assumed"
    )
    spread = [
        count // 2 if num_layers == 1 else round(1 + i * (count - 4) / (num_layers - 1))
        for i in range(num_layers)
    ]
    return check_taps(spread, "target_layer_ids", count), count


def _layout(foreign: Foreign, dialect: str, architecture: Architecture) -> tuple[Layout, bool]:
    """Which slot predicts which token, and whether somebody said so (formats.md's order)."""
    if foreign.options.layout is not None:
        return foreign.options.layout, True
    every: Layout = "every_slot_predicts"
    unused: Layout = "anchor_slot_unused"
    if architecture == "dfly":
        return unused, True
    from_anchor = foreign.flag("sample_from_anchor")
    if from_anchor is not None:
        return (every if from_anchor else unused), True
    bonus = foreign.flag("dspark_bonus_anchor")
    if bonus is not None:
        return (unused if bonus else every), True
    shifted = foreign.flag("shift_label")
    if shifted is not None:
        return (every if shifted else unused), True
    layout = every if _shifted_by_default(foreign, dialect, architecture) else unused
    foreign.warnings.append(f"the block layout is not declared; {layout}, {dialect}'s, is assumed")
    return layout, False


def _shifted_by_default(foreign: Foreign, dialect: str, architecture: Architecture) -> bool:
    if dialect == "deepspec":
        return True
    if architecture != "dspark" or dialect in ("angelspec", "speculators"):
        return False
    return foreign.find("projector_type") in (None, "dspark", "domino")


def _layers(foreign: Foreign, num_layers: int) -> tuple[LayerConfig, ...]:
    kinds = foreign.find("layer_types")
    if kinds is not None and (not isinstance(kinds, list) or len(kinds) < num_layers):
        raise CheckpointRefused(
            f"config.json: layer_types must name {num_layers} layers: {kinds!r}"
        )
    causal = foreign.flag("is_causal", "causal")
    swa = bool(foreign.nested.get("use_swa"))
    window = foreign.find("swa_window_size", "sliding_window") if swa or kinds else None
    non_causal = swa or bool(foreign.find("sliding_window_non_causal"))
    layers = []
    for index in range(num_layers):
        kind: Any = kinds[index] if kinds else ("sliding_attention" if swa else "full_attention")
        if kind == "sliding_attention":
            if type(window) is not int:
                raise CheckpointRefused(
                    f"config.json: sliding_window must be a whole number, not {window!r}"
                )
            within = (not non_causal) if causal is None else causal
            layers.append(LayerConfig(causal=within, window=window))
        elif kind == "full_attention":
            layers.append(LayerConfig(causal=bool(causal)))
        else:
            raise CheckpointRefused(f"config.json: layer_types holds {kind!r}, which is not known")
    return tuple(layers)


def _markov(foreign: Foreign) -> MarkovConfig | None:
    if not any(name.startswith("markov_head.") for name in foreign.tensors):
        return None
    kind: Literal["vanilla", "gated", "rnn"] = "vanilla"
    if foreign.has("markov_head.gate_proj.weight", "markov_head.gate_proj.bias"):
        kind = "gated"
    elif foreign.has("markov_head.joint_proj.weight", "markov_head.joint_proj.bias"):
        kind = "rnn"
    said = foreign.find("markov_head_type")
    if said not in (None, kind):
        raise CheckpointRefused(
            f"config.json: markov_head_type is {said!r}, but the tensors are those of '{kind}'"
        )
    says = foreign.integer("markov_rank", "dspark_markov_rank", default=0)
    return MarkovConfig(
        kind, foreign.common(("markov_w1.weight", 1), ("markov_w2.weight", 1), says=(says,))
    )


def _confidence(foreign: Foreign) -> ConfidenceConfig | None:
    bias = foreign.has("confidence_head.proj.bias")
    if not bias and not foreign.has("confidence_head.proj.weight"):
        return None
    width = foreign.matrix("confidence_head.proj.weight")[1]
    return ConfidenceConfig(with_markov=width != foreign.hidden_size(), bias=bias)
