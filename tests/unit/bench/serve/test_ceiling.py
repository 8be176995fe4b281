"""The client against a server that computes nothing, as `--ceiling` runs it; and what a chunk costs it."""

import asyncio
import sys
from types import FrameType
from unittest.mock import Mock

import pytest

from octavo.bench.serve.answer import Answer
from octavo.bench.serve.ceiling import measure_ceiling
from octavo.bench.serve.connection import Connection
from octavo.bench.serve.stub import END, HEAD, WORD_CHUNKS


def test_the_stub_is_a_server_like_others() -> None:
    ceiling = measure_ceiling(concurrency=8, output_tokens=16, num_requests=64)
    assert ceiling.chunks_per_second > 0
    assert ceiling.chunks_per_core_second == pytest.approx(16 * ceiling.requests_per_core_second)


def calls_to_read(connection: Connection, chunks: list[bytes]) -> int:
    """Calls of Python and of C: counted, as a clock would tell more of the neighbours than of the client."""
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


async def read_whole_answer(answer: Answer) -> int:
    """The calls that its chunks cost."""
    connection = Connection()
    connection.connection_made(Mock(asyncio.Transport))
    asked = asyncio.ensure_future(connection.ask(b"", answer))
    await asyncio.sleep(0)
    connection.data_received(HEAD)
    num_calls = calls_to_read(connection, WORD_CHUNKS)
    connection.data_received(END)
    await asked
    return num_calls


def test_a_chunk_costs_few_calls() -> None:
    """The clock, the parser, the line, its JSON and what is kept of it. For httpx it is a hundred."""
    answer, num_chunks = Answer(0.0), len(WORD_CHUNKS)
    num_calls = asyncio.run(read_whole_answer(answer))
    assert (len(answer.chunk_times), answer.is_done, answer.error) == (num_chunks, True, None)
    assert num_calls <= 14 * num_chunks, f"{num_calls / num_chunks:.1f} calls a chunk"
