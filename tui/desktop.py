"""What lies outside the terminal: the clipboard and the user's editor."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from localspec.errors import LocalspecError, reason


def copy_with_platform(text: str) -> bool:
    """Put text on macOS's clipboard; False: another system, or it failed (OSC 52 is the way then)."""
    if sys.platform != "darwin" or not shutil.which("pbcopy"):
        return False
    try:
        done = subprocess.run(["pbcopy"], input=text.encode(), check=False, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def edit(text: str) -> str:
    """Let the user's editor ($VISUAL, $EDITOR, else vi) change a text; waits for it.

    Raises:
        LocalspecError: there is no such editor, it failed, or it left no text.
    """
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="localspec-") as folder:
        path = Path(folder) / "message.md"
        path.write_text(text, encoding="utf-8")
        try:
            done = subprocess.run([*shlex.split(editor), str(path)], check=False)
        except (OSError, ValueError) as error:
            raise LocalspecError(f"the editor '{editor}' cannot be run: {reason(error)}") from error
        if done.returncode:
            raise LocalspecError(f"the editor '{editor}' failed ({done.returncode})")
        try:
            return path.read_text(encoding="utf-8").removesuffix("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise LocalspecError(f"the editor '{editor}' left no text: {reason(error)}") from error
