"""The chat with a scripted engine: what happens when keys are pressed."""

from __future__ import annotations

from pathlib import Path

import pytest
from chat_app import Chat, asynchronous, chat
from scripted_engine import Script, ScriptedEngine
from textual import events
from textual.widgets import Static

from localspec.errors import LocalspecError
from localspec.sessions import Sessions
from localspec.tui.config import Config
from localspec.tui.engine import Choice
from localspec.tui.screens.chat import Start
from localspec.tui.widgets.message_view import MessageView
from localspec.tui.widgets.notice import Notice
from localspec.tui.widgets.origin_text import OriginText
from localspec.tui.widgets.reply_text import ReplyText
from localspec.tui.widgets.thinking import Thinking

LONG = "\n\n".join(f"Paragraph {n} of a long reply, with words in it." for n in range(60))


def gated(num_rounds: int = 0) -> ScriptedEngine:
    """An engine with a long reply, of which so many rounds come until more are allowed."""
    engine = ScriptedEngine([Script(LONG, pattern=(2,), gated=True)])
    engine.allow(num_rounds)
    return engine


@asynchronous
async def test_a_message_is_sent_streamed_and_saved(tmp_path: Path) -> None:
    async with chat(tmp_path, ScriptedEngine([Script("Hello **there**.", width=3)])) as c:
        await c.pilot.press(*"Hi you")
        await c.pilot.press("enter")
        await c.until(lambda: len(c.branch) == 2 and not c.screen.streaming.replying)
        assert c.branch == [("user", "Hi you"), ("assistant", "Hello **there**.")]
        assert c.replies[0].source == "Hello **there**."
        assert c.prompt.text == ""
        assert c.engine.requests[0][0] == [{"role": "user", "content": "Hi you"}]
        (session,) = c.sessions.find()
        assert (session.title, session.num_messages) == ("Hi you", 2)
        figures = c.screen.streaming.view.figures
        assert figures.plain_speed == pytest.approx(20.0)
        assert figures.stats.generated_tokens == 2
        await c.ask("And more?")
        assert c.engine.requests[1][0][:3] == [
            {"role": "user", "content": "Hi you"},
            {"role": "assistant", "content": "Hello **there**."},
            {"role": "user", "content": "And more?"},
        ]


@asynchronous
async def test_the_panel_names_the_drafter_that_auto_plays(tmp_path: Path) -> None:
    script = Script(LONG, pattern=(2,), arms=("eagle3", "eagle3", "none"), gated=True)
    start = Start("smollm2-135m", "auto")
    async with chat(tmp_path, ScriptedEngine([script]), start=start) as c:

        def shown(id: str) -> str:
            return str(c.screen.query_one(f"#{id}", Static).render())

        await c.send("Go on")
        assert "drafter     auto\n" in shown("figures")
        c.engine.allow(2)
        await c.until(lambda: "drafter     auto → eagle3\n" in shown("figures"))
        c.engine.allow(1)
        await c.until(lambda: "drafter     auto → plain\n" in shown("figures"))
        await c.pilot.press("f3")
        await c.until(lambda: "auto → plain" in shown("status"))
        await c.pilot.press("escape")


@asynchronous
async def test_escape_stops_and_keeps_the_text(tmp_path: Path) -> None:
    async with chat(tmp_path, gated(15)) as c:
        await c.send("Go on")
        await c.until(lambda: "Paragraph 1" in c.replies[0].source)
        await c.pilot.press("escape")
        await c.until(lambda: not c.screen.streaming.replying)
        kept = c.branch[-1][1]
        assert LONG.startswith(kept)
        assert "Paragraph 1" in kept
        assert len(kept) < len(LONG)
        assert c.engine.num_cancelled == 1
        assert c.sessions.messages(1)[-1].reason == "cancelled"
        assert c.sessions.messages(1)[-1].text == kept
        # It can be taken up again, in the same place.
        c.engine.scripts = [Script(" and the rest.")]
        await c.pilot.press("f8")
        await c.until(lambda: c.branch[-1][1].endswith("and the rest."))
        assert c.branch[-1][1] == kept + " and the rest."
        assert c.engine.requests[-1][0][-1] == {"role": "assistant", "content": kept}
        assert len(c.branch) == 2
        await c.until(lambda: not c.screen.streaming.replying)
        assert c.replies[0].source == kept + " and the rest."


