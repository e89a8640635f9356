"""The Python API: load a model once, then text in, text out.

Joins the engine (token ids) with `localspec.text` (strings); the command line, the endpoint and the chat
stand on it.
"""

from __future__ import annotations

import json
import secrets
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from localspec import catalog, history
from localspec.checks import checked
from localspec.engine.drafters import (
    NGRAM,
    Chosen,
    first_experience,
    fitting,
    profile_key,
)
from localspec.engine.generation import Generation
from localspec.engine.grammar import Grammar
from localspec.engine.memory import Footprint, footprint
from localspec.engine.request import Request
from localspec.engine.sampling import SamplingParams
from localspec.errors import CheckpointRefused, DrafterMismatch, ModelNotFound, UsageError
from localspec.history import Asked
from localspec.provenance import fingerprint
from localspec.stream import Progress, Result, TextStream
from localspec.targets import SharedTarget, acquire, release, worker
from localspec.text.chat import has_chat_template, render_chat
from localspec.text.dialect import find_dialect
from localspec.text.kinds import kind_of
from localspec.text.tokenizer import stop_token_ids

DEFAULT_MAX_TOKENS = 1024
_KIND_TOKENS = 1500
"""At the end of a prompt, by which its kind is told."""

Message = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GrammarText:
    """A grammar that an answer must obey.

    Attributes:
        text: in llguidance's notation.
        after_thoughts: thoughts may come first, and are free.
        thinking: the prompt has opened them already.
    """

    text: str
    after_thoughts: bool = True
    thinking: bool = False


@checked
def load(
    model: str = catalog.DEFAULT_MODEL,
    *,
    drafter: str = "auto",
    notify: Callable[[str], None] | None = None,
) -> Model:
    """Load a target, or share the one in memory, with a drafter of its own.

    Args:
        model: a folder, a GGUF file, a bundled name, or a Hub id.
        drafter: `auto`, `none`, `ngram`, a bundled name, a drafter's folder, or a Hub id.
        notify: told what takes long (downloads, imports).

    Raises:
        ModelNotFound: no such model or drafter.
        ModelRefused: the model cannot be run exactly, with the reason.
    """
    folder = catalog.resolve_model(model, notify=notify)
    loaded, chosen = worker.call(acquire, model, folder, drafter, notify)
    return Model(model, folder, loaded, chosen, notify)


def fitting_drafters(model: str) -> list[str]:
    """Names of the drafters that a model has here, bundled, installed, and n-gram."""
    mark = fingerprint(catalog.resolve_model(model))
    return [*(each.name for each in fitting(model, mark)), NGRAM]


def load_usable(
    model: str, drafters: Iterable[str], notify: Callable[[str], None]
) -> Iterator[tuple[str, Model]]:
    """The model with one drafter after the other; of those that cannot be used `notify` is told why."""
    for name in drafters:
        try:
            loaded = load(model, drafter=name, notify=notify)
        except (CheckpointRefused, DrafterMismatch, ModelNotFound) as error:
            notify(f"{name} is installed, but cannot be used: {error}")
            continue
        yield name, loaded


