"""A channel to an engine in this process: no sockets, but the same engine core and the same messages."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from octavo.errors import RequestError
from octavo.protocol import (
    Abort,
    EngineFacts,
    EngineOutputs,
    EngineStats,
    GenerateRequest,
    KernelTimes,
    TokenOutput,
)

if TYPE_CHECKING:
    from octavo.checkpoint import Checkpoint
    from octavo.config import EngineOptions
    from octavo.engine import EngineCore


class InProcessChannel:
    """Owns the engine, which runs one step per call of `step`. One thread at a time may call it."""

    def __init__(self, core: EngineCore, facts: EngineFacts) -> None:
        self._core: EngineCore | None = core
        self.facts = facts
        self._inbox: deque[GenerateRequest | Abort] = deque()
        self._rejections: list[TokenOutput] = []

    @classmethod
    def start(
        cls, checkpoint: Checkpoint, options: EngineOptions, *, progress: bool | None
    ) -> InProcessChannel:
        # The only place where the front end imports torch, and only when it is called.
        from octavo.engine.build import build_engine, open_draft_checkpoint

        draft_checkpoint = open_draft_checkpoint(options)
        return cls(*build_engine(checkpoint, options, progress=progress, draft_checkpoint=draft_checkpoint))

    def send(self, message: GenerateRequest | Abort) -> None:
        """Queue a message, from any thread. It takes effect before the next step."""
        self._inbox.append(message)

    def step(self) -> EngineOutputs:
        """Run one step of the engine."""
        while self._inbox:
            message = self._inbox.popleft()
            try:
                self._open_core.handle(message)
            except RequestError as error:
                assert isinstance(message, GenerateRequest)
                self._rejections.append(TokenOutput.of_rejected(message, str(error)))
        outputs = self._open_core.step()
        rejections, self._rejections = self._rejections, []
        return EngineOutputs((*rejections, *outputs.outputs), outputs.stats) if rejections else outputs

    @property
    def has_unfinished(self) -> bool:
        return bool(self._inbox) or bool(self._rejections) or self._open_core.has_unfinished

    def stats(self) -> EngineStats:
        return self._open_core.stats()

    def kernel_times(self) -> KernelTimes | None:
        """Return the time spent in kernels since the start; None if the engine does not measure it."""
        return self._open_core.kernel_times()

    def check(self) -> None:
        self._open_core.check()

    def close(self) -> None:
        """Free the model and the KV blocks."""
        self._core = None

    @property
    def _open_core(self) -> EngineCore:
        if self._core is None:
            raise RuntimeError("this engine is closed: create a new LLM")
        return self._core
