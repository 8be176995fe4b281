"""The client against a server that computes nothing, as `--ceiling` runs it."""

from octavo.bench.serve.ceiling import measure_ceiling


def test_the_stub_is_a_server_like_others() -> None:
    ceiling = measure_ceiling(concurrency=8, output_tokens=16, num_requests=64)
    assert ceiling.chunks_per_second > 0
    assert ceiling.chunks_per_core_second == 16 * ceiling.requests_per_core_second
