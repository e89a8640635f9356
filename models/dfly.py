"""DFly (Tencent/AngelSpec): DFlash's projection plus DFlare's mix, and a hidden correction."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from localspec.models import dflash
from localspec.models.block import flatten_taps, mix_taps
from localspec.models.config import DrafterConfig
from localspec.models.drafter import Draw, Proposal
from localspec.models.heads import HiddenCorrection


class Model(dflash.Model):
    """Draws from left to right: the token before corrects the state that logits come from."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        assert self.block.correction_size is not None
        self.layer_fusion_weights = mx.zeros((config.num_layers, len(config.tap_layers)))
        self.hidden_correction = HiddenCorrection(config, self.block.correction_size)

    def contexts(self, taps: mx.array) -> Sequence[mx.array]:
        """norm(fc(taps) + mix of taps): the projection is shared, the mix each layer's own."""
        mixed = mix_taps(taps, self.layer_fusion_weights)  # [B, n, layers, D]
        mixed = self.hidden_norm(self.fc(flatten_taps(taps))[:, :, None] + mixed)
        return [mixed[:, :, layer] for layer in range(len(self.layers))]

    def draft(self, hidden: mx.array, anchor: mx.array, draw: Draw) -> Proposal | None:
        """The head reads each slot's state after its correction."""

        def step(index: int, previous: mx.array) -> tuple[mx.array, mx.array | None]:
            state = self.hidden_correction(hidden[:, index], self.embed(previous))
            return self.logits(state[:, None])[:, 0], None

        return self.draft_in_turn(step, anchor, hidden.shape[1], draw)
