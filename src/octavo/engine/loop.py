"""The life of an engine process around its engine: messages in, a step, messages out. No torch, no asyncio.

The folder belongs to this one process and its parent. The parent has put the settings there; the socket and
the status page are beside them.
"""

import logging
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq

from octavo.engine.core import EngineCore, Execute
from octavo.engine.profile import Profile
from octavo.engine.pulse import Pulse
from octavo.engine.view_leases import ViewLeases
from octavo.errors import OctavoError, RequestError
from octavo.link.folder import EXIT_CANNOT_START, EngineFolder, EngineSettings
from octavo.link.parent import live_and_die_with
from octavo.link.status_page import Phase, StatusPage
from octavo.link.wire import FromEngine, ToEngine, decode_to_engine, encode
from octavo.observe.logs import configure_logs
from octavo.protocol import (
    EngineFacts,
    EngineOutputs,
    GenerateRequest,
    Hello,
    Ready,
    SamplingParams,
    TokenOutput,
)
from octavo.startup import collector_paused
from octavo.view import Watch

logger = logging.getLogger(__name__)

# Wraps what executes plans, to watch it.
Around = Callable[[Execute], Execute]
StartEngine = Callable[[EngineSettings, StatusPage, Around], tuple[EngineCore, EngineFacts]]

IDLE_SECONDS = 0.5  # how long an engine with nothing to do waits for a message before it stamps again


def run_engine(arguments: list[str], start: StartEngine) -> int:
    """What an engine process does from beginning to end; the result is its exit code."""
    folder, parent = EngineFolder(Path(arguments[0])), int(arguments[1])
    live_and_die_with(parent)
    page, settings = folder.open_status(), folder.read_settings()
    configure_logs(settings.log_format, "octavo engine", settings.log_level.upper())
    pulse, profile = Pulse(page), Profile.open(settings.profile)
    around = pulse.around if profile is None else lambda execute: pulse.around(profile.around(execute))
    try:
        with collector_paused():
            core, facts = start(settings, page, around)
            page.stamp(Phase.WARMING_UP)
            _warm_up(core)
            if settings.expects_grammars:  # it would hold up the streams that go on with this engine
                core.prepare(True)
    except OctavoError as error:
        folder.write_failure(str(error))
        return EXIT_CANNOT_START
    except Exception as error:
        logger.exception("the engine cannot start")
        folder.write_failure(f"{type(error).__name__}: {error}")
        return 1
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, 0)
    # Nothing is dropped: a front end that does not read is dead, and so are we.
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.bind(folder.address)
    EngineLoop(core, facts, socket, page, pulse, profile=profile).run(while_parent_is=parent)
    context.destroy(linger=0)
    return 0


def _warm_up(core: EngineCore) -> None:
    """One tiny step: what is done once only should not wait for the first request."""
    params = SamplingParams(temperature=0, max_tokens=1, seed=0)
    core.handle(GenerateRequest(request_id="warm-up", prompt_ids=(0,), params=params))
    while core.has_unfinished:
        core.step()


class EngineLoop:
    """Owned by the process's one thread. Front ends are told apart by their sockets' identities."""

    def __init__(
        self,
        core: EngineCore,
        facts: EngineFacts,
        socket: zmq.Socket[bytes],
        page: StatusPage,
        pulse: Pulse,
        *,
        profile: Profile | None = None,
    ) -> None:
        self._core = core
        self._facts = facts
        self._socket = socket
        self._page = page
        self._pulse = pulse
        self._profile = profile
        self._owners: dict[tuple[str, int], bytes] = {}  # of choices under way
        self._front_ends: set[bytes] = set()
        self._view_leases = ViewLeases()

    def run(self, while_parent_is: int) -> None:
        self._pulse.phase = Phase.SERVING
        while os.getppid() == while_parent_is:
            self.turn()

    def turn(self) -> None:
        self._page.stamp(Phase.SERVING, patience=IDLE_SECONDS)
        self._receive()
        # Before the step: a lease is renewed by what was received, and a step may take longer than a lease.
        if self._view_leases.is_open:
            self._view_leases.take_turn(self._show)
            self._core.log_steps(self._view_leases.is_open)
        if self._core.has_unfinished:
            self._step()

    def _receive(self) -> None:
        """All that has come; with nothing to do, wait for it."""
        wait = 0
        if not self._core.has_unfinished:
            wait = math.ceil(1000 * min(IDLE_SECONDS, self._view_leases.seconds_to_next()))
        while self._socket.poll(wait):
            owner, *frames = self._socket.recv_multipart()
            try:
                self._handle(owner, decode_to_engine(b"".join(frames)))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, RequestError) as error:
                logger.error("a message that is none was dropped: %s", error)
            wait = 0
        if wait:  # nothing to do, and nothing came
            self._core.prepare(False)

    def _handle(self, owner: bytes, message: ToEngine) -> None:
        if isinstance(message, Hello):
            self._front_ends.add(owner)
            self._send(owner, Ready(self._facts, self._core.stats()))
            return
        if isinstance(message, Watch):
            self._view_leases.watch(owner, message)
            self._core.log_steps(self._view_leases.is_open)
            return
        try:
            if isinstance(message, GenerateRequest):
                self._check(message)
            self._core.handle(message)
        except RequestError as error:
            assert isinstance(message, GenerateRequest)
            refused = TokenOutput.of_refused(message, str(error))
            self._send(owner, EngineOutputs((refused,), self._core.stats()))
            return
        if isinstance(message, GenerateRequest):
            self._owners[message.request_id, message.choice] = owner

    def _check(self, message: GenerateRequest) -> None:
        """Intake lets nothing else through. But no kernel may ever see an id that it has no row for."""
        ids = (*message.prompt_ids, *message.resume_ids, *message.stop_ids, *message.params.logit_bias)
        if min(ids, default=0) < 0 or max(ids, default=0) >= self._facts.vocab_size:
            raise RequestError("a token id is not in the vocabulary", "prompt")
        if message.params.seed is None or (message.params.max_tokens or 0) < 1:
            raise RequestError("the request has no seed or no max_tokens", "max_tokens")

    def _step(self) -> None:
        started = time.monotonic()
        result = self._core.step()
        if self._profile is not None and not self._profile.is_over:
            self._profile.note_step(started, time.monotonic(), result.stats, self._core.kernel_times())
        outputs: defaultdict[bytes, list[TokenOutput]] = defaultdict(list)
        for output in result.outputs:
            choice = output.request_id, output.choice
            owner = self._owners[choice] if output.finish is None else self._owners.pop(choice)
            outputs[owner].append(output)
        for owner in self._front_ends | outputs.keys():
            self._send(owner, EngineOutputs(tuple(outputs[owner]), result.stats))

    def _show(self, owners: tuple[bytes, ...]) -> None:
        view = self._core.view()
        for owner in owners:
            self._send(owner, view)

    def _send(self, owner: bytes, message: FromEngine) -> None:
        self._socket.send_multipart([owner, encode(message)])
