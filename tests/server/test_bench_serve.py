"""The commands `octavo bench serve` and `sweep`, against a real server on the tiny model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.bench.serve import WORKLOADS, Closed, Fixed, LoadReport, PromptStyle, find_target, run_load
from octavo.bench.serve.workload import Workload
from patience import HANG_SECONDS
from server.process import Server, StartServer

pytestmark = pytest.mark.xdist_group("server")


def octavo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "octavo.cli.main", "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)


def test_the_serve_command(server: Server, tmp_path: Path) -> None:
    files = ("--json", str(tmp_path / "load.json"), "--html", str(tmp_path / "load.html"))
    size = ("--requests", "8", "--prompt", "8-64", "--output", "12", "--arrivals", "poisson:50")
    ran = octavo("serve", server.url, *size, "--slo-ttft", "60s", "--seed", "3", *files)
    assert ran.returncode == 0, ran.stderr
    assert "8 succeeded, 0 failed" in ran.stdout
    assert "(100.0% of requests met the SLO)" in ran.stdout
    report = LoadReport.of_json((tmp_path / "load.json").read_bytes())
    assert report.summary.completion_tokens == 8 * 12
    assert report.summary.prompt_tokens == sum(record.prompt_tokens for record in report.requests)
    for record in report.requests:  # times measured by the server are part of those measured by the client
        assert record.reported_queue_seconds is not None
        assert 0 <= record.reported_queue_seconds <= record.ttft <= record.e2e
    assert f"{report.summary.output_tokens_per_second:,.1f}" in ran.stdout
    assert "<!doctype html>" in (tmp_path / "load.html").read_text()


def test_the_sweep_command(server: Server, tmp_path: Path) -> None:
    files = ("--json", str(tmp_path / "sweep.json"), "--html", str(tmp_path / "sweep.html"))
    size = ("--by", "concurrency", "--to", "2", "--per-level", "1", "--prompt", "8", "--output", "4")
    ran = octavo("sweep", server.url, *size, "--workload", "baseline", "--slo-e2e", "60s", *files)
    assert ran.returncode == 0, ran.stderr
    assert "no knee up to 2 concurrent requests: raise --to" in ran.stdout
    assert [point["level"] for point in json.loads((tmp_path / "sweep.json").read_bytes())["points"]] == [
        1,
        2,
    ]
    assert "<!doctype html>" in (tmp_path / "sweep.html").read_text()


def test_only_the_shared_prefix_is_cached(server: Server) -> None:
    """The server reports cached tokens: in every run, the generated prompts are new to it."""
    target = find_target(server.url)

    def small(name: str, shared: int | None = None) -> Workload:
        return WORKLOADS[name].scaled(
            num_requests=4, prompt=Fixed(40), output=Fixed(2), arrivals=Closed(1), shared=shared
        )

    for _ in range(2):
        alone = run_load(target, small("baseline"))
        assert alone.summary.cached_tokens == 0
        shared = run_load(target, small("prefix_caching", shared=64))
        assert [record.reported_cached_tokens for record in shared.requests] == [0, 64, 64, 64]


@pytest.mark.parametrize("style", list(PromptStyle))
def test_chunks_are_counted_if_the_server_reports_them(style: PromptStyle, server: Server) -> None:
    target = find_target(server.url, style=style, counts_chunks=True)
    small = WORKLOADS["continuous_batching"].scaled(num_requests=4, prompt=Fixed(8), output=Fixed(20))
    report = run_load(target, small, seed=11)
    assert report.summary.num_failed == 0
    for record in report.requests:
        assert record.chunk_tokens is not None
        assert sum(record.chunk_tokens) == record.completion_tokens == 20


def test_a_wrong_key_and_a_wrong_model_are_reported(server: Server, start: StartServer) -> None:
    ran = octavo("serve", server.url, "--model", "other")
    assert ran.returncode == 2
    assert "it has no model 'other'; use --model with one of tiny" in ran.stderr
    locked = start("--api-key", "right")
    locked.wait_until_ready()
    ran = octavo("serve", locked.url, "--api-key", "wrong")
    assert ran.returncode == 2
    assert "set OPENAI_API_KEY or use --api-key" in ran.stderr
