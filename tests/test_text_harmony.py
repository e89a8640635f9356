"""gpt-oss' messages: thoughts, answers and calls, however the text is cut, and the grammars for them."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest
from byte_tokens import ByteTokenizer
from hypothesis import example, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer
from llguidance._tokenizer import TokenizerWrapper

from localspec.text.answer import AnswerFormat, AnswerParser
from localspec.text.dialect import find_dialect
from localspec.text.grammars import harmony_grammar
from localspec.text.harmony import CALL, CONSTRAIN, END, MARKS, RETURN

LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"at": {"type": "string"}},
            "required": ["at"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
FORMAT = AnswerFormat(harmony=True)
THINKS = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
ANSWERS = "<|channel|>final<|message|>It is blue."
CALLS = '<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"at": "sky"}'


def with_tools(most_calls: int | None = None) -> AnswerFormat:
    dialect = find_dialect(Wrapper())
    return AnswerFormat(
        tool_format=dialect.tools, tools=[LOOK], most_calls=most_calls, harmony=dialect.harmony
    )


class Wrapper:
    """A tokenizer as mlx-lm wraps it, with gpt-oss' marks."""

    has_chat_template = True
    has_tool_calling = has_thinking = False

    def apply_chat_template(self, messages: Any, *, tools: Any, tokenize: bool) -> str:
        return json.dumps(tools)

    def get_vocab(self) -> dict[str, int]:
        return {mark: 100 + index for index, mark in enumerate(MARKS)}


def read(
    pieces: list[str], format: AnswerFormat, *, cut: bool = False
) -> tuple[str, str, list[str], list[str], int]:
    """Thoughts, answer, names and arguments of calls, and how many of these are whole."""
    parser = AnswerParser(format)
    thoughts, text, names, arguments = "", "", [], []
    for delta in [*map(parser.push, pieces), parser.finish(cut=cut)]:
        thoughts += delta.thoughts
        text += delta.text
        for call in delta.calls:
            if call.name is not None:
                assert call.index == len(names)
                names.append(call.name)
                arguments.append("")
            arguments[call.index] += call.arguments
    return thoughts, text, names, arguments, parser.num_calls


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (THINKS + ANSWERS, ("Hm.", "It is blue.", [], [])),
        (THINKS + CALLS, ("Hm.", "", ["look"], ['{"at": "sky"}'])),
        # The recipient may stand in the header's first part as well.
        (
            ' to=functions.look<|channel|>commentary json<|message|>{"at": 1}',
            ("", "", ["look"], ['{"at": 1}']),
        ),
        (
            "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant" + CALLS,
            ("", "I look.", ["look"], ['{"at": "sky"}']),
        ),
        # A tool that the model was not given, and no object where there must be one.
        ("<|channel|>commentary to=python<|message|>1 + 1", ("1 + 1", "", [], [])),
        ("<|channel|>commentary to=functions.go<|message|>", ("", "", ["go"], ["{}"])),
        (THINKS + THINKS + ANSWERS, ("Hm.\n\nHm.", "It is blue.", [], [])),
        ("No marks at all.", ("", "No marks at all.", [], [])),
        ("<|message|>Just this.", ("", "Just this.", [], [])),
        ("<|channel|>ana", ("", "", [], [])),
    ],
)
def test_messages_are_told_apart(text: str, expected: tuple[Any, ...]) -> None:
    assert read([text], with_tools())[:4] == expected


def test_what_a_limit_cuts_stays_what_it_was() -> None:
    assert read(["<|channel|>analysis<|message|>I won"], FORMAT, cut=True)[:2] == ("I won", "")
    assert read([THINKS + CALLS[:-3]], with_tools(), cut=True)[2:] == (["look"], ['{"at": "sk'], 0)
    assert read([THINKS + CALLS[:-3]], with_tools())[2:] == (["look"], ['{"at": "sk"}'], 1)


