"""Running asks: a place in the queue, the engine's events, and text that is read as it comes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from localspec.errors import ContextOverflow, LocalspecError, UsageError
from localspec.server.asks import Ask, is_short
from localspec.server.engine import (
    Ended,
    Engine,
    Event,
    Failed,
    Figures,
    Read,
    Running,
    Said,
    TokenLogprob,
)
from localspec.server.errors import bad, overflow
from localspec.server.metrics import Metrics
from localspec.server.scheduling import Scheduler, Ticket
from localspec.text.answer import AnswerParser, Delta


@dataclass(frozen=True, slots=True)
class Part:
    """What one event adds to an answer."""

    delta: Delta
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Finish:
    """How an answer ended.

    Attributes:
        reason: `stop`, `length` or `tool_calls`.
        stop: the text that ended it.
        thought_tokens: tokens of its thoughts.
    """

    reason: str
    figures: Figures
    stop: str | None = None
    thought_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Waiting:
    """So many requests are ahead in the queue."""

    num_ahead: int


Progress = Waiting | Read
Update = Progress | Part | Finish


@dataclass(slots=True)
class Generations:
    """The engine as the routes see it."""

    engine: Engine
    scheduler: Scheduler
    metrics: Metrics = field(default_factory=Metrics)

    def enter(self, ask: Ask, *, bounded: bool = True) -> Ticket:
        """Queue up for an answer; see `Scheduler.enter`.

        Raises:
            ApiError: 503.
        """
        job = ask.job
        return self.scheduler.enter(self.engine.cost(job), is_short=is_short(job), bounded=bounded)

    async def run(self, ask: Ask, ticket: Ticket | None = None) -> AsyncGenerator[Update, None]:
        """The updates of one answer; the last is a `Finish`. Leaving early frees the engine.

        Args:
            ticket: from `enter`; None: queue up now.
        """
        ticket = ticket or self.enter(ask, bounded=False)
        try:
            async with aclosing(ticket.queueing()) as moves:
                async for num_ahead in moves:
                    yield Waiting(num_ahead)
            events = _Events(asyncio.get_running_loop())
            running = self.engine.start(ask.job, events.put, self.scheduler.reserved)
            try:
                async for update in self._read(ask, events, running):
                    yield update
            finally:
                if not events.over:
                    running.cancel()
                    # The place is free when the engine is.
                    await asyncio.shield(events.ended())
        finally:
            self.scheduler.leave(ticket)

    async def _read(
        self, ask: Ask, events: _Events, running: Running
    ) -> AsyncGenerator[Update, None]:
        parser = AnswerParser(ask.format)
        thought_tokens = 0
        enough = ask.format.most_calls
        done = False
        if ask.echo:
            yield Part(Delta(text=ask.echo))
        async for event in events:
            if isinstance(event, Read):
                yield event
            elif isinstance(event, Said) and not done:
                delta = parser.push(event.text)
                thought_tokens += event.num_tokens if delta.thoughts else 0
                yield Part(delta, event.logprobs)
                if enough is not None and parser.num_calls >= enough:
                    done = True
                    running.cancel()
            elif isinstance(event, Failed):
                self.metrics.failures += 1
                raise _refusal(event.error, ask)
            elif isinstance(event, Ended):
                self.metrics.add(event.figures)
                cut = event.reason == "length"
                rest = parser.finish(cut=cut)
                if rest:
                    yield Part(rest)
                reason = "length" if cut else "tool_calls" if parser.num_calls else "stop"
                yield Finish(reason, event.figures, event.stop, thought_tokens)


class _Events:
    """Events from the engine's threads, read on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: asyncio.Queue[Event] = asyncio.Queue()
        self.over = False

    def put(self, event: Event) -> None:
        """From any thread; an event loop that is closed wants no more."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._queue.put_nowait, event)

    async def __aiter__(self) -> AsyncGenerator[Event, None]:
        while not self.over:
            event = await self._queue.get()
            self.over = isinstance(event, Ended | Failed)
            yield event

    async def ended(self) -> None:
        async for _ in self:
            pass


def _refusal(error: Exception, ask: Ask) -> Exception:
    """What the client is told of an error on the engine's side."""
    if isinstance(error, ContextOverflow):
        return overflow(error.prompt_tokens, error.context_length, ask.param)
    if isinstance(error, UsageError):
        message = str(error)
        return bad(message, message.partition(" ")[0])
    if isinstance(error, LocalspecError):
        return bad(str(error), None)
    return error


def total(figures: list[Figures]) -> Figures:
    """Of several answers to one request; their prompt counts once."""
    first = figures[0]
    return replace(
        first,
        **{
            name: sum(getattr(each, name) for each in figures)
            for name in ("generated_tokens", "rounds", "proposed", "accepted", "parked", "decode_s")
        },
        arms=dict(sum((Counter(each.arms) for each in figures), Counter())),
        widths=tuple(map(sum, zip_longest(*(each.widths for each in figures), fillvalue=0))),
    )


def speculation(figures: Figures, drafter: str) -> dict[str, object]:
    """What drafting did, beside usage."""
    rounds, seconds = figures.rounds, figures.decode_s
    return {
        "drafter": drafter,
        "accepted_length": round(figures.generated_tokens / rounds, 4) if rounds else 0.0,
        "width": round(figures.proposed / rounds, 4) if rounds else 0.0,
        "widths": list(figures.widths),
        "parked_share": round(figures.parked / rounds, 4) if rounds else 0.0,
        "arms": dict(figures.arms),
        "rounds": rounds,
        "proposed": figures.proposed,
        "accepted": figures.accepted,
        "tokens_per_second": round(figures.generated_tokens / seconds, 3) if seconds else 0.0,
    }
