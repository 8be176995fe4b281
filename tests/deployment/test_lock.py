"""The lock files contain all requirements of pyproject.toml, in allowed versions and with hashes."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deployment.rules import HOST_NAME

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PYTHON = re.findall(r"^ARG PYTHON_VERSION=(.*)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)[0]
IMAGE = {"python_version": PYTHON, "python_full_version": f"{PYTHON}.0", "sys_platform": "linux", "extra": ""}


def locked(name: str) -> dict[str, tuple[str, list[str]]]:
    """Return version and hashes of each package."""
    entries = re.split(r"^(?=[\w.-]+==)", (DEPLOY / name).read_text(), flags=re.MULTILINE)[1:]
    found = {}
    for entry in entries:
        package, version = entry.split()[0].split("==")
        found[str(canonicalize_name(package))] = (
            version,
            re.findall(r"--hash=sha256:([0-9a-f]{64})\b", entry),
        )
    return found


def in_the_image(texts: list[str]) -> list[Requirement]:
    needed = [Requirement(text) for text in texts]
    return [need for need in needed if need.marker is None or need.marker.evaluate(IMAGE)]


def missing(needed: list[Requirement], lock: dict[str, tuple[str, list[str]]]) -> list[str]:
    """Return the requirements that the lock does not contain, or not in an allowed version."""
    return [
        str(need)
        for need in needed
        if need.name != "torch"
        and (
            canonicalize_name(need.name) not in lock
            or not need.specifier.contains(lock[canonicalize_name(need.name)][0], prereleases=True)
        )
    ]


def test_every_dependency_is_locked() -> None:
    """If this fails, run tools/lock.sh."""
    lock = locked("requirements.lock")
    direct = in_the_image(PROJECT["project"]["dependencies"])
    assert missing(direct, lock) == []
    assert missing([Requirement("octavo-needs-this>=1")], lock) != []
    assert missing([Requirement("numpy>=99")], lock) != []
    assert "torch" not in lock  # the builder of the image chooses the build


def test_transitive_dependencies_are_locked() -> None:
    """Checks installed packages only; finds a lock that was edited by hand or made for another Python."""
    lock = locked("requirements.lock")
    for package in lock:
        try:
            if version(package) != lock[package][0]:
                continue  # another version may have other requirements
            texts = requires(package) or []
        except PackageNotFoundError:
            continue
        names = {canonicalize_name(need.name) for need in in_the_image(texts)}
        assert names <= lock.keys(), package


def test_build_requirements_are_locked() -> None:
    needed = in_the_image([*PROJECT["build-system"]["requires"], "cmake>=3.18", "ninja"])
    assert missing(needed, locked("build.lock")) == []


@pytest.mark.parametrize("name", ["requirements.lock", "build.lock"])
def test_every_package_has_hashes_and_nothing_names_a_host(name: str) -> None:
    text = (DEPLOY / name).read_text()
    assert f"for Python {PYTHON} on Linux" in text.splitlines()[0]
    assert all(hashes for _, hashes in locked(name).values())
    assert not HOST_NAME.search(text)
    assert "://" not in text
    assert "@" not in text


def test_requirements_of_torch_match_the_lock() -> None:
    """deploy/uv.toml overrides the requirements of torch, so that no GPU library is locked."""
    (entry,) = tomllib.loads((DEPLOY / "uv.toml").read_text())["dependency-metadata"]
    assert f"ARG TORCH_VERSION={entry['version']}\n" in (DEPLOY / "Dockerfile").read_text()
    declared = {canonicalize_name(Requirement(text).name) for text in entry["requires-dist"]}
    actual = {
        canonicalize_name(need.name)
        for need in in_the_image(requires("torch") or [])
        if not need.name.startswith(("nvidia-", "cuda-", "triton"))
    }
    assert declared == actual