@asynchronous
async def test_ctrl_c_stops_and_pressed_twice_quits(tmp_path: Path) -> None:
    async with chat(tmp_path, gated(15)) as c:
        await c.send("Go on")
        await c.until(lambda: c.branch and c.screen.streaming.view.figures.rounds)
        await c.pilot.press("ctrl+c")
        await c.until(lambda: not c.screen.streaming.replying)
        assert c.app.is_running
        await c.pilot.press("ctrl+c")
        assert c.app.is_running
        await c.pilot.press("ctrl+c")
        await c.until(lambda: not c.app.is_running)


@asynchronous
async def test_stopping_is_said_until_the_reply_has_ended(tmp_path: Path) -> None:
    async with chat(tmp_path, ScriptedEngine([Script("many words here", gated=True)])) as c:
        await c.send("Go on")
        await c.until(lambda: c.engine.requests)
        c.screen.streaming.stop()
        assert c.screen.streaming.view.activity == "stopping"
        await c.until(lambda: not c.screen.streaming.replying)
        assert not c.screen.streaming.view.activity


@asynchronous
async def test_what_is_typed_is_in_sight_on_a_short_terminal(tmp_path: Path) -> None:
    async with chat(tmp_path, size=(30, 10)) as c:
        await c.pilot.press("/")
        await c.until(lambda: c.screen.composer.completions.open)
        entry = c.screen.query_one("#entry")
        await c.until(lambda: c.screen.composer.completions.outer_size.height == 3)
        assert entry.region.bottom <= c.screen.composer.region.bottom
        assert c.screen.composer.region.contains_region(c.prompt.region)


@asynchronous
async def test_lines_are_broken_by_three_keys(tmp_path: Path) -> None:
    async with chat(tmp_path) as c:
        await c.pilot.press("a", "ctrl+j", "b", "shift+enter", "c", "\\", "enter", "d")
        assert c.prompt.text == "a\nb\nc\nd"
        assert not c.engine.requests
        await c.pilot.press("enter")
        await c.until(lambda: c.engine.requests)
        assert c.branch[0] == ("user", "a\nb\nc\nd")


@asynchronous
async def test_keys_in_a_burst_are_taken_in_their_order(tmp_path: Path) -> None:
    async with chat(tmp_path) as c:
        keys = [
            "a",
            "\\",
            "enter",
            "b",
            "ctrl+j",
            "c",
            "enter",
            "/",
            "s",
            "enter",
            "x",
            "enter",
            "d",
        ]
        for key in keys:
            # As from a terminal, without the pilot's waiting.
            c.app.post_message(events.Key(key, key if len(key) == 1 else None))
        await c.until(lambda: c.engine.requests and c.prompt.text == "d")
        assert c.branch[0] == ("user", "a\nb\nc")
        # The first completion was taken, the second enter sent it.
        assert c.screen.system == "x"


@asynchronous
async def test_what_cannot_be_sent_is_in_the_composer_again(tmp_path: Path) -> None:
    pasted = "\n".join(f"line {n}" for n in range(50))
    async with chat(tmp_path, ScriptedEngine([Script(gated=True)])) as c:
        await c.send("first")
        await c.until(lambda: c.screen.streaming.replying)
        c.prompt.post_message(events.Paste(pasted))
        await c.until(lambda: c.prompt.text)
        await c.pilot.press("enter")
        await c.until(lambda: "under way" in str([note.message for note in c.app._notifications]))
        assert c.prompt.text == "[pasted 1: 50 lines]"
        assert c.prompt.whole_text == pasted
        await c.send("/nonsense")
        assert c.prompt.text == "/nonsense"


@asynchronous
async def test_up_recalls_prompts_in_an_empty_composer(tmp_path: Path) -> None:
    async with chat(tmp_path) as c:
        await c.ask("first")
        await c.ask("second")
        await c.pilot.press("up")
        assert c.prompt.text == "second"
        await c.pilot.press("up", "up")
        assert c.prompt.text == "first"
        await c.pilot.press("down", "down")
        assert c.prompt.text == ""
        await c.pilot.press("x", "ctrl+j", "y", "up")
        assert c.prompt.text == "x\ny"


