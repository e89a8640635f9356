"""Clients that leave, bodies that are broken, queues that are full: the next request is answered."""

from __future__ import annotations

import http.client
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from fake_engine import FakeEngine
from openai import OpenAI
from ordeals import CHAT, answers, fetch, leave, post, user
from serving import serving, wait_until

SLOW = user("SLOW")
HELD = user("HOLD")


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def url(engine: FakeEngine) -> Iterator[str]:
    with serving(engine, max_waiting=4) as made:
        yield made


def is_free(engine: FakeEngine) -> bool:
    return not engine.running


@pytest.mark.parametrize("path", [CHAT, "/v1/responses", "/v1/messages", "/v1/completions"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("stage", ["prefill", "decode"])
def test_a_client_that_leaves_frees_the_engine(
    engine: FakeEngine, url: str, path: str, stream: bool, stage: str
) -> None:
    # Of the first a thousand steps of reading are due, of the second no end of words.
    prompt = "SLOW" + " " * 60_000 if stage == "prefill" else "HOLD"
    asked: dict[str, Any] = {CHAT: {"messages": [{"role": "user", "content": prompt}]}}
    asked["/v1/messages"] = asked[CHAT]
    asked |= {"/v1/responses": {"input": prompt}, "/v1/completions": {"prompt": prompt}}
    body = {"stream": stream, **asked[path]}
    rounds = 0 if stage == "prefill" else 1
    leave(url, body, path, until=lambda: any(run.num_rounds >= rounds for run in engine.running))
    # A whole answer would take longer: the prompt is read for a second and more, the words never end.
    wait_until(lambda: is_free(engine), 5)
    assert answers(url)


def test_a_full_queue_turns_away_and_then_serves(engine: FakeEngine, url: str) -> None:
    results: list[tuple[int, dict[str, str], bytes]] = []
    body = {**HELD, "max_tokens": 20}
    threads = [threading.Thread(target=lambda: results.append(post(url, body))) for _ in range(16)]
    for thread in threads:
        thread.start()
    # Four hold places, four wait.
    wait_until(lambda: len(results) == 8, 30)
    assert {status for status, _, _ in results} == {503}
    refused = results[0]
    engine.gate.set()
    for thread in threads:
        thread.join()
    assert [status for status, _, _ in results[8:]] == [200] * 8
    assert refused[1]["retry-after"].isdigit()
    assert "x-should-retry" not in refused[1]
    assert json.loads(refused[2])["error"]["code"] == "overloaded"
    assert engine.most_running <= 4
    assert answers(url)


def test_a_stream_that_waits_is_told_how_many_are_ahead(engine: FakeEngine, url: str) -> None:
    bodies: list[str] = []

    def ask() -> None:
        _, _, body = post(url, {**HELD, "stream": True, "max_tokens": 20})
        bodies.append(body.decode())

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    wait_until(lambda: b"localspec_waiting 2" in fetch(url, "/metrics")[2])
    engine.gate.set()
    for thread in threads:
        thread.join()
    told = sorted(re.findall(r": waiting, (\d) ahead", body) for body in bodies)
    assert [each[:1] for each in told] == [[], [], [], [], ["0"], ["1"]]


def test_short_requests_are_not_starved_by_long_ones(engine: FakeEngine, url: str) -> None:
    served = threading.Event()
    threads = [
        threading.Thread(target=leave, args=(url, HELD), kwargs={"until": served.is_set})
        for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(engine.running) == 3)
    status, _, _ = post(url, {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8})
    assert status == 200
    assert len(engine.running) == 3
    served.set()
    for thread in threads:
        thread.join(20)


def test_long_silence_is_filled_with_comments(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localspec.server.transport.KEEP_ALIVE_S", 0.05)
    engine.pause = 0.3
    with serving(engine) as url:
        _, headers, body = post(url, {**SLOW, "stream": True, "max_tokens": 3})
    assert headers["content-type"].startswith("text/event-stream")
    lines = body.decode().split("\n\n")
    assert lines[0] == ": accepted"
    assert lines.count(": keep-alive") >= 3
    assert any(line.startswith(": prefill ") for line in lines)


def test_an_error_in_a_stream_is_told_in_it(engine: FakeEngine, url: str) -> None:
    breaking = {"messages": [{"role": "user", "content": "SLOW BREAK"}], "stream": True}
    with (
        OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client,
        pytest.raises(openai.APIError, match="failed") as caught,
    ):
        for _ in client.chat.completions.create(model="any", **breaking):  # type: ignore[call-overload]
            pass
    assert caught.value.code == "internal_error"
    _, _, body = post(url, breaking)
    assert body.endswith(b"data: [DONE]\n\n")
    assert b"planted" not in body
    _, _, body = post(url, {"input": "SLOW BREAK", "stream": True}, "/v1/responses")
    assert b"response.failed" in body
    assert answers(url)


def test_a_failure_is_not_worth_a_retry(url: str) -> None:
    status, headers, body = post(url, {"messages": [{"role": "user", "content": "SLOW BREAK"}]})
    assert status == 500
    assert headers["x-should-retry"] == "false"
    assert json.loads(body)["error"]["type"] == "server_error"
    assert b"planted" not in body


def test_bodies_are_bounded_whether_they_tell_their_length_or_not(url: str) -> None:
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=30)
    connection.putrequest("POST", CHAT)
    connection.putheader("Content-Length", str(2**36))
    connection.endheaders()
    response = connection.getresponse()
    assert response.status == 413
    assert json.loads(response.read())["error"]["message"]
    connection.close()
    status = 0
    connection = http.client.HTTPConnection(parts.netloc, timeout=30)
    try:
        connection.request("POST", CHAT, (b"x" * 2**20 for _ in range(40)), encode_chunked=True)
    except (BrokenPipeError, ConnectionResetError):
        status = 413
    else:
        status = connection.getresponse().status
    connection.close()
    assert status == 413
    assert answers(url)
