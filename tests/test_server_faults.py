"""Clients that leave, bodies that are broken, queues that are full: the next request is answered."""

from __future__ import annotations

import gc
import http.client
import json
import random
import re
import socket
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from fake_engine import FakeEngine
from openai import OpenAI
from serving import serving, wait_until

CHAT = "/v1/chat/completions"
SLOW = {"messages": [{"role": "user", "content": "SLOW"}]}
HELD = {"messages": [{"role": "user", "content": "HOLD"}]}
LONG_PROMPT = {"messages": [{"role": "user", "content": "SLOW " + "x" * 60_000}]}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def url(engine: FakeEngine) -> Iterator[str]:
    with serving(engine, max_waiting=4) as made:
        yield made


def post(
    url: str, body: Any, path: str = CHAT, *, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=30)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        connection.request(
            "POST", path, data, {"Content-Type": "application/json", **(headers or {})}
        )
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


def leave(
    url: str,
    body: Any,
    path: str = CHAT,
    *,
    after_bytes: int = 0,
    until: Callable[[], object] | None = None,
) -> None:
    """Send a request and hang up: at once, after so many bytes of the answer, or when something is."""
    parts = urllib.parse.urlsplit(url)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: {len(data)}\r\n\r\n"
    with socket.create_connection((parts.hostname, parts.port)) as connection:
        connection.sendall(head.encode() + data)
        got = 0
        while got < after_bytes:
            got += len(connection.recv(after_bytes))
        if until is not None:
            wait_until(until)


def is_free(engine: FakeEngine) -> bool:
    return not engine.running


def answers(url: str) -> bool:
    status, _, body = post(url, {"messages": [{"role": "user", "content": "SAY[fine]YAS"}]})
    return status == 200 and json.loads(body)["choices"][0]["message"]["content"] == "fine"


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


def test_a_hundred_aborts_leave_nothing_behind(engine: FakeEngine, url: str) -> None:
    assert answers(url)
    before = len(threading.enumerate())
    for number in range(100):
        body = {**(LONG_PROMPT if number % 3 == 0 else SLOW), "stream": number % 2 == 0}
        leave(url, body, after_bytes=20 if number % 4 == 0 and number % 2 == 0 else 0)
    wait_until(lambda: is_free(engine), 20)
    assert answers(url)
    status, _, metrics = fetch(url, "/metrics")
    assert status == 200
    assert b"localspec_running 0" in metrics
    assert b"localspec_waiting 0" in metrics
    wait_until(lambda: len(threading.enumerate()) <= before + 8)


def fetch(url: str, path: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=30)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


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
    assert told == [[], [], [], [], ["0"], ["1", "0"]]


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


def test_a_thousand_malformed_bodies(engine: FakeEngine, url: str) -> None:
    rng = random.Random(7)
    whole = json.dumps(
        {
            "messages": [{"role": "user", "content": "Hi"}],
            "stop": ["x"],
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "max_tokens": 4,
            "logit_bias": {"5": 1},
            "response_format": {"type": "json_object"},
        }
    ).encode()
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=30)
    kinds = [
        lambda: whole[: rng.randrange(len(whole))],
        lambda: bytes(rng.randrange(256) for _ in range(rng.randrange(60))),
        lambda: b"[" * rng.randrange(1, 5000),
        lambda: _with_noise(whole, rng),
        lambda: json.dumps(_of_wrong_types(rng)).encode(),
        lambda: b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        lambda: b'{"messages": [], "temperature": NaN}',
        lambda: b'{"seed": ' + b"9" * 5000 + b"}",
    ]
    paths = [CHAT, "/v1/completions", "/v1/responses", "/v1/messages"]
    for number in range(1000):
        connection.request("POST", paths[number % 4], rng.choice(kinds)())
        response = connection.getresponse()
        body = response.read()
        assert response.status in (200, 400, 404), (response.status, body)
        assert b"Traceback" not in body
        if response.status != 200:
            assert json.loads(body)["error"]["message"]
    connection.close()
    wait_until(lambda: is_free(engine))
    assert answers(url)


def _with_noise(body: bytes, rng: random.Random) -> bytes:
    noisy = bytearray(body)
    for _ in range(rng.randrange(1, 4)):
        noisy[rng.randrange(len(noisy))] = rng.randrange(32, 127)
    return bytes(noisy)


def _of_wrong_types(rng: random.Random) -> dict[str, Any]:
    values: list[Any] = [
        None,
        True,
        -1,
        1.5,
        "x",
        [],
        {},
        [None],
        [[1]],
        {"a": {"b": None}},
        10**30,
    ]
    names = ["messages", "prompt", "input", "stop", "tools", "tool_choice", "n", "seed", "stream"]
    names += ["temperature", "response_format", "system", "logit_bias", "logprobs", "text", "width"]
    body = {"messages": [{"role": "user", "content": "Hi"}], "prompt": "Hi", "max_tokens": 2}
    return body | {name: rng.choice(values) for name in rng.sample(names, 4)}


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


def test_memory_is_as_before(engine: FakeEngine, url: str) -> None:
    for _ in range(30):
        leave(url, SLOW)
        assert answers(url)
    wait_until(lambda: is_free(engine))
    gc.collect()
    tasks = [each for each in gc.get_objects() if type(each).__name__ == "_Events"]
    assert len(tasks) <= 2
