"""The main loop of an engine process: receive messages, run a step, send messages. No torch, no asyncio.

The process and its parent share a folder. The parent writes the settings there; the socket and the heartbeat
are in the same folder.
"""

import logging
import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import zmq

from octavo.engine.core import EngineCore, Execute
from octavo.engine.heartbeat_writer import HeartbeatWriter
from octavo.engine.profile import Profile
from octavo.engine.view_leases import ViewLeases
from octavo.errors import OctavoError, RequestError
from octavo.link.folder import EXIT_CANNOT_START, EngineFolder, EngineSettings
from octavo.link.heartbeat import HeartbeatFile, Phase
from octavo.link.parent import bind_to_parent
from octavo.link.versions import PROTOCOL_VERSION, arrived
from octavo.link.wire import FromEngine, ToEngine, decode_to_engine, encode
from octavo.observe.logs import configure_logs
from octavo.protocol import (
    Abort,
    AskPrefixes,
    EngineFacts,
    EngineOutputs,
    EngineStats,
    GenerateRequest,
    Goodbye,
    Hello,
    PrefixChange,
    Ready,
    TokenOutput,
)
from octavo.startup import collector_paused
from octavo.view import Watch

logger = logging.getLogger(__name__)

# Wraps the function that executes plans, to observe it.
Around = Callable[[Execute], Execute]
StartEngine = Callable[[EngineSettings, HeartbeatFile, Around], tuple[EngineCore, EngineFacts]]

# Maximum wait of an idle engine for a message, before its next heartbeat and its next message.
IDLE_SECONDS = 0.5
# A front end without outputs learns this often that the engine is alive, and how busy it is.
QUIET_SECONDS = 0.05


def run_engine(arguments: list[str], start: StartEngine) -> int:
    """Run an engine process and return its exit code."""
    folder, parent = EngineFolder(Path(arguments[0])), int(arguments[1])
    bind_to_parent(parent)
    heartbeat, settings = folder.open_heartbeat(), folder.read_settings()
    process_name = f"octavo engine {settings.replica}".rstrip()
    configure_logs(settings.log_format, process_name, settings.log_level.upper())
    heartbeat_writer, profile = HeartbeatWriter(heartbeat), Profile.open(settings.profile)
    around = (
        heartbeat_writer.around
        if profile is None
        else lambda execute: heartbeat_writer.around(profile.around(execute))
    )
    try:
        with collector_paused():
            core, facts = start(settings, heartbeat, around)
            heartbeat.write(Phase.WARMING_UP)
            core.warm_up()
            if settings.expects_grammars:  # later it would delay the requests replayed to this engine
                core.prepare(True)
    except OctavoError as error:
        folder.write_failure(str(error))
        return EXIT_CANNOT_START
    except Exception as error:
        logger.exception("failed to start the engine")
        folder.write_failure(f"{type(error).__name__}: {error}")
        return 1
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, 0)
    # No limits, so nothing is dropped. If the front end stops reading, it is dead, and this process ends.
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.bind(folder.address)
    EngineLoop(core, facts, socket, heartbeat, heartbeat_writer, profile=profile).run(parent)
    context.destroy(linger=0)
    return 0


