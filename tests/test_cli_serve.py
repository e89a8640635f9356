"""`localspec serve` as a command: settings for editors, mistakes, and the program itself."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request

import pytest

from localspec.cli import run
from localspec.cli.editors import EDITORS, Endpoint, settings

Capture = pytest.CaptureFixture[str]
TO = Endpoint("some/model", "http://127.0.0.1:8080", "sesame", 8192)


@pytest.mark.parametrize("editor", EDITORS)
def test_every_editors_settings_say_where_and_what(editor: str) -> None:
    text = settings(editor, TO)
    assert "8080" in text or editor == "cursor"
    assert editor == "xcode" or "sesame" in text
    assert editor in ("xcode", "jetbrains", "open-webui") or "some/model" in text


@pytest.mark.parametrize("editor", ["zed", "copilot", "opencode"])
def test_json_settings_are_json(editor: str) -> None:
    text = settings(editor, TO)
    start = min(at for at in (text.find("{"), text.find("[")) if at >= 0)
    json.JSONDecoder().raw_decode(text[start:])


def test_codex_settings_are_toml() -> None:
    import tomllib

    text = settings("codex", TO).partition("\n")[2]
    value = tomllib.loads(text)
    assert value["model_providers"]["localspec"]["wire_api"] == "responses"


def test_settings_are_printed_with_the_models_context(capsys: Capture) -> None:
    assert run(["serve", "--editor", "continue", "--port", "9999"]) == 0
    out, _ = capsys.readouterr()
    assert "http://127.0.0.1:9999/v1" in out
    assert "contextLength: 8192" in out


@pytest.mark.parametrize(
    ("arguments", "code", "names"),
    [
        (["serve", "--editor", "edlin"], 2, "zed"),
        (["serve", "--api-key", ""], 2, "api-key"),
        (["serve", "--port", "70000"], 2, "port"),
        (["serve", "--host", "no.such.host.invalid", "--port", "0"], 1, "no.such.host.invalid"),
    ],
)
def test_mistakes_are_one_line(
    capsys: Capture, arguments: list[str], code: int, names: str
) -> None:
    assert run(arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert names in err


def test_a_port_in_use_is_told_before_the_model_is_loaded(capsys: Capture) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert run(["serve", "--port", str(taken.getsockname()[1])]) == 1
    assert "--port" in capsys.readouterr().err


def test_the_program_serves_and_ends_on_an_interrupt() -> None:
    server = subprocess.Popen(
        [sys.executable, "-m", "localspec", "serve", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    assert server.stderr is not None
    # Where the model is not imported yet, that is said first.
    line = next(line for line in server.stderr if "http" in line)
    try:
        url = next(word for word in line.split() if word.startswith("http")).rstrip(";")
        with urllib.request.urlopen(f"{url}/models", timeout=60) as reply:
            assert json.load(reply)["data"][0]["id"] == "smollm2-135m"
    finally:
        server.send_signal(signal.SIGINT)
        out, err = server.communicate(timeout=60)
    assert (out, err) == ("", "")
    assert server.returncode == 130


def test_the_endpoint_needs_no_mlx() -> None:
    script = (
        "import sys\n"
        "import localspec.server.app, localspec.server.listen\n"
        "assert not {'mlx.core', 'transformers', 'llguidance'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
