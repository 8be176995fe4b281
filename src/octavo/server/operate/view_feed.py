"""Distributes views of engines to watching clients. An engine without watchers makes no views."""

import asyncio
import logging
import math
import time
from functools import partial

import octavo
from octavo.frontend.supervisor import EngineState
from octavo.link.heartbeat import Phase
from octavo.membership.membership import Membership
from octavo.observe.recent import RecentLatencies
from octavo.observe.request_metrics import RequestMetrics
from octavo.server.http.errors import too_many
from octavo.server.operate.engine_views import EngineViews, RecentPieces, encode, event
from octavo.view import AwayEvent, EngineView, FactsEvent, FinishedRequest, FleetEvent, Latency

logger = logging.getLogger(__name__)

MAX_WATCHERS = 16
MAX_FINISHED = 256  # finished requests kept for slow watchers
LEASE_SECONDS = 2.0
TICK_SECONDS = 0.1
FLEET_SECONDS = 1.0
EARLY = 0.75  # fraction of its interval after which a watcher gets the next view: steps vary in length

EngineId = tuple[str, int]  # its replica, and the number of its restarts


class ViewFeed:
    """Owned by the event loop.

    With every tick it decides whose engine each watcher sees, and renews the leases of those engines.
    """

    def __init__(self, replicas: Membership, metrics: RequestMetrics, model_name: str) -> None:
        self._replicas = replicas
        self._metrics = metrics
        self._model_name = model_name
        self._began = time.monotonic()
        self._watchers: list[Watcher] = []
        self._watched: dict[EngineId, EngineViews] = {}
        self._keeper: asyncio.Task[None] | None = None
        self.is_closed = False
        self._latency, self._latency_time = Latency(None, None, None, None), -math.inf
        self.finished = RecentPieces(MAX_FINISHED)
        self.fleet = b""  # the last event about all replicas
        self.fleet_time = -math.inf  # when it was made

    # -- watchers --------------------------------------------------------------------------------------

    @property
    def is_watched(self) -> bool:
        return bool(self._watchers)

    def open(self, interval: float, replica: str | None = None) -> "Watcher":
        """Add a watcher of one replica, or of the first that is usable. The caller must `remove` it.

        Raises UnknownReplica.
        """
        if replica is not None:
            self._replicas.find(replica)
        if len(self._watchers) >= MAX_WATCHERS:
            raise too_many(f"{MAX_WATCHERS} clients already watch the engine", retry_after=5)
        watcher = Watcher(self, interval, replica)
        self._watchers.append(watcher)
        if self._keeper is None:
            self._metrics.recent = RecentLatencies()
            self._keeper = asyncio.create_task(self._keep_leases(), name="octavo-view")
        try:
            self._tick()
        except BaseException:
            self.remove(watcher)
            raise
        return watcher

    def remove(self, watcher: "Watcher") -> None:
        self._watchers.remove(watcher)
        if self._watchers:
            return
        assert self._keeper is not None
        self._keeper.cancel()
        self._keeper = self._metrics.recent = None
        self.finished = RecentPieces(MAX_FINISHED)
        self._renew_leases()

    def close(self) -> None:
        """End all streams, because the server shuts down."""
        self.is_closed = True
        for watcher in self._watchers:
            watcher.wake()

    def note_finished(self, request: FinishedRequest) -> None:
        self.finished.add(encode(request))

    # -- engines -----------------------------------------------------------------------------------------

    async def _keep_leases(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            try:
                self._tick()
            except Exception:  # the next tick may succeed
                logger.exception("failed to renew the views of engines")

    def _tick(self) -> None:
        self._renew_leases()
        now = time.monotonic()
        if now - self.fleet_time >= FLEET_SECONDS:
            self.fleet, self.fleet_time = self._fleet_event(), now
        for watcher in self._watchers:
            if watcher.has_news:
                watcher.wake()

    def _renew_leases(self) -> None:
        """Let each watcher see the engine that it should, and ask these engines for views."""
        intervals: dict[EngineId, float] = {}
        for watcher in self._watchers:
            engine = self._shown(watcher.replica)
            if engine is not None:
                intervals[engine] = min(watcher.interval, intervals.get(engine, math.inf))
                self._watched.setdefault(engine, EngineViews(engine[0]))
            watcher.see(None if engine is None else self._watched[engine])
        for engine in self._watched.keys() - intervals.keys():
            del self._watched[engine]
            if not any(replica == engine[0] for replica, _ in intervals):
                self._replicas.watch(engine[0], 0.0, 0.0, None)
        now = time.monotonic()
        for engine, interval in intervals.items():
            views = self._watched[engine]
            if now >= views.renew_at or interval < views.interval:
                views.interval, views.renew_at = interval, now + LEASE_SECONDS / 2
                self._replicas.watch(engine[0], LEASE_SECONDS, interval, partial(self._take, views))

    def _shown(self, replica: str | None) -> EngineId | None:
        """Return the engine to show to a watcher of this replica, or of any; None if it is not ready."""
        shown = self._replicas.shown if replica is None else self._replicas.named(replica)
        if shown is None or shown.state is not EngineState.READY:
            return None
        return shown.name, shown.num_restarts

    def _take(self, views: EngineViews, view: EngineView) -> None:
        if self._metrics.recent is None:  # there are no watchers any more
            return
        now = time.monotonic()
        if now - self._latency_time >= TICK_SECONDS / 2:  # the same for all engines
            self._latency, self._latency_time = self._metrics.recent.latency(now), now
        views.note(view, self._latency)
        for watcher in self._watchers:
            watcher.note_view(views)

    # -- events ------------------------------------------------------------------------------------------

    def facts_event(self, replica: str) -> bytes:
        engine = self._replicas.named(replica)
        engine_facts = self._replicas.facts if engine is None else engine.facts
        assert engine_facts is not None, "its engine was ready"
        uptime = round(time.monotonic() - self._began, 3)
        facts = FactsEvent(
            replica=replica,
            model=self._model_name,
            version=octavo.__version__,
            facts=engine_facts,
            uptime_seconds=uptime,
        )
        return event(facts)

    def away_event(self, replica: str | None) -> bytes:
        """Return why there is no engine to show."""
        engine = self._replicas if replica is None else self._replicas.named(replica)
        if engine is None:
            return event(AwayEvent(state="removed"))
        if engine.state in (EngineState.FAILED, EngineState.CLOSED):
            return event(AwayEvent(state="failed"))
        status = engine.engine_heartbeat
        if status is not None and status.phase is Phase.LOADING:
            return event(AwayEvent(state="loading", done=status.done, total=status.total))
        is_loading = status is not None and status.phase > Phase.LOADING
        return event(AwayEvent(state="loading" if is_loading else "starting"))

    def _fleet_event(self) -> bytes:
        fleet = FleetEvent(
            time=time.time(),
            requests=sum(map(len, self._replicas.hubs)),
            unsent=self._replicas.num_unplaced_requests,
            moves=self._replicas.num_moves,
            replicas=self._replicas.status(),
        )
        return event(fleet)


class Watcher:
    """One watching client. It gets what is new since its last call: a slow client gets fewer views, and no
    views are queued for it."""

    def __init__(self, feed: ViewFeed, interval: float, replica: str | None) -> None:
        self.interval = interval
        self.replica = replica  # that it asked for; None: any
        self.num_views = 0  # sent so far
        self._feed = feed
        self._woken = asyncio.Event()
        self._woken.set()
        self._is_disconnected = False
        self._views: EngineViews | None = None  # of the engine that it sees
        self._has_facts = False  # of that engine
        self._away = b""  # the last event sent while it sees no engine
        self._view_time = 0.0
        self._steps, self._finished = 0, feed.finished.count
        self._fleet_time = -math.inf

    def see(self, views: EngineViews | None) -> None:
        if views is not self._views:
            self._views, self._has_facts, self._view_time, self._away = views, False, 0.0, b""
            self._steps = 0 if views is None else views.steps.count

    @property
    def has_news(self) -> bool:
        """Whether there is something to send that is not a view."""
        return self._views is None or not self._has_facts or self._is_fleet_due

    def note_view(self, views: EngineViews) -> None:
        if views is self._views:
            self.wake()

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

    @property
    def _is_fleet_due(self) -> bool:
        interval = max(self.interval, FLEET_SECONDS)
        return self._feed.fleet_time - self._fleet_time >= EARLY * interval

    def _new_events(self) -> bytes:
        feed, views, events = self._feed, self._views, b""
        if self._is_fleet_due:
            events, self._fleet_time = feed.fleet, feed.fleet_time
        if views is None:
            last, self._away = self._away, feed.away_event(self.replica)
            return events if self._away == last else events + self._away
        if not self._has_facts:
            self._has_facts = True
            events += feed.facts_event(views.replica)
        if views.time and views.time - self._view_time >= EARLY * self.interval:
            events += self._view(views)
        return events

    def _view(self, views: EngineViews) -> bytes:
        steps, steps_left_out = views.steps.since(self._steps)
        finished, finished_left_out = self._feed.finished.since(self._finished)
        self._steps, self._finished = views.steps.count, self._feed.finished.count
        self._view_time = views.time
        self.num_views += 1
        return b"".join(
            (
                b"data: ",
                views.head,
                b',"steps":[%b],"steps_left_out":%d' % (steps, steps_left_out),
                b',"finished":[%b],"finished_left_out":%d}\n\n' % (finished, finished_left_out),
            )
        )
