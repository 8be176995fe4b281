"""What the engine shows of itself, told to all who watch. While nobody does, the engine is not asked."""

import asyncio
import time
from collections import deque

import msgspec

import octavo
from octavo.frontend.supervisor import EngineState, EngineSupervisor
from octavo.link.status_page import Phase
from octavo.observe.recent import RecentLatencies
from octavo.observe.request_metrics import RequestMetrics
from octavo.server.http.errors import too_many
from octavo.view import MOST_STEPS, AwayEvent, EngineView, FactsEvent, FinishedRequest

MOST_WATCHERS = 16
MOST_FINISHED = 256  # that a watcher who was busy is told later
LEASE_SECONDS = 2.0
TICK_SECONDS = 0.1
EARLY = 0.75  # of its interval after which a watcher may have the next view: steps do not end on the minute

encode = msgspec.json.Encoder().encode


class Told:
    """Pieces of JSON that every watcher gets once. Of those that somebody has not had, the last are kept."""

    def __init__(self, most: int) -> None:
        self._pieces: deque[bytes] = deque(maxlen=most)
        self.count = 0  # of all that ever came

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self.count += 1

    def skip(self, number: int) -> None:
        self.count += number

    def since(self, seen: int) -> tuple[bytes, int]:
        """Those after the first `seen`, with commas between, and how many of them are not there any more."""
        wanted = self.count - seen
        kept = min(wanted, len(self._pieces))
        pieces = [self._pieces[index] for index in range(len(self._pieces) - kept, len(self._pieces))]
        return b",".join(pieces), wanted - kept


