"""The chat with the real default model in a real terminal: type, stream, watch, stop, quit."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from terminal import Terminal

from localspec.model import Model
from localspec.sessions import Sessions

_ESCAPE, _CTRL_U, _F2 = "\x1b", "\x15", "\x1bOQ"
_SECONDS = 240.0


def _figure(screen: str, name: str) -> float:
    """The number after a name on the screen; 0 if there is none."""
    found = re.search(rf"{name}\s+([\d.]+)", screen)
    return float(found[1]) if found else 0.0


def test_the_chat_in_a_terminal(smollm2: Model, tmp_path: Path) -> None:
    environment = {
        "LOCALSPEC_CONFIG": str(tmp_path),
        "LOCALSPEC_DATA": str(tmp_path),
        "OPENBLAS_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "localspec", "chat", "-d", "ngram"]
    with Terminal(command, environment) as terminal:
        terminal.wait_for("Ask anything", _SECONDS)
        # Typed before the model is there.
        terminal.type("naïve 日本語 🦊")
        terminal.wait_for("日本語 🦊", _SECONDS)
        # A person's pace: what is bound comes after what is typed, a chunk at a time.
        terminal.type(_CTRL_U)
        terminal.wait_for("Ask anything", _SECONDS)
        terminal.type("Tell me a very long story.")
        terminal.wait_for("long story.", _SECONDS)
        terminal.type("\r")
        screen = terminal.wait_for(lambda screen: _figure(screen, "reply") >= 1.0, _SECONDS)
        assert "smollm2-135m · ngram" in screen
        assert "tok/s" in screen
        screen = terminal.wait_for(lambda text: _figure(text, "context") > 0, _SECONDS)
        before = _figure(screen, "context")
        terminal.wait_for(lambda text: _figure(text, "context") > before + 10, _SECONDS)
        terminal.type(_F2)
        terminal.wait_for(lambda text: "correction" in text and " plain " in text, _SECONDS)
        terminal.type(_F2)
        terminal.type(_ESCAPE)
        terminal.wait_for("stopped", _SECONDS)
        terminal.resize(60, 20)
        terminal.wait_for(lambda text: "acc " in text and "accepted by" not in text, _SECONDS)
        terminal.type("/exit")
        terminal.wait_for("/exit", _SECONDS)
        terminal.type("\r")
        assert terminal.wait_for_exit(_SECONDS) == 0
    # The terminal is left as it was.
    assert terminal.written.rfind(b"\x1b[?1049l") > terminal.written.rfind(b"\x1b[?1049h")
    assert (tmp_path / "chat.toml").read_text().startswith("# localspec chat")
    sessions = Sessions(tmp_path / "sessions.db")
    (session,) = sessions.find()
    question, reply = sessions.messages(session.id)
    assert question.text == "Tell me a very long story."
    assert reply.reason == "cancelled"
    assert reply.text == "".join(text for text, _, _ in reply.tokens)
    assert len(reply.tokens) > 10
    sessions.close()


def test_without_a_place_for_sessions_the_chat_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    environment = {"LOCALSPEC_CONFIG": str(tmp_path), "LOCALSPEC_DATA": str(tmp_path / "file")}
    command = [sys.executable, "-m", "localspec", "chat", "-m", str(tmp_path / "no-model")]
    with Terminal(command, environment) as terminal:
        # Where the sentence wraps depends on the folder.
        terminal.wait_for(lambda screen: "cannot be opened: File exists" in screen, _SECONDS)
        terminal.wait_for("no-model", _SECONDS)
        terminal.type("/exit")
        terminal.wait_for("/exit", _SECONDS)
        terminal.type("\r")
        assert terminal.wait_for_exit(_SECONDS) == 0
    with Terminal([*command, "--continue"], environment) as terminal:
        assert terminal.wait_for_exit(_SECONDS) == 1
        assert "opened: " in terminal.text.replace("\n", "")