@asynchronous
async def test_a_large_paste_is_a_chip_and_goes_whole(tmp_path: Path) -> None:
    pasted = "\n".join(f"line {n}" for n in range(50))
    async with chat(tmp_path) as c:
        await c.pilot.press(*"see ")
        c.prompt.post_message(events.Paste(pasted))
        await c.until(lambda: "pasted" in c.prompt.text)
        assert c.prompt.text == "see [pasted 1: 50 lines]"
        c.prompt.post_message(events.Paste("small\r\npaste"))
        await c.until(lambda: "small" in c.prompt.text)
        assert c.prompt.text.endswith("]small\npaste")
        await c.pilot.press("enter")
        await c.until(lambda: c.engine.requests)
        assert c.branch[0][1] == f"see {pasted}small\npaste"
        c.prompt.post_message(events.Paste("x" * 2000))
        await c.until(lambda: c.prompt.text == "[pasted 1: 2000 characters]")
        await c.pilot.press("backspace")
        assert c.prompt.text == ""


@asynchronous
async def test_emoji_and_wide_characters_are_kept(tmp_path: Path) -> None:
    text = "naïve 日本語 👩‍💻 🦊"
    async with chat(tmp_path, ScriptedEngine([Script(f"You said {text}.")])) as c:
        for character in text:
            # As the terminal's parser makes them; the pilot knows no emoji.
            c.prompt.post_message(events.Key("character", character))
        await c.until(lambda: c.prompt.text == text)
        await c.pilot.press("enter")
        await c.until(lambda: len(c.branch) == 2 and not c.screen.streaming.replying)
        assert c.branch[1][1] == f"You said {text}."
        assert c.sessions.messages(1)[0].text == text


@asynchronous
async def test_the_editor_writes_the_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf " from the editor\\nline two\\n" >> "$1"\n')
    editor.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(editor))
    async with chat(tmp_path) as c:
        # A test's terminal cannot be suspended; everything else is as it is.
        from contextlib import nullcontext

        monkeypatch.setattr(c.app, "suspend", nullcontext)
        await c.pilot.press(*"Hello", "ctrl+g")
        assert c.prompt.text == "Hello from the editor\nline two"
        for broken in ("/no/such/editor", "false", "rm", "cp /bin/true"):
            monkeypatch.setenv("VISUAL", broken)
            await c.pilot.press("ctrl+g")
        assert c.prompt.text == "Hello from the editor\nline two"
        assert c.app.is_running


@asynchronous
async def test_a_reader_who_scrolled_up_is_left_alone(tmp_path: Path) -> None:
    async with chat(tmp_path, gated(50), size=(80, 20)) as c:
        await c.send("Go on")
        transcript = c.screen.transcript
        await c.until(lambda: transcript.max_scroll_y > 20)
        assert transcript.scroll_y == transcript.max_scroll_y
        await c.pilot.press("pageup")
        at, end = transcript.scroll_y, transcript.max_scroll_y
        assert at < end
        c.engine.allow(20)
        await c.until(lambda: transcript.max_scroll_y > end + 5)
        assert transcript.scroll_y == at
        await c.pilot.press("ctrl+end")
        end = transcript.max_scroll_y
        c.engine.allow(20)
        await c.until(lambda: transcript.max_scroll_y > end + 5)
        assert transcript.scroll_y == transcript.max_scroll_y
        # Who scrolls back to the end follows again.
        await c.pilot.press("pageup", "pagedown", "pagedown")
        end = transcript.max_scroll_y
        c.engine.allow(20)
        await c.until(lambda: transcript.max_scroll_y > end + 5)
        await c.until(lambda: transcript.scroll_y == transcript.max_scroll_y)
        await c.pilot.press("pageup")
        at = transcript.scroll_y
        await c.pilot.press("escape")
        await c.until(lambda: not c.screen.streaming.replying)
        # The final parse of the Markdown does not move it either.
        assert transcript.scroll_y == at


