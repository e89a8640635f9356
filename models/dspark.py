"""DSpark (deepseek-ai/DeepSpec): DFlash's backbone, a Markov bias, a confidence for each draft."""

from __future__ import annotations

import mlx.core as mx

from localspec.models import dflash
from localspec.models.config import DrafterConfig
from localspec.models.drafter import Draw, Proposal
from localspec.models.heads import ConfidenceHead, MarkovHead


class Model(dflash.Model):
    """Draws from left to right: the bias and the confidence read the token before."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        if self.block.markov:
            self.markov_head = MarkovHead(config, self.block.markov)
        if self.block.confidence:
            self.confidence_head = ConfidenceHead(config, self.block.confidence)

    def draft(self, hidden: mx.array, anchor: mx.array, draw: Draw) -> Proposal | None:
        """Logits of a slot plus the bias; the confidence does not depend on the draft it is for."""
        base = self.logits(hidden)  # [B, w, Vd]
        memory: mx.array | None = None

        def step(index: int, previous: mx.array) -> tuple[mx.array, mx.array | None]:
            nonlocal memory
            logits, state, embedding = base[:, index], hidden[:, index], None
            if self.block.markov:
                embedding = self.markov_head.markov_w1(previous)
                bias, memory = self.markov_head(state, embedding, memory)
                logits = logits + bias
            if not self.block.confidence:
                return logits, None
            return logits, self.confidence_head(state, embedding)

        return self.draft_in_turn(step, anchor, hidden.shape[1], draw)
