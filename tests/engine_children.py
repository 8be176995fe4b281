"""The engine processes that a server or an agent has started."""

import contextlib
from collections.abc import Iterator
from pathlib import Path


def engine_children(pid: int) -> Iterator[int]:
    """Yield the engines among the children of a process. Any of them, and the process, may end meanwhile."""
    children: list[str] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for child in children:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if b".engine" in Path(f"/proc/{child}/cmdline").read_bytes():
                yield int(child)
