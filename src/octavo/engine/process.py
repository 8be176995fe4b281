"""The engine as a process of its own: `python -m octavo.engine.process FOLDER`.

The folder belongs to this one process and its parent. The parent has put the settings there; the socket and
the status page are beside them. There is no asyncio here, and one thread that owns the engine.
"""

import ctypes
import logging
import os
import signal
import sys
import time
from collections import defaultdict
from pathlib import Path

import zmq

from octavo.checkpoint import open_checkpoint
from octavo.config import EngineOptions
from octavo.engine.build import build_engine
from octavo.engine.core import EngineCore
from octavo.errors import OctavoError, RequestError
from octavo.link.folder import EXIT_CANNOT_START, EngineFolder, EngineSettings
from octavo.link.status_page import Phase, StatusPage
from octavo.link.wire import decode_to_engine, encode
from octavo.protocol import (
    Abort,
    EngineFacts,
    EngineOutputs,
    GenerateRequest,
    Hello,
    Ready,
    SamplingParams,
    TokenOutput,
)

logger = logging.getLogger(__name__)

IDLE_SECONDS = 0.5  # how long an engine with nothing to do waits for a message before it stamps again
PR_SET_PDEATHSIG = 1


def main(folder: EngineFolder) -> int:
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends this process
    page, settings = folder.open_status(), folder.read_settings()
    logging.basicConfig(format="octavo engine: %(message)s", level=settings.log_level.upper())
    try:
        core, facts = start_engine(settings, page)
    except OctavoError as error:
        folder.write_failure(str(error))
        return EXIT_CANNOT_START
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(
        zmq.SNDHWM, 0
    )  # nothing is dropped; a front end that does not read is dead, and so are we
    socket.bind(folder.address)
    EngineLoop(core, facts, socket, page).run()
    context.destroy(linger=0)
    return 0


def start_engine(settings: EngineSettings, page: StatusPage) -> tuple[EngineCore, EngineFacts]:
    page.stamp(Phase.OPENING)
    options = EngineOptions(**settings.options)
    checkpoint = open_checkpoint(
        options.model,
        checkpoint_path=options.checkpoint_path,
        revision=options.revision,
        tokenizer=options.tokenizer,
    )
    core, facts = build_engine(
        checkpoint,
        options,
        progress=False,
        on_loaded=lambda done, total: page.stamp(Phase.LOADING, done, total),
    )
    page.stamp(Phase.WARMING_UP)
    core.handle(
        GenerateRequest(
            request_id="warm-up", prompt_ids=(0,), params=SamplingParams(temperature=0, max_tokens=1, seed=0)
        )
    )
    while core.has_unfinished:
        core.step()
    return core, facts


class EngineLoop:
    """Messages in, a step, messages out. Front ends are told apart by their sockets' identities."""

    def __init__(
        self, core: EngineCore, facts: EngineFacts, socket: zmq.Socket[bytes], page: StatusPage
    ) -> None:
        self._core = core
        self._facts = facts
        self._socket = socket
        self._page = page
        self._owners: dict[tuple[str, int], bytes] = {}  # of choices under way
        self._front_ends: set[bytes] = set()
        self._stopping = False
        self._longest_step = 0.0

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self._stop)
        while not self._stopping:
            self._page.stamp(Phase.SERVING, longest_step=self._longest_step)
            self._receive()
            if self._core.has_unfinished:
                self._step()

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def _receive(self) -> None:
        """All that has come; with nothing to do, wait for it."""
        wait = 0 if self._core.has_unfinished else int(IDLE_SECONDS * 1000)
        while self._socket.poll(wait):
            owner, data = self._socket.recv_multipart()
            self._handle(owner, data)
            wait = 0

    def _handle(self, owner: bytes, data: bytes) -> None:
        message = decode_to_engine(data)
        if isinstance(message, Hello):
            self._front_ends.add(owner)
            self._send(owner, Ready(self._facts, self._core.stats()))
            return
        try:
            self._core.handle(message)
        except RequestError as error:
            assert isinstance(message, GenerateRequest)
            refused = TokenOutput.of_refused(message, str(error))
            self._send(owner, EngineOutputs((refused,), self._core.stats()))
            return
        if not isinstance(message, Abort):
            self._owners[message.request_id, message.choice] = owner

    def _step(self) -> None:
        started = time.monotonic()
        result = self._core.step()
        self._longest_step = max(self._longest_step, time.monotonic() - started)
        outputs: defaultdict[bytes, list[TokenOutput]] = defaultdict(list)
        for output in result.outputs:
            choice = output.request_id, output.choice
            owner = self._owners[choice] if output.finish is None else self._owners.pop(choice)
            outputs[owner].append(output)
        for owner in self._front_ends:
            self._send(owner, EngineOutputs(tuple(outputs[owner]), result.stats))

    def _send(self, owner: bytes, message: Ready | EngineOutputs) -> None:
        self._socket.send_multipart([owner, encode(message)])


def _die_with_parent() -> None:
    """No engine outlives the process that started it, not even after kill -9."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:  # it died before we asked
        sys.exit(0)


if __name__ == "__main__":
    sys.exit(main(EngineFolder(Path(sys.argv[1]))))
