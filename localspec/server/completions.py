"""`/v1/completions`: raw text to be continued, or filled in before a suffix."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import Field

from localspec.errors import UsageError
from localspec.history import Asked
from localspec.server.asks import Ask, base_job, fitting
from localspec.server.chat import LEAST_LOGPROB, Choice, bias_of, new_id, stops_of, usage
from localspec.server.engine import Engine, Job
from localspec.server.errors import bad
from localspec.server.fields import Limit, SamplingFields, StreamOptions
from localspec.text.answer import AnswerFormat

_MOST_PROMPTS = 16
TokenId = Annotated[int, Field(ge=0)]


class CompletionRequest(SamplingFields):
    """The body of a completion request."""

    prompt: str | list[TokenId] | list[str] | list[list[TokenId]]
    suffix: str | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Limit | None = None
    n: int | None = Field(None, ge=1, le=16)
    best_of: int | None = None
    echo: bool = False
    stop: str | list[str] | None = None
    logprobs: int | None = Field(None, ge=0, le=20)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None


def completion_asks(request: CompletionRequest, engine: Engine) -> list[Ask]:
    """One ask for each prompt.

    Raises:
        ApiError: something is wrong, or cannot be honoured.
    """
    if request.echo and request.logprobs is not None:
        raise bad("echo: log-probabilities of the prompt are not computed; leave one out", "echo")
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise bad("best_of must be equal to n", "best_of")
    job = base_job(request, engine, "max_tokens")
    job = replace(
        job,
        stop=stops_of(request.stop),
        logprobs=request.logprobs,
        sampling=replace(job.sampling, logit_bias=bias_of(request.logit_bias, engine)),
    )
    prompts = _prompts(request.prompt)
    if not 1 <= len(prompts) <= _MOST_PROMPTS:
        raise bad(f"prompt must have 1 to {_MOST_PROMPTS} texts", "prompt")
    return [
        fitting(
            engine,
            Ask(
                _with_prompt(job, prompt, request, engine),
                AnswerFormat(),
                "prompt",
                echo=_as_text(prompt, engine) if request.echo else "",
            ),
        )
        for prompt in prompts
    ]


def _prompts(prompt: Any) -> list[Any]:
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
        return [prompt]
    return list(prompt)


def _as_text(prompt: Any, engine: Engine) -> str:
    return prompt if isinstance(prompt, str) else engine.decode(prompt)


def _with_prompt(job: Job, prompt: Any, request: CompletionRequest, engine: Engine) -> Job:
    if isinstance(prompt, str):
        if not request.suffix:
            return replace(job, prompt=engine.encode_text(prompt), asked=Asked(prompt, raw=True))
        try:
            return replace(job, prompt=engine.encode_middle(prompt, request.suffix), fills=True)
        except UsageError as error:
            raise bad(f"suffix: {error}", "suffix") from None
    if request.suffix:
        raise bad("suffix needs a prompt that is text", "suffix")
    if not prompt:
        raise bad("prompt holds an empty list", "prompt")
    if max(prompt) >= engine.vocab_size:
        raise bad(f"prompt holds {max(prompt)}, which is no token id", "prompt")
    return replace(job, prompt=tuple(prompt))


@dataclass(slots=True)
class CompletionAnswer:
    """Bodies and chunks of one answer."""

    model: str
    drafter: str
    wants_logprobs: bool = False
    id: str = field(default_factory=lambda: new_id("cmpl-"))
    created: int = field(default_factory=lambda: int(time.time()))

    def body(self, choices: list[Choice]) -> dict[str, Any]:
        return {
            **self._frame(),
            "choices": [
                {
                    "index": choice.index,
                    "text": choice.text,
                    "logprobs": _logprobs(choice.logprobs) if self.wants_logprobs else None,
                    "finish_reason": choice.finish.reason if choice.finish else None,
                }
                for choice in choices
            ],
            "usage": usage(choices, self.drafter),
        }

    def chunk(
        self,
        index: int,
        delta: dict[str, Any],
        *,
        reason: str | None = None,
        logprobs: list[dict[str, Any]] | None = None,
    ) -> dict[str, Any]:
        entry = {"index": index, "text": delta.get("content", ""), "finish_reason": reason}
        entry["logprobs"] = _logprobs(logprobs) if logprobs else None
        return {**self._frame(), "choices": [entry]}

    def usage_chunk(self, choices: list[Choice]) -> dict[str, Any]:
        return {**self._frame(), "choices": [], "usage": usage(choices, self.drafter)}

    def _frame(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
        }


def _logprobs(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """In this route's own, older shape."""
    offsets, position = [], 0
    for entry in entries:
        offsets.append(position)
        position += len(entry["token"])
    return {
        "tokens": [entry["token"] for entry in entries],
        "token_logprobs": [max(entry["logprob"], LEAST_LOGPROB) for entry in entries],
        "top_logprobs": [
            {top["token"]: top["logprob"] for top in entry["top_logprobs"]} for entry in entries
        ],
        "text_offset": offsets,
    }
