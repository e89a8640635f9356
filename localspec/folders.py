"""Where localspec keeps files of the user: a cache, which can be made again, and data, which can not."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_dir() -> Path:
    """The user's cache folder, or the one that LOCALSPEC_CACHE names."""
    return _named("LOCALSPEC_CACHE") or Path(platformdirs.user_cache_dir("localspec"))


def data_dir() -> Path:
    """The user's data folder, or the one that LOCALSPEC_DATA names."""
    return _named("LOCALSPEC_DATA") or Path(platformdirs.user_data_dir("localspec"))


def _named(variable: str) -> Path | None:
    chosen = os.environ.get(variable)
    return Path(chosen).expanduser() if chosen else None
