"""An engine for the endpoint that needs no model: tokens are bytes, texts are made up by the prompt.

It obeys everything that a job says, grammars too, and keeps prompts for its prefix cache. Prompts can
hold commands: `SAY[...]YAS` is said word for word, `BREAK` fails after two pieces, `SLOW` takes its
time, `HOLD` waits after each word until `gate` is set.
"""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from byte_tokens import END, SIZE, grammar_tokenizer
from llguidance import LLMatcher

from localspec.errors import UsageError
from localspec.server.engine import (
    Ended,
    Event,
    Failed,
    Figures,
    Job,
    Read,
    Said,
    Sampling,
    TokenLogprob,
)
from localspec.text.dialect import Dialect
from localspec.text.fim import FimTokens
from localspec.text.stops import StopStrings
from localspec.text.tools import ToolFormat

PROSE = "a river runs by the old mill and birds sing under é water\n"
WORDS = re.findall(r"\S+\s?", PROSE)
CHUNK = 1024


class FakeEngine:
    """See `localspec.server.engine.Engine`.

    Args:
        thinks: the model has thoughts, marked by <think> and </think>.
        fills: the model has fill-in tokens.
        harmony: the model writes as gpt-oss does.
        pause: seconds of a round of a prompt that says SLOW.
        capacity: bytes for generations; a token takes one.
    """

    name = "fake/bytes"
    created = 1_700_000_000
    drafters = ("auto", "ngram", "none")
    vocab_size = SIZE
    defaults = Sampling()

    def __init__(
        self,
        *,
        thinks: bool = False,
        fills: bool = False,
        harmony: bool = False,
        pause: float = 0.02,
        capacity: int = 10**9,
        context_length: int = 65536,
    ) -> None:
        think = ("<think>", "</think>") if thinks else None
        fim = FimTokens(256, 257, 258, frozenset([256, 257, 258])) if fills else None
        tools = ToolFormat(native=harmony)
        self.dialect = Dialect(tools, think, ((256,), (257,)), fim, harmony=harmony)
        self.capacity = capacity
        self.context_length = context_length
        self.pause = pause
        self.jobs: list[Job] = []
        self.running: set[FakeRunning] = set()
        self.most_running = 0
        self.kept: list[tuple[int, ...]] = []
        self.lock = threading.Lock()
        self.gate = threading.Event()

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
    ) -> tuple[int, ...]:
        for index, message in enumerate(messages):
            if message["role"] == "system" and index:
                raise UsageError("the chat template cannot render these messages: system not first")
            assert isinstance(message["content"], str)
        text = "".join(f"<{m['role']}>{m['content']}</>" for m in messages)
        return self.encode_text(text + json.dumps(list(tools)) * bool(tools) + "<assistant>")

    def encode_text(self, text: str) -> tuple[int, ...]:
        return tuple(text.encode()) or (END,)

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(token for token in token_ids if token < 256).decode(errors="replace")

    def encode_middle(self, prefix: str, suffix: str) -> tuple[int, ...]:
        if self.dialect.fim is None:
            raise UsageError("'fake' has no tokens to fill in the middle with")
        return tuple(self.dialect.fim.prompt(list(prefix.encode()), list(suffix.encode())))

    def opens_thoughts(self, prompt: Sequence[int]) -> bool:
        return bytes(token for token in prompt if token < 256).endswith(b"<think>")

    def mark(self, text: str) -> str:
        return json.dumps(text)

    def check_grammar(self, grammar: str) -> None:
        if reason := LLMatcher.validate_grammar(grammar, grammar_tokenizer()):
            raise UsageError(f"it cannot be enforced: {reason.strip().splitlines()[0]}")

    def cost(self, job: Job) -> int:
        return len(job.prompt) + (job.max_tokens or 0)

    def start(self, job: Job, emit: Callable[[Event], None], reserved: int) -> FakeRunning:
        assert reserved <= self.capacity
        running = FakeRunning(self, job, emit)
        with self.lock:
            self.jobs.append(job)
            self.running.add(running)
            self.most_running = max(self.most_running, len(self.running))
        threading.Thread(target=running.run, daemon=True).start()
        return running

    def take_cached(self, prompt: tuple[int, ...]) -> int:
        """How much of a prompt is kept; and keep it."""
        best = max((_common(kept, prompt) for kept in self.kept), default=0)
        self.kept = [*self.kept[-15:], prompt]
        return min(best, len(prompt) - 1)


