"""The training loop: steps, averaged weights, evaluation, checkpoints, and how a run ends.

A step is a function of the seed, its number and the corpus; a resumed run goes on as if it had not been
interrupted. How far the learning rate has come is counted in text when the run's length is given in
tokens, and in training time when it is given in minutes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optimizers
from mlx.utils import tree_flatten, tree_map, tree_unflatten

from localspec.errors import TrainingError
from localspec.models.block import BlockDrafter
from localspec.models.chain import ChainDrafter
from localspec.train.batches import Batch, Order, make_batch
from localspec.train.block import block_loss
from localspec.train.chain import chain_loss
from localspec.train.checkpoints import Checkpoints
from localspec.train.corpus import Corpus
from localspec.train.interrupts import uninterrupted
from localspec.train.states import StateStore
from localspec.train.vocabulary import Vocabulary

_MEASURING_SHARE = 0.2
_SAVE_EVERY_S = 600.0
"""Of training: what a power cut may cost."""

Drafter = BlockDrafter | ChainDrafter
Evaluate = Callable[[Drafter], float]


@dataclass(frozen=True, slots=True)
class Settings:
    """How a run trains.

    Attributes:
        seed: decides every choice.
        tokens: of answered text to train on, repeats counted; None: `seconds` rules.
        seconds: of training, evaluation included.
        batch_size: sequences a step.
        num_anchors: blocks a sequence.
        learning_rate: the highest.
        warm_up: share of the run in which the rate rises.
        average: how much of the averaged weights one step keeps, in the long run.
        block_decay: of a block's later drafts, as `block_loss` counts them.
        chain_steps: of the unrolled chain, when it has grown.
        grown_by: share of the run in which it grows; 0: it is of full length from the start.
        evaluations: of the held-out prompts in the whole run, beside the one before the first step;
            fewer where they would take more than a fifth of the time.
    """

    seed: int = 0
    tokens: int | None = None
    seconds: float | None = None
    batch_size: int = 4
    num_anchors: int = 48
    learning_rate: float = 1e-3
    warm_up: float = 0.04
    average: float = 0.998
    block_decay: float = 4.0
    chain_steps: int = 4
    grown_by: float = 0.8
    evaluations: int = 6


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run is.

    Attributes:
        step: steps done.
        tokens: of answered text that steps were made from.
        loss: a running mean.
        agreement: share of first drafts that are the target's likeliest token, a running mean.
        score: the latest held-out accepted length; None: none yet.
        done: share of the run.
        seconds: of training so far, interruptions not counted.
    """

    step: int
    tokens: int
    loss: float
    agreement: float
    score: float | None
    done: float
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float:
        return self.seconds * (1 - self.done) / self.done if self.done else math.inf


