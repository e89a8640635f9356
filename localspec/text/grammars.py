"""Grammars in llguidance's notation for what a client can demand: JSON by a schema, calls of tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from localspec.text.harmony import CHANNEL, CONSTRAIN, END, MESSAGE, START
from localspec.text.tools import ToolFormat

_WHITESPACE = r"[ \n\t]{0,24}"
"""Enough for indentation; without a bound a small model may write blank space for ever."""

Mark = Callable[[str], str]
"""A mark's text to a terminal of the grammar: a literal, or the one special token that it is."""


def json_grammar(schema: Mapping[str, Any] | bool) -> str:
    """A JSON value that obeys the schema."""
    return f"start: {_json(schema)}"


def call_grammar(
    tools: Sequence[Mapping[str, Any]],
    format: ToolFormat,
    mark: Mark,
    *,
    most_calls: int | None,
    free_text: bool = False,
    schema: Mapping[str, Any] | None = None,
) -> str:
    """One call or more, of these tools alone, with arguments that obey their schemas.

    Args:
        tools: each with `function`: `name`, `parameters` (a schema), and `strict`: whether a schema that
            cannot be enforced whole is refused.
        format: the marks around a call; between them stands the JSON object.
        mark: how a mark is written in a grammar.
        most_calls: 1, or None for any number.
        free_text: any text may stand before, between and after calls, of which there may be none.
        schema: instead of calls there may be a JSON value that obeys this.
    """
    start = mark(format.start)
    end = f'"\\n"? {mark(format.end)}' if format.end else ""
    bodies = " | ".join(f"body{index}" for index in range(len(tools)))
    if free_text:
        lines = ["start: call* TEXT", r"TEXT: /(.|\n)*/"]
        if start.startswith("<["):
            lines.append(f"head: TEXT {start}")
        else:
            # The first occurrence of the mark ends the text.
            lines.append(f"head[lazy]: TEXT {start}")
    else:
        calls = "call" if most_calls == 1 else 'call ("\\n"? call)*'
        lines = [f"start: {calls}" + (" | answer" if schema is not None else ""), f"head: {start}"]
    lines.append(f'call: head "\\n"? ({bodies}) {end}')
    if schema is not None:
        lines.append(f"answer: {_json(schema)}")
    for index, tool in enumerate(tools):
        function = tool["function"]
        head = f'{{"name": {json.dumps(function["name"])}, "arguments": '
        parameters = object_schema(function.get("parameters"))
        body = _json(parameters, lenient=not function.get("strict"))
        lines.append(f'body{index}: {json.dumps(head, ensure_ascii=False)} {body} "}}"')
    return "\n".join(lines)


def harmony_grammar(
    tools: Sequence[Mapping[str, Any]],
    mark: Mark,
    *,
    answers: bool,
    schema: Mapping[str, Any] | None = None,
) -> str:
    """Messages as gpt-oss writes them: thoughts, if any, then a call of one of these, or an answer.

    Args:
        tools: as for `call_grammar`.
        mark: how a mark is written in a grammar.
        answers: there may be an answer instead of a call.
        schema: what the answer obeys; None: any text, which may be said before a call too.
    """
    channel, message, constrain = mark(CHANNEL), mark(MESSAGE), mark(CONSTRAIN)
    following = f'{mark(END)} {mark(START)} "assistant"'
    bodies = [f"body{index}" for index in range(len(tools))]
    ends = [*bodies, *(["answer"] if answers else [])]
    lines = [
        f"start: before* ({' | '.join(ends)})",
        f'thoughts: {channel} "analysis" {message} TEXT {following}',
        f'preamble: {channel} "commentary" {message} TEXT {following}',
        f'answer: {channel} "final" {message} {"TEXT" if schema is None else _json(schema)}',
        r"TEXT: /(.|\n)*/",
        f"before: thoughts{' | preamble' if answers and schema is None else ''}",
    ]
    for index, tool in enumerate(tools):
        function = tool["function"]
        head = json.dumps(f"commentary to=functions.{function['name']}", ensure_ascii=False)
        body = _json(object_schema(function.get("parameters")), lenient=not function.get("strict"))
        lines.append(f'body{index}: {channel} {head} " "? ({constrain} "json")? {message} {body}')
    return "\n".join(lines)


def object_schema(parameters: Any) -> Mapping[str, Any]:
    """A tool's parameters as a schema of an object."""
    return {"type": "object", **(parameters if isinstance(parameters, Mapping) else {})}


def _json(schema: Mapping[str, Any] | bool, *, lenient: bool = False) -> str:
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    options = {"whitespace_pattern": _WHITESPACE, "lenient": lenient}
    return "%json " + json.dumps({**schema, "x-guidance": options})
