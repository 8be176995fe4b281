"""Concurrent clients in threads, for screenshots and tests of a busy server."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def crowd(number: int, run_client: Callable[[int, threading.Event], None]) -> Iterator[None]:
    """Run `run_client(client, is_over)` in `number` threads; it must return soon after `is_over` is set."""
    is_over = threading.Event()
    threads = [threading.Thread(target=run_client, args=(client, is_over)) for client in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
