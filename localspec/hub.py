"""The Hub: its local cache first, without asking a server, the network second."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec import downloads
from localspec.errors import ModelNotFound

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "*.tiktoken", "vocab.json", "vocab.txt")
_SHARD = re.compile(r"-of-(\d+)\.safetensors$")


@dataclass(frozen=True, slots=True)
class Kind:
    """What is looked for in a repository.

    Attributes:
        name: for messages.
        files: patterns of what to fetch; no code.
        missing: the first thing that a folder lacks to be complete, or None.
    """

    name: str
    files: list[str]
    missing: Callable[[Path], str | None]


def is_id(name: str) -> bool:
    return re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None


def snapshot(name: str, kind: Kind, *, notify: Callable[[str], None] | None = None) -> Path:
    """The folder of a Hub id.

    Args:
        notify: told of a download.

    Raises:
        ModelNotFound: it could not be fetched, with the reason.
    """
    from huggingface_hub import model_info, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )
    from huggingface_hub.utils import disable_progress_bars, enable_progress_bars

    if folder := cached(name, kind):
        return folder
    # Bars are drawn for a person who watches, not into a log.
    is_watched = downloads.is_watched()
    bars = enable_progress_bars if is_watched or sys.stderr.isatty() else disable_progress_bars
    bars()
    bar = _bar() if is_watched else None
    try:
        model_info(name)
        if notify:
            notify(f"downloading {name} from the Hub")
        folder = Path(snapshot_download(name, allow_patterns=kind.files, tqdm_class=bar))
    except GatedRepoError as error:
        raise ModelNotFound(
            f"'{name}' is gated on the Hub: accept its terms there and log in with `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelNotFound(
            f"'{name}' is no folder here, and the Hub has no such {kind.name}, or it is private"
        ) from error
    except HFValidationError as error:
        raise ModelNotFound(f"'{name}' is no folder here, and no Hub id (org/name)") from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise ModelNotFound(
            f"'{name}' is no folder here, not complete in the Hub's cache, and the Hub cannot be reached"
        ) from error
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelNotFound(f"'{name}' could not be fetched from the Hub: {reason}") from error
    if lacks := kind.missing(folder):
        raise ModelNotFound(
            f"'{name}' on the Hub is no {kind.name} that localspec loads: it has no {lacks}"
        )
    return folder


def cached(name: str, kind: Kind) -> Path | None:
    """The folder of a Hub id in the local cache, if it is complete."""
    from huggingface_hub import constants

    repository = Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"
    try:
        revision = (repository / "refs" / "main").read_text().strip()
    except OSError:
        return None
    folder = repository / "snapshots" / revision
    return folder if revision and folder.is_dir() and not kind.missing(folder) else None


def cached_repositories(kind: Kind) -> Iterator[tuple[str, Path]]:
    """Hub ids and folders of what is complete in the local cache."""
    from huggingface_hub import constants

    for repository in sorted(Path(constants.HF_HUB_CACHE).glob("models--*--*")):
        name = repository.name.removeprefix("models--").replace("--", "/", 1)
        if folder := cached(name, kind):
            yield name, folder


def _bar() -> type[Any]:
    """What the Hub's client takes for a progress bar: draws nothing, and reports the bytes."""
    from huggingface_hub.utils import tqdm

    class Bar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            # There are bars for files and for what is packed, too.
            name = str(options.get("name") or "")
            self._counts = options.get("unit") == "B" and name.endswith("snapshot_download")
            super().__init__(*args, **{**options, "file": io.StringIO()})

        def update(self, n: float | None = 1) -> bool | None:
            shown: bool | None = super().update(n)
            if self._counts and self.total:
                downloads.report(int(self.n), int(self.total))
            return shown

    return Bar


def _model_lacks(folder: Path) -> str | None:
    if not (folder / "config.json").is_file():
        return "config.json"
    if not any(any(folder.glob(pattern)) for pattern in _TOKENIZER_FILES):
        return "tokenizer"
    index = folder / "model.safetensors.index.json"
    return _shard_lacks(index) if index.is_file() else _missing_without_index(folder)


def _drafter_lacks(folder: Path) -> str | None:
    if not (folder / "config.json").is_file():
        return "config.json"
    for index in folder.glob("*.index.json"):
        if lacks := _shard_lacks(index):
            return lacks
    weights = [path for kind in ("safetensors", "bin", "pt") for path in folder.glob(f"*.{kind}")]
    return None if weights else "model.safetensors"


def _shard_lacks(index: Path) -> str | None:
    try:
        shards: dict[str, Any] = json.loads(index.read_text())["weight_map"]
        names = sorted(set(shards.values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return f"readable {index.name}"
    return next((shard for shard in names if not (index.parent / shard).is_file()), None)


def _missing_without_index(folder: Path) -> str | None:
    names = [path.name for path in folder.glob("model*.safetensors")]
    if not names:
        return "model.safetensors"
    totals = [int(of[1]) for name in names if (of := _SHARD.search(name))]
    return "model.safetensors.index.json" if len(totals) < max(totals, default=0) else None


MODEL = Kind(
    "model",
    [
        "*.json",
        "model*.safetensors",
        "tokenizer.model",
        "*.tiktoken",
        "*.txt",
        "*.jsonl",
        "*.jinja",
    ],
    _model_lacks,
)
"""What mlx-lm loads."""

DRAFTER = Kind("drafter", ["*.json", "*.safetensors", "*.bin", "*.pt"], _drafter_lacks)
"""What `localspec convert` reads."""
