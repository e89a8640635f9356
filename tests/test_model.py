"""The Python API on the real default model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import localspec
from localspec.engine.metrics import Stats
from localspec.engine.request import Committed, Event, Finished
from localspec.errors import ModelNotFound, UsageError
from localspec.model import Model
from localspec.stream import TextStream

FRANCE = "What is the capital of France? Answer in one sentence."
SKY = "Why is the sky blue?"
REPEAT = "Repeat this sentence five times: the quick brown fox jumps over the lazy dog."


def test_the_reference_is_met(smollm2: Model) -> None:
    """Token ids and greedy continuations that another implementation computed."""
    path = Path(__file__).parent / "golden" / "smollm2-reference.json"
    reference = json.loads(path.read_text())
    for case in reference["tokenise"]:
        assert smollm2.encode(case["text"], raw=True) == case["ids"]
        assert smollm2.decode(case["ids"]) == case["decoded"]
    for case in reference["greedy"]:
        assert smollm2.encode(case["user"]) == case["prompt_ids"]
        result = smollm2.generate(case["user"], max_tokens=len(case["ids"]))
        assert result.token_ids == case["ids"]
        assert result.text == case["text"].removesuffix("<|im_end|>")


def test_models_on_one_target_share_it(smollm2: Model) -> None:
    other = localspec.load(drafter="ngram")
    assert other._target is smollm2._target
    assert other._bound is not None
    assert smollm2._bound is None


def test_a_seed_decides_sampled_text_with_and_without_drafts(smollm2: Model) -> None:
    drafted = localspec.load(drafter="ngram")
    options = {"temperature": 0.8, "top_p": 0.95, "max_tokens": 16, "seed": 11}
    first = smollm2.generate(REPEAT, **options)
    assert first.token_ids == smollm2.generate(REPEAT, **options).token_ids
    assert first.token_ids == drafted.generate(REPEAT, **options).token_ids
    other = smollm2.generate(REPEAT, **{**options, "seed": 12})
    assert first.token_ids != other.token_ids


def test_pieces_make_the_result(smollm2: Model) -> None:
    stream = smollm2.stream("Say hello in Japanese and add an emoji.", max_tokens=30)
    pieces = list(stream)
    assert "".join(piece.text for piece in pieces) == stream.result.text
    assert [t for piece in pieces for t in piece.token_ids] == stream.result.token_ids
    assert pieces[-1].stats.generated_tokens == len(stream.result.token_ids)
    assert stream.result.stats.tokens_per_second > 0


def test_a_stop_text_ends_the_text_before_it(smollm2: Model) -> None:
    whole = smollm2.generate(SKY, max_tokens=20)
    stop = whole.text[30:42]
    cut = smollm2.generate(SKY, max_tokens=20, stop=["never said", stop])
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.finish_reason == "stop"
    assert len(cut.token_ids) < len(whole.token_ids)


def test_finish_reasons(smollm2: Model) -> None:
    assert smollm2.generate(FRANCE, max_tokens=60).finish_reason == "stop"
    assert smollm2.generate(FRANCE, max_tokens=3).finish_reason == "length"


def test_long_prompts_report_their_reading(smollm2: Model) -> None:
    seen: list[tuple[int, int]] = []
    smollm2.generate("word " * 530, max_tokens=1, on_prefill=lambda *part: seen.append(part))
    assert len(seen) >= 2
    assert seen[-1][0] == seen[-1][1]
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_a_stream_is_an_iterator(smollm2: Model) -> None:
    stream = smollm2.stream(FRANCE)
    first = next(stream)
    rest = list(stream)
    assert first.text + "".join(piece.text for piece in rest) == stream.result.text
    with pytest.raises(StopIteration):
        next(stream)


class Events:
    """In place of a generation: what it would say."""

    def __init__(self, *events: Event) -> None:
        self._events = events
        self.cancelled = False

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    def cancel(self) -> None:
        self.cancelled = True


def text_stream(events: Events, stop: Sequence[str] = ()) -> TextStream:
    """A stream of bytes as tokens, of which 0 ends the text."""
    model: Any = SimpleNamespace(
        decode=lambda ids: bytes(ids).decode(errors="replace"),
        is_stop=lambda token: token == 0,
        name="bytes",
        drafter="none",
    )
    return TextStream(model, events, stop)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reason", "text"), [("length", "a€b"), ("stop", "a€b\ufffd"), ("cancelled", "a€b\ufffd")]
)
def test_a_limit_within_a_character_leaves_no_replacement(reason: Any, text: str) -> None:
    whole, cut = "a€b".encode(), "€".encode()[:2]
    said = [Committed([*whole], 0, Stats()), Committed([*cut], 1, Stats())]
    stream = text_stream(Events(*said, Finished(reason, Stats())))
    assert "".join(piece.text for piece in stream) == text == stream.result.text
    assert stream.result.token_ids == [*whole, *cut]


def test_each_token_has_the_characters_it_completes() -> None:
    said = [Committed([*"a€".encode()], 0, Stats()), Committed([*b"b", 0], 1, Stats())]
    pieces = list(text_stream(Events(*said, Finished("stop", Stats()))))
    assert [piece.texts for piece in pieces] == [["a", "", "", "€"], ["b"]]


def test_a_stop_text_or_letting_go_cancels() -> None:
    events = Events(Committed([*b"abc"], 0, Stats()), Committed([*b"def"], 0, Stats()))
    stream = text_stream(events, ["b"])
    assert [piece.text for piece in stream] == ["a"]
    assert stream.result.finish_reason == "stop"
    assert events.cancelled
    events = Events()
    stream = text_stream(events)
    assert not events.cancelled
    del stream
    assert events.cancelled


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"prompt": None}, "prompt must be text or a list of mappings, not None"),
        ({"prompt": ["hello"]}, "prompt must be"),
        ({"max_tokens": 2.5}, "max_tokens must be a whole number, not 2.5"),
        ({"max_tokens": True}, "max_tokens must be a whole number"),
        ({"temperature": "hot"}, "temperature must be a number, not 'hot'"),
        ({"seed": "s"}, "seed must be a whole number or None, not 's'"),
        ({"stop": "text"}, "stop must be a list of texts, not 'text'"),
        ({"stop": [1]}, "stop must be a list of texts"),
        ({"raw": 1}, "raw must be true or false, not 1"),
        ({"on_prefill": 3}, "on_prefill must be a function or None"),
        ({"logit_bias": [1]}, "logit_bias must be a mapping or None"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": "", "raw": True}, "the prompt is empty"),
        ({"prompt": []}, "the prompt is empty"),
    ],
    ids=str,
)
def test_wrong_types_are_refused_by_name(
    smollm2: Model, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        smollm2.generate(**{"prompt": "x", **options})


def test_numbers_of_numpy_are_numbers(smollm2: Model) -> None:
    options: Any = {"max_tokens": np.int64(2), "temperature": np.float32(0), "stop": ("x",)}
    assert len(smollm2.generate(FRANCE, **options).token_ids) == 2


def test_loading_refuses_wrong_types() -> None:
    for arguments in ({"model": None}, {"drafter": None}, {"notify": "x"}):
        with pytest.raises(UsageError, match=next(iter(arguments))):
            localspec.load(**arguments)  # type: ignore[arg-type]


def test_wrong_values_are_refused(smollm2: Model) -> None:
    with pytest.raises(UsageError, match="temperature"):
        smollm2.generate("x", temperature=-1)
    with pytest.raises(UsageError, match="stop"):
        smollm2.generate("x", stop=[""])
    with pytest.raises(UsageError, match="raw"):
        smollm2.generate("x", system="y", raw=True)
    with pytest.raises(ModelNotFound, match="no drafter"):
        localspec.load(drafter="nonesuch")


def test_a_next_turn_reads_only_what_is_new(smollm2: Model) -> None:
    turn = [{"role": "user", "content": "Remember this list. " + "apples and pears, " * 120}]
    first = smollm2.generate(turn, max_tokens=6)
    answer = {"role": "assistant", "content": first.text}
    second = smollm2.generate([*turn, answer, {"role": "user", "content": "Go on."}], max_tokens=1)
    assert second.stats.cached_tokens >= first.stats.prompt_tokens
    assert second.stats.time_to_first_token_s < first.stats.time_to_first_token_s / 2
