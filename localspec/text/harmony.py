"""The notation of gpt-oss: an answer is messages, each with a header that names its channel.

Thoughts are on the channel `analysis`, the answer on `final`, what is said before calls on `commentary`;
a message to `functions.NAME` is a call. Pure, and indifferent to how the text is cut into pieces. The
format: https://github.com/openai/harmony/blob/main/docs/format.md
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from localspec.text.marks import num_held
from localspec.text.partial_json import PartialJson
from localspec.text.tools import CallDelta

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
CONSTRAIN, END, CALL, RETURN = "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"
MARKS = (START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN)

_NAMESPACE = "functions."
_OPENINGS = (CHANNEL, START, MESSAGE, " to=")
_BODY_ENDS = (END, CALL, RETURN, START, CHANNEL)
_CHANNEL_NAME = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_BETWEEN = "\n\n"
"""Between messages that become one text."""


def is_harmony(vocabulary: Mapping[str, int]) -> bool:
    """Whether a model with these tokens writes so."""
    return all(mark in vocabulary for mark in MARKS)


class HarmonySplit:
    """Tells thoughts, answer and calls apart.

    Args:
        tools: the functions that may be called; None: calls are not looked for.
        most_calls: further calls are left out; None: any number.

    Attributes:
        num_calls: calls that are whole.
    """

    def __init__(
        self, tools: Sequence[Mapping[str, Any]] | None, *, most_calls: int | None = None
    ) -> None:
        self._names = None if tools is None else {tool["function"]["name"] for tool in tools}
        self._most_calls = most_calls
        self._held = ""
        self._state = "begin"
        self._kind = "text"
        self._said: set[str] = set()  # kinds of text of which something was shown
        self._gap = False  # before what the open message says
        self._json = PartialJson()
        self.num_calls = 0

    def push(self, text: str) -> tuple[str, str, list[CallDelta]]:
        """Take new text; give the thoughts, the answer and the parts of calls in it."""
        self._held += text
        parts: dict[str, str] = {"thoughts": "", "text": ""}
        calls: list[CallDelta] = []
        while self._step(parts, calls):
            pass
        return parts["thoughts"], parts["text"], calls

    def flush(self, *, cut: bool) -> tuple[str, str, list[CallDelta]]:
        """When no more comes. A call that a limit has cut stays as it is; else it is closed."""
        parts: dict[str, str] = {"thoughts": "", "text": ""}
        calls: list[CallDelta] = []
        if self._state == "begin" and self._held and not cut:
            self._state = "body"
        if self._state == "body":
            self._say(self._held, parts, calls)
            if not cut:
                self._close(calls)
        self._held, self._state = "", "header"
        return parts["thoughts"], parts["text"], calls

    def _step(self, parts: dict[str, str], calls: list[CallDelta]) -> bool:
        """Move on by one mark; False: more text is needed."""
        if self._state == "begin":
            # The prompt has begun a message, so what comes first is the rest of its header.
            if not self._held or num_held(self._held, *_OPENINGS) == len(self._held):
                return False
            self._state = "header" if self._held.startswith(_OPENINGS) else "body"
            return True
        if self._state == "header":
            header, mark, rest = self._held.partition(MESSAGE)
            if not mark:
                return False
            self._held, self._state = rest, "body"
            self._open(header, calls)
            return True
        ends = [at for mark in _BODY_ENDS if (at := self._held.find(mark)) >= 0]
        at = min(ends, default=len(self._held) - num_held(self._held, *_BODY_ENDS))
        self._say(self._held[:at], parts, calls)
        self._held = self._held[at:]
        if not ends:
            return False
        self._close(calls)
        self._state = "header"
        return True

    def _open(self, header: str, calls: list[CallDelta]) -> None:
        channel, recipient = _CHANNEL_NAME.search(header), _RECIPIENT.search(header)
        name = self._function(recipient[1]) if recipient else None
        if name is not None:
            beyond = self._most_calls is not None and self.num_calls >= self._most_calls
            self._kind = "nothing" if beyond else "call"
            if not beyond:
                self._json = PartialJson()
                calls.append(CallDelta(self.num_calls, name, ""))
        elif recipient or (channel and channel[1] == "analysis"):
            self._kind = "thoughts"
        else:
            self._kind = "text"
        self._gap = self._kind in self._said

    def _function(self, recipient: str) -> str | None:
        """The function that a message is for; None for tools that the model was not given."""
        if self._names is None:
            return None
        name = recipient.removeprefix(_NAMESPACE)
        return name if name != recipient or name in self._names else None

    def _say(self, text: str, parts: dict[str, str], calls: list[CallDelta]) -> None:
        """Hand on what stands in the message that is open."""
        if self._kind == "call":
            shown, _ = self._json.push(text)
            if shown:
                calls.append(CallDelta(self.num_calls, None, shown))
        elif self._kind in parts and text:
            parts[self._kind] += _BETWEEN * self._gap + text
            self._said.add(self._kind)
            self._gap = False

    def _close(self, calls: list[CallDelta]) -> None:
        """The message is over."""
        if self._kind == "call":
            rest = self._json.closing or ("" if self._json.complete else "{}")
            if rest:
                calls.append(CallDelta(self.num_calls, None, rest))
            self.num_calls += 1
        self._kind = "nothing"
