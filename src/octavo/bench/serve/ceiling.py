"""Measures how much load the client can generate, against a stub server that computes nothing."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from octavo.bench.serve.arrivals import Closed
from octavo.bench.serve.lengths import Fixed
from octavo.bench.serve.load import run_load
from octavo.bench.serve.target import find_target
from octavo.bench.serve.workload import Workload
from octavo.errors import OctavoError


@dataclass(frozen=True)
class Ceiling:
    """The maximum throughput of the client. The stub server writes one token per chunk."""

    concurrency: int
    output_tokens: int
    chunks_per_second: float  # as measured, limited by the stub server as well
    chunks_per_core_second: float  # per second of the client's processor time: what one core can read
    requests_per_core_second: float


@contextmanager
def stub_server() -> Iterator[str]:
    """Run a stub server and yield its URL."""
    command = [sys.executable, "-m", "octavo.bench.serve.stub"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            port = process.stdout.readline().decode().strip()
            if not port:
                raise OctavoError(
                    "the stub server did not start: run python -m octavo.bench.serve.stub to see why"
                )
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def measure_ceiling(concurrency: int, output_tokens: int, num_requests: int) -> Ceiling:
    workload = Workload(
        "ceiling",
        "maximum speed of the client",
        num_requests,
        Closed(concurrency),
        Fixed(128),
        Fixed(output_tokens),
    )
    with stub_server() as url:
        report = run_load(find_target(url), workload, seed=0)
    summary = report.summary
    if summary.num_failed:
        raise OctavoError(f"the stub server failed: {report.warnings[-1]}")
    core_seconds = report.client.cpu_fraction * summary.seconds
    return Ceiling(
        concurrency,
        output_tokens,
        summary.num_chunks / summary.seconds,
        summary.num_chunks / core_seconds,
        summary.num_requests / core_seconds,
    )
