"""Optional OpenTelemetry spans. If they are off, the SDK is not imported and no connection is opened."""

import importlib.util
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

import octavo
from octavo.errors import ConfigError

EXPORT_SECONDS = 5  # timeout of one export
CLOSING_MILLISECONDS = 3000
TRACES_PATH = "/v1/traces"


class Tracing(Protocol):
    """Exports a span per finished request. `export` never waits for the collector, `close` only briefly."""

    def export(
        self,
        name: str,
        *,
        begin_ns: int,
        end_ns: int,
        parent: Mapping[str, str],
        is_error: bool,
        attributes: Mapping[str, Any],
    ) -> None: ...

    def close(self) -> None: ...


def check_endpoint(endpoint: str) -> None:
    """Raise ConfigError if spans cannot be sent there. Called before anything is started."""
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"otlp_endpoint: {endpoint!r} is not an HTTP address; give one such as http://127.0.0.1:4318"
        )
    for module in ("opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"):
        try:
            is_installed = importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:
            is_installed = False
        if not is_installed:
            raise ConfigError(
                "otlp_endpoint: OpenTelemetry is not installed; install it with: pip install 'octavo[otel]'"
            )


def open_tracing(endpoint: str) -> Tracing:
    """Export spans in batches from a thread. Spans that do not fit its queue are dropped."""
    check_endpoint(endpoint)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    address = endpoint.rstrip("/") + TRACES_PATH if urlsplit(endpoint).path in ("", "/") else endpoint
    return tracing_with(BatchSpanProcessor(OTLPSpanExporter(endpoint=address, timeout=EXPORT_SECONDS)))


def tracing_with(processor: Any) -> Tracing:
    """Return a `Tracing` whose spans go to an OpenTelemetry span processor."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    resource = Resource.create({"service.name": "octavo", "service.version": octavo.__version__})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(processor)
    return OpenTelemetryTracing(provider)


class OpenTelemetryTracing:
    """Creates a span when its request has finished, so that requests in flight carry no state for it."""

    def __init__(self, provider: Any) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("octavo", octavo.__version__)
        self._propagator = TraceContextTextMapPropagator()

    def export(
        self,
        name: str,
        *,
        begin_ns: int,
        end_ns: int,
        parent: Mapping[str, str],
        is_error: bool,
        attributes: Mapping[str, Any],
    ) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind, Status, StatusCode

        context = self._propagator.extract(parent, context=Context())
        span = self._tracer.start_span(
            name, context=context, kind=SpanKind.SERVER, start_time=begin_ns, attributes=attributes
        )
        if is_error:
            span.set_status(Status(StatusCode.ERROR))
        span.end(end_time=end_ns)

    def close(self) -> None:
        self._provider.force_flush(CLOSING_MILLISECONDS)
        self._provider.shutdown()
