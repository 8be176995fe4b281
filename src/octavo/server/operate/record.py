"""The record of one HTTP request, for its log line, its trace span and the metrics."""

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from fastapi import Request
from starlette.types import Scope

from octavo.frontend.intake import PreparedRequest
from octavo.frontend.output import RequestOutput, StreamDelta
from octavo.frontend.updates import Update
from octavo.observe.logs import with_fields
from octavo.observe.request_metrics import RequestMetrics
from octavo.observe.tracing import Tracing
from octavo.server.http.errors import ApiError
from octavo.server.key_limits import KeyedRequest
from octavo.view import FinishedRequest

logger = logging.getLogger(__name__)

ANSWERED = ("stop", "length")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
# Polled every few seconds: their log lines would bury the others.
PROBE_ROUTES = ("/livez", "/readyz", "/healthz", "/health")
QUIET_ROUTES = (*PROBE_ROUTES, "/metrics", "/octavo/fleet")
TOKEN_ROUTES = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses"),
    *("/v1/messages", "/api/chat", "/api/generate"),
)
OTHER = "other"
UNKNOWN_PATH = "(unknown path)"
MAX_PATH = 200  # characters of a path in a log line
PARAMETER = re.compile(r"\{[^}]*\}")  # of a route, such as {name:path}


class RequestRecord:
    """Mutated by the task that handles the request. Costs one dict lookup and one addition per token."""

    def __init__(
        self,
        request_id: str,
        metrics: RequestMetrics,
        keyed: KeyedRequest | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.request_id = request_id
        self.keyed = keyed or KeyedRequest()
        self.status: int | None = None
        self.error_code: str | None = None
        self.error_id: str | None = None
        self.num_prompt = self.num_cached = self.num_completion = 0
        self.first_token_seconds: float | None = None
        self.queue_seconds: float | None = None  # maximum over its sequences
        self.response_id: str | None = None
        self.is_stream: bool | None = None
        self.explanation: Mapping[str, Any] | None = None  # only while the engine view is watched
        self.route, self.total_seconds = OTHER, 0.0  # set by `close`
        self._metrics = metrics
        self._clock = clock
        self._began = clock()
        self._began_ns = time.time_ns()
        self._prompts: dict[str, int] = {}  # lengths of prompts without a token yet, by name
        self._latest: dict[tuple[str, int], float] = {}  # time of a sequence's last token
        self._unfinished: set[tuple[str, int]] = set()
        self._reasons: dict[str, None] = {}  # finish reasons, in order

    @property
    def seconds(self) -> float:
        return self._clock() - self._began

    @property
    def finish_reason(self) -> str | None:
        """The distinct finish reasons of its sequences, separated by commas."""
        return ",".join(self._reasons) or None

    # -- while the request is in flight ----------------------------------------------------------------

    def submit(self, prepared: PreparedRequest) -> None:
        self._prompts[prepared.name] = len(prepared.prompt_ids)
        self._unfinished |= {(prepared.name, message.choice) for message in prepared.messages}
        self.num_prompt += len(prepared.prompt_ids)

    def note(self, updates: Sequence[Update]) -> None:
        """Record updates. Tokens that arrive together get the same time."""
        now, recent = self._clock(), self._metrics.recent
        for update in updates:
            if isinstance(update, RequestOutput):
                self._note_result(update)
                continue
            if update.token_ids:
                sequence = update.request_id, update.choice
                latest = self._latest.get(sequence)
                self._latest[sequence] = now
                self.num_completion += len(update.token_ids)
                self._metrics.generation_tokens += len(update.token_ids)
                if latest is None:
                    self._note_first(update, now)
                else:
                    self._metrics.inter_token_latency.observe(now - latest)
                    if recent is not None:
                        recent.inter_token.observe(now - latest, now)
            if update.finish_reason is not None:
                self._note_finish(update.request_id, update.choice, update.finish_reason, now)

    def note_error(self, error: ApiError) -> None:
        """Record the code and id of an error, but not the error itself.

        Its traceback refers to frames that refer to the body and to this record: a reference cycle, which
        would keep all of them in memory until the garbage collector runs.
        """
        self.error_code = error.code or error.kind
        self.error_id = error.error_id

    def end_sequences(self) -> None:
        """Record the unfinished sequences as aborted."""
        for name, choice in sorted(self._unfinished):
            self._note_finish(name, choice, "abort", self._clock())

    def _note_first(self, delta: StreamDelta, now: float) -> None:
        seconds = now - self._began
        self._metrics.time_to_first_token.observe(seconds)
        if self._metrics.recent is not None:
            self._metrics.recent.time_to_first_token.observe(seconds, now)
        if self.first_token_seconds is None:
            self.first_token_seconds = seconds
        num_prompt = self._prompts.pop(delta.request_id, None)
        if num_prompt is not None:
            self._metrics.prompt_tokens += num_prompt
            self.keyed.note_first(num_prompt)
        if delta.choice == 0:  # a prompt counts once, as in `usage`
            self.num_cached += delta.num_cached

    def _note_finish(self, name: str, choice: int, reason: str, now: float) -> None:
        self._unfinished.discard((name, choice))
        self._reasons[reason] = None
        self._metrics.finished[reason] += 1
        if reason in ANSWERED:
            self._metrics.e2e_latency.observe(now - self._began)

    def _note_result(self, output: RequestOutput) -> None:
        for choice in output.choices:
            if choice.finish_reason in ANSWERED:
                self._metrics.note_timings(choice.timings)
                self.queue_seconds = max(self.queue_seconds or 0.0, choice.timings.queue)

    # -- when the request is over ----------------------------------------------------------------------

    def close(self, scope: Scope, tracing: Tracing | None) -> None:
        route = self.route = getattr(scope.get("route"), "path", OTHER)
        method = scope["method"] if scope["method"] in METHODS else OTHER
        seconds = self.total_seconds = self.seconds
        self._metrics.answered(route, self.status)
        self.keyed.close(self.status)
        # Attempts to guess a key are always logged.
        level = logging.DEBUG if route in QUIET_ROUTES and self.status != 401 else logging.INFO
        if logger.isEnabledFor(level):
            path = _shown_path(scope, route, self.status)
            fields = self._fields(method, route, path, seconds) | self._sender(scope)
            logger.log(level, "%s", _log_line(fields), extra=with_fields(**fields))
        if tracing is not None:
            tracing.export(
                f"{method} {route}",
                begin_ns=self._began_ns,
                end_ns=self._began_ns + int(seconds * 1e9),
                parent=_trace_headers(scope),
                is_error=self.status is None or self.status >= 500,
                attributes=self._attributes(method, route, seconds),
            )

    def _fields(self, method: str, route: str, path: str, seconds: float) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "request_id": self.request_id,
            "method": method,
            "route": route,
            "path": path,
            "status": self.status,
            "seconds": round(seconds, 6),
        }
        if self.error_code is not None:
            fields |= {"error": self.error_code, "error_id": self.error_id}
        if self._reasons:
            fields |= {
                "prompt_tokens": self.num_prompt,
                "cached_tokens": self.num_cached,
                "completion_tokens": self.num_completion,
                "finish_reason": self.finish_reason,
                "queue_seconds": _rounded(self.queue_seconds),
                "first_token_seconds": _rounded(self.first_token_seconds),
                "tokens_per_second": self._tokens_per_second(seconds),
            }
        return {name: value for name, value in fields.items() if value is not None or name == "status"}

    def _sender(self, scope: Scope) -> dict[str, str]:
        """Return the name of the key and the address of the client, if they are known."""
        client = scope.get("client")
        sender = {"key": self.keyed.name, "address": None if client is None else client[0]}
        return {name: value for name, value in sender.items() if value}

    def _tokens_per_second(self, seconds: float) -> float:
        return round(self.num_completion / seconds, 2) if seconds > 0 else 0.0

    def finished(self, model_name: str) -> FinishedRequest | None:
        """Return the entry for the engine view, after `close`; None if it is no generation request."""
        if self.route not in TOKEN_ROUTES:
            return None
        return FinishedRequest(
            request_id=self.request_id,
            response_id=self.response_id,
            route=self.route,
            status=self.status,
            model=model_name,
            stream=self.is_stream,
            prompt_tokens=self.num_prompt,
            cached_tokens=self.num_cached,
            completion_tokens=self.num_completion,
            finish_reason=self.finish_reason,
            queue_seconds=_rounded(self.queue_seconds),
            seconds_to_first_token=_rounded(self.first_token_seconds),
            seconds=round(self.total_seconds, 6),
            tokens_per_second=self._tokens_per_second(self.total_seconds) if self._reasons else None,
            error=self.error_code,
            octavo=self.explanation,
        )

    def _attributes(self, method: str, route: str, seconds: float) -> dict[str, Any]:
        """Return span attributes, named by OpenTelemetry's conventions or else as in other servers."""
        attributes: dict[str, Any] = {
            "http.request.method": method,
            "http.route": route,
            "http.response.status_code": self.status,
            "error.type": self.error_code,
            "octavo.request_id": self.request_id,
        }
        if self._reasons:
            attributes |= {
                "gen_ai.usage.input_tokens": self.num_prompt,
                "gen_ai.usage.cached_tokens": self.num_cached,
                "gen_ai.usage.output_tokens": self.num_completion,
                "gen_ai.response.finish_reasons": tuple(self._reasons),
                "gen_ai.latency.time_in_queue": self.queue_seconds,
                "gen_ai.latency.time_to_first_token": self.first_token_seconds,
                "gen_ai.latency.e2e": seconds,
            }
        return {name: value for name, value in attributes.items() if value is not None}


