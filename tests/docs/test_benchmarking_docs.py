"""What docs/benchmarking.md tells people to type works. A stub answers: the client is what counts here."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.bench.serve import WORKLOADS
from octavo.bench.serve.ceiling import stub_server
from octavo.cli import bench_serve

PAGE = (Path(__file__).parents[2] / "docs" / "benchmarking.md").read_text()
BLOCK = re.compile(r"<!-- test: (\w+) -->\n```\w+\n(.*?)```", re.DOTALL)
DEFAULT_URL = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with stub_server() as url:
        yield url


def block(kind: str) -> str:
    (body,) = (body for found, body in BLOCK.findall(PAGE) if found == kind)
    return body


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    return done.stdout


def test_every_block_is_tested() -> None:
    assert PAGE.count("```") == 2 * len(BLOCK.findall(PAGE))


@pytest.mark.parametrize("command", block("bench").splitlines())
def test_commands(command: str, url: str, tmp_path: Path) -> None:
    arguments = command.removeprefix("$ octavo ").replace(DEFAULT_URL, url).split()
    said = run(tmp_path, sys.executable, "-m", "octavo.cli.main", *arguments)
    assert re.search(r"tokens/s|knee", said)
    written = {path.name for path in tmp_path.iterdir()}
    assert written == set(re.findall(r"\w+\.(?:html|json)", command))


def test_from_python(url: str, tmp_path: Path) -> None:
    said = run(tmp_path, sys.executable, "-c", block("python").replace(DEFAULT_URL, url))
    assert re.match(r"\d+ tokens/s, TTFT p99 \d\.\d+ s, seed \d+\n", said)


def test_the_table_of_workloads_is_true() -> None:
    rows = {
        cells[0].strip("`"): cells[1:]
        for line in PAGE.splitlines()
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


def test_every_flag_on_the_page_exists() -> None:
    shown = run(Path(os.curdir), sys.executable, "-m", "octavo.cli.main", "bench", "serve", "--help")
    shown += run(Path(os.curdir), sys.executable, "-m", "octavo.cli.main", "bench", "sweep", "--help")
    flags = set(re.findall(r"`(--[a-z][a-z0-9-]*[a-z0-9])(?![.\w-])", PAGE))
    assert not {flag for flag in flags if flag not in shown}
    assert bench_serve.DESCRIPTION.count("octavo bench serve") == 3
