"""Plain requests on real connections, and what a server must outlive: see `test_server_memory.py`."""

from __future__ import annotations

import http.client
import json
import random
import signal
import socket
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Callable
from typing import Any

from serving import wait_until

CHAT = "/v1/chat/completions"
PATHS = (CHAT, "/v1/completions", "/v1/responses", "/v1/messages")


def user(text: str) -> dict[str, Any]:
    """The body of a chat request."""
    return {"messages": [{"role": "user", "content": text}]}


def connect(url: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=30)


def post(
    url: str, body: Any, path: str = CHAT, *, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    connection = connect(url)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        connection.request(
            "POST", path, data, {"Content-Type": "application/json", **(headers or {})}
        )
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


def fetch(url: str, path: str) -> tuple[int, dict[str, str], bytes]:
    connection = connect(url)
    try:
        connection.request("GET", path)
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


def answers(url: str) -> bool:
    status, _, body = post(url, user("SAY[fine]YAS"))
    return status == 200 and json.loads(body)["choices"][0]["message"]["content"] == "fine"


def is_idle(url: str) -> bool:
    _, _, metrics = fetch(url, "/metrics")
    return b"localspec_running 0" in metrics and b"localspec_waiting 0" in metrics


def abort(url: str, count: int) -> None:
    """Requests, streamed and not, whose clients leave in the queue, in prefill and in decode."""
    for number in range(count):
        body = user("SLOW " + "x" * 20_000 if number % 3 == 0 else "SLOW")
        leave(url, {**body, "stream": number % 2 == 0}, after_bytes=20 if number % 4 == 0 else 0)
    wait_until(lambda: is_idle(url), 60)


def send_malformed(url: str, count: int) -> None:
    """Bodies that are broken in many ways; each is answered, and refused with a reason."""
    rng = random.Random(7)
    whole = json.dumps(
        {
            **user("Hi"),
            "stop": ["x"],
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "max_tokens": 4,
            "logit_bias": {"5": 1},
            "response_format": {"type": "json_object"},
        }
    ).encode()
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
    connection = connect(url)
    for number in range(count):
        connection.request("POST", PATHS[number % 4], rng.choice(kinds)())
        response = connection.getresponse()
        body = response.read()
        assert response.status in (200, 400, 404), (response.status, body)
        assert b"Traceback" not in body
        if response.status != 200:
            assert json.loads(body)["error"]["message"]
    connection.close()


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
    body = {**user("Hi"), "prompt": "Hi", "max_tokens": 2}
    return body | {name: rng.choice(values) for name in rng.sample(names, 4)}


def overfill(url: str, count: int) -> list[int]:
    """More requests at once than there are places; their statuses."""
    statuses: list[int] = []
    body = {**user("SLOW"), "max_tokens": 60}
    threads = [
        threading.Thread(target=lambda: statuses.append(post(url, body)[0])) for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses


def kill_a_client(url: str) -> None:
    """A program that reads a stream is killed in the middle of it."""
    request = json.dumps({**user("SLOW"), "stream": True})
    program = (
        "import sys, urllib.request as r\n"
        f"s = r.urlopen(r.Request({url + CHAT!r}, {request!r}.encode()))\n"
        "for line in s:\n    print(line, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        while b"delta" not in client.stdout.readline():
            assert client.poll() is None
        client.send_signal(signal.SIGKILL)
    wait_until(lambda: is_idle(url))
