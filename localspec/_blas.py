"""Give MLX's CPU build a fast BLAS on Linux. Does nothing elsewhere, and nothing to results."""

from __future__ import annotations

import ctypes
import sys

LIBRARY = "libopenblas.so.0"
REFERENCE = "reference"

_preloaded = False


def preload() -> None:
    """Load the system's OpenBLAS before MLX, whose Linux wheel ships an unoptimised reference BLAS.

    It must come before the first import of `mlx.core`; where OpenBLAS is missing, MLX runs without.
    """
    global _preloaded
    if sys.platform != "linux" or "mlx.core" in sys.modules:
        return
    try:
        ctypes.CDLL(LIBRARY, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return
    _preloaded = True


def name() -> str:
    """What multiplies matrices on the CPU: `Accelerate`, `OpenBLAS` or `reference`."""
    if sys.platform == "darwin":
        return "Accelerate"
    return "OpenBLAS" if _preloaded else REFERENCE
