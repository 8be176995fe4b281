"""The form of the changelog, and what a release needs of it."""

import subprocess
import sys
from pathlib import Path

import changelog
import pytest

GOOD = """# Changelog

## Unreleased

## 0.2.0 - 2026-12-01

### Fixed
- A thing.

## 0.1.0 - 2026-11-30

### Added
- Another.
"""


def test_in_form() -> None:
    assert list(changelog.problems(GOOD, "0.2.0")) == []
    assert list(changelog.problems(GOOD, "0.2.0", tag="v0.2.0")) == []
    assert list(changelog.problems(GOOD, "0.3.0.dev0")) == []


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("## Unreleased\n", "", "first section"),
        ("## 0.2.0 -", "## 0.0.9 -", "newest comes first"),
        ("2026-12-01", "2026-11-01", "newest comes first"),
        ("2026-12-01", "2026-12-32", "no day"),
        ("0.2.0 - 2026-12-01", "0.2.0", "is not"),
        ("### Fixed", "### Mended", "none of"),
        ("### Fixed\n- A thing.", "### Fixed\n", "says nothing"),
        ("- Another.", "### Added\n- Another.", "twice"),
    ],
)
def test_out_of_form(old: str, new: str, found: str) -> None:
    assert old in GOOD
    assert any(found in problem for problem in changelog.problems(GOOD.replace(old, new, 1), "0.3.0.dev0"))


def test_a_release_has_a_section_and_its_own_tag() -> None:
    assert any("0.3.0 has no section" in problem for problem in changelog.problems(GOOD, "0.3.0"))
    assert any("must be one" in problem for problem in changelog.problems(GOOD, "0.2.0", tag="v0.3.0"))
    assert any("no release" in problem for problem in changelog.problems(GOOD, "0.2.0.dev0", "v0.2.0.dev0"))


def test_as_a_release_calls_it(tmp_path: Path) -> None:
    (tmp_path / "src/octavo").mkdir(parents=True)
    (tmp_path / "src/octavo/version.py").write_text('__version__ = "0.1.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(GOOD)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, changelog.__file__, "--root", str(tmp_path), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert run("--tag", "v0.1.0").returncode == 0
    assert run("--tag", "v0.2.0").returncode == 1
    assert run("--notes", "0.1.0").stdout == "### Added\n- Another.\n"
    assert run("--notes", "9.9.9").returncode == 1
