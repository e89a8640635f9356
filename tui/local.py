"""The engine of this process behind the chat's `Engine` interface."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence

from localspec import catalog, downloads, model
from localspec.converters.public import drafters_for
from localspec.drafter_catalog import bundled_drafters, installed_drafters
from localspec.engine import drafters
from localspec.engine.machine import memory_in_use
from localspec.engine.metrics import Stats
from localspec.engine.sampling import SamplingParams
from localspec.errors import LocalspecError
from localspec.history import asked
from localspec.provenance import fingerprint
from localspec.stream import Piece
from localspec.text.answer import Delta
from localspec.text.dialect import THINKING_SWITCH
from localspec.tui import answers
from localspec.tui.engine import Choice, Ended, Event, Loaded, OnReading, Origin, Round, Say, Token
from localspec.tui.settings import Settings

_MARK_TOKENS = 16
"""More tokens than a mark and the blank space after it."""

_NOTHING = "no model is loaded; /model loads one"


class LocalEngine:
    """`localspec.model` for the chat; a twin of the model that decodes plainly shares the target."""

    def __init__(self) -> None:
        self._model: model.Model | None = None
        self._plain: model.Model | None = None

    def load(self, target: str, drafter: str, say: Say) -> Loaded:
        progress = _Progress(say)
        with downloads.watched(progress.watch):
            return self._load(target, drafter, progress.say)

    def _load(self, target: str, drafter: str, say: Say) -> Loaded:
        before = (self._model.name, self._model.drafter) if self._model else None
        if before and before[0] != target:
            # Two targets may not fit into memory together.
            self._forget()
        try:
            return self._take(target, drafter, say)
        except Exception:
            # Whatever it was, memory that ran out too.
            if before and not self._model:
                say(f"{target} cannot be loaded; loading {before[0]} again")
                self._take(*before, say)
            raise

    def reply(
        self,
        messages: Sequence[Mapping[str, str]],
        settings: Settings,
        *,
        plain: bool = False,
        remember: bool = False,
        on_reading: OnReading | None = None,
    ) -> LocalReply:
        chosen = self._plain if plain else self._model
        if chosen is None:
            raise LocalspecError(_NOTHING)
        return LocalReply(chosen, messages, settings, on_reading, remember=remember)

    def targets(self) -> list[Choice]:
        return [Choice(found.name, downloads.size(found.size)) for found in catalog.installed()]

    def drafters(self, target: str) -> list[Choice]:
        found = [
            Choice(drafters.AUTO, "the best there is for the model"),
            Choice(drafters.NONE, "plain decoding"),
            Choice(drafters.NGRAM, "copies from prompt and reply; no weights"),
        ]
        if self._model and self._model.name == target:
            for drafter in bundled_drafters(fingerprint(self._model.folder)):
                found.append(Choice(drafter.name, "trained for this model"))
        here = [Choice(each.name, each.architecture) for each in installed_drafters(target)]
        names = {choice.name for choice in here}
        return [
            *found,
            *here,
            *(
                Choice(public.name, f"{public.architecture}, on the Hub")
                for public in drafters_for(target)
                if public.name not in names
            ),
        ]

    def fitting(self) -> list[str]:
        return model.fitting_drafters(self._model.name) if self._model else []

    def beside(self, drafter: str, say: Say) -> LocalEngine:
        if self._model is None:
            raise LocalspecError(_NOTHING)
        other = LocalEngine()
        other.load(self._model.name, drafter, say)
        return other

    def memory(self) -> int:
        return memory_in_use()

    def _take(self, target: str, drafter: str, say: Say) -> Loaded:
        loaded = model.load(target, drafter=drafter, notify=say)
        self._plain = model.load(target, drafter=drafters.NONE)
        self._model = loaded
        return Loaded(
            target=target,
            drafter=loaded.drafter,
            context_length=loaded.context_length,
            can_switch_thinking=loaded.dialect.can_switch_thinking,
        )

    def _forget(self) -> None:
        self._model = self._plain = None
        gc.collect()


class _Progress:
    """Says how far a download is, in whole percent, before what was said last."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._note = ""
        self._percent = -1

    def say(self, note: str) -> None:
        self._note, self._percent = note, -1
        self._say(note)

    def watch(self, done: int, total: int) -> None:
        percent = 100 * done // total
        if percent != self._percent:
            self._percent = percent
            self._say(f"{percent}% of {downloads.size(total)}, {self._note}")