@asynchronous
async def test_thinking_is_folded_and_apart(tmp_path: Path) -> None:
    engine = ScriptedEngine([Script("It is four.", thinking="Two and two make four.")])
    async with chat(tmp_path, engine) as c:
        await c.ask("2+2?")
        (thinking,) = c.replies[0].query(Thinking)
        assert thinking.display
        assert thinking.collapsed
        assert "5 words" in thinking.title
        message = c.screen.conversation.branch[-1]
        assert (message.thinking, message.text) == ("Two and two make four.", "It is four.")
        assert "Two" not in c.replies[0].source
        await c.pilot.press("ctrl+t")
        await c.ask("again")
        history, settings = c.engine.requests[-1]
        assert settings.thinking is False
        assert history[1]["thinking"] == "Two and two make four."


@asynchronous
async def test_origins_colour_each_token(tmp_path: Path) -> None:
    engine = ScriptedEngine([Script("one two three four five ", pattern=(3, 0), width=3)])
    async with chat(tmp_path, engine) as c:
        await c.ask("count")
        message = c.screen.conversation.branch[-1]
        origins = [origin for _, origin, _ in message.tokens]
        assert origins == ["draft", "draft", "draft", "bonus", "correction"]
        await c.pilot.press("f2")
        assert not c.replies[0].query_one(ReplyText).display
        (part,) = c.replies[0].query_one(OriginText).query(".part")
        assert str(part.render()).strip() == "one two three four five"
        await c.pilot.press("f2")
        assert c.replies[0].query_one(ReplyText).display
        # A reply that streams while origins are shown is whole in both views.
        await c.pilot.press("f2")
        await c.ask("again")
        await c.pilot.press("f2")
        assert c.replies[1].source == "one two three four five "


@asynchronous
async def test_editing_branches_and_versions_can_be_shown(tmp_path: Path) -> None:
    engine = ScriptedEngine([Script("Reply A."), Script("Reply B."), Script("Reply C.")])
    async with chat(tmp_path, engine) as c:
        await c.ask("question one")
        await c.pilot.press("f9")
        assert c.prompt.text == "question one"
        c.prompt.put("question two")
        await c.pilot.press("enter")
        await c.until(lambda: len(c.branch) == 2 and c.branch[-1][1] == "Reply B.")
        assert c.branch == [("user", "question two"), ("assistant", "Reply B.")]
        await c.until(lambda: not c.screen.streaming.replying)
        await c.pilot.press("ctrl+r")
        await c.until(lambda: c.branch[-1][1] == "Reply C.")
        await c.until(lambda: not c.screen.streaming.replying)
        assert c.replies[0].versions_note.strip() == "‹ 2/2 ›"
        await c.pilot.press("ctrl+up", "left")
        await c.until(lambda: c.branch[-1][1] == "Reply B.")
        await c.pilot.press("up", "left")
        await c.until(lambda: c.branch == [("user", "question one"), ("assistant", "Reply A.")])
        assert len(c.sessions.messages(1)) == 5
        await c.pilot.press("f9", "escape")
        assert c.prompt.text == ""


@asynchronous
async def test_opening_another_conversation_ends_editing(tmp_path: Path) -> None:
    async with chat(tmp_path) as c:
        await c.ask("one")
        await c.pilot.press("ctrl+n")
        await c.ask("two")
        for leave in (c.screen.open_session, lambda session: c.screen.action_new()):
            await c.pilot.press("f9")
            assert c.screen.composer.query_one("#editing").display
            await leave(1)
            assert not c.screen.composer.query_one("#editing").display
            c.prompt.put("and on")
            await c.pilot.press("enter")
            await c.until(lambda: c.branch and not c.screen.streaming.replying)
            assert c.branch[-2:] == [("user", "and on"), ("assistant", "Hello from the script.")]
        assert [session.num_messages for session in c.sessions.find()] == [2, 4, 2]


@asynchronous
async def test_messages_and_code_are_copied_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "def f(x):\n    return x  # a line that is much longer than the terminal is wide, so it wraps"
    engine = ScriptedEngine(
        [Script(f"Here:\n\n```python\n{code}\n```\n\nand `g`:\n\n```\ng()\n```\n")]
    )
    async with chat(tmp_path, engine, size=(60, 20)) as c:
        await c.pilot.press("ctrl+o")
        await c.ask("code, please")
        await c.pilot.press("ctrl+o")
        assert c.app.clipboard == engine.scripts[0].text
        await c.pilot.press("ctrl+up", "b")
        await c.until(lambda: c.app.clipboard == code)
        await c.pilot.press("b")
        await c.until(lambda: c.app.clipboard == "g()")
        await c.pilot.press("up", "c")
        await c.until(lambda: c.app.clipboard == "code, please")
        await c.pilot.press("escape")
        assert c.prompt.has_focus


