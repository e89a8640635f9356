"""What a tokenizer and its chat template tell of a model: thoughts, tool calls, fill-in tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from localspec.text.chat import has_chat_template
from localspec.text.fim import FimTokens, find_fim_tokens
from localspec.text.harmony import is_harmony
from localspec.text.tools import ToolFormat

THINKING_SWITCH = "enable_thinking"
"""The chat template's variable that turns thoughts off."""

_PROBE = "probe_of_the_template"


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one model writes what is not plain text.

    Attributes:
        tools: how it writes calls.
        think: the marks around its thoughts; None: it has none.
        think_ids: ids of these marks.
        fim: its fill-in tokens; None: it has none.
        can_switch_thinking: whether its chat template reads `enable_thinking`.
        harmony: it writes gpt-oss' messages, thoughts and calls too.
    """

    tools: ToolFormat
    think: tuple[str, str] | None
    think_ids: tuple[tuple[int, ...], tuple[int, ...]]
    fim: FimTokens | None
    can_switch_thinking: bool = False
    harmony: bool = False

    def opens_thoughts(self, prompt_end: str) -> bool:
        """Whether a prompt that ends so has opened the model's thoughts."""
        return self.think is not None and prompt_end.rstrip().endswith(self.think[0])


def find_dialect(tokenizer: Any) -> Dialect:
    """Read a tokenizer that `load_tokenizer` gave."""
    vocabulary = tokenizer.get_vocab()
    harmony = is_harmony(vocabulary)
    has_thinking = bool(getattr(tokenizer, "has_thinking", False))
    think = (tokenizer.think_start, tokenizer.think_end) if has_thinking else None
    return Dialect(
        tools=_tool_format(tokenizer, harmony),
        think=think,
        think_ids=(
            (_ids(tokenizer.think_start_tokens), _ids(tokenizer.think_end_tokens))
            if think
            else ((), ())
        ),
        can_switch_thinking=THINKING_SWITCH in str(getattr(tokenizer, "chat_template", "")),
        fim=find_fim_tokens(vocabulary),
        harmony=harmony,
    )


def _ids(tokens: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(token) for token in tokens)


def _tool_format(tokenizer: Any, harmony: bool) -> ToolFormat:
    if harmony:
        return ToolFormat(native=_shows_tools(tokenizer))
    if not getattr(tokenizer, "has_tool_calling", False) or not _shows_tools(tokenizer):
        return ToolFormat()
    return ToolFormat(
        tokenizer.tool_call_start, tokenizer.tool_call_end, tokenizer.tool_parser, native=True
    )


def _shows_tools(tokenizer: Any) -> bool:
    """Whether the chat template passes tools on to the model."""
    if not has_chat_template(tokenizer):
        return False
    tool = {
        "type": "function",
        "function": {
            "name": _PROBE,
            "description": "A probe.",
            "parameters": {"type": "object", "properties": {}},
        },
    }
    try:
        shown = tokenizer.apply_chat_template(
            [{"role": "user", "content": "Hello"}], tools=[tool], tokenize=False
        )
    except Exception:
        # A template is a program from the model's author: it may fail in any way.
        return False
    return _PROBE in str(shown)
