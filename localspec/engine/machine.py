"""What this machine is, as far as generation cares."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx

from localspec import _blas
from localspec.folders import cache_dir

_SMALL_MEMORY = 6e9


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts; sizes in bytes.

    Attributes:
        chip: the processor's marketing name.
        cores: logical processors.
        memory: bytes of memory in all.
        device: MLX's default device, `gpu` or `cpu`.
        blas: what multiplies matrices on the CPU.
        mlx, mlx_lm, python: versions.
        cache_folder: where imported models are kept.
    """

    chip: str
    cores: int
    memory: int
    device: str
    blas: str
    mlx: str
    mlx_lm: str
    python: str
    cache_folder: str

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    def __str__(self) -> str:
        """What speeds that were measured here hang on."""
        return f"{self.chip}, {self.cores} cores, MLX {self.mlx} on the {self.device.upper()}"


def describe() -> Machine:
    """Read the facts of this machine."""
    return Machine(
        chip=_chip(),
        cores=os.cpu_count() or 1,
        memory=memory(),
        device="gpu" if mx.default_device() == mx.Device(mx.gpu) else "cpu",
        blas=_blas.name(),
        mlx=version("mlx"),
        mlx_lm=version("mlx-lm"),
        python=platform.python_version(),
        cache_folder=str(cache_dir()),
    )


def memory() -> int:
    """Bytes of memory in all."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def problems(machine: Machine) -> list[str]:
    """What is wrong, each with what to do; empty when nothing is."""
    wrong = []
    if sys.platform == "darwin" and platform.machine() != "arm64":
        wrong.append("this Python is not built for Apple silicon; install an arm64 Python")
    elif sys.platform == "darwin" and machine.device != "gpu":
        wrong.append("MLX does not use the GPU; reinstall mlx")
    if machine.blas == _blas.REFERENCE:
        wrong.append(
            "MLX uses its slow reference BLAS; install OpenBLAS (on Debian: apt install libopenblas0)"
        )
    if machine.memory < _SMALL_MEMORY:
        wrong.append(f"only {machine.memory / 1e9:.1f} GB of memory; models may not fit")
    if not _writable(Path(machine.cache_folder)):
        wrong.append(f"the cache folder {machine.cache_folder} cannot be written")
    return wrong


def memory_in_use() -> int:
    """Bytes that MLX's arrays take; callable from any thread."""
    return mx.get_active_memory()


@cache
def _chip() -> str:
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _writable(folder: Path) -> bool:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
