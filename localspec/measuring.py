"""Models as what `localspec.lab.compare` measures."""

from __future__ import annotations

import mlx.core as mx

from localspec.engine.costs import CostTable
from localspec.engine.metrics import Stats
from localspec.lab.compare import Settings
from localspec.lab.prompts import LabPrompt
from localspec.model import Model


class ModelRunner:
    """A model with its drafter; see `localspec.lab.compare.Runner`."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def run(self, prompt: LabPrompt, settings: Settings, seed: int, width: int | None) -> Stats:
        result = self._model.generate(
            prompt.text,
            raw=prompt.raw,
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
            seed=seed,
            width=width,
        )
        return result.stats

    def peak(self) -> int:
        peak = mx.get_peak_memory()
        mx.reset_peak_memory()
        return int(peak)

    @property
    def costs(self) -> CostTable | None:
        return self._model.profiled_costs
