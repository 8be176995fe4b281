"""The client against a server that computes nothing, as with `--ceiling`, and its cost per chunk."""

import asyncio
import sys
from types import FrameType
from unittest.mock import Mock

import pytest

from octavo.bench.serve.answer import MeasuredAnswer
from octavo.bench.serve.ceiling import measure_ceiling
from octavo.bench.serve.connection import LoadConnection
from octavo.bench.serve.stub import END, HEAD, WORD_CHUNKS


def test_the_client_runs_against_the_stub() -> None:
    ceiling = measure_ceiling(concurrency=8, output_tokens=16, num_requests=64)
    assert ceiling.chunks_per_second > 0
    assert ceiling.chunks_per_core_second == pytest.approx(16 * ceiling.requests_per_core_second)


def calls_to_read(connection: LoadConnection, chunks: list[bytes]) -> int:
    """Count Python and C calls: elapsed time would depend on other load on the machine."""
    num_calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal num_calls
        num_calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        for chunk in chunks:
            connection.data_received(chunk)
    finally:
        sys.setprofile(before)
    return num_calls


async def read_whole_answer(answer: MeasuredAnswer) -> int:
    """Return the number of calls for all chunks of an answer."""
    connection = LoadConnection()
    connection.connection_made(Mock(asyncio.Transport))
    asked = asyncio.ensure_future(connection.ask(b"", answer))
    await asyncio.sleep(0)
    connection.data_received(HEAD)
    num_calls = calls_to_read(connection, WORD_CHUNKS)
    connection.data_received(END)
    await asked
    return num_calls


def test_a_chunk_costs_few_calls() -> None:
    """Calls of the clock, the parser, the line, its JSON and the record. httpx needs a hundred."""
    answer, num_chunks = MeasuredAnswer(0.0), len(WORD_CHUNKS)
    num_calls = asyncio.run(read_whole_answer(answer))
    assert (len(answer.chunk_times), answer.is_done, answer.error) == (num_chunks, True, None)
    assert num_calls <= 14 * num_chunks, f"{num_calls / num_chunks:.1f} calls a chunk"
