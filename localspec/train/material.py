"""What a run trains from: the target, its text, and which of it is held out."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from localspec import catalog
from localspec.engine.loading import load_target
from localspec.engine.target import Target
from localspec.errors import TrainingError
from localspec.folders import cache_dir
from localspec.models.config import Architecture
from localspec.prompts import Prompt, read_prompts
from localspec.provenance import CHECKPOINTS, fingerprint
from localspec.sessions import default_path
from localspec.text.tokenizer import load_tokenizer, stop_token_ids
from localspec.train.checkpoints import Checkpoints
from localspec.train.corpus import Corpus, Rollout
from localspec.train.evaluation import Accepted, HeldOut, accepted_length
from localspec.train.origin import Origin, read_origin
from localspec.train.plan import Plan
from localspec.train.prompts import CHATS, read_chats, split_held_out
from localspec.train.rollouts import SELF, ChatWriter, RolloutWriter
from localspec.train.start import LOSS_VOCABULARY, REDUCED_VOCABULARY, default_taps
from localspec.train.states import StateStore
from localspec.train.trainer import Drafter
from localspec.train.vocabulary import Vocabulary, frequent_tokens

_WRITING_SHARE = 0.35
_OWN_SHARE = 0.5
_STATES_SHARE_OF_DISK = 0.25
_MOST_STATES = 24 * 10**9
_TOKENS_A_PROMPT = 64
_PROMPTS_WHILE_TRAINING = 8

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Material:
    """A target and its text.

    Attributes:
        target: loaded.
        fingerprint: of the target.
        settings: the target's config.json.
        corpus: the target's text.
        training: indices of the rollouts to train on.
        held_out: prompts that none of them is near to.
        stop_ids: tokens that end an answer.
        mask_token_id: fills a block's slots.
        states: the target's, of the corpus: those of its taps, in order, and the last one.
        origin: the drafter to go on from; None: a new one is made.
    """

    target: Target
    fingerprint: str
    settings: dict[str, Any]
    corpus: Corpus
    training: list[int]
    held_out: list[HeldOut]
    stop_ids: frozenset[int]
    mask_token_id: int
    states: StateStore
    origin: Origin | None = None

    @property
    def num_tokens(self) -> int:
        """Answered tokens to train on."""
        return sum(self.corpus[i].num_answered for i in self.training)

    def vocabulary(self, architecture: Architecture) -> Vocabulary:
        """What the loss of an architecture runs over."""
        answers = (self.corpus[i].tokens[self.corpus[i].prompt_length :] for i in self.training)
        if self.origin is not None and self.origin.reduced_ids is not None:
            return Vocabulary(self.target, self.origin.reduced_ids)
        size = REDUCED_VOCABULARY if architecture == "eagle3" else LOSS_VOCABULARY
        return Vocabulary(self.target, frequent_tokens(answers, self.target.vocab_size, size))

    def measure(self, drafter: Drafter, width: int, *, quickly: bool = False) -> Accepted:
        """Held-out accepted length of a bound drafter, greedy.

        Args:
            quickly: of some of the prompts.
        """
        step = max(1, len(self.held_out) // _PROMPTS_WHILE_TRAINING) if quickly else 1
        return accepted_length(
            self.target,
            drafter,
            self.held_out[::step],
            width=width,
            max_tokens=_TOKENS_A_PROMPT,
            stop_ids=self.stop_ids,
        )


def gather(plan: Plan, started: float, notify: Notify, wrote: Callable[[int], None]) -> Material:
    """Load the target, and have it write what text the plan asks for.

    Args:
        started: when the run did, of `time.monotonic`.
        notify, wrote: as `run.train` has them.

    Raises:
        TrainingError: there is too little text, or it is broken.
    """
    prompts = [prompt for source in plan.data for prompt in _read(source)]
    folder = catalog.resolve_model(plan.model, notify=notify)
    notify(f"loading {plan.model}")
    target, tokenizer = load_target(folder), load_tokenizer(folder)
    stop_ids = stop_token_ids(tokenizer, folder)
    mark = fingerprint(folder)
    # Before hours go into text for a drafter that there is not.
    origin = None if plan.origin is None else read_origin(plan.origin, plan.architecture, target)
    if origin is not None and origin.card.target_fingerprint != mark:
        notify(f"{plan.origin} was trained for another target")
    num_shards = _shards_begun_with(plan)
    plan.begin()
    texts = _corpus_folder(plan, mark)
    corpus = Corpus(texts, mark, num_shards)
    if num_shards is not None and corpus.num_shards < num_shards:
        raise TrainingError(
            f"the text that this run began with is not in {texts}: its data or model have changed, or "
            "the cache was cleared; start anew in another folder"
        )

    def enough(answered: int) -> bool:
        wrote(answered)
        if plan.tokens is not None:
            return answered >= plan.tokens
        assert plan.minutes is not None
        return time.monotonic() - started >= plan.minutes * 60 * _WRITING_SHARE

    writer = ChatWriter(tokenizer)
    if num_shards is None and not (plan.tokens and corpus.num_answered >= plan.tokens):
        notify("the target writes text to train on")
        # In an order that mixes the kinds and is the same every time.
        mixed = sorted(prompts, key=lambda prompt: hashlib.sha256(prompt.text.encode()).digest())
        own_share = 0.0 if SELF not in plan.data else _OWN_SHARE if prompts else 1.0
        RolloutWriter(target, writer, corpus, stop_ids=stop_ids, seed=plan.seed).write(
            mixed, own_share=own_share, enough=enough
        )
    if num_shards is None and plan.tokens is not None:
        corpus = Corpus(texts, mark, corpus.shards_with(plan.tokens))
    training, held_out = _split(list(corpus), writer)
    if not training or not held_out:
        raise TrainingError(
            "there is too little text to train on; give more prompts, --data self, or more minutes "
            "or tokens"
        )
    return Material(
        target=target,
        fingerprint=mark,
        settings=json.loads((folder / "config.json").read_text(encoding="utf-8")),
        corpus=corpus,
        training=training,
        held_out=held_out,
        stop_ids=stop_ids,
        mask_token_id=_mask_token(tokenizer, corpus, target),
        states=StateStore(
            target, corpus, default_taps(target), budget=_states_budget(corpus.folder)
        ),
        origin=origin,
    )


def _read(source: str) -> list[Prompt]:
    if source == SELF:
        return []
    return read_chats(default_path()) if source == CHATS else read_prompts(Path(source))


def _shards_begun_with(plan: Plan) -> int | None:
    """Of the corpus that a run to go on with reads; another run may have made it longer since."""
    found = Checkpoints(plan.output / CHECKPOINTS).latest() if plan.resume else None
    return None if found is None else int(found[1]["num_shards"])


def _corpus_folder(plan: Plan, mark: str) -> Path:
    """One for every target and set of data, shared by the architectures."""
    digest = hashlib.sha256(mark.encode())
    for source in sorted(plan.data):
        # Chats grow, and the corpus with them.
        named = source in (SELF, CHATS)
        digest.update(source.encode() if named else Path(source).read_bytes())
    return cache_dir() / "corpora" / digest.hexdigest()[:16]


def _split(rollouts: Sequence[Rollout], writer: ChatWriter) -> tuple[list[int], list[HeldOut]]:
    """Indices of the rollouts to train on, and prompts that none of them is near to."""
    prompts = [Prompt(writer.decode(r.tokens[: r.prompt_length]), r.kind) for r in rollouts]
    kept, held_out = split_held_out(prompts)
    texts = {prompt.text for prompt in kept}
    ids = {p.text: r.tokens[: r.prompt_length] for p, r in zip(prompts, rollouts, strict=True)}
    return (
        [index for index, prompt in enumerate(prompts) if prompt.text in texts],
        [HeldOut(ids[prompt.text], prompt.kind) for prompt in held_out],
    )


def _mask_token(tokenizer: Any, corpus: Corpus, target: Target) -> int:
    """The token that fills a block's slots: one that the target never says, if it can be special."""
    counts = np.zeros(target.vocab_size, dtype=np.int64)
    for rollout in corpus:
        np.add.at(counts, np.array(rollout.tokens, dtype=np.int64), 1)
    special = sorted(getattr(tokenizer, "all_special_ids", []) or [])
    unsaid = [token for token in special if token < len(counts) and not counts[token]]
    return int(unsaid[-1]) if unsaid else int(np.argmin(counts))


def _states_budget(folder: Path) -> int:
    return min(_MOST_STATES, int(shutil.disk_usage(folder).free * _STATES_SHARE_OF_DISK))
