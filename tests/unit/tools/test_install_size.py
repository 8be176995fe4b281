"""Packages are assigned to groups; new packages and a larger wheel are reported."""

import shutil
import subprocess
import sys
from pathlib import Path

import install_size
import pytest
from install_size import AllowedSize, Groups

from patience import HANG_SECONDS

METADATA = {
    "octavo": ["torch>=2", "fastapi", "unused; sys_platform == 'none'"],
    "torch": ["sympy", "jinja2"],
    "sympy": ["mpmath"],
    "mpmath": [],
    "fastapi": ["jinja2"],
    "jinja2": [],
    "pip": [],
}


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    site = tmp_path / "venv/lib/python3.11/site-packages"
    for name, needed in METADATA.items():
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        requires = "".join(f"Requires-Dist: {need}\n" for need in needed)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{requires}\n")
        (site / f"{name}.py").write_text("x" * 1000)
        (info / "RECORD").write_text(f"{name}.py,,\n{name}.pyc,,\n")
    return tmp_path / "venv"


def test_packages_only_torch_needs_belong_to_torch(venv: Path) -> None:
    packages = install_size.installed(venv.glob("lib/python*/site-packages"))
    groups = install_size.grouped(packages)
    assert groups == Groups({"octavo"}, {"fastapi", "jinja2"}, {"torch", "sympy", "mpmath"})
    assert packages["torch"].num_bytes == 1000


def test_growth_is_reported() -> None:
    groups = Groups({"octavo"}, {"fastapi", "left-pad"}, {"torch"})
    assert list(install_size.problems(groups, 900, AllowedSize({"fastapi", "left-pad", "gone"}, 1000))) == []
    (package, wheel) = install_size.problems(groups, 1001, AllowedSize({"fastapi"}, 1000))
    assert "left-pad" in package
    assert "1001 kB" in wheel


def test_the_command_as_ci_runs_it(venv: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "octavo.whl"
    wheel.write_bytes(b"x" * 5000)
    command = [sys.executable, install_size.__file__, str(venv), "--wheel", str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stderr
    assert "dependencies   2 packages" in done.stdout
    shutil.copytree(
        venv / "lib/python3.11/site-packages/jinja2-1.0.dist-info",
        venv / "lib/python3.11/site-packages/surprise-1.0.dist-info",
    )
    info = venv / "lib/python3.11/site-packages/surprise-1.0.dist-info/METADATA"
    info.write_text(info.read_text().replace("jinja2", "surprise"))
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG_SECONDS)
    assert (done.returncode, "now includes surprise" in done.stderr) == (1, True)
