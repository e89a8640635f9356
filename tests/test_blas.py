"""Which of OpenBLAS' kernels a CPU gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec._blas import _kernels


@pytest.mark.parametrize(
    ("flags", "kernels"),
    [
        ("fpu fma avx2 avx512f avx512dq avx512bw avx512vl", "SkylakeX"),
        ("fpu fma avx2 avx512f", "Haswell"),
        ("fpu sse4_2", None),
    ],
)
def test_kernels_are_those_that_the_cpu_can_run(
    tmp_path: Path, flags: str, kernels: str | None
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t: none\n")
    assert _kernels(tmp_path / "cpuinfo") == kernels


def test_other_systems_choose_themselves(tmp_path: Path) -> None:
    assert _kernels(tmp_path / "none") is None
