"""A whole training run: corpus, drafter, training, and the drafter's folder at the end."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from localspec import catalog
from localspec.engine.loading import load_target
from localspec.engine.precision import to_float32
from localspec.engine.target import Target
from localspec.errors import TrainingError, UsageError
from localspec.models import load as drafters
from localspec.models.config import Architecture, DrafterConfig, QuantizationConfig
from localspec.provenance import fingerprint
from localspec.sessions import default_path
from localspec.text.tokenizer import load_tokenizer, stop_token_ids
from localspec.train.card import Card
from localspec.train.chain import STEP_DECAY
from localspec.train.checkpoints import Checkpoints
from localspec.train.corpus import Corpus, Rollout
from localspec.train.evaluation import Accepted, HeldOut, accepted_length
from localspec.train.prompts import CHATS, Prompt, read_chats, read_prompts, split_held_out
from localspec.train.rollouts import SELF, ChatWriter, RolloutWriter
from localspec.train.start import (
    LOSS_VOCABULARY,
    REDUCED_VOCABULARY,
    Shape,
    default_shape,
    default_taps,
    new_config,
    new_drafter,
)
from localspec.train.states import StateStore
from localspec.train.trainer import Drafter, Progress, Settings, Trainer
from localspec.train.vocabulary import Vocabulary, frequent_tokens

_WRITING_SHARE = 0.35
_PASSES = 4
_OWN_SHARE = 0.5
_STATES_SHARE_OF_DISK = 0.25
_MOST_STATES = 24 * 10**9
_TOKENS_A_PROMPT = 64
_PROMPTS_WHILE_TRAINING = 12
_CHECKPOINTS = "checkpoints"
_QUANTIZATION = QuantizationConfig(bits=8)

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to train.

    Attributes:
        architecture: of the drafter.
        model: the target's name.
        output: the drafter's folder; checkpoints lie beside the drafter in it.
        data: `self`, `chats`, files of prompts, or several of these.
        minutes: of the whole run, writing text included; or
        tokens: of the target's text, each trained on several times.
        num_layers, width: of the drafter; None: from the target's size.
        resume: go on with the run in `output`.
        seed: decides every choice.
    """

    architecture: Architecture
    model: str
    output: Path
    data: tuple[str, ...] = (SELF,)
    minutes: float | None = None
    tokens: int | None = None
    num_layers: int | None = None
    width: int | None = None
    resume: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.minutes is None) == (self.tokens is None):
            raise UsageError("give either minutes or tokens")
        for name in ("minutes", "tokens", "num_layers", "width"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"{name} must be more than 0, not {value}")
        if self.architecture in ("eagle3", "mtp") and self.num_layers not in (None, 1):
            raise UsageError(f"{self.architecture} drafters have one layer")


