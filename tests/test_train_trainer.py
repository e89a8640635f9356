"""A run: it learns, resumes as if it had not stopped, stops at what is not finite, keeps its best."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from families import VOCAB, make_model

from localspec.engine.target import Target
from localspec.errors import TrainingError
from localspec.train import checkpoints
from localspec.train.batches import Order, make_batch
from localspec.train.checkpoints import Checkpoints
from localspec.train.corpus import Corpus, Rollout
from localspec.train.evaluation import HeldOut, accepted_length
from localspec.train.start import Shape, default_taps, new_config, new_drafter
from localspec.train.states import StateStore
from localspec.train.trainer import Drafter, Progress, Settings, Trainer
from localspec.train.vocabulary import Vocabulary, frequent_tokens

SIZES = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48}
WIDTH = 3
SETTINGS = Settings(
    tokens=1200, batch_size=4, num_anchors=6, evaluations=2, chain_steps=WIDTH, learning_rate=3e-3
)
ARCHITECTURES = ("dflash", "dflare", "dspark", "dfly", "eagle3", "mtp")


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(make_model("llama"))


@pytest.fixture(scope="module")
def corpus(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Greedy text of the target, which runs in loops that a drafter can learn."""
    rng = np.random.default_rng(0)
    tokens = mx.array(rng.integers(0, VOCAB, (24, 4)), dtype=mx.int32)
    cache = target.new_cache()
    fed, whole = tokens, [tokens]
    for _ in range(36):
        fed = mx.argmax(target.forward(fed, cache, rows=1).logits, axis=-1).astype(mx.int32)
        whole.append(fed)
    texts: Any = mx.concatenate(whole, axis=1).tolist()
    corpus = Corpus(tmp_path_factory.mktemp("corpus"), "target")
    corpus.append([Rollout(tuple(text), 4, "other", False) for text in texts])
    return corpus


def make_trainer(
    target: Target,
    corpus: Corpus,
    folder: Path,
    architecture: str = "dspark",
    settings: Settings = SETTINGS,
    evaluate: Callable[[Drafter], float] = lambda drafter: 1.0,
) -> Trainer:
    ids = frequent_tokens((r.tokens for r in corpus), VOCAB, 64)
    vocabulary = Vocabulary(target, ids)
    config = new_config(
        architecture,  # type: ignore[arg-type]
        target,
        SIZES,
        Shape(1, WIDTH),
        mask_token_id=0,
        draft_vocab_size=len(ids),
    )
    taps = default_taps(target)
    return Trainer(
        new_drafter(config, target, vocabulary, 0),
        corpus,
        range(len(corpus) - 4),
        StateStore(target, corpus, taps, budget=10**8),
        (len(taps),) if architecture == "mtp" else tuple(range(len(taps))),
        vocabulary,
        evaluate,
        Checkpoints(folder),
        settings,
    )


def losses(trainer: Trainer) -> list[float]:
    seen: dict[int, Progress] = {}
    trainer.run(lambda progress: seen.update({progress.step: progress}))
    return [seen[step].loss for step in sorted(seen) if step]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_learns(
    target: Target, corpus: Corpus, tmp_path: Path, architecture: str
) -> None:
    # Texts that it was trained on: a random target's other texts have little in common with them.
    known = [HeldOut(corpus[i].tokens[:12], "other") for i in range(6)]

    def measure(drafter: Drafter) -> float:
        return accepted_length(target, drafter, known, width=WIDTH, max_tokens=20).length

    settings = replace(SETTINGS, tokens=40_000, evaluations=1)
    trainer = make_trainer(target, corpus, tmp_path, architecture, settings, measure)
    before = measure(trainer._drafter)
    seen = losses(trainer)
    assert seen[-1] < 0.8 * seen[0]
    best = Checkpoints(tmp_path).best_score
    assert best is not None
    assert best > before
    assert best > 1.3


