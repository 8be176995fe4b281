"""The commands in docs/benchmarking.md run. A stub server answers, since only the client is tested here."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.pages import Block, marked, text_of
from octavo.bench.serve import WORKLOADS
from octavo.bench.serve.ceiling import stub_server

PAGE = "docs/benchmarking.md"
DEFAULT_URL = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with stub_server() as url:
        yield url


def block(kind: str) -> Block:
    """Return the only block with this marker on any page."""
    ((page, (found,)),) = marked(kind).items()
    assert page == PAGE
    return found


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("command", block("bench").commands)
def test_documented_commands_run(command: str, url: str, tmp_path: Path) -> None:
    arguments = command.removeprefix("octavo ").replace(DEFAULT_URL, url).split()
    said = run(tmp_path, sys.executable, "-m", "octavo.cli.main", *arguments)
    assert re.search(r"tokens/s|knee", said)
    written = {path.name for path in tmp_path.iterdir()}
    assert written == set(re.findall(r"\w+\.(?:html|json)", command))


def test_documented_python_runs(url: str, tmp_path: Path) -> None:
    said = run(tmp_path, sys.executable, "-c", block("load").body.replace(DEFAULT_URL, url))
    assert re.match(r"\d+ tokens/s with seed \d+; Distribution\(count=16, ", said)


def test_workload_table_matches_the_code() -> None:
    rows = {
        cells[0].strip("`"): cells[1:]
        for line in text_of(PAGE).splitlines()
        if (cells := [cell.strip() for cell in line.strip("|").split("|")])[0].strip("`") in WORKLOADS
    }
    assert set(rows) == set(WORKLOADS)
    for name, (requests, arrivals, prompt, output, _) in rows.items():
        workload = WORKLOADS[name]
        shared = f", after {workload.shared:,} shared ones" if workload.shared else ""
        assert int(requests) == workload.num_requests
        assert arrivals == f"`{workload.arrivals}`"
        assert prompt.replace("\\", "").replace("`", "") == f"{workload.prompt}{shared}"
        assert output.replace("`", "") == str(workload.output)
