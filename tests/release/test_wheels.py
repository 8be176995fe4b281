"""The wheels contain the right files; the wheel without a native library works and reports its absence."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import check_wheels
import pytest

from octavo import LLM, SamplingParams
from patience import HANG_SECONDS

ROOT = Path(__file__).parents[2]
WITHOUT_LIBRARY = {name: value for name, value in os.environ.items() if name != "OCTAVO_KERNEL_LIBRARY"}

pytestmark = pytest.mark.xdist_group("wheels")  # built once


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with both wheels. CI builds it beforehand; only CI builds the native wheel."""
    if "OCTAVO_TEST_WHEELS" in os.environ:
        return Path(os.environ["OCTAVO_TEST_WHEELS"])
    folder = tmp_path_factory.mktemp("wheels")
    command = [
        sys.executable,
        "-m",
        "build",
        "-q",
        "--wheel",
        "-C",
        "wheel.cmake=false",
        "-o",
        str(folder),
        ".",
    ]
    subprocess.run(command, cwd=ROOT, check=True, timeout=HANG_SECONDS, stdout=subprocess.DEVNULL)
    return folder


@pytest.fixture
def pure(wheels: Path) -> Path:
    (wheel,) = wheels.glob("octavo-*-py3-none-any.whl")
    return wheel


@pytest.fixture
def native(wheels: Path) -> Path:
    for wheel in wheels.glob("octavo-*-linux_*.whl"):
        return wheel
    pytest.skip("OCTAVO_TEST_WHEELS is not set: it names the folder that tools/build_wheels.sh fills")


def problems(wheel: Path) -> list[str]:
    return list(check_wheels.problems(wheel, check_wheels.expected_files(ROOT)))


def without(wheel: Path, file: str, folder: Path) -> Path:
    """Copy a wheel without one of its files."""
    copy = folder / wheel.name
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(copy, "w") as target:
        for name in source.namelist():
            if name != file:
                target.writestr(name, source.read(name))
    return copy


LINUX = "octavo-1.0-py3-none-manylinux_2_27_{0}.manylinux_2_28_{0}.whl"
MAC = "octavo-1.0-py3-none-macosx_11_0_{0}.whl"


def test_release_wheels_are_checked() -> None:
    names = [LINUX.format("x86_64"), LINUX.format("aarch64"), MAC.format("x86_64"), MAC.format("arm64")]
    wheels = [Path(name) for name in (*names, "octavo-1.0-py3-none-any.whl")]
    assert list(check_wheels.wrong_wheels(wheels, is_release=True)) == []
    (problem,) = check_wheels.wrong_wheels(wheels[1:], is_release=True)
    assert "one wheel for each of manylinux_x86_64" in problem
    (problem,) = check_wheels.wrong_wheels([*wheels[1:], wheels[1]], is_release=True)
    assert "one wheel for each of" in problem
    other = Path("octavo-1.1-py3-none-linux_aarch64.whl")
    assert list(check_wheels.wrong_wheels([other, wheels[-1]], is_release=False)) == [
        "the wheels have different versions"
    ]
    assert len(list(check_wheels.wrong_wheels(wheels, is_release=False))) == 1
    assert check_wheels.library_of(wheels[2]).endswith(".dylib")


def test_pure_wheel_contents(pure: Path, tmp_path: Path) -> None:
    """It contains every file of the package in git except the C++ sources: no tests, no stray files."""
    assert problems(pure) == []
    changed = without(pure, "octavo/py.typed", tmp_path)
    with zipfile.ZipFile(changed, "a") as archive:
        archive.writestr("tests/test_a.py", "")
    assert problems(changed) == [
        "lacks octavo/py.typed",
        "contains unexpected tests/test_a.py",
    ]


def test_native_wheel_contents(native: Path, tmp_path: Path) -> None:
    assert problems(native) == []
    assert problems(without(native, check_wheels.LIBRARY, tmp_path)) == [f"lacks {check_wheels.LIBRARY}"]


def test_the_native_library_satisfies_the_manylinux_policy(native: Path) -> None:
    """Check against manylinux_2_28, except for the C library, which here is that of this machine."""
    with zipfile.ZipFile(native) as archive:
        needs = check_wheels.needs(archive.read(check_wheels.LIBRARY))
    newest = {kind: tuple(map(int, version.split("."))) for kind, version in needs.items()}
    assert newest.keys() == {"GLIBC", "GLIBCXX", "CXXABI"}
    assert newest["GLIBCXX"] <= (3, 4, 25)
    assert newest["CXXABI"] <= (1, 3, 11)


def test_the_native_library_in_the_wheel_loads(native: Path, tmp_path: Path) -> None:
    """Run the same command that cibuildwheel runs on each wheel."""
    done = run_installed(native, tmp_path, str(ROOT / "tools/native_library_loads.py"))
    assert "read bandwidth" in done.stdout


def test_without_the_library_everything_runs_on_torch(
    pure: Path, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    arguments = ["generate", str(tiny_checkpoint), "-p", "abc", "--temperature", "0", "--max-tokens", "8"]
    done = run_installed(pure, tmp_path, "-m", "octavo.cli.main", *arguments, "--log-level", "info")
    assert "using torch: no native kernels were built when Octavo was installed" in done.stderr
    with LLM(str(tiny_checkpoint), kernels="torch") as llm:
        (expected,) = llm.generate("abc", SamplingParams(temperature=0, max_tokens=8))
    assert expected.text.strip() in done.stdout
    refused = run_installed(pure, tmp_path, str(ROOT / "tools/native_library_loads.py"), code=1)
    assert "no native library" in refused.stderr


def run_installed(
    wheel: Path, folder: Path, *arguments: str, code: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run Python with this wheel and the packages of this environment, except its Octavo."""
    target = folder / "site"
    if not target.exists():
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--no-index",
            "--target",
            str(target),
        ]
        subprocess.run([*command, str(wheel)], check=True, timeout=120)
    # -S: an editable install has an import hook that takes precedence over any path.
    path = os.pathsep.join([str(target), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    done = subprocess.run(
        [sys.executable, "-S", *arguments],
        env=WITHOUT_LIBRARY | {"PYTHONPATH": path},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == code, done.stderr
    return done
