"""Heads, scales and fusions against their formulas, written out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from golden_cases import RecordingGreedyDraw
from test_models_drafters import CONFIGS, SIZE, VOCAB, block, chain, config, drafter

from localspec.models.base import top_probability
from localspec.models.config import ConfidenceConfig, MarkovConfig

WIDTH = 4


def drafted(made: Any) -> tuple[mx.array, mx.array, mx.array, list[int]]:
    """States [w, D], logits [w, V], confidences [w], and the token before each draft."""
    hidden = mx.random.normal((1, WIDTH, SIZE), key=mx.random.key(11))
    draw = RecordingGreedyDraw()
    proposal = made.draft(hidden, mx.array([5]), draw)
    return hidden[0], draw.logits, proposal.confidence[0], [5, *proposal.tokens[0].tolist()[:-1]]


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
@pytest.mark.parametrize("with_markov", [False, True])
def test_dspark_adds_the_bias_of_the_token_before(kind: Any, with_markov: bool) -> None:
    heads = {"markov": MarkovConfig(kind, 5), "confidence": ConfidenceConfig(with_markov, True)}
    made: Any = drafter(config("dspark", block=block(**heads)))
    hidden, logits, confidence, previous = drafted(made)
    table, out = made.markov_head.markov_w1.weight, made.markov_head.markov_w2.weight
    memory = mx.zeros((5,))
    for k in range(WIDTH):
        h, e = hidden[k], table[previous[k]]
        inner = e
        if kind == "gated":
            gate = made.markov_head.gate_proj
            inner = mx.sigmoid(gate.weight @ mx.concatenate([h, e]) + gate.bias) * e
        elif kind == "rnn":
            joint = made.markov_head.joint_proj
            mixed = joint.weight @ mx.concatenate([memory, e, h]) + joint.bias
            keep = mx.sigmoid(mixed[:5])
            memory = keep * memory + (1 - keep) * mx.tanh(mixed[5:10])
            inner = mx.tanh(mixed[10:])
        expected = made.logits(h[None, None])[0, 0] + out @ inner
        assert mx.allclose(logits[k], expected, atol=1e-4)
        proj = made.confidence_head.proj
        features = mx.concatenate([h, e]) if with_markov else h
        assert mx.allclose(
            confidence[k], mx.sigmoid(proj.weight @ features + proj.bias)[0], atol=1e-5
        )


def test_without_a_confidence_head_the_top_probability_speaks() -> None:
    for name in ("dflash", "dflare", "dfly", "dspark-gated"):
        _, logits, confidence, _ = drafted(drafter(CONFIGS[name]))
        assert mx.allclose(confidence, mx.softmax(logits, axis=-1).max(axis=-1), atol=1e-5)


def test_top_probability_is_of_temperature_one() -> None:
    assert mx.allclose(top_probability(mx.log(mx.array([0.1, 0.7, 0.2]))), mx.array(0.7))


def test_dfly_corrects_the_state_by_the_token_before() -> None:
    # The scale is for the layers' input: the correction reads raw rows.
    made: Any = drafter(replace(CONFIGS["dfly"], embedding_scale=2.0))
    hidden, logits, _, previous = drafted(made)
    part = made.hidden_correction
    for k in range(WIDTH):
        h = hidden[k]
        row = made.embed(mx.array(previous[k]))
        z = mx.concatenate([part.hidden_norm(h), part.embed_norm(row)])
        gate = part.gate_proj.weight @ z
        wide = gate * mx.sigmoid(gate) * (part.up_proj.weight @ z)
        expected = made.logits((h + part.down_proj.weight @ wide)[None, None])[0, 0]
        assert mx.allclose(logits[k], expected, atol=1e-4)


def test_scales_and_the_softcap_are_applied() -> None:
    made: Any = drafter(CONFIGS["dflash-scaled"])
    tokens, hidden = mx.array([3, 4]), mx.random.normal((1, 2, SIZE))
    assert mx.allclose(made.scaled_embed(tokens), 3 * made.embed(tokens))
    raw = hidden @ made.lm_head.weight.T
    assert mx.allclose(made.logits(hidden), 2 * mx.tanh(raw * 0.5 / 2), atol=1e-5)


@pytest.mark.parametrize("normed", [False, True])
def test_eagle_keeps_the_residual_it_is_told_to(normed: bool) -> None:
    made: Any = drafter(chain("eagle3", norm_before_residual=normed))
    (layer,) = made.layers
    embeddings, states = mx.random.normal((1, 3, SIZE)), mx.random.normal((1, 3, SIZE))
    fused, residual = made.fuse(embeddings, states)
    assert mx.array_equal(fused[..., :SIZE], layer.input_layernorm(embeddings))
    assert mx.array_equal(fused[..., SIZE:], layer.hidden_norm(states))
    assert mx.array_equal(residual, layer.hidden_norm(states) if normed else states)


def test_eagle_norms_taps_each_or_together() -> None:
    taps = mx.random.normal((1, 2, 3, SIZE))
    each: Any = drafter(CONFIGS["eagle3-each"])
    normed = [each.fc_norm[tap](taps[:, :, tap]) for tap in range(3)]
    assert mx.allclose(
        each.target_states(taps), each.fc(mx.concatenate(normed, axis=-1)), atol=1e-5
    )
    together: Any = drafter(CONFIGS["eagle3"])
    flat = together.input_norm(taps.reshape(1, 2, 3 * SIZE))
    assert mx.allclose(together.target_states(taps), together.fc(flat), atol=1e-5)


def test_mtp_reads_embedding_before_state() -> None:
    made: Any = drafter(CONFIGS["mtp"])
    embeddings, states = mx.random.normal((1, 3, SIZE)), mx.random.normal((1, 3, SIZE))
    fused, residual = made.fuse(embeddings, states)
    weight = made.eh_proj.weight
    expected = made.enorm(embeddings) @ weight[:, :SIZE].T + made.hnorm(states) @ weight[:, SIZE:].T
    assert mx.allclose(residual, expected, atol=1e-4)
    assert mx.allclose(fused, made.layers[0].input_layernorm(expected), atol=1e-4)


@pytest.mark.parametrize("name", ["dflare", "dfly"])
def test_each_layer_mixes_taps_in_its_own_shares(name: str) -> None:
    made: Any = drafter(CONFIGS[name])
    taps = mx.random.normal((1, 2, 3, SIZE))
    for layer, context in enumerate(made.contexts(taps)):
        shares = mx.softmax(made.layer_fusion_weights[layer])
        mixed = sum((shares[tap] * taps[:, :, tap] for tap in range(3)), mx.array(0.0))
        if name == "dfly":
            mixed = mixed + made.fc(taps.reshape(1, 2, 3 * SIZE))
        assert mx.allclose(context, made.hidden_norm(mixed), atol=1e-4)


def test_own_vocabulary_sizes_reach_the_head() -> None:
    made: Any = drafter(CONFIGS["dspark"])
    assert made.logits(mx.zeros((1, 2, SIZE))).shape == (1, 2, 23)
    assert made.markov_head.markov_w1.weight.shape == (VOCAB, 5)
    assert made.markov_head.markov_w2.weight.shape == (23, 5)
