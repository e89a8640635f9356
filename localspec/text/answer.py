"""From the raw text of a generation to what a client is told: thoughts, answer, calls.

Stop strings look at the raw text, whatever part of it they stand in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from localspec.text.harmony import HarmonySplit
from localspec.text.reasoning import ReasoningSplit
from localspec.text.tools import CallDelta, ToolFormat, ToolSplit


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """What a generation's text may hold.

    Attributes:
        think: the marks around thoughts; None: it has none.
        thinking: the prompt has opened the thoughts already.
        tool_format: how calls are written; None: calls are not looked for.
        tools: the functions that may be called.
        most_calls: further calls are left out.
        harmony: it is gpt-oss' messages, in which marks and notations of others mean nothing.
    """

    think: tuple[str, str] | None = None
    thinking: bool = False
    tool_format: ToolFormat | None = None
    tools: Sequence[dict[str, Any]] = ()
    most_calls: int | None = None
    harmony: bool = False


@dataclass(slots=True)
class Delta:
    """What one piece of text adds."""

    thoughts: str = ""
    text: str = ""
    calls: list[CallDelta] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.thoughts or self.text or self.calls)


class AnswerParser:
    """Reads one generation's text as it comes."""

    def __init__(self, format: AnswerFormat) -> None:
        self._harmony = (
            HarmonySplit(format.tools if format.tool_format else None, most_calls=format.most_calls)
            if format.harmony
            else None
        )
        start, end = format.think or (None, None)
        self._reasoning = ReasoningSplit(start, end, inside=format.thinking)
        self._tools = (
            ToolSplit(format.tool_format, format.tools, most_calls=format.most_calls)
            if format.tool_format
            else None
        )

    @property
    def num_calls(self) -> int:
        """Calls that are whole."""
        if self._harmony:
            return self._harmony.num_calls
        return self._tools.num_calls if self._tools else 0

    def push(self, text: str) -> Delta:
        if self._harmony:
            return Delta(*self._harmony.push(text))
        thoughts, answer = self._reasoning.push(text)
        if self._tools is None:
            return Delta(thoughts, answer)
        return Delta(thoughts, *self._tools.push(answer))

    def finish(self, *, cut: bool) -> Delta:
        """The rest, when no more comes.

        Args:
            cut: a limit has ended the text, so that a call in it may be half.
        """
        if self._harmony:
            return Delta(*self._harmony.flush(cut=cut))
        thoughts, answer = self._reasoning.flush()
        if self._tools is None:
            return Delta(thoughts, answer)
        first, calls = self._tools.push(answer)
        last, more = self._tools.flush(cut=cut)
        return Delta(thoughts, first + last, [*calls, *more])
