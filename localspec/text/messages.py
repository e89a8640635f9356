"""Chat messages as clients send them, made into what chat templates take.

Templates are strict: one system message, first; contents that are strings; no roles that they do not
know. For templates that know nothing of tools, tools and calls are written out as text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from localspec.text.tools import ToolFormat

NONCE = "x-anthropic-billing-header:"
"""Begins a line that changes with every request and is not meant for the model."""

Message = dict[str, Any]


def for_template(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    format: ToolFormat,
) -> list[Message]:
    """Messages with one leading system message, if any, and string contents.

    Args:
        messages: role (system, developer, user, assistant, tool), content (a string or None), and by the
            assistant `tool_calls`, whose arguments are objects.
        tools: as the template would get them.
        format: of calls; where it is not native, tools and calls become text.
    """
    system = [str(m["content"]) for m in messages if _is_system(m) and m.get("content")]
    rest = [dict(m) for m in messages if not _is_system(m)]
    if system:
        system[0] = without_nonce(system[0])
    if not format.native:
        rest = _written_out([_as_text(m, format) for m in rest])
        if tools:
            system.append(_tool_instructions(tools, format))
    text = "\n\n".join(part for part in system if part)
    return [{"role": "system", "content": text}, *rest] if text else rest


def in_turns(messages: Sequence[Message]) -> list[Message]:
    """For templates that know no system message, or want user and assistant to take turns.

    The system text goes before the first user's, and messages of one role in a row become one.
    """
    turned: list[Message] = []
    for message in messages:
        message = {**message, "role": "user"} if message["role"] == "system" else message
        before = turned[-1] if turned else None
        plain = not message.get("tool_calls") and message["role"] != "tool"
        if before and plain and before["role"] == message["role"] and not before.get("tool_calls"):
            turned[-1] = {**before, "content": f"{before['content']}\n\n{message['content']}"}
        else:
            turned.append(message)
    return turned


def without_nonce(system: str) -> str:
    """The system text without a first line that would spoil the prefix cache."""
    if not system.startswith(NONCE):
        return system
    return system.partition("\n")[2].lstrip("\n")


def _is_system(message: Mapping[str, Any]) -> bool:
    return message["role"] in ("system", "developer")


def _as_text(message: Message, format: ToolFormat) -> Message:
    content = message.get("content") or ""
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    calls = [_written(call, format) for call in message.get("tool_calls") or ()]
    return {
        "role": message["role"],
        "content": "\n".join([*([content] if content or not calls else []), *calls]),
    }


def _written(call: Mapping[str, Any], format: ToolFormat) -> str:
    function = call["function"]
    body = {"name": function["name"], "arguments": function["arguments"]}
    return f"{format.start}\n{json.dumps(body, ensure_ascii=False)}\n{format.end}"


def _written_out(messages: list[Message]) -> list[Message]:
    """Results that follow each other are one message, since many templates want turns."""
    joined: list[Message] = []
    for message in messages:
        response = message["content"].startswith("<tool_response>")
        if response and joined and joined[-1]["content"].endswith("</tool_response>"):
            joined[-1] = {**joined[-1], "content": f"{joined[-1]['content']}\n{message['content']}"}
        else:
            joined.append(message)
    return joined


def _tool_instructions(tools: Sequence[Mapping[str, Any]], format: ToolFormat) -> str:
    described = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    example = f'{format.start}\n{{"name": "NAME", "arguments": {{...}}}}\n{format.end}'
    return (
        f"You can call functions. These are described here, one a line:\n{described}\n\n"
        f"To call one, write its name and its arguments as JSON, like this:\n{example}\n"
        "Its result follows in the next message. Without need of a function, just answer."
    )
