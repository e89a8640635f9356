"""DFlare (arXiv 2606.02091; Tencent/AngelSlim): each layer mixes the taps in its own shares."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn

from localspec.models.block import BlockDrafter, mix_taps
from localspec.models.config import DrafterConfig


class Model(BlockDrafter):
    """Context keys and values have projections of their own, from the target's hidden size."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config, context_size=config.target_hidden_size)
        self.layer_fusion_weights = mx.zeros((config.num_layers, len(config.tap_layers)))
        self.hidden_norm = nn.RMSNorm(config.target_hidden_size, eps=config.rms_norm_eps)

    def contexts(self, taps: mx.array) -> Sequence[mx.array]:
        """norm(mix of taps): raw taps are mixed, then normed."""
        mixed = self.hidden_norm(mix_taps(taps, self.layer_fusion_weights))
        return [mixed[:, :, layer] for layer in range(len(self.layers))]
