"""Distributes views of the engine to watching clients. Without watchers, the engine makes no views."""

import asyncio
import time
from collections import deque

import msgspec

import octavo
from octavo.frontend.supervisor import EngineState
from octavo.link.heartbeat import Phase
from octavo.membership.local import LocalReplicas
from octavo.observe.recent import RecentLatencies
from octavo.observe.request_metrics import RequestMetrics
from octavo.server.http.errors import too_many
from octavo.view import MAX_STEPS, AwayEvent, EngineView, FactsEvent, FinishedRequest

MAX_WATCHERS = 16
MAX_FINISHED = 256  # finished requests kept for slow watchers
LEASE_SECONDS = 2.0
TICK_SECONDS = 0.1
EARLY = 0.75  # fraction of its interval after which a watcher gets the next view: steps vary in length

encode = msgspec.json.Encoder().encode


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


class ViewFeed:
    """Owned by the event loop."""

    def __init__(self, replicas: LocalReplicas, metrics: RequestMetrics, model_name: str) -> None:
        self._replicas = replicas
        self._metrics = metrics
        self._model_name = model_name
        self._began = time.monotonic()
        self._watchers: list[Watcher] = []
        self._keeper: asyncio.Task[None] | None = None
        self._renew_at = 0.0
        self._leased_life: tuple[str, int] | None = None  # `life` of the engine that has the lease
        self.is_closed = False
        self.view_time = 0.0  # of the last view, in seconds since 1970; 0: the current engine has sent none
        self.head = b""  # the last view, without the lists that every watcher gets once
        self.steps = RecentPieces(MAX_STEPS)
        self.finished = RecentPieces(MAX_FINISHED)

    # -- watchers --------------------------------------------------------------------------------------

    @property
    def is_watched(self) -> bool:
        return bool(self._watchers)

    def open(self, interval: float) -> "Watcher":
        """Add a watcher, which the caller must remove with `remove`."""
        if len(self._watchers) >= MAX_WATCHERS:
            raise too_many(f"{MAX_WATCHERS} clients already watch the engine", retry_after=5)
        watcher = Watcher(self, interval)
        self._watchers.append(watcher)
        if self._keeper is None:
            self._leased_life = self.life
            self._metrics.recent = RecentLatencies()
            self._replicas.on_view = self._take
            self._keeper = asyncio.create_task(self._keep_lease(), name="octavo-view")
        self._renew()
        return watcher

    def remove(self, watcher: "Watcher") -> None:
        self._watchers.remove(watcher)
        if self._watchers:
            return
        assert self._keeper is not None
        self._keeper.cancel()
        self._keeper = self._metrics.recent = self._replicas.on_view = None
        self.view_time, self.head = 0.0, b""
        self.steps, self.finished = RecentPieces(MAX_STEPS), RecentPieces(MAX_FINISHED)
        self._replicas.watch(0.0, 0.0)

    def close(self) -> None:
        """End all streams, because the server shuts down."""
        self.is_closed = True
        self._wake()

    def _wake(self) -> None:
        for watcher in self._watchers:
            watcher.wake()

    # -- the engine --------------------------------------------------------------------------------------

    async def _keep_lease(self) -> None:
        """Renew the lease while there are watchers; wake them when the engine changes or is missing."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if self.life is None or self.life != self._leased_life:
                self._leased_life, self._renew_at, self.view_time = self.life, 0.0, 0.0
                self._wake()
            if self.life is not None and time.monotonic() >= self._renew_at:
                self._renew()

    def _renew(self) -> None:
        interval = min(watcher.interval for watcher in self._watchers)
        self._replicas.watch(LEASE_SECONDS, interval)
        self._renew_at = time.monotonic() + LEASE_SECONDS / 2

    def _take(self, view: EngineView) -> None:
        """Encode the expensive part of an event once for all watchers."""
        recent = self._metrics.recent
        assert recent is not None, "set while there are watchers"
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
            "latency": recent.latency(time.monotonic()),
        }
        self.head, self.view_time = encode(head)[:-1], view.time
        self._wake()

    def note_finished(self, request: FinishedRequest) -> None:
        self.finished.add(encode(request))

    # -- events about the engine -----------------------------------------------------------------------

    @property
    def life(self) -> tuple[str, int] | None:
        """What identifies the engine that is shown: its replica, and a number; None if none is ready."""
        shown = self._replicas.shown
        return None if shown is None else (shown.name, shown.num_restarts)

    def facts_event(self) -> bytes:
        assert self._replicas.facts is not None, "there is an engine"
        uptime = round(time.monotonic() - self._began, 3)
        facts = FactsEvent(
            model=self._model_name,
            version=octavo.__version__,
            facts=self._replicas.facts,
            uptime_seconds=uptime,
        )
        return b"data: " + encode(facts) + b"\n\n"

    def engine_event(self) -> bytes:
        """Return the state of the engine while none is ready."""
        status, away = self._replicas.engine_heartbeat, AwayEvent(state="starting")
        if self._replicas.state in (EngineState.FAILED, EngineState.CLOSED):
            away = AwayEvent(state="failed")
        elif status is not None and status.phase is Phase.LOADING:
            away = AwayEvent(state="loading", done=status.done, total=status.total)
        elif status is not None and status.phase > Phase.LOADING:
            away = AwayEvent(state="loading")
        return b"data: " + encode(away) + b"\n\n"


class Watcher:
    """One watching client. It gets what is new since its last call: a slow client gets fewer views, and no
    views are queued for it."""

    def __init__(self, feed: ViewFeed, interval: float) -> None:
        self.interval = interval
        self.num_views = 0  # sent so far
        self._feed = feed
        self._woken = asyncio.Event()
        self._woken.set()
        self._is_disconnected = False
        self._life: tuple[str, int] | None = None  # of the engine whose facts were sent
        self._engine = b""  # last engine event sent
        self._view_time = 0.0
        self._steps, self._finished = feed.steps.count, feed.finished.count

    def wake(self) -> None:
        self._woken.set()

    def disconnect(self) -> None:
        """End the stream, because the client has disconnected."""
        self._is_disconnected = True
        self.wake()

    async def take(self, seconds: float) -> bytes | None:
        """Return new events, empty if there are none within `seconds`, None if the stream has ended."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    await self._woken.wait()
                    self._woken.clear()
                    if self._is_disconnected or self._feed.is_closed:
                        return None
                    if events := self._new_events():
                        return events
        except TimeoutError:
            return b""

    def _new_events(self) -> bytes:
        feed = self._feed
        if feed.life is None:
            last, self._engine, self._life = self._engine, feed.engine_event(), None
            return b"" if self._engine == last else self._engine
        events = b""
        if feed.life != self._life:
            self._life, self._engine = feed.life, b""
            events += feed.facts_event()
        if feed.view_time and feed.view_time - self._view_time >= EARLY * self.interval:
            events += self._view()
        return events

    def _view(self) -> bytes:
        feed = self._feed
        steps, steps_left_out = feed.steps.since(self._steps)
        finished, finished_left_out = feed.finished.since(self._finished)
        self._steps, self._finished = feed.steps.count, feed.finished.count
        self._view_time = feed.view_time
        self.num_views += 1
        return b"".join(
            (
                b"data: ",
                feed.head,
                b',"steps":[%b],"steps_left_out":%d' % (steps, steps_left_out),
                b',"finished":[%b],"finished_left_out":%d}\n\n' % (finished, finished_left_out),
            )
        )
