"""Flags, variables, files and tests named in the documentation exist."""

import re
from functools import cache

import pytest
from reference import leaf_parsers

from docs.pages import ROOT, code_words, pages
from octavo.cli.main import build_parser
from octavo.config import EngineOptions, ReplicaOptions, ServerOptions, option_specs
from octavo.config.definition import variable_of
from octavo.config.sources import OTHER_VARIABLES

FLAG = re.compile(r"--[a-z][\w-]*")
VARIABLE = re.compile(r"OCTAVO_[A-Z_]+")
TEST = re.compile(r"(tests/[\w/]+\.py)::(\w+)")
FILE = re.compile(r"(?<![\w/])(?:src|tests|tools|benchmarks|deploy|examples|docs)/[\w./-]+\w")
OTHERS = {  # flags of other programs, by page
    "docs/evaluate.md": {"--apply_chat_template", "--model"},
    "docs/deploy.md": {"--build-arg", "--from-literal"},
    "docs/releasing.md": {"--require-hashes"},
    "docs/tune.md": {"--cpuset-cpus", "--cpuset-mems", "--cpunodebind", "--membind", "--cpus", "--memory"},
    "docs/decisions/0014-documentation.md": {"--strict"},
    "docs/reference/http.md": {"--max-logprobs"},
}
MIGRATION = "docs/migrate.md"


@cache
def flags() -> frozenset[str]:
    parsers = [parser for _, _, parser in leaf_parsers(build_parser())]
    return frozenset(
        flag for parser in parsers for action in parser._actions for flag in action.option_strings
    ) | {"--version"}


@cache
def variables() -> frozenset[str]:
    specs = [spec for kind in (EngineOptions, ServerOptions, ReplicaOptions) for spec in option_specs(kind)]
    return frozenset(variable_of(name) for spec in specs for name in spec.names)


@pytest.mark.parametrize("page", [page for page in pages() if page != MIGRATION])
def test_flags_exist(page: str) -> None:
    named = {
        flag for word in code_words(page) for flag in FLAG.findall(word) if word.startswith(("--", "octavo "))
    }
    assert named - OTHERS.get(page, set()) <= flags()


def test_migration_flags_exist() -> None:
    """The first column of the tables has the flag of the other engine, the second has ours."""
    rows = [
        line.split(" | ") for line in (ROOT / MIGRATION).read_text().splitlines() if line.startswith("| `")
    ]
    ours = {flag for row in rows for flag in FLAG.findall(row[1])}
    assert len(ours) > 20
    assert ours <= flags()
    assert all(len(row) == 3 for row in rows)


@pytest.mark.parametrize("page", pages())
def test_variables_exist(page: str) -> None:
    named = {name for word in code_words(page) for name in VARIABLE.findall(word)}
    assert {name for name in named if not OTHER_VARIABLES.fullmatch(name)} <= variables() | {"OCTAVO_"}


@pytest.mark.parametrize("page", [page for page in pages() if page != "CHANGELOG.md"])
def test_files_exist(page: str) -> None:
    named = {name for word in code_words(page) for name in FILE.findall(word) if " " not in word}
    missing = {name for name in named if not (ROOT / name).exists() and not list(ROOT.glob(name + "*"))}
    assert not missing


@pytest.mark.parametrize("page", pages())
def test_tests_exist(page: str) -> None:
    """Pages cite tests as evidence."""
    for file, name in TEST.findall(" ".join(code_words(page))):
        assert f"def {name}(" in (ROOT / file).read_text(), f"{file} has no {name}"
