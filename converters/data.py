"""The tables that lie beside this code: names of tensors, dialects, public drafters."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Any


def table(name: str) -> dict[str, Any]:
    """What a TOML file of this package holds."""
    text = (resources.files("localspec.converters") / f"{name}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
