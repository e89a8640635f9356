"""Tool calls in streamed text: where they stand, their names, and their arguments as they come.

Pure, and indifferent to how the text is cut into pieces. A call whose body is the JSON object with a
name and arguments is handed on while it is written; other notations, which mlx-lm's parsers know, when
they are whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from localspec.text.marks import num_held
from localspec.text.partial_json import PartialJson

Parser = Callable[[str, Any], Any]

_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a model writes calls.

    Attributes:
        start, end: the marks around a call; an end that is empty is the next start, or the text's end.
        parse: what mlx-lm knows of the notation between them; None: JSON alone.
        native: the chat template shows tools to the model itself.
    """

    start: str = "<tool_call>"
    end: str = "</tool_call>"
    parse: Parser | None = None
    native: bool = False


@dataclass(frozen=True, slots=True)
class CallDelta:
    """Part of call number `index`: its name, with the first part only, and more of its arguments."""

    index: int
    name: str | None
    arguments: str


class ToolSplit:
    """Takes calls out of text.

    Args:
        format: how the model writes them.
        tools: the functions that may be called, as the chat template gets them.
        most_calls: further calls are left out; None: any number.
    """

    def __init__(
        self,
        format: ToolFormat,
        tools: Sequence[dict[str, Any]],
        *,
        most_calls: int | None = None,
    ) -> None:
        self._format = format
        self._tools = list(tools)
        self._most_calls = most_calls
        self._held = ""
        self._body: str | None = None
        self._json: PartialJson | None = None
        self.num_calls = 0

    def push(self, text: str) -> tuple[str, list[CallDelta]]:
        """Take new text; give the answer in it and the parts of calls."""
        self._held += text
        answer: list[str] = []
        calls: list[CallDelta] = []
        while self._step(answer, calls):
            pass
        return "".join(answer), calls

    def flush(self, *, cut: bool) -> tuple[str, list[CallDelta]]:
        """When no more comes. A call that a limit has cut stays as it is; else it is closed."""
        answer: list[str] = []
        calls: list[CallDelta] = []
        if self._body is None:
            # The beginning of a mark that never came is text, but blank space after a call is not.
            if not self.num_calls or self._held.strip():
                answer.append(self._held)
        else:
            self._body += self._held
            self._advance(calls)
            if not cut:
                self._finish(answer, calls)
        self._held, self._body = "", None
        return "".join(answer), calls

    def _step(self, answer: list[str], calls: list[CallDelta]) -> bool:
        """Move on by one mark; False: more text is needed."""
        if self._body is None:
            at = self._held.find(self._format.start)
            if at < 0:
                length = len(self._held) - num_held(self._held, self._format.start)
                # Blank space before a call is not part of the answer.
                length = len(self._held[:length].rstrip())
                answer.append(self._held[:length])
                self._held = self._held[length:]
                return False
            answer.append(self._held[:at].rstrip())
            self._held = self._held[at + len(self._format.start) :]
            self._body, self._json = "", None
            return True
        mark = self._format.end or self._format.start
        at = self._held.find(mark)
        if at < 0:
            length = len(self._held) - num_held(self._held, mark)
            self._body += self._held[:length]
            self._held = self._held[length:]
            self._advance(calls)
            return False
        self._body += self._held[:at]
        self._held = self._held[at + (len(mark) if self._format.end else 0) :]
        self._advance(calls)
        self._finish(answer, calls)
        self._body = None
        return True

    def _advance(self, calls: list[CallDelta]) -> None:
        """Hand on what of the body is certain by now."""
        assert self._body is not None
        if self._json is None:
            head = _HEAD.match(self._body)
            if head is None or self._is_beyond:
                return
            self._json = PartialJson()
            calls.append(CallDelta(self.num_calls, json.loads(head[1], strict=False), ""))
            self._body = self._body[head.end() :]
        shown, taken = self._json.push(self._body)
        self._body = self._body[taken:]
        if shown:
            calls.append(CallDelta(self.num_calls, None, shown))

    def _finish(self, answer: list[str], calls: list[CallDelta]) -> None:
        """The call's text is over."""
        assert self._body is not None
        if self._is_beyond:
            return
        if self._json is not None:
            if self._json.closing:
                calls.append(CallDelta(self.num_calls, None, self._json.closing))
            self.num_calls += 1
            return
        found = list(self._parsed(self._body))
        if not found:
            answer.append(self._format.start + self._body + self._format.end)
        for name, arguments in found:
            if not self._is_beyond:
                calls.append(CallDelta(self.num_calls, name, arguments))
                self.num_calls += 1

    @property
    def _is_beyond(self) -> bool:
        return self._most_calls is not None and self.num_calls >= self._most_calls

    def _parsed(self, body: str) -> Iterable[tuple[str, str]]:
        """Names and arguments in a whole body; nothing where it is no call."""
        for parse in (_parse_json, self._format.parse):
            if parse is None:
                continue
            try:
                found = parse(body, self._tools or None)
            except Exception:
                # A parser meets whatever the model has written; what it cannot read is text.
                continue
            found = found if isinstance(found, list) else [found]
            calls = [call for entry in found if (call := _call(entry))]
            if calls and len(calls) == len(found):
                return calls
        return []


def _parse_json(body: str, tools: Any) -> Any:
    return json.loads(body)


def _call(entry: Any) -> tuple[str, str] | None:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or not entry["name"]:
        return None
    arguments = entry.get("arguments", entry.get("parameters"))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except ValueError:
            return None
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, dict):
        return None
    return entry["name"], json.dumps(arguments, ensure_ascii=False)
