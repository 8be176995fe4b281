"""`octavo replica`: run one engine, and offer it to the front ends of a fleet until a signal arrives."""

import asyncio
import contextlib
import logging
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import uvloop
import zmq

from octavo.config import EngineOptions, ReplicaOptions, ServerOptions, counted
from octavo.errors import ConfigError
from octavo.frontend.supervisor import EngineSupervisor
from octavo.link.folder import EngineSettings
from octavo.observe.logs import configure_logs
from octavo.replica.gate import Gate
from octavo.replica.relay import Relay
from octavo.replica.report import REPORT_SECONDS, REPORT_VARIABLE, ReplicaReport
from octavo.server.http.listener import raise_open_file_limit
from octavo.server.notify import Notifier
from octavo.server.signals import FORCED_EXIT_SECONDS, ShutdownSignals, block_signals, force_exit_after

logger = logging.getLogger(__name__)

EXIT_FAILED = 1


def run_replica(
    options: EngineOptions, replica_options: ReplicaOptions, server_options: ServerOptions
) -> int:
    """Run until a signal arrives or the engine fails for good, and return the exit code."""
    name = replica_options.replica_name or platform.node() or "replica"
    configure_logs(server_options.log_format, f"octavo replica {name}")
    if server_options.fleet_key is None:
        raise ConfigError(
            "no fleet key: create the keys with `octavo fleet keys FOLDER`, and give --fleet-key"
            " FOLDER/replica.key"
        )
    notifier = Notifier.take(os.environ)
    notifier.loading()
    raise_open_file_limit()
    block_signals()
    settings = EngineSettings(options.model_dump(), options.log_level, server_options.log_format)
    agent = Agent(name, replica_options, Path(server_options.fleet_key), server_options.grace)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(agent.run(settings, notifier))
    finally:
        notifier.close()


class Agent:
    """One replica on this machine. Owned by its event loop."""

    def __init__(self, name: str, options: ReplicaOptions, key_path: Path, grace: float) -> None:
        self._name = name
        self._options = options
        self._key_path = key_path
        self._grace = grace
        self._restarting: asyncio.Task[None] | None = None

    async def run(self, settings: EngineSettings, notifier: Notifier) -> int:
        signals = ShutdownSignals()
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        gate = Gate(context, self._key_path)
        relay = Relay(self._name, context, gate, lambda: self._restart(relay, supervisor))
        supervisor = EngineSupervisor(settings, relay, name=self._name)
        tasks: list[asyncio.Task[None]] = []
        try:
            address = self._listen(relay, supervisor)
            logger.info("replica %s listens on %s", self._name, address)
            signals.listen()
            supervisor.start()
            tasks = [
                asyncio.create_task(work)
                for work in (
                    relay.run(),
                    relay.keep_beating(),
                    notifier.keep_notifying(lambda: supervisor.is_live),
                    self._note_ready(supervisor, notifier),
                )
            ]
            if self._options.supervisor_timeout is not None:
                report = self._reporter(address, settings, relay)
                tasks.append(asyncio.create_task(self._keep_reporting(report, notifier, signals)))
            stopped = [asyncio.create_task(event.wait()) for event in (signals.first, relay.has_failed)]
            await asyncio.wait([*tasks[:2], *stopped], return_when=asyncio.FIRST_COMPLETED)
            notifier.stopping()
            for task in tasks[:2]:
                if task.done() and task.exception() is not None:
                    logger.error("the agent failed", exc_info=task.exception())
            if signals.first.is_set():
                await self._drain(relay, signals)
        finally:
            force_exit_after(FORCED_EXIT_SECONDS)
            for task in tasks:
                task.cancel()
            relay.close()
            await supervisor.close()
            gate.close()
            context.destroy(linger=0)
        return 0 if signals.first.is_set() else EXIT_FAILED

    def _listen(self, relay: Relay, supervisor: EngineSupervisor) -> str:
        try:
            return relay.open(self._options.listen, supervisor)
        except zmq.ZMQError as error:
            raise ConfigError(
                f"cannot listen on {self._options.listen} ({error.strerror}): give another --listen HOST:PORT"
            ) from error

    def _reporter(self, address: str, settings: EngineSettings, relay: Relay) -> Callable[[], ReplicaReport]:
        def report() -> ReplicaReport:
            load = relay.load
            return ReplicaReport(
                name=self._name,
                address=address,
                is_ready=relay.is_ready,
                is_draining=relay.is_draining,
                queue_seconds=load.queue_seconds,
                num_sequences=load.num_sequences,
                max_running=settings.options["max_running"],
            )

        return report

    async def _keep_reporting(
        self, report: Callable[[], ReplicaReport], notifier: Notifier, signals: ShutdownSignals
    ) -> None:
        """Report to the supervisor. Without one for `supervisor_timeout`, shut down as after a signal: no
        other process would end this one."""
        limit = self._options.supervisor_timeout
        assert limit is not None, "there is a supervisor"
        received_at = time.monotonic()
        while time.monotonic() - received_at < limit:
            if notifier.report(REPORT_VARIABLE, report().encode()):
                received_at = time.monotonic()
            await asyncio.sleep(REPORT_SECONDS)
        logger.warning("no supervisor for %.0f s", limit)
        signals.first.set()

    async def _note_ready(self, supervisor: EngineSupervisor, notifier: Notifier) -> None:
        await supervisor.wait_until_ready()
        notifier.ready()

    async def _drain(self, relay: Relay, signals: ShutdownSignals) -> None:
        """Let the front ends move their requests away. Those that cannot move have `grace` to finish."""
        logger.info("shutting down: moving the requests of %s", counted(relay.num_front_ends, "front end"))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._grace):
                drain = asyncio.create_task(relay.drain(until_idle=True))
                second = asyncio.create_task(signals.second.wait())
                await asyncio.wait([drain, second], return_when=asyncio.FIRST_COMPLETED)
        if relay.num_requests:
            logger.warning("shutting down with %s", counted(relay.num_requests, "sequence"))

    def _restart(self, relay: Relay, supervisor: EngineSupervisor) -> None:
        """Replace the engine, because an operator wants it. One command at a time."""
        if self._restarting is None or self._restarting.done():
            drained = supervisor.replace(lambda: relay.drain(until_idle=False))
            self._restarting = asyncio.create_task(drained)