def _common(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if left[:middle] == right[:middle] else (low, middle - 1)
    return low


class FakeRunning:
    """A generation on a thread of its own; each round says a word."""

    def __init__(self, engine: FakeEngine, job: Job, emit: Callable[[Event], None]) -> None:
        self._engine = engine
        self._job = job
        self._emit = emit
        self._cancelled = threading.Event()
        self._text = bytes(token for token in job.prompt if token < 256).decode(errors="replace")
        self.num_rounds = 0

    def cancel(self) -> None:
        self._cancelled.set()

    def run(self) -> None:
        try:
            event: Event = self._generate()
        except Exception as error:
            event = Failed(error)
        with self._engine.lock:
            self._engine.running.discard(self)
        self._emit(event)

    def _generate(self) -> Event:
        job = self._job
        cached = self._engine.take_cached(job.prompt)
        for done in [*range(cached, len(job.prompt) - 1, CHUNK), len(job.prompt) - 1]:
            self._emit(Read(done, len(job.prompt) - 1))
            self._wait()
            if self._cancelled.is_set():
                return Ended("cancelled", self._figures(cached, 0))
        stops = StopStrings(job.stop)
        said = 0
        for word in self._words():
            self._wait()
            if self._cancelled.is_set():
                return Ended("cancelled", self._figures(cached, said))
            if "BREAK" in self._text and self.num_rounds == 2:
                raise RuntimeError("a planted failure")
            assert job.max_tokens is not None
            cut = word.encode()[: job.max_tokens - said]
            said += len(cut)
            self.num_rounds += 1
            shown, stopped = stops.push(cut.decode(errors="ignore"))
            self._emit(Said(shown, len(cut), self._logprobs(cut)))
            if stopped:
                return Ended("stop", self._figures(cached, said), stops.matched)
            if said == job.max_tokens:
                break
        self._emit(Said(stops.flush(), 0))
        reason = "length" if said == job.max_tokens else "stop"
        return Ended(reason, self._figures(cached, said))

    def _wait(self) -> None:
        if "SLOW" in self._text:
            time.sleep(self._engine.pause)
        if "HOLD" in self._text:
            while self.num_rounds and not self._cancelled.is_set():
                if self._engine.gate.wait(0.01):
                    break

    def _words(self) -> Iterator[str]:
        if self._job.grammar is not None:
            yield from self._obedient(self._job.grammar)
            return
        if commanded := re.findall(r"SAY\[(.*?)\]YAS", self._text, re.DOTALL):
            yield from re.findall(r"\s*\S+\s*|\s+", commanded[-1])
            return
        seed = self._job.seed if self._job.sampling.temperature else 0
        rng = random.Random(f"{self._text[-200:]} {seed}")
        while rng.random() > (0.002 if "SLOW" in self._text or "HOLD" in self._text else 0.05):
            yield rng.choice(WORDS)

    def _obedient(self, grammar: str) -> Iterator[str]:
        """A text of the grammar, a byte at a time, that comes to an end soon."""
        matcher = LLMatcher(grammar_tokenizer(), grammar, log_level=0)
        rng = random.Random(self._text[-200:])
        pending = b""
        while not matcher.is_stopped():
            bits = matcher.compute_bitmask()
            allowed = [i for i in range(SIZE) if bits[i // 8] >> i % 8 & 1]
            if END in allowed and (len(allowed) == 1 or rng.random() < 0.5):
                return
            closing = [token for token in allowed if token in set(b'"}],:')]
            letters = [token for token in allowed if 32 < token < 127]
            token = rng.choice(closing if closing and rng.random() < 0.6 else letters or allowed)
            matcher.consume_token(token)
            pending += bytes([token])
            try:
                yield pending.decode()
            except UnicodeDecodeError:
                continue
            pending = b""

    def _logprobs(self, said: bytes) -> tuple[TokenLogprob, ...]:
        if self._job.logprobs is None:
            return ()
        top = tuple((chr(97 + index), -0.5 - index) for index in range(self._job.logprobs))
        return tuple(TokenLogprob(chr(byte), -0.5, top) for byte in said)

    def _figures(self, cached: int, said: int) -> Figures:
        rounds = max(1, self.num_rounds)
        accepted = max(0, said - rounds)
        return Figures(
            prompt_tokens=len(self._job.prompt),
            cached_tokens=cached,
            generated_tokens=said,
            rounds=rounds,
            proposed=accepted + 1,
            accepted=accepted,
            prefill_s=0.01,
            decode_s=0.1,
        )
