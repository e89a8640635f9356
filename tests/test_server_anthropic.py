"""The official Anthropic client against the endpoint, over loopback."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic
from fake_engine import FakeEngine
from serving import serving

TOOL: Any = {
    "name": "look",
    "description": "Look somewhere.",
    "input_schema": {
        "type": "object",
        "properties": {"where": {"type": "string", "enum": ["sky", "sea"]}},
        "required": ["where"],
    },
}
CALL = '<tool_call>\n{"name": "look", "arguments": {"where": "sky"}}\n</tool_call>'


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine(thinks=True)


@pytest.fixture(scope="module")
def client(engine: FakeEngine) -> Iterator[Anthropic]:
    with serving(engine) as url, Anthropic(base_url=url, api_key="local", max_retries=0) as made:
        yield made


def create(client: Anthropic, content: Any, **options: Any) -> Any:
    options = {"max_tokens": 200, "model": "any", **options}
    return client.messages.create(messages=[{"role": "user", "content": content}], **options)


def test_a_message_streamed_and_not(client: Anthropic) -> None:
    whole = create(client, "Tell me of rivers.")
    assert whole.stop_reason in ("end_turn", "max_tokens")
    with client.messages.stream(
        model="any", max_tokens=200, messages=[{"role": "user", "content": "Tell me of rivers."}]
    ) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_thoughts_text_and_calls_are_blocks(client: Anthropic) -> None:
    said = f"SAY[<think>Hm.</think>Let me look. {CALL}]YAS"
    whole = create(client, said, tools=[TOOL])
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use"]
    assert whole.content[2].input == {"where": "sky"}
    assert whole.stop_reason == "tool_use"
    with client.messages.stream(
        model="any", max_tokens=200, messages=[{"role": "user", "content": said}], tools=[TOOL]
    ) as stream:
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use"]
    assert final.content[2].input == {"where": "sky"}  # type: ignore[union-attr]


def test_a_call_can_be_forced(client: Anthropic) -> None:
    for choice in ({"type": "any"}, {"type": "tool", "name": "look"}):
        forced = create(client, "Hello", tools=[TOOL], tool_choice=choice)
        assert forced.stop_reason == "tool_use"
        assert forced.content[0].input["where"] in ("sky", "sea")
    none = create(client, f"SAY[{CALL}]YAS", tools=[TOOL], tool_choice={"type": "none"})
    assert none.content[0].type == "text"


def test_results_go_back_to_the_model(client: Anthropic, engine: FakeEngine) -> None:
    client.messages.create(
        model="any",
        max_tokens=3,
        system=[{"type": "text", "text": "Be brief."}, {"type": "text", "text": "In English."}],
        tools=[TOOL],
        messages=[
            {"role": "user", "content": "What is in the sky?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "t1", "name": "look", "input": {"where": "sky"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": "A kite."},
                    {"type": "text", "text": "And now?"},
                ],
            },
        ],
    )
    prompt = bytes(token for token in engine.jobs[-1].prompt if token < 256).decode()
    assert prompt.startswith("<system>Be brief.\nIn English.")
    assert "I look.\n<tool_call>" in prompt
    assert prompt.index("A kite.") < prompt.index("And now?")


def test_stop_sequences_are_told(client: Anthropic) -> None:
    stopped = create(client, "SAY[one two three]YAS", stop_sequences=["x", "two"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "two")
    assert stopped.content[0].text == "one "
    cut = create(client, "SAY[one two three]YAS", max_tokens=4)
    assert (cut.stop_reason, cut.stop_sequence) == ("max_tokens", None)


def test_a_changing_nonce_does_not_spoil_the_cache(client: Anthropic, engine: FakeEngine) -> None:
    usages = []
    for nonce in ("a1", "b2"):
        system: Any = [
            {"type": "text", "text": f"x-anthropic-billing-header: cc={nonce}; x=1"},
            {"type": "text", "text": "Rules of the house. " * 40},
        ]
        usages.append(create(client, "Hi", system=system, max_tokens=1).usage)
    assert usages[1].cache_read_input_tokens > 700
    prompt = bytes(token for token in engine.jobs[-1].prompt if token < 256).decode()
    assert "billing" not in prompt


def test_tokens_are_counted_as_in_the_request(client: Anthropic) -> None:
    asked: Any = {
        "model": "any",
        "messages": [{"role": "user", "content": "Count me."}],
        "tools": [TOOL],
    }
    usage = client.messages.create(max_tokens=1, **asked).usage
    count = client.messages.count_tokens(**asked).input_tokens
    assert count == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_errors_have_this_protocols_shape(client: Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        create(client, "x" * 70000)
    assert caught.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]
    assert "prompt is too long" in str(caught.value)
    with pytest.raises(anthropic.BadRequestError, match="image"):
        create(client, [{"type": "image", "source": {"type": "url", "url": "http://x"}}])
    with pytest.raises(anthropic.BadRequestError, match="tool_choice"):
        create(client, "x", tools=[TOOL], tool_choice={"type": "tool", "name": "other"})


def test_a_broken_stream_says_so(client: Anthropic) -> None:
    with (
        pytest.raises(anthropic.APIStatusError, match="failed"),
        client.messages.stream(
            model="any", max_tokens=50, messages=[{"role": "user", "content": "SLOW BREAK"}]
        ) as stream,
    ):
        list(stream.text_stream)
