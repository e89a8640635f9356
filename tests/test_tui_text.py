"""Commands, Markdown, segments, races and the help page: pure functions of the chat."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.metrics import Stats
from localspec.sessions import Message, Sessions
from localspec.tui import commands, desktop, help, markdown, segments
from localspec.tui.actions import EVERY
from localspec.tui.conversation import Conversation
from localspec.tui.engine import Choice, Ended, Round, Token
from localspec.tui.race import Lap, verdict
from localspec.tui.turn import in_words


@pytest.mark.parametrize(
    ("text", "name", "argument"),
    [
        ("/help", "help", ""),
        (" /SET temperature 0.5 ", "set", "temperature 0.5"),
        ("/model a/b", "model", "a/b"),
        ("/nonsense x", None, "x"),
    ],
)
def test_commands_are_parsed(text: str, name: str | None, argument: str) -> None:
    parsed = commands.parse(text)
    assert parsed is not None
    assert (parsed[0].name if parsed[0] else None, parsed[1]) == (name, argument)


@pytest.mark.parametrize("text", ["hello", "/usr/bin/x", "/", "/ x", "/help\nme", "1/2"])
def test_messages_are_no_commands(text: str) -> None:
    assert commands.parse(text) is None


@pytest.mark.parametrize("end", ["\u2028", "\x0b", "\x0c", "\x1c", "\x85", "\r", "\r\n"])
def test_parts_end_where_the_parser_sees_a_block_end(end: str) -> None:
    text = f"one{end}two{end}three\n\nnext\n"
    assert segments.cut(text) == text.index("next")


def test_commands_complete() -> None:
    def choices(command: str) -> list[Choice]:
        return [Choice("none"), Choice("ngram")] if command == "drafter" else []

    assert [c.name for c in commands.completions("/se", choices)] == ["/set", "/sessions"]
    lines = [c.name for c in commands.completions("/drafter n", choices)]
    assert lines == ["/drafter none", "/drafter ngram"]
    assert [c.name for c in commands.completions("/drafter none", choices)] == []
    # A whole name is meant as it is, though a longer one has it in it.
    assert (
        commands.completions("/theme dark", lambda _: [Choice("ansi-dark"), Choice("dark")]) == []
    )
    assert commands.completions("hello /se", choices) == []

    def rivals(command: str) -> list[Choice]:
        return [Choice("all"), Choice("dfly"), Choice("dflash")]

    # Of several names the last is completed, and none is offered twice.
    lines = [c.name for c in commands.completions("/compare dfly df", rivals)]
    assert lines == ["/compare dfly dflash"]
    assert next(c.name for c in commands.completions("/compare ", rivals)) == "/compare all"
    # A line that may be at its end is left to be sent.
    assert commands.completions("/compare dfly ", rivals) == []
    assert commands.completions("/compare dfly dflash", rivals) == []
    assert len(commands.completions("/", choices)) == len(commands.COMMANDS)


def test_code_blocks_come_without_fences() -> None:
    text = "a\n\n```python\nx = 1\n\ny = 2\n```\n\n- b\n\n  ```\n  z\n  ```\n\n~~~\nopen"
    assert markdown.code_blocks(text) == ["x = 1\n\ny = 2", "z", "open"]


def test_exports_are_whole_and_do_not_overwrite(tmp_path: Path) -> None:
    messages = [
        Message(1, None, "user", "Why?"),
        Message(2, 1, "assistant", "Because.", thinking="Hm.", reason="cancelled"),
    ]
    text = markdown.export("A title", messages, target="model", system="Be brief.")
    assert text == (
        "# A title\n\n*model*\n\n## System\n\nBe brief.\n\n## You\n\nWhy?\n\n## model\n\n"
        "<details><summary>Thoughts</summary>\n\nHm.\n\n</details>\n\nBecause.\n\n*(stopped)*\n"
    )
    path = markdown.export_path("What is /this?", tmp_path)
    assert path.name == "what-is-this.md"
    path.touch()
    assert markdown.export_path("What is /this?", tmp_path).name == "what-is-this-2.md"


BLOCKS = (
    "# Title\n\n",
    "Some words that go on.\nAnd on.\n\n",
    "- one\n- two\n\n",
    "1. one\n\n   more\n2. two\n\n",
    "```\ncode\n\n# no title\n```\n\n",
    "> quoted\n\n",
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n",
)


@given(st.lists(st.sampled_from(BLOCKS), max_size=60))
def test_parts_are_the_text_and_are_complete(blocks: list[str]) -> None:
    text = "".join(blocks)
    found = segments.parts(text)
    assert "".join(found) == text
    # What is in a fence of the whole is in a fence of its part.
    blocks = [block for part in found for block in markdown.code_blocks(part)]
    assert blocks == markdown.code_blocks(text)
    if len(text) > 3 * segments.LONG:
        assert len(found) > 1


def test_a_text_is_cut_only_before_its_last_block() -> None:
    assert segments.cut("only one") == 0
    assert segments.cut("one\n\ntwo") == len("one\n\n")
    assert segments.cut("one\n\n```\nopen\n\nstill") == len("one\n\n")
    assert segments.cut("- a\n- b\n\n- c") == 0


def test_link_definitions_are_found() -> None:
    text = "See [it][1] and [that].\n\n[1]: http://a.b 'T'\n  [that]: c\n"
    assert segments.definitions(text) == "[1]: http://a.b 'T'\n  [that]: c"
    assert segments.definitions("no [links]: here? yes: [x]") == ""


def lap(text: str, seconds: float, num_rounds: int = 4) -> Lap:
    found, stats = Lap(), Stats(prefill_s=0.5)
    for _ in range(num_rounds):
        stats.add_round(0, 0, 1, num_drafted=0, parked=False, draft_s=0.0, verify_s=0.0)
        stats.decode_s += seconds / num_rounds
        found.add(
            Round((Token(text[: len(text) // num_rounds], "plain"),), 0, 0, 0, 1, stats.copy())
        )
    found.add(Ended("stop", stats.copy()))
    return found


def test_a_race_is_judged_by_what_was_measured() -> None:
    fast, slow = lap("same text here..", 1.0), lap("same text here..", 2.0)
    assert "dfly is 2.00x as fast: 4.0 against 2.0 tok/s" in verdict("dfly", fast, slow)
    assert "the same, character for character" in verdict("dfly", fast, slow)
    assert "does not pay here, 0.50x" in verdict("dfly", slow, fast)
    assert "part after 0 characters" in verdict("dfly", lap("other text here.", 1.0), slow)
    assert verdict("dfly", Lap(), slow) == "There was nothing to compare."


def test_a_lap_is_shown_again_in_its_own_time() -> None:
    run = lap("abcdefgh", 4.0)
    assert run.ended
    assert [run.until(seconds, 0) for seconds in (0.0, 1.4, 1.5, 3.9, 99.0)] == [0, 0, 1, 3, 4]
    assert run.until(2.5, 1) == 2


def test_help_has_every_key_command_and_figure() -> None:
    page = help.page({"stop": "f12"}, Path("/x/chat.toml"))
    for action in EVERY:
        if action.id not in {"accept", "close"} and not action.id.startswith("session-"):
            assert f"({action.id})" in page
    for command in commands.COMMANDS:
        assert f"`/{command.name}" in page
    assert "`f12`  Stop the reply" in page
    assert "/x/chat.toml" in page
    for figure in ("tok/s", "plain", "accepted length", "width", "parked", "context", "memory"):
        assert f"**{figure}" in page
    assert "No reply" in help.figures_page({})
    assert "| rounds | 3 |" in help.figures_page({"rounds": 3, "acceptance_by_position": [0.5]})


def test_branches_of_a_conversation(tmp_path: Path) -> None:
    sessions = Sessions(tmp_path / "s.db")
    talk = Conversation(sessions, {"target": "m"})
    assert sessions.find() == []
    first = talk.say("a question that is much too long to be a title of anything, really, it is")
    assert len(talk.title) <= 60
    talk.finish(talk.begin_reply(), "stop", {})
    talk.go_before(first)
    second = talk.say("other")
    reply = talk.begin_reply()
    talk.grow(reply, [("fine", "draft", False)])
    talk.finish(reply, "stop", {})
    assert [message.id for message in talk.versions(second)] == [first.id, second.id]
    assert not talk.show_version(second, 1)
    assert talk.show_version(second, -1)
    assert [message.id for message in talk.branch] == [first.id, 2]
    again = Conversation.open(sessions, 1)
    assert again is not None
    assert [message.id for message in again.branch] == [first.id, 2]
    assert again.options == {"target": "m"}
    assert Conversation.open(sessions, 99) is None
    sessions.close()


def test_messages_take_turns_even_after_a_failure(tmp_path: Path) -> None:
    sessions = Sessions(tmp_path / "s.db")
    talk = Conversation(sessions)
    talk.say("one")
    talk.drop(talk.begin_reply())
    talk.say("two")
    assert talk.history("sys") == [
        {"role": "system", "content": "sys"},
        {"role": "user", "content": "one\n\ntwo"},
    ]
    sessions.close()


def test_errors_are_sentences() -> None:
    assert in_words(MemoryError()).startswith("memory ran out")
    assert "memory ran out" in in_words(RuntimeError("[METAL] Insufficient Memory (00000008)"))
    with pytest.raises(IndexError) as caught:
        [][1]
    assert in_words(caught.value).startswith(
        "a fault of localspec: IndexError at test_tui_text.py:"
    )


def test_the_clipboard_of_the_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    assert not desktop.copy_with_platform("x")
    pbcopy = tmp_path / "pbcopy"
    pbcopy.write_text(f"#!/bin/sh\ncat > {tmp_path}/clipboard\n")
    pbcopy.chmod(0o755)
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert desktop.copy_with_platform("naïve\n🦊")
    assert (tmp_path / "clipboard").read_text() == "naïve\n🦊"
    # One that fails is not believed: the terminal's own way is taken.
    pbcopy.write_text("#!/bin/sh\nexit 3\n")
    assert not desktop.copy_with_platform("x")
    pbcopy.write_text("#!/no/such/shell\n")
    assert not desktop.copy_with_platform("x")
