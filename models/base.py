"""What all six drafters share: sizes checked against the target, embedding, head, and drawing.

A drafter here is an `nn.Module` that keeps to `localspec.models.drafter.Drafter`.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn

from localspec.errors import DrafterMismatch
from localspec.models.config import DrafterConfig
from localspec.models.drafter import Draw, Pace, Proposal, TargetView

Step = Callable[[int, mx.array], tuple[mx.array, mx.array | None]]
"""Draft k, from k and the token before it [B]: logits [B, Vd], and confidence [B] if it has one."""


def check_fit(
    config: DrafterConfig, hidden_size: int, vocab_size: int, num_layers: int | None
) -> None:
    """Whether a drafter was made for a target of these sizes; None: not known.

    Raises:
        DrafterMismatch: it was not.
    """
    for name, mine, its in (
        ("hidden_size", config.target_hidden_size, hidden_size),
        ("vocab_size", config.vocab_size, vocab_size),
        ("number of layers", config.target_layers or num_layers, num_layers),
    ):
        if its is not None and mine != its:
            raise DrafterMismatch(
                f"the drafter was made for a target whose {name} is {mine}, but this target's is {its}"
            )


class BaseDrafter(nn.Module):
    """Embedding, head and vocabulary, the drafter's own or the target's.

    Args:
        config: of this drafter.
    """

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        if config.own_embedding:
            self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        if config.own_head:
            self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self._reduced = config.draft_vocab_size < config.vocab_size
        if self._reduced:
            self.d2t = mx.zeros((config.draft_vocab_size,), dtype=mx.int32)
            self.freeze(recurse=False, keys=["d2t"])

    @property
    def dtype(self) -> mx.Dtype:
        """Of the drafter's computation; what the target hands over is cast to it."""
        return self.norm.weight.dtype

    @property
    def tap_layers(self) -> tuple[int, ...]:
        return self.config.tap_layers

    def bind(self, target: TargetView) -> None:
        """Share the target's embedding and head.

        Raises:
            DrafterMismatch: sizes differ, or a tap is not before the target's last layer.
        """
        config = self.config
        check_fit(config, target.hidden_size, target.vocab_size, target.num_layers)
        for tap in config.tap_layers:
            if tap >= target.num_layers - 1:
                raise DrafterMismatch(
                    f"the drafter taps layer {tap}, but taps must lie before the last of the "
                    f"target's {target.num_layers} layers"
                )
        # Methods, not the target: a module held here would count as a part of the drafter.
        self._target_embed, self._target_head = target.embed, target.head
        self._target_dtype = target.embed(mx.zeros((1, 1), dtype=mx.int32)).dtype

    def embed(self, tokens: mx.array) -> mx.array:
        """Rows of the embedding table, unscaled: [..] int -> [.., D]."""
        rows = (
            self.embed_tokens(tokens) if self.config.own_embedding else self._target_embed(tokens)
        )
        return rows.astype(self.dtype)

    def scaled_embed(self, tokens: mx.array) -> mx.array:
        """Embeddings as they enter the layers."""
        rows = self.embed(tokens)
        return rows if self.config.embedding_scale == 1.0 else rows * self.config.embedding_scale

    def logits(self, hidden: mx.array) -> mx.array:
        """States after the final norm [B, n, D] -> [B, n, Vd]."""
        config = self.config
        if not config.own_head:
            return self._target_head(hidden.astype(self._target_dtype))
        logits = self.lm_head(hidden)
        if config.logit_scale != 1.0:
            logits = logits * config.logit_scale
        if config.logit_softcap is not None:
            logits = mx.tanh(logits / config.logit_softcap) * config.logit_softcap
        return logits

    def draft_together(self, logits: mx.array, draw: Draw) -> Proposal:
        """Drafts that do not depend on each other, from logits [B, w, Vd]."""
        drawn, q = draw(logits)
        return Proposal(self._target_ids(drawn), self._spread(q), top_probability(logits))

    def draft_in_turn(
        self, step: Step, anchor: mx.array, width: int, draw: Draw, pace: Pace | None = None
    ) -> Proposal | None:
        """Drafts that depend on the one before. Without a pace, which reads confidences, nothing is
        read back: it is all one lazy graph."""
        previous = anchor
        tokens, qs, confidences = [], [], []
        for index in range(width):
            if index and pace is not None and not pace.wants_more():
                break
            logits, confidence = step(index, previous)
            confidence = top_probability(logits) if confidence is None else confidence
            # Before the draft is drawn, so that its own luck cannot decide.
            if pace is not None and not pace.wants(confidence):
                break
            drawn, q = draw(logits)
            previous = self._target_ids(drawn)
            tokens.append(previous)
            qs.append(self._spread(q))
            confidences.append(confidence)
        if not tokens:
            return None
        certain = any(q is None for q in qs)
        return Proposal(
            mx.stack(tokens, axis=1),
            None if certain else mx.stack([q for q in qs if q is not None], axis=1),
            mx.stack(confidences, axis=1),
        )

    def _target_ids(self, drawn: mx.array) -> mx.array:
        """Ids of the draft vocabulary to ids of the target's."""
        return (drawn + self.d2t[drawn] if self._reduced else drawn).astype(mx.int32)

    def _spread(self, q: mx.array | None) -> mx.array | None:
        """A distribution over the draft vocabulary [.., Vd] as one over the target's [.., V]."""
        if q is None or not self._reduced:
            return q
        spread = mx.zeros((*q.shape[:-1], self.config.vocab_size), dtype=q.dtype)
        spread[..., self._target_ids(mx.arange(q.shape[-1]))] = q
        return spread


def top_probability(logits: mx.array) -> mx.array:
    """The likeliest token's probability at temperature 1: [.., Vd] -> [..], float32."""
    logits = logits.astype(mx.float32)
    return mx.exp(mx.max(logits, axis=-1) - mx.logsumexp(logits, axis=-1))
