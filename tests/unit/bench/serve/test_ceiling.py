"""The client against a server that computes nothing, as `--ceiling` runs it."""

import time

import httpx
import pytest

from octavo.bench.serve.ceiling import measure_ceiling, stub_server


def test_the_stub_is_a_server_like_others() -> None:
    ceiling = measure_ceiling(concurrency=8, output_tokens=16, num_requests=64)
    assert ceiling.chunks_per_second > 0
    assert ceiling.chunks_per_core_second == pytest.approx(16 * ceiling.requests_per_core_second)


@pytest.mark.timing
def test_a_chunk_costs_much_less_than_a_client_for_people_takes() -> None:
    """Processor time of both, so that neighbours do not matter. It is a tenth; a third would be a fault."""
    ours = measure_ceiling(concurrency=8, output_tokens=128, num_requests=200).chunks_per_core_second
    body = {"model": "stub", "prompt": [1] * 128, "max_tokens": 128, "stream": True}
    with stub_server() as url, httpx.Client() as client:
        began, num_chunks = time.process_time(), 0
        for _ in range(40):
            with client.stream("POST", f"{url}/v1/completions", json=body) as response:
                num_chunks += sum(line.startswith("data:") for line in response.iter_lines())
        theirs = num_chunks / (time.process_time() - began)
    assert ours > 3 * theirs, f"{ours:,.0f} chunks a core-second, and httpx {theirs:,.0f}"
