"""Prompts and the corpus: what is read, kept apart, kept on disk, and refused."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.errors import TrainingError, UsageError
from localspec.prompts import Prompt, read_prompts
from localspec.sessions import Sessions
from localspec.train.corpus import Corpus, Rollout
from localspec.train.prompts import read_chats, split_held_out, without_duplicates

ROLLOUTS = [
    Rollout((5, 6, 70000, 2), 2, "code", True),
    Rollout((9, 1, 2), 1, "chat", False),
]


def test_prompts_are_read_with_their_kinds(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(
        '{"prompt": "Hello", "kind": "chat", "source": "x"}\n\n{"prompt": "ü\u2028🙂"}\n'
    )
    assert read_prompts(path) == [Prompt("Hello", "chat"), Prompt("ü\u2028🙂", "other")]


def test_chats_give_what_the_user_wrote(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    with pytest.raises(UsageError, match="no saved chats"):
        read_chats(path)
    assert not path.exists()
    with contextlib.closing(Sessions(path)) as sessions:
        session = sessions.create("t", {})
        for text in ("Why?", "How?", "Why?"):
            question = sessions.add(session, None, "user", text)
            sessions.add(session, question.id, "assistant", "Because.")
        for number in range(300):
            sessions.add(session, None, "user", f"number {number}")
    prompts = read_chats(path)
    assert len(prompts) == 302
    assert prompts[-2:] == [Prompt("Why?", "chats"), Prompt("How?", "chats")]


@pytest.mark.parametrize(
    "line", ["[]", "{}", '{"prompt": 3}', '{"prompt": " "}', "{", '{"prompt": "a", "kind": 1}']
)
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "fine"}\n' + line + "\n")
    with pytest.raises(UsageError, match="line 2"):
        read_prompts(path)


def test_files_without_prompts_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, reason in (("empty", "no prompts"), ("binary", "text"), ("missing", "read")):
        with pytest.raises(UsageError, match=reason):
            read_prompts(tmp_path / name)


def words(number: int) -> str:
    return " ".join(f"word{number}x{place}" for place in range(12))


def test_near_duplicates_of_held_out_prompts_are_dropped() -> None:
    held_out = [Prompt(words(0))]
    near = Prompt("Please: " + words(0).upper() + "!")
    half = Prompt(" ".join(words(0).split()[:6]))
    other = Prompt(words(1))
    assert without_duplicates([near, half, other, other, held_out[0]], held_out) == [other]


def test_a_shared_template_makes_no_duplicates() -> None:
    template = "Write a Python function that meets the description and passes all the tests"
    prompts = [Prompt(f"{template}: {words(n)}") for n in range(40)]
    assert without_duplicates(prompts[1:], prompts[:1]) == prompts[1:]


def test_the_split_is_stable_and_has_every_kind() -> None:
    prompts = [Prompt(words(n), kind) for n in range(300) for kind in ("code",)]
    prompts += [Prompt(words(n + 1000), "chat") for n in range(100)]
    training, held_out = split_held_out(prompts)
    again = split_held_out(list(reversed(prompts)))
    assert held_out == again[1]
    assert {p.text for p in training} == {p.text for p in again[0]}
    assert {p.kind for p in held_out} == {"code", "chat"}
    assert not {p.text for p in training} & {p.text for p in held_out}
    assert len(training) + len(held_out) == len(prompts)


def test_what_was_trained_on_is_never_held_out_later() -> None:
    prompts = [Prompt(words(n), "code") for n in range(3000)]
    trained: set[str] = set()
    for size in (100, 300, 1000, 3000):
        training, held_out = split_held_out(prompts[:size])
        trained |= {prompt.text for prompt in training}
        assert held_out
        assert len(held_out) <= 48
        assert not trained & {prompt.text for prompt in held_out}


def test_a_corpus_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, "target")
    corpus.append(ROLLOUTS)
    corpus.append(ROLLOUTS[:1])
    again = Corpus(tmp_path, "target")
    assert list(again) == [*ROLLOUTS, ROLLOUTS[0]] == list(corpus)
    assert again.num_answered == 2 + 2 + 2
    assert again.digest == corpus.digest != Corpus(tmp_path / "other", "target").digest


def test_what_the_manifest_does_not_name_is_not_read(tmp_path: Path) -> None:
    Corpus(tmp_path, "target").append(ROLLOUTS)
    # A process killed while it wrote its shard, and one killed while it wrote the manifest.
    (tmp_path / "shard-00001.npz").write_bytes(b"half")
    (tmp_path / "manifest.json.new").write_text("{")
    again = Corpus(tmp_path, "target")
    assert list(again) == ROLLOUTS
    again.append(ROLLOUTS)
    assert list(Corpus(tmp_path, "target")) == ROLLOUTS * 2


def test_another_targets_text_and_broken_files_are_refused(tmp_path: Path) -> None:
    Corpus(tmp_path, "target").append(ROLLOUTS)
    with pytest.raises(TrainingError, match="another target"):
        Corpus(tmp_path, "other")
    shard = tmp_path / "shard-00000.npz"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(TrainingError, match=r"shard-00000\.npz"):
        Corpus(tmp_path, "target")
    shard.unlink()
    with pytest.raises(TrainingError, match=r"shard-00000\.npz"):
        Corpus(tmp_path, "target")
    for text in ("{", "[]", json.dumps({"format": 99, "target": "target", "shards": []})):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(TrainingError, match=r"manifest\.json"):
            Corpus(tmp_path, "target")


def test_a_full_disk_leaves_the_corpus_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = Corpus(tmp_path, "target")
    corpus.append(ROLLOUTS)

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(OSError, match="No space"):
        corpus.append(ROLLOUTS)
    monkeypatch.undo()
    assert list(Corpus(tmp_path, "target")) == ROLLOUTS


def test_two_runs_cannot_both_write(tmp_path: Path) -> None:
    one, other = Corpus(tmp_path, "target"), Corpus(tmp_path, "target")
    one.append(ROLLOUTS)
    with pytest.raises(TrainingError, match="another run writes"):
        other.append(ROLLOUTS)
    assert list(Corpus(tmp_path, "target")) == ROLLOUTS


def test_the_beginning_of_a_corpus_is_what_it_was(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, "target")
    corpus.append(ROLLOUTS)
    digest = corpus.digest
    corpus.append(ROLLOUTS[:1])
    beginning = Corpus(tmp_path, "target", num_shards=1)
    assert list(beginning) == ROLLOUTS
    assert beginning.digest == digest != corpus.digest
