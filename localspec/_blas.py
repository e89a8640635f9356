"""Give MLX's CPU build a fast BLAS on Linux. Does nothing elsewhere, and nothing to results."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

LIBRARY = "libopenblas.so.0"
REFERENCE = "reference"

_KERNELS = (
    ("SkylakeX", {"avx512f", "avx512dq", "avx512bw", "avx512vl", "fma"}),
    ("Haswell", {"avx2", "fma"}),
)
"""OpenBLAS' kernels and what a CPU must have for them, fastest first."""

_preloaded = False


def preload() -> None:
    """Load the system's OpenBLAS before MLX, whose Linux wheel ships an unoptimised reference BLAS.

    It must come before the first import of `mlx.core`; where OpenBLAS is missing, MLX runs without.
    """
    global _preloaded
    if sys.platform != "linux" or "mlx.core" in sys.modules:
        return
    # An OpenBLAS older than the CPU takes its oldest kernels, which are several times slower.
    if kernels := _kernels(Path("/proc/cpuinfo")):
        os.environ.setdefault("OPENBLAS_CORETYPE", kernels)
    try:
        ctypes.CDLL(LIBRARY, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return
    _preloaded = True


def _kernels(cpuinfo: Path) -> str | None:
    """The fastest kernels that this CPU can run; None: OpenBLAS' own choice."""
    try:
        with cpuinfo.open(encoding="utf-8") as lines:
            flags = set(next((line for line in lines if line.startswith("flags")), "").split())
    except OSError:
        return None
    return next((name for name, needed in _KERNELS if needed <= flags), None)


def name() -> str:
    """What multiplies matrices on the CPU: `Accelerate`, `OpenBLAS` or `reference`."""
    if sys.platform == "darwin":
        return "Accelerate"
    return "OpenBLAS" if _preloaded else REFERENCE
