"""A whole training run: corpus, drafter, training, and the drafter's folder at the end."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mlx.core as mx

from localspec.engine.precision import to_float32
from localspec.engine.target import Target
from localspec.errors import TrainingError, UsageError, reason
from localspec.models import load as drafters
from localspec.models.config import Architecture, DrafterConfig, QuantizationConfig
from localspec.provenance import CHECKPOINTS, TRAINING_FILE
from localspec.train.card import Card
from localspec.train.chain import STEP_DECAY
from localspec.train.checkpoints import Checkpoints
from localspec.train.material import Material, Notify, gather
from localspec.train.plan import Plan, begun_by
from localspec.train.start import Shape, default_shape, default_taps, new_config, new_drafter
from localspec.train.trainer import Drafter, Progress, Settings, Trainer
from localspec.train.vocabulary import Vocabulary

_PASSES = 4
_PASSES_ON = 1.5
"""Over the text, by a drafter that is trained already."""
_RATE_ON = 5e-4
_QUANTIZATION = QuantizationConfig(bits=8)


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
    material = gather(plan, started, notify, wrote)
    vocabulary = material.vocabulary(plan.architecture)
    drafter, width = _begin(plan, material, vocabulary)
    settings = Settings(
        seed=plan.seed,
        chain_steps=width,
        tokens=_PASSES * material.num_tokens if plan.tokens is not None else None,
        seconds=_seconds_left(plan, started),
    )
    if plan.origin is not None:
        tokens = int(_PASSES_ON * material.num_tokens) if plan.tokens is not None else None
        settings = replace(settings, tokens=tokens, learning_rate=_RATE_ON, grown_by=0.0)
    config = drafter.config
    trainer = make_trainer(
        drafter,
        material,
        vocabulary,
        lambda drafter: material.measure(drafter, width, quickly=True).length,
        plan.output / CHECKPOINTS,
        settings,
    )
    notify(f"training on {material.num_tokens:,} tokens of the target's text")
    trainer.run(report)
    notify("measuring the drafter as it will be served")
    served_config, served = drafters.quantize(config, trainer.best_weights(), _QUANTIZATION)
    served = {name: _half(array) for name, array in served.items()}
    final = drafters.with_tensors(served_config, served, str(plan.output))
    if mx.default_device() == mx.Device(mx.cpu):
        to_float32(final)
    final.bind(material.target)
    accepted = material.measure(final, width)
    card = Card(
        architecture=plan.architecture,
        target=plan.target,
        target_fingerprint=material.fingerprint,
        command=plan.command,
        corpus_tokens=material.corpus.num_answered,
        tokens=trainer.tokens,
        steps=trainer.steps,
        objective=_objective(plan.architecture),
        width=width,
        held_out_prompts=len(material.held_out),
        accepted_length=round(accepted.length, 3),
        accepted_length_by_kind={k: round(v, 3) for k, v in accepted.by_kind().items()},
        curve=[(tokens, round(length, 3)) for tokens, length in trainer.curve],
        origin=None if material.origin is None else material.origin.summary,
    )
    write_drafter(plan.output, served_config, served, card)
    return card


def _begin(plan: Plan, material: Material, vocabulary: Vocabulary) -> tuple[Drafter, int]:
    """The drafter before its first step, and its drafts a round."""
    target, origin = material.target, material.origin
    if origin is not None:
        return origin.drafter(target), origin.card.width
    shape = _shape(plan, target)
    config = new_config(
        plan.architecture,
        target,
        material.settings,
        shape,
        mask_token_id=material.mask_token_id,
        draft_vocab_size=vocabulary.ids.size,
    )
    return new_drafter(config, target, vocabulary, plan.seed), shape.width


def make_trainer(
    drafter: Drafter,
    material: Material,
    vocabulary: Vocabulary,
    evaluate: Callable[[Drafter], float],
    checkpoints: Path,
    settings: Settings,
) -> Trainer:
    """Of a drafter before its first step, or of one that the checkpoints go on with.

    Args:
        drafter: bound to the target.
        evaluate: what the best checkpoint has most of.
        checkpoints: their folder.
    """
    num_taps = len(default_taps(material.target))
    return Trainer(
        drafter,
        material.corpus,
        material.training,
        material.states,
        reads=(num_taps,) if drafter.config.architecture == "mtp" else tuple(range(num_taps)),
        vocabulary=vocabulary,
        evaluate=evaluate,
        checkpoints=Checkpoints(checkpoints),
        settings=settings,
    )


def _check_output(plan: Plan) -> None:
    if all((plan.output / name).exists() for name in (drafters.CONFIG_FILE, TRAINING_FILE)):
        raise UsageError(f"{plan.output} holds a finished drafter; name another folder")
    begun = (plan.output / CHECKPOINTS).exists()
    if begun and not plan.resume:
        raise UsageError(f"{plan.output} holds a run; give --resume to go on, or another folder")
    if begun:
        command = begun_by(plan.output)
        if command not in (None, plan.command):
            raise UsageError(
                f"{plan.output} was begun by `{command}`; give --resume with the same, not with "
                f"`{plan.command}`"
            )
        return
    if plan.resume:
        raise UsageError(f"{plan.output} holds no run to go on with")
    if plan.output.exists() and not plan.output.is_dir():
        raise UsageError(f"{plan.output} is a file; name a folder")
    if plan.output.is_dir() and any(plan.output.iterdir()):
        raise UsageError(f"{plan.output} holds other files; name an empty or new folder")


def _shape(plan: Plan, target: Target) -> Shape:
    shape = default_shape(plan.architecture, target)
    if plan.num_layers is not None:
        shape = replace(shape, num_layers=plan.num_layers)
    return shape if plan.width is None else replace(shape, width=plan.width)


def _seconds_left(plan: Plan, started: float) -> float | None:
    if plan.minutes is None:
        return None
    return max(1.0, plan.minutes * 60 - (time.monotonic() - started))


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
        raise TrainingError(f"{folder} cannot be written: {reason(error)}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