class Trainer:
    """Trains a drafter bound to its target.

    Args:
        drafter: with weights to start from, in float32; holds the newest weights.
        corpus: the target's text.
        indices: the rollouts of it to train on.
        states: of the corpus; its kinds are the drafter's taps and the last state.
        reads: which kinds of states are the drafter's taps, in order.
        vocabulary: what the loss runs over.
        evaluate: held-out accepted length of a drafter.
        checkpoints: of this run.
        settings: how.

    Raises:
        TrainingError: a checkpoint that does not fit the run.
    """

    def __init__(
        self,
        drafter: Drafter,
        corpus: Corpus,
        indices: Sequence[int],
        states: StateStore,
        reads: tuple[int, ...],
        vocabulary: Vocabulary,
        evaluate: Evaluate,
        checkpoints: Checkpoints,
        settings: Settings,
    ) -> None:
        self._drafter = drafter
        self._corpus = corpus
        self._indices = indices
        self._states = states
        self._reads = reads
        self._vocabulary = vocabulary
        self._evaluate = evaluate
        self._checkpoints = checkpoints
        self._settings = settings
        self._order = Order([corpus[i] for i in indices], settings.batch_size, settings.seed)
        self._optimizer = optimizers.AdamW(
            learning_rate=settings.learning_rate, betas=[0.9, 0.98], weight_decay=0.01
        )
        self._optimizer.init(drafter.trainable_parameters())
        self._average = tree_map(mx.array, drafter.trainable_parameters())
        self._step, self._tokens, self._seconds, self._measuring = 0, 0, 0.0, 0.0
        self._loss, self._agreement = 0.0, 0.0
        self._curve: list[tuple[int, float]] = []
        self._resume()
        self._run_step = self._make_step()

    @property
    def steps(self) -> int:
        return self._step

    @property
    def tokens(self) -> int:
        """Of answered text that steps were made from."""
        return self._tokens

    @property
    def curve(self) -> list[tuple[int, float]]:
        """Held-out accepted length against tokens trained on, from before the first step on."""
        return list(self._curve)

    def best_weights(self) -> dict[str, mx.array]:
        """By name, the averaged weights of the checkpoint that drafted best, and what is not trained.

        Raises:
            TrainingError: there is no such checkpoint.
        """
        found = self._checkpoints.best()
        if found is None:
            raise TrainingError("no checkpoint was measured")
        weights: dict[str, mx.array] = dict(_flat(self._drafter.parameters()))
        prefix = "average."
        for name, array in found[0].items():
            if name.startswith(prefix):
                weights[name.removeprefix(prefix)] = array
        return weights

    def run(self, report: Callable[[Progress], None] = lambda progress: None) -> None:
        """Train to the end of the run, or until interrupted; either way the state is saved.

        Raises:
            TrainingError: losses or gradients that are not finite; the last good state stays.
        """
        started, saved = time.perf_counter() - self._seconds, self._seconds
        try:
            while (done := self._done()) < 1:
                if self._evaluation_due(done):
                    self._save(score=self._measure())
                    self._measuring += time.perf_counter() - started - self._seconds
                    report(self._progress())
                with uninterrupted():
                    self._train_one(done)
                self._seconds = time.perf_counter() - started
                if self._seconds - saved >= _SAVE_EVERY_S:
                    self._save(score=None)
                    saved = self._seconds
                report(self._progress())
        except KeyboardInterrupt:
            self._save(score=None)
            raise
        self._save(score=self._measure())
        report(self._progress())

    def _done(self) -> float:
        settings = self._settings
        if settings.tokens is not None:
            return self._tokens / settings.tokens
        assert settings.seconds is not None
        return self._seconds / settings.seconds

    def _evaluation_due(self, done: float) -> bool:
        if not self._curve:
            return True
        affordable = self._measuring <= _MEASURING_SHARE * self._seconds
        return affordable and done >= len(self._curve) / self._settings.evaluations

    def _progress(self) -> Progress:
        return Progress(
            self._step,
            self._tokens,
            self._loss,
            self._agreement,
            self._curve[-1][1] if self._curve else None,
            min(1.0, self._done()),
            self._seconds,
        )

    def _train_one(self, done: float) -> None:
        indices = [self._indices[place] for place in self._order.at(self._step)]
        rollouts = [self._corpus[index] for index in indices]
        batch = make_batch(
            rollouts,
            self._states.get(indices),
            num_anchors=self._settings.num_anchors,
            reads=self._reads,
            key=(self._settings.seed, self._step),
        )
        self._optimizer.learning_rate = mx.array(self._rate(done))
        keep = mx.array(min(self._settings.average, (1 + self._step) / (10 + self._step)))
        loss, agreement, finite = self._run_step(
            batch.tokens,
            batch.lengths,
            batch.anchors,
            batch.chained,
            batch.taps,
            batch.final,
            keep,
            num_steps=self._chain_steps(done),
        )
        mx.eval(loss, agreement, finite, self._drafter, self._optimizer.state, self._average)
        if not finite.item():
            raise TrainingError(
                f"the loss or a gradient is not finite at step {self._step}; the last checkpoint "
                "holds the last good state"
            )
        weight = max(0.02, 1 / (1 + self._step))
        self._loss += weight * (_number(loss) - self._loss)
        self._agreement += weight * (_number(agreement) - self._agreement)
        self._step += 1
        self._tokens += sum(rollout.num_answered for rollout in rollouts)

    def _rate(self, done: float) -> float:
        settings = self._settings
        if done < settings.warm_up:
            return settings.learning_rate * (done + 1e-3) / settings.warm_up
        share = (done - settings.warm_up) / (1 - settings.warm_up)
        return settings.learning_rate * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * share)))

    def _chain_steps(self, done: float) -> int:
        """The chain grows: its first draft is worth most, and later ones learn little before it."""
        most = self._settings.chain_steps if isinstance(self._drafter, ChainDrafter) else 1
        share = done / self._settings.grown_by if self._settings.grown_by else 1.0
        return min(most, 1 + int(share * most))

    def _make_step(self) -> Callable[..., tuple[mx.array, mx.array, mx.array]]:
        drafter, optimizer = self._drafter, self._optimizer
        held = {"average": self._average}
        state = [drafter.state, optimizer.state, held]

        def loss_of(batch: Batch, num_steps: int) -> tuple[mx.array, mx.array]:
            if isinstance(drafter, BlockDrafter):
                return block_loss(drafter, batch, self._vocabulary, self._settings.block_decay)
            return chain_loss(drafter, batch, self._vocabulary, num_steps)

        loss_and_gradients = nn.value_and_grad(drafter, loss_of)

        def step(*inputs: mx.array, num_steps: int) -> tuple[mx.array, mx.array, mx.array]:
            *arrays, keep = inputs
            (loss, agreement), gradients = loss_and_gradients(Batch(*arrays), num_steps)
            gradients, norm = optimizers.clip_grad_norm(gradients, 1.0)
            finite = mx.isfinite(loss) & mx.isfinite(norm)
            optimizer.update(drafter, gradients)
            held["average"] = tree_map(
                lambda old, new: keep * old + (1 - keep) * new,
                held["average"],
                drafter.trainable_parameters(),
            )
            return loss, agreement, finite

        on_cpu = mx.default_device() == mx.Device(mx.cpu)
        # For the CPU a C++ compiler would build each fused graph at run time: minutes for 5 %.
        run_step = step if on_cpu else mx.compile(step, inputs=state, outputs=state)

        def run(*inputs: mx.array, num_steps: int) -> tuple[mx.array, mx.array, mx.array]:
            results: tuple[mx.array, mx.array, mx.array] = run_step(*inputs, num_steps=num_steps)
            self._average = held["average"]
            return results

        return run

    def _measure(self) -> float:
        """Held-out accepted length of the averaged weights."""
        own = tree_map(mx.array, self._drafter.trainable_parameters())
        self._drafter.update(self._average)
        try:
            score = self._evaluate(self._drafter)
        finally:
            self._drafter.update(own)
        self._curve.append((self._tokens, score))
        return score

    def _save(self, score: float | None) -> None:
        trees = {
            "drafter": self._drafter.trainable_parameters(),
            "average": self._average,
            "optimizer": self._optimizer.state,
        }
        arrays = {f"{key}.{name}": a for key, tree in trees.items() for name, a in _flat(tree)}
        self._checkpoints.save(self._step, arrays, self._values(), score)

    def _values(self) -> dict[str, Any]:
        return {
            "step": self._step,
            "tokens": self._tokens,
            "seconds": self._seconds,
            "loss": self._loss,
            "agreement": self._agreement,
            "curve": self._curve,
            "seed": self._settings.seed,
            "duration": self._settings.seconds,
            "corpus": self._corpus.digest,
            "num_shards": self._corpus.num_shards,
        }

    def _resume(self) -> None:
        found = self._checkpoints.latest()
        if found is None:
            return
        arrays, values = found
        if values["corpus"] != self._corpus.digest or values["seed"] != self._settings.seed:
            raise TrainingError(
                "the checkpoint is of another corpus or seed; resume with the same, or start anew"
            )
        groups: dict[str, list[tuple[str, mx.array]]] = {
            "drafter": [],
            "average": [],
            "optimizer": [],
        }
        for name, array in arrays.items():
            group, _, rest = name.partition(".")
            groups[group].append((rest, array))
        expected = {name: array.shape for name, array in _flat(self._average)}
        if {name: array.shape for name, array in groups["drafter"]} != expected:
            raise TrainingError("the checkpoint is of a drafter of another shape")
        self._drafter.update(tree_unflatten(groups["drafter"]))
        self._average = tree_unflatten(groups["average"])
        self._optimizer.state = tree_unflatten(groups["optimizer"])
        if self._settings.seconds is not None and values.get("duration"):
            # What is left of this command's time would stretch the learning rate's schedule.
            self._settings = replace(self._settings, seconds=float(values["duration"]))
        self._step, self._tokens = int(values["step"]), int(values["tokens"])
        self._seconds = float(values["seconds"])
        self._loss, self._agreement = float(values["loss"]), float(values["agreement"])
        self._curve = [(int(tokens), float(score)) for tokens, score in values["curve"]]


def _flat(tree: Any) -> list[tuple[str, mx.array]]:
    return cast(list[tuple[str, mx.array]], tree_flatten(tree))


def _number(scalar: mx.array) -> float:
    value = scalar.item()
    assert isinstance(value, float)
    return value
