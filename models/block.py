"""The backbone of DFlash, DFlare, DSpark and DFly: a block of masks that looks at tapped states.

A block [anchor, mask, ...] at positions p, p+1, ... attends to the context, keys and values that
come from the target's states at positions 0..p-1, and to itself (z-lab/dflash `dflash/model.py`).
The context's are computed once and cached; the block's own are never kept. The architectures say
what they do differently: how taps become context, and how drafts come from the predicting slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from localspec.models.base import BaseDrafter
from localspec.models.config import DrafterConfig, LayerConfig
from localspec.models.drafter import Draw, Proposal
from localspec.models.layers import Attention, DecoderLayer, KeyValueCache, Mask


@dataclass(slots=True)
class BlockState:
    """The context of one request: a cache for each layer, and how many positions were observed."""

    caches: list[KeyValueCache]
    position: int = 0

    @property
    def arrays(self) -> list[mx.array]:
        return [array for cache in self.caches for array in cache.arrays]

    def can_fork(self, position: int) -> bool:
        return all(
            cache.can_fork(cache.num_rows - (self.position - position), self._num_dropped(cache))
            for cache in self.caches
        )

    def fork(self, position: int) -> BlockState:
        cut = self.position - position
        return BlockState([cache.fork(cache.num_rows - cut) for cache in self.caches], position)

    def _num_dropped(self, cache: KeyValueCache) -> int:
        return self.position - cache.num_rows


class BlockDrafter(BaseDrafter):
    """Drafts a whole block in one pass.

    Args:
        config: with `block`.
        context_size: context keys and values have projections of their own, from this size.
    """

    def __init__(self, config: DrafterConfig, context_size: int | None = None) -> None:
        super().__init__(config)
        assert config.block is not None
        self.block = config.block
        self.layers = [
            DecoderLayer(config, Attention(config, context_size=context_size))
            for _ in range(config.num_layers)
        ]

    @property
    def max_width(self) -> int:
        return self.block.num_drafts

    def new_state(self) -> BlockState:
        return BlockState(
            [
                KeyValueCache(None if layer.window is None else layer.window - 1)
                for layer in self.block.layers
            ]
        )

    def contexts(self, taps: mx.array) -> Sequence[mx.array]:
        """Taps [B, n, T, Dt] -> for each layer, what its context keys and values come from."""
        raise NotImplementedError

    def draft(self, hidden: mx.array, anchor: mx.array, draw: Draw) -> Proposal | None:
        """States after the final norm of the w predicting slots [B, w, D] -> w drafts."""
        return self.draft_together(self.logits(hidden), draw)

    def observe(self, state: BlockState, next_tokens: mx.array, taps: mx.array | None) -> None:
        """Append the context of positions [B, n] from their taps [B, n, T, Dt]."""
        assert taps is not None
        contexts = self.contexts(taps.astype(self.dtype))
        for layer, cache, context in zip(self.layers, state.caches, contexts, strict=True):
            cache.append(*layer.self_attn.context_keys_values(context, state.position))
        state.position += next_tokens.shape[1]

    def propose(
        self, state: BlockState, anchor: mx.array, width: int, draw: Draw
    ) -> Proposal | None:
        """Draft `width` tokens; a block of fewer slots than in training where that is enough."""
        assert 1 <= width <= self.max_width
        first = int(self.block.layout == "anchor_slot_unused")
        num_slots = first + width
        masks = mx.full((anchor.shape[0], num_slots - 1), self.block.mask_token_id, dtype=mx.int32)
        x = self.scaled_embed(mx.concatenate([anchor[:, None], masks], axis=1))  # [B, slots, D]
        for layer, cache, kind in zip(self.layers, state.caches, self.block.layers, strict=True):
            normed = layer.input_layernorm(x)
            keys, values = cache.extended(*layer.self_attn.keys_values(normed, state.position))
            mask = visible(kind, num_slots, keys.shape[2])
            x = layer(normed, x, state.position, keys, values, mask)
        return self.draft(self.norm(x[:, first:]), anchor, draw)


def visible(kind: LayerConfig, num_slots: int, num_keys: int) -> Mask:
    """Which of the keys, the block's own last, a slot sees.

    A slot sees all of the context within its window, and all of the block, or what precedes it in a
    causal layer. Both ways the window counts (z-lab/dflash `_attention_mask`).
    """
    if kind.window is None or num_keys <= kind.window:
        return "causal" if kind.causal else None
    distance = mx.arange(num_keys - num_slots, num_keys)[:, None] - mx.arange(num_keys)[None]
    ahead = 0 if kind.causal else kind.window - 1
    return (distance < kind.window) & (distance >= -ahead)


def flatten_taps(taps: mx.array) -> mx.array:
    """[B, n, T, Dt] -> [B, n, T*Dt], in the order of `tap_layers`."""
    return taps.reshape(*taps.shape[:2], -1)


def mix_taps(taps: mx.array, weights: mx.array) -> mx.array:
    """Each layer's own mean of the taps: [B, n, T, Dt], [layers, T] -> [B, n, layers, Dt].

    A row of weights goes through a softmax over the taps (DFlare, arXiv 2606.02091).
    """
    shares = mx.softmax(weights.astype(mx.float32), axis=-1).astype(taps.dtype)
    return shares @ taps
