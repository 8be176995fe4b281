"""What the endpoints share: the options, the text side of the model, the hub, the engine, the queue."""

import asyncio
import itertools
import secrets
import time
from typing import Any

from octavo.config import ServerOptions, format_size
from octavo.frontend.hub import Hub
from octavo.frontend.intake import Intake, Limits
from octavo.frontend.supervisor import EngineState, EngineSupervisor
from octavo.frontend.text_model import TextModel
from octavo.grammar.checker import GrammarChecker
from octavo.link.status_page import Phase
from octavo.observe.collector import Seen, registry_of
from octavo.observe.request_metrics import RequestMetrics
from octavo.observe.tracing import Tracing
from octavo.prompting.prompter import Prompter
from octavo.protocol import EngineFacts
from octavo.server.admission import Admission
from octavo.server.http.budget import ByteBudget
from octavo.server.http.errors import ApiError, unavailable
from octavo.server.operate.view_feed import ViewFeed


class ServerState:
    """Owned by the event loop."""

    def __init__(
        self,
        options: ServerOptions,
        model: TextModel,
        hub: Hub,
        supervisor: EngineSupervisor,
        *,
        tracing: Tracing | None = None,
        prompter: Prompter | None = None,
    ) -> None:
        self.options = options
        self.model = model
        self.hub = hub
        self.supervisor = supervisor
        self.admission = Admission(options.max_queued_requests, options.max_queued_tokens)
        self.held = ByteBudget(options.max_held)
        self.tracing = tracing
        self.metrics = RequestMetrics()
        self.registry = registry_of(self._seen)
        self.feed = ViewFeed(supervisor, self.metrics, model.name)
        self.prompter = prompter or Prompter(model.assets)
        self.grammars = GrammarChecker()
        self.created = int(time.time())
        self.is_draining = False
        self.num_open = 0  # requests for tokens that have not been answered to the end
        self._intake: Intake | None = None
        self._numbers = itertools.count()
        self._run = secrets.token_hex(6)  # so that ids of two runs differ

    def close(self) -> None:
        self.prompter.close()
        self.grammars.close()

    def new_id(self, prefix: str) -> str:
        """Never used twice, and not to be guessed."""
        return f"{prefix}-{self._run}{next(self._numbers):06x}{secrets.token_hex(6)}"

    def _seen(self) -> Seen:
        return Seen(
            model_name=self.model.name,
            requests=self.metrics,
            engine=self.supervisor.tally,
            num_restarts=self.supervisor.num_restarts,
            num_queued=self.admission.num_sequences,
            num_tokens_queued=self.admission.num_tokens,
            num_tasks=len(asyncio.all_tasks()),
            is_ready=self.is_ready and self.supervisor.is_live,
            facts=self.supervisor.facts,
        )

    # -- may a request be taken? -----------------------------------------------------------------------

    @property
    def readiness(self) -> dict[str, Any]:
        """For probes and for people: what is missing, and how far it has got."""
        if self.is_draining:
            return {"status": "draining"}
        status = self.supervisor.engine_status
        shown: dict[str, Any] = {"status": self.supervisor.state.value}
        if self.supervisor.problem is not None:
            return shown | {"problem": self.supervisor.problem}
        if self.supervisor.state is EngineState.READY or status is None:
            return shown
        shown["phase"] = status.phase.name.lower()
        if status.phase is Phase.LOADING and status.total:
            shown["progress"] = round(status.done / status.total, 3)
            shown["loaded"] = f"{format_size(status.done)} of {format_size(status.total)}"
        return shown

    @property
    def is_ready(self) -> bool:
        return self.supervisor.state is EngineState.READY and not self.is_draining

    def check_ready(self) -> None:
        """Requests are taken while an engine is restarted, but not before the first is there."""
        if self.is_draining:
            raise unavailable("the server is shutting down", code="draining", retry_after=5)
        if self.supervisor.state in (EngineState.FAILED, EngineState.CLOSED):
            raise unavailable("the engine has failed", code="engine_failed", retry_after=30)
        if self.supervisor.facts is None:
            how_far = ", ".join(f"{name}: {value}" for name, value in self.readiness.items())
            raise unavailable(f"the model is being loaded ({how_far})", code="loading")

    def check_model(self, name: str | None) -> None:
        if name is not None and name != self.model.name:
            raise ApiError(
                404, f"the model {name[:100]!r} does not exist here", param="model", code="model_not_found"
            )

    # -- the engine, once it is there ------------------------------------------------------------------

    @property
    def facts(self) -> EngineFacts:
        facts = self.supervisor.facts
        assert facts is not None, "checked by `check_ready`"
        return facts

    @property
    def fingerprint(self) -> str:
        return self.facts.system_fingerprint

    @property
    def intake(self) -> Intake:
        if self._intake is None:
            limits = Limits(
                self.facts.vocab_size,
                self.facts.max_model_len,
                max_n=self.options.max_n,
            )
            self._intake = Intake(self.model.tokenizer, limits)
        return self._intake
