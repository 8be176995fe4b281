"""Start the server. The port answers at once, and the engine starts while other modules are imported."""

import asyncio
import logging
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.config import EngineOptions, ServerOptions
from octavo.frontend.engine_process import FirstEngine
from octavo.link.folder import FIRST_REPLICA, EngineSettings
from octavo.link.profile_window import ProfileWindow
from octavo.observe.logs import configure_logs
from octavo.observe.tracing import check_endpoint
from octavo.server.allocator import return_large_buffers
from octavo.server.http.listener import EarlyAnswers, is_loopback, listen, raise_open_file_limit
from octavo.server.notify import Notifier
from octavo.server.signals import FORCED_EXIT_SECONDS, ShutdownSignals, block_signals, force_exit_after
from octavo.startup import collector_paused

if TYPE_CHECKING:
    from octavo.membership.membership import Membership
    from octavo.membership.remote_keepers import RemoteKeepers
    from octavo.server.lifecycle import RunningServer

logger = logging.getLogger(__name__)


def serve(options: EngineOptions, server_options: ServerOptions) -> int:
    """Serve until a signal arrives, and return the exit code."""
    configure_logs(server_options.log_format, "octavo")
    if server_options.otlp_endpoint is not None:
        check_endpoint(server_options.otlp_endpoint)
    notifier = Notifier.take(os.environ)
    notifier.loading()
    raise_open_file_limit()
    return_large_buffers()
    block_signals()  # a signal that follows the next log line must lead to an orderly shutdown
    listener = listen(server_options)
    host, port = listener.getsockname()[:2]
    logger.info("listening on %s, port %d", host, port)
    if not is_loopback(host) and server_options.api_key is None and server_options.api_key_file is None:
        logger.warning("set an API key: every client that can reach %s may use this server", host)
    profile = _profile_window(server_options)
    settings = EngineSettings(
        options.model_dump(),
        options.log_level,
        server_options.log_format,
        profile,
        replica=FIRST_REPLICA,
        num_engines=server_options.replicas,
    )
    engine = None if server_options.fleet is not None else FirstEngine.start(settings)
    try:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            serving = _serve(options, server_options, listener, settings, engine, notifier=notifier)
            return runner.run(serving)
    finally:
        if engine is not None:
            engine.stop()
        notifier.close()


async def _serve(
    options: EngineOptions,
    server_options: ServerOptions,
    listener: socket.socket,
    settings: EngineSettings,
    engine: FirstEngine | None,
    *,
    notifier: Notifier,
) -> int:
    signals = ShutdownSignals()
    signals.listen()
    # Early answers are plain HTTP: TLS clients wait for the application.
    early = await EarlyAnswers.start(listener) if server_options.tls_cert is None else None
    replicas = await asyncio.to_thread(_replicas, settings, engine, server_options)
    replicas.start()
    notifying = asyncio.create_task(notifier.keep_notifying(lambda: replicas.is_live))
    try:
        loading = asyncio.ensure_future(asyncio.to_thread(_open, options, server_options, replicas.keepers))
        stopped = asyncio.create_task(signals.first.wait())
        with collector_paused():
            await asyncio.wait((loading, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not loading.done():
            notifier.stopping()
            # Python waits for the loading thread, which may wait for a download from a model hub.
            force_exit_after(FORCED_EXIT_SECONDS)
            return 0
        return await loading.result().run(replicas, listener, early, signals, notifier=notifier)
    finally:
        notifying.cancel()
        await replicas.close()


def _replicas(
    settings: EngineSettings, engine: FirstEngine | None, server_options: ServerOptions
) -> "Membership":
    from octavo.fleet.router import Router
    from octavo.frontend.audits import Audits
    from octavo.frontend.hub import Hub

    def make_hub() -> Hub:
        return Hub(Router.with_prefixes(), Audits(server_options.audit))

    if server_options.fleet is None or server_options.fleet_key is None:
        from octavo.membership.local import LocalReplicas

        return LocalReplicas(settings, make_hub(), num_replicas=server_options.replicas, first=engine)
    from octavo.membership.addresses import parse_fleet
    from octavo.membership.remote import RemoteReplicas

    return RemoteReplicas(parse_fleet(server_options.fleet), Path(server_options.fleet_key), make_hub)


def _profile_window(server_options: ServerOptions) -> ProfileWindow | None:
    if server_options.profile is None:
        return None
    window = ProfileWindow(os.path.abspath(server_options.profile), server_options.profile_seconds)
    window.begin_file()
    return window


def _open(
    options: EngineOptions, server_options: ServerOptions, keepers: "RemoteKeepers | None"
) -> "RunningServer":
    from octavo.server.lifecycle import RunningServer

    return RunningServer.open(options, server_options, keepers)
