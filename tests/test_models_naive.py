"""The cached, cropped, masked paths against plain ones that compute everything anew.

Also the mixture and latent attention against mlx-lm's, which the targets they come from use.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.deepseek_v3 import DeepseekV3Attention, ModelArgs, group_expert_select
from test_models_drafters import BLOCKS, CONFIGS, chain, drafter, inputs, outcome, random_tensors

from localspec.models.block import BlockDrafter, visible
from localspec.models.chain import ChainDrafter
from localspec.models.config import LatentConfig, LayerConfig, MixtureConfig
from localspec.models.layers import KeyValueCache, LatentAttention, Mixture

CHAINS = [name for name in CONFIGS if name not in BLOCKS and "latent" not in name]


def naive_attention(
    attention: Any, x: mx.array, rows: mx.array, keys: mx.array, values: mx.array, mask: mx.array
) -> mx.array:
    """Softmax over every key, for queries at the given positions, one head at a time."""
    gate = None
    queries = attention.q_proj(x).reshape(*x.shape[:2], attention.num_heads, -1)
    if attention.gated:
        queries, gate = queries[..., : attention.head_dim], queries[..., attention.head_dim :]
    if attention.qk_norm:
        queries = attention.q_norm(queries)
    queries = attention.rope(queries.transpose(0, 2, 1, 3), offset=int(rows[0].item()))
    group = attention.num_heads // keys.shape[1]
    heads = []
    for head in range(attention.num_heads):
        scores = queries[:, head] @ keys[:, head // group].swapaxes(-1, -2) * attention.scale
        shares = mx.softmax(mx.where(mask, scores, -1e9), axis=-1)
        out = shares @ values[:, head // group]
        heads.append(out if gate is None else out * mx.sigmoid(gate[:, :, head]))
    return attention.o_proj(mx.concatenate(heads, axis=-1))


def naive_block(made: BlockDrafter, taps: mx.array, anchor: mx.array, width: int) -> mx.array:
    """States of the predicting slots [B, w, D], with all context computed at once."""
    first = int(made.block.layout == "anchor_slot_unused")
    start, num_slots = taps.shape[1], width + first
    masks = [made.block.mask_token_id] * (num_slots - 1)
    x = made.scaled_embed(mx.array([[int(anchor.item()), *masks]]))
    rows, all_rows = mx.arange(start, start + num_slots), mx.arange(start + num_slots)
    for layer, kind, context in zip(
        made.layers, made.block.layers, made.contexts(taps), strict=True
    ):
        attention, normed = layer.self_attn, layer.input_layernorm(x)
        before = attention.context_keys_values(context, 0)
        own = attention.keys_values(normed, start)
        keys, values = (mx.concatenate(pair, axis=2) for pair in zip(before, own, strict=True))
        distance = rows[:, None] - all_rows[None]
        mask = mx.ones(distance.shape, dtype=mx.bool_)
        if kind.causal:
            mask = mask & (distance >= 0)
        if kind.window is not None:
            mask = mask & (mx.abs(distance) < kind.window)
        x = x + naive_attention(attention, normed, rows, keys, values, mask)
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return made.norm(x)[:, first:]


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("positions", [1, 4, 300])
def test_a_block_equals_one_without_a_cache(name: str, positions: int) -> None:
    made = drafter(CONFIGS[name])
    assert isinstance(made, BlockDrafter)
    tokens, taps = inputs(CONFIGS[name], positions)
    state = made.new_state()
    for start in range(0, positions, 90):
        rows = slice(start, start + 90)
        made.observe(state, tokens[:, rows], taps[:, rows])
        outcome(made, state, tokens[:, rows][:, -1], 3)
    seen: list[mx.array] = []

    def keep(hidden: mx.array, anchor: mx.array, draw: Any) -> Any:
        seen.append(hidden)

    made.draft = keep  # type: ignore[method-assign, assignment]
    made.propose(state, tokens[:, -1], 5, None)  # type: ignore[arg-type]
    assert mx.allclose(seen[0], naive_block(made, taps, tokens[:, -1], 5), atol=2e-4)


def naive_chain(made: ChainDrafter, tokens: mx.array, taps: mx.array, width: int) -> list[int]:
    """Greedy drafts, every row of every step computed anew under a causal mask."""
    (layer,) = made.layers
    embeddings, states = made.scaled_embed(tokens), made.target_states(taps)
    if made.chain.zero_first_embedding:
        embeddings[:, 0] = 0
    drafts: list[int] = []
    while True:
        normed, residual = made.fuse(embeddings, states)
        rows = mx.arange(normed.shape[1])
        keys, values = layer.self_attn.keys_values(normed, 0)
        mask = rows[:, None] >= rows[None]
        x = residual + naive_attention(layer.self_attn, normed, rows, keys, values, mask)
        x = (x + layer.mlp(layer.post_attention_layernorm(x)))[:, -1:]
        best = int(mx.argmax(made.logits(made.norm(x))[0, 0]).item())
        drafts.append(best + (int(made.d2t[best].item()) if "d2t" in made else 0))
        if len(drafts) == width:
            return drafts
        embeddings = mx.concatenate(
            [embeddings, made.scaled_embed(mx.array([drafts[-1:]]))], axis=1
        )
        fed = made.norm(x) if made.chain.feed_normed else x
        states = mx.concatenate([states, fed], axis=1)


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("positions", [1, 5, 270])
def test_a_chain_equals_one_without_a_cache(name: str, positions: int) -> None:
    made = drafter(CONFIGS[name])
    assert isinstance(made, ChainDrafter)
    tokens, taps = inputs(CONFIGS[name], positions)
    state = made.new_state()
    for start in range(0, positions, 80):
        rows = slice(start, start + 80)
        made.observe(state, tokens[:, rows], taps[:, rows])
        outcome(made, state, tokens[:, rows][:, -1], 3)
    drafts, _ = outcome(made, state, tokens[:, -1], 6)
    assert drafts[0].tolist() == naive_chain(made, tokens, taps, 6)


def test_a_window_keeps_no_more_rows_than_it_needs() -> None:
    cache = KeyValueCache(context=4)
    for number in range(2000):
        row = mx.full((1, 1, 1, 2), number)
        keys, _ = cache.append(row, row)
        assert keys[0, 0, :, 0].tolist() == list(range(max(0, number - 4), number + 1))
    assert sum(array.shape[2] for array in cache.arrays) <= 2 * 256


def test_rows_beyond_the_committed_ones_are_overwritten() -> None:
    cache = KeyValueCache()
    rows = mx.arange(600.0).reshape(1, 1, 600, 1)
    cache.append(rows[:, :, :250], rows[:, :, :250])
    keys, _ = cache.extended(-rows[:, :, :20], -rows[:, :, :20])
    assert keys[0, 0, :, 0].tolist() == [*range(250), *(-float(i) for i in range(20))]
    keys, _ = cache.append(rows[:, :, 250:], rows[:, :, 250:])
    assert keys[0, 0, :, 0].tolist() == list(range(600))
    cache.crop(3)
    keys, values = cache.append(rows[:, :, :1], rows[:, :, :1])
    assert keys[0, 0, :, 0].tolist() == values[0, 0, :, 0].tolist() == [0, 1, 2, 0]


def test_masks_are_only_made_where_something_is_hidden() -> None:
    assert visible(LayerConfig(), 4, 10) is None
    assert visible(LayerConfig(True), 4, 10) == "causal"
    assert visible(LayerConfig(True, 10), 4, 10) == "causal"
    assert visible(LayerConfig(False, 10), 4, 10) is None
    mask = visible(LayerConfig(True, 2), 2, 3)
    assert isinstance(mask, mx.array)
    assert mask.tolist() == [[True, True, False], [False, True, True]]


def test_experts_are_chosen_as_mlx_lm_chooses_them() -> None:
    config = MixtureConfig(
        num_experts=12,
        num_chosen=3,
        intermediate_size=8,
        router="sigmoid",
        selection_bias=True,
        normalize=True,
        scale=2.5,
        num_groups=4,
        num_groups_kept=2,
    )
    mixture = Mixture(16, config)
    mixture.gate.weight = mx.random.normal((12, 16), key=mx.random.key(0))
    mixture.expert_bias = mx.random.uniform(shape=(12,), key=mx.random.key(1))
    x = mx.random.normal((2, 5, 16), key=mx.random.key(2))
    chosen, weights = mixture._route(x)
    theirs, their_weights = group_expert_select(
        mixture.gate(x), mixture.expert_bias, 3, 4, 2, 2.5, True
    )
    for mine, its in ((chosen, weights), (theirs, their_weights)):
        assert mine.shape == its.shape == (2, 5, 3)
    order, their_order = mx.argsort(chosen, axis=-1), mx.argsort(theirs, axis=-1)

    def sort(array: mx.array, by: mx.array) -> mx.array:
        return mx.take_along_axis(array, by, axis=-1)

    assert mx.array_equal(sort(chosen, order), sort(theirs, their_order))
    assert mx.allclose(sort(weights, order), sort(their_weights, their_order))


def test_a_mixture_is_the_weighted_sum_of_its_experts() -> None:
    config = MixtureConfig(4, 2, 8, "softmax", selection_bias=False, normalize=False, shared_size=6)
    mixture = Mixture(16, config)
    x = mx.random.normal((1, 3, 16), key=mx.random.key(2))
    shares = mx.softmax(mixture.gate(x), axis=-1)
    expected = mixture.shared_expert(x)
    for row in range(3):
        best = sorted(range(4), key=lambda expert: -float(shares[0, row, expert].item()))[:2]
        for expert in best:
            gate, up, down = (
                getattr(mixture.switch_mlp, name).weight[expert]
                for name in ("gate_proj", "up_proj", "down_proj")
            )
            inner = x[0, row] @ gate.T
            inner = inner * mx.sigmoid(inner) * (x[0, row] @ up.T)
            expected[0, row] += shares[0, row, expert] * (inner @ down.T)
    assert mx.allclose(mixture(x), expected, atol=1e-5)


def test_latent_attention_equals_mlx_lms() -> None:
    scaling = {
        "type": "yarn",
        "factor": 4,
        "original_max_position_embeddings": 64,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    }
    args = ModelArgs(
        hidden_size=32,
        num_attention_heads=4,
        kv_lora_rank=16,
        q_lora_rank=12,
        qk_rope_head_dim=8,
        qk_nope_head_dim=6,
        v_head_dim=10,
        rope_scaling=scaling,
    )
    latent = LatentConfig(kv_rank=16, unrotated_dim=6, value_dim=10, q_rank=12)
    config = chain("mtp", latent=latent)
    rope = type(config.rope)(10000.0, 8, traditional=True, scaling=scaling)
    object.__setattr__(config, "rope", rope)
    mine, theirs = LatentAttention(config, latent, None), DeepseekV3Attention(args)
    prefix = "layers.0.self_attn."
    weights = [
        (name.removeprefix(prefix), array)
        for name, array in random_tensors(config).items()
        if name.startswith(prefix)
    ]
    mine.load_weights(weights)
    theirs.load_weights(weights)
    x = mx.random.normal((2, 9, 32), key=mx.random.key(5))
    causal = mx.tril(mx.ones((9, 9), dtype=mx.bool_))
    keys, values = mine.keys_values(x, 0)
    expected = theirs(x, mask=causal)
    assert mx.allclose(mine(x, 0, keys, values, causal), expected, atol=1e-4)
    last = mine(x[:, -1:], 8, keys, values)
    assert mx.allclose(last, expected[:, -1:], atol=1e-4)
