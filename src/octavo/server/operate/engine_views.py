"""The views of one engine, encoded once for all its watchers."""

from collections import deque
from typing import Any

import msgspec

from octavo.view import MAX_STEPS, EngineView, Latency

encode = msgspec.json.Encoder().encode


def event(content: Any) -> bytes:
    return b"data: " + encode(content) + b"\n\n"


class RecentPieces:
    """Pieces of JSON that every watcher gets once. Only the last `limit` pieces are kept."""

    def __init__(self, limit: int) -> None:
        self._pieces: deque[bytes] = deque(maxlen=limit)
        self.count = 0  # of all pieces ever added or skipped

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self.count += 1

    def skip(self, number: int) -> None:
        self.count += number

    def since(self, seen: int) -> tuple[bytes, int]:
        """Return the pieces after the first `seen`, comma-separated, and how many of them are lost."""
        unseen = self.count - seen
        kept = min(unseen, len(self._pieces))
        pieces = [self._pieces[index] for index in range(len(self._pieces) - kept, len(self._pieces))]
        return b",".join(pieces), unseen - kept


class EngineViews:
    """Changed by ViewFeed only."""

    def __init__(self, replica: str) -> None:
        self.replica = replica
        self.interval = 0.0  # seconds between views that the engine was asked for
        self.renew_at = 0.0  # when it has to be asked again
        self.time = 0.0  # of the last view, in seconds since 1970; 0: there was none
        self.head = b""  # the last view, without the lists that every watcher gets once
        self.steps = RecentPieces(MAX_STEPS)

    def note(self, view: EngineView, latency: Latency) -> None:
        self.steps.skip(view.steps_left_out)
        for step in view.steps:
            self.steps.add(encode(step))
        head = {
            "kind": "view",
            "time": view.time,
            "stats": view.stats,
            "blocks": view.blocks,
            "sequences": view.sequences,
            "waiting": view.waiting,
            "tree": view.tree,
            "latency": latency,
        }
        self.head, self.time = encode(head)[:-1], view.time
