"""What goes into a generation and what comes out of it; plain Python values only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from localspec.engine.grammar import Grammar
from localspec.engine.metrics import Stats
from localspec.engine.sampling import SamplingParams
from localspec.errors import UsageError

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class Request:
    """One generation.

    Attributes:
        prompt: token ids, at least one.
        max_tokens: most tokens to generate; None: up to the context length.
        sampling: how tokens are chosen.
        seed: decides every random draw.
        stop_ids: tokens that end the generation; the one met is the last token generated.
        width: drafts a round verifies; None: chosen from what rounds cost and accept.
        grammar: what may be said, from its beginning; for this generation alone.
        logprobs: report the target's log-probabilities, with so many alternatives; None: do not.
        kind: of text; what was learnt of drafters on it decides widths, and which one `auto` plays.
    """

    prompt: Sequence[int]
    max_tokens: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    stop_ids: frozenset[int] = frozenset()
    width: int | None = None
    grammar: Grammar | None = None
    logprobs: int | None = None
    kind: str = ""

    def __post_init__(self) -> None:
        if not self.prompt:
            raise UsageError("the prompt is empty; give at least one token")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise UsageError(f"max_tokens must be at least 1, not {self.max_tokens}")
        if self.width is not None and self.width < 0:
            raise UsageError(f"width must be at least 0, not {self.width}")
        if self.logprobs is not None and self.logprobs < 0:
            raise UsageError(f"logprobs must be at least 0, not {self.logprobs}")


@dataclass(frozen=True, slots=True)
class Prefilled:
    """Part of the prompt was read: `done` of `total` tokens."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The target's own log-probability of a token: no temperature, no filters, no grammar.

    Attributes:
        logprob: of the token that was committed.
        top: the likeliest tokens with theirs, the likeliest first.
    """

    logprob: float
    top: list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Committed:
    """A round's tokens. `num_accepted` of them, the first ones, were drafts; figures so far.

    `logprobs` has one entry for each token where the request asks for them.

    `width` drafts were asked for (0: none, because they do not pay now); the drafter may have had fewer.
    """

    tokens: list[int]
    num_accepted: int
    stats: Stats
    logprobs: list[TokenLogprob] | None = None
    width: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """The end, with the final figures."""

    reason: FinishReason
    stats: Stats


Event = Prefilled | Committed | Finished
