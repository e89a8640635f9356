"""An engine for the chat's tests: it says what it is told to, at the pace it is told to."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from localspec.engine.metrics import Stats
from localspec.errors import ContextOverflow, DrafterMismatch, LocalspecError
from localspec.tui.engine import (
    PLAIN,
    Choice,
    Ended,
    Event,
    Loaded,
    OnReading,
    Origin,
    Round,
    Say,
    Token,
)
from localspec.tui.settings import Settings

PLAIN_SPEED = 20.0
"""Tokens a second that the script claims for plain decoding."""


@dataclass
class Script:
    """A reply.

    Attributes:
        text: what is said, a word a token.
        thinking: what is thought before.
        pattern: accepted drafts of each round of `width`, again and again.
        width: drafts that each round asks for; 0: plain steps.
        arms: the drafter that plays each round, the last one on; empty: there is but one.
        gated: whether each round waits for `ScriptedEngine.allow`.
        error: raised after `fail_after` rounds.
    """

    text: str = "Hello from the script."
    thinking: str = ""
    pattern: Sequence[int] = (3, 0, 2)
    width: int = 3
    arms: Sequence[str] = ()
    gated: bool = False
    error: Exception | None = None
    fail_after: int = 0


@dataclass
class ScriptedEngine:
    """Replies with the scripts one by one, the last again and again.

    Attributes:
        scripts: what it says.
        requests: messages and settings of every reply that was asked for, measurements apart.
        num_measurements: replies asked for to measure the plain speed.
        remembered: the last messages of requests that are to be remembered.
        may_load: what loading waits for; set at first.
        rivals: what other drafters say, by name; those that fit.
        beside_it: the engines that were made for them.
    """

    scripts: list[Script] = field(default_factory=lambda: [Script()])
    context_length: int = 8192
    can_switch_thinking: bool = True
    requests: list[tuple[list[dict[str, str]], Settings]] = field(default_factory=list)
    loads: list[tuple[str, str]] = field(default_factory=list)
    num_cancelled: int = 0
    num_measurements: int = 0
    remembered: list[str] = field(default_factory=list)
    may_load: threading.Event = field(default_factory=threading.Event)
    rivals: dict[str, Script] = field(default_factory=dict)
    beside_it: dict[str, ScriptedEngine] = field(default_factory=dict)

    _gate: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def __post_init__(self) -> None:
        self.may_load.set()

    def allow(self, num_rounds: int) -> None:
        """Let a gated reply go on for so many rounds."""
        self._gate.release(num_rounds)

    def load(self, target: str, drafter: str, say: Say) -> Loaded:
        say(f"importing {target} (once)")
        self.may_load.wait()
        if target == "broken":
            raise LocalspecError("'broken' cannot be loaded: it has no config.json")
        self.loads.append((target, drafter))
        return Loaded(target, drafter, self.context_length, self.can_switch_thinking)

    def reply(
        self,
        messages: Sequence[Mapping[str, str]],
        settings: Settings,
        *,
        plain: bool = False,
        remember: bool = False,
        on_reading: OnReading | None = None,
    ) -> ScriptedReply:
        prompt_tokens = sum(len(message["content"].split()) for message in messages)
        if prompt_tokens >= self.context_length:
            raise ContextOverflow(prompt_tokens, self.context_length)
        if remember:
            self.remembered.append(messages[-1]["content"])
        if plain and "bicycle" in messages[-1]["content"]:
            self.num_measurements += 1
            return ScriptedReply(self, Script("plain " * 8, pattern=(0,), width=0), prompt_tokens)
        self.requests.append(([dict(message) for message in messages], settings))
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        if plain:
            script = replace(script, pattern=(0,), width=0)
        if on_reading:
            on_reading(prompt_tokens, prompt_tokens)
        return ScriptedReply(self, script, prompt_tokens)

    def targets(self) -> list[Choice]:
        return [Choice("smollm2-135m", "102 MB"), Choice("other/model-4bit", "2.10 GB")]

    def drafters(self, target: str) -> list[Choice]:
        return [
            Choice("auto", "the best there is"),
            Choice("none", "plain"),
            Choice("dfly", "3 MB"),
        ]

    def fitting(self) -> list[str]:
        return [name for name in self.rivals if name != PLAIN]

    def beside(self, drafter: str, say: Say) -> ScriptedEngine:
        say(f"importing {drafter} (once)")
        self.may_load.wait()
        if drafter not in self.rivals:
            raise DrafterMismatch(f"{drafter} was made for another target")
        other = ScriptedEngine([self.rivals[drafter]], self.context_length)
        # One gate for all.
        other._gate = self._gate
        self.beside_it[drafter] = other
        return other

    def memory(self) -> int:
        return 700_000_000


class ScriptedReply:
    """One reply; its figures are those of a machine that decodes plainly at PLAIN_SPEED."""

    def __init__(self, engine: ScriptedEngine, script: Script, prompt_tokens: int) -> None:
        self._engine = engine
        self._script = script
        self._cancelled = threading.Event()
        self._stats = Stats(prompt_tokens=prompt_tokens, prefill_s=0.1, time_to_first_token_s=0.21)

    def cancel(self) -> None:
        self._cancelled.set()

    def __iter__(self) -> Iterator[Event]:
        script, stats = self._script, self._stats
        rest = [(word, True) for word in words(script.thinking)]
        rest += [(word, False) for word in words(script.text)]
        index = 0
        while rest:
            if not self._may_go_on():
                self._engine.num_cancelled += 1
                yield Ended("cancelled", stats.copy())
                return
            if script.error and index == script.fail_after:
                raise script.error
            accepted = min(script.pattern[index % len(script.pattern)], script.width)
            taken, rest = rest[: accepted + 1], rest[accepted + 1 :]
            accepted = min(accepted, len(taken))
            stats.add_round(
                script.width,
                accepted,
                len(taken),
                num_drafted=script.width,
                parked=not script.width,
                draft_s=0.0,
                verify_s=0.0,
                arm=script.arms[min(index, len(script.arms) - 1)] if script.arms else None,
            )
            stats.decode_s += (1 + 0.05 * script.width) / PLAIN_SPEED
            last: Origin = "plain"
            if script.width:
                last = "bonus" if accepted == script.width else "correction"
            tokens = tuple(
                Token(word, "draft" if at < accepted else last, thinking)
                for at, (word, thinking) in enumerate(taken)
            )
            yield Round(tokens, script.width, script.width, accepted, len(taken), stats.copy())
            index += 1
        yield Ended("stop", stats.copy())

    def _may_go_on(self) -> bool:
        """Wait at the gate, if there is one; False: it was cancelled."""
        while not self._cancelled.is_set():
            if not self._script.gated or self._engine._gate.acquire(timeout=0.01):
                return not self._cancelled.is_set()
        return False


def words(text: str) -> list[str]:
    """Pieces of a text, a word with the blank space after it each."""
    pieces: list[str] = []
    for character in text:
        if pieces and (not pieces[-1][-1].isspace() or character.isspace()):
            pieces[-1] += character
        else:
            pieces.append(character)
    return pieces
