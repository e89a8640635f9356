"""`/v1/responses`: items in, items out, and conversations that go on by an id."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

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
from localspec.server.chat import (
    LEAST_LOGPROB,
    Choice,
    Reasoning,
    chosen_tool,
    new_id,
    stops_of,
    usage,
)
from localspec.server.contents import call_message, text_of
from localspec.server.engine import Engine
from localspec.server.errors import ApiError, bad
from localspec.server.fields import Lenient, Limit, SamplingFields
from localspec.server.store import Store


class TextOptions(Lenient):
    format: dict[str, Any] | None = None


class ResponsesRequest(SamplingFields):
    """The body of a responses request."""

    input: str | list[Any] = ""
    instructions: str | list[Any] | None = None
    previous_response_id: str | None = None
    max_output_tokens: Limit | None = None
    stop: str | list[str] | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    include: list[str] | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    background: bool = False
    conversation: Any = None
    prompt: Any = None


def responses_ask(
    request: ResponsesRequest, engine: Engine, store: Store
) -> tuple[Ask, list[dict[str, Any]]]:
    """What is asked, and the conversation so far, without instructions.

    Raises:
        ApiError: something is wrong, or cannot be honoured.
    """
    for name in ("background", "conversation", "prompt"):
        if getattr(request, name):
            raise bad(f"{name} is not supported", name)
    job = base_job(request, engine, "max_output_tokens")
    wants_logprobs = "message.output_text.logprobs" in (request.include or ())
    job = replace(
        job,
        stop=stops_of(request.stop),
        logprobs=(request.top_logprobs or 0) if wants_logprobs or request.top_logprobs else None,
    )
    previous = store.get(request.previous_response_id) if request.previous_response_id else []
    messages = [*previous, *_messages(request.input)]
    instructions = text_of(request.instructions, "instructions")
    system = [{"role": "system", "content": instructions}] if instructions else []
    effort = request.reasoning.effort if request.reasoning else None
    ask = chat_ask(
        engine,
        job,
        [*system, *messages],
        _tools(request),
        schema=schema_of(request.text.format if request.text else None, "text.format"),
        options=template_options(request.chat_template_kwargs, effort, "chat_template_kwargs"),
        param="input",
        schema_param="text.format",
    )
    return ask, messages


def _messages(given: str | list[Any]) -> list[dict[str, Any]]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[dict[str, Any]] = []
    for index, item in enumerate(given):
        where = f"input.{index}"
        if isinstance(item, str):
            messages.append({"role": "user", "content": item})
            continue
        if not isinstance(item, dict):
            raise bad(f"{where} must be an object", where)
        message = _item_message(item, where)
        if message is None:
            continue
        calls = message.get("tool_calls")
        if calls and messages and messages[-1].get("tool_calls"):
            messages[-1]["tool_calls"].extend(calls)
        else:
            messages.append(message)
    return messages or [{"role": "user", "content": ""}]


def _item_message(item: dict[str, Any], where: str) -> dict[str, Any] | None:
    """A message for an item; None for kinds that say nothing to this model."""
    kind = item.get("type", "message")
    if kind == "message":
        role = item.get("role")
        if role not in ("system", "developer", "user", "assistant"):
            raise bad(f"{where}.role must be system, developer, user or assistant", f"{where}.role")
        content = text_of(item.get("content"), f"{where}.content")
        if content is None and role != "assistant":
            raise bad(f"{where}.content is missing", f"{where}.content")
        return {"role": role, "content": content or ""}
    if kind in ("function_call", "custom_tool_call"):
        if not isinstance(item.get("name"), str):
            raise bad(f"{where}.name must be a string", f"{where}.name")
        arguments = item.get("arguments", item.get("input"))
        return call_message([(str(item.get("call_id")), item["name"], arguments)], None)
    if kind in ("function_call_output", "custom_tool_call_output"):
        output = item.get("output")
        if isinstance(output, dict):
            output = output.get("content", "")
        return {
            "role": "tool",
            "content": text_of(output, f"{where}.output") or "",
            "tool_call_id": str(item.get("call_id") or ""),
            "name": "",
        }
    return None


def _tools(request: ResponsesRequest) -> Tools:
    """Functions; tools of other types are skipped, as they are the hosted service's own."""
    functions = []
    for index, tool in enumerate(request.tools or []):
        if not isinstance(tool, dict):
            raise bad(f"tools.{index} must be an object", f"tools.{index}")
        if tool.get("type") == "function":
            functions.append(function_tool(tool.get("function", tool), f"tools.{index}"))
    choice, named = chosen_tool(request.tool_choice)
    if not functions and not named and choice == "required":
        raise bad("tool_choice is required, but there is no function to call", "tool_choice")
    return Tools(functions, choice, named, parallel=request.parallel_tool_calls is not False)