def test_calls_are_looked_for_when_there_are_tools_and_up_to_the_most() -> None:
    assert read([CALLS], FORMAT)[:3] == ('{"at": "sky"}', "", [])
    twice = CALLS + "<|call|><|start|>assistant" + CALLS
    assert read([twice], with_tools())[2] == ["look", "look"]
    assert read([twice], with_tools(1))[2] == ["look"]


FRAGMENTS = st.sampled_from(
    [*MARKS, THINKS, ANSWERS, CALLS, "analysis", " to=functions.look", "assistant", "<", "<|e", '{"a"']
)  # fmt: skip


@given(
    st.lists(FRAGMENTS, max_size=8).map("".join),
    st.lists(st.integers(0, 400), max_size=12),
    st.booleans(),
    st.sampled_from([None, 1]),
)
@settings(max_examples=300, deadline=None, derandomize=True)
@example(THINKS + ANSWERS, [1], False, None)
def test_any_cutting_gives_the_same(
    text: str, cuts: list[int], cut: bool, most: int | None
) -> None:
    format = with_tools(most)
    whole = read([text], format, cut=cut)
    at = sorted({0, len(text), *(each % (len(text) + 1) for each in cuts)})
    assert read([text[a:b] for a, b in itertools.pairwise(at)], format, cut=cut) == whole
    assert read(list(text), format, cut=cut) == whole
    if not cut:
        assert all(isinstance(json.loads(arguments), dict) for arguments in whole[3])


class Marked(ByteTokenizer):
    """Bytes, and the marks as special tokens."""

    eos_token_id = 256 + MARKS.index(RETURN)
    tokens = (*(bytes([byte]) for byte in range(256)), *(mark.encode() for mark in MARKS))  # type: ignore[assignment]
    special_token_ids = tuple(range(256, 256 + len(MARKS)))  # type: ignore[assignment]


MARKED = LLTokenizer(
    TokenizerWrapper(Marked()),
    n_vocab=256 + len(MARKS),
    eos_token=[256 + MARKS.index(RETURN), 256 + MARKS.index(CALL)],
)


def takes(grammar: str, text: str) -> bool:
    """Whether the grammar lets the text stand, mark by mark, and end there."""
    assert not LLMatcher.validate_grammar(grammar, MARKED)
    matcher = LLMatcher(MARKED, grammar, log_level=0)
    ids: list[int] = []
    for part in re.split(r"(<\|\w+\|>)", text):
        ids += [256 + MARKS.index(part)] if part in MARKS else part.encode()
    return bool(matcher.consume_tokens(ids) and matcher.is_accepting())


def mark(text: str) -> str:
    return f"<[{256 + MARKS.index(text)}]>"


def test_grammars_hold_for_whole_messages() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    forced = harmony_grammar([LOOK], mark, answers=False)
    assert takes(forced, THINKS + THINKS + CALLS)
    assert takes(forced, CALLS.replace(f" {CONSTRAIN}json", ""))
    assert not takes(forced, THINKS + ANSWERS)
    assert not takes(forced, CALLS.replace("look", "cook"))
    assert not takes(forced, CALLS.replace("sky", 'sky", "b": "'))
    structured = harmony_grammar([], mark, answers=True, schema=schema)
    assert takes(structured, THINKS + ANSWERS.replace("It is blue.", '{"a": 1}'))
    assert not takes(structured, THINKS + ANSWERS)
    assert not takes(structured, THINKS + CALLS)
    assert not takes(structured, THINKS.replace("analysis", "commentary") + ANSWERS)
    strict = harmony_grammar([LOOK], mark, answers=True)
    for text in (ANSWERS, CALLS, THINKS.replace("analysis", "commentary") + CALLS):
        assert takes(strict, THINKS + text)
    assert not takes(strict, THINKS + CALLS.replace('"at"', '"to"'))


def test_the_dialect_is_known_by_its_marks() -> None:
    dialect = find_dialect(Wrapper())
    assert dialect.harmony
    assert dialect.tools.native
    assert dialect.think is None
    assert not find_dialect(
        type("Other", (Wrapper,), {"get_vocab": lambda self: {END: 1}})()
    ).harmony
