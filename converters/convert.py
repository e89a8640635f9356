"""A foreign drafter in, a localspec drafter out, or one sentence why not.

Everything is checked before anything is written: each tensor used once and in its shape, finite values,
and the fit to the target where that is known.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

import mlx.core as mx

from localspec.converters import block, dialects, eagle3, mtp
from localspec.converters.foreign import Foreign, Options, TargetFacts
from localspec.converters.reading import file_hashes, read_checkpoint, read_config, strip_prefixes
from localspec.converters.training import exported
from localspec.errors import CheckpointRefused, UsageError
from localspec.models import load as drafters
from localspec.models.base import check_fit
from localspec.models.config import DrafterConfig, QuantizationConfig

CARD_FILE = "README.md"
_CALLED = {"block": "a block drafter", "eagle3": "an EAGLE-3 drafter", "mtp": "an MTP drafter"}
_OPTIONS = {
    "layout": ("block",),
    "taps": ("block", "eagle3"),
    "norm_before_residual": ("eagle3",),
    "target_normed": ("mtp",),
}


@dataclass(frozen=True, slots=True)
class Report:
    """What was converted.

    Attributes:
        source: the checkpoint's name.
        architecture, dialect: what it is, and whose conventions it follows.
        tap_layers: target layers whose outputs it reads, 0-based; empty for MTP.
        layout: which slot of a block predicts which token; `chain` for EAGLE-3 and MTP.
        layout_declared: whether the files or the user said so.
        parameters: numbers in all tensors.
        size: bytes of the weights.
        warnings: what was assumed.
        files: SHA-256 of each file read.
    """

    source: str
    architecture: str
    dialect: str
    tap_layers: tuple[int, ...]
    layout: str
    layout_declared: bool
    parameters: int
    size: int
    warnings: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Converted:
    """A drafter in memory, in localspec's form, with its report."""

    config: DrafterConfig
    tensors: dict[str, mx.array]
    report: Report


def convert(
    source: Path,
    destination: Path,
    *,
    target: TargetFacts | None = None,
    bits: int | None = None,
    options: Options | None = None,
    name: str | None = None,
) -> Report:
    """Import a checkpoint into a new folder, which appears whole or not at all.

    Args:
        source: a folder, or a file of weights beside its config.json.
        destination: must not exist.
        target: what the drafter must fit.
        bits: quantise large matrices to 4 or 8 bits (MLX affine).
        options: conventions set by hand.
        name: what the report and the card call the source; its file name if None.

    Raises:
        CheckpointRefused: names the file, the tensor or the key, and what was expected.
        DrafterMismatch: it was made for a target of other sizes.
        UsageError: a convention that this kind of drafter does not have.
    """
    if destination.exists():
        raise CheckpointRefused(f"{destination} is there already; name a folder that is not")
    converted = translate(source, target=target, bits=bits, options=options, name=name)
    write(converted, destination)
    return converted.report


