"""The command line: what goes to stdout and stderr, exit codes, pipes, interrupts."""

from __future__ import annotations

import io
import json
import os
import shlex
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from localspec.cli import run
from localspec.model import Model

HELLO = "What is the capital of France? Answer in one sentence."
ANSWER = "The capital of France is Paris."

GOLDEN = Path(__file__).parent / "golden"

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def no_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))


def test_the_answer_alone_is_on_stdout(smollm2: Model, capsys: Capture) -> None:
    assert run(["generate", HELLO]) == 0
    assert capsys.readouterr() == (ANSWER + "\n", "")
    assert run(["generate", HELLO, "--no-stream", "--stats", "-d", "none"]) == 0
    out, err = capsys.readouterr()
    assert out == ANSWER + "\n"
    assert "accepted length 1.00" in err
    assert "\x1b" not in out + err


def test_json_has_the_documented_keys(smollm2: Model, capsys: Capture) -> None:
    assert run(["generate", HELLO, "--json", "-d", "ngram", "--seed", "3"]) == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert err == ""
    assert answer["text"] == ANSWER
    assert answer["finish_reason"] == "stop"
    assert (answer["model"], answer["drafter"]) == ("smollm2-135m", "ngram")
    assert answer["stats"]["generated_tokens"] == len(answer["token_ids"]) == 8
    assert set(answer) == {"text", "token_ids", "finish_reason", "model", "drafter", "stats"}


def test_standard_input_goes_before_the_argument(
    smollm2: Model, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prompt_tokens(piped: str, *arguments: str) -> int:
        monkeypatch.setattr(sys, "stdin", io.StringIO(piped))
        assert run(["generate", *arguments, "--raw", "--max-tokens", "1", "--json"]) == 0
        tokens = json.loads(capsys.readouterr().out)["stats"]["prompt_tokens"]
        assert isinstance(tokens, int)
        return tokens

    joined = len(smollm2.encode("one two\n\nthree", raw=True))
    assert prompt_tokens("one two\n", "three") == joined
    assert prompt_tokens("three") == len(smollm2.encode("three", raw=True))


def test_a_system_prompt_and_stops_are_heeded(smollm2: Model, capsys: Capture) -> None:
    assert run(["generate", HELLO, "--stop", "Paris", "--stop", "London"]) == 0
    assert capsys.readouterr().out == "The capital of France is \n"
    assert run(["generate", HELLO, "-s", "Answer in capitals.", "--max-tokens", "5"]) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "names"),
    [
        (["generate", "x", "-m", "no/such-model"], 1, "no/such-model"),
        (["generate", "x", "-m", "/no/such/folder"], 1, "/no/such/folder"),
        (["generate", "x", "-d", "nonesuch"], 1, "nonesuch"),
        (["generate", "x", "--temperature", "-1"], 2, "temperature"),
        (["generate", "x", "--temperature", "warm"], 2, "temperature"),
        (["generate", "x", "--top-p", "2"], 2, "top_p"),
        (["generate", "x", "--max-tokens", "0"], 2, "max_tokens"),
        (["generate", "x", "--width", "wide"], 2, "--width"),
        (["generate", "x", "--nonesuch"], 2, "--nonesuch"),
        (["generate"], 2, "prompt"),
        (["generate", "x", "-m", str(GOLDEN / "dflash-zlab")], 1, "is a drafter, not a model"),
        (["generate", "x", "-d", ""], 2, "drafter's name is empty"),
        (["nonesuch"], 2, "nonesuch"),
        (["models", "pull", "nonesuch"], 1, "nonesuch"),
    ],
)
def test_mistakes_are_one_line_on_stderr(
    smollm2: Model, capsys: Capture, arguments: list[str], code: int, names: str
) -> None:
    assert run(arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert names in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--temperature", "-1"],
        ["--temperature", "nan"],
        ["--top-k", "-1"],
        ["--width", "-2"],
        ["--max-tokens", "0"],
        ["--stop", ""],
    ],
    ids=" ".join,
)
def test_values_are_checked_before_the_model_is_loaded(arguments: list[str]) -> None:
    # A model that is not there would be the first complaint.
    assert run(["generate", "x", "-m", "/no/such/folder", *arguments]) == 2


