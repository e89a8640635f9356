"""Chat messages to token ids, through the tokenizer's own template."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from localspec.errors import UsageError
from localspec.text.messages import in_turns


def has_chat_template(tokenizer: Any) -> bool:
    """Whether chat messages can be rendered."""
    has = getattr(tokenizer, "has_chat_template", None)
    return bool(getattr(tokenizer, "chat_template", None)) if has is None else bool(has)


def render_chat(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    template_options: Mapping[str, Any] | None = None,
) -> list[int]:
    """Token ids of a conversation.

    Where the template refuses the messages, they are tried with the system text in the first user's
    message and roles in turns (`in_turns`), which every template takes.

    Args:
        tokenizer: what `load_tokenizer` gave.
        messages: each with `role` and `content`.
        tools: function descriptions, for templates that know tools.
        add_generation_prompt: end with the opening of the assistant's turn.
        template_options: more variables for the template, such as `enable_thinking`.

    Raises:
        UsageError: there is no template, or it refuses the messages, with its reason.
    """
    if not has_chat_template(tokenizer):
        raise UsageError("the model has no chat template, so it takes raw text only")

    def render(messages: list[dict[str, Any]]) -> list[int]:
        ids = tokenizer.apply_chat_template(
            messages,
            tools=list(tools) if tools else None,
            tokenize=True,
            add_generation_prompt=add_generation_prompt,
            return_dict=False,
            **(template_options or {}),
        )
        return [int(token) for token in ids]

    given = [dict(message) for message in messages]
    # A template is a program from the model's author: it may fail in any way.
    try:
        return render(given)
    except Exception as error:
        with contextlib.suppress(Exception):
            if (turned := in_turns(given)) != given:
                return render(turned)
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(f"the chat template cannot render these messages: {reason}") from error
