"""Hosts, origins, keys."""

from __future__ import annotations

import http.client
import urllib.parse
from collections.abc import Iterator

import pytest
from fake_engine import FakeEngine
from serving import serving

from localspec.server.security import Access

PAGE = "https://chat.example"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    access = Access(key="sesame", origins=frozenset([PAGE]), hosts=frozenset(["tunnel.example"]))
    with serving(FakeEngine(), access) as made:
        yield made


def ask(
    url: str, method: str = "GET", path: str = "/v1/models", **headers: str
) -> tuple[int, dict[str, str]]:
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=10)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.putrequest(method, path, skip_host="Host" in given)
    for name, value in given.items():
        connection.putheader(name, value)
    connection.endheaders()
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status, {name.lower(): value for name, value in response.getheaders()}


KEY = {"Authorization": "Bearer sesame"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Basic sesame"}, 401),
        ({"Authorization": "Bearer sesame2"}, 401),
        ({"Authorization": "Bearer "}, 401),
        ({"x_api_key": "wrong"}, 401),
        (KEY, 200),
        ({"Authorization": "bearer sesame"}, 200),
        ({"x_api_key": "sesame"}, 200),
    ],
)
def test_the_key(url: str, headers: dict[str, str], status: int) -> None:
    assert ask(url, **headers)[0] == status


def test_health_needs_no_key(url: str) -> None:
    assert ask(url, path="/health")[0] == 200
    assert ask(url, path="/metrics")[0] == 401


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:1234", 200),
        ("127.0.0.1:80", 200),
        ("[::1]:80", 200),
        ("tunnel.example", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example:80", 403),
        ("10.0.0.1", 403),
        ("", 403),
    ],
)
def test_only_this_computers_names_are_answered(url: str, host: str, status: int) -> None:
    assert ask(url, Host=host, **KEY)[0] == status


def test_pages_read_answers_only_when_they_may(url: str) -> None:
    status, headers = ask(url, Origin=PAGE, **KEY)
    assert status == 200
    assert headers["access-control-allow-origin"] == PAGE
    assert headers["vary"] == "Origin"
    status, headers = ask(url, Origin="https://evil.example", **KEY)
    assert status == 403
    assert "access-control-allow-origin" not in headers
    # Not a web page, but an app's own view.
    status, headers = ask(url, Origin="vscode-file://vscode-app", **KEY)
    assert status == 200
    assert "access-control-allow-origin" not in headers


def test_preflight(url: str) -> None:
    wanted = {"Access_Control_Request_Method": "POST"}
    wanted["Access_Control_Request_Headers"] = "authorization"
    status, headers = ask(url, "OPTIONS", "/v1/chat/completions", Origin=PAGE, **wanted)
    assert status == 204
    assert headers["access-control-allow-origin"] == PAGE
    assert headers["access-control-allow-headers"] == "authorization"
    assert "access-control-allow-credentials" not in headers
    status, headers = ask(url, "OPTIONS", "/v1/chat/completions", Origin="https://evil.example")
    assert status == 403


def test_beyond_loopback_addresses_are_names_too() -> None:
    with serving(FakeEngine(), Access(host="0.0.0.0")) as url:
        assert ask(url, Host="192.168.0.7:8080")[0] == 200
        assert ask(url, Host="evil.example")[0] == 403
