"""Rollback of every kind of cache mlx-lm makes, against caches that never saw a draft.

Rows hold their position in the text, so that what a cache keeps can be read off exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from families import WINDOW, assert_close, assert_same_caches, contents, make_model
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import (
    ArraysCache,
    BatchKVCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    make_prompt_cache,
)

from localspec.engine.rollback import Snapshot, check_supported, is_recurrent, leaves
from localspec.engine.target import Target, TargetCache
from localspec.errors import ModelRefused

HEAD_DIM = 32


class Step:
    """Some tokens of which a prefix stays; all of them stay where `kept` equals `fed`."""

    def __init__(self, fed: int, kept: int) -> None:
        self.fed = fed
        self.kept = kept

    def __repr__(self) -> str:
        return f"Step(fed={self.fed}, kept={self.kept})"


def steps(max_fed: int = 9) -> st.SearchStrategy[list[Step]]:
    fed = st.integers(1, max_fed)
    step = fed.flatmap(lambda n: st.integers(1, n).map(lambda kept: Step(n, kept)))
    return st.lists(step, min_size=1, max_size=14)


class Layer(nn.Module):
    """Adds rows to its key/value caches and folds its input into its recurrent states."""

    def __call__(self, x: mx.array, mask: mx.array | None, cache: Any) -> mx.array:
        for leaf in leaves(cache):
            if type(leaf) is ArraysCache:
                self._fold(x, leaf)
            else:
                if type(leaf) is ChunkedKVCache:
                    leaf.maybe_trim_front()
                rows = mx.broadcast_to(x[:, None], (1, 2, x.shape[1], HEAD_DIM))
                leaf.update_and_fetch(rows, -rows)
        return x

    @staticmethod
    def _fold(x: mx.array, cache: ArraysCache) -> None:
        """A convolution's last three inputs, and a recurrence in which order matters."""
        past = mx.zeros((1, 3, x.shape[2])) if cache[0] is None else cache[0]
        cache[0] = mx.concatenate([past, x], axis=1)[:, -3:]
        state = mx.zeros((1, x.shape[2])) if cache[1] is None else cache[1]
        for position in range(x.shape[1]):
            state = (state * 3 + x[:, position]) % 1009
        cache[1] = state


KINDS: dict[str, Callable[[], Any]] = {
    "plain": KVCache,
    "quantised": lambda: QuantizedKVCache(group_size=32, bits=8),
    "rotating": lambda: RotatingKVCache(WINDOW),
    "rotating keep": lambda: RotatingKVCache(WINDOW, keep=4),
    "chunked": lambda: ChunkedKVCache(WINDOW),
    "concatenated": ConcatenateKVCache,
    "recurrent": lambda: ArraysCache(2),
    "plain pair": lambda: CacheList(KVCache(), KVCache()),
    "plain and rotating": lambda: CacheList(KVCache(), RotatingKVCache(WINDOW)),
    "recurrent and plain": lambda: CacheList(ArraysCache(2), KVCache()),
    "recurrent and rotating": lambda: CacheList(ArraysCache(2), RotatingKVCache(WINDOW)),
    "recurrent and quantised": lambda: CacheList(
        ArraysCache(2), QuantizedKVCache(group_size=32, bits=8)
    ),
    "nested": lambda: CacheList(CacheList(RotatingKVCache(WINDOW), ArraysCache(2)), KVCache()),
}


def inputs(start: int, count: int, kept: int | None = None) -> mx.array:
    """Rows of positions from `start`; behind the kept ones, rows of another text."""
    at = mx.arange(start, start + count)
    if kept is not None:
        at = mx.where(mx.arange(count) < kept, at, at + 500)
    return mx.broadcast_to(at.astype(mx.float32)[None, :, None], (1, count, HEAD_DIM))


@pytest.mark.parametrize("kind", KINDS)
@given(steps=steps())
@settings(max_examples=25, deadline=None, derandomize=True)
def test_what_stays_is_what_a_cache_without_drafts_holds(kind: str, steps: list[Step]) -> None:
    layer, entry = Layer(), KINDS[kind]()
    position = 0
    for step in steps:
        snapshot = Snapshot([entry])
        fed = inputs(position, step.fed, step.kept)
        layer(fed, None, entry)
        if is_recurrent(entry):
            snapshot.keep_calls([(layer, (fed, None), {"cache": entry})])
        snapshot.rollback(step.fed, step.kept)
        position += step.kept
        fresh = KINDS[kind]()
        for index in range(position):
            layer(inputs(index, 1), None, fresh)
        assert_same_caches([entry], [fresh], tolerance=0.0)


