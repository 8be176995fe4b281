"""The format of the changelog, and the requirements of a release."""

import subprocess
import sys
from pathlib import Path

import changelog
import pytest

from patience import HANG_SECONDS

GOOD = """# Changelog

## Unreleased

## 0.2.0 - 2026-12-01

### Fixed
- A thing.

## 0.1.0 - 2026-11-30

### Added
- Another.
"""


def test_a_valid_changelog_passes() -> None:
    assert list(changelog.problems(GOOD, "0.2.0")) == []
    assert list(changelog.problems(GOOD, "0.2.0", tag="v0.2.0")) == []
    assert list(changelog.problems(GOOD, "0.3.0.dev0")) == []


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("## Unreleased\n", "", "first section"),
        ("## 0.2.0 -", "## 0.0.9 -", "newest comes first"),
        ("2026-12-01", "2026-11-01", "newest comes first"),
        ("2026-12-01", "2026-12-32", "invalid date"),
        ("0.2.0 - 2026-12-01", "0.2.0", "is not of the form"),
        ("### Fixed", "### Mended", "is not one of"),
        ("### Fixed\n- A thing.", "### Fixed\n", "has no entries"),
        ("- Another.", "### Added\n- Another.", "duplicate"),
    ],
)
def test_format_errors_are_found(old: str, new: str, found: str) -> None:
    assert old in GOOD
    assert any(found in problem for problem in changelog.problems(GOOD.replace(old, new, 1), "0.3.0.dev0"))


def test_a_release_needs_a_section_and_a_matching_tag() -> None:
    assert any("0.3.0 has no section" in problem for problem in changelog.problems(GOOD, "0.3.0"))
    assert any("must be equal" in problem for problem in changelog.problems(GOOD, "0.2.0", tag="v0.3.0"))
    assert any(
        "not a release" in problem for problem in changelog.problems(GOOD, "0.2.0.dev0", "v0.2.0.dev0")
    )


def test_the_command_as_the_release_runs_it(tmp_path: Path) -> None:
    (tmp_path / "src/octavo").mkdir(parents=True)
    (tmp_path / "src/octavo/version.py").write_text('__version__ = "0.1.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(GOOD)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, changelog.__file__, "--root", str(tmp_path), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG_SECONDS)

    assert run("--tag", "v0.1.0").returncode == 0
    assert run("--tag", "v0.2.0").returncode == 1
    assert run("--notes", "0.1.0").stdout == "### Added\n- Another.\n"
    assert run("--notes", "9.9.9").returncode == 1
