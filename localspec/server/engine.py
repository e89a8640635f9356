"""What the endpoint needs of a model: plain values in, events out. Knows nothing of HTTP or MLX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from localspec.history import Asked
from localspec.text.dialect import Dialect


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen; named and meant as in `localspec generate`."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Job:
    """One generation.

    Attributes:
        prompt: token ids.
        max_tokens: None: up to the context length.
        stop: texts that end it.
        seed: None: a random one.
        drafter: one of the engine's names.
        width: drafts a round; None: chosen from measured rounds.
        grammar: in llguidance's notation; None: anything may be said.
        thinking: the prompt has opened the model's thoughts.
        fills: the prompt asks for the middle of a text, so that fill-in tokens end it.
        logprobs: alternatives to report with each token; None: nothing.
        asked: what the user wrote, for their history if it is on.
    """

    prompt: tuple[int, ...]
    max_tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    seed: int | None = None
    drafter: str = "auto"
    width: int | None = None
    grammar: str | None = None
    thinking: bool = False
    fills: bool = False
    logprobs: int | None = None
    asked: Asked | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """What a generation measured of itself, so far.

    Attributes:
        widths: rounds by how many drafts they verified, from 0.
        parked: plain steps that were made because drafting did not pay.
        arms: rounds by the drafter that `auto` had play.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    rounds: int = 0
    proposed: int = 0
    accepted: int = 0
    widths: tuple[int, ...] = ()
    parked: int = 0
    arms: Mapping[str, int] = field(default_factory=dict)
    prefill_s: float = 0.0
    decode_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's text and bytes with the target's log-probability, and those of the likeliest."""

    text: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Read:
    """So many of the prompt's tokens were read, of how many; the first tells what was cached."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Said:
    """What one round added: text, complete characters only, and how many tokens."""

    text: str
    num_tokens: int
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """The end.

    Attributes:
        reason: `stop` (a stop token or text), `length` or `cancelled`.
        stop: the text that ended it.
    """

    reason: str
    figures: Figures
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The generation broke."""

    error: Exception


Event = Read | Said | Ended | Failed


class Running(Protocol):
    """A generation under way."""

    def cancel(self) -> None:
        """End within one round; `Ended` follows."""
        ...


class Engine(Protocol):
    """A loaded model with its drafters.

    Attributes:
        name: the model's name.
        context_length: tokens of prompt and answer, as many as the model and the memory allow.
        created: when the model's files were made, in seconds since 1970.
        drafters: names that a job may choose; `auto` and `none` are among them.
        dialect: how the model writes thoughts, calls and fill-in tokens.
        vocab_size: token ids are below it.
        defaults: the author's sampling, for what a request does not say.
        capacity: bytes for generations.
    """

    name: str
    context_length: int
    created: int
    drafters: tuple[str, ...]
    dialect: Dialect
    vocab_size: int
    defaults: Sampling
    capacity: int

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
    ) -> tuple[int, ...]:
        """Token ids of a conversation, up to the opening of the answer.

        Raises:
            UsageError: the template refuses it.
        """
        ...

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Token ids of raw text; at least one."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, marks included."""
        ...

    def encode_middle(self, prefix: str, suffix: str) -> tuple[int, ...]:
        """Token ids that ask for what stands between.

        Raises:
            UsageError: the model has no fill-in tokens.
        """
        ...

    def opens_thoughts(self, prompt: Sequence[int]) -> bool:
        """Whether the prompt ends within the model's thoughts."""
        ...

    def mark(self, text: str) -> str:
        """A mark's terminal in a grammar."""
        ...

    def check_grammar(self, grammar: str) -> None:
        """
        Raises:
            UsageError: it cannot be enforced, with the reason.
        """
        ...

    def cost(self, job: Job) -> int:
        """Bytes that a generation may take."""
        ...

    def start(self, job: Job, emit: Callable[[Event], None], reserved: int) -> Running:
        """Begin; `emit` is called on another thread, and last with `Ended` or `Failed`.

        Args:
            reserved: bytes promised to all generations under way, this one among them.
        """
        ...
