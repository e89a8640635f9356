"""The user's own prompts: kept only when that is on, and replayed as they were read."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from openai import OpenAI
from serving import serving
from test_compare import run
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

import localspec
from localspec import history
from localspec.engine.generation import Generation
from localspec.engine.sampling import SamplingParams
from localspec.errors import UsageError


def test_history_is_kept_only_when_it_is_on(tiny: Path, data: Path) -> None:
    model = localspec.load(str(tiny), drafter="none")

    def say(text: str) -> None:
        messages = [
            {"role": "system", "content": "w20"},
            {"role": "user", "content": "w21"},
            {"role": "assistant", "content": "w22"},
            {"role": "user", "content": text},
        ]
        ids, asked = model.encode(messages), history.asked(messages)
        sampling = SamplingParams(temperature=0.5)
        list(model.stream_ids(ids, sampling=sampling, max_tokens=2, asked=asked))

    say("w1 w2")
    assert not history.path().exists()
    with pytest.raises(UsageError, match="history on"):
        history.entries(str(tiny))
    assert str(history.path()) in run("history", "on").stdout
    say("w3 w4")
    list(model.stream("w5 w6", max_tokens=2))
    (entry,) = history.entries(str(tiny))
    assert entry.asked == history.Asked("w3 w4")
    kept = history.path().read_text()
    assert not any(word in kept for word in ("w20", "w21", "w22", "<user>"))
    assert entry.kind == "chat"
    assert dict(entry.settings)["temperature"] == 0.5
    assert history.path().stat().st_mode & 0o077 == 0
    out = run(
        "compare", "-m", str(tiny), "-d", "ngram", "--prompts", "history", "--max-tokens", "4"
    )
    assert "chat (1 prompt)" in out.stdout
    # Measuring adds nothing.
    assert len(history.entries(str(tiny))) == 1
    assert run("history").stdout.strip() == "the history is on"
    run("history", "off")
    assert run("history").stdout.strip() == "the history is off"
    say("w7")
    assert len(history.entries(str(tiny))) == 1
    assert run("history", "path").stdout.strip() == str(history.path())
    assert "is deleted" in run("history", "clear").stdout
    assert not history.path().exists()
    assert "there is no history" in run("history", "clear").stdout


def test_what_is_asked_is_the_users_last_message_alone() -> None:
    user, model = {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}
    assert history.asked([user, model, user]) == history.Asked("u")
    assert history.asked([user, model]) is None
    assert history.asked([user, model, {"role": "tool", "content": "t"}]) is None
    assert history.asked([]) is None


def test_the_endpoint_tells_what_was_asked() -> None:
    engine = FakeEngine(fills=True)
    with (
        serving(engine) as url,
        OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client,
    ):
        client.chat.completions.create(
            model="any",
            messages=[
                {"role": "system", "content": "s"},
                {"role": "user", "content": [{"type": "text", "text": "u"}]},
            ],
        )
        client.completions.create(model="any", prompt="ab", max_tokens=5)
        client.completions.create(model="any", prompt="ab", suffix="cd", max_tokens=5)
    asked = [history.Asked("u"), history.Asked("ab", raw=True), None]
    assert [job.asked for job in engine.jobs] == asked


def test_a_replayed_prompt_is_the_one_that_was_read(
    tiny: Path,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No token that begins a text is there twice, though the tokenizer puts one before every text."""
    shutil.copytree(tiny, data / "model")
    tokenizer = Tokenizer.from_file(str(data / "model/tokenizer.json"))
    ids = [("<unused>", tokenizer.token_to_id("<unused>"))]
    tokenizer.post_processor = TemplateProcessing(single="<unused> $A", special_tokens=ids)
    tokenizer.save(str(data / "model/tokenizer.json"))
    model = localspec.load(str(data / "model"), drafter="none")
    history.turn_on()
    read: list[Sequence[int]] = []
    generation = Generation.__init__

    def watched(self: Generation, target: Any, drafter: Any, request: Any, *rest: Any) -> None:
        read.append(request.prompt)
        generation(self, target, drafter, request, *rest)

    monkeypatch.setattr(Generation, "__init__", watched)
    greedy = SamplingParams()
    for asked in (history.Asked("w3 w4"), history.Asked("w5 w6", raw=True)):
        prompt = model.encode(asked.text, raw=asked.raw)
        list(model.stream_ids(prompt, sampling=greedy, max_tokens=2, asked=asked))
    said = list(read)
    assert list(said[1]).count(ids[0][1]) == 1
    read.clear()
    run("compare", "-m", model.name, "-d", "none", "--prompts", "history", "--max-tokens", "2")
    # The first run warms up.
    assert read[1:] == said


def test_a_history_that_cannot_be_written_is_a_warning(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    history.turn_on()
    history.path().mkdir()
    history.add(history.Entry("m", "chat", history.Asked("why?"), {}))
    assert "not kept in the history" in caplog.text


def test_the_history_is_bounded(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_MOST_BYTES", 3000)
    monkeypatch.setattr(history, "_MOST_ENTRIES", 10)
    history.turn_on()

    def entry(number: int) -> history.Entry:
        asked = history.Asked(f"{number} " + "x" * 90)
        return history.Entry("m", "chat", asked, {"temperature": 1.0})

    for number in range(100):
        history.add(entry(number))
    kept = history.entries("m")
    assert 5 <= len(kept) <= 10
    assert kept[-1].asked.text.startswith("99 ")
    assert history.path().stat().st_size < 3500
