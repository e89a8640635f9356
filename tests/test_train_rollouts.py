"""What the target writes: the same as plain decoding, the same however often it is interrupted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from families import VOCAB, make_model

from localspec.engine.generation import Generation
from localspec.engine.request import Request
from localspec.engine.target import Target
from localspec.errors import TrainingError
from localspec.prompts import Prompt
from localspec.train import rollouts
from localspec.train.corpus import Corpus, Rollout
from localspec.train.rollouts import SELF, ChatWriter, RolloutWriter

STOPS = frozenset({7, 8, 9})
PROMPTS = [Prompt(f"{n} {n * n}", "math" if n % 2 else "code") for n in range(1, 9)]


class Numbers:
    """A tokenizer of numbers: a user's text is a list of ids between two marks."""

    def encode(self, text: str) -> list[int]:
        return [1, *(int(word) % VOCAB for word in text.split()), 2]

    def opening(self) -> list[int]:
        return [1]

    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join(str(token) for token in tokens)


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(make_model("llama"))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_BATCH", 6), ("_JOINING", 3), ("_PREFILL", 2), ("_SHARD", 4)):
        monkeypatch.setattr(rollouts, name, value)
    monkeypatch.setattr(rollouts, "_MAX_ANSWER", 20)
    monkeypatch.setattr(rollouts, "_MAX_WRITTEN_PROMPT", 12)


def written(
    target: Target, folder: Path, own_share: float = 0.0, enough: int = 10**9
) -> list[Rollout]:
    corpus = Corpus(folder, "target")
    writer = RolloutWriter(target, Numbers(), corpus, stop_ids=STOPS, seed=3)
    writer.write(PROMPTS, own_share=own_share, enough=lambda answered: answered >= enough)
    return list(corpus)


def test_greedy_answers_are_plain_decodings(target: Target, tmp_path: Path) -> None:
    answers = written(target, tmp_path)
    assert len(answers) == 2 * len(PROMPTS)
    for rollout in answers:
        if rollout.sampled:
            continue
        prompt = list(rollout.tokens[: rollout.prompt_length])
        request = Request(prompt, max_tokens=20, stop_ids=STOPS)
        plain = Generation(target, None, request)
        for _ in plain.run():
            pass
        assert list(rollout.tokens) == plain.tokens
    assert {r.kind for r in answers} == {"math", "code"}
    assert {r.sampled for r in answers} == {True, False}


def test_an_interrupted_writer_goes_on_where_it_was(target: Target, tmp_path: Path) -> None:
    whole = written(target, tmp_path / "whole")
    assert len(written(target, tmp_path / "parts", enough=1)) == 4
    resumed = written(target, tmp_path / "parts")
    # In another order, for other sequences shared their batches, but the same to a token.
    assert sorted(r.tokens for r in resumed) == sorted(r.tokens for r in whole)
    assert len({(r.tokens[: r.prompt_length], r.sampled) for r in resumed}) == len(resumed)
    assert written(target, tmp_path / "parts") == resumed


def test_sampled_answers_differ_from_greedy_ones(target: Target, tmp_path: Path) -> None:
    answers = written(target, tmp_path)
    greedy = {r.tokens for r in answers if not r.sampled}
    assert len({r.tokens for r in answers if r.sampled} - greedy) > len(PROMPTS) // 2


def test_the_target_writes_prompts_of_its_own(target: Target, tmp_path: Path) -> None:
    answers = written(target, tmp_path, own_share=0.5, enough=300)
    own = [r for r in answers if r.kind == SELF]
    assert own
    assert len(own) < len(answers)
    for rollout in own:
        prompt = rollout.tokens[: rollout.prompt_length]
        assert (prompt[0], prompt[-1]) == (1, 2)
        assert not STOPS & set(prompt)
    assert len({r.tokens[: r.prompt_length] for r in own}) > 1


def test_a_failing_target_stops_the_writing(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that dies must end the run, not leave it waiting (a fault of published pipelines)."""
    calls = 0
    plain = rollouts.sample

    def failing(probabilities: mx.array, uniform: mx.array) -> mx.array:
        nonlocal calls
        calls += 1
        if calls > 120:
            raise RuntimeError("the device is gone")
        return plain(probabilities, uniform)

    monkeypatch.setattr(rollouts, "sample", failing)
    with pytest.raises(RuntimeError, match="the device is gone"):
        written(target, tmp_path)
    monkeypatch.undo()
    # What had been answered was kept.
    assert Corpus(tmp_path, "target").num_answered > 0


def test_a_full_disk_stops_the_writing(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Corpus, "append", full)
    with pytest.raises(TrainingError, match="No space left"):
        written(target, tmp_path)


class Template:
    """A tokenizer with a template: letters as ids, a user's turn between 1 and 2."""

    has_chat_template = True
    chat_template = "yes"

    def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> list[int]:
        (message,) = messages
        return [90, 1, *(ord(letter) for letter in message["content"]), 2, 91]

    def get_vocab(self) -> dict[str, int]:
        return {chr(n): n for n in range(128)}

    def decode(self, tokens: list[int], **options: Any) -> str:
        return "".join(chr(token) for token in tokens)


def test_the_opening_is_what_precedes_the_users_text() -> None:
    assert ChatWriter(Template()).opening() == [90, 1]