def record_of(request: Request) -> RequestRecord:
    record: RequestRecord = request.state.record
    return record


def _shown_path(scope: Scope, route: str, status: int | None) -> str:
    """Return the path if it names an existing resource, else its route: the rest is arbitrary client text.

    The path is percent-encoded, so it cannot break the line. It has no query, which may contain a key.
    """
    if route == OTHER:
        return UNKNOWN_PATH
    if status is None or status >= 400:
        return PARAMETER.sub("...", route)
    path = quote(scope["path"], safe="/:@+,;=~")
    return path if len(path) <= MAX_PATH else path[:MAX_PATH] + "..."


def _trace_headers(scope: Scope) -> Mapping[str, str]:
    names = (b"traceparent", b"tracestate")
    return {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in names}


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _log_line(fields: Mapping[str, Any]) -> str:
    status = "disconnected" if fields["status"] is None else fields["status"]
    parts = [f"{fields['method']} {fields['path']} {status} {fields['request_id']}"]
    parts += [f"{name} {fields[name]}" for name in ("key", "address") if name in fields]
    if "error" in fields:
        parts.append(f"error {fields['error']} {fields.get('error_id', '')}".strip())
    if "finish_reason" in fields:
        parts += [
            f"{fields['prompt_tokens']} prompt tokens ({fields['cached_tokens']} cached)",
            f"{fields['completion_tokens']} completion tokens",
            f"finish reason {fields['finish_reason']}",
        ]
    for name, label in (
        ("queue_seconds", "queue"),
        ("first_token_seconds", "first token"),
        ("seconds", "total"),
    ):
        if name in fields:
            parts.append(f"{label} {fields[name]:.3f} s")
    if "tokens_per_second" in fields:
        parts.append(f"{fields['tokens_per_second']:.1f} tokens/s")
    return ", ".join(parts)
