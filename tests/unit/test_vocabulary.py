"""Code follows the vocabulary of docs/contributing/style.md: each word has one meaning.

The tests check identifiers, flags and log messages, but not prose.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.config import EngineOptions, Options, ReplicaOptions, ServerOptions, option_specs
from octavo.dialect.syntax_tree import syntax_tree

ROOT = Path(__file__).parents[2]
SOURCES = ("src/octavo", "benchmarks", "tools", "web/src")

# Private words, and the ordinary term for each.
PRIVATE = {
    "blame": "suspect, report",
    "company": "load, batch",
    "contestant": "candidate",
    "door": "admission, validation",
    "flight": "in_flight",
    "fruitless": "failed",
    "guest": "connection",
    "guilty": "culprit",
    "lane": "queue; a SIMD lane",
    "leaving": "disconnect, pending",
    "least": "min",
    "mend": "fix",
    "most": "max",
    "page": "block; a web page, a memory page",
    "passing": "streaming",
    "pulse": "heartbeat",
    "rival": "baseline",
    "stamp": "heartbeat, time",
    "told": "sent, reported",
    "trial": "isolate",
    "wary": "isolating",
    "whom": "the name of the thing",
}
# Identifiers in which a word has its ordinary meaning.
ORDINARY = {
    "flight": re.compile(r"in_flight|InFlight|inFlight|IN_FLIGHT"),
    "lane": re.compile(r"(?i)lanes?"),
    "least": re.compile(r"at_least|least_recent"),
    "most": re.compile(r"at_most|most_common|most_recent|mostly"),
    "page": re.compile(r"(?i)huge_?page|SC_(PAGE_SIZE|PHYS_PAGES)|getpagesize|memory_pages|paged_?attention"),
    "stamp": re.compile(r"(?i)time_?stamp"),
}
# Files about web pages, and about SIMD lanes.
ABOUT = {
    "page": re.compile(
        r"server/(app|lifecycle)\.py|server/operate/page\.py|config/server\.py|bench/serve/|cli/bench_(load|sweep)\.py"
        r"|benchmarks/(peers|progression)/|tools/(docs_site|page_screenshots|reference|changelog)\.py"
    ),
    "lane": re.compile(r"kernels/csrc/"),
}
NO_CODE = re.compile(r"//[^\n]*|/\*.*?\*/|#include[^\n]*|\"[^\"\n]*\"|'[^'\n]*'|`[^`]*`", re.DOTALL)
PYTHON_NAME = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
LEVELS = {"debug", "info", "warning", "error", "critical", "exception"}


def files(*suffixes: str) -> list[Path]:
    found = [path for folder in SOURCES for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
    return [path for path in found if "operate/page/" not in path.as_posix() and path.name != "words.py"]


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in files(".py"):
        yield path.relative_to(ROOT).as_posix(), syntax_tree(path.read_text(encoding="utf-8"))


def python_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module defines or assigns."""
    for node in ast.walk(tree):
        if isinstance(node, PYTHON_NAME):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def other_names(path: Path) -> Iterator[str]:
    """Yield the identifiers of a C++ or TypeScript file, without comments and strings."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(
        r"//[^\n]*|/\*.*?\*/|#include[^\n]*|\"[^\"\n]*\"|'[^'\n]*'|`[^`]*`", "", text, flags=re.DOTALL
    )
    text = re.sub(r">[^<>{}]*<", "><", text) if path.suffix == ".tsx" else text  # text of the web page
    yield from re.findall(r"[A-Za-z_]\w*", text)


def words_of(name: str) -> set[str]:
    words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}
    return words | {word.removesuffix("s") for word in words}


def private_words(name: str, path: str) -> list[str]:
    return [
        f"{path}: {name} ({word}: {PRIVATE[word]})"
        for word in sorted(words_of(name) & PRIVATE.keys())
        if not (word in ORDINARY and ORDINARY[word].search(name))
        and not (word in ABOUT and ABOUT[word].search(path))
    ]


def log_templates() -> Iterator[tuple[str, str]]:
    for path, tree in trees():
        for node in ast.walk(tree):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if not is_call or node.func.attr not in LEVELS or not node.args:  # type: ignore[attr-defined]
                continue
            template = node.args[0]  # type: ignore[attr-defined]
            if isinstance(template, ast.Constant) and isinstance(template.value, str):
                yield path, template.value


@pytest.mark.parametrize("name", ["num_told", "PAGE_SIZE", "openDoors", "MOST_STEPS", "_is_wary"])
def test_private_words_are_found(name: str) -> None:
    assert private_words(name, "x.py")


def test_ordinary_words_are_allowed() -> None:
    assert not private_words("in_flight", "x.py")
    assert not private_words("page_router", "server/operate/page.py")
    assert len(list(log_templates())) > 20


def test_identifiers_have_no_private_words() -> None:
    found: set[str] = set()
    for place, tree in trees():
        found |= {line for name in python_names(tree) for line in private_words(name, place)}
    for path in files(".h", ".cpp", ".ts", ".tsx"):
        place = path.relative_to(ROOT).as_posix()
        found |= {line for name in other_names(path) for line in private_words(name, place)}
    assert not found, "\n".join(sorted(found))


def test_file_names_have_no_private_words() -> None:
    found = [
        line
        for path in files(".py", ".h", ".cpp", ".ts", ".tsx")
        for line in private_words(path.stem, path.relative_to(ROOT).as_posix())
    ]
    assert not found, "\n".join(found)


def test_no_two_classes_share_a_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in trees():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path)
    assert not {name: found for name, found in places.items() if len(found) > 1}


@pytest.mark.parametrize("kind", [EngineOptions, ServerOptions, ReplicaOptions])
def test_flags_and_their_help(
    kind: type[Options],
) -> None:
    for spec in option_specs(kind):
        assert not private_words(spec.name, "config/server.py" if kind is ServerOptions else spec.flag)
        assert not spec.description.endswith("."), spec.flag
        assert not words_of(spec.description) & PRIVATE.keys() - {"flight", "least", "most", "page"}, (
            spec.flag
        )


def test_log_messages_are_one_event_in_plain_words() -> None:
    for path, template in log_templates():
        assert not template.endswith("."), f"{path}: {template}"
        assert re.match(r"[a-z%/]|OCTAVO_|Hugging|GGUF|HTTP|NUMA|TLS|KV", template), f"{path}: {template}"
        words = words_of(template) & PRIVATE.keys() - {"least", "most", "page", "flight"}
        assert not words, f"{path}: {template} ({words})"