class Model:
    """A target with a drafter. Made by `load`; usable from any thread.

    Attributes:
        name: the target's name, as given.
        drafter: the drafter's name, as given; for `auto`, of the one it found.
        folder: where the target's files are.
        dialect: how the target writes thoughts, tool calls and fill-in tokens.
        profile_key: where what rounds cost is kept, once `localspec profile` has measured it.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        loaded: SharedTarget,
        chosen: Chosen,
        notify: Callable[[str], None] | None,
    ) -> None:
        self.name = name
        self.folder = folder
        self.drafter = chosen.name
        self.dialect = find_dialect(loaded.tokenizer)
        self._loaded = loaded
        self._target = loaded.target
        self._prefixes = loaded.prefixes
        self._tokenizer = loaded.tokenizer
        bound = self._bound = chosen.drafter
        mark = fingerprint(folder)
        self.profile_key = profile_key(chosen, mark)
        self._experience = worker.call(first_experience, chosen, mark, loaded.target, None, notify)
        self._stop_ids = stop_token_ids(loaded.tokenizer, folder)
        self._finalizer = weakref.finalize(self, worker.post, lambda: release(folder, bound))

    @property
    def context_length(self) -> int:
        return self._target.context_length

    @property
    def vocab_size(self) -> int:
        return self._target.vocab_size

    @property
    def first_id(self) -> int:
        """The token that stands for no text at all."""
        begin = getattr(self._tokenizer, "bos_token_id", None)
        return int(begin) if begin is not None else min(self._stop_ids, default=0)

    def is_stop(self, token: int) -> bool:
        """Whether a token ends the text."""
        return token in self._stop_ids

    @property
    def has_chat_template(self) -> bool:
        return has_chat_template(self._tokenizer)

    def encode(
        self,
        prompt: str | Sequence[Message],
        *,
        system: str | None = None,
        raw: bool = False,
        tools: Sequence[Message] | None = None,
        template_options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a prompt: through the chat template unless raw.

        Args:
            prompt: the user's text, or whole chat messages (role, content).
            system: a system message to go first.
            raw: the text as it is.
            tools: function descriptions, for templates that know tools.
            template_options: more variables for the template, such as `enable_thinking`.

        Raises:
            UsageError: an empty prompt, messages or a system prompt with `raw`, or a template that
                refuses them.
        """
        if not prompt:
            raise UsageError("the prompt is empty")
        if raw or not self.has_chat_template:
            if system is not None or not isinstance(prompt, str):
                why = "raw text was asked for" if raw else f"'{self.name}' has no chat template"
                raise UsageError(f"messages and a system prompt need a chat template, but {why}")
            with self._loaded.encoding:
                return [int(token) for token in self._tokenizer.encode(prompt)]
        messages = (
            [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        )
        if system is not None:
            messages = [{"role": "system", "content": system}, *messages]
        with self._loaded.encoding:
            return render_chat(
                self._tokenizer, messages, tools=tools, template_options=template_options
            )

    def encode_part(self, text: str) -> list[int]:
        """Token ids of text within a prompt: none is put before it."""
        with self._loaded.encoding:
            ids = self._tokenizer.encode(text, add_special_tokens=False)
        return [int(token) for token in ids]

    def encode_middle(self, prefix: str, suffix: str) -> list[int]:
        """Token ids that ask for the text between two others.

        Raises:
            UsageError: the model has no fill-in tokens.
        """
        if self.dialect.fim is None:
            raise UsageError(f"'{self.name}' has no tokens to fill in the middle with")
        return self.dialect.fim.prompt(self.encode_part(prefix), self.encode_part(suffix))

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def token_text(self, token: int) -> str:
        """The text of one token alone; U+FFFD where it is part of a character."""
        return self.decode([token])

    @checked
    def stream(
        self,
        prompt: str | Sequence[Message],
        *,
        system: str | None = None,
        raw: bool = False,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logit_bias: Mapping[int, float] | None = None,
        seed: int | None = None,
        stop: Sequence[str] = (),
        width: int | None = None,
        on_prefill: Progress | None = None,
    ) -> TextStream:
        """Start a generation and give its pieces as they come; arguments as for `generate`.

        Args:
            on_prefill: told how many of the prompt's tokens were read, of how many.
        """
        sampling = SamplingParams(
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            logit_bias=logit_bias or {},
        )
        return self.stream_ids(
            self.encode(prompt, system=system, raw=raw),
            sampling=sampling,
            max_tokens=max_tokens,
            seed=seed,
            stop=stop,
            width=width,
            on_prefill=on_prefill,
        )

    def stream_ids(
        self,
        prompt: Sequence[int],
        *,
        sampling: SamplingParams,
        max_tokens: int | None = None,
        seed: int | None = None,
        stop: Sequence[str] = (),
        stop_ids: frozenset[int] = frozenset(),
        width: int | None = None,
        grammar: Grammar | None = None,
        logprobs: int | None = None,
        on_prefill: Progress | None = None,
        asked: Asked | None = None,
    ) -> TextStream:
        """Start a generation from token ids.

        Args:
            prompt: from `encode` or `encode_middle`.
            max_tokens: None: up to the context length.
            stop_ids: tokens that end it besides the model's own.
            grammar: from `grammar`, for this generation alone.
            logprobs: report log-probabilities, with so many alternatives.
            asked: what a user wrote, for their history if it is on.
        """
        if any(not text for text in stop):
            raise UsageError("stop must not be an empty text")
        request = Request(
            prompt=prompt,
            max_tokens=max_tokens,
            sampling=sampling,
            seed=secrets.randbits(32) if seed is None else seed,
            stop_ids=self._stop_ids | stop_ids,
            width=width,
            grammar=grammar,
            logprobs=logprobs,
            kind=kind_of(self.decode(prompt[-_KIND_TOKENS:])) if self._bound else "",
        )
        if asked is not None and history.is_on():
            settings = {name: getattr(sampling, name) for name in history.SETTINGS}
            history.add(history.Entry(self.name, kind_of(asked.text), asked, settings))
        events = worker.generate(
            lambda: Generation(self._target, self._bound, request, self._prefixes, self._experience)
        )
        return TextStream(self, events, stop, on_prefill)

    def grammar(self, wanted: GrammarText) -> Grammar:
        """A grammar for one generation.

        Raises:
            UsageError: it cannot be enforced, with the reason.
        """
        opens, closes = self.dialect.think_ids if wanted.after_thoughts else ((), ())
        return Grammar(
            self._loaded.grammar_tokenizer(self._stop_ids),
            wanted.text,
            opens=opens[0] if len(opens) == 1 else None,
            closes=closes,
            thinking=wanted.thinking,
        )

    def mark(self, text: str) -> str:
        """A mark's terminal in a grammar: the special token that it is, or its text."""
        tokenizer = self._loaded.grammar_tokenizer(self._stop_ids)
        ids = tokenizer.tokenize_str(text, parse_special=True)
        if len(ids) == 1 and tokenizer.is_special_token(ids[0]):
            return f"<[{ids[0]}]>"
        return json.dumps(text, ensure_ascii=False)

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end the text."""
        return self._stop_ids

    def measure(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Run `function(target, drafter, ...)` on the engine thread, as `localspec.lab` needs it."""
        return worker.call(lambda: function(self._target, self._bound, *args, **options))

    def footprint(self) -> Footprint:
        """What a generation of this model will take in memory."""
        return worker.call(footprint, self._target, self._bound)

    def shrink_prefixes(self, max_bytes: int) -> None:
        """Make room in memory: forget conversations, soon, until they take no more than that."""
        worker.post(lambda: self._prefixes.shrink(max_bytes))

    def generate(self, prompt: str | Sequence[Message], **options: Any) -> Result:
        """Generate text.

        Args:
            prompt: the user's text, or chat messages.
            options: `system`, `raw`, `max_tokens`, `temperature` (0: the most likely token), `top_p`,
                `top_k`, `min_p`, `repetition_penalty`, `presence_penalty`, `frequency_penalty`,
                `logit_bias`, `seed` (None: a random one), `stop` (texts that end it), `width` (drafts a
                round; None: chosen from measured rounds), `on_prefill`.

        Raises:
            UsageError: a value out of range.
            ContextOverflow: the prompt leaves no room.
        """
        stream = self.stream(prompt, **options)
        for _ in stream:
            pass
        return stream.result
