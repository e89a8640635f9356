"""A new drafter for a target: its configuration, and weights to start from.

Layers start as the target's own last ones, and projections so that they pass the last tap through:
the drafter then begins near what the target computes, which saves most of the early steps. The heads of
a block drafter start by looking a few places back (`_look_back`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from localspec.engine.target import Target
from localspec.models.block import BlockDrafter
from localspec.models.chain import ChainDrafter
from localspec.models.config import (
    Architecture,
    BlockConfig,
    ChainConfig,
    ConfidenceConfig,
    DrafterConfig,
    LayerConfig,
    MarkovConfig,
    RopeConfig,
)
from localspec.models.load import build
from localspec.train.vocabulary import Vocabulary

REDUCED_VOCABULARY = 8192
"""Rows of a new EAGLE-3 head: what it has no row for it cannot draft."""

LOSS_VOCABULARY = 4096
"""Tokens that the other losses run over; of the text of a small target they are some 95 %."""

_SMALL_TARGET = 1024
_MARKOV_RANK = 16
_NOISE = 0.02

_DISTANCES = (1, 2, 3, 1, 2, 4, 1, 2, 5)
_SHARPNESS = 3.0
_SLOWEST = 0.003


@dataclass(frozen=True, slots=True)
class Shape:
    """What a drafter of a target looks like; defaults come from the target's size.

    Attributes:
        num_layers: of a block drafter.
        width: most drafts a round.
    """

    num_layers: int
    width: int


def default_shape(architecture: Architecture, target: Target) -> Shape:
    """Two layers for small targets, five for others; six drafts a block, or a chain of four."""
    if architecture in ("eagle3", "mtp"):
        return Shape(1, 4)
    return Shape(2 if target.hidden_size < _SMALL_TARGET else 5, 6)


def default_taps(target: Target) -> tuple[int, ...]:
    """Layers from the second to the third-last, evenly (DFlash): three of a small target, else five."""
    last = max(target.num_layers - 3, 0)
    count = min(3 if target.hidden_size < _SMALL_TARGET else 5, last + 1)
    first = min(1, last)
    return tuple(sorted({round(x) for x in np.linspace(first, last, count).tolist()}))


def new_config(
    architecture: Architecture,
    target: Target,
    settings: Mapping[str, Any],
    shape: Shape,
    *,
    mask_token_id: int,
    draft_vocab_size: int,
) -> DrafterConfig:
    """The configuration of a new drafter.

    Args:
        settings: the target's config.json, for the geometry of its layers.
        mask_token_id: fills the slots after the anchor.
        draft_vocab_size: of EAGLE-3's reduced head.
    """
    text = {**settings, **settings.get("text_config", {})}
    size = target.hidden_size
    num_heads = int(text.get("num_attention_heads") or max(1, size // 64))
    rope = text.get("rope_parameters") or {}
    head_dim = int(text.get("head_dim") or size // num_heads)
    chained = architecture in ("eagle3", "mtp")
    reduced = architecture == "eagle3" and draft_vocab_size < target.vocab_size
    return DrafterConfig(
        architecture=architecture,
        hidden_size=size,
        intermediate_size=int(text.get("intermediate_size") or 4 * size),
        num_layers=shape.num_layers,
        num_heads=num_heads,
        num_kv_heads=int(text.get("num_key_value_heads") or num_heads),
        head_dim=head_dim,
        rms_norm_eps=float(text.get("rms_norm_eps") or 1e-6),
        rope=RopeConfig(
            theta=float(text.get("rope_theta") or rope.get("rope_theta") or 10000.0),
            dims=head_dim,
        ),
        vocab_size=target.vocab_size,
        draft_vocab_size=draft_vocab_size if reduced else target.vocab_size,
        target_hidden_size=size,
        target_layers=target.num_layers,
        tap_layers=() if architecture == "mtp" else default_taps(target),
        own_head=reduced,
        qkv_bias=not chained,
        block=None if chained else _block(architecture, shape, size, mask_token_id),
        chain=ChainConfig(feed_normed=architecture == "mtp") if chained else None,
    )


def _block(architecture: Architecture, shape: Shape, size: int, mask_token_id: int) -> BlockConfig:
    every = architecture == "dspark"
    return BlockConfig(
        block_size=shape.width + (not every),
        layout="every_slot_predicts" if every else "anchor_slot_unused",
        mask_token_id=mask_token_id,
        layers=(LayerConfig(),) * shape.num_layers,
        markov=MarkovConfig("vanilla", _MARKOV_RANK) if every else None,
        confidence=ConfidenceConfig(with_markov=True, bias=True) if every else None,
        correction_size=size if architecture == "dfly" else None,
    )


def new_drafter(
    config: DrafterConfig, target: Target, vocabulary: Vocabulary, seed: int
) -> BlockDrafter | ChainDrafter:
    """A drafter bound to its target, with weights to start from, in float32."""
    key = mx.random.key(seed)
    drafter = build(config)
    drafter.bind(target)
    drafter.set_dtype(mx.float32)
    weights: dict[str, mx.array] = dict(tree_flatten(drafter.parameters()))
    _randomise(weights, key)
    source = _target_weights(target)
    first = target.num_layers - config.num_layers
    for name, weight in weights.items():
        blocks_heads = config.block is not None and name.endswith(_QUERIES_AND_KEYS)
        copied = None if blocks_heads else source(name, first)
        if copied is not None and copied.shape == weight.shape:
            weights[name] = copied
    _pass_through(config, weights, source, first)
    if config.block is not None:
        _look_back(config, weights)
    if config.own_head:
        ids = vocabulary.ids
        weights["d2t"] = ids - mx.arange(ids.size)
        # The head's rows of the reduced vocabulary are the target's, to start with.
        weights["lm_head.weight"] = vocabulary.logits(mx.eye(config.hidden_size)).T
    drafter.load_weights(list(weights.items()))
    mx.eval(drafter.parameters())
    return drafter


def _randomise(weights: dict[str, mx.array], key: mx.array) -> None:
    for number, (name, weight) in enumerate(sorted(weights.items())):
        if weight.ndim == 2 and name != "layer_fusion_weights":
            part = mx.random.split(key, number + 2)[number]
            weights[name] = mx.random.normal(weight.shape, scale=_NOISE, key=part)
    silent = ("markov_head.markov_w2.weight", "hidden_correction.down_proj.weight")
    for name, weight in weights.items():
        if name.endswith(".bias") or name in silent:
            weights[name] = mx.zeros_like(weight)


_QUERIES_AND_KEYS = tuple(f"{part}_proj.{leaf}" for part in "qk" for leaf in ("weight", "bias"))


def _look_back(config: DrafterConfig, weights: dict[str, mx.array]) -> None:
    """Biases with which each head attends to the place a fixed distance before it.

    The masks of a block must find the anchor and the last states before it. Heads copied from the target
    look at what masks never ask for, and learning where to look takes most of a short training; with
    these, a block drafter's first drafts are right three times as often after the same 60,000 drafts.
    A key is the same vector c everywhere, turned by its rotary angle; a query is c turned back by the
    distance d, so a score is the sum over frequencies f of |c_f|^2 cos((i - j - d) f).
    """
    dims = config.rope.dims
    frequencies = config.rope.theta ** (-np.arange(0, dims, 2) / dims)
    # Slow frequencies tell near places from each other no better than not at all.
    sizes = np.sqrt(_SHARPNESS * np.sqrt(config.head_dim)) * (frequencies > _SLOWEST)
    rest = np.zeros(config.head_dim - dims)
    key = np.concatenate([sizes, 0 * sizes, rest])
    queries = [
        np.concatenate([sizes * np.cos(d * frequencies), -sizes * np.sin(d * frequencies), rest])
        for d in (_DISTANCES[head % len(_DISTANCES)] for head in range(config.num_heads))
    ]
    biases = {
        "q_proj": np.concatenate(queries),
        "k_proj": np.tile(key, config.num_kv_heads),
        "k_proj_target": np.tile(key, config.num_kv_heads),
    }
    for layer in range(config.num_layers):
        for name, bias in biases.items():
            path = f"layers.{layer}.self_attn.{name}.bias"
            if path in weights:
                weights[path] = mx.array(bias, dtype=mx.float32)


Source = Callable[[str, int], mx.array | None]


def _target_weights(target: Target) -> Source:
    """A look-up of the target's weights by the drafter's name, `first` its first copied layer."""
    modules = dict(target.model.named_modules())
    root = next((n[: -len("layers.0")] for n in modules if n.endswith("layers.0")), "")

    def find(name: str, first: int) -> mx.array | None:
        path, _, leaf = name.rpartition(".")
        if path.startswith("layers."):
            _, number, rest = path.split(".", 2)
            path = f"layers.{first + int(number)}.{rest}"
        elif path != "norm":
            return None
        module = modules.get(root + path)
        if module is None or leaf not in module:
            return None
        if isinstance(module, nn.QuantizedLinear):
            return mx.dequantize(
                module.weight,
                module.scales,
                module.get("biases"),
                group_size=module.group_size,
                bits=module.bits,
                mode=module.mode,
                dtype=mx.float32,
            )
        weight: mx.array = module[leaf]
        return weight.astype(mx.float32)

    return find


def _pass_through(
    config: DrafterConfig, weights: dict[str, mx.array], source: Source, first: int
) -> None:
    """Projections that hand on the last tap, normed as the first copied layer norms its input."""
    size, eye = config.hidden_size, mx.eye(config.hidden_size)
    norm = source("layers.0.input_layernorm.weight", first)
    if "fc.weight" in weights:
        weights["fc.weight"] = mx.concatenate([weights["fc.weight"][:, :-size], eye], axis=1)
    if norm is not None and norm.shape == (size,):
        for name in ("hidden_norm.weight", "layers.0.hidden_norm.weight"):
            if name in weights:
                weights[name] = norm
    if "layer_fusion_weights" in weights:
        last = mx.arange(len(config.tap_layers)) == len(config.tap_layers) - 1
        weights["layer_fusion_weights"] = mx.broadcast_to(
            mx.where(last, 2.0, 0.0), weights["layer_fusion_weights"].shape
        )
    for layer in range(config.num_layers):
        for kind in ("k", "v"):
            own = f"layers.{layer}.self_attn.{kind}_proj_target.weight"
            if own in weights:
                weights[own] = weights[f"layers.{layer}.self_attn.{kind}_proj.weight"]
    if config.architecture == "eagle3":
        weights["layers.0.input_layernorm.weight"] = mx.ones(size)
        for kind in ("q", "k", "v"):
            name = f"layers.0.self_attn.{kind}_proj.weight"
            its = source(name, first)
            if its is not None and its.shape == (weights[name].shape[0], size):
                weights[name] = mx.concatenate([weights[name][:, :size], its], axis=1)
    if config.architecture == "mtp":
        weights["eh_proj.weight"] = mx.concatenate(
            [weights["eh_proj.weight"][:, :size], eye], axis=1
        )