@asynchronous
async def test_export_writes_markdown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with chat(tmp_path, ScriptedEngine([Script("Yes.", thinking="Hm.")])) as c:
        await c.send("/system Be brief.")
        await c.ask("Is it?")
        await c.send("/export")
        await c.until(lambda: (tmp_path / "is-it.md").exists())
        text = (tmp_path / "is-it.md").read_text()
        assert "# Is it?" in text
        assert "## System\n\nBe brief." in text
        assert "## You\n\nIs it?" in text
        assert text.endswith("Yes.\n")
        for nowhere in ("/no/such/folder/x.md", "~no-such-user/x.md", str(tmp_path)):
            await c.send(f"/export {nowhere}")
        said = str([note.message for note in c.app._notifications])
        assert said.count("The conversation cannot be written: ") == 3


@asynchronous
async def test_a_crash_loses_nothing_that_was_streamed(tmp_path: Path) -> None:
    async with chat(tmp_path, gated(15)) as c:
        await c.send("Go on")
        await c.until(lambda: "Paragraph 2" in c.replies[0].source)
        shown = c.replies[0].source
        # Another process sees what a dead one left: nothing was finished.
        others = Sessions(tmp_path / "sessions.db")
        saved = others.messages(1)[-1]
        assert saved.text.startswith(shown)
        assert saved.reason == "interrupted"
        others.close()


@asynchronous
async def test_a_session_is_resumed_with_its_options(tmp_path: Path) -> None:
    async with chat(tmp_path) as c:
        await c.send("/system Answer in rhyme.")
        await c.send("/set temperature 0.7")
        await c.ask("first question")
        await c.send("/save A fine title")
        await c.until(lambda: c.sessions.find()[0].title == "A fine title")
    start = Start("other", "none", session=1)
    async with chat(tmp_path, start=start) as c:
        assert c.branch[0] == ("user", "first question")
        assert c.engine.loads == [("smollm2-135m", "dfly")]
        await c.ask("second question")
        history, settings = c.engine.requests[0]
        assert history[0] == {"role": "system", "content": "Answer in rhyme."}
        assert [message["content"] for message in history[1:]] == [
            "first question",
            "Hello from the script.",
            "second question",
        ]
        assert settings.temperature == 0.7


@asynchronous
async def test_models_are_switched_with_words_on_failure(tmp_path: Path) -> None:
    async with chat(tmp_path) as c:
        await c.ask("hello")
        await c.send("/model other/model-4bit")
        await c.until(lambda: c.engine.loads[-1] == ("other/model-4bit", "dfly"))
        await c.until(lambda: not c.screen.models.under_way)
        await c.send("/drafter none")
        await c.until(lambda: c.engine.loads[-1] == ("other/model-4bit", "none"))
        await c.until(lambda: not c.screen.models.under_way)
        await c.send("/model broken")
        await c.until(lambda: c.screen.query(Notice))
        assert "it has no config.json" in str(c.screen.query_one(Notice).render())
        assert c.screen.target == "other/model-4bit"
        await c.ask("still there?")
        assert c.branch[-1][1] == "Hello from the script."


@asynchronous
async def test_an_engine_that_fails_whatever_it_is_asked_is_told(tmp_path: Path) -> None:
    def fail(*_: object) -> list[Choice]:
        raise ImportError("no module named mlx")

    engine = ScriptedEngine()
    engine.targets = fail  # type: ignore[method-assign]
    async with chat(tmp_path, engine, ready=False, start=Start("broken", "none")) as c:
        await c.until(lambda: c.screen.query(Notice))
        assert "it has no config.json" in str(c.screen.query_one(Notice).render())
        assert not c.screen.models.under_way
        await c.send("/model other")
        await c.until(lambda: len(c.screen.query(Notice)) == 2)
        assert "no module named mlx" in str(c.screen.query(Notice).last().render())
        await c.ask("still there?")
        assert c.branch[-1][1] == "Hello from the script."