def train(
    plan: Plan,
    *,
    notify: Notify = lambda note: None,
    wrote: Callable[[int], None] = lambda answered: None,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Card:
    """Run a plan to its end.

    Args:
        notify: told what begins.
        wrote: told how many tokens the target has answered so far.
        report: told where training is, after every step.

    Raises:
        UsageError: the folder is taken, or holds no run to go on with.
        TrainingError: why the run cannot go on.
        KeyboardInterrupt: after the state was saved.
    """
    started = time.monotonic()
    _check_output(plan)
    prompts = [prompt for source in plan.data for prompt in _read(source)]
    folder = catalog.resolve_model(plan.model, notify=notify)
    notify(f"loading {plan.model}")
    target, tokenizer = load_target(folder), load_tokenizer(folder)
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    stop_ids = stop_token_ids(tokenizer, folder)
    mark = fingerprint(folder)
    corpus = Corpus(_corpus_folder(plan, mark), mark)

    def enough(answered: int) -> bool:
        wrote(answered)
        if plan.tokens is not None:
            return answered >= plan.tokens
        assert plan.minutes is not None
        return time.monotonic() - started >= plan.minutes * 60 * _WRITING_SHARE

    writer = ChatWriter(tokenizer)
    if not plan.resume and not (plan.tokens and corpus.num_answered >= plan.tokens):
        notify("the target writes text to train on")
        _write(plan, target, writer, corpus, prompts, stop_ids, enough)
    training, held_out = _split(list(corpus), writer)
    if not training or not held_out:
        raise TrainingError("there is too little text to train on; give more minutes or tokens")
    answers = (corpus[i].tokens[corpus[i].prompt_length :] for i in training)
    size = REDUCED_VOCABULARY if plan.architecture == "eagle3" else LOSS_VOCABULARY
    vocabulary = Vocabulary(target, frequent_tokens(answers, target.vocab_size, size))
    shape = _shape(plan, target)
    config = new_config(
        plan.architecture,
        target,
        settings,
        shape,
        mask_token_id=_mask_token(tokenizer, corpus, target),
        draft_vocab_size=vocabulary.ids.size,
    )
    taps = default_taps(target)

    def measure(drafter: Drafter, prompts: Sequence[HeldOut]) -> Accepted:
        return accepted_length(
            target,
            drafter,
            prompts,
            width=shape.width,
            max_tokens=_TOKENS_A_PROMPT,
            stop_ids=stop_ids,
        )

    few = held_out[:: max(1, len(held_out) // _PROMPTS_WHILE_TRAINING)]
    num_tokens = sum(corpus[i].num_answered for i in training)
    trainer = Trainer(
        new_drafter(config, target, vocabulary, plan.seed),
        corpus,
        training,
        StateStore(target, corpus, taps, budget=_states_budget(corpus.folder)),
        reads=(len(taps),) if config.architecture == "mtp" else tuple(range(len(taps))),
        vocabulary=vocabulary,
        evaluate=lambda drafter: measure(drafter, few).length,
        checkpoints=Checkpoints(plan.output / _CHECKPOINTS),
        settings=Settings(
            seed=plan.seed,
            chain_steps=shape.width,
            tokens=_PASSES * num_tokens if plan.tokens is not None else None,
            seconds=_seconds_left(plan, started),
        ),
    )
    notify(f"training on {num_tokens:,} tokens of the target's text")
    trainer.run(report)
    notify("measuring the drafter as it will be served")
    served_config, served = drafters.quantize(config, trainer.best_weights(), _QUANTIZATION)
    served = {name: _half(array) for name, array in served.items()}
    final = drafters.with_tensors(served_config, served, str(plan.output))
    if mx.default_device() == mx.Device(mx.cpu):
        to_float32(final)
    final.bind(target)
    accepted = measure(final, held_out)
    card = Card(
        architecture=plan.architecture,
        target=plan.model,
        target_fingerprint=mark,
        corpus=list(plan.data),
        corpus_tokens=corpus.num_answered,
        tokens=trainer.tokens,
        steps=trainer.steps,
        objective=_objective(plan.architecture),
        width=shape.width,
        held_out_prompts=len(held_out),
        accepted_length=round(accepted.length, 3),
        accepted_length_by_kind={k: round(v, 3) for k, v in accepted.by_kind().items()},
        curve=[(tokens, round(length, 3)) for tokens, length in trainer.curve],
    )
    write_drafter(plan.output, served_config, served, card)
    return card


def _check_output(plan: Plan) -> None:
    if (plan.output / drafters.CONFIG_FILE).exists():
        raise UsageError(f"{plan.output} holds a finished drafter; name another folder")
    begun = (plan.output / _CHECKPOINTS).exists()
    if plan.resume and not begun:
        raise UsageError(f"{plan.output} holds no run to go on with")
    if begun and not plan.resume:
        raise UsageError(f"{plan.output} holds a run; give --resume to go on, or another folder")


def _read(source: str) -> list[Prompt]:
    if source == SELF:
        return []
    return read_chats(default_path()) if source == CHATS else read_prompts(Path(source))


def _corpus_folder(plan: Plan, mark: str) -> Path:
    """One for every target and set of data, shared by the architectures."""
    digest = hashlib.sha256(mark.encode())
    for source in sorted(plan.data):
        # Chats grow, and the corpus with them.
        named = source in (SELF, CHATS)
        digest.update(source.encode() if named else Path(source).read_bytes())
    return catalog.cache_dir() / "corpora" / digest.hexdigest()[:16]


def _write(
    plan: Plan,
    target: Target,
    writer: ChatWriter,
    corpus: Corpus,
    prompts: list[Prompt],
    stop_ids: frozenset[int],
    enough: Callable[[int], bool],
) -> None:
    # In an order that mixes the kinds and is the same every time.
    mixed = sorted(prompts, key=lambda prompt: hashlib.sha256(prompt.text.encode()).digest())
    own_share = 0.0 if SELF not in plan.data else _OWN_SHARE if prompts else 1.0
    RolloutWriter(target, writer, corpus, stop_ids=stop_ids, seed=plan.seed).write(
        mixed, own_share=own_share, enough=enough
    )


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


def _shape(plan: Plan, target: Target) -> Shape:
    shape = default_shape(plan.architecture, target)
    if plan.num_layers is not None:
        shape = replace(shape, num_layers=plan.num_layers)
    return shape if plan.width is None else replace(shape, width=plan.width)


def _seconds_left(plan: Plan, started: float) -> float | None:
    if plan.minutes is None:
        return None
    return max(1.0, plan.minutes * 60 - (time.monotonic() - started))


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


def _half(array: mx.array) -> mx.array:
    return array.astype(mx.float16) if array.dtype == mx.float32 else array


def _objective(architecture: Architecture) -> str:
    loss = "0.5 cross-entropy - log sum min(p, q)"
    if architecture in ("eagle3", "mtp"):
        return f"{loss}; training-time test, step k weighted {STEP_DECAY}^k"
    extra = "; confidence: binary cross-entropy" if architecture == "dspark" else ""
    return (
        f"{loss}; sampled anchors, draft k weighted exp(-(k-1)/{Settings().block_decay:g}){extra}"
    )


def write_drafter(
    folder: Path, config: DrafterConfig, tensors: dict[str, mx.array], card: Card
) -> None:
    """Put the finished drafter's files beside its checkpoints, config.json last."""
    scratch = Path(tempfile.mkdtemp(prefix=".drafter-", dir=folder))
    try:
        drafters.save(config, tensors, scratch)
        card.write(scratch)
        for path in sorted(scratch.iterdir(), key=lambda path: path.name == drafters.CONFIG_FILE):
            os.replace(path, folder / path.name)
    except (OSError, RuntimeError) as error:
        raise TrainingError(f"{folder} cannot be written: {error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