@pytest.mark.parametrize("architecture", ["dspark", "eagle3"])
def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(
    target: Target, corpus: Corpus, tmp_path: Path, architecture: str
) -> None:
    whole = make_trainer(target, corpus, tmp_path / "whole", architecture)
    expected = losses(whole)

    first = make_trainer(target, corpus, tmp_path / "parts", architecture)

    def interrupt(progress: Progress) -> None:
        if progress.step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        first.run(interrupt)
    second = make_trainer(target, corpus, tmp_path / "parts", architecture)
    assert second.steps == 5
    rest = losses(second)
    np.testing.assert_allclose(rest[-4:], expected[-4:], rtol=1e-5)
    for name, weight in whole.best_weights().items():
        np.testing.assert_allclose(
            np.array(second.best_weights()[name]), np.array(weight), atol=1e-5, err_msg=name
        )


def test_a_run_that_is_killed_has_lost_little(
    target: Target, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localspec.train.trainer._SAVE_EVERY_S", 0.0)

    def kill(progress: Progress) -> None:
        if progress.step == 5:
            raise SystemError

    with pytest.raises(SystemError):
        make_trainer(target, corpus, tmp_path).run(kill)
    assert make_trainer(target, corpus, tmp_path).steps == 5


def test_ctrl_c_within_a_step_waits_for_its_end(
    target: Target, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = losses(make_trainer(target, corpus, tmp_path / "whole"))
    first = make_trainer(target, corpus, tmp_path / "parts")
    rate = Trainer._rate

    def interrupted(self: Trainer, done: float) -> float:
        if self.steps == 5:
            signal.raise_signal(signal.SIGINT)
        return rate(self, done)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_rate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            first.run()
    second = make_trainer(target, corpus, tmp_path / "parts")
    assert second.steps == 6
    np.testing.assert_allclose(losses(second)[-3:], expected[-3:], rtol=1e-5)


def test_a_resumed_run_is_as_long_as_it_was_to_be(
    target: Target, corpus: Corpus, tmp_path: Path
) -> None:
    def interrupt(progress: Progress) -> None:
        raise KeyboardInterrupt

    hour = replace(SETTINGS, tokens=None, seconds=3600.0)
    with pytest.raises(KeyboardInterrupt):
        make_trainer(target, corpus, tmp_path, settings=hour).run(interrupt)
    later = make_trainer(target, corpus, tmp_path, settings=replace(hour, seconds=7200.0))
    assert later._settings.seconds == 3600.0


@pytest.mark.parametrize("change", [{"seed": 1}, {}])
def test_another_runs_checkpoint_is_refused(
    target: Target, corpus: Corpus, tmp_path: Path, change: dict[str, int]
) -> None:
    make_trainer(target, corpus, tmp_path, settings=replace(SETTINGS, tokens=150)).run()
    with pytest.raises(TrainingError):
        make_trainer(
            target,
            corpus,
            tmp_path,
            architecture="dspark" if change else "dfly",
            settings=replace(SETTINGS, **change),  # type: ignore[arg-type]
        )


def test_what_is_not_finite_stops_the_run_and_the_last_good_state_stays(
    target: Target, corpus: Corpus, tmp_path: Path
) -> None:
    trainer = make_trainer(target, corpus, tmp_path)
    good: dict[str, Any] = {}

    def spoil(progress: Progress) -> None:
        if progress.step == 6:
            trainer._save(score=None)
            good.update(Checkpoints(tmp_path).latest()[0])  # type: ignore[index]
            trainer._drafter.fc.weight = trainer._drafter.fc.weight * float("nan")  # type: ignore[union-attr]

    with pytest.raises(TrainingError, match="not finite at step 6"):
        trainer.run(spoil)
    found = Checkpoints(tmp_path).latest()
    assert found is not None
    assert found[1]["step"] == 6
    assert all(np.isfinite(np.array(array)).all() for array in found[0].values())
    assert found[0].keys() == good.keys()


def test_the_best_checkpoint_outlives_clean_up(tmp_path: Path) -> None:
    """The newest ones alone used to be kept, so that "best" led nowhere (a published fault)."""
    kept = Checkpoints(tmp_path)
    for step, score in enumerate([1.0, 3.0, 2.0, None, 2.5, 1.5], 1):
        kept.save(step, {"x": mx.array([float(step)])}, {"step": step}, score)
        best = Checkpoints(tmp_path).best()
        assert best is not None
        assert best[0]["x"].item() == min(step, 2)
        latest = Checkpoints(tmp_path).latest()
        assert latest is not None
        assert latest[1] == {"step": step}
    assert len(list(tmp_path.glob("step-*"))) == 2
    assert Checkpoints(tmp_path).best_score == 3.0


@pytest.mark.parametrize("role", ["best", "latest"])
def test_a_pointer_that_leads_nowhere_is_an_error(tmp_path: Path, role: str) -> None:
    kept = Checkpoints(tmp_path)
    kept.save(1, {"x": mx.array([1.0])}, {}, 2.0)
    kept.save(2, {"x": mx.array([1.0])}, {}, 1.0)
    shutil.rmtree(tmp_path / json.loads((tmp_path / "state.json").read_text())[role])
    with pytest.raises(TrainingError, match=f"the {role} checkpoint"):
        Checkpoints(tmp_path)


@pytest.mark.parametrize("failing", ["save_safetensors", "write_atomically"])
def test_a_full_disk_keeps_the_checkpoints_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    kept = Checkpoints(tmp_path)
    kept.save(1, {"x": mx.array([1.0])}, {"step": 1}, 1.0)

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    where = checkpoints.mx if failing == "save_safetensors" else checkpoints
    monkeypatch.setattr(where, failing, full)
    with pytest.raises(TrainingError, match="No space left"):
        kept.save(2, {"x": mx.array([2.0])}, {"step": 2}, 2.0)
    monkeypatch.undo()
    found = Checkpoints(tmp_path).best()
    assert found is not None
    assert found[1] == {"step": 1}
    assert not list(tmp_path.glob(".step-*"))


def test_a_pass_takes_every_sequence_once() -> None:
    rollouts = [Rollout(tuple(range(length)), 1, "other", False) for length in range(10, 34)]
    order = Order(rollouts, batch_size=4, seed=1)
    first = [index for step in range(6) for index in order.at(step)]
    assert sorted(first) == list(range(24))
    assert first != [index for step in range(6, 12) for index in order.at(step)]
    assert Order(rollouts, batch_size=4, seed=1).at(9) == order.at(9)


def test_anchors_lie_where_a_draft_can_follow() -> None:
    rollouts = [Rollout(tuple(range(12)), 5, "other", False), Rollout((1, 2, 3), 2, "other", True)]
    states = [np.zeros((len(r.tokens), 3, 4), dtype=np.float16) for r in rollouts]
    batch = make_batch(rollouts, states, num_anchors=5, reads=(0, 1), key=(1, 2))
    anchors: Any = batch.anchors.tolist()
    assert len(set(anchors[0])) == 5
    assert all(4 <= anchor <= 10 for anchor in anchors[0])
    # The answer is one token long: the last prompt token is the only anchor.
    assert set(anchors[1]) == {1}
    assert batch.taps.shape == (2, 64, 2, 4)


def test_states_are_kept_within_the_budget(target: Target, corpus: Corpus, tmp_path: Path) -> None:
    small = Corpus(tmp_path, "target")
    small.append([corpus[0], corpus[1]])
    taps = default_taps(target)
    size = len(corpus[0].tokens) * (len(taps) + 1) * target.hidden_size * 2 + 200
    store = StateStore(target, small, taps, budget=size)
    first = store.get([0, 1, 0])
    assert len(list(tmp_path.glob("states-*/*.npy"))) == 1
    np.testing.assert_array_equal(first[0], first[2])
    again = StateStore(target, small, taps, budget=size).get([1, 0])
    np.testing.assert_allclose(again[1], first[0], atol=2e-2, rtol=2e-2)
    tokens = mx.array([small[1].tokens])
    layers = (*taps, target.num_layers)
    direct = target.forward(tokens, target.new_cache(), taps=layers).taps
    np.testing.assert_allclose(again[0], np.array(direct)[0], atol=2e-2, rtol=2e-2)