class ViewFeed:
    """Owned by the event loop."""

    def __init__(self, supervisor: EngineSupervisor, metrics: RequestMetrics, model_name: str) -> None:
        self._supervisor = supervisor
        self._metrics = metrics
        self._model_name = model_name
        self._began = time.monotonic()
        self._watchers: list[Watcher] = []
        self._keeper: asyncio.Task[None] | None = None
        self._renew_at = 0.0
        self._leased_life: int | None = None  # of the engine that has the lease
        self.is_closed = False
        self.view_time = 0.0  # of the last view, in seconds since 1970; 0: the engine of now has shown none
        self.head = b""  # the last view but for what it has in lists that watchers get once
        self.steps = Told(MOST_STEPS)
        self.finished = Told(MOST_FINISHED)

    # -- watchers --------------------------------------------------------------------------------------

    @property
    def is_watched(self) -> bool:
        return bool(self._watchers)

    def open(self, interval: float) -> "Watcher":
        """To be closed with `leave`."""
        if len(self._watchers) >= MOST_WATCHERS:
            raise too_many(f"{MOST_WATCHERS} clients are watching already", retry_after=5)
        watcher = Watcher(self, interval)
        self._watchers.append(watcher)
        if self._keeper is None:
            self._leased_life = self.life
            self._metrics.recent = RecentLatencies()
            self._supervisor.on_view = self._take
            self._keeper = asyncio.create_task(self._keep_lease(), name="octavo-view")
        self._renew()
        return watcher

    def leave(self, watcher: "Watcher") -> None:
        self._watchers.remove(watcher)
        if self._watchers:
            return
        assert self._keeper is not None
        self._keeper.cancel()
        self._keeper = self._metrics.recent = self._supervisor.on_view = None
        self.view_time, self.head = 0.0, b""
        self.steps, self.finished = Told(MOST_STEPS), Told(MOST_FINISHED)
        self._supervisor.watch(0.0, 0.0)

    def close(self) -> None:
        """The server ends: so do all who watch it."""
        self.is_closed = True
        self._wake()

    def _wake(self) -> None:
        for watcher in self._watchers:
            watcher.wake()

    # -- the engine --------------------------------------------------------------------------------------

    async def _keep_lease(self) -> None:
        """While somebody watches. Nobody is woken but by a view, or while there is no engine to make one."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if self.life is None or self.life != self._leased_life:
                self._leased_life, self._renew_at, self.view_time = self.life, 0.0, 0.0
                self._wake()
            if self.life is not None and time.monotonic() >= self._renew_at:
                self._renew()

    def _renew(self) -> None:
        interval = min(watcher.interval for watcher in self._watchers)
        self._supervisor.watch(LEASE_SECONDS, interval)
        self._renew_at = time.monotonic() + LEASE_SECONDS / 2

    def _take(self, view: EngineView) -> None:
        """The costly part of an event is encoded here, once for all watchers."""
        recent = self._metrics.recent
        assert recent is not None, "somebody watches"
        self.steps.skip(view.steps_left_out)
        for step in view.steps:
            self.steps.add(encode(step))
        head = {
            "kind": "view",
            "time": view.time,
            "stats": view.stats,
            "pages": view.pages,
            "sequences": view.sequences,
            "waiting": view.waiting,
            "tree": view.tree,
            "latency": recent.latency(time.monotonic()),
        }
        self.head, self.view_time = encode(head)[:-1], view.time
        self._wake()

    def note_finished(self, request: FinishedRequest) -> None:
        self.finished.add(encode(request))

    # -- what is told of the engine as such ----------------------------------------------------------------

    @property
    def life(self) -> int | None:
        """Which engine serves now, counted from 0; None: there is none."""
        return self._supervisor.num_restarts if self._supervisor.state is EngineState.READY else None

    def facts_event(self) -> bytes:
        assert self._supervisor.facts is not None, "there is an engine"
        uptime = round(time.monotonic() - self._began, 3)
        facts = FactsEvent(
            model=self._model_name,
            version=octavo.__version__,
            facts=self._supervisor.facts,
            uptime_seconds=uptime,
        )
        return b"data: " + encode(facts) + b"\n\n"

    def engine_event(self) -> bytes:
        """While there is no engine."""
        status, away = self._supervisor.engine_status, AwayEvent(state="starting")
        if self._supervisor.state in (EngineState.FAILED, EngineState.CLOSED):
            away = AwayEvent(state="failed")
        elif status is not None and status.phase is Phase.LOADING:
            away = AwayEvent(state="loading", done=status.done, total=status.total)
        elif status is not None and status.phase > Phase.LOADING:
            away = AwayEvent(state="loading")
        return b"data: " + encode(away) + b"\n\n"


class Watcher:
    """One client. It is told what is new since it last asked: one that is slow gets fewer views, and none
    waits in memory for it."""

    def __init__(self, feed: ViewFeed, interval: float) -> None:
        self.interval = interval
        self.num_views = 0  # that it was told
        self._feed = feed
        self._woken = asyncio.Event()
        self._woken.set()
        self._is_gone = False
        self._life: int | None = None  # of which it was told the facts
        self._engine = b""  # what it was last told while there was none
        self._view_time = 0.0
        self._steps, self._finished = feed.steps.count, feed.finished.count

    def wake(self) -> None:
        self._woken.set()

    def go(self) -> None:
        """The client has left."""
        self._is_gone = True
        self.wake()

    async def take(self, seconds: float) -> bytes | None:
        """What is new; empty if nothing is in that time, None if nothing will be."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    await self._woken.wait()
                    self._woken.clear()
                    if self._is_gone or self._feed.is_closed:
                        return None
                    if told := self._news():
                        return told
        except TimeoutError:
            return b""

    def _news(self) -> bytes:
        feed = self._feed
        if feed.life is None:
            last, self._engine, self._life = self._engine, feed.engine_event(), None
            return b"" if self._engine == last else self._engine
        told = b""
        if feed.life != self._life:
            self._life, self._engine = feed.life, b""
            told += feed.facts_event()
        if feed.view_time and feed.view_time - self._view_time >= EARLY * self.interval:
            told += self._view()
        return told

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
