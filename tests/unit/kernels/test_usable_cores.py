"""The default is one thread per core that this process may use, also in a container."""

import os
from pathlib import Path

import pytest

from octavo.kernels import library


@pytest.mark.parametrize(
    ("quota", "cores"), [("800000 100000", 8), ("150000 100000", 1), ("50000 100000", 1), ("max 100000", 64)]
)
def test_a_cpu_quota_limits_usable_cores(
    quota: str, cores: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(quota + "\n")
    monkeypatch.setattr(library, "CPU_QUOTA", file)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    assert library.usable_cores() == cores
    file.unlink()
    assert library.usable_cores() == 64