class LocalReply:
    """One generation as the chat's events."""

    def __init__(
        self,
        chosen: model.Model,
        messages: Sequence[Mapping[str, str]],
        settings: Settings,
        on_reading: OnReading | None,
        *,
        remember: bool = False,
    ) -> None:
        begun = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
        prompt = _prompt(chosen, messages[:-1] if begun else messages, settings)
        opened = chosen.dialect.opens_thoughts(chosen.decode(prompt[-_MARK_TOKENS:]))
        if begun:
            start, self._parser = answers.continued(begun, chosen.dialect, opened=opened)
            prompt += chosen.encode_part(start)
        else:
            self._parser = answers.fresh(chosen.dialect, opened=opened)
        self._stream = chosen.stream_ids(
            prompt,
            sampling=SamplingParams(
                temperature=settings.temperature,
                top_p=settings.top_p,
                top_k=settings.top_k,
                min_p=settings.min_p,
                repetition_penalty=settings.repetition_penalty,
            ),
            max_tokens=settings.max_tokens,
            seed=settings.seed,
            width=settings.width,
            on_prefill=on_reading,
            asked=asked(messages) if remember else None,
        )

    def cancel(self) -> None:
        self._stream.cancel()

    def __iter__(self) -> Iterator[Event]:
        before = Stats()
        rest = ""
        for piece in self._stream:
            if piece.token_ids:
                yield self._round(piece, before)
                before = piece.stats
            else:
                rest += piece.text
        result = self._stream.result
        yield Ended(result.finish_reason, result.stats, self._rest(rest, result.finish_reason))

    def _round(self, piece: Piece, before: Stats) -> Round:
        num_proposed = piece.stats.proposed - before.proposed
        last: Origin = "plain"
        if num_proposed:
            last = "bonus" if piece.num_accepted == num_proposed else "correction"
        tokens: list[Token] = []
        for index, text in enumerate(piece.texts):
            origin: Origin = "draft" if index < piece.num_accepted else last
            tokens += _parted(self._parser.push(text), origin)
        return Round(
            tokens=tuple(tokens),
            width=piece.width,
            num_proposed=num_proposed,
            num_accepted=piece.num_accepted,
            num_committed=len(piece.token_ids),
            stats=piece.stats,
        )

    def _rest(self, text: str, reason: str) -> tuple[Token, ...]:
        tokens = _parted(self._parser.push(text), "plain")
        tokens += _parted(self._parser.finish(cut=reason != "stop"), "plain")
        return tuple(token for token in tokens if token.text)


def _parted(delta: Delta, origin: Origin) -> list[Token]:
    """Tokens of what was thought and what was said; at least one, so that each token counts."""
    tokens = [Token(delta.thoughts, origin, thinking=True)] if delta.thoughts else []
    return [*tokens, Token(delta.text, origin)] if delta.text or not tokens else tokens


def _prompt(
    chosen: model.Model, messages: Sequence[Mapping[str, str]], settings: Settings
) -> list[int]:
    if not chosen.has_chat_template:
        return chosen.encode("\n\n".join(message["content"] for message in messages), raw=True)
    prompt = []
    for message in messages:
        plain = {"role": message["role"], "content": message["content"]}
        if message.get("thinking"):
            # Templates that keep what was thought in earlier turns look for it under this name.
            plain["reasoning_content"] = message["thinking"]
        prompt.append(plain)
    switch = {THINKING_SWITCH: settings.thinking}
    options = switch if chosen.dialect.can_switch_thinking else None
    return chosen.encode(prompt, template_options=options)
