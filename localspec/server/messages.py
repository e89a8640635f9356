"""`/v1/messages`: Anthropic's protocol, as Claude Code speaks it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

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
from localspec.server.chat import Choice, new_id, stops_of, usage
from localspec.server.contents import arguments_of, call_message, text_of
from localspec.server.engine import Engine
from localspec.server.errors import ApiError, bad
from localspec.server.fields import Lenient, Limit, SamplingFields

_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "stop": "end_turn"}


class InputMessage(Lenient):
    role: Literal["user", "assistant", "system"]
    content: str | list[Any]


class Thinking(Lenient):
    type: str = "disabled"


class OutputConfig(Lenient):
    format: dict[str, Any] | None = None


class MessagesRequest(SamplingFields):
    """The body of a messages request."""

    messages: list[InputMessage] = Field(min_length=1)
    system: str | list[Any] | None = None
    max_tokens: Limit | None = None
    stop_sequences: list[str] | None = None
    tools: list[Any] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: Thinking | None = None
    output_format: dict[str, Any] | None = None
    output_config: OutputConfig | None = None


def messages_ask(request: MessagesRequest, engine: Engine) -> Ask:
    """
    Raises:
        ApiError: something is wrong, or cannot be honoured.
    """
    job = base_job(request, engine, "max_tokens")
    job = replace(job, stop=stops_of(request.stop_sequences))
    messages: list[dict[str, Any]] = []
    if system := _system(request.system):
        messages.append({"role": "system", "content": system})
    for index, message in enumerate(request.messages):
        messages += _messages(message, f"messages.{index}")
    thinks = request.thinking is None or request.thinking.type != "disabled"
    config = request.output_config or OutputConfig()
    param = "output_format" if request.output_format else "output_config.format"
    return chat_ask(
        engine,
        job,
        messages,
        _tools(request),
        schema=schema_of(request.output_format or config.format, param),
        options=template_options(None, None if thinks else "none", "thinking"),
        schema_param=param,
    )


def _system(system: str | list[Any] | None) -> str | None:
    if not isinstance(system, list):
        return system
    blocks = [text_of([block], f"system.{index}") for index, block in enumerate(system)]
    return "\n".join(block for block in blocks if block)


def _messages(message: InputMessage, where: str) -> list[dict[str, Any]]:
    content = message.content
    if isinstance(content, str):
        return [{"role": message.role, "content": content}]
    calls: list[tuple[str, str, Any]] = []
    results: list[dict[str, Any]] = []
    texts: list[Any] = []
    for index, block in enumerate(content):
        at = f"{where}.content.{index}"
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use":
            if not isinstance(block.get("name"), str):
                raise bad(f"{at}.name must be a string", f"{at}.name")
            calls.append((str(block.get("id")), block["name"], block.get("input")))
        elif kind == "tool_result":
            results.append(
                {
                    "role": "tool",
                    "content": text_of(block.get("content"), f"{at}.content") or "",
                    "tool_call_id": str(block.get("tool_use_id") or ""),
                    "name": "",
                }
            )
        else:
            texts.append(text_of([block], at))
    text = "\n".join(part for part in texts if part)
    if calls:
        return [call_message(calls, text)]
    if results:
        return [*results, *([{"role": message.role, "content": text}] if text else [])]
    return [{"role": message.role, "content": text}]


def _tools(request: MessagesRequest) -> Tools:
    functions = []
    for index, tool in enumerate(request.tools or []):
        where = f"tools.{index}"
        if not isinstance(tool, dict):
            raise bad(f"{where} must be an object", where)
        if tool.get("type") not in (None, "custom"):
            continue  # a tool that the hosted service runs itself
        function = {**tool, "parameters": tool.get("input_schema")}
        functions.append(function_tool(function, where))
    choice = request.tool_choice or {}
    kind = choice.get("type", "auto")
    parallel = not choice.get("disable_parallel_tool_use")
    if kind == "tool":
        if not isinstance(choice.get("name"), str):
            raise bad("tool_choice.name must be a string", "tool_choice.name")
        return Tools(functions, choice["name"], named=True, parallel=parallel)
    if kind not in ("auto", "any", "none"):
        raise bad("tool_choice.type must be auto, any, tool or none", "tool_choice.type")
    return Tools(functions, "required" if kind == "any" else kind, parallel=parallel)


# The answer.


@dataclass(slots=True)
class MessagesAnswer:
    """A message as it grows: its blocks, and the events that tell of them."""

    model: str
    drafter: str
    id: str = field(default_factory=lambda: new_id("msg_"))
    choice: Choice = field(default_factory=Choice)
    _blocks: list[dict[str, Any]] = field(default_factory=list)
    _open: bool = False

    def begin(self, num_prompt: int, num_cached: int) -> list[dict[str, Any]]:
        message = {
            **self._frame(),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {**_input_usage(num_prompt, num_cached), "output_tokens": 0},
        }
        return [{"type": "message_start", "message": message}]

    def take(self, deltas: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Events for the deltas of a choice."""
        events: list[dict[str, Any]] = []
        for delta in deltas:
            if thoughts := delta.get("reasoning_content"):
                events += self._into("thinking", {"thinking": "", "signature": ""})
                self._blocks[-1]["thinking"] += thoughts
                events.append(self._delta({"type": "thinking_delta", "thinking": thoughts}))
            if text := delta.get("content"):
                events += self._into("text", {"text": ""})
                self._blocks[-1]["text"] += text
                events.append(self._delta({"type": "text_delta", "text": text}))
            for call in delta.get("tool_calls", ()):
                events += self._call(call)
        return events

    def end(self) -> list[dict[str, Any]]:
        """The last events, once the choice has ended."""
        events = [] if self._blocks else self._into("text", {"text": ""})
        events += self._close()
        body = self.body()
        return [
            *events,
            {
                "type": "message_delta",
                "delta": {
                    "stop_reason": body["stop_reason"],
                    "stop_sequence": body["stop_sequence"],
                },
                "usage": body["usage"],
            },
            {"type": "message_stop"},
        ]

    def failure(self, error: ApiError) -> dict[str, Any]:
        return error.anthropic()

    def body(self) -> dict[str, Any]:
        finish = self.choice.finish
        assert finish is not None
        reason = "stop_sequence" if finish.stop is not None else _REASONS[finish.reason]
        if finish.reason == "tool_calls":
            reason = "tool_use"
        return {
            **self._frame(),
            "content": [_finished(block) for block in self._blocks],
            "stop_reason": reason,
            "stop_sequence": finish.stop if reason == "stop_sequence" else None,
            "usage": self._usage(),
        }

    def _usage(self) -> dict[str, Any]:
        chat = usage([self.choice], self.drafter)
        cached = chat["prompt_tokens_details"]["cached_tokens"]
        return {
            **_input_usage(chat["prompt_tokens"], cached),
            "output_tokens": chat["completion_tokens"],
            "speculative": chat["speculative"],
        }

    def _frame(self) -> dict[str, Any]:
        return {"id": self.id, "type": "message", "role": "assistant", "model": self.model}

    def _into(self, kind: str, empty: dict[str, Any]) -> list[dict[str, Any]]:
        """Open a block of this kind unless it is open."""
        if self._open and self._blocks[-1]["type"] == kind:
            return []
        return [*self._close(), self._start({"type": kind, **empty})]

    def _call(self, call: dict[str, Any]) -> list[dict[str, Any]]:
        events = []
        if "id" in call:
            name = call["function"]["name"]
            block = {"type": "tool_use", "id": "toolu_" + call["id"].removeprefix("call_")}
            events += [*self._close(), self._start({**block, "name": name, "input": {}})]
            self._blocks[-1]["partial"] = ""
        if arguments := call["function"]["arguments"]:
            self._blocks[-1]["partial"] += arguments
            events.append(self._delta({"type": "input_json_delta", "partial_json": arguments}))
        return events

    def _start(self, block: dict[str, Any]) -> dict[str, Any]:
        self._open = True
        self._blocks.append(dict(block))
        index = len(self._blocks) - 1
        return {"type": "content_block_start", "index": index, "content_block": block}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}

    def _close(self) -> list[dict[str, Any]]:
        if not self._open:
            return []
        self._open = False
        return [{"type": "content_block_stop", "index": len(self._blocks) - 1}]


def _finished(block: dict[str, Any]) -> dict[str, Any]:
    if "partial" not in block:
        return block
    whole = {name: value for name, value in block.items() if name != "partial"}
    return {**whole, "input": arguments_of(block["partial"])}


def _input_usage(num_prompt: int, num_cached: int) -> dict[str, int]:
    """In this protocol the three add up to the prompt."""
    return {
        "input_tokens": num_prompt - num_cached,
        "cache_read_input_tokens": num_cached,
        "cache_creation_input_tokens": 0,
    }
