"""Clients in threads, for pictures and tests of a server at work."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def crowd(number: int, ask_on: Callable[[int, threading.Event], None]) -> Iterator[None]:
    """So many at once, each in `ask_on(client, is_over)`, which returns soon after `is_over` is set."""
    is_over = threading.Event()
    threads = [threading.Thread(target=ask_on, args=(client, is_over)) for client in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