@pytest.mark.parametrize("kind", ["rotating", "rotating keep", "recurrent and rotating"])
def test_a_wrapped_window_still_holds_all_that_the_next_token_sees(kind: str) -> None:
    layer, entry = Layer(), KINDS[kind]()
    layer(inputs(0, 21), None, entry)
    layer(inputs(21, 1), None, entry)
    snapshot = Snapshot([entry])
    fed = inputs(22, 6, 2)
    layer(fed, None, entry)
    if is_recurrent(entry):
        snapshot.keep_calls([(layer, (fed, None), {"cache": entry})])
    snapshot.rollback(6, 2)
    rows = contents([entry])[-2][0, 0, :, 0].tolist()
    assert rows == ([0, 1, 2, 3, 21, 22, 23] if "keep" in kind else list(range(17, 24)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_that_keeps_everything_changes_nothing(kind: str) -> None:
    layer, entry = Layer(), KINDS[kind]()
    layer(inputs(0, 11), None, entry)
    snapshot = Snapshot([entry])
    layer(inputs(11, 4), None, entry)
    before = [mx.array(array) for array in contents([entry])]
    snapshot.rollback(4, 4)
    for array, old in zip(contents([entry]), before, strict=True):
        assert mx.array_equal(array, old)


def test_an_unknown_cache_is_refused() -> None:
    class OwnCache(KVCache):  # type: ignore[misc, unused-ignore]
        pass

    check_supported([KVCache(), CacheList(ArraysCache(2), KVCache())], "toy")
    for entry, name in ((OwnCache(), "OwnCache"), (BatchKVCache([0]), "BatchKVCache")):
        with pytest.raises(ModelRefused, match=f"'toy' uses a {name}, which localspec cannot"):
            check_supported([KVCache(), CacheList(KVCache(), entry)], "toy")


@pytest.fixture(scope="module")
def llama() -> Target:
    return Target(make_model("llama", head_dim=HEAD_DIM))


def _prefilled(target: Target, entries: list[Any], tokens: list[int]) -> TargetCache:
    cache = TargetCache(entries)
    target.forward(mx.array([tokens]), cache, rows=1)
    return cache


@pytest.mark.parametrize("bits", [4, 8])
def test_caches_quantised_on_the_way_roll_back(llama: Target, bits: int) -> None:
    prompt = list(range(20))

    def quantised() -> TargetCache:
        cache = _prefilled(llama, llama.new_cache().entries, prompt)
        cache.entries = [entry.to_quantized(32, bits) for entry in cache.entries]
        return cache

    drafted, plain = quantised(), quantised()
    for start in range(20, 60, 2):
        llama.verify(mx.array([[start, start + 1, 90, 91]]), drafted)
        llama.rollback(drafted, to=2)
        llama.forward(mx.array([[start, start + 1]]), plain)
    assert drafted.num_tokens == plain.num_tokens == 60
    # Noise of the last bit can cross a step of the quantiser.
    assert_same_caches(drafted.entries, plain.entries, tolerance=0.05)
    last = mx.array([[60]])
    assert_close(llama.forward(last, drafted).logits, llama.forward(last, plain).logits, 0.05)


@pytest.mark.parametrize("entry", [ConcatenateKVCache, KVCache])
def test_other_caches_under_a_model(llama: Target, entry: Callable[[], Any]) -> None:
    entries = [entry() for _ in range(llama.num_layers)]
    cache = _prefilled(llama, entries, [1, 2, 3])
    llama.verify(mx.array([[4, 5, 90, 91, 92]]), cache)
    llama.rollback(cache, to=2)
    fresh = _prefilled(llama, llama.new_cache().entries, [1, 2, 3, 4, 5])
    assert_same_caches(cache.entries, fresh.entries)
    last = mx.array([[6]])
    assert_close(llama.forward(last, cache).logits, llama.forward(last, fresh).logits)


def test_a_limited_prompt_cache_rolls_back_past_its_limit(llama: Target) -> None:
    # mlx-lm's window with four rows that stay; it masks them for all but the first of several
    # tokens, so only what is kept can be compared, one draft wrong at a time.
    entries = make_prompt_cache(llama.model, max_kv_size=12)
    plain = _prefilled(llama, make_prompt_cache(llama.model, max_kv_size=12), list(range(20)))
    cache = _prefilled(llama, entries, list(range(20)))
    for token in range(20, 40):
        llama.verify(mx.array([[token, 90, 91]]), cache)
        llama.rollback(cache, to=1)
        llama.forward(mx.array([[token]]), plain)
        mx.eval(cache.arrays, plain.arrays)
    assert [entry.offset for entry in cache.entries] == [40] * llama.num_layers
    assert_same_caches(cache.entries[:1], plain.entries[:1])


@pytest.fixture(
    scope="module", params=["gemma3", "llama4", "qwen3_next", "baichuan_m1", "falcon_h1"]
)
def target(request: pytest.FixtureRequest) -> Target:
    return Target(make_model(request.param))


@given(steps=steps(max_fed=7), plain=st.lists(st.booleans(), min_size=14, max_size=14))
@settings(max_examples=8, deadline=None, derandomize=True)
def test_any_sequence_of_passes_ends_as_one_pass(
    target: Target, steps: list[Step], plain: list[bool]
) -> None:
    cache, committed = target.new_cache(), list[int]()
    for step, all_stay in zip(steps, plain, strict=False):
        start = len(committed)
        fed = [(7 * (start + index) + 3) % 89 for index in range(step.fed)]
        if all_stay:
            target.forward(mx.array([fed]), cache, rows=1)
            committed += fed
        else:
            target.verify(mx.array([fed]), cache)
            target.rollback(cache, to=step.kept)
            committed += fed[: step.kept]
        mx.eval(cache.arrays)
    assert cache.num_tokens == len(committed)
    fresh = target.new_cache()
    target.forward(mx.array([committed]), fresh)
    assert_same_caches(cache.entries, fresh.entries)
    last = mx.array([[5]])
    assert_close(target.forward(last, cache).logits, target.forward(last, fresh).logits)
