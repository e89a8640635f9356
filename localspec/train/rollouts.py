"""The target writes the corpus: answers to prompts, and prompts of its own, many at a time.

Batches are mlx-lm's (continuous batching). Every rollout draws from numbers of its own, so what is
written does not depend on which others share its batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

import mlx.core as mx
from mlx_lm.generate import BatchGenerator

from localspec.engine.sampling import Uniforms, sample
from localspec.engine.target import Target
from localspec.errors import TrainingError, UsageError, reason
from localspec.prompts import Prompt
from localspec.text.chat import render_chat
from localspec.train.corpus import Corpus, Rollout

SELF = "self"
_BATCH = 64
_JOINING = 12
_PREFILL = 6
_SHARD = 64
_MAX_ANSWER = 256
_MAX_WRITTEN_PROMPT = 192
_MAX_PROMPT = 384

Enough = Callable[[int], bool]


class Writer(Protocol):
    """What turns text into a target's tokens and back."""

    def encode(self, text: str) -> list[int]:
        """A user's text as the whole prompt, ids of the template included."""
        ...

    def opening(self) -> list[int]:
        """Ids up to where the user's text begins."""
        ...

    def decode(self, tokens: Sequence[int]) -> str: ...


class ChatWriter:
    """A tokenizer with a chat template.

    Args:
        tokenizer: as `localspec.text.tokenizer` loads it.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        return render_chat(self._tokenizer, [{"role": "user", "content": text}])

    def opening(self) -> list[int]:
        # Texts of any two beginnings: what all prompts share comes before the user's text.
        first, *rest = [self.encode(text) for text in ("a", "1", "?", *self._some_words())]
        shared = [
            next(i for i, pair in enumerate(zip(first, other, strict=False)) if len({*pair}) > 1)
            for other in rest
            if other[: len(first)] != first[: len(other)]
        ]
        length = min(shared, default=0)
        if not length:
            raise TrainingError("the chat template has no user turn that the target could write")
        return first[:length]

    def _some_words(self) -> list[str]:
        size = len(self._tokenizer.get_vocab())
        words = [self.decode([token]).strip() for token in range(0, size, max(1, size // 32))]
        return [word for word in words if word.isalnum()]

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))


@dataclass(slots=True)
class _Job:
    """One sequence under way. A job that writes a prompt has the kind None."""

    prompt: list[int]
    kind: str | None
    sampled: bool
    tokens: list[int] = field(default_factory=list)
    ended: bool = False

    @property
    def limit(self) -> int:
        return _MAX_WRITTEN_PROMPT if self.kind is None else _MAX_ANSWER

    @property
    def key(self) -> tuple[tuple[int, ...], bool]:
        return tuple(self.prompt), self.sampled


class RolloutWriter:
    """Fills a corpus.

    Args:
        target: writes.
        writer: its tokenizer.
        corpus: rollouts that it holds are not written again.
        stop_ids: tokens that end an answer.
        seed: decides every draw.
    """

    def __init__(
        self,
        target: Target,
        writer: Writer,
        corpus: Corpus,
        *,
        stop_ids: frozenset[int],
        seed: int = 0,
    ) -> None:
        self._target = target
        self._writer = writer
        self._corpus = corpus
        self._stop_ids = stop_ids
        self._seed = seed
        self._done = {(r.tokens[: r.prompt_length], r.sampled) for r in corpus}
        self._num_written = sum(r.kind == SELF for r in corpus)

    def write(
        self,
        prompts: Sequence[Prompt],
        *,
        own_share: float,
        enough: Enough,
    ) -> None:
        """Answer prompts, each once greedily and once sampled, until there is enough.

        Args:
            prompts: to be answered, in this order; may be empty.
            own_share: of the rollouts, how many answer prompts that the target wrote itself; unless
                it is 0, all do once the prompts are used up.
            enough: asked after every shard, with the answered tokens that the corpus holds.

        Raises:
            TrainingError: a shard cannot be written, with the reason; finished shards stay.
        """
        finished: list[Rollout] = []
        try:
            for rollout in self._run(self._jobs(prompts, own_share)):
                finished.append(rollout)
                if len(finished) == _SHARD:
                    self._flush(finished)
                    if enough(self._corpus.num_answered):
                        return
        finally:
            self._flush(finished)

    def _flush(self, finished: list[Rollout]) -> None:
        if not finished:
            return
        try:
            self._corpus.append(finished)
        except OSError as error:
            raise TrainingError(
                f"the corpus in {self._corpus.folder} cannot be written: {reason(error)}; what it held "
                "stays"
            ) from error
        finished.clear()

    def _jobs(self, prompts: Sequence[Prompt], own_share: float) -> Iterator[_Job]:
        given = [
            _Job(ids, prompt.kind, sampled)
            for prompt in prompts
            if len(ids := self._writer.encode(prompt.text)) <= _MAX_PROMPT
            for sampled in (False, True)
        ]
        queue = iter([job for job in given if job.key not in self._done])
        credit, opening = 0.0, self._writer.opening() if own_share else []
        while True:
            credit += own_share
            job = next(queue, None) if credit < 1 else None
            if job is None:
                credit = max(0.0, credit - 1)
                if not opening:
                    return
                job = _Job(list(opening), None, True)
            yield job

    def _run(self, jobs: Iterator[_Job]) -> Iterator[Rollout]:
        batch = BatchGenerator(
            self._target.model, completion_batch_size=_BATCH, prefill_batch_size=_PREFILL
        )
        running: dict[int, _Job] = {}
        ended: list[int] = []
        waiting: list[_Job] = []
        try:
            while True:
                # Whoever leaves or joins makes all caches move, so they do it many at a time.
                if len(running) - len(ended) <= _BATCH - _JOINING:
                    batch.remove(ended)
                    for uid in ended:
                        del running[uid]
                    ended.clear()
                    places = _BATCH - len(running)
                    joining = [waiting.pop() for _ in range(min(places, len(waiting)))]
                    joining += islice(jobs, places - len(joining))
                    # Prompts of like length are read together, so that little of it is padding.
                    for job in sorted(joining, key=lambda job: len(job.prompt)):
                        running[self._insert(batch, job)] = job
                if not running:
                    return
                for response in batch.next_generated():
                    job = running[response.uid]
                    if job.ended:
                        continue
                    job.tokens.append(response.token)
                    if response.token not in self._stop_ids and len(job.tokens) < job.limit:
                        continue
                    job.ended = True
                    ended.append(response.uid)
                    if job.kind is None:
                        waiting += self._answers(job)
                    else:
                        yield Rollout(
                            (*job.prompt, *job.tokens), len(job.prompt), job.kind, job.sampled
                        )
        finally:
            batch.close()

    def _insert(self, batch: BatchGenerator, job: _Job) -> int:
        # Ends are found here, not by the generator, which would move the caches for each.
        (uid,) = batch.insert(
            [job.prompt],
            max_tokens=[2**30],
            samplers=[self._sampler(job) if job.sampled else _greedy],
        )
        return int(uid)

    def _sampler(self, job: _Job) -> Callable[[mx.array], mx.array]:
        if job.kind is None:
            # All prompts of the target's own open alike; their number tells them apart.
            seed = f"{self._seed} own {self._num_written}"
            self._num_written += 1
        else:
            seed = f"{self._seed} {job.prompt}"
        uniforms = Uniforms(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "little"))
        position = 0

        def draw(log_probabilities: mx.array) -> mx.array:
            nonlocal position
            uniform = uniforms.at("token", position, 1)
            position += 1
            return sample(mx.exp(log_probabilities.astype(mx.float32)), uniform)

        return draw

    def _answers(self, job: _Job) -> list[_Job]:
        """Jobs that answer a prompt that the target wrote; none if the prompt is no good."""
        if job.tokens[-1] not in self._stop_ids:
            return []
        text = self._writer.decode(job.tokens[:-1]).strip()
        if not text:
            return []
        try:
            ids = self._writer.encode(text)
        except UsageError:
            return []
        # Greedy and sampled answers in turns.
        answer = _Job(ids, SELF, bool(self._num_written % 2))
        if len(ids) > _MAX_PROMPT or answer.key in self._done:
            return []
        self._done.add(answer.key)
        return [answer]


def _greedy(log_probabilities: mx.array) -> mx.array:
    return mx.argmax(log_probabilities, axis=-1)