@asynchronous
async def test_a_message_sent_while_loading_is_answered(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    engine.may_load.clear()
    async with chat(tmp_path, engine, ready=False) as c:
        await c.send("early")
        assert not c.engine.requests
        engine.may_load.set()
        await c.until(lambda: len(c.branch) == 2 and not c.screen.streaming.replying)
        assert c.branch[-1][1] == "Hello from the script."


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (LocalspecError("the drafter is tired"), "the drafter is tired"),
        (RuntimeError("[metal::malloc] Unable to allocate 9 bytes"), "memory ran out"),
        (ZeroDivisionError("division by zero"), "a fault of localspec: ZeroDivisionError"),
    ],
)
def test_errors_appear_in_place_and_the_session_goes_on(
    tmp_path: Path, error: Exception, words: str
) -> None:
    @asynchronous
    async def scenario() -> None:
        engine = ScriptedEngine(
            [Script("Some text before.", pattern=(0,), error=error, fail_after=2), Script("Fine.")]
        )
        async with chat(tmp_path, engine) as c:
            await c.ask("hello")
            note = c.replies[0].query_one(".note")
            assert note.display
            assert words in str(note.render())
            assert c.branch[-1] == ("assistant", "Some text ")
            await c.ask("again")
            assert c.branch[-1] == ("assistant", "Fine.")

    scenario()


@asynchronous
async def test_a_full_context_is_refused_with_both_numbers(tmp_path: Path) -> None:
    async with chat(tmp_path, ScriptedEngine(context_length=10)) as c:
        await c.send("word " * 12)
        await c.until(lambda: c.screen.query(Notice) and not c.screen.streaming.replying)
        words = str(c.screen.query_one(Notice).render())
        assert "12 tokens" in words
        assert "10" in words
        assert "/edit" in words
        assert c.branch == [("user", "word " * 12)]
        await c.send("/edit")
        c.prompt.put("short")
        await c.pilot.press("enter")
        await c.until(lambda: c.branch[-1] == ("assistant", "Hello from the script."))


@asynchronous
async def test_a_reply_that_cannot_be_replaced_stays(tmp_path: Path) -> None:
    engine = ScriptedEngine([Script("Good."), Script(error=LocalspecError("the drafter is tired"))])
    async with chat(tmp_path, engine) as c:
        await c.ask("hello")
        await c.pilot.press("ctrl+r")
        await c.until(lambda: c.screen.query(Notice) and not c.screen.streaming.replying)
        assert "the drafter is tired" in str(c.screen.query_one(Notice).render())
        assert c.branch == [("user", "hello"), ("assistant", "Good.")]
        assert [reply.source for reply in c.replies] == ["Good."]
        # What is shown is what goes on.
        engine.scripts = [Script(" And more.")]
        await c.pilot.press("f8")
        await c.until(lambda: c.branch[-1] == ("assistant", "Good. And more."))
        assert c.replies[0].source == "Good. And more."
    assert len(Sessions(tmp_path / "sessions.db").messages(1)) == 2


@asynchronous
async def test_after_a_failure_the_messages_can_still_be_gone_to(tmp_path: Path) -> None:
    engine = ScriptedEngine([Script(error=LocalspecError("the drafter is tired")), Script("Fine.")])
    async with chat(tmp_path, engine) as c:
        await c.ask("hello")
        await c.until(lambda: c.screen.query(Notice))
        assert not c.replies
        await c.pilot.press("ctrl+up", "left", "e")
        assert c.prompt.text == "hello"
        await c.pilot.press("escape", "ctrl+up", "r")
        await c.until(lambda: c.branch[-1] == ("assistant", "Fine."))


@asynchronous
async def test_a_key_pressed_twice_at_once_does_no_harm(tmp_path: Path) -> None:
    engine = ScriptedEngine([Script("A."), Script("B."), Script("C.")])
    async with chat(tmp_path, engine) as c:
        await c.ask("hello")
        for reply in ("B.", "C."):
            await c.pilot.press("ctrl+r")
            await c.until(lambda: c.branch[-1][1] == reply and not c.screen.streaming.replying)  # noqa: B023
        view = c.replies[-1]
        for _ in range(3):
            view.post_message(MessageView.VersionAsked(view, -1))
        await c.until(lambda: c.branch[-1][1] == "B.")
        view = c.replies[-1]
        for what in ("regenerate", "regenerate", "edit"):
            view.post_message(MessageView.Asked(view, what))
        await c.until(lambda: len(engine.requests) == 4 and not c.screen.streaming.replying)
        assert c.app.is_running
        assert len(c.sessions.messages(1)) == 5


