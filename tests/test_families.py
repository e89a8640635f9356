"""Every mlx-lm family: the same text with drafts as without, and caches as if drafts had never been.

Windows and chunks of the tiny models hold eight tokens, so they wrap in the middle of each text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from families import FAMILIES, VOCAB, assert_close, assert_same_caches, make_model
from scripted import ScriptedDrafter

from localspec.engine.generation import Generation
from localspec.engine.request import Request
from localspec.engine.target import Target, TargetCache
from localspec.errors import ModelRefused

NUM_TOKENS = 44
# A prompt of one token makes the first round meet empty caches; the other one fills the windows.
PROMPT_LENGTHS = (1, 21)
NEAR_TIE = 1e-3


class RecordingTarget(Target):
    """Keeps the caches it makes."""

    caches: list[TargetCache]

    def new_cache(self) -> TargetCache:
        self.caches = [*getattr(self, "caches", []), super().new_cache()]
        return self.caches[-1]


@dataclass
class Run:
    """One prompt, written plainly and with drafts."""

    target: Target
    prompt: list[int]
    plain: list[int]
    drafted: list[int]
    drafter: ScriptedDrafter
    cache: TargetCache
    rounds: int
    accepted: int


@pytest.fixture(scope="module", params=FAMILIES)
def target(request: pytest.FixtureRequest) -> Iterator[RecordingTarget]:
    yield RecordingTarget(make_model(request.param))
    mx.clear_cache()


@pytest.fixture(scope="module", params=PROMPT_LENGTHS)
def run(target: RecordingTarget, request: pytest.FixtureRequest) -> Run:
    prompt = [int(token) for token in np.random.default_rng(7).integers(0, VOCAB, request.param)]
    plain = Generation(target, None, Request(prompt, NUM_TOKENS))
    list(plain.run())
    num_layers = target.num_layers
    drafter = ScriptedDrafter(
        plain.tokens, VOCAB, seed=3, tap_layers=(-1, 0, num_layers - 1, num_layers)
    )
    drafted = Generation(target, drafter, Request(prompt, NUM_TOKENS, width=drafter.max_width))
    list(drafted.run())
    # What plain steps committed last is shown to a drafter only when it is asked again.
    drafted._catch_up()
    stats = drafted.stats
    return Run(
        target,
        prompt,
        plain.tokens,
        drafted.tokens,
        drafter,
        target.caches[-1],
        stats.rounds,
        stats.accepted,
    )


def test_text_with_drafts_is_the_text_without(run: Run) -> None:
    assert len(run.plain) == len(run.prompt) + NUM_TOKENS
    written = run.plain[len(run.prompt) :]
    # Neither a constant text nor a drafter that is always right or always wrong would show much;
    # after a prompt of one token some families say the same again and again.
    assert len(set(written)) >= 6 or len(run.prompt) == 1
    assert 8 <= run.rounds < NUM_TOKENS
    assert run.accepted >= 8
    logits = run.target.forward(mx.array([run.plain[:-1]]), run.target.new_cache()).logits
    best_two = mx.sort(logits[0, len(run.prompt) - 1 :], axis=-1)[:, -2:]
    near_ties = np.flatnonzero(np.array(best_two[:, 1] - best_two[:, 0]) < NEAR_TIE)
    assert len(near_ties) <= 1
    if run.drafted != run.plain:
        first = next(
            i for i, (a, b) in enumerate(zip(run.drafted, run.plain, strict=True)) if a != b
        )
        assert first - len(run.prompt) in near_ties


def test_caches_are_those_of_a_fresh_prefill(run: Run) -> None:
    committed = run.drafted[:-1]
    assert run.cache.num_tokens == len(committed)
    fresh = run.target.new_cache()
    run.target.forward(mx.array([committed]), fresh)
    assert_same_caches(run.cache.entries, fresh.entries)
    anchor = mx.array([run.drafted[-1:]])
    for cache in (run.cache, fresh):
        mx.eval(cache.arrays)
    # The next token, several tokens and a rollback go on from there alike.
    after = [0, 1, 2, 3, 4]
    rows = []
    for cache in (run.cache, fresh):
        one = run.target.forward(anchor, cache).logits
        several = run.target.verify(mx.array([after]), cache).logits
        run.target.rollback(cache, to=2)
        last = run.target.forward(mx.array([[5]]), cache).logits
        rows.append(mx.concatenate([one, several, last], axis=1))
    assert_close(rows[0], rows[1])


def test_taps_are_those_of_one_pass_over_the_text(run: Run) -> None:
    committed = mx.array([run.drafted[:-1]])
    (state,) = run.drafter.states
    assert state.tokens == run.drafted[1:]
    taps = run.target.forward(
        committed, run.target.new_cache(), taps=run.drafter.tap_layers, rows=1
    ).taps
    assert taps is not None
    observed = mx.concatenate(state.taps, axis=1)
    assert observed.shape == (1, len(run.drafted) - 1, 4, run.target.hidden_size)
    for tap in range(4):
        assert_close(observed[:, :, tap], taps[:, :, tap])


def test_rows_and_head_are_parts_of_the_whole(target: RecordingTarget) -> None:
    tokens = mx.array([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3]])
    last = target.num_layers
    whole = target.forward(tokens, target.new_cache(), taps=(last,))
    assert whole.logits.shape == (1, 10, target.vocab_size)
    for rows in (1, 4):
        part = target.forward(tokens, target.new_cache(), rows=rows)
        assert part.taps is None
        assert_close(part.logits, whole.logits[:, -rows:])
    assert whole.taps is not None
    assert_close(target.head(whole.taps[:, 2:5, 0]), whole.logits[:, 2:5])
    assert target.embed(tokens).shape == (1, 10, target.hidden_size)


def test_taps_are_the_states_between_the_layers() -> None:
    target, bare = Target(make_model("llama")), make_model("llama").model
    tokens = mx.array([[3, 1, 4, 1, 5]])
    states = [bare.embed_tokens(tokens)]
    for layer in bare.layers:
        states.append(layer(states[-1], "causal", None))
    states.append(bare.norm(states[-1]))
    # In any order; the last layer's output and its norm are two.
    order = (4, -1, 0, 3, 1, 2)
    taps = target.forward(tokens, target.new_cache(), taps=order).taps
    assert taps is not None
    for index, tap in enumerate(order):
        assert_close(taps[:, :, index], states[tap + 1])


@pytest.mark.parametrize("family", ["llama", "nanbeige"])
def test_the_embedding_tap_is_the_embedding(family: str) -> None:
    # nanbeige runs its layers twice; what enters the first layer the second time is no embedding.
    target = Target(make_model(family))
    tokens = mx.array([[3, 1, 4]])
    taps = target.forward(tokens, target.new_cache(), taps=(-1,)).taps
    assert taps is not None
    assert_close(taps[:, :, 0], target.embed(tokens))


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("longcat_flash_ngram", "keeps recurrent state outside its layers"),
        ("deepseek_v41", "uses a LayerCache, which localspec cannot roll back"),
        ("gemma3n", "does not pass one state from its embeddings through its layers"),
        ("gpt_neox", "does not pass one state from its embeddings through its layers"),
        ("iquestloopcoder", "does not call its layers one by one"),
        ("plamo3", "attends to 9 tokens but keeps 8"),
        ("kimi_k3", "cannot be tapped or rolled back"),
    ],
)
def test_a_family_that_cannot_be_supported_is_refused_with_the_reason(
    family: str, reason: str
) -> None:
    with pytest.raises(ModelRefused, match=f"'{family}' {reason}"):
        Target(make_model(family))


def test_a_model_with_hidden_layers_is_refused() -> None:
    model: Any = make_model("llama")
    model.model.layers = tuple(model.model.layers)
    with pytest.raises(ModelRefused, match="cannot reach"):
        Target(model)
