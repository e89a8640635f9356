"""EAGLE-3 of SafeAILab, AngelSpec, SpecForge, ModelOpt, DeepSpec and speculators to localspec's form."""

from __future__ import annotations

from typing import Literal

import mlx.core as mx
import numpy as np

from localspec.converters.data import table
from localspec.converters.foreign import Foreign, check_taps
from localspec.converters.rope import read_rope
from localspec.errors import CheckpointRefused
from localspec.models.config import ChainConfig, DrafterConfig

_NAMES = table("names")["eagle3"]
_SHARED_ROPE_BASE = 10000.0


def translate(foreign: Foreign, dialect: str) -> tuple[DrafterConfig, dict[str, mx.array]]:
    """Configuration and tensors.

    Raises:
        CheckpointRefused: names the key or tensor that does not fit.
    """
    own = any("midlayer." in name for name in foreign.tensors)
    foreign.rename(_NAMES["canonical"], _NAMES["midlayer"] if own else [])
    tensors = foreign.tensors
    if any(".kv_a_proj" in name for name in tensors):
        raise CheckpointRefused(
            "layers.0.self_attn.kv_a_proj_with_mqa: EAGLE-3 with latent attention is not supported, "
            "since no reference confirms it"
        )
    vocab = foreign.integer("vocab_size")
    draft_vocab = mapped_vocabulary(foreign, vocab)
    hidden = foreign.hidden_size()
    taps, num_target_layers = _taps(foreign)
    target_hidden = foreign.fused_hidden(hidden, len(taps))
    shape = foreign.attention(hidden)
    trained = bool(foreign.flag("embed_requires_grad"))
    if hidden == target_hidden and not trained:
        # A frozen copy of the target's; DeepSpec's head is one too.
        tensors.pop("embed_tokens.weight", None)
        if dialect == "deepspec":
            tensors.pop("lm_head.weight", None)
        elif draft_vocab == vocab and "lm_head.weight" not in tensors:
            foreign.warnings.append("the checkpoint has no lm_head.weight; the target's is used")
    config = foreign.drafter(
        shape,
        read_rope(foreign, shape[-1], theta=_theta(foreign, dialect)),
        architecture="eagle3",
        intermediate_size=foreign.intermediate_size(),
        draft_vocab_size=draft_vocab,
        target_hidden_size=target_hidden,
        tap_layers=taps,
        target_layers=num_target_layers,
        own_embedding="embed_tokens.weight" in tensors or hidden != target_hidden,
        own_head="lm_head.weight" in tensors or hidden != target_hidden or draft_vocab < vocab,
        chain=ChainConfig(
            feed_normed=_feed_normed(foreign, dialect),
            norm_before_residual=_norm_before_residual(foreign, dialect),
            tap_norm=_tap_norm(foreign),
        ),
    )
    return config, tensors


def _tap_norm(foreign: Foreign) -> Literal["each", "all"] | None:
    if any(name.startswith("fc_norm.") for name in foreign.tensors):
        return "each"
    return "all" if "input_norm.weight" in foreign.tensors else None


def mapped_vocabulary(foreign: Foreign, vocab: int) -> int:
    """Rows of the head, with `d2t` checked and made int32; `t2d` is used for the check and dropped.

    Raises:
        CheckpointRefused: broken offsets, or a head that was pruned by offsets taken for rows.
    """
    tensors = foreign.tensors
    t2d = tensors.pop("t2d", None)
    size = foreign.integer(
        "draft_vocab_size", default=tensors["d2t"].size if "d2t" in tensors else vocab
    )
    if "d2t" not in tensors:
        if size < vocab:
            raise CheckpointRefused(
                f"draft_vocab_size is {size} of {vocab}, but the checkpoint has no tensor d2t"
            )
        return size
    if not mx.issubdtype(tensors["d2t"].dtype, mx.integer):
        raise CheckpointRefused(f"d2t holds {tensors['d2t'].dtype}, but must hold whole numbers")
    offsets = np.array(tensors["d2t"]).astype(np.int64)
    if size < 1 or offsets.shape != (size,):
        raise CheckpointRefused(f"d2t has the shape {list(offsets.shape)}, but must be [{size}]")
    ids = np.arange(size) + offsets
    if offsets.min() < 0 or (np.diff(ids) <= 0).any() or ids.max() >= vocab:
        raise CheckpointRefused(
            f"d2t must hold offsets whose target ids ascend from 0 to below {vocab}; it does not"
        )
    if t2d is not None:
        used = np.zeros(vocab, dtype=bool)
        used[ids] = True
        if t2d.shape != (vocab,) or (np.array(t2d).astype(bool) != used).any():
            raise CheckpointRefused("t2d does not mark the target ids that d2t leads to")
    _check_pruned_head(tensors, offsets)
    if size == vocab:
        del tensors["d2t"]
    else:
        tensors["d2t"] = mx.array(offsets.astype(np.int32))
    return size