@asynchronous
async def test_without_a_model_nothing_is_taken_away(tmp_path: Path) -> None:
    async with chat(tmp_path) as c:
        await c.ask("hello")
    start = Start("broken", "none")
    async with chat(tmp_path, start=start, ready=False) as c:
        await c.until(lambda: not c.screen.models.under_way)
        options = c.screen._options()
        c.sessions.set_options(1, {**options, "target": "broken"})
        await c.screen.open_session(1)
        await c.until(lambda: not c.screen.models.under_way)
        await c.pilot.press("ctrl+r", "f8", "ctrl+up", "r", "escape")
        c.engine.may_load.clear()
        await c.send("/model new")
        await c.pilot.press("ctrl+r", "f8", "ctrl+up", "r")
        said = [note.message for note in c.app._notifications]
        assert said.count("No model is loaded; /model loads one.") == 3
        assert said.count("The model is being loaded; wait for it.") == 3
        assert c.branch == [("user", "hello"), ("assistant", "Hello from the script.")]
        assert len(c.replies) == 1
        assert not c.engine.requests
        c.engine.may_load.set()


@asynchronous
async def test_a_template_without_thinking_says_so(tmp_path: Path) -> None:
    async with chat(tmp_path, ScriptedEngine(can_switch_thinking=False)) as c:
        before = c.screen.settings
        for way in ("/thinking on", "/thinking off", "/thinking"):
            await c.send(way)
        await c.pilot.press("ctrl+t")
        assert c.screen.settings == before
        said = [note.message for note in c.app._notifications]
        assert said == ["The template of smollm2-135m has no switch for thinking."] * 4


@asynchronous
async def test_commands_are_completed_and_unknown_ones_refused(tmp_path: Path) -> None:
    async with chat(tmp_path) as c:
        completions = c.screen.composer.completions
        await c.pilot.press(*"/dr")
        assert completions.open
        await c.pilot.press("tab")
        assert c.prompt.text == "/drafter "
        await c.pilot.press("down", "enter")
        assert c.prompt.text == "/drafter none "
        await c.pilot.press("enter")
        await c.until(lambda: c.engine.loads[-1] == ("smollm2-135m", "none"))
        assert c.prompt.text == ""
        await c.pilot.press(*"/he", "escape")
        assert not completions.open
        c.prompt.put("/nonsense")
        await c.pilot.press("enter")
        assert not c.engine.requests
        # The whole name of a theme, though a longer one begins with it.
        await c.send("/theme textual-dark")
        await c.send("/theme localspec")
        assert (c.app.theme, c.prompt.text) == ("localspec", "")
        # A path is a message.
        await c.ask("/usr/bin is what?")
        assert c.branch[0][1] == "/usr/bin is what?"


@asynchronous
async def test_settings_are_checked(tmp_path: Path) -> None:
    async with chat(tmp_path) as c:
        await c.send("/set temperature 0.5")
        await c.send("/set temperature hot")
        await c.send("/set top-k 5")
        await c.send("/set nonsense 1")
        settings = c.screen.settings
        assert (settings.temperature, settings.top_k) == (0.5, 5)


@asynchronous
async def test_keys_are_remapped_by_id(tmp_path: Path) -> None:
    keys = {"origins": "f12", "send": "ctrl+x", "newline": "enter", "rename": "ctrl+b"}
    config = Config(path=tmp_path / "chat.toml", keys=keys)
    async with chat(tmp_path, config=config) as c:
        await c.pilot.press("f2")
        assert not c.screen.transcript.origins
        await c.pilot.press("f12")
        assert c.screen.transcript.origins
        await c.pilot.press("a", "enter", "b")
        assert c.prompt.text == "a\nb"
        await c.pilot.press("ctrl+x")
        await c.until(lambda: len(c.branch) == 2)
        await c.pilot.press("ctrl+b")
        assert type(c.app.screen).__name__ == "LineScreen"
        assert not c.app._notifications