# The answer.


@dataclass(slots=True)
class ResponsesAnswer:
    """A response as it grows: its items, and the events that tell of them."""

    request: ResponsesRequest
    model: str
    drafter: str
    id: str = field(default_factory=lambda: new_id("resp_"))
    created: int = field(default_factory=lambda: int(time.time()))
    items: list[dict[str, Any]] = field(default_factory=list)
    choice: Choice = field(default_factory=Choice)
    _number: int = 0

    def begin(self) -> list[dict[str, Any]]:
        started = self.body("in_progress")
        return [
            self._event("response.created", response=started),
            self._event("response.in_progress", response=started),
        ]

    def take(self, deltas: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Events for the deltas of a choice."""
        events: list[dict[str, Any]] = []
        for delta in deltas:
            if "reasoning_content" in delta:
                events += self._text("reasoning", delta["reasoning_content"])
            elif "content" in delta:
                events += self._text("message", delta["content"])
            for call in delta.get("tool_calls", ()):
                events += self._call(call)
        return events

    def end(self) -> list[dict[str, Any]]:
        """The last events, once the choice has ended."""
        if not self.items:
            self.items.append(_item("message"))
            events = [self._added(), self._part_added()]
        else:
            events = []
        events += self._done()
        final = self.final()
        return [*events, self._event(f"response.{final['status']}", response=final)]

    def final(self) -> dict[str, Any]:
        """The whole response, after `end`."""
        return self.body(self._status())

    def failure(self, error: ApiError) -> dict[str, Any]:
        body = self.body("failed")
        # This protocol's clients look for the code here.
        body["error"] = {"code": error.code or "server_error", "message": error.message}
        return self._event("response.failed", response=body)

    def _status(self) -> str:
        assert self.choice.finish is not None
        return "incomplete" if self.choice.finish.reason == "length" else "completed"

    def body(self, status: str) -> dict[str, Any]:
        request = self.request
        finished = status in ("completed", "incomplete")
        effort = request.reasoning.effort if request.reasoning else None
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "error": None,
            "incomplete_details": cut,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {},
            "model": self.model,
            "output": [dict(item) for item in self.items],
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": request.previous_response_id,
            "reasoning": {"effort": effort, "summary": None},
            "store": request.store is not False,
            "temperature": request.temperature,
            "text": {"format": (request.text and request.text.format) or {"type": "text"}},
            "tool_choice": request.tool_choice or "auto",
            "tools": [tool for tool in request.tools or [] if _is_function(tool)],
            "top_p": request.top_p,
            "truncation": "disabled",
            "usage": responses_usage(self.choice, self.drafter) if finished else None,
        }

    def _text(self, kind: str, text: str) -> list[dict[str, Any]]:
        events = []
        if not self.items or self.items[-1]["type"] != kind:
            events += self._done()
            self.items.append(_item(kind))
            events += [self._added(), self._part_added()]
        part = self.items[-1]["content"][0]
        part["text"] += text
        name = "reasoning_text" if kind == "reasoning" else "output_text"
        event = self._event(f"response.{name}.delta", **self._at(), content_index=0, delta=text)
        if kind == "message":
            event["logprobs"] = []
        return [*events, event]

    def _call(self, call: dict[str, Any]) -> list[dict[str, Any]]:
        events = []
        if "id" in call:
            events += self._done()
            self.items.append(
                {
                    "type": "function_call",
                    "id": new_id("fc_"),
                    "call_id": call["id"],
                    "name": call["function"]["name"],
                    "arguments": "",
                    "status": "in_progress",
                }
            )
            events.append(self._added())
        arguments = call["function"]["arguments"]
        if arguments:
            self.items[-1]["arguments"] += arguments
            name = "response.function_call_arguments.delta"
            events.append(self._event(name, **self._at(), delta=arguments))
        return events

    def _added(self) -> dict[str, Any]:
        item = dict(self.items[-1])
        if "content" in item:
            item["content"] = []
        return self._event(
            "response.output_item.added", output_index=len(self.items) - 1, item=item
        )

    def _part_added(self) -> dict[str, Any]:
        part = dict(self.items[-1]["content"][0])
        return self._event("response.content_part.added", **self._at(), content_index=0, part=part)

    def _done(self) -> list[dict[str, Any]]:
        """Close the item that is open."""
        if not self.items or self.items[-1]["status"] != "in_progress":
            return []
        item, events = self.items[-1], []
        finish = self.choice.finish
        cut = finish is not None and finish.reason == "length"
        item["status"] = "incomplete" if cut else "completed"
        if item["type"] == "function_call":
            name = "response.function_call_arguments.done"
            events.append(
                self._event(name, **self._at(), name=item["name"], arguments=item["arguments"])
            )
        else:
            (part,) = item["content"]
            name = "reasoning_text" if item["type"] == "reasoning" else "output_text"
            if "logprobs" in part:
                part["logprobs"] = [
                    {**entry, "logprob": max(entry["logprob"], LEAST_LOGPROB)}
                    for entry in self.choice.logprobs
                ]
            events.append(
                self._event(
                    f"response.{name}.done", **self._at(), content_index=0, text=part["text"]
                )
            )
            if item["type"] == "message":
                events[-1]["logprobs"] = part["logprobs"]
            events.append(
                self._event(
                    "response.content_part.done", **self._at(), content_index=0, part=dict(part)
                )
            )
        events.append(
            self._event(
                "response.output_item.done", output_index=len(self.items) - 1, item=dict(item)
            )
        )
        return events

    def _at(self) -> dict[str, Any]:
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        number = self._number
        self._number += 1
        return {"type": kind, "sequence_number": number, **fields}


def _item(kind: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {
            "type": "reasoning",
            "id": new_id("rs_"),
            "summary": [],
            "content": [{"type": "reasoning_text", "text": ""}],
            "status": "in_progress",
        }
    return {
        "type": "message",
        "id": new_id("msg_"),
        "role": "assistant",
        "content": [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}],
        "status": "in_progress",
    }


def _is_function(tool: Any) -> bool:
    return isinstance(tool, dict) and tool.get("type") == "function"


def responses_usage(choice: Choice, drafter: str) -> dict[str, Any]:
    """Usage in this protocol's words."""
    chat = usage([choice], drafter)
    return {
        "input_tokens": chat["prompt_tokens"],
        "input_tokens_details": chat["prompt_tokens_details"],
        "output_tokens": chat["completion_tokens"],
        "output_tokens_details": chat["completion_tokens_details"],
        "total_tokens": chat["total_tokens"],
        "speculative": chat["speculative"],
    }


def said(choice: Choice) -> list[dict[str, Any]]:
    """The assistant's message, to go on from."""
    if not choice.calls:
        return [{"role": "assistant", "content": choice.text}]
    calls = [
        (call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in choice.calls
    ]
    return [call_message(calls, choice.text)]
