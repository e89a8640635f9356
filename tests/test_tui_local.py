"""The real engine behind the chat's interface, and the command that starts the chat."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from localspec import history
from localspec.engine.metrics import Stats
from localspec.errors import LocalspecError
from localspec.model import Model
from localspec.stream import Piece
from localspec.text.dialect import Dialect
from localspec.text.tools import ToolFormat
from localspec.tui.config import Config
from localspec.tui.engine import Ended, Event, Round, Token
from localspec.tui.local import LocalEngine, LocalReply
from localspec.tui.settings import Settings

QUESTION = "Repeat exactly: one two three one two three one two three one two three"


@pytest.fixture(scope="module")
def engine(smollm2: Model) -> LocalEngine:
    engine = LocalEngine()
    loaded = engine.load("smollm2-135m", "ngram", lambda words: None)
    assert loaded.context_length == smollm2.context_length
    assert not loaded.can_switch_thinking
    return engine


def spoken(events: list[Event]) -> str:
    parts = []
    for event in events:
        tokens = event.tokens if isinstance(event, Round) else event.rest
        parts += [token.text for token in tokens]
    return "".join(parts)


def test_rounds_carry_text_and_origins(engine: LocalEngine, smollm2: Model) -> None:
    settings = Settings(max_tokens=24)
    messages = [{"role": "user", "content": QUESTION}]
    events = list(engine.reply(messages, settings))
    known = smollm2.generate(messages, max_tokens=24)
    assert spoken(events) == known.text
    last = events[-1]
    assert isinstance(last, Ended)
    rounds = [event for event in events if isinstance(event, Round)]
    assert last.stats.accepted == sum(round.num_accepted for round in rounds)
    assert any(round.num_accepted for round in rounds)
    for round in rounds:
        origins = [token.origin for token in round.tokens]
        assert origins[: round.num_accepted] == ["draft"] * min(round.num_accepted, len(origins))
        if round.num_proposed == 0:
            assert origins in (["plain"], [])
        elif len(origins) > round.num_accepted:
            full = round.num_accepted == round.num_proposed
            assert origins[-1] == ("bonus" if full else "correction")
    plain = list(engine.reply(messages, settings, plain=True))
    assert spoken(plain) == known.text
    assert all(event.num_proposed == 0 for event in plain if isinstance(event, Round))


def test_a_reply_is_continued_where_it_stopped(engine: LocalEngine) -> None:
    question = {"role": "user", "content": "What is the capital of France? Answer in one sentence."}
    begun = {"role": "assistant", "content": "The capital of France is"}
    assert spoken(list(engine.reply([question, begun], Settings()))) == " Paris."


def test_only_what_is_to_be_remembered_is_kept(
    engine: LocalEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    history.turn_on()
    for word, plain, remember in (("race", True, False), ("asked", False, True)):
        messages = [{"role": "user", "content": word}]
        list(engine.reply(messages, Settings(max_tokens=1), plain=plain, remember=remember))
    (entry,) = history.entries("smollm2-135m")
    assert entry.asked.text == "asked"


def test_it_ends_within_a_round_of_being_cancelled(engine: LocalEngine) -> None:
    reply = engine.reply([{"role": "user", "content": "Tell me a very long story."}], Settings())
    events = []
    for event in reply:
        events.append(event)
        reply.cancel()
    assert len(events) <= 4
    assert isinstance(events[-1], Ended)
    assert events[-1].reason == "cancelled"


def test_what_cannot_be_loaded_leaves_what_was_there(engine: LocalEngine, tmp_path: Path) -> None:
    with pytest.raises(LocalspecError, match=r"config\.json"):
        engine.load(str(tmp_path), "none", lambda words: None)
    events = list(engine.reply([{"role": "user", "content": "Hi"}], Settings(max_tokens=2)))
    assert isinstance(events[-1], Ended)


class Written:
    """A generation of these texts, a token each, that ends for a reason."""

    def __init__(self, texts: list[str], reason: str = "stop") -> None:
        self._texts = texts
        self.result = SimpleNamespace(finish_reason=reason, stats=Stats())

    def __iter__(self) -> Iterator[Piece]:
        for text in self._texts:
            yield Piece(text, [1], [text], 0, Stats())


class WrittenModel:
    """A model that writes these texts, as far as a reply asks it."""

    has_chat_template = True

    def __init__(self, dialect: Dialect, written: Written, prompt_end: str = "") -> None:
        self.dialect = dialect
        self.written = written
        self.prompt_end = prompt_end
        self.options: object = None
        self.begun = ""

    def encode(self, prompt: object, template_options: object) -> list[int]:
        self.options = template_options
        return [1]

    def encode_part(self, text: str) -> list[int]:
        self.begun = text
        return [2]

    def decode(self, ids: list[int]) -> str:
        return self.prompt_end

    def stream_ids(self, prompt: list[int], **options: object) -> Written:
        return self.written


THINKS = Dialect(ToolFormat(), ("<think>", "</think>"), ((1,), (2,)), None, True)
HARMONY = Dialect(ToolFormat(), None, ((), ()), None, harmony=True)
WHY = {"role": "user", "content": "Why?"}


def reply_of(model: WrittenModel, **begun: str) -> tuple[str, str]:
    """What is thought and what is said in a reply, or in what is added to one."""
    messages = [WHY, {"role": "assistant", **begun}] if begun else [WHY]
    reply = LocalReply(model, messages, Settings(thinking=True), None)  # type: ignore[arg-type]
    tokens: list[Token] = []
    for event in reply:
        tokens += event.tokens if isinstance(event, Round) else event.rest
    return (
        "".join(token.text for token in tokens if token.thinking),
        "".join(token.text for token in tokens if not token.thinking),
    )


def test_thinking_that_was_cut_is_continued_with_its_marks() -> None:
    model = WrittenModel(THINKS, Written([", now.", "</think>", "Because."]), "<think>\n")
    assert reply_of(model, content="", thinking="Well") == (", now.", "Because.")
    assert model.begun == "Well"
    assert model.options == {"enable_thinking": True}
    model = WrittenModel(THINKS, Written(["cause."]), "<think>\n")
    assert reply_of(model, content="Be", thinking="Well") == ("", "cause.")
    assert model.begun == "Well\n</think>\n\nBe"
    # Nothing came of the reply: it begins anew.
    model = WrittenModel(THINKS, Written(["Hm.</think>", "So."]), "<think>\n")
    assert reply_of(model, content="") == ("Hm.", "So.")
    assert model.begun == ""


def test_the_channels_of_gpt_oss_are_thoughts_and_answer() -> None:
    whole = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>a < b"
    )
    pieces = re.findall(r"<\|\w+\|>|\w+|\W", whole)
    assert reply_of(WrittenModel(HARMONY, Written(pieces))) == ("Hm.", "a < b")
    # However it ends, marks that are not whole are no text.
    cut = Written([*pieces[:1], "ana"], "cancelled")
    assert reply_of(WrittenModel(HARMONY, cut)) == ("", "")


def test_a_reply_of_gpt_oss_is_continued_with_its_marks() -> None:
    end = "<|end|><|start|>assistant<|channel|>final<|message|>"
    model = WrittenModel(HARMONY, Written([" now.", end, "Yes."]))
    assert reply_of(model, content="", thinking="Well") == (" now.", "Yes.")
    assert model.begun == "<|channel|>analysis<|message|>Well"
    model = WrittenModel(HARMONY, Written([" b"]))
    assert reply_of(model, content="a <", thinking="Well") == ("", " b")
    assert model.begun == f"<|channel|>analysis<|message|>Well{end}a <"
    model = WrittenModel(HARMONY, Written([" b"]))
    assert reply_of(model, content="a <") == ("", " b")
    assert model.begun == "<|channel|>final<|message|>a <"


def test_the_command_needs_a_terminal_and_names_its_configuration() -> None:
    command = [sys.executable, "-m", "localspec", "chat"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 2
    assert done.stderr == "localspec: chat needs a terminal; `localspec generate` works in pipes\n"
    done = subprocess.run([*command, "--help"], capture_output=True, text=True)
    assert str(Config().path) in "".join(done.stdout.split("\n")).replace("  ", "")
