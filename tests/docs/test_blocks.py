"""Every code block in the documentation is executed, or parsed by the program that would read it. A block in
an unknown language fails the test: add a check for it here."""

import json
import re
import subprocess
import textwrap
import tomllib

import pytest
import yaml

from docs.pages import ROOT, Block, all_blocks, blocks, is_made, pages
from octavo.cli.main import build_parser
from octavo.config import resolve_options
from octavo.dialect.syntax_tree import syntax_tree

# The test file that runs the blocks with each marker, collected from all pages.
RUNNERS = {
    "terminal": "tests/docs/test_commands.py",
    "python": "tests/docs/test_commands.py",
    "serve": "tests/docs/test_server_docs.py",
    "curl": "tests/docs/test_server_docs.py",
    "client": "tests/docs/test_server_docs.py",
    "resume": "tests/docs/test_server_docs.py",
    "structured": "tests/docs/test_server_docs.py",
    "tools": "tests/docs/test_server_docs.py",
    "offline": "tests/docs/test_server_docs.py",
    "check": "tests/server/test_conformance.py",
    "config": "tests/docs/test_blocks.py",
    "bench": "tests/docs/test_benchmarking_docs.py",
    "load": "tests/docs/test_benchmarking_docs.py",
    "ray-data": "tests/on_ray/test_batch.py",
}
# Programs other than Octavo that may appear on the pages.
PROGRAMS = {
    "pip", "python", "python3", "make", "mkdocs", "export", "source", "echo", "openssl", "curl", "docker",
    "kubectl", "install", "systemctl", "guidellm", "vllm", "lm_eval", "numactl", "taskset", "lscpu", "git",
    "(umask", "npm", "pytest", "promtool", "ray", "open-webui",
}  # fmt: skip
EXCERPTS = ("python", "cpp", "toml")


def check(block: Block) -> None:
    if block.title is not None:
        check_excerpt(block)
    elif block.language == "console":
        check_console(block)
    elif block.language == "python":
        syntax_tree(block.body)  # and mypy, in test_types
    elif block.language == "json":
        json.loads(block.body)
    elif block.language == "toml":
        tomllib.loads(block.body)
    elif block.language == "yaml":
        check_yaml(block)
    else:
        assert block.language == "text", f"{block}: there is no check for {block.language!r}"
        assert block.marker is None, block


def check_console(block: Block) -> None:
    assert block.commands, f"{block}: a console block must begin with '$ '"
    for command in block.commands:
        done = subprocess.run(["bash", "-n"], input=command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{block}: {command}\n{done.stderr}"
        for part in re.split(r"&&|\|", command.replace("\\\n", " ")):
            program = (
                re.sub(r"^\s*(\w+=(\"[^\"]*\"|\S*)\s+)*", "", part.strip()).split(" ")[0].rpartition("/")[2]
            )
            assert program in PROGRAMS | {"octavo"}, f"{block}: unknown program {program!r}"
            if program == "octavo":
                parse_octavo(block, part)


def parse_octavo(block: Block, command: str) -> None:
    """Check that the command-line parser accepts the arguments."""
    words = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {command[command.index('octavo') :]}"],
        env=VARIABLES_SET,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")[1:-1]
    words = words[: words.index("<")] if "<" in words else words
    try:
        build_parser().parse_args(words)
    except SystemExit as end:  # argparse has printed the reason
        raise AssertionError(f"{block}: octavo does not accept {words}") from end


VARIABLES_SET = {"MODEL": "m.gguf", "KEY": "k", "PATH": "/usr/bin:/bin", "HOST": "127.0.0.1"}


def check_yaml(block: Block) -> None:
    content = yaml.safe_load(block.body)
    assert content is not None, block
    if block.marker == "config":  # a file for --config
        resolve_options(content, {})


def check_excerpt(block: Block) -> None:
    """Check that the parts between `...` occur in the file literally and in this order."""
    assert block.language in EXCERPTS, block
    assert block.title is not None
    source = (ROOT / block.title).read_text().splitlines()
    at = 0
    for part in re.split(r"^\s*(?:#|//)? ?\.\.\.\n", block.body, flags=re.MULTILINE):
        lines = textwrap.dedent(part).rstrip("\n").splitlines()
        at = position(lines, source, at)
        assert at >= 0, f"{block}: {block.title} does not contain these lines:\n{part}"


def position(lines: list[str], source: list[str], start: int) -> int:
    """Return the index after the lines in the source, at any indentation, or -1 if they are absent."""
    for at in range(start, len(source) - len(lines) + 1):
        window = source[at : at + len(lines)]
        if textwrap.dedent("\n".join(window)).splitlines() == lines:
            return at + len(lines)
    return -1


@pytest.mark.parametrize("page", [page for page in pages() if not is_made(page)])
def test_code_blocks_are_valid(page: str) -> None:
    for block in blocks(page):
        check(block)


def test_every_marked_block_has_a_test() -> None:
    for block in all_blocks():
        if block.marker is not None:
            runner = RUNNERS.get(block.marker)
            assert runner is not None, f"{block}: no test runs blocks marked {block.marker!r}"
            assert f'"{block.marker}"' in (ROOT / runner).read_text() or block.marker in ("check",), block


@pytest.mark.parametrize(
    "block",
    [
        Block("page", 1, "fortran", None, None, "END"),
        Block("page", 1, "(indented)", None, None, "x"),
        Block("page", 1, "json", None, None, "{'a': 1}"),
        Block("page", 1, "toml", None, None, "a = none"),
        Block("page", 1, "console", None, None, "$ octavo serve m --no-such-flag\n"),
        Block("page", 1, "console", None, None, "$ octavo generate m -p 'unfinished\n"),
        Block("page", 1, "console", None, None, "output without a command\n"),
        Block("page", 1, "yaml", None, "config", "block_sice: 3\n"),
        Block("page", 1, "python", "src/octavo/plan.py", None, "class StepPlan(msgspec.Struct):\n"),
    ],
    ids=lambda block: f"{block.language} {block.body[:12].strip()}",
)
def test_invalid_blocks_are_detected(block: Block) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011
        check(block)
