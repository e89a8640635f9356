"""The official OpenAI client against the endpoint, over loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from fake_engine import FakeEngine
from openai import OpenAI
from ordeals import fetch
from pydantic import BaseModel
from serving import serving

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look somewhere.",
        "parameters": {
            "type": "object",
            "properties": {"where": {"type": "string", "enum": ["sky", "sea"]}},
            "required": ["where"],
            "additionalProperties": False,
        },
    },
}
CALL = '<tool_call>\n{"name": "look", "arguments": {"where": "sky"}}\n</tool_call>'


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine(thinks=True)


@pytest.fixture(scope="module")
def client(engine: FakeEngine) -> Iterator[OpenAI]:
    with (
        serving(engine) as url,
        OpenAI(base_url=f"{url}/v1", api_key="local", max_retries=0) as made,
    ):
        yield made


def say(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"SAY[{text}]YAS"}]


def chat(client: OpenAI, content: Any, **options: Any) -> Any:
    messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
    return client.chat.completions.create(model="any", messages=messages, **options)


def joined(stream: Any, field: str = "content") -> str:
    return "".join(
        getattr(chunk.choices[0].delta, field, None) or "" for chunk in stream if chunk.choices
    )


def test_chat_streamed_and_not(client: OpenAI) -> None:
    whole = chat(client, "Tell me of rivers.", max_tokens=60)
    streamed = chat(client, "Tell me of rivers.", max_tokens=60, stream=True)
    assert joined(streamed) == whole.choices[0].message.content
    assert whole.model == "fake/bytes"
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    details = whole.usage.completion_tokens_details
    assert details.accepted_prediction_tokens > 0
    assert whole.usage.speculative["accepted_length"] > 1
    assert whole.usage.speculative["drafter"] == "auto"


def test_usage_comes_when_it_is_asked_for(client: OpenAI) -> None:
    asked = list(chat(client, "Hi", stream=True, stream_options={"include_usage": True}))
    assert asked[-1].choices == []
    assert asked[-1].usage.prompt_tokens > 0
    assert all(chunk.usage is None for chunk in asked[:-1])
    for options in ({}, {"stream_options": {}}, {"stream_options": {"include_usage": False}}):
        assert all(
            c.choices and c.usage is None for c in chat(client, "Hi", stream=True, **options)
        )


def test_a_second_turn_is_cached(client: OpenAI) -> None:
    first = [{"role": "user", "content": "Remember: " + "stones and water " * 30}]
    answer = chat(client, first, max_tokens=20).choices[0].message.content
    second = [*first, {"role": "assistant", "content": answer}, {"role": "user", "content": "?"}]
    usage = chat(client, second, max_tokens=1).usage
    assert usage.prompt_tokens_details.cached_tokens > 500


def test_thoughts_go_into_a_field_of_their_own(client: OpenAI) -> None:
    said = say("<think>Hm, a river.</think>It flows.")
    message = chat(client, said).choices[0].message
    assert (message.reasoning_content, message.content) == ("Hm, a river.", "It flows.")
    assert joined(chat(client, said, stream=True), "reasoning_content") == "Hm, a river."
    cut = chat(client, said, max_tokens=12).choices[0]
    assert (cut.message.reasoning_content, cut.message.content) == ("Hm, a", "") or (
        cut.message.reasoning_content.startswith("Hm") and cut.message.content == ""
    )
    assert cut.finish_reason == "length"


def test_tool_calls_streamed_and_not(client: OpenAI) -> None:
    said = say(f"Let me look. {CALL} {CALL}")
    whole = chat(client, said, tools=[TOOL]).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert whole.message.content == "Let me look."
    calls = [(c.function.name, json.loads(c.function.arguments)) for c in whole.message.tool_calls]
    assert calls == [("look", {"where": "sky"})] * 2
    assert len({call.id for call in whole.message.tool_calls}) == 2
    with client.chat.completions.stream(model="any", messages=said, tools=[TOOL]) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    assert [c.function.arguments for c in final.message.tool_calls] == [
        c.function.arguments for c in whole.message.tool_calls
    ]


def test_tools_are_called_or_not_as_chosen(client: OpenAI, engine: FakeEngine) -> None:
    assert chat(client, say(CALL), tools=[TOOL], tool_choice="none").choices[0].message.content
    assert (
        '"look"'
        not in bytes(t for t in engine.jobs[-1].prompt if t < 256).decode().split("SAY[")[0]
    )
    for choice in ("required", {"type": "function", "function": {"name": "look"}}):
        forced = chat(client, "Hello", tools=[TOOL], tool_choice=choice).choices[0]
        assert forced.finish_reason == "tool_calls"
        arguments = json.loads(forced.message.tool_calls[0].function.arguments)
        assert arguments["where"] in ("sky", "sea")
    one = chat(client, say(CALL * 3), tools=[TOOL], parallel_tool_calls=False).choices[0]
    assert len(one.message.tool_calls) == 1
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, "x", tools=[TOOL], tool_choice={"type": "function", "function": {"name": "y"}})
    assert caught.value.param == "tool_choice"


def test_a_call_that_the_limit_cuts(client: OpenAI) -> None:
    said = say(CALL)
    for stream in (False, True):
        answer = chat(client, said, tools=[TOOL], max_tokens=60, stream=stream)
        last = list(answer)[-1].choices[0] if stream else answer.choices[0]
        assert last.finish_reason == "length"


def test_results_of_calls_can_be_sent_back(client: OpenAI, engine: FakeEngine) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is in the sky?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "look", "arguments": '{"where": "sky"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "A kite."},
        {"role": "developer", "content": "In English."},
    ]
    chat(client, messages, tools=[TOOL], max_tokens=5)
    prompt = bytes(token for token in engine.jobs[-1].prompt if token < 256).decode()
    assert prompt.startswith("<system>Be brief.\n\nIn English.")
    assert "A kite." in prompt
    assert '{"name": "look", "arguments": {"where": "sky"}}' in prompt


class Verdict(BaseModel):
    answer: str
    sure: bool


def test_structured_output(client: OpenAI) -> None:
    parsed = client.chat.completions.parse(
        model="any", messages=[{"role": "user", "content": "Wet?"}], response_format=Verdict
    )
    assert isinstance(parsed.choices[0].message.parsed, Verdict)
    anything = chat(client, "Wet?", response_format={"type": "json_object"})
    assert isinstance(json.loads(anything.choices[0].message.content), dict)
    text = chat(client, say("plain"), response_format={"type": "text"})
    assert text.choices[0].message.content == "plain"
    schema = {"type": "array", "uniqueItems": True, "items": {"type": "integer"}}
    with pytest.raises(openai.BadRequestError, match="uniqueItems"):
        chat(
            client,
            "x",
            response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
        )
    with pytest.raises(openai.BadRequestError, match="response_format"):
        chat(client, "x", response_format={"type": "grammar"})


def test_stops_seeds_and_choices(client: OpenAI) -> None:
    stops = ["zz", "yy", "three", "xx", "ww", "vv", "uu", "tt", "ss"]
    choice = chat(client, say("one two three four"), stop=stops).choices[0]
    assert (choice.message.content, choice.finish_reason) == ("one two ", "stop")
    texts = [
        [c.message.content for c in chat(client, "Hi", n=2, temperature=1, seed=seed).choices]
        for seed in (5, 5, 6)
    ]
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]
    chunks = list(chat(client, "Hi", n=2, stream=True, stream_options={"include_usage": True}))
    assert {c.choices[0].index for c in chunks if c.choices} == {0, 1}


def test_logprobs(client: OpenAI) -> None:
    choice = chat(client, say("abc"), logprobs=True, top_logprobs=3).choices[0]
    assert [entry.token for entry in choice.logprobs.content] == ["a", "b", "c"]
    assert [len(entry.top_logprobs) for entry in choice.logprobs.content] == [3, 3, 3]
    assert choice.logprobs.content[0].bytes == [97]
    streamed = chat(client, say("abc"), logprobs=True, stream=True)
    entries = [e for c in streamed if c.choices[0].logprobs for e in c.choices[0].logprobs.content]
    assert [entry.token for entry in entries] == ["a", "b", "c"]
    old = client.completions.create(model="any", prompt="SAY[abc]YAS", logprobs=2)
    assert old.choices[0].logprobs.tokens == ["a", "b", "c"]
    assert len(old.choices[0].logprobs.top_logprobs[0]) == 2


def test_what_a_job_is_told(client: OpenAI, engine: FakeEngine) -> None:
    chat(
        client,
        "Hi",
        temperature=0.7,
        top_p=0,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={"5": -100},
        max_tokens=9,
        max_completion_tokens=4,
        extra_body={
            "drafter": "ngram",
            "width": 3,
            "top_k": 20,
            "min_p": 0.1,
            "repetition_penalty": 1.1,
            "nonesuch": {"a": 1},
        },
    )
    job = engine.jobs[-1]
    assert (job.max_tokens, job.drafter, job.width) == (4, "ngram", 3)
    sampling = job.sampling
    assert (sampling.temperature, sampling.top_k, sampling.min_p) == (0.7, 20, 0.1)
    assert 0 < sampling.top_p < 1e-3
    assert sampling.logit_bias == {5: -100}
    chat(client, "Hi", max_tokens=-1, extra_body={"temperature": None, "stop": None, "tools": None})
    assert engine.jobs[-1].max_tokens == engine.context_length - len(engine.jobs[-1].prompt)
    with pytest.raises(openai.BadRequestError, match="loaded") as caught:
        chat(client, "Hi", extra_body={"drafter": "owner/other"})
    assert caught.value.param == "drafter"


def test_thinking_can_be_turned_off(client: OpenAI, engine: FakeEngine) -> None:
    seen: list[Any] = []
    encode = engine.encode_chat

    def noting(messages: Any, tools: Any, options: Any) -> Any:
        seen.append(options)
        return encode(messages, tools, options)

    engine.encode_chat = noting  # type: ignore[method-assign]
    try:
        chat(client, "Hi", reasoning_effort="none", max_tokens=1)
        chat(client, "Hi", max_tokens=1, extra_body={"reasoning": {"effort": "high"}})
        body = {"chat_template_kwargs": {"enable_thinking": False}}
        chat(client, "Hi", max_tokens=1, extra_body=body)
        with pytest.raises(openai.BadRequestError, match="chat_template"):
            chat(client, "Hi", extra_body={"chat_template_kwargs": {"chat_template": "{{ 1 }}"}})
    finally:
        engine.encode_chat = encode  # type: ignore[method-assign]
    assert seen == [
        {"reasoning_effort": "none", "enable_thinking": False},
        {"reasoning_effort": "high"},
        {"enable_thinking": False},
    ]


def test_context_overflow_names_both_numbers(client: OpenAI, engine: FakeEngine) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, "x" * 70000)
    assert caught.value.code == "context_length_exceeded"
    assert str(engine.context_length) in str(caught.value)
    frame = len("<user></><assistant>")
    exact = "x" * (engine.context_length - frame - 1)
    assert chat(client, exact).usage.completion_tokens == 1
    with pytest.raises(openai.BadRequestError):
        chat(client, exact + "x")


def test_completions(client: OpenAI) -> None:
    one = client.completions.create(model="any", prompt="SAY[abc]YAS")
    assert one.choices[0].text == "abc"
    two = client.completions.create(model="any", prompt=["SAY[abc]YAS", "SAY[de]YAS"], n=2)
    assert [choice.text for choice in two.choices] == ["abc", "abc", "de", "de"]
    ids = client.completions.create(model="any", prompt=list(b"SAY[abc]YAS"))
    assert ids.choices[0].text == "abc"
    stream = client.completions.create(model="any", prompt="SAY[a b c]YAS", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "a b c"
    ids = client.completions.create(model="any", prompt=list(b"SAY[d]YAS"), echo=True)
    assert ids.choices[0].text == "SAY[d]YASd"
    stream = client.completions.create(
        model="any", prompt="SAY[a b]YAS", echo=True, stop="]", stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == "SAY[a b]YASa b"
    for options, param in (
        ({"suffix": "end"}, "suffix"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"prompt": [999]}, "prompt"),
        ({"best_of": 3}, "best_of"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(**{"model": "any", "prompt": "x", **options})
        assert caught.value.param == param


def test_filling_in() -> None:
    engine = FakeEngine(fills=True)
    with (
        serving(engine) as url,
        OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client,
    ):
        client.completions.create(model="any", prompt="ab", suffix="cd", max_tokens=5)
    job = engine.jobs[-1]
    assert job.prompt == (256, *b"ab", 257, *b"cd", 258)
    assert job.fills


def test_harmony() -> None:
    thinks = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    calls = '<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"where": "sky"}'
    with (
        serving(FakeEngine(harmony=True)) as url,
        OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client,
    ):
        said = say(f"{thinks}<|channel|>final<|message|>It flows.")
        message = chat(client, said).choices[0].message
        assert (message.reasoning_content, message.content) == ("Hm.", "It flows.")
        assert joined(chat(client, said, stream=True)) == "It flows."
        assert joined(chat(client, said, stream=True), "reasoning_content") == "Hm."
        choice = chat(client, say(thinks + calls), tools=[TOOL]).choices[0]
        assert choice.finish_reason == "tool_calls"
        assert choice.message.tool_calls[0].function.name == "look"
        assert json.loads(choice.message.tool_calls[0].function.arguments) == {"where": "sky"}


def test_responses(client: OpenAI) -> None:
    first = client.responses.create(model="any", input="SAY[I am Basil.]YAS", instructions="Hi.")
    assert first.output_text == "I am Basil."
    assert first.status == "completed"
    assert first.id.startswith("resp_")
    assert first.usage is not None
    before = first.usage.input_tokens
    for _ in range(2):
        second = client.responses.create(
            model="any", input="And?", previous_response_id=first.id, max_output_tokens=4
        )
        assert second.status == "incomplete"
        assert second.incomplete_details is not None
        assert second.incomplete_details.reason == "max_output_tokens"
        assert second.usage is not None
        assert second.usage.input_tokens > before
    with pytest.raises(openai.NotFoundError, match="resp_none"):
        client.responses.create(model="any", input="x", previous_response_id="resp_none")


def test_a_response_that_is_not_to_be_stored_is_not(client: OpenAI) -> None:
    kept = client.responses.create(model="any", input="Hi", store=False)
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.create(model="any", input="?", previous_response_id=kept.id)
    assert caught.value.code == "previous_response_not_found"


def test_responses_streamed(client: OpenAI) -> None:
    said = f"<think>Hm.</think>Let me look. {CALL}"
    function = {"type": "function", **TOOL["function"]}
    with client.responses.stream(
        model="any", input=f"SAY[{said}]YAS", tools=[function, {"type": "web_search"}]
    ) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_response()
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    assert final.output_text == "Let me look."
    assert events[0] == "response.created"
    assert events[-1] == "response.completed"
    assert "response.function_call_arguments.delta" in events
    going_on = client.responses.create(
        model="any",
        previous_response_id=final.id,
        input=[
            {
                "type": "function_call_output",
                "call_id": final.output[2].call_id,  # type: ignore[union-attr]
                "output": "A kite. SAY[Done]YAS",
            }
        ],
    )
    assert going_on.output_text == "Done"


def test_responses_by_schema(client: OpenAI) -> None:
    parsed = client.responses.parse(model="any", input="Wet?", text_format=Verdict)
    assert isinstance(parsed.output_parsed, Verdict)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"temperature": 2.5}, "temperature"),
        ({"presence_penalty": -3}, "presence_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 0, "max_tokens": 5}, "max_completion_tokens"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"n": 99}, "n"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"tools": [{"type": "retrieval"}]}, "tools.0.type"),
        ({"tools": [{"type": "function"}]}, "tools.0.function.name"),
        ({"tool_choice": "always"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"extra_body": {"width": "wide"}}, "width"),
    ],
)
def test_wrong_values_are_named(client: OpenAI, options: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            chat(client, "Hi", stream=stream, **options)
        assert caught.value.param == param
        assert caught.value.type == "invalid_request_error"


def test_a_slash_too_many_is_borne(client: OpenAI) -> None:
    base = str(client.base_url).rstrip("/")
    with OpenAI(base_url=f"{base}//", api_key="x", max_retries=0) as other:
        assert chat(other, say("fine")).choices[0].message.content == "fine"


def test_models(client: OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.owned_by) == ("fake/bytes", "localspec")
    assert client.models.retrieve("fake/bytes").id == "fake/bytes"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other")
    assert caught.value.code == "model_not_found"


def test_a_model_that_is_a_folder_is_found_by_its_name() -> None:
    engine = FakeEngine()
    engine.name = "/models/mine"
    with serving(engine) as url:
        for name in ("/models/mine", "%2Fmodels%2Fmine", "models/mine"):
            status, _, body = fetch(url, f"/v1/models/{name}")
            assert (status, json.loads(body)["id"]) == (200, "/models/mine")


def test_the_oldest_conversations_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    from localspec.server import store
    from localspec.server.errors import ApiError

    monkeypatch.setattr(store, "_MOST_STORED", 3)
    kept = store.Store()
    for number in range(5):
        kept.put(f"resp_{number}", [{"role": "user", "content": str(number)}])
    assert kept.get("resp_2")[0]["content"] == "2"
    kept.put("resp_5", [])
    with pytest.raises(ApiError, match="resp_3"):
        kept.get("resp_3")
    assert kept.get("resp_2")
    monkeypatch.setattr(store, "_MOST_CHARACTERS", 100)
    kept.put("resp_6", [{"content": "x" * 200}])
    assert kept.get("resp_6")