def translate(
    source: Path,
    *,
    target: TargetFacts | None = None,
    bits: int | None = None,
    options: Options | None = None,
    name: str | None = None,
) -> Converted:
    """Read, recognise and check a checkpoint; writes nothing. Arguments and errors as `convert`."""
    options = options or Options()
    source, name = exported(source), name or source.absolute().name
    config = read_config(source)
    dialect = dialects.recognise(config, options.dialect)
    native = dialect.family == "mtp" and mtp.is_native(config)
    checkpoint = read_checkpoint(source, only=mtp.belongs(config) if native else None)
    tensors: dict[str, mx.array] = {}
    for own_name, tensor in checkpoint.tensors.items():
        stripped = strip_prefixes(own_name)
        if not stripped.isprintable():
            raise CheckpointRefused(f"{stripped[:80]!r} is no name for a tensor")
        if stripped in tensors:
            raise CheckpointRefused(f"two tensors are called {stripped} once prefixes are removed")
        tensors[stripped] = tensor
    dialect = dialects.confirm(dialect, tensors)
    _check_options(options, dialect.family, name)
    foreign = Foreign(config, tensors, options, target)
    declared = True
    try:
        if dialect.family == "block":
            drafter, canonical, declared = block.translate(foreign, dialect.name)
        elif dialect.family == "eagle3":
            drafter, canonical = eagle3.translate(foreign, dialect.name)
        else:
            drafter, canonical = mtp.translate(foreign, dialect.name)
        if target is not None:
            check_fit(drafter, target.hidden_size, target.vocab_size, target.num_layers)
        _check(drafter, canonical, name)
    except CheckpointRefused as error:
        raise CheckpointRefused(_in_its_own_words(str(error), foreign)) from error
    except ArithmeticError as error:
        raise CheckpointRefused(f"config.json: rope_scaling leads to a {error}") from error
    if bits is not None:
        drafter, canonical = drafters.quantize(drafter, canonical, QuantizationConfig(bits))
    report = Report(
        source=name,
        architecture=drafter.architecture,
        dialect=dialect.name,
        tap_layers=drafter.tap_layers,
        layout=drafter.layout,
        layout_declared=declared,
        parameters=sum(tensor.size for tensor in foreign.tensors.values()),
        size=sum(tensor.nbytes for tensor in canonical.values()),
        warnings=foreign.warnings,
        files=file_hashes(checkpoint.files),
    )
    return Converted(drafter, canonical, report)


def write(converted: Converted, destination: Path) -> None:
    """Write the drafter's folder beside its place, as `.NAME.*.partial`, then move it in one step.

    Raises:
        OSError: it cannot be written, or is there already.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    scratch = destination.with_name(f".{destination.name}.{os.getpid()}.partial")
    for stale in destination.parent.glob(f".{glob.escape(destination.name)}.*.partial"):
        process = stale.name.split(".")[-2]
        if process.isdecimal() and not _is_running(int(process)):
            # It was killed.
            shutil.rmtree(stale, ignore_errors=True)
    try:
        scratch.mkdir()
        (scratch / CARD_FILE).write_text(_card(converted.report), encoding="utf-8")
        drafters.save(converted.config, converted.tensors, scratch)
        os.rename(scratch, destination)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's
    return True


def _check_options(options: Options, family: dialects.Family, name: str) -> None:
    what = _CALLED[family]
    if options.dialect and family not in dialects.DIALECTS[options.dialect]:
        raise UsageError(f"{name} is {what}, which the dialect {options.dialect} does not have")
    for option, families in _OPTIONS.items():
        if getattr(options, option) is not None and family not in families:
            raise UsageError(f"{name} is {what}, for which {option} means nothing")


def _check(drafter: DrafterConfig, tensors: dict[str, mx.array], source: str) -> None:
    drafters.check_tensors(drafter, tensors, source)
    for name, tensor in tensors.items():
        if mx.issubdtype(tensor.dtype, mx.floating) and not bool(mx.all(mx.isfinite(tensor))):
            raise CheckpointRefused(f"{name} in {source} holds values that are not finite")


def _in_its_own_words(message: str, foreign: Foreign) -> str:
    """Add the name in the file where localspec calls a tensor otherwise."""
    for word in re.findall(r"[\w.]*\w", message):
        if word in foreign.foreign_names or word.endswith((".weight", ".bias", "_bias")):
            own = foreign.own_name(word)
            return message if own in message else f"{message} (in the file: {own})"
    return message


def _card(report: Report) -> str:
    lines = [
        f"# {report.source}",
        "",
        f"A {report.architecture} drafter in localspec's form, converted from {report.source}.",
        "",
        f"- dialect: {report.dialect}",
        f"- taps (outputs of target layers, from 0): {list(report.tap_layers) or 'last state'}",
        f"- layout: {report.layout} ({'declared' if report.layout_declared else 'assumed'})",
        f"- parameters: {report.parameters:,}",
        *[f"- note: {warning}" for warning in report.warnings],
        "",
        "Files it was made from (SHA-256):",
        "",
        *[f"- {name}: {digest}" for name, digest in sorted(report.files.items())],
        "",
    ]
    return "\n".join(lines)
