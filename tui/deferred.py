"""An engine that is made by its first use, on the thread that loads: MLX takes a second to import."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from localspec.tui.engine import Choice, Engine, Loaded, OnReading, Reply, Say
from localspec.tui.settings import Settings


class DeferredEngine:
    """The engine that `make` gives; the screen is there before it is."""

    def __init__(self, make: Callable[[], Engine]) -> None:
        self._make = make

    @cached_property
    def _engine(self) -> Engine:
        return self._make()

    def load(self, target: str, drafter: str, say: Say) -> Loaded:
        return self._engine.load(target, drafter, say)

    def reply(
        self,
        messages: Sequence[Mapping[str, str]],
        settings: Settings,
        *,
        plain: bool = False,
        remember: bool = False,
        on_reading: OnReading | None = None,
    ) -> Reply:
        return self._engine.reply(
            messages, settings, plain=plain, remember=remember, on_reading=on_reading
        )

    def targets(self) -> list[Choice]:
        return self._engine.targets()

    def drafters(self, target: str) -> list[Choice]:
        return self._engine.drafters(target)

    def fitting(self) -> list[str]:
        return self._engine.fitting()

    def beside(self, drafter: str, say: Say) -> Engine:
        return self._engine.beside(drafter, say)

    def memory(self) -> int:
        return self._engine.memory()
