"""Models as what `localspec.lab.compare` measures."""

from __future__ import annotations

import mlx.core as mx

from localspec.engine.drafters import measured_costs
from localspec.engine.memory import weights
from localspec.engine.metrics import Stats
from localspec.lab.compare import Settings
from localspec.lab.prompts import LabPrompt
from localspec.model import Model


class ModelRunner:
    """A model with its drafter; see `localspec.lab.compare.Runner`."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.costs = measured_costs(model.profile_key)
        self.memory = 0

    def run(self, prompt: LabPrompt, settings: Settings, seed: int, width: int | None) -> Stats:
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        result = self._model.generate(
            prompt.text,
            raw=prompt.raw,
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
            seed=seed,
            width=width,
        )
        # Others' weights, and conversations that are kept, are in memory too.
        taken = max(0, mx.get_peak_memory() - before)
        self.memory = self._model.measure(weights) + taken
        return result.stats
