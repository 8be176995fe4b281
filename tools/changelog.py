"""Check the format of CHANGELOG.md: `python tools/changelog.py`, run by `make lint`.

    python tools/changelog.py                 check the format; a version without .dev must have a section
    python tools/changelog.py --tag v0.1.0    also check that the tag matches the version, before a release
    python tools/changelog.py --notes 0.1.0   print the section, for the release page

The format is that of Keep a Changelog: `## Unreleased` first, then `## 0.1.0 - 2026-11-30` and older
releases, each with `### Added`, `### Changed` and so on.
"""

import argparse
import ast
import datetime
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
UNRELEASED = "Unreleased"
RELEASE = re.compile(r"(\d+)\.(\d+)\.(\d+) - (\d{4}-\d\d-\d\d)")


@dataclass(frozen=True)
class Section:
    title: str  # text after `## `
    body: str

    @property
    def version(self) -> str:
        return self.title.partition(" - ")[0]


def sections(text: str) -> list[Section]:
    parts = re.split(r"^## +(.*)$", text, flags=re.MULTILINE)[1:]
    return [Section(title.strip(), body.strip()) for title, body in zip(parts[::2], parts[1::2], strict=True)]


def problems(text: str, version: str, tag: str | None = None) -> Iterator[str]:
    """Yield what is wrong. `version` is that of the package."""
    found = sections(text)
    if not found or found[0].title != UNRELEASED:
        yield f"the first section is not `## {UNRELEASED}`"
    yield from order_problems([section for section in found if section.title != UNRELEASED])
    for section in found:
        yield from body_problems(section)
    released = {section.version for section in found}
    if ".dev" not in version and version not in released:
        yield f"{version} has no section: rename `## {UNRELEASED}` to `## {version} - DATE`"
    if tag is not None and tag != f"v{version}":
        yield f"the tag {tag} does not match the package version {version}: they must be equal"
    if tag is not None and ".dev" in version:
        yield f"{version} is a development version, not a release"


def order_problems(released: Sequence[Section]) -> Iterator[str]:
    before: tuple[tuple[int, ...], datetime.date] | None = None
    for section in released:
        match = RELEASE.fullmatch(section.title)
        if match is None:
            yield f"`## {section.title}` is not of the form `## 0.1.0 - 2026-11-30`"
            continue
        try:
            this = tuple(map(int, match.groups()[:3])), datetime.date.fromisoformat(match[4])
        except ValueError:
            yield f"{section.version}: invalid date {match[4]}"
            continue
        if before is not None and not (this[0] < before[0] and this[1] <= before[1]):
            yield f"{section.version} is below an older release: the newest comes first"
        before = this


def body_problems(section: Section) -> Iterator[str]:
    kinds = re.findall(r"^### +(.*)$", section.body, flags=re.MULTILINE)
    for kind in kinds:
        if kind not in KINDS:
            yield f"{section.title}: `### {kind}` is not one of {', '.join(KINDS)}"
    if len(set(kinds)) < len(kinds):
        yield f"{section.title}: duplicate `###` heading"
    if section.title != UNRELEASED and not re.search(r"^- ", section.body, flags=re.MULTILINE):
        yield f"{section.title} has no entries"


def package_version(root: Path) -> str:
    """Read the version from the source, so that the package need not be installed."""
    tree = ast.parse((root / "src/octavo/version.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__":
            return str(ast.literal_eval(node.value))
    raise ValueError("src/octavo/version.py does not set __version__")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check CHANGELOG.md, or print one of its sections.")
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--tag", help="tag of the planned release")
    parser.add_argument("--notes", metavar="VERSION", help="print the section of this version without checks")
    options = parser.parse_args(arguments)
    text = (options.root / "CHANGELOG.md").read_text(encoding="utf-8")
    if options.notes is not None:
        bodies = [section.body for section in sections(text) if section.version == options.notes]
        print("\n".join(bodies))
        return 0 if bodies else 1
    found = list(problems(text, package_version(options.root), options.tag))
    for problem in found:
        print(f"error: CHANGELOG.md: {problem}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
