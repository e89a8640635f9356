"""Contents of messages, in every protocol's shape, to plain text."""

from __future__ import annotations

import json
from typing import Any

from localspec.server.errors import bad

_TEXT = {"text", "input_text", "output_text"}
_SKIPPED = {
    "refusal",
    "thinking",
    "redacted_thinking",
    "reasoning",
    "summary_text",
    "reasoning_text",
}
_KINDS = {
    "image": "images",
    "image_url": "images",
    "input_image": "images",
    "input_audio": "sound",
    "audio": "sound",
    "file": "files",
    "input_file": "files",
    "document": "files",
    "video_url": "videos",
}


def text_of(content: Any, param: str) -> str | None:
    """The text of a string or a list of parts; None for null.

    Raises:
        ApiError: there is something that a text model cannot read.
    """
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad(f"{param} must be a string or a list of parts", param)
    texts = []
    for index, part in enumerate(content):
        if isinstance(part, str):
            texts.append(part)
            continue
        where = f"{param}.{index}"
        if not isinstance(part, dict):
            raise bad(f"{where} must be an object", where)
        kind = part.get("type", "text")
        if kind in _TEXT:
            text = part.get("text")
            if not isinstance(text, str):
                raise bad(f"{where}.text must be a string", f"{where}.text")
            texts.append(text)
        elif kind in _KINDS:
            raise bad(
                f"{where} is of the type {kind}: this model reads text, no {_KINDS[kind]}", where
            )
        elif kind not in _SKIPPED:
            raise bad(f"{where} is of the unknown type {json.dumps(kind)[:80]}", where)
    return "".join(texts)


def arguments_of(arguments: Any) -> dict[str, Any]:
    """A call's arguments as an object, also where a limit has cut them when they were written."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError):
            return {"input": arguments}
    return arguments if isinstance(arguments, dict) else {"input": arguments}


def call_message(calls: list[tuple[str, str, Any]], content: str | None) -> dict[str, Any]:
    """The assistant's message with calls (id, name, arguments), as chat templates take it."""
    return {
        "role": "assistant",
        "content": content or "",
        "tool_calls": [
            {
                "id": call_id,
                "type": "function",
                "function": {"name": name, "arguments": arguments_of(arguments)},
            }
            for call_id, name, arguments in calls
        ],
    }
