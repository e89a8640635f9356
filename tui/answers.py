"""How a reply is read, from its start or from where it was left: thoughts apart from the answer."""

from __future__ import annotations

from collections.abc import Mapping

from localspec.text.answer import AnswerFormat, AnswerParser
from localspec.text.dialect import Dialect
from localspec.text.harmony import CHANNEL, END, MESSAGE, START


def fresh(dialect: Dialect, *, opened: bool) -> AnswerParser:
    """A reader of a whole reply.

    Args:
        opened: the prompt has opened the thoughts.
    """
    return AnswerParser(AnswerFormat(dialect.think, opened, harmony=dialect.harmony))


def continued(
    begun: Mapping[str, str], dialect: Dialect, *, opened: bool
) -> tuple[str, AnswerParser]:
    """The beginning of a reply as the model wrote it, marks included, and a reader of what follows.

    Args:
        begun: its `content` and, perhaps, `thinking`.
        opened: the prompt has opened the thoughts.
    """
    thinking, content = begun.get("thinking", ""), begun["content"]
    if not thinking and not content:
        return "", fresh(dialect, opened=opened)
    if dialect.harmony:
        return _harmony(thinking, content)
    if dialect.think is None or not (opened or thinking):
        # What began without thoughts has none.
        return content, AnswerParser(AnswerFormat())
    start, end = dialect.think
    text = ("" if opened else start + "\n") + thinking
    if content:
        return f"{text}\n{end}\n\n{content}", AnswerParser(AnswerFormat())
    return text, AnswerParser(AnswerFormat(dialect.think, thinking=True))


def _harmony(thinking: str, content: str) -> tuple[str, AnswerParser]:
    analysis, final = f"{CHANNEL}analysis{MESSAGE}", f"{CHANNEL}final{MESSAGE}"
    text = analysis + thinking if thinking else ""
    if content:
        text += f"{END}{START}assistant" if text else ""
        text += final + content
    parser = AnswerParser(AnswerFormat(harmony=True))
    parser.push(final if content else analysis)
    return text, parser
