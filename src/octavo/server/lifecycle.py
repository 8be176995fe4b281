"""The life of the server: start, ready, drain, shutdown."""

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, Self

import uvicorn

from octavo.checkpoint import open_checkpoint
from octavo.config import EngineOptions, ServerOptions, counted
from octavo.frontend.supervisor import EngineState
from octavo.frontend.text_model import TextModel
from octavo.membership.membership import Membership
from octavo.membership.remote_keepers import RemoteKeepers
from octavo.observe.tracing import Tracing, open_tracing
from octavo.server.app import build_app
from octavo.server.http.connection import BoundedHttpProtocol
from octavo.server.http.connection_limit import ConnectionLimit
from octavo.server.http.keys import Keys
from octavo.server.http.listener import BACKLOG, EarlyAnswers, max_connections
from octavo.server.http.tls import MAX_HANDSHAKES, TlsListener, tls_context
from octavo.server.loop_watch import LoopWatch
from octavo.server.notify import Notifier
from octavo.server.served_names import ServedNames
from octavo.server.signals import FORCED_EXIT_SECONDS, ShutdownSignals, force_exit_after
from octavo.server.state import ServerState

logger = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 75  # longer than clients and proxies keep idle connections, so that they close first
CLOSING_SECONDS = 5  # for the last bytes to reach clients after every response is complete
POLL_SECONDS = 0.05

EXIT_FAILED = 1


class HttpServer(uvicorn.Server):
    """uvicorn's server without its signal handlers: `RunningServer` drains before it exits.

    With TLS, `TlsListener` accepts the connections.
    """

    def __init__(self, config: uvicorn.Config, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(config)
        self._tls = tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._tls is None:
            await super().startup(sockets)
            return
        await super().startup([])
        protocol: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        make = partial(
            protocol,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        for listener in sockets or ():
            tls_listener = TlsListener(make, self._tls, max_handshakes())
            tls_listener.open(listener)
            self.servers.append(tls_listener)  # type: ignore[arg-type]

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class RunningServer:
    """Can be created in any thread; runs in the event loop."""

    def __init__(
        self, server_options: ServerOptions, model: TextModel, keys: Keys, tracing: Tracing | None
    ) -> None:
        self._server_options = server_options
        self._tracing = tracing
        self._model = model
        self._keys = keys
        self._tls: ssl.SSLContext | None = tls_context(server_options)

    @classmethod
    def open(
        cls, options: EngineOptions, server_options: ServerOptions, keepers: RemoteKeepers | None = None
    ) -> Self:
        """Read the tokenizer, the chat template and the other text assets of the checkpoint."""
        checkpoint = open_checkpoint(
            options.model,
            checkpoint_path=options.checkpoint_path,
            revision=options.revision,
            tokenizer=options.tokenizer,
            quantize=options.quantize,
        )
        keys = Keys.from_options(server_options, keepers)
        names = ServedNames.parse(server_options.served_model_name, checkpoint.name)
        model = TextModel.of_checkpoint(checkpoint, names.first)
        endpoint = server_options.otlp_endpoint
        return cls(server_options, model, keys, None if endpoint is None else open_tracing(endpoint))

    async def run(
        self,
        replicas: Membership,
        listener: socket.socket,
        early: EarlyAnswers | None,
        signals: ShutdownSignals,
        *,
        notifier: Notifier,
    ) -> int:
        """Serve until a signal or a failed engine ends it, and return the exit code.

        `replicas` has been started. It is closed here and again by the caller, which is harmless.
        """
        state = ServerState(self._server_options, self._model, replicas, tracing=self._tracing)
        replicas.report_queue(lambda: state.queue_seconds)
        http = HttpServer(self._http_config(state), self._tls)
        if early is not None:
            early.close()
        serving = asyncio.create_task(http.serve([listener]))
        reloading = asyncio.create_task(self._keys.keep_reloading(), name="octavo-keys")
        leasing = asyncio.create_task(self._keys.accounts.keep_leases(), name="octavo-key-leases")
        watch = LoopWatch()
        try:
            state.prompter.start()
            is_up = await self._started(replicas, signals)
            if is_up:
                logger.info("%s is ready at %s", self._model.name, self._url(listener) + "/v1")
                if self._server_options.page:
                    logger.info("playground and engine view: %s", self._url(listener) + "/")
                watch.start()
                notifier.ready()
                await _first_of(signals.first.wait(), replicas.wait_until_failed())
            state.is_draining = True
            await state.operations.close()
            notifier.stopping()
            force_exit_after(self._server_options.grace + CLOSING_SECONDS + FORCED_EXIT_SECONDS)
            await self._drain(state, signals)
        finally:
            watch.stop()
            reloading.cancel()
            leasing.cancel()
            state.feed.close()
            await state.operations.close()
            await replicas.close()
            http.should_exit = True
            http.force_exit = signals.second.is_set()
            await serving
            state.close()
            if self._tracing is not None:
                await asyncio.to_thread(self._tracing.close)
        failed = replicas.failure is not None and not signals.first.is_set()
        if failed:
            logger.error("shutting down: the engine has failed")
        return EXIT_FAILED if failed or signals.second.is_set() else 0

    async def _started(self, replicas: Membership, signals: ShutdownSignals) -> bool:
        await _first_of(replicas.wait_until_ready(), signals.first.wait())
        return not signals.first.is_set() and replicas.state not in (EngineState.FAILED, EngineState.CLOSED)

    async def _drain(self, state: ServerState, signals: ShutdownSignals) -> None:
        """Wait until every in-flight request is complete, `grace` is over or a second signal arrives."""
        grace = self._server_options.grace
        if state.num_open:
            num_open = counted(state.num_open, "in-flight request")
            logger.info("shutting down: waiting up to %g s for %s", grace, num_open)
        deadline = time.monotonic() + grace
        while state.num_open and time.monotonic() < deadline and not signals.second.is_set():
            await asyncio.sleep(POLL_SECONDS)
        if state.num_open:
            logger.warning("shutting down with %s incomplete", counted(state.num_open, "request"))

    def _http_config(self, state: ServerState) -> uvicorn.Config:
        limit = max_connections() - (0 if self._tls is None else max_handshakes())
        connection_limit: ConnectionLimit[BoundedHttpProtocol] = ConnectionLimit(
            limit, BoundedHttpProtocol.reject_busy
        )
        protocol = partial(
            BoundedHttpProtocol,
            connection_limit=connection_limit,
            stalled_seconds=self._server_options.stalled_timeout,
        )
        return uvicorn.Config(
            build_app(state, self._keys),
            http=protocol,  # type: ignore[arg-type]
            ws="none",
            loop="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=CLOSING_SECONDS,
        )

    def _url(self, listener: socket.socket) -> str:
        scheme = "http" if self._server_options.tls_cert is None else "https"
        host, port = listener.getsockname()[:2]
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def max_handshakes() -> int:
    return min(MAX_HANDSHAKES, max_connections() // 4)


async def _first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Return when one of the coroutines is done, and cancel the others."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
