"""Models as the endpoint's engine: joins `localspec.model` to what `localspec.server` asks for.

One target, one `Model` for each drafter that was loaded at the start. Each generation is read by a
thread of its own, so that text is made neither on the engine thread nor on the event loop.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from localspec.engine.metrics import Stats
from localspec.engine.request import TokenLogprob as EngineLogprob
from localspec.engine.sampling import SamplingParams
from localspec.errors import LocalspecError, UsageError
from localspec.model import GrammarText, Model
from localspec.server.engine import (
    Ended,
    Event,
    Failed,
    Figures,
    Job,
    Read,
    Running,
    Said,
    Sampling,
    TokenLogprob,
)
from localspec.stream import TextStream
from localspec.targets import memory_room

log = logging.getLogger("localspec.server")

_LEAST_CONTEXT = 256
_NEVER = -1e9


class ModelEngine:
    """The engine of the endpoint; see `localspec.server.engine.Engine`.

    Args:
        models: on one target, by the name of their drafter; the first is `auto`'s.

    Raises:
        UsageError: the memory does not hold even a short generation.
    """

    def __init__(self, models: Mapping[str, Model]) -> None:
        self._models = dict(models)
        first = next(iter(self._models))
        self._models.setdefault("auto", self._models[first])
        model = self._models[first]
        self._model = model
        self.name = model.name
        self.dialect = model.dialect
        self.drafters = tuple(self._models)
        self.vocab_size = model.vocab_size
        self.created = int((model.folder / "config.json").stat().st_mtime)
        self.defaults = _author_sampling(model)
        self.capacity = memory_room()
        self._footprints = {name: each.footprint() for name, each in self._models.items()}
        self.context_length = self._fitting_context()

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
    ) -> tuple[int, ...]:
        if not self._model.has_chat_template:
            return self.encode_text(_as_text(messages))
        return tuple(self._model.encode(messages, tools=tools, template_options=options))

    def encode_text(self, text: str) -> tuple[int, ...]:
        ids = self._model.encode(text, raw=True)
        return tuple(ids) or (self._model.first_id,)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._model.decode(token_ids)

    def encode_middle(self, prefix: str, suffix: str) -> tuple[int, ...]:
        return tuple(self._model.encode_middle(prefix, suffix))

    def opens_thoughts(self, prompt: Sequence[int]) -> bool:
        return self.dialect.think is not None and self.dialect.opens_thoughts(
            self._model.decode(prompt)
        )

    def mark(self, text: str) -> str:
        return self._model.mark(text)

    def check_grammar(self, grammar: str) -> None:
        self._model.grammar(GrammarText(grammar))

    def cost(self, job: Job) -> int:
        num_tokens = len(job.prompt) + (job.max_tokens or self.context_length)
        num_tokens = min(num_tokens, self.context_length)
        return self._footprints[job.drafter].nbytes(num_tokens)

    def start(self, job: Job, emit: Callable[[Event], None], reserved: int) -> Running:
        model = self._models[job.drafter]
        model.shrink_prefixes(max(0, self.capacity - reserved))
        reader = _Reader(model, job, emit)
        threading.Thread(target=reader.read, name="localspec-reader", daemon=True).start()
        return reader

    def _fitting_context(self) -> int:
        """The model's context, or as much of it as one generation has memory for."""
        footprint = max(self._footprints.values(), key=lambda each: each.nbytes(4096))
        low, high = 0, self._model.context_length
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (
                (middle, high) if footprint.nbytes(middle) <= self.capacity else (low, middle - 1)
            )
        if low < min(_LEAST_CONTEXT, self._model.context_length):
            raise UsageError(f"there is too little memory to generate with '{self.name}'")
        return low


class _Reader:
    """Reads one generation, on its own thread, into events."""

    def __init__(self, model: Model, job: Job, emit: Callable[[Event], None]) -> None:
        self._model = model
        self._job = job
        self._emit = emit
        self._cancelled = threading.Event()
        self._stream: TextStream | None = None

    def cancel(self) -> None:
        self._cancelled.set()
        if self._stream is not None:
            self._stream.cancel()

    def read(self) -> None:
        try:
            self._emit(self._read())
        except LocalspecError as error:
            self._emit(Failed(error))
        except Exception as error:
            log.exception("a generation failed")
            self._emit(Failed(error))

    def _read(self) -> Ended:
        stream = self._stream = self._begin()
        if self._cancelled.is_set():
            stream.cancel()
        for piece in stream:
            logprobs = self._logprobs(piece.token_ids, piece.logprobs)
            self._emit(Said(piece.text, len(piece.token_ids), logprobs))
        result = stream.result
        return Ended(result.finish_reason, _figures(result.stats), result.stop)

    def _begin(self) -> TextStream:
        job, model = self._job, self._model
        fim = model.dialect.fim
        marks = fim.never if fim else frozenset[int]()
        sampling = _sampling_params(job.sampling)
        if marks and not job.fills:
            # The model must not write marks that mean something only in prompts.
            never = dict.fromkeys(marks, _NEVER)
            sampling = replace(sampling, logit_bias={**sampling.logit_bias, **never})
        grammar = None
        if job.grammar is not None:
            grammar = model.grammar(GrammarText(job.grammar, thinking=job.thinking))
        return model.stream_ids(
            job.prompt,
            sampling=sampling,
            max_tokens=job.max_tokens,
            seed=job.seed,
            stop=job.stop,
            stop_ids=marks if job.fills else frozenset(),
            width=job.width,
            grammar=grammar,
            logprobs=job.logprobs,
            asked=job.asked,
            on_prefill=lambda done, total: self._emit(Read(done, total)),
        )

    def _logprobs(
        self, token_ids: Sequence[int], entries: Sequence[EngineLogprob] | None
    ) -> tuple[TokenLogprob, ...]:
        text = self._model.token_text
        return tuple(
            TokenLogprob(
                text(token),
                entry.logprob,
                tuple((text(other), value) for other, value in entry.top),
            )
            for token, entry in zip(token_ids, entries or (), strict=False)
            if not self._model.is_stop(token)
        )


def _sampling_params(sampling: Sampling) -> SamplingParams:
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=dict(sampling.logit_bias),
    )


def _figures(stats: Stats) -> Figures:
    return Figures(
        prompt_tokens=stats.prompt_tokens,
        cached_tokens=stats.cached_tokens,
        generated_tokens=stats.generated_tokens,
        rounds=stats.rounds,
        proposed=stats.proposed,
        accepted=stats.accepted,
        widths=tuple(stats.widths),
        parked=stats.parked,
        arms=dict(stats.arms),
        prefill_s=stats.prefill_s,
        decode_s=stats.decode_s,
    )


def _author_sampling(model: Model) -> Sampling:
    """What generation_config.json recommends; else the most likely token."""
    try:
        config = json.loads((model.folder / "generation_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return Sampling()
    if not isinstance(config, dict) or not config.get("do_sample"):
        return Sampling()

    def given(name: str, default: float) -> float:
        value = config.get(name)
        return float(value) if isinstance(value, int | float) else default

    sampling = Sampling(
        temperature=given("temperature", 1.0),
        top_p=given("top_p", 1.0),
        top_k=int(given("top_k", 0)),
        min_p=given("min_p", 0.0),
        repetition_penalty=given("repetition_penalty", 1.0),
    )
    try:
        _sampling_params(sampling)
    except UsageError:
        return Sampling()
    return sampling


def _as_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """A conversation for a model that has no chat template."""
    text = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
    return text + "assistant:"
