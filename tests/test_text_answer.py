"""Thoughts, answers and calls: however the text is cut into pieces, the same comes out."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from localspec.text.answer import AnswerFormat, AnswerParser
from localspec.text.partial_json import PartialJson
from localspec.text.tools import ToolFormat

TOOLS = [{"type": "function", "function": {"name": "look"}}]
JSON_CALLS = AnswerFormat(("<think>", "</think>"), tool_format=ToolFormat(), tools=TOOLS)
CALL = (
    '<tool_call>\n{"name": "look", "arguments": '
    '{"at": ["sky", 1.5], "how": "a\\n\\u00e9"}}\n</tool_call>'
)
ARGUMENTS = {"at": ["sky", 1.5], "how": "a\né"}


def xml(body: str, tools: Any) -> dict[str, Any]:
    """A notation that only its own parser reads: name(key=value)."""
    name, _, rest = body.strip().partition("(")
    if not rest.endswith(")"):
        raise ValueError(body)
    return {"name": name, "arguments": dict(p.split("=") for p in rest[:-1].split(",") if p)}


class Read:
    """What a client has after reading pieces."""

    def __init__(self, pieces: list[str], format: AnswerFormat, *, cut: bool = False) -> None:
        parser = AnswerParser(format)
        self.thoughts = self.text = ""
        self.names: list[str] = []
        self.arguments: list[str] = []
        for delta in [*map(parser.push, pieces), parser.finish(cut=cut)]:
            self.thoughts += delta.thoughts
            self.text += delta.text
            for call in delta.calls:
                if call.name is not None:
                    assert call.index == len(self.names)
                    self.names.append(call.name)
                    self.arguments.append("")
                self.arguments[call.index] += call.arguments

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Read) and vars(self) == vars(other)


def pieces(text: str, cuts: list[int]) -> list[str]:
    at = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in itertools.pairwise(at)]


FRAGMENTS = st.sampled_from(
    [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        CALL,
        '{"name": "look", "arguments": {"a": ',
        "look(at=sky)",
        "<",
        "</",
        "<tool",
        "\n",
        " ",
        "Words. ",
        '"',
        "}",
        "\\",
        "[1, 2",
        "é🎈",
    ]
)


@given(
    st.lists(FRAGMENTS, max_size=9).map("".join),
    st.lists(st.integers(0, 500), max_size=12),
    st.booleans(),
    st.sampled_from([None, xml]),
    st.sampled_from([None, 1]),
    st.booleans(),
)
@settings(max_examples=300, deadline=None, derandomize=True)
@example(f"<think>Hm.</think>Yes. {CALL}", list(range(200)), False, None, None, False)
def test_any_cutting_gives_the_same(
    text: str, cuts: list[int], cut: bool, parse: Any, most: int | None, inside: bool
) -> None:
    format = AnswerFormat(("<think>", "</think>"), inside, ToolFormat(parse=parse), TOOLS, most)
    whole = Read([text], format, cut=cut)
    assert Read(pieces(text, cuts), format, cut=cut) == whole
    assert Read(list(text), format, cut=cut) == whole
    if not cut:
        assert all(isinstance(json.loads(arguments), dict) for arguments in whole.arguments)


def test_thoughts_answer_and_calls_are_told_apart() -> None:
    read = Read([f"<think>\nHm.\n</think>\n\nLet me look. {CALL}\n{CALL}"], JSON_CALLS)
    assert (read.thoughts, read.text) == ("Hm.", "Let me look.")
    assert read.names == ["look", "look"]
    assert [json.loads(arguments) for arguments in read.arguments] == [ARGUMENTS, ARGUMENTS]


def test_thoughts_that_are_cut_stay_thoughts() -> None:
    opened = AnswerFormat(("<think>", "</think>"), thinking=True)
    assert Read(["I wonder </thi"], opened, cut=True).thoughts == "I wonder </thi"
    assert Read(["<think>I wonder"], JSON_CALLS, cut=True).text == ""
    read = Read(["done</think>The answer"], opened)
    assert (read.thoughts, read.text) == ("done", "The answer")
    assert Read(["No thoughts."], JSON_CALLS).text == "No thoughts."


def test_arguments_come_while_they_are_written() -> None:
    parser = AnswerParser(JSON_CALLS)
    head = parser.push('<tool_call>{"name": "look", "arguments": {"at": "the s')
    assert [call.name for call in head.calls] == ["look", None]
    assert head.calls[1].arguments == '{"at": "the s'
    assert parser.push("ky").calls[0].arguments == "ky"


def test_a_call_that_a_limit_cuts_is_left_half_and_another_is_closed() -> None:
    half = '<tool_call>{"name": "look", "arguments": {"at": "the s'
    assert Read([half], JSON_CALLS, cut=True).arguments == ['{"at": "the s']
    assert json.loads(Read([half], JSON_CALLS).arguments[0]) == {"at": "the s"}
    assert Read(['<tool_call>{"na'], JSON_CALLS, cut=True).text == ""
    assert Read(['<tool_call>{"na'], JSON_CALLS).text == '<tool_call>{"na</tool_call>'


def test_other_notations_are_read_when_they_are_whole() -> None:
    format = AnswerFormat(None, False, ToolFormat("[CALL]", "", xml), TOOLS)
    read = Read(["Now [CALL]look(at=sky)[CALL]look(at=sea)"], format)
    assert (read.text, read.names) == ("Now", ["look", "look"])
    assert list(map(json.loads, read.arguments)) == [{"at": "sky"}, {"at": "sea"}]
    assert Read(["[CALL]no call"], format).text == "[CALL]no call"


def test_calls_beyond_the_most_are_left_out() -> None:
    format = AnswerFormat(None, False, ToolFormat(), TOOLS, most_calls=1)
    read = Read([CALL * 3], format)
    assert (read.names, read.text) == (["look"], "")


def test_text_without_tools_is_text() -> None:
    assert Read([CALL], AnswerFormat()).text == CALL


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=3), st.booleans(), st.integers(0, 3))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_every_beginning_of_an_object_can_be_closed(
    value: dict[str, Any], ascii: bool, indent: int
) -> None:
    text = json.dumps(value, ensure_ascii=ascii, indent=indent or None)
    partial = PartialJson()
    shown = ""
    for character in text:
        more, taken = partial.push(character)
        assert taken == 1
        shown += more
        if shown:
            json.loads(shown + partial.closing)
    assert partial.complete
    assert json.loads(shown) == value


def test_blank_space_goes_only_beside_marks() -> None:
    assert Read([" and", " more"], AnswerFormat()).text == " and more"
    assert (
        Read(["<think>\na </think>", "\n\nb "], AnswerFormat(("<think>", "</think>"))).text == "b "
    )


@pytest.mark.parametrize(
    "text", ['{"a" 1}', '{"a": tru}', "{1: 2}", '{"a": "\\x"}', '{"a": 01}', '{"a": 1,}', "[1]"]
)
def test_what_is_no_object_is_broken(text: str) -> None:
    partial = PartialJson()
    shown, taken = partial.push(text)
    assert partial.broken
    assert taken <= len(text)
    if shown:
        assert isinstance(json.loads(shown + partial.closing), dict)
