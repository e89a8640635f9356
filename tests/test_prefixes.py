"""The prefix cache: whatever is reused equals what reading the whole prompt afresh gives."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from families import WINDOW, assert_close, assert_same_caches, contents, make_model
from hypothesis import given, settings
from hypothesis import strategies as st
from random_drafters import ALL, random_drafter
from scripted import ScriptedDrafter

from localspec.engine import generation as generation_module
from localspec.engine import keeping
from localspec.engine.forks import can_cut, checkpoint, fork, needs_checkpoints
from localspec.engine.generation import Generation
from localspec.engine.prefixes import MOST_CONVERSATIONS, Conversation, PrefixCache
from localspec.engine.request import Request
from localspec.engine.target import Target, TargetCache
from localspec.models.drafter import Drafter
from localspec.models.ngram import NgramDrafter

FAMILIES = ("llama", "gemma3_text", "llama4", "qwen3_next", "falcon_h1", "lfm2", "baichuan_m1")
PLENTY = 10**9


@pytest.fixture(scope="module", params=FAMILIES)
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    yield Target(make_model(request.param))
    mx.clear_cache()


@pytest.fixture(scope="module")
def llama() -> Target:
    return Target(make_model("llama"))


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation_module, "PREFILL_CHUNK", 16)
    monkeypatch.setattr(keeping, "APART", 16)
    monkeypatch.setattr(keeping, "_TAIL", 4)


def text(length: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, 96, length)]


def test_a_drafter_that_nobody_has_is_not_kept(llama: Target) -> None:
    prefixes = PrefixCache(PLENTY)
    drafter, other = (random_drafter("eagle3", llama, seed=seed) for seed in (1, 2))
    prompt = text(40)
    run(llama, drafter, prompt, prefixes)
    run(llama, other, text(40, seed=1), prefixes)
    assert len(prefixes) == 2
    before, gone = prefixes.nbytes, weakref.ref(drafter)
    prefixes.let_go(drafter)
    del drafter
    gc.collect()
    assert gone() is None
    assert prefixes.nbytes < before
    # What was said is still there for those that need no state, and the other's state is, too.
    assert prefixes.take(prompt, None)
    assert prefixes.take(text(40, seed=1), other)
    assert not prefixes.take(prompt, other)


def run(
    target: Target,
    drafter: Drafter | None,
    prompt: list[int],
    prefixes: PrefixCache | None,
    max_tokens: int = 12,
    **options: Any,
) -> Generation:
    made = Generation(target, drafter, Request(prompt, max_tokens, **options), prefixes)
    for _ in made.run():
        pass
    return made


def prefilled(target: Target, tokens: list[int]) -> TargetCache:
    cache = target.new_cache()
    target.forward(mx.array([tokens]), cache, rows=1)
    mx.eval(cache.arrays)
    return cache


def test_a_next_turn_reads_only_what_is_new(target: Target) -> None:
    prefixes = PrefixCache(PLENTY)
    first = run(target, None, text(50), prefixes)
    assert first.stats.cached_tokens == 0
    second = [*first.tokens, *text(21, 1)]
    reused = run(target, None, second, prefixes)
    assert reused.stats.cached_tokens >= len(first.tokens) - 1
    assert reused.tokens == run(target, None, second, None).tokens


def test_another_ending_goes_on_from_where_it_differs(target: Target) -> None:
    prefixes = PrefixCache(PLENTY)
    run(target, None, text(50), prefixes)
    other = [*text(50)[:46], *text(20, 2)]
    reused = run(target, None, other, prefixes)
    by_checkpoint = needs_checkpoints(target.new_cache().entries)
    assert reused.stats.cached_tokens == (45 if by_checkpoint else 46)
    assert reused.tokens == run(target, None, other, None).tokens
    # What was reused stayed as it was.
    again = run(target, None, text(50), prefixes)
    assert again.stats.cached_tokens >= (32 if by_checkpoint else 45)
    assert again.tokens == run(target, None, text(50), None).tokens


@given(
    length=st.integers(3, 70),
    common=st.integers(1, 90),
    said=st.integers(1, 9),
    more=st.integers(1, 40),
)
@settings(max_examples=12, deadline=None, derandomize=True)
def test_any_two_prompts(target: Target, length: int, common: int, said: int, more: int) -> None:
    prefixes = PrefixCache(PLENTY)
    first = run(target, None, text(length), prefixes, said)
    second = [*first.tokens[:common], *text(more, 3)]
    reused = Generation(target, None, Request(second, 4), prefixes)
    at = reused._cache.num_tokens
    if at:
        assert_same_caches(reused._cache.entries, prefilled(target, second[:at]).entries)
    for _ in reused.run():
        pass
    assert_close(
        _next_logits(target, reused), _next_logits(target, run(target, None, second, None, 4))
    )
    assert not second[:at] or first.tokens[:at] == second[:at]


def _next_logits(target: Target, done: Generation) -> mx.array:
    cache = prefilled(target, done.tokens)
    return target.forward(mx.array([[7]]), cache, rows=1).logits


@pytest.mark.parametrize("architecture", ALL)
def test_drafters_go_on_as_if_they_had_seen_it_all(llama: Target, architecture: str) -> None:
    drafter = random_drafter(architecture, llama)
    prefixes = PrefixCache(PLENTY)
    first = run(llama, drafter, text(40), prefixes, width=3)
    second = [*first.tokens[:45], (first.tokens[45] + 1) % 12, *text(11, 4)]
    reused = Generation(llama, drafter, Request(second, 1), prefixes)
    assert reused.stats.cached_tokens == 44
    fresh = Generation(llama, drafter, Request(second, 1))
    for each in (reused, fresh):
        while each._cache.num_tokens < len(second) - 1:
            each.step()

    def draw(logits: mx.array) -> tuple[mx.array, None]:
        rows.append(logits)
        return mx.argmax(logits, axis=-1).astype(mx.int32), None

    rows: list[mx.array] = []
    anchor = mx.array([second[-1]])
    proposals = [drafter.propose(each._state, anchor, 3, draw) for each in (reused, fresh)]
    assert proposals[0] is not None
    half = len(rows) // 2
    for left, right in zip(rows[:half], rows[half:], strict=True):
        assert_close(left, right)


def test_states_of_one_drafter_are_not_given_to_another(llama: Target) -> None:
    prefixes = PrefixCache(PLENTY)
    drafter = random_drafter("dflash", llama)
    said = run(llama, None, text(30), prefixes).tokens
    assert run(llama, drafter, said, prefixes).stats.cached_tokens == 0
    assert run(llama, drafter, said, prefixes).stats.cached_tokens == len(said) - 1
    assert run(llama, random_drafter("dflash", llama), said, prefixes).stats.cached_tokens == 0
    # From tokens alone every state can be made.
    assert run(llama, NgramDrafter(), said, prefixes).stats.cached_tokens == len(said) - 1


def test_a_stop_token_leaves_nothing_behind_it(target: Target) -> None:
    prompt = text(30)
    whole = run(target, None, prompt, None, 40).tokens
    stop = whole[36]
    for seed in range(-1, 4):
        prefixes = PrefixCache(PLENTY)
        # Without a drafter the step after the stop token is under way when it is read.
        drafter = None if seed < 0 else ScriptedDrafter(whole, 96, seed)
        first = run(target, drafter, prompt, prefixes, 40, stop_ids=frozenset([stop]))
        assert first.tokens[-1] == stop
        second = [*first.tokens, *text(9, 5)]
        reused = run(target, None, second, prefixes)
        assert reused.stats.cached_tokens >= len(first.tokens) - 1
        assert reused.tokens == run(target, None, second, None).tokens


def test_what_was_read_before_a_cancellation_is_kept(target: Target) -> None:
    prefixes = PrefixCache(PLENTY)
    left = Generation(target, None, Request(text(60), 5), prefixes)
    left.step()
    left.step()
    left.keep()
    assert Generation(target, None, Request(text(60), 5), prefixes).stats.cached_tokens == 32


def test_a_fork_and_its_original_write_apart(target: Target) -> None:
    tokens = text(3 * WINDOW)
    cache = prefilled(target, tokens)
    marks = checkpoint(cache.entries, len(tokens))
    before = [mx.array(array) for array in contents(cache.entries)]
    twin = TargetCache(fork(cache.entries, len(tokens), marks), len(tokens))
    for token in text(2 * WINDOW, 6):
        target.forward(mx.array([[token]]), twin, rows=1)
    target.forward(mx.array([text(7, 7)]), twin, rows=1)
    mx.eval(twin.arrays)
    for array, old in zip(contents(cache.entries), before, strict=True):
        assert mx.array_equal(array, old)
    restored = fork(cache.entries, len(tokens), marks)
    assert_same_caches(restored, cache.entries, tolerance=0.0)


def test_windows_and_recurrent_state_refuse_cuts_that_lose_something() -> None:
    for family in ("gemma3_text", "qwen3_next"):
        target = Target(make_model(family))
        cache = prefilled(target, text(3 * WINDOW))
        for _ in range(2):
            target.forward(mx.array([[1]]), cache, rows=1)
        assert not can_cut(cache.entries, 3 * WINDOW)
        assert needs_checkpoints(cache.entries)


def test_memory_is_bounded_and_short_requests_do_not_drive_out_a_conversation(
    llama: Target,
) -> None:
    prefixes = PrefixCache(PLENTY)
    chat = run(llama, None, text(300), prefixes).tokens
    for seed in range(60):
        run(llama, None, text(20, 100 + seed), prefixes, 2)
    assert len(prefixes) <= MOST_CONVERSATIONS
    assert run(llama, None, chat, prefixes).stats.cached_tokens == len(chat) - 1
    prefixes.shrink(0)
    assert prefixes.nbytes == 0
    small = PrefixCache(1000)
    run(llama, None, text(300), small)
    assert len(small) == 0


def test_a_longer_conversation_takes_the_place_of_a_shorter(llama: Target) -> None:
    prefixes = PrefixCache(PLENTY)
    tokens = text(30)
    for _ in range(5):
        tokens = run(llama, None, tokens, prefixes).tokens
    assert len(prefixes) == 1
    run(llama, None, text(30, 9), prefixes)
    assert len(prefixes) == 2


def test_bytes_count_everything(llama: Target) -> None:
    cache = prefilled(llama, text(40))
    conversation = Conversation(np.array(text(40), dtype=np.int32), cache, [])
    assert conversation.nbytes == cache.nbytes > 0
