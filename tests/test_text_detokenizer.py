from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece_folder import write_sentencepiece_folder

from localspec import catalog
from localspec.text.detokenizer import StreamingDetokenizer
from localspec.text.tokenizer import load_tokenizer

TEXT = st.lists(
    st.sampled_from(
        ["hello", " world", "  ", "\n", " ", "🙂", "👩‍👩‍👧", "漢字", "สวัสดี", "é", ".", " the fox"]
    )
    | st.text(max_size=3),
    max_size=12,
).map("".join)
POINTS = st.lists(st.integers(0, 1000), max_size=10)
CHECKS = settings(deadline=None, max_examples=200)


@pytest.fixture(scope="module")
def smollm() -> Any:
    return load_tokenizer(catalog.resolve_model(catalog.DEFAULT_MODEL, notify=None))


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_tokenizer(write_sentencepiece_folder(tmp_path_factory.mktemp("sentencepiece")))


def decoder(tokenizer: Any) -> Callable[[list[int]], str]:
    return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False))


def streamed(decode: Callable[[list[int]], str], ids: list[int], points: list[int]) -> list[str]:
    detokenizer = StreamingDetokenizer(decode)
    edges = sorted({0, len(ids), *(point % (len(ids) + 1) for point in points)})
    pieces = [detokenizer.push(ids[a:b]) for a, b in pairwise(edges)]
    return [*pieces, detokenizer.finish()]


@CHECKS
@given(text=TEXT, points=POINTS)
def test_byte_level_text_is_the_same_in_any_pieces(
    smollm: Any, text: str, points: list[int]
) -> None:
    ids = smollm.encode(text)
    pieces = streamed(decoder(smollm), ids, points)
    assert "".join(pieces) == smollm.decode(ids)
    # The model has no token for some bytes that no known character needs.
    if smollm.decode(ids) == text and "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


@CHECKS
@given(ids=st.lists(st.integers(0, 49151) | st.integers(150, 260), max_size=90), points=POINTS)
def test_any_byte_level_ids_give_what_decoding_all_gives(
    smollm: Any, ids: list[int], points: list[int]
) -> None:
    assert "".join(streamed(decoder(smollm), ids, points)) == decoder(smollm)(ids)


@CHECKS
@given(text=TEXT, points=POINTS)
def test_sentencepiece_text_is_the_same_in_any_pieces(
    sentencepiece: Any, text: str, points: list[int]
) -> None:
    ids = sentencepiece.encode(text, add_special_tokens=False)
    pieces = streamed(decoder(sentencepiece), ids, points)
    assert "".join(pieces) == decoder(sentencepiece)(ids)
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


def test_spaces_between_sentencepiece_words_stay(sentencepiece: Any) -> None:
    ids = sentencepiece.encode("the quick  fox", add_special_tokens=False)
    assert "".join(streamed(decoder(sentencepiece), ids, list(range(99)))) == "the quick  fox"


def test_a_character_of_several_tokens_comes_whole(smollm: Any) -> None:
    ids = smollm.encode("a🙂b")
    assert len(ids) > 3
    pieces = [piece for piece in streamed(decoder(smollm), ids, list(range(99))) if piece]
    assert pieces == ["a", "🙂", "b"]


def test_an_unfinished_character_comes_at_the_end(smollm: Any) -> None:
    detokenizer = StreamingDetokenizer(decoder(smollm))
    assert detokenizer.push(smollm.encode("a🙂")[:2]) == "a"
    assert detokenizer.finish() == "\ufffd"


def test_the_decoded_window_stays_short(smollm: Any) -> None:
    decoded: list[int] = []

    def decode(ids: list[int]) -> str:
        decoded.append(len(ids))
        return str(smollm.decode(ids))

    continuation_byte = smollm.encode("🙂")[-1]
    StreamingDetokenizer(decode).push(smollm.encode("many words 🙂 " * 200))
    assert max(decoded) < 16
    StreamingDetokenizer(decode).push([continuation_byte] * 500)
    assert max(decoded) < 64