class EngineLoop:
    """Owned by the main thread of the process. A front end is identified by its socket's identity."""

    def __init__(
        self,
        core: EngineCore,
        facts: EngineFacts,
        socket: zmq.Socket[bytes],
        heartbeat: HeartbeatFile,
        heartbeat_writer: HeartbeatWriter,
        *,
        profile: Profile | None = None,
    ) -> None:
        self._core = core
        self._facts = facts
        self._socket = socket
        self._heartbeat = heartbeat
        self._heartbeat_writer = heartbeat_writer
        self._profile = profile
        self._owners: dict[tuple[str, int, int], bytes] = {}  # of unfinished choices, each with its attempt
        self._front_ends: dict[bytes, str] = {}  # the ids that they sent
        self._sent_at = time.monotonic()  # when it last sent a message to all front ends
        self._num_taken: Counter[bytes] = Counter()  # generation requests, by front end
        # Until when a front end needs no message without outputs, and `num_taken` of the last message.
        self._last_sent: dict[bytes, tuple[float, int]] = {}
        self._routers: set[bytes] = set()  # front ends that asked for prefixes
        self._view_leases = ViewLeases()

    def run(self, parent: int) -> None:
        """Run until the parent process is dead."""
        self._heartbeat_writer.phase = Phase.SERVING
        while os.getppid() == parent:
            self.turn()

    def turn(self) -> None:
        """Receive messages, show a view if one is due, and run a step if there are requests."""
        self._heartbeat.write(Phase.SERVING, timeout=IDLE_SECONDS)
        self._receive()
        # Before the step: messages may have renewed leases, and a step may take longer than a lease.
        if self._view_leases.is_open:
            self._view_leases.take_turn(self._show)
            self._core.log_steps(self._view_leases.is_open)
        if self._core.has_unfinished:
            self._step()
        elif time.monotonic() - self._sent_at >= IDLE_SECONDS:
            self._send_outputs({}, self._core.stats())

    def _receive(self) -> None:
        """Handle all received messages. If the engine is idle, wait for one."""
        wait = 0
        if not self._core.has_unfinished:
            wait = math.ceil(1000 * min(IDLE_SECONDS, self._view_leases.seconds_to_next()))
        while self._socket.poll(wait):
            owner, *frames = self._socket.recv_multipart()
            try:
                self._handle(owner, decode_to_engine(b"".join(frames)))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, RequestError) as error:
                logger.error("dropped an undecodable message: %s", error)
            wait = 0
        if wait:  # idle, and no message arrived
            self._core.prepare(False)

    def _handle(self, owner: bytes, message: ToEngine) -> None:
        if isinstance(message, Hello):
            self._welcome(owner, message)
            return
        if isinstance(message, Watch):
            self._view_leases.watch(owner, message)
            self._core.log_steps(self._view_leases.is_open)
            return
        if isinstance(message, Goodbye):
            self._part_from(owner)
        elif isinstance(message, AskPrefixes):
            self._routers.add(owner)
            self._send(owner, self._core.prefixes())
        elif isinstance(message, GenerateRequest):
            self._take(owner, message)
        else:
            self._core.handle(message)

    def _welcome(self, owner: bytes, hello: Hello) -> None:
        """Answer a front end. What it asked for over an earlier connection, it will ask for again."""
        earlier = [one for one, name in self._front_ends.items() if name == hello.front_end != ""]
        for lost in earlier:
            self._part_from(lost)
        self._front_ends[owner] = hello.front_end
        self._send(owner, Ready(self._facts, self._core.stats(), PROTOCOL_VERSION))

    def _part_from(self, owner: bytes) -> None:
        """Forget a front end that is gone, and abort its requests. A later connection may have them already,
        and then this one was forgotten before."""
        if self._front_ends.pop(owner, None) is None:
            return
        del self._num_taken[owner]
        self._routers.discard(owner)
        self._last_sent.pop(owner, None)
        self._view_leases.watch(owner, Watch(0.0, 0.0))
        self._core.log_steps(self._view_leases.is_open)
        for request_id in {key[0] for key, other in self._owners.items() if other == owner}:
            self._core.handle(Abort(request_id))

    def _take(self, owner: bytes, request: GenerateRequest) -> None:
        self._num_taken[owner] += 1
        request = arrived(request, time.monotonic())
        try:
            self._check(request)
            self._core.handle(request)
        except RequestError as error:
            rejected = TokenOutput.of_rejected(request, str(error))
            self._send(owner, EngineOutputs((rejected,), self._core.stats(), self._num_taken[owner]))
        else:
            self._owners[request.request_id, request.choice, request.attempt] = owner

    def _check(self, message: GenerateRequest) -> None:
        """Check again what intake guarantees: kernels must never see an id that has no row."""
        ids = (*message.prompt_ids, *message.resume_ids, *message.stop_ids, *message.params.logit_bias)
        if min(ids, default=0) < 0 or max(ids, default=0) >= self._facts.vocab_size:
            raise RequestError("a token id is not in the vocabulary", "prompt")
        if message.params.seed is None or (message.params.max_tokens or 0) < 1:
            raise RequestError("the request has no seed or no max_tokens", "max_tokens")

    def _step(self) -> None:
        started = time.monotonic()
        result = self._core.step()
        if self._profile is not None and not self._profile.is_over:
            self._profile.record_step(started, time.monotonic(), result.stats, self._core.kernel_times())
        outputs: defaultdict[bytes, list[TokenOutput]] = defaultdict(list)
        for output in result.outputs:
            choice = output.request_id, output.choice, output.attempt
            owner = self._owners[choice] if output.finish is None else self._owners.pop(choice)
            outputs[owner].append(output)
        self._send_outputs(outputs, result.stats, result.prefixes)

    def _send_outputs(
        self,
        outputs: Mapping[bytes, Sequence[TokenOutput]],
        stats: EngineStats,
        change: PrefixChange | None = None,
    ) -> None:
        """Send every front end its outputs. One without outputs learns that this engine is alive."""
        self._sent_at = now = time.monotonic()
        for owner in self._front_ends.keys() | outputs.keys():
            prefixes = change if owner in self._routers else None
            own, num_taken = tuple(outputs.get(owner, ())), self._num_taken[owner]
            quiet_until, num_confirmed = self._last_sent.get(owner, (0.0, 0))
            if own or prefixes is not None or now >= quiet_until or num_taken != num_confirmed:
                if owner in self._front_ends:
                    self._last_sent[owner] = now + QUIET_SECONDS, num_taken
                self._send(owner, EngineOutputs(own, stats, num_taken, prefixes))
        self._heartbeat.write_sent()

    def _show(self, owners: tuple[bytes, ...]) -> None:
        view = self._core.view()
        for owner in owners:
            self._send(owner, view)

    def _send(self, owner: bytes, message: FromEngine) -> None:
        self._socket.send_multipart([owner, encode(message)])
