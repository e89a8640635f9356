"""Messages as clients send them, for templates as they are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from localspec.errors import UsageError
from localspec.text.dialect import find_dialect
from localspec.text.fim import find_fim_tokens
from localspec.text.grammars import call_grammar, json_grammar
from localspec.text.messages import for_template, in_turns, without_nonce
from localspec.text.tools import ToolFormat

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALLS = [{"id": "1", "function": {"name": "look", "arguments": {"at": "sky"}}}]
NATIVE = ToolFormat(native=True)


def test_system_and_developer_messages_become_one_that_leads() -> None:
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "system", "content": "A"},
        {"role": "developer", "content": "B"},
        {"role": "system", "content": ""},
    ]
    assert for_template(messages, [], NATIVE) == [
        {"role": "system", "content": "A\n\nB"},
        {"role": "user", "content": "Hi"},
    ]
    assert for_template(messages[:1], [], NATIVE) == messages[:1]


def test_a_nonce_is_left_out() -> None:
    assert without_nonce("x-anthropic-billing-header: a=1;\nRules.") == "Rules."
    assert without_nonce("x-anthropic-billing-header: a=1;") == ""
    assert without_nonce("Rules. x-anthropic-billing-header: 1") != ""
    system = {"role": "system", "content": "x-anthropic-billing-header: b\n\nRules."}
    assert for_template([system], [], NATIVE)[0]["content"] == "Rules."


def test_tools_and_calls_are_written_out_for_templates_that_know_none() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": "", "tool_calls": CALLS * 2},
        {"role": "tool", "content": "kite"},
        {"role": "tool", "content": "bird"},
    ]
    system, user, assistant, results = for_template(messages, [TOOL], ToolFormat())
    assert system["content"].startswith("Be brief.\n\n")
    assert '"name": "look"' in system["content"]
    assert user == messages[1]
    assert assistant["content"].count("<tool_call>") == 2
    assert set(assistant) == {"role", "content"}
    assert results["role"] == "user"
    assert results["content"].index("kite") < results["content"].index("bird")
    native = for_template(messages, [TOOL], NATIVE)
    assert native[2]["tool_calls"] == CALLS * 2
    assert [message["role"] for message in native[3:]] == ["tool", "tool"]


def test_turns() -> None:
    messages = [
        {"role": "system", "content": "Rules."},
        {"role": "user", "content": "A"},
        {"role": "user", "content": "B"},
        {"role": "assistant", "content": "C"},
    ]
    assert in_turns(messages) == [
        {"role": "user", "content": "Rules.\n\nA\n\nB"},
        {"role": "assistant", "content": "C"},
    ]


def test_fill_in_tokens_are_found_by_family() -> None:
    names = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>"]
    found = find_fim_tokens({name: index + 10 for index, name in enumerate(names)})
    assert found is not None
    assert found.prompt([1], [2]) == [10, 1, 11, 2, 12]
    assert found.never == {10, 11, 12, 13}
    assert find_fim_tokens({"<|fim_prefix|>": 1}) is None


class Wrapper:
    """The part of mlx-lm's tokenizer wrapper that tells of a dialect."""

    has_tool_calling = True
    tool_call_start, tool_call_end = "[CALL]", "[/CALL]"
    tool_parser = staticmethod(json.loads)
    has_thinking = True
    think_start, think_end = "<think>", "</think>"
    think_start_tokens, think_end_tokens = (7,), (8,)
    has_chat_template = True

    def __init__(self, shows_tools: bool) -> None:
        self._shows_tools = shows_tools

    def apply_chat_template(self, messages: Any, *, tools: Any, tokenize: bool) -> str:
        return json.dumps(tools) if self._shows_tools else "nothing"

    def get_vocab(self) -> dict[str, int]:
        return {}


def test_dialects() -> None:
    native = find_dialect(Wrapper(shows_tools=True))
    assert (native.tools.start, native.tools.native) == ("[CALL]", True)
    assert native.think == ("<think>", "</think>")
    assert native.think_ids == ((7,), (8,))
    assert native.opens_thoughts("<|assistant|>\n<think>\n")
    assert not native.opens_thoughts("<think>\n\n</think>\n\n")
    assert find_dialect(Wrapper(shows_tools=False)).tools == ToolFormat()


def matcher(grammar: str) -> Any:
    from byte_tokens import grammar_tokenizer
    from llguidance import LLMatcher

    assert not LLMatcher.validate_grammar(grammar, grammar_tokenizer())
    return LLMatcher(grammar_tokenizer(), grammar, log_level=0)


def takes(grammar: str, text: str) -> bool:
    """Whether the grammar lets the whole text stand as an answer."""
    walked = matcher(grammar)
    return bool(walked.consume_tokens(list(text.encode())) and walked.is_accepting())


STRICT = {
    "type": "function",
    "function": {
        "name": "f",
        "strict": True,
        "parameters": {
            "properties": {"x": {"type": "integer"}},
            "required": ["x"],
            "additionalProperties": False,
        },
    },
}
GOOD = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
BAD = '<tool_call>{"name": "f", "arguments": {"y": 1}}</tool_call>'


@pytest.mark.parametrize(
    ("options", "text", "stands"),
    [
        ({}, GOOD, True),
        ({}, f"{GOOD}\n{GOOD}", True),
        ({"most_calls": 1}, f"{GOOD}\n{GOOD}", False),
        ({}, BAD, False),
        ({}, "Hello", False),
        ({"free_text": True}, "Hello", True),
        ({"free_text": True}, f"Hello {GOOD} there", True),
        ({"free_text": True}, f"Hello {BAD}", False),
        ({"schema": {"type": "integer"}}, "17", True),
        ({"schema": {"type": "integer"}}, GOOD, True),
        ({"schema": {"type": "integer"}}, "Hello", False),
    ],
)
def test_call_grammars(options: dict[str, Any], text: str, stands: bool) -> None:
    options = {"most_calls": None, **options}
    assert takes(call_grammar([STRICT], ToolFormat(), json.dumps, **options), text) == stands


def test_json_grammars() -> None:
    assert takes(json_grammar({"type": "object"}), '{\n  "a": [1, {}]\n}')
    assert not takes(json_grammar({"type": "object"}), "[1]")
    assert not takes(json_grammar({"type": "object"}), "{" + " " * 40 + "}")


def test_schemas_of_tools_that_are_not_strict_may_hold_what_cannot_be_enforced() -> None:
    from byte_tokens import grammar_tokenizer

    from localspec.engine.grammar import Grammar

    parameters = {"properties": {"x": {"type": "string", "format": "nonesuch"}}}
    loose = {"function": {"name": "f", "parameters": parameters}}
    strict = {"function": {**loose["function"], "strict": True}}
    grammar = call_grammar([loose], ToolFormat(), json.dumps, most_calls=None)
    assert Grammar(grammar_tokenizer(), grammar)
    grammar = call_grammar([strict], ToolFormat(), json.dumps, most_calls=None)
    with pytest.raises(UsageError, match="nonesuch"):
        Grammar(grammar_tokenizer(), grammar)
