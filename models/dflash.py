"""DFlash (z-lab/dflash): one projection of all taps is the context of every layer."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn

from localspec.models.block import BlockDrafter, flatten_taps
from localspec.models.config import DrafterConfig


class Model(BlockDrafter):
    """Draws all drafts at once, independent of each other."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        size = config.hidden_size
        self.fc = nn.Linear(len(config.tap_layers) * config.target_hidden_size, size, bias=False)
        self.hidden_norm = nn.RMSNorm(size, eps=config.rms_norm_eps)

    def contexts(self, taps: mx.array) -> Sequence[mx.array]:
        """norm(fc(taps)), the same for every layer."""
        return [self.hidden_norm(self.fc(flatten_taps(taps)))] * len(self.layers)
