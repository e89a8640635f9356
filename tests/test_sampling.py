"""Sampling parameters, history and uniforms, against definitions written out in numpy."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import next_law

from localspec.engine.sampling import History, SamplingParams, Uniforms, sample
from localspec.errors import UsageError


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    temperature=st.floats(0.3, 2.0),
    top_k=st.integers(0, 12),
    top_p=st.floats(0.1, 1.0),
    min_p=st.floats(0.0, 0.5),
    repetition=st.floats(0.5, 2.0),
    presence=st.floats(-1.0, 1.0),
    frequency=st.floats(-1.0, 1.0),
)
def test_every_row_has_the_law_of_its_own_history(
    seed: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    repetition: float,
    presence: float,
    frequency: float,
) -> None:
    params = SamplingParams(
        temperature, top_k, top_p, min_p, repetition, presence, frequency, {3: 0.5}
    )
    rng = np.random.default_rng(seed)
    prompt, said = rng.integers(0, 10, 3).tolist(), rng.integers(0, 10, 4).tolist()
    drafts = rng.integers(0, 10, 3).tolist()
    logits = (3 * rng.standard_normal((4, 10))).astype(np.float32)
    history = History(params, prompt, 10)
    history.commit(mx.array(said))
    p = params.distribution(history.penalise(mx.array(logits)[None], mx.array([drafts])))
    for row in range(4):
        expected = next_law(logits[row].astype(np.float64), prompt, said + drafts[:row], params)
        # A token on the very edge of a filter may fall on either side in float32.
        close = np.abs(np.array(p[0, row]) - expected).max() < 1e-4
        assert close or _on_an_edge(logits[row], prompt, said + drafts[:row], params)


def _on_an_edge(
    logits: np.ndarray, prompt: list[int], said: list[int], params: SamplingParams
) -> bool:
    laws = [
        next_law(
            logits.astype(np.float64),
            prompt,
            said,
            SamplingParams(
                params.temperature,
                params.top_k,
                min(params.top_p * (1 + nudge), 1.0),
                min(params.min_p * (1 - nudge), 1.0),
                params.repetition_penalty,
                params.presence_penalty,
                params.frequency_penalty,
                params.logit_bias,
            ),
        )
        for nudge in (-1e-5, 1e-5)
    ]
    return bool(((laws[0] > 0) != (laws[1] > 0)).any())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("min_p", -0.5),
        ("min_p", 1.1),
        ("repetition_penalty", 0.0),
        ("presence_penalty", float("inf")),
        ("frequency_penalty", float("nan")),
    ],
)
def test_values_out_of_range_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=name):
        SamplingParams(**{name: value})


def test_a_bias_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(UsageError, match="logit_bias"):
        History(SamplingParams(logit_bias={10: 1.0}), [1], 10)


def test_sample_inverts_the_cumulative_sum() -> None:
    p = mx.array([[0.0, 0.25, 0.0, 0.5, 0.25]] * 5)
    u = mx.array([0.0, 0.249, 0.25, 0.7499, 0.99999994])
    assert sample(p, u).tolist() == [1, 1, 3, 3, 4]


def test_sample_never_takes_the_impossible() -> None:
    p = mx.array([[0.5, 0.5, 0.0, 0.0]] * 1000)
    u = mx.array(np.linspace(0, 1 - 2**-24, 1000, dtype=np.float32))
    assert set(sample(p, u).tolist()) == {0, 1}


def test_uniforms_depend_on_seed_use_and_position_alone() -> None:
    whole = Uniforms(7).at("token", 10, 6).tolist()
    assert (
        whole == Uniforms(7).at("token", 10, 2).tolist() + Uniforms(7).at("token", 12, 4).tolist()
    )
    assert whole != Uniforms(8).at("token", 10, 6).tolist()
    assert whole != Uniforms(7).at("draft", 10, 6).tolist()


def test_uniforms_are_uniform() -> None:
    values = np.array(Uniforms(3).at("token", 0, 20_000))
    assert values.min() >= 0.0
    assert values.max() < 1.0
    counts, _ = np.histogram(values, bins=20, range=(0, 1))
    statistic = ((counts - 1000.0) ** 2 / 1000.0).sum()
    assert statistic < 43.8  # chi-square, 19 degrees of freedom, p = 0.001
