"""What holds for every architecture alike, on tiny drafters with random weights.

Also the maker of those drafters, for the other test files of `models`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from golden_cases import RecordingGreedyDraw, TargetStub

from localspec.errors import DrafterMismatch
from localspec.models.config import (
    BlockConfig,
    ChainConfig,
    ConfidenceConfig,
    DrafterConfig,
    LatentConfig,
    LayerConfig,
    MarkovConfig,
    MixtureConfig,
    RopeConfig,
)
from localspec.models.load import expected_tensors, with_tensors

VOCAB, SIZE, LAYERS = 61, 32, 9


def config(architecture: Any, **changes: Any) -> DrafterConfig:
    """A tiny drafter's configuration with three taps (none for MTP)."""
    values: dict[str, Any] = {
        "architecture": architecture,
        "hidden_size": SIZE,
        "intermediate_size": 48,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-6,
        "rope": RopeConfig(10000.0, 8),
        "vocab_size": VOCAB,
        "draft_vocab_size": VOCAB,
        "target_hidden_size": SIZE,
        "tap_layers": (1, 3, 6),
        "target_layers": LAYERS,
        "qk_norm": True,
    }
    return DrafterConfig(**(values | changes))


def block(**changes: Any) -> BlockConfig:
    values: dict[str, Any] = {
        "block_size": 6,
        "layout": "anchor_slot_unused",
        "mask_token_id": 60,
        "layers": (LayerConfig(), LayerConfig()),
    }
    return BlockConfig(**(values | changes))


def chain(architecture: Any, *, feed_normed: bool = True, **changes: Any) -> DrafterConfig:
    taps = (1, 3, 6) if architecture == "eagle3" else ()
    layer = ChainConfig(feed_normed=feed_normed, **changes)
    return config(architecture, num_layers=1, tap_layers=taps, chain=layer)


MIXTURE = MixtureConfig(
    num_experts=6,
    num_chosen=2,
    intermediate_size=16,
    router="sigmoid",
    selection_bias=True,
    normalize=True,
    scale=2.5,
    shared_size=24,
    shared_gate=True,
)
MARKOV = MarkovConfig("vanilla", 5)
REDUCED: dict[str, Any] = {"draft_vocab_size": 23, "own_head": True}

CONFIGS = {
    "dflash": config("dflash", block=block()),
    "dflash-every-slot": config("dflash", block=block(layout="every_slot_predicts")),
    "dflash-windows": config(
        "dflash", block=block(layers=(LayerConfig(True, 4), LayerConfig(False, 3)))
    ),
    "dflash-causal": config(
        "dflash", block=block(layers=(LayerConfig(True), LayerConfig(True, 7)))
    ),
    "dflash-scaled": config(
        "dflash",
        block=block(),
        own_head=True,
        logit_scale=0.5,
        logit_softcap=2.0,
        embedding_scale=3.0,
    ),
    "dflare": config("dflare", block=block()),
    "dflare-wide": config(
        "dflare", hidden_size=24, own_embedding=True, own_head=True, qkv_bias=True, block=block()
    ),
    "dspark": config(
        "dspark", block=block(markov=MARKOV, confidence=ConfidenceConfig(True, True)), **REDUCED
    ),
    "dspark-gated": config("dspark", block=block(markov=MarkovConfig("gated", 5))),
    "dspark-rnn": config(
        "dspark",
        block=block(markov=MarkovConfig("rnn", 5), confidence=ConfidenceConfig(False, False)),
    ),
    "dfly": config("dfly", block=block(correction_size=20)),
    "eagle3": replace(chain("eagle3", tap_norm="all", norm_before_residual=True), **REDUCED),
    "eagle3-each": replace(chain("eagle3", tap_norm="each", feed_normed=False), qk_norm=False),
    "eagle3-latent": chain(
        "eagle3", latent=LatentConfig(kv_rank=16, unrotated_dim=6, value_dim=10)
    ),
    "mtp": chain("mtp", zero_first_embedding=True),
    "mtp-gated": replace(
        chain("mtp", gated_attention=True, mixture=MIXTURE), rope=RopeConfig(10000.0, 4, True)
    ),
    "mtp-latent": chain(
        "mtp",
        mixture=replace(MIXTURE, num_groups=3, num_groups_kept=2),
        latent=LatentConfig(kv_rank=16, unrotated_dim=6, value_dim=10, q_rank=12),
    ),
}
BLOCKS = [name for name in CONFIGS if name.startswith("d")]


