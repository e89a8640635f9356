"""Every architecture, with random weights, in the real loop: the text of plain decoding; memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import mlx.core as mx
import pytest
from families import make_model
from random_drafters import ALL, Helped, random_drafter

from localspec.engine.generation import Generation
from localspec.engine.request import Request
from localspec.engine.sampling import SamplingParams
from localspec.engine.target import Target
from localspec.model import Model
from localspec.models.drafter import Drafter
from localspec.targets import worker

# So few tokens that drafters who know nothing are now and then right.
VOCAB = 12
FAMILIES = ("qwen3_next", "lfm2", "falcon_h1", "gemma3_text")
NUM_TOKENS = 60
# Longer than the window of eight of gemma3.
LONG_PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6]

every_architecture = pytest.mark.parametrize("architecture", ALL)


def run(target: Target, drafter: Drafter | None, request: Request) -> Generation:
    generation = Generation(target, drafter, request)
    for _ in generation.run():
        pass
    return generation


@pytest.fixture(scope="module", params=FAMILIES)
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    # Of twelve tokens gemma3 would say one again and again.
    vocab_size = 96 if request.param == "gemma3_text" else VOCAB
    yield Target(make_model(request.param, vocab_size=vocab_size))
    mx.clear_cache()


@pytest.fixture(scope="module")
def llama() -> Target:
    return Target(make_model("llama", vocab_size=VOCAB, num_hidden_layers=2))


@pytest.fixture(scope="module")
def hybrid() -> Target:
    return Target(make_model("qwen3_next", vocab_size=VOCAB))


@pytest.fixture(scope="module")
def plain(target: Target) -> list[int]:
    """The long prompt and what plain decoding says to it."""
    tokens = run(target, None, Request(LONG_PROMPT, NUM_TOKENS)).tokens
    assert len(set(tokens[len(LONG_PROMPT) :])) >= 6
    return tokens


@pytest.fixture(scope="module")
def answer(smollm2: Model) -> tuple[list[int], list[int]]:
    """A prompt for the default model, and that with twelve tokens by plain decoding."""
    prompt = smollm2.encode("Why is the sky blue?")
    tokens = worker.call(run, smollm2._target, None, Request(prompt, 12)).tokens
    return prompt, tokens


@every_architecture
def test_greedy_text_is_the_plain_text_on_the_default_model(
    smollm2: Model, answer: tuple[list[int], list[int]], architecture: str
) -> None:
    prompt, tokens = answer

    def texts() -> tuple[Generation, Generation]:
        target = smollm2._target
        drafter = random_drafter(architecture, target, layers=2)
        unhelped = run(target, drafter, Request(prompt, 3, width=3))
        return unhelped, run(target, Helped(drafter, tokens), Request(prompt, 12, width=3))

    unhelped, helped = worker.call(texts)
    assert unhelped.stats.proposed >= 3
    assert unhelped.tokens == tokens[: len(unhelped.tokens)]
    assert helped.tokens == tokens
    assert 0 < helped.stats.accepted < helped.stats.proposed


@every_architecture
def test_greedy_text_is_the_plain_text(target: Target, plain: list[int], architecture: str) -> None:
    """With drafts as they come, and with a random number of them right."""
    drafter = random_drafter(architecture, target, layers=2, seed=3)
    request = Request(LONG_PROMPT, NUM_TOKENS, width=drafter.max_width)
    assert run(target, drafter, request).tokens == plain
    helped = run(target, Helped(drafter, plain), request)
    assert helped.tokens == plain
    accepted = helped.stats.accepted_by_position
    assert accepted[0] > accepted[4] > 0, "rollback to many points"


@every_architecture
def test_every_width_and_a_prompt_of_one_token(target: Target, architecture: str) -> None:
    drafter = random_drafter(architecture, target, seed=4)
    tokens = run(target, None, Request([3], 20)).tokens
    proposed, accepted = 0, 0
    for width in range(1, drafter.max_width + 1):
        drafted = run(target, drafter, Request([3], 20, width=width))
        assert drafted.tokens == tokens
        # A block of one token more is never begun, and the last round's is cut to what remains.
        assert len(drafted.stats.proposed_by_position) == width
        proposed += drafted.stats.proposed
        accepted += drafted.stats.accepted
    assert accepted < proposed


@every_architecture
@pytest.mark.parametrize("bits", [None, 4, 8])
def test_unhelped_drafts_are_now_and_then_right(
    hybrid: Target, architecture: str, bits: int | None
) -> None:
    tokens = run(hybrid, None, Request(LONG_PROMPT, NUM_TOKENS)).tokens
    drafter = random_drafter(architecture, hybrid, bits=bits, seed=3)
    drafted = run(hybrid, drafter, Request(LONG_PROMPT, NUM_TOKENS, width=4))
    assert drafted.tokens == tokens
    assert 0 < drafted.stats.accepted < drafted.stats.proposed


@every_architecture
def test_the_end_may_lie_inside_a_block(
    target: Target, plain: list[int], architecture: str
) -> None:
    drafter = random_drafter(architecture, target, seed=5)
    said = plain[len(LONG_PROMPT) :]
    for limit in (1, 2, 3):
        limited = run(target, Helped(drafter, plain), Request(LONG_PROMPT, limit, width=5))
        assert limited.tokens[len(LONG_PROMPT) :] == said[:limit]
        assert limited.finish_reason() == "length"
    # All drafts are right, so the first round runs past the stop token.
    stop = said[2]
    request = Request(LONG_PROMPT, NUM_TOKENS, width=5, stop_ids=frozenset({stop}))
    stopped = run(target, AllRight(drafter, plain), request)
    assert stopped.tokens[len(LONG_PROMPT) :] == said[: said.index(stop) + 1]
    assert stopped.finish_reason() == "stop"
    assert stopped.stats.rounds == 1


class AllRight(Helped):
    """Every draft is right."""

    def _num_right(self, width: int) -> int:
        return width


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@every_architecture
def test_the_same_seed_gives_the_same_text(
    llama: Target, architecture: str, temperature: float
) -> None:
    drafter = random_drafter(architecture, llama, seed=6)

    def text(seed: int) -> list[int]:
        params = SamplingParams(temperature=temperature)
        return run(llama, drafter, Request([1, 2], 40, params, seed=seed, width=3)).tokens

    assert text(1) == text(1)
    assert (text(1) == text(2)) == (temperature == 0.0)


# The reduced vocabulary changes nothing that is kept.
@pytest.mark.parametrize("architecture", [name for name in ALL if name != "eagle3-reduced"])
def test_memory_grows_by_the_caches_alone(llama: Target, architecture: str) -> None:
    """From 500 to 2,000 tokens; what a round leaves behind would add up to more than is allowed."""
    drafter = random_drafter(architecture, llama, layers=2, seed=7)
    # A law so flat that many drafts stand, so that rounds are fewer than tokens.
    params = SamplingParams(temperature=4.0)
    generation = Generation(llama, drafter, Request([1, 2], 2000, params, width=5))
    marks = []
    for limit in (500, 2000):
        while generation.stats.generated_tokens < limit:
            generation.step()
        mx.eval(generation._cache.arrays, generation._state.arrays)
        gc.collect()
        arrays = generation._state.arrays
        caches = generation._cache.nbytes + sum(array.nbytes for array in arrays)
        marks.append((mx.get_active_memory(), caches))
        del arrays
    assert generation.stats.rounds < 1900
    grown, expected = (after - before for before, after in zip(*marks, strict=True))
    assert expected > 300_000, "the caches do grow"
    # Less than the smallest array, of four bytes, left behind by each of the hundreds of rounds.
    assert grown <= expected + 1024, (grown, expected)
