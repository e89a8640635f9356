"""`/v1/chat/completions`: what is asked, and the two shapes of its answer."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from localspec.server.asks import (
    Ask,
    Tools,
    base_job,
    chat_ask,
    function_tool,
    schema_of,
    template_options,
)
from localspec.server.contents import call_message, text_of
from localspec.server.engine import Engine, TokenLogprob
from localspec.server.errors import bad
from localspec.server.fields import Lenient, Limit, SamplingFields, StreamOptions
from localspec.server.generations import Finish, Part, speculation, total

LEAST_LOGPROB = -9999.0


class Reasoning(Lenient):
    effort: str | None = None


class ChatMessage(Lenient):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Any] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class ChatRequest(SamplingFields):
    """The body of a chat request."""

    messages: list[ChatMessage] = Field(min_length=1)
    stream_options: StreamOptions | None = None
    max_completion_tokens: Limit | None = None
    max_tokens: Limit | None = None
    n: int | None = Field(None, ge=1, le=16)
    stop: str | list[str] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    reasoning: Reasoning | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    modalities: list[str] | None = None


def chat_request_ask(request: ChatRequest, engine: Engine) -> Ask:
    """
    Raises:
        ApiError: something is wrong, or cannot be honoured.
    """
    if request.modalities and request.modalities != ["text"]:
        raise bad("modalities: this model writes text alone", "modalities")
    job = base_job(request, engine, "max_completion_tokens", "max_tokens")
    job = replace(
        job,
        stop=stops_of(request.stop),
        logprobs=_num_logprobs(request),
        sampling=replace(job.sampling, logit_bias=bias_of(request.logit_bias, engine)),
    )
    effort = request.reasoning_effort or (request.reasoning.effort if request.reasoning else None)
    return chat_ask(
        engine,
        job,
        _messages(request),
        _tools(request),
        schema=schema_of(request.response_format, "response_format"),
        options=template_options(request.chat_template_kwargs, effort, "chat_template_kwargs"),
    )


def stops_of(stop: str | list[str] | None) -> tuple[str, ...]:
    """Stop strings; empty ones, which clients send for none, are left out."""
    stops = [stop] if isinstance(stop, str) else stop or []
    return tuple(dict.fromkeys(text for text in stops if text))


def bias_of(bias: Mapping[str, float] | None, engine: Engine) -> dict[int, float]:
    found = {}
    for token, value in (bias or {}).items():
        if not token.isdecimal() or int(token) >= engine.vocab_size:
            raise bad(f"logit_bias: '{token[:40]}' is no token id", "logit_bias")
        found[int(token)] = value
    return found


def _num_logprobs(request: ChatRequest) -> int | None:
    if request.top_logprobs and not request.logprobs:
        raise bad("top_logprobs needs logprobs to be true", "top_logprobs")
    return (request.top_logprobs or 0) if request.logprobs else None


def _messages(request: ChatRequest) -> list[dict[str, Any]]:
    return [
        _message(message, f"messages.{index}") for index, message in enumerate(request.messages)
    ]


def _message(message: ChatMessage, where: str) -> dict[str, Any]:
    content = text_of(message.content, f"{where}.content")
    if message.role == "assistant":
        if not message.tool_calls:
            return {"role": "assistant", "content": content or ""}
        calls = []
        for index, call in enumerate(message.tool_calls):
            function = call.get("function")
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise bad(f"{where}.tool_calls.{index} has no function name", f"{where}.tool_calls")
            calls.append((str(call.get("id")), function["name"], function.get("arguments")))
        return call_message(calls, content)
    if message.role in ("tool", "function"):
        return {
            "role": "tool",
            "content": content or "",
            "tool_call_id": message.tool_call_id or "",
            "name": message.name or "",
        }
    if content is None:
        raise bad(f"{where}.content is missing", f"{where}.content")
    return {"role": message.role, "content": content}


def _tools(request: ChatRequest) -> Tools:
    functions = []
    for index, tool in enumerate(request.tools or []):
        where = f"tools.{index}"
        if not isinstance(tool, dict):
            raise bad(f"{where} must be an object", where)
        if tool.get("type", "function") != "function":
            raise bad(f"{where}.type must be 'function'", f"{where}.type")
        functions.append(function_tool(tool.get("function"), f"{where}.function"))
    choice, named = chosen_tool(request.tool_choice)
    return Tools(functions, choice, named, parallel=request.parallel_tool_calls is not False)


def chosen_tool(choice: str | dict[str, Any] | None) -> tuple[str, bool]:
    """A tool choice, and whether it is a function's name.

    Raises:
        ApiError: it is none that can be enforced.
    """
    if choice is None:
        return "auto", False
    if isinstance(choice, dict) and choice.get("type") in ("none", "auto", "required"):
        choice = str(choice["type"])
    if isinstance(choice, str):
        if choice not in ("none", "auto", "required"):
            raise bad(
                f"tool_choice must be none, auto, required or a function, not '{choice[:80]}'",
                "tool_choice",
            )
        return choice, False
    function = choice.get("function", choice)
    name = function.get("name") if isinstance(function, dict) else None
    if choice.get("type") != "function" or not isinstance(name, str):
        raise bad("tool_choice must name a function", "tool_choice")
    return name, True


# The answer.


def new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(12)


@dataclass(slots=True)
class Choice:
    """One answer as it grows, and at its end a whole message."""

    index: int = 0
    text: str = ""
    thoughts: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    finish: Finish | None = None

    def take(self, part: Part) -> list[dict[str, Any]]:
        """Add a part; give the deltas that tell of it."""
        deltas: list[dict[str, Any]] = []
        delta = part.delta
        self.logprobs += map(logprob_entry, part.logprobs)
        if delta.thoughts:
            self.thoughts += delta.thoughts
            deltas.append({"reasoning_content": delta.thoughts})
        if delta.text:
            self.text += delta.text
            deltas.append({"content": delta.text})
        for call in delta.calls:
            if call.name is not None:
                function = {"name": call.name, "arguments": call.arguments}
                entry = {"id": new_id("call_"), "type": "function", "function": function}
                self.calls.append(entry)
                shown = {"index": call.index, **entry, "function": dict(function)}
            else:
                self.calls[call.index]["function"]["arguments"] += call.arguments
                shown = {"index": call.index, "function": {"arguments": call.arguments}}
            deltas.append({"tool_calls": [shown]})
        return deltas

    def message(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self.text, "refusal": None}
        if self.calls:
            message["tool_calls"] = self.calls
            message["content"] = self.text or None
        if self.thoughts:
            message["reasoning_content"] = self.thoughts
        return message


def logprob_entry(token: TokenLogprob) -> dict[str, Any]:
    return {
        **_one_logprob(token.text, token.logprob),
        "top_logprobs": [_one_logprob(text, logprob) for text, logprob in token.top],
    }


def _one_logprob(text: str, logprob: float) -> dict[str, Any]:
    return {
        "token": text,
        "logprob": max(logprob, LEAST_LOGPROB),
        "bytes": list(text.encode("utf-8", "replace")),
    }


@dataclass(slots=True)
class ChatAnswer:
    """Bodies and chunks of one answer."""

    model: str
    drafter: str
    wants_logprobs: bool = False
    id: str = field(default_factory=lambda: new_id("chatcmpl-"))
    created: int = field(default_factory=lambda: int(time.time()))

    def body(self, choices: list[Choice]) -> dict[str, Any]:
        return {
            **self._frame("chat.completion"),
            "choices": [self._choice(choice) for choice in choices],
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
        entry: dict[str, Any] = {"index": index, "delta": delta, "finish_reason": reason}
        entry["logprobs"] = {"content": logprobs, "refusal": None} if logprobs else None
        return {**self._frame("chat.completion.chunk"), "choices": [entry]}

    def usage_chunk(self, choices: list[Choice]) -> dict[str, Any]:
        frame = self._frame("chat.completion.chunk")
        return {**frame, "choices": [], "usage": usage(choices, self.drafter)}

    def _frame(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _choice(self, choice: Choice) -> dict[str, Any]:
        assert choice.finish is not None
        logprobs = {"content": choice.logprobs, "refusal": None} if self.wants_logprobs else None
        return {
            "index": choice.index,
            "message": choice.message(),
            "logprobs": logprobs,
            "finish_reason": choice.finish.reason,
        }


def usage(choices: list[Choice], drafter: str) -> dict[str, Any]:
    """Tokens of all choices, and what drafting did."""
    finishes = [choice.finish for choice in choices if choice.finish]
    figures = total([finish.figures for finish in finishes])
    return {
        "prompt_tokens": figures.prompt_tokens,
        "completion_tokens": figures.generated_tokens,
        "total_tokens": figures.prompt_tokens + figures.generated_tokens,
        "prompt_tokens_details": {"cached_tokens": figures.cached_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": sum(finish.thought_tokens for finish in finishes),
            "accepted_prediction_tokens": figures.accepted,
            "rejected_prediction_tokens": figures.proposed - figures.accepted,
        },
        "speculative": speculation(figures, drafter),
    }