def test_without_a_command_the_help_is_printed(capsys: Capture) -> None:
    assert run([]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Usage: localspec")
    assert "\n  generate " in out
    assert err == ""
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"localspec {version('localspec')}\n"


def test_models_lists_what_is_installed(smollm2: Model, capsys: Capture) -> None:
    assert run(["models"]) == 0
    out, _ = capsys.readouterr()
    assert "smollm2-135m" in out
    assert "ngram" in out
    assert run(["models", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert any(row["name"] == "smollm2-135m" and row["bytes"] > 5e7 for row in rows)


def test_pulling_the_default_model_finds_it(smollm2: Model, capsys: Capture) -> None:
    assert run(["models", "pull", "smollm2-135m"]) == 0
    assert capsys.readouterr().out == "smollm2-135m is installed\n"


def test_doctor_says_what_there_is(capsys: Capture) -> None:
    code = run(["doctor", "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert code == (1 if facts["problems"] else 0)
    assert {"chip", "memory", "device", "blas", "mlx"} <= set(facts)


def test_doctor_notices_an_unusable_cache_folder(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for folder in ("file", "file/below"):
        monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / folder))
        assert run(["doctor"]) == 1
        assert f"problem: the cache folder {tmp_path / folder} cannot" in capsys.readouterr().out


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "localspec", *arguments]


def test_a_closed_pipe_ends_quietly(smollm2: Model) -> None:
    writer = subprocess.Popen(
        command("generate", "Count to one hundred.", "--max-tokens", "60"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    assert writer.stdout is not None
    assert writer.stderr is not None
    assert writer.stdout.read(1)
    writer.stdout.close()
    assert writer.wait(timeout=60) == 0
    assert writer.stderr.read() == b""
    writer.stderr.close()


def test_an_interrupt_keeps_what_was_printed(smollm2: Model) -> None:
    writer = subprocess.Popen(
        command("generate", "Tell me a very long story.", "--max-tokens", "1000"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        # Where the tests themselves run in the background, interrupts would be ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert writer.stdout is not None
    first = os.read(writer.stdout.fileno(), 1)
    writer.send_signal(signal.SIGINT)
    out, err = writer.communicate(timeout=60)
    assert writer.returncode == 130
    assert (first + out).strip()
    assert err == b""


def in_shell(redirections: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    line = f"{shlex.join(command(*arguments))} {redirections}"
    return subprocess.run(["bash", "-c", line], capture_output=True, timeout=120)


def test_a_closed_standard_input_is_no_input(smollm2: Model) -> None:
    done = in_shell("<&-", "generate", HELLO, "--max-tokens", "3")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"The capital of\n", b"")
    done = in_shell("<&-", "generate")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"there is no prompt" in done.stderr


def test_a_full_device_is_one_line(smollm2: Model) -> None:
    done = in_shell(">/dev/full </dev/null", "models")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"No space left" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_standard_input_that_is_no_text_is_refused() -> None:
    done = in_shell(r"< <(printf '\xff\xfe')", "generate")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"UTF-8 text" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_closed_standard_output_is_a_reader_gone() -> None:
    for redirections in (">&- </dev/null", ">&- 2>&- <&-"):
        done = in_shell(redirections, "--version")
        assert (done.returncode, done.stderr) == (0, b"")


def test_a_failure_keeps_its_exit_code_in_a_pipe(tmp_path: Path) -> None:
    failing = " ".join(command("generate", "x", "-m", str(tmp_path)))
    shell = f"set -o pipefail; {failing} | head -1"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 1
    assert done.stdout == b""
    assert done.stderr.count(b"\n") == 1


def test_help_needs_no_heavy_imports() -> None:
    script = (
        "import sys\n"
        "from localspec.cli import run\n"
        "run(['--help'])\n"
        "assert 'mlx.core' not in sys.modules and 'transformers' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "generate" in done.stdout
