"""One generation as text: pieces as they come, and the whole at the end.

Turns a stream of the engine's events (token ids) into strings; knows nothing of loading or of MLX.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from localspec.engine.metrics import Stats
from localspec.engine.request import Committed, Event, Prefilled, TokenLogprob
from localspec.engine.worker import Stream
from localspec.text.detokenizer import StreamingDetokenizer
from localspec.text.stops import StopStrings

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Piece:
    """What one round added.

    Attributes:
        text: new text, complete characters only; may be empty.
        token_ids: the round's tokens.
        texts: the characters that each of them completed, whatever stop strings make of them; a stop
            token has none.
        num_accepted: how many of them, the first ones, were drafts.
        stats: figures so far.
        logprobs: one for each of the tokens, where they were asked for.
        width: how many drafts were asked for; 0: a plain step.
    """

    text: str
    token_ids: list[int]
    texts: list[str]
    num_accepted: int
    stats: Stats
    logprobs: list[TokenLogprob] | None = None
    width: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """A whole generation.

    Attributes:
        text: what was said, without the stop token or stop string that ended it.
        token_ids: all tokens generated, a stop token included.
        finish_reason: `stop` (a stop token or string), `length` (a limit) or `cancelled`.
        model: the target's name.
        drafter: the drafter's name.
        stats: the final figures.
        stop: the stop string that ended it; None: something else did.
    """

    text: str
    token_ids: list[int]
    finish_reason: str
    model: str
    drafter: str
    stats: Stats
    stop: str | None = None

    def as_dict(self) -> dict[str, object]:
        """What `localspec generate --json` prints."""
        return {
            "text": self.text,
            "token_ids": self.token_ids,
            "finish_reason": self.finish_reason,
            "model": self.model,
            "drafter": self.drafter,
            "stats": self.stats.as_dict(),
        }


class Speaker(Protocol):
    """Whose tokens these are: a `localspec.model.Model`."""

    name: str
    drafter: str

    def decode(self, token_ids: Sequence[int]) -> str: ...

    def is_stop(self, token: int) -> bool: ...


@dataclass
class TextStream(Iterator[Piece]):
    """Pieces of one generation; `result` is there when they end. Letting go of it cancels."""

    model: Speaker
    _events: Stream
    _stop: Sequence[str]
    _on_prefill: Progress | None = None
    _tokens: list[int] = field(default_factory=list)
    _text: list[str] = field(default_factory=list)
    _result: Result | None = None

    def __post_init__(self) -> None:
        self._iterator = iter(self._events)
        self._detokenizer = StreamingDetokenizer(self.model.decode)
        self._stops = StopStrings(self._stop)
        weakref.finalize(self, self._events.cancel)

    def __next__(self) -> Piece:
        while self._result is None:
            piece = self._take(next(self._iterator))
            if piece is not None:
                return piece
        # A stop text ends the pieces before the generation has ended. The end is waited for, within a
        # step, since only then can the next request go on from what was said.
        self.cancel()
        for _ in self._iterator:
            pass
        raise StopIteration

    def cancel(self) -> None:
        """End within one round; the pieces then end too."""
        self._events.cancel()

    @property
    def result(self) -> Result:
        """The whole generation, after the last piece."""
        assert self._result is not None, "the stream has not ended"
        return self._result

    def _take(self, event: Event) -> Piece | None:
        if isinstance(event, Prefilled):
            if self._on_prefill:
                self._on_prefill(event.done, event.total)
            return None
        if isinstance(event, Committed):
            texts = self._read(event)
            text, stopped = self._stops.push("".join(texts))
            self._tokens.extend(event.tokens)
            self._text.append(text)
            if stopped:
                self._finish("stop", event.stats, self._stops.matched)
            return Piece(
                text,
                event.tokens,
                texts,
                event.num_accepted,
                event.stats,
                event.logprobs,
                event.width,
            )
        rest = self._detokenizer.finish()
        # A limit may cut a character in two; what is there of it is no text.
        rest = rest.rstrip("\ufffd") if event.reason == "length" else rest
        text, stopped = self._stops.push(rest)
        text += "" if stopped else self._stops.flush()
        self._text.append(text)
        self._finish("stop" if stopped else event.reason, event.stats, self._stops.matched)
        return Piece(text, [], [], 0, event.stats) if text else None

    def _read(self, event: Committed) -> list[str]:
        tokens = event.tokens
        if self.model.is_stop(tokens[-1]):
            tokens = tokens[:-1]
        return [self._detokenizer.push([token]) for token in tokens]

    def _finish(self, reason: str, stats: Stats, stop: str | None) -> None:
        self._result = Result(
            text="".join(self._text),
            token_ids=self._tokens,
            finish_reason=reason,
            model=self.model.name,
            drafter=self.model.drafter,
            stats=stats,
            stop=stop,
        )
