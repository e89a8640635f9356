"""The endpoint on the real default model: a small set, since the fake engine tests the protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from openai import OpenAI
from serving import serving

import localspec
from localspec.backend import ModelEngine
from localspec.model import Model

FRANCE = "What is the capital of France? Answer in one sentence."
TOOL = {
    "type": "function",
    "function": {
        "name": "switch_lamp",
        "parameters": {
            "type": "object",
            "properties": {"lamp": {"type": "string", "enum": ["desk", "hall"]}},
            "required": ["lamp"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}


@pytest.fixture(scope="module")
def engine(smollm2: Model) -> ModelEngine:
    return ModelEngine({"ngram": localspec.load(drafter="ngram"), "none": smollm2})


@pytest.fixture(scope="module")
def client(engine: ModelEngine) -> Iterator[OpenAI]:
    with (
        serving(engine) as url,
        OpenAI(base_url=f"{url}/v1", api_key="local", max_retries=0) as made,
    ):
        yield made


def test_it_answers_as_generate_does(client: OpenAI, smollm2: Model) -> None:
    for drafter in ("none", "ngram"):
        answer = client.chat.completions.create(
            model="any",
            messages=[{"role": "user", "content": FRANCE}],
            extra_body={"drafter": drafter},
        )
        assert answer.choices[0].message.content == smollm2.generate(FRANCE).text
        assert answer.choices[0].finish_reason == "stop"


def test_schemas_and_calls_hold_with_drafting_on(client: OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"answer": {"type": "string", "enum": ["yes", "no"]}},
        "required": ["answer"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model="any",
        messages=[{"role": "user", "content": 'Say {"answer": "yes"} as JSON.'}],
        max_tokens=40,
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
        extra_body={"drafter": "ngram", "width": 3},
    )
    content = answer.choices[0].message.content
    assert content is not None
    assert json.loads(content)["answer"] in ("yes", "no")
    forced = client.chat.completions.create(
        model="any",
        messages=[{"role": "user", "content": "It is dark in the hall."}],
        max_tokens=60,
        tools=[TOOL],  # type: ignore[list-item]
        tool_choice="required",
        parallel_tool_calls=False,
    ).choices[0]
    assert forced.finish_reason == "tool_calls"
    assert forced.message.tool_calls
    (call, *_) = forced.message.tool_calls
    assert json.loads(call.function.arguments)["lamp"] in ("desk", "hall")  # type: ignore[union-attr]


def test_logprobs_are_of_the_target(client: OpenAI) -> None:
    choice = client.chat.completions.create(
        model="any",
        messages=[{"role": "user", "content": FRANCE}],
        max_tokens=4,
        logprobs=True,
        top_logprobs=2,
    ).choices[0]
    assert choice.logprobs is not None
    entries = choice.logprobs.content or []
    assert "".join(entry.token for entry in entries) == choice.message.content
    for entry in entries:
        assert entry.token == entry.top_logprobs[0].token
        assert entry.logprob == entry.top_logprobs[0].logprob <= 0


def test_a_second_turn_comes_from_the_cache(client: OpenAI, engine: ModelEngine) -> None:
    turn = {"role": "user", "content": "Remember: " + "pears and plums, " * 60}
    first = client.chat.completions.create(model="any", messages=[turn], max_tokens=4)  # type: ignore[list-item]
    answer = {"role": "assistant", "content": first.choices[0].message.content}
    more = [turn, answer, {"role": "user", "content": "Go on."}]
    second = client.chat.completions.create(model="any", messages=more, max_tokens=1)  # type: ignore[arg-type]
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert cached is not None
    assert cached >= first.usage.prompt_tokens - 1


def test_memory_is_told_before(engine: ModelEngine) -> None:
    from localspec.server.engine import Job

    small, large = (engine.cost(Job((1,) * n, max_tokens=10)) for n in (100, 4000))
    assert 0 < small < large < engine.capacity
    assert engine.context_length == 8192


def test_what_a_stop_text_ends_is_there_for_the_next_turn(client: OpenAI) -> None:
    asked = [{"role": "user", "content": "Count from one to twenty in words, each once."}]
    for drafter in ("none", "ngram"):
        first = client.chat.completions.create(
            model="any",
            messages=asked,  # type: ignore[arg-type]
            max_tokens=60,
            stop=[" "],
            extra_body={"drafter": drafter},
        )
        # At once: the answer's end must not be told before its conversation is kept.
        said = {"role": "assistant", "content": first.choices[0].message.content or "One"}
        second = client.chat.completions.create(
            model="any",
            messages=[*asked, said, {"role": "user", "content": "Go on."}],  # type: ignore[list-item]
            max_tokens=1,
            extra_body={"drafter": drafter},
        )
        assert first.usage is not None
        assert second.usage is not None
        assert second.usage.prompt_tokens_details is not None
        cached = second.usage.prompt_tokens_details.cached_tokens
        assert cached is not None
        # All of the first prompt but what its template ends with.
        assert cached >= first.usage.prompt_tokens - 5
        asked = [{"role": "user", "content": "Name the days of the week, each once."}]
