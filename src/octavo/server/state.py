"""The state that all endpoints share: options, tokenizer and templates, hub, engine, queue, metrics."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry

from octavo.config import ServerOptions, format_size
from octavo.frontend.intake import Intake, RequestLimits
from octavo.frontend.supervisor import EngineState
from octavo.frontend.text_model import TextModel
from octavo.grammar.checker import GrammarChecker
from octavo.link.heartbeat import Phase
from octavo.membership.membership import Membership
from octavo.membership.operations import FleetOperations
from octavo.observe.collector import MetricsSnapshot, make_registry, make_usage_registry
from octavo.observe.key_usage import KeyUsage
from octavo.observe.request_metrics import RequestMetrics
from octavo.observe.tracing import Tracing
from octavo.prompting.prompter import Prompter
from octavo.server.admission import Admission
from octavo.server.http.budget import ByteBudget
from octavo.server.http.errors import ApiError, unavailable
from octavo.server.identity import Identities
from octavo.server.kept_answers import KeptAnswers
from octavo.server.operate.view_feed import ViewFeed
from octavo.server.pool import RequestPool
from octavo.server.served_names import ServedNames
from octavo.server.sqlite_responses import SqliteResponses
from octavo.server.stored_responses import MemoryResponses, ResponseStore


class ServerState:
    """Owned by the event loop."""

    def __init__(
        self,
        options: ServerOptions,
        model: TextModel,
        replicas: Membership,
        *,
        tracing: Tracing | None = None,
        prompter: Prompter | None = None,
    ) -> None:
        self.options = options
        self.model = model
        self.names = ServedNames.parse(options.served_model_name, model.name)
        self.replicas = replicas
        self.operations = FleetOperations(replicas)
        self.admission = Admission(options.max_queued_requests, options.max_queued_tokens)
        self.held = ByteBudget(options.max_held)
        self.tracing = tracing
        self.metrics = RequestMetrics()
        self.key_usage: Callable[[], dict[str, KeyUsage]] | None = None  # None: no keys are required
        self.registry = make_registry(self._metrics_snapshot)
        self.feed = ViewFeed(replicas, self.metrics, model.name)
        self.prompter = prompter or Prompter(model.assets)
        self.grammars = GrammarChecker()
        self.identities = Identities()
        self.kept_answers = KeptAnswers(options.max_kept_answers)
        self.responses: ResponseStore = (
            MemoryResponses(options.max_stored_responses)
            if options.response_store is None
            else SqliteResponses(options.response_store, options.max_stored_responses)
        )
        self.created = int(time.time())
        self.is_draining = False
        self.num_open = 0  # generation requests without a complete response
        self._pool: RequestPool | None = None

    def close(self) -> None:
        self.prompter.close()
        self.grammars.close()
        self.responses.close()

    def usage_registry(self, key: str) -> CollectorRegistry:
        """Return a registry of what the keys of one name have used."""
        assert self.key_usage is not None, "there are keys"
        usage = self.key_usage()
        # A name that was removed after the key was checked has no usage any more.
        return make_usage_registry(self.model.name, {key: usage[key]} if key in usage else {})

    def _metrics_snapshot(self) -> MetricsSnapshot:
        return MetricsSnapshot(
            model_name=self.model.name,
            requests=self.metrics,
            engines=self.replicas.totals,
            replicas=self.replicas.status(),
            num_restarts=self.replicas.num_restarts,
            num_queued=self.admission.num_sequences,
            num_tokens_queued=self.admission.num_tokens,
            max_queued=self.options.max_queued_requests,
            max_tokens_queued=self.options.max_queued_tokens,
            num_unsent=sum(hub.num_unsent for hub in self.replicas.hubs),
            queue_seconds=self.queue_seconds,
            num_moves=self.replicas.num_moves,
            audits=self.replicas.audit_counts,
            num_tasks=len(asyncio.all_tasks()),
            is_ready=self.is_ready and self.replicas.is_live,
            facts=self.replicas.facts,
            keys=None if self.key_usage is None else self.key_usage(),
        )

    @property
    def queue_seconds(self) -> float:
        """The seconds that a new request would wait until an engine begins with it."""
        num_unsent = sum(hub.num_unsent for hub in self.replicas.hubs)
        # Engines count the requests of all front ends, and those that were preempted.
        num_waiting = num_unsent + sum(engine.num_waiting for engine in self.replicas.totals.live)
        return self.admission.queue_seconds(min(num_waiting, self.admission.num_sequences))

    # -- readiness -------------------------------------------------------------------------------------

    @property
    def readiness(self) -> dict[str, Any]:
        """The body of /readyz: the state, why it is not ready, and the progress of loading."""
        if self.is_draining:
            return {"status": "draining"}
        status = self.replicas.engine_heartbeat
        shown: dict[str, Any] = {"status": self.replicas.state.value}
        if self.replicas.problem is not None:
            return shown | {"problem": self.replicas.problem}
        if self.replicas.state is EngineState.READY or status is None:
            return shown
        shown["phase"] = status.phase.name.lower()
        if status.phase is Phase.LOADING and status.total:
            shown["progress"] = round(status.done / status.total, 3)
            shown["loaded"] = f"{format_size(status.done)} of {format_size(status.total)}"
        return shown

    @property
    def is_ready(self) -> bool:
        return self.replicas.state is EngineState.READY and not self.is_draining

    def check_ready(self) -> None:
        """Raise 503 if no request can be accepted. While an engine restarts, requests are accepted."""
        if self.is_draining:
            raise unavailable("the server is shutting down", code="draining", retry_after=5)
        if self.replicas.state in (EngineState.FAILED, EngineState.CLOSED):
            message = "the engine has failed; see the server's log"
            raise unavailable(message, code="engine_failed", retry_after=30)
        if self.replicas.facts is None:
            progress = ", ".join(f"{name}: {value}" for name, value in self.readiness.items())
            raise unavailable(f"the model is being loaded ({progress})", code="loading")

    def timeout(self, requested: float | None) -> float:
        """Return the seconds after which a request is aborted."""
        maximum = self.options.request_timeout
        return maximum if requested is None else min(requested, maximum)

    def check_model(self, name: str | None, *, tag: str = "") -> None:
        """Raise 404 for a model that is not served. A client may append the tag to its name."""
        names = self.names.with_tag(tag) if tag else self.names
        if name is not None and not names.has(name):
            raise ApiError(
                404,
                f"this server has no model {name[:100]!r}; it serves {self.names.described}",
                param="model",
                code="model_not_found",
            )

    # -- where new requests go, after `check_ready` ----------------------------------------------------

    @property
    def pool(self) -> RequestPool:
        """The pool of new requests."""
        hub, facts = self.replicas.hub, self.replicas.facts
        assert facts is not None, "checked by `check_ready`"
        if self._pool is None or self._pool.hub is not hub or self._pool.facts != facts:
            limits = RequestLimits(facts.vocab_size, facts.max_model_len, max_n=self.options.max_n)
            self._pool = RequestPool(hub, facts, Intake(self.model.tokenizer, limits))
        return self._pool
