"""Drafters on one prompt, one after another: what was measured, what it comes to. No Textual in here."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from localspec.tui.engine import PLAIN, Engine, Reply
from localspec.tui.names import spoken
from localspec.tui.race import Lap, conditions
from localspec.tui.settings import Settings
from localspec.tui.turn import in_words

ALL = "all"
"""Stands for every drafter that fits."""

NOTE = "One prompt tells little; `localspec compare` measures on many."
_WARM_TOKENS = 8


@dataclass(slots=True)
class Entry:
    """One drafter.

    Attributes:
        name: the drafter's.
        state: what goes on, in a few words.
        fault: why nothing was measured of it; empty: it was, or will be.
        lap: its run.
    """

    name: str
    state: str = "waits"
    fault: str = ""
    lap: Lap = field(default_factory=Lap)

    @property
    def speed(self) -> float:
        """Tokens a second, so far; 0: there are none."""
        return self.lap.stats.tokens_per_second


class Contest:
    """Plain decoding and drafters, each loaded beside what the chat has, and alone on the machine.

    `run` belongs on a thread; all else may be called, and read, from the screen.

    Args:
        engine: what has the target.
        names: of drafters; ALL: every one that fits.
        messages: as `Engine.reply` takes them.
        settings: how; all run with the same seed.

    Attributes:
        entries: plain decoding first.
        over: whether all have run, or it was cancelled.
    """

    def __init__(
        self,
        engine: Engine,
        names: Sequence[str],
        messages: Sequence[Mapping[str, str]],
        settings: Settings,
    ) -> None:
        self._engine = engine
        self._names = names
        self._messages = messages
        self._settings = conditions(settings)
        self._reply: Reply | None = None
        self._cancelled = threading.Event()
        self.entries = [Entry(PLAIN)]
        self.over = False

    def run(self) -> None:
        """Run all; what goes wrong is told in the entries."""
        try:
            self.entries += [Entry(name) for name in self._rivals()]
        except Exception as error:
            self.entries.append(Entry(ALL, fault=in_words(error)))
        for entry in self.entries:
            if self._cancelled.is_set():
                break
            if entry.fault:
                continue
            try:
                self._measure(entry)
            except Exception as error:
                entry.fault = in_words(error)
        self.over = True

    def cancel(self) -> None:
        """End within one round, or once a drafter is loaded."""
        self._cancelled.set()
        if reply := self._reply:
            reply.cancel()

    def _rivals(self) -> list[str]:
        names: list[str] = []
        for name in self._names:
            names += self._engine.fitting() if name == ALL else [name]
        return [name for name in dict.fromkeys(names) if name != PLAIN]

    def _measure(self, entry: Entry) -> None:
        def say(words: str) -> None:
            entry.state = words

        say("loading")
        engine = self._engine.beside(entry.name, say)
        say("starting")
        # The first run of each kernel compiles.
        warm = replace(self._settings, max_tokens=_WARM_TOKENS)
        self._run(engine, warm, entry, Lap())
        self._run(engine, self._settings, entry, entry.lap)

    def _run(self, engine: Engine, settings: Settings, entry: Entry, lap: Lap) -> None:
        def reading(done: int, total: int) -> None:
            entry.state = f"reading the prompt, {done} of {total} tokens"

        reply = self._reply = engine.reply(self._messages, settings, on_reading=reading)
        if self._cancelled.is_set():
            reply.cancel()
        try:
            for event in reply:
                lap.add(event)
        finally:
            # It holds the drafter in memory.
            self._reply = None


def progress(contest: Contest) -> str:
    """How far it is, in a sentence."""
    entries = list(contest.entries)
    done = sum(bool(entry.fault or entry.lap.ended) for entry in entries[:-1])
    entry = entries[done]
    doing = f"{entry.lap.stats.generated_tokens} tokens" if entry.lap.rounds else entry.state
    return f"{done + 1} of {len(entries)}: {spoken(entry.name)}, {doing}"


def fastest(entries: Sequence[Entry]) -> Entry | None:
    """Of those that ran to their end; None: none did."""
    ran = [entry for entry in entries if entry.lap.ended and entry.speed]
    return max(ran, key=lambda entry: entry.speed, default=None)


def verdict(entries: Sequence[Entry]) -> str:
    """The result in a sentence or two."""
    plain, best = entries[0], fastest(entries)
    ran = [entry for entry in entries if entry.lap.ended and entry.speed]
    if best is None or len(ran) < 2:
        return "There was nothing to compare."
    result = f"Fastest on this prompt: {spoken(best.name)}"
    if best is plain:
        result += " decoding"
    elif plain.speed:
        result += f", {best.speed / plain.speed:.2f}x as fast as plain decoding"
    if len({entry.lap.text for entry in ran}) == 1:
        return f"{result}. All texts are the same, character for character."
    return f"{result}. Not all texts are the same: tokens were nearly tied, or drawn anew."