def random_tensors(config: DrafterConfig, seed: int = 0) -> dict[str, mx.array]:
    """Weights large enough for every part to matter, and small enough for rounding not to."""
    keys = mx.random.split(mx.random.key(seed), 1000)
    tensors = {}
    for key, (name, shape) in zip(keys, expected_tensors(config).items(), strict=False):
        noise = mx.random.normal(shape, key=key)
        if name == "d2t":
            # Every second id and then some: the offsets ascend.
            tensors[name] = (mx.arange(shape[0]) * 3 // 2).astype(mx.int32)
        elif "norm" in name:
            tensors[name] = 1 + 0.3 * noise
        else:
            tensors[name] = noise * (1.5 * shape[-1] ** -0.5 if len(shape) > 1 else 0.2)
    return tensors


def target(seed: int = 7) -> TargetStub:
    keys = mx.random.split(mx.random.key(seed))
    shape = (VOCAB, SIZE)
    return TargetStub(
        mx.random.normal(shape, key=keys[0]), mx.random.normal(shape, key=keys[1]), LAYERS
    )


def drafter(config: DrafterConfig, seed: int = 0) -> Any:
    """A drafter bound to `target()`. Any: tests look at the parts of either kind."""
    made = with_tensors(config, random_tensors(config, seed), "test")
    made.bind(target())
    return made


def inputs(
    config: DrafterConfig, positions: int, batch: int = 1, seed: int = 3
) -> tuple[mx.array, mx.array]:
    """Next tokens [B, n] and taps [B, n, T, D]."""
    keys = mx.random.split(mx.random.key(seed))
    taps = (batch, positions, len(config.tap_layers) or 1, SIZE)
    tokens = mx.random.randint(0, VOCAB, (batch, positions), key=keys[0]).astype(mx.int32)
    return tokens, mx.random.normal(taps, key=keys[1])


def outcome(made: Any, state: Any, anchor: mx.array, width: int = 5) -> tuple[mx.array, mx.array]:
    """Tokens [B, w] and all logits of a greedy proposal."""
    draw = RecordingGreedyDraw()
    proposal = made.propose(state, anchor, width, draw)
    return proposal.tokens, draw.logits


def sampling_draw(logits: mx.array) -> tuple[mx.array, mx.array]:
    q = mx.softmax(logits.astype(mx.float32), axis=-1)
    return mx.random.categorical(logits, key=mx.random.key(1)).astype(mx.int32), q


every_config = pytest.mark.parametrize("name", CONFIGS)


@every_config
@pytest.mark.parametrize("sizes", [(1,) * 9, (4, 1, 4), (2, 7)])
def test_observing_in_chunks_equals_observing_at_once(name: str, sizes: tuple[int, ...]) -> None:
    made = drafter(CONFIGS[name])
    tokens, taps = inputs(CONFIGS[name], 9)
    whole, chunked, start = made.new_state(), made.new_state(), 0
    made.observe(whole, tokens, taps)
    for size in sizes:
        rows = slice(start, start + size)
        made.observe(chunked, tokens[:, rows], taps[:, rows])
        start += size
    expected, got = outcome(made, whole, tokens[:, -1]), outcome(made, chunked, tokens[:, -1])
    assert mx.array_equal(expected[0], got[0])
    assert mx.allclose(expected[1], got[1], atol=2e-4)


@every_config
def test_proposing_leaves_the_state_as_it_was(name: str) -> None:
    made = drafter(CONFIGS[name])
    tokens, taps = inputs(CONFIGS[name], 12)
    disturbed, calm = made.new_state(), made.new_state()
    for state in (disturbed, calm):
        made.observe(state, tokens[:, :8], taps[:, :8])
    first = outcome(made, disturbed, tokens[:, 7])
    again = outcome(made, disturbed, tokens[:, 7])
    assert mx.array_equal(first[1], again[1])
    for state in (disturbed, calm):
        made.observe(state, tokens[:, 8:], taps[:, 8:])
    assert disturbed.position == calm.position == 12
    expected, got = outcome(made, calm, tokens[:, -1]), outcome(made, disturbed, tokens[:, -1])
    assert mx.array_equal(expected[1], got[1])
    assert not mx.allclose(got[1], first[1], atol=1e-2), "the context must matter"


@every_config
def test_a_batch_of_two_equals_two_singles(name: str) -> None:
    made = drafter(CONFIGS[name])
    tokens, taps = inputs(CONFIGS[name], 7, batch=2)
    both = made.new_state()
    made.observe(both, tokens, taps)
    proposal = made.propose(both, tokens[:, -1], 4, sampling_greedy)
    assert proposal is not None
    for row in range(2):
        single = made.new_state()
        made.observe(single, tokens[row : row + 1], taps[row : row + 1])
        alone = made.propose(single, tokens[row : row + 1, -1], 4, sampling_greedy)
        assert alone is not None
        assert alone.tokens.shape == (1, 4)
        assert mx.array_equal(alone.tokens[0], proposal.tokens[row])
        for mine, its in ((alone.q, proposal.q), (alone.confidence, proposal.confidence)):
            assert mine is not None
            assert its is not None
            assert mx.allclose(mine[0], its[row], atol=1e-5)


def sampling_greedy(logits: mx.array) -> tuple[mx.array, mx.array]:
    """The argmax, with the distribution that a sampler would have had."""
    q = mx.softmax(logits.astype(mx.float32), axis=-1)
    return mx.argmax(logits, axis=-1).astype(mx.int32), q


@every_config
def test_each_width_gives_so_many_drafts(name: str) -> None:
    made = drafter(CONFIGS[name])
    tokens, taps = inputs(CONFIGS[name], 5)
    state = made.new_state()
    made.observe(state, tokens, taps)
    for width in range(1, made.max_width + 1):
        proposal = made.propose(state, tokens[:, -1], width, sampling_draw)
        assert proposal is not None
        assert proposal.width == width
        assert proposal.tokens.dtype == mx.int32
        assert proposal.q is not None
        assert proposal.q.shape == (1, width, VOCAB)
        assert proposal.confidence is not None
        assert proposal.confidence.shape == (1, width)
        assert bool(mx.all((proposal.confidence > 0) & (proposal.confidence <= 1)))


@pytest.mark.parametrize("name", ["dflash-causal", "eagle3", "mtp", "mtp-latent"])
def test_where_drafts_see_no_later_one_a_narrow_proposal_begins_a_wide_one(name: str) -> None:
    made = drafter(CONFIGS[name])
    tokens, taps = inputs(CONFIGS[name], 5)
    state = made.new_state()
    made.observe(state, tokens, taps)
    _, wide = outcome(made, state, tokens[:, -1], 5)
    _, narrow = outcome(made, state, tokens[:, -1], 2)
    assert mx.allclose(narrow, wide[:2], atol=1e-5)


@every_config
def test_q_is_the_distribution_drawn_from_in_target_ids(name: str) -> None:
    made = drafter(CONFIGS[name])
    tokens, taps = inputs(CONFIGS[name], 5)
    state, seen = made.new_state(), []
    made.observe(state, tokens, taps)

    def draw(logits: mx.array) -> tuple[mx.array, mx.array]:
        drawn, q = sampling_draw(logits)
        seen.append(q.reshape(-1, q.shape[-1]))
        return drawn, q

    proposal = made.propose(state, tokens[:, -1], 4, draw)
    assert proposal is not None
    assert proposal.q is not None
    ids = mx.arange(CONFIGS[name].draft_vocab_size)
    if CONFIGS[name].draft_vocab_size < VOCAB:
        ids = ids + made.d2t
    assert mx.array_equal(proposal.q[0][:, ids], mx.concatenate(seen))
    assert mx.allclose(proposal.q.sum(axis=-1), mx.ones((1, 4)), atol=1e-5)
    assert set(proposal.tokens[0].tolist()) <= set(ids.tolist())


@every_config
def test_proposing_reads_nothing_back_from_the_device(name: str) -> None:
    made = drafter(CONFIGS[name])
    tokens, taps = inputs(CONFIGS[name], 5)
    state = made.new_state()
    made.observe(state, tokens, taps)
    mx.eval(state.arrays)

    def traced(anchor: mx.array) -> mx.array:
        proposal = made.propose(state, anchor, 4, sampling_draw)
        assert proposal is not None
        return proposal.tokens

    # MLX raises when an array is evaluated while a function is traced.
    assert mx.compile(traced)(tokens[:, -1]).shape == (1, 4)


@every_config
def test_half_precision_stays_half_precision(name: str) -> None:
    tensors = {
        key: array if key == "d2t" else array.astype(mx.bfloat16)
        for key, array in random_tensors(CONFIGS[name]).items()
    }
    made = with_tensors(CONFIGS[name], tensors, "test")
    made.bind(target())
    tokens, taps = inputs(CONFIGS[name], 5)
    state = made.new_state()
    made.observe(state, tokens, taps)
    assert {array.dtype for array in state.arrays} == {mx.bfloat16}


def test_a_chain_proposes_nothing_before_its_first_pair() -> None:
    made = drafter(CONFIGS["mtp"])
    assert made.propose(made.new_state(), mx.array([3]), 4, sampling_draw) is None


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_needs_no_context(name: str) -> None:
    made = drafter(CONFIGS[name])
    proposal = made.propose(made.new_state(), mx.array([3]), 4, sampling_draw)
    assert proposal is not None
    assert bool(mx.all(mx.isfinite(proposal.confidence)))


@pytest.mark.parametrize(
    ("changes", "numbers"),
    [
        ({"embedding": mx.zeros((VOCAB, 40))}, ("32", "40")),
        ({"head_weight": mx.zeros((VOCAB - 1, SIZE))}, ("61", "60")),
        ({"num_layers": 12}, ("9", "12")),
    ],
)
def test_a_target_of_other_sizes_is_a_mismatch(
    changes: dict[str, Any], numbers: tuple[str, str]
) -> None:
    made = drafter(CONFIGS["dflash"])
    with pytest.raises(DrafterMismatch) as caught:
        made.bind(replace(target(), **changes))
    assert all(number in str(caught.value) for number in numbers)


def test_a_tap_on_the_last_layer_is_a_mismatch_where_layers_were_not_known() -> None:
    made = drafter(replace(CONFIGS["dflash"], target_layers=None))
    with pytest.raises(DrafterMismatch, match="taps layer 6"):
        made.bind(replace(target(), num_layers=7))


@pytest.mark.parametrize(("normed", "tap"), [(True, LAYERS), (False, LAYERS - 1)])
def test_mtp_taps_the_last_state(normed: bool, tap: int) -> None:
    made = drafter(chain("mtp", target_normed=normed))
    assert made.tap_layers == (tap,)