def _check_pruned_head(tensors: dict[str, mx.array], offsets: np.ndarray) -> None:
    """AngelSpec's exporter once took offsets for row numbers, so equal offsets gave equal rows."""
    if "lm_head.weight" not in tensors:
        return
    repeated = np.flatnonzero(np.diff(offsets) == 0)
    head = tensors["lm_head.weight"]
    if head.ndim != 2 or head.shape[0] != len(offsets) or not len(repeated):
        return
    first, second = head[mx.array(repeated)], head[mx.array(repeated + 1)]
    if bool(mx.all(first == second)):
        raise CheckpointRefused(
            "lm_head.weight was pruned with d2t's offsets taken for row numbers, so rows are "
            "repeated; this file cannot be repaired, the drafter must be exported again"
        )


def _taps(foreign: Foreign) -> tuple[tuple[int, ...], int | None]:
    count = foreign.target_layers(foreign.config.get("num_target_layers"))
    nested = foreign.config.get("eagle_config")
    nested = nested if isinstance(nested, dict) else {}
    config = foreign.config
    # The same key counts outputs where it is nested and inputs at top level.
    given = foreign.taps(
        (
            (
                nested.get("eagle_aux_hidden_state_layer_ids"),
                "eagle_aux_hidden_state_layer_ids",
                "outputs",
            ),
            (nested.get("layer_ids"), "layer_ids", "outputs"),
            (config.get("target_layer_ids"), "target_layer_ids", "outputs"),
            (config.get(top := "eagle_aux_hidden_state_layer_ids"), top, "inputs"),
            (config.get(top := "aux_hidden_state_layer_ids"), top, "inputs"),
        ),
        count,
    )
    if given is not None:
        return given, count
    if count is None:
        raise CheckpointRefused(
            "config.json has no eagle_aux_hidden_state_layer_ids, and the usual layers depend on the "
            "target, which is not known; give the target (--target)"
        )
    return check_taps([1, count // 2 - 1, count - 4], "the usual layers", count), count


def _theta(foreign: Foreign, dialect: str) -> float | None:
    """AngelSpec's linear, dynamic and mrope positions drop rope_theta; heads were trained with 10000."""
    scaling = foreign.geometry.get("rope_scaling")
    if dialect == "angelspec" and isinstance(scaling, dict):
        kind = scaling.get("rope_type", scaling.get("type"))
        if kind in ("linear", "dynamic", "mrope"):
            foreign.warnings.append(f"rope_theta is ignored under {kind} scaling, as in training")
            return _SHARED_ROPE_BASE
    return None


def _norm_before_residual(foreign: Foreign, dialect: str) -> bool:
    if foreign.options.norm_before_residual is not None:
        return foreign.options.norm_before_residual
    said = foreign.flag("norm_before_residual")
    if said is None and dialect == "speculators":
        foreign.warnings.append("norm_before_residual is not given; true is assumed, as vLLM does")
        return True
    return bool(said)


def _feed_normed(foreign: Foreign, dialect: str) -> bool:
    """Whether the chain is fed the normed state; SpecForge has the same key for something else."""
    said = bool(foreign.flag("norm_output"))
    if dialect == "speculators":
        return said
    return said and _tap_norm(foreign) == "each"
