"""The chain of EAGLE-3 and MTP: one layer that runs over pairs (token, state), then over its own.

Pair j is the embedding of token j+1 with the target's state at j, at rotary position j; the layer's
output there predicts token j+2. Drafting goes on with the drafts and the layer's own outputs in
place of the target's. Only the newest pair's output is ever needed, so only its query is computed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import mlx.core as mx
import mlx.nn as nn

from localspec.models.base import BaseDrafter
from localspec.models.config import DrafterConfig
from localspec.models.drafter import Draw, Pace, Proposal
from localspec.models.layers import Attention, DecoderLayer, KeyValueCache, LatentAttention

MAX_WIDTH = 16
"""Longest chain: each draft costs a pass, and rarely does any drafter get this far."""


@dataclass(slots=True)
class ChainState:
    """The pairs of one request.

    Attributes:
        position: pairs observed.
        hidden: [B, 1, D], the layer's output at the newest pair, before the final norm.
    """

    cache: KeyValueCache = field(default_factory=KeyValueCache)
    position: int = 0
    hidden: mx.array | None = None

    @property
    def arrays(self) -> list[mx.array]:
        return self.cache.arrays if self.hidden is None else [*self.cache.arrays, self.hidden]

    def can_fork(self, position: int) -> bool:
        return position <= self.position

    def fork(self, position: int) -> ChainState:
        # The output at an older pair is not kept; the next pair brings its own.
        hidden = self.hidden if position == self.position else None
        return ChainState(self.cache.fork(position), position, hidden)


class ChainDrafter(BaseDrafter):
    """Drafts one token after another.

    Args:
        config: with `chain`.
        input_size: of the attention's input; None: the hidden size.
    """

    max_width = MAX_WIDTH

    def __init__(self, config: DrafterConfig, input_size: int | None = None) -> None:
        super().__init__(config)
        assert config.chain is not None
        self.chain = config.chain
        attention: nn.Module
        if config.chain.latent is None:
            attention = Attention(config, input_size, gated=config.chain.gated_attention)
        else:
            attention = LatentAttention(config, config.chain.latent, input_size)
        self.layers = [DecoderLayer(config, attention, config.chain.mixture)]

    def new_state(self) -> ChainState:
        return ChainState()

    def target_states(self, taps: mx.array) -> mx.array:
        """Taps [B, n, T, Dt] -> the states that pair with tokens [B, n, D]."""
        raise NotImplementedError

    def fuse(self, embeddings: mx.array, states: mx.array) -> tuple[mx.array, mx.array]:
        """A pair's halves, [B, n, D] each -> the attention's input [B, n, input], the residual."""
        raise NotImplementedError

    def observe(self, state: ChainState, next_tokens: mx.array, taps: mx.array | None) -> None:
        """Run the layer over the pairs of tokens [B, n] and taps [B, n, T, Dt]."""
        assert taps is not None
        embeddings = self.scaled_embed(next_tokens)
        if self.chain.zero_first_embedding and state.position == 0:
            first = mx.arange(next_tokens.shape[1])[:, None] == 0
            embeddings = mx.where(first, mx.zeros_like(embeddings), embeddings)
        states = self.target_states(taps.astype(self.dtype))
        state.hidden = self._extend(state.cache, embeddings, states, state.position)
        state.position += next_tokens.shape[1]

    def propose(
        self, state: ChainState, anchor: mx.array, width: int, draw: Draw
    ) -> Proposal | None:
        """Draft `width` tokens; none before the first pair was observed."""
        return self._propose(state, anchor, width, draw, None)

    def propose_while(
        self, state: ChainState, anchor: mx.array, width: int, draw: Draw, pace: Pace
    ) -> Proposal | None:
        """As `propose`, up to the first draft that the pace does not want."""
        return self._propose(state, anchor, width, draw, pace)

    def _propose(
        self, state: ChainState, anchor: mx.array, width: int, draw: Draw, pace: Pace | None
    ) -> Proposal | None:
        assert 1 <= width <= self.max_width
        if state.hidden is None:
            return None
        num_rows, hidden = state.cache.num_rows, state.hidden

        def step(index: int, previous: mx.array) -> tuple[mx.array, mx.array | None]:
            nonlocal hidden
            if index:
                fed = self.norm(hidden) if self.chain.feed_normed else hidden
                embeddings = self.scaled_embed(previous[:, None])
                hidden = self._extend(state.cache, embeddings, fed, state.position + index - 1)
            return self.logits(self.norm(hidden))[:, 0], None

        try:
            return self.draft_in_turn(step, anchor, width, draw, pace)
        finally:
            state.cache.crop(num_rows)

    def _extend(
        self, cache: KeyValueCache, embeddings: mx.array, states: mx.array, position: int
    ) -> mx.array:
        """Append pairs from `position`; the layer's output at the last [B, 1, D]."""
        (layer,) = self.layers
        normed, residual = self.fuse(embeddings, states)
        keys, values = cache.append(*layer.self_attn.keys_values(normed, position))
        last = position + normed.shape[1] - 1
        return layer(normed[:, -1:], residual[:, -1:], last, keys, values)
