"""Where the chat's configuration is. Imports nothing heavy: `localspec chat --help` names it."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def config_path() -> Path:
    """The configuration file: in the platform's folder, or in the one that LOCALSPEC_CONFIG names."""
    chosen = os.environ.get("LOCALSPEC_CONFIG")
    folder = (
        Path(chosen).expanduser() if chosen else Path(platformdirs.user_config_dir("localspec"))
    )
    return folder / "chat.toml"