@asynchronous
async def test_a_key_for_two_actions_is_said(tmp_path: Path) -> None:
    config = Config(path=tmp_path / "chat.toml", keys={"send": "f2, ctrl+x", "message-copy": "x"})
    async with chat(tmp_path, config=config) as c:
        (note,) = c.app._notifications
        assert note.message.endswith("chat.toml: f2 is the key of both 'send' and 'origins'")


@asynchronous
async def test_no_color_leaves_the_terminals_own_colours_readable(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_COLOR", "1")
        config = Config(path=tmp_path / "chat.toml", theme="ansi-dark")
        async with chat(tmp_path, config=config) as c:
            strips = c.app.screen._compositor.render_strips()
            styles = [segment.style for strip in strips for segment in strip if segment.style]
            assert styles
            assert all(style.color is None or style.color.is_default for style in styles)


@asynchronous
async def test_resizing_folds_and_unfolds_the_panel(tmp_path: Path) -> None:
    async with chat(tmp_path, ScriptedEngine([Script("word " * 200)])) as c:
        await c.ask("hello")
        panel, status = c.screen.query_one("#panel"), c.screen.query_one("#status")
        assert panel.display
        assert not status.display
        await c.pilot.resize_terminal(60, 20)
        await c.until(lambda: status.display)
        assert not panel.display
        assert "tok/s" in str(status.render())
        assert c.replies[0].size.width < 60
        await c.pilot.resize_terminal(110, 34)
        await c.until(lambda: panel.display)
        assert not status.display
        assert "position" in str(panel.query_one("#figures").render())
        await c.pilot.press("f3")
        assert status.display
        assert not panel.display
        await c.pilot.press("f3")
        assert panel.display


@asynchronous
async def test_a_new_conversation_leaves_a_reply_that_is_under_way(tmp_path: Path) -> None:
    async with chat(tmp_path, gated(15)) as c:
        await c.send("Go on")
        await c.until(lambda: "Paragraph 1" in c.replies[0].source)
        await c.pilot.press("ctrl+n")
        assert c.branch == []
        await c.until(lambda: c.engine.num_cancelled == 1)
        left = c.sessions.messages(1)[-1]
        assert "Paragraph 1" in left.text
        assert (left.reason, left.stats["rounds"] > 0) == ("cancelled", True)
        c.engine.scripts = [Script("Fresh.")]
        await c.ask("hello")
        assert c.branch == [("user", "hello"), ("assistant", "Fresh.")]
        assert len(c.sessions.find()) == 2


@asynchronous
async def test_every_theme_draws_and_an_unknown_one_is_told(tmp_path: Path) -> None:
    config = Config(path=tmp_path / "chat.toml", theme="ansi-dark")
    async with chat(tmp_path, config=config) as c:
        assert c.app.theme == "ansi-dark"
        await c.ask("hello")
        await c.pilot.press("f2")
        for theme in sorted(c.app.available_themes):
            c.app.theme = theme
            await c.pilot.pause()
            (part,) = c.replies[0].query_one(OriginText).query(".part")
            assert str(part.render()) == "Hello from the script."
    config = Config(path=tmp_path / "chat.toml", theme="no-such")
    async with chat(tmp_path, config=config) as c:
        assert c.app.theme == "localspec"
        assert "no theme 'no-such'" in str([note.message for note in c.app._notifications])


async def _palette_entries(c: Chat) -> list[str]:
    return [command.title for command in c.app.get_system_commands(c.screen)]


@asynchronous
async def test_every_palette_entry_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with chat(tmp_path) as c:
        await c.ask("hello")
        titles = await _palette_entries(c)
        assert len(titles) == len(set(titles))
        assert len(titles) > 25
        for title in titles:
            if title in ("Quit", "Screenshot"):
                continue
            command = next(x for x in c.app.get_system_commands(c.screen) if x.title == title)
            result = command.callback()
            if result is not None:
                await result
            await c.pilot.pause()
            await c.until(lambda: not c.screen.streaming.replying)
            while c.app.screen is not c.screen:
                c.app.pop_screen()
                await c.pilot.pause()
            c.prompt.focus()
        assert c.app.is_running
