"""Targets in memory, shared by every model on the same files, and the thread on which they live."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localspec.engine.drafters import Chosen, make_drafter
from localspec.engine.loading import load_target
from localspec.engine.machine import memory
from localspec.engine.memory import room
from localspec.engine.prefixes import PrefixCache
from localspec.engine.target import Target
from localspec.engine.worker import Worker
from localspec.models.drafter import Drafter
from localspec.text.tokenizer import load_tokenizer

_PREFIX_SHARE = 1 / 8
"""Of the machine's memory, for conversations kept to go on from."""

worker = Worker()
"""All work with MLX is done on its thread."""


@dataclass(slots=True)
class SharedTarget:
    """A target in memory and what was said on it.

    Attributes:
        users: models that hold it.
        encoding: held while the tokenizer is used.
    """

    target: Target
    tokenizer: Any
    prefixes: PrefixCache
    users: int = 0
    encoding: threading.Lock = field(default_factory=threading.Lock)
    _grammar_tokenizer: Any = None

    def grammar_tokenizer(self, stop_ids: Collection[int]) -> Any:
        """llguidance's view of the tokenizer; made once, since it takes a second."""
        from llguidance.hf import from_tokenizer

        with self.encoding:
            if self._grammar_tokenizer is None:
                self._grammar_tokenizer = from_tokenizer(
                    self.tokenizer._tokenizer,
                    n_vocab=self.target.vocab_size,
                    eos_token=sorted(stop_ids),
                )
        return self._grammar_tokenizer


_loaded: dict[Path, SharedTarget] = {}


def acquire(
    name: str, folder: Path, drafter: str, notify: Callable[[str], None] | None
) -> tuple[SharedTarget, Chosen]:
    """Take one user's hold on a target, with a drafter for it; on the engine thread, like `release`."""
    loaded = _loaded.get(folder) or SharedTarget(
        load_target(folder),
        load_tokenizer(folder),
        PrefixCache(int(_PREFIX_SHARE * memory())),
    )
    chosen = make_drafter(drafter, loaded.target, model=name, folder=folder, notify=notify)
    _loaded[folder] = loaded
    loaded.users += 1
    return loaded, chosen


def release(folder: Path, drafter: Drafter | None) -> None:
    """Let go of a target, which the last user frees, and of the drafter."""
    loaded = _loaded[folder]
    loaded.users -= 1
    if drafter is not None:
        loaded.prefixes.let_go(drafter)
    if not loaded.users:
        del _loaded[folder]


def memory_room() -> int:
    """Bytes of memory that generations may take together, conversations kept to go on from included."""
    return worker.call(room)
