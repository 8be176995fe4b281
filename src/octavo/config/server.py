"""The options of `octavo serve`."""

from typing import Literal, Self

import pydantic

from octavo.config.definition import ByteCount, Group, Options, option
from octavo.errors import ConfigError

MIB = 1 << 20
MAX_REPLICAS = 64


class ServerOptions(Options, frozen=True):
    """Where the server listens, which clients it accepts, and its limits."""

    host: str = option(
        "127.0.0.1", Group.SERVER, "address to listen on; 0.0.0.0: all addresses", min_length=1
    )
    port: int = option(8000, Group.SERVER, "port to listen on; 0: any free port", ge=0, le=65535)
    served_model_name: str | None = option(
        None,
        Group.SERVER,
        "model names that clients send, separated by commas; * in a name stands for any characters (none: the"
        " name of the checkpoint)",
        min_length=1,
    )
    replicas: int = option(
        1,
        Group.SERVER,
        "number of engine processes that serve the model; if one dies, its streams continue on the others",
        ge=1,
        le=MAX_REPLICAS,
    )
    fleet: str | None = option(
        None,
        Group.SERVER,
        "replicas on other machines that compute the requests, instead of engines on this one:"
        " HOST:PORT,HOST:PORT or file:PATH or dns:NAME:PORT or ray:NAME (none: engines on this machine)",
        min_length=1,
    )
    fleet_key: str | None = option(
        None,
        Group.ACCESS,
        "key file for connections between front ends and replicas; `octavo fleet keys` creates it",
        min_length=1,
    )
    audit: float = option(
        0.0,
        Group.SERVER,
        "part of all requests, from 0 to 1, that are computed again on another replica and compared, to find"
        " engines that compute wrong results",
        ge=0,
        le=1,
    )
    page: bool = option(True, Group.SERVER, "serve a playground and a live view of the engine at /")
    grace: float = option(
        30.0, Group.SERVER, "seconds that in-flight requests have to finish after SIGTERM", ge=0, le=86400
    )

    log_format: Literal["human", "json"] = option(
        "human", Group.LOGS, "form of the log: lines of text, or one JSON object per line"
    )
    otlp_endpoint: str | None = option(
        None,
        Group.LOGS,
        "OpenTelemetry collector that receives spans over HTTP (none: no tracing)",
        min_length=1,
    )

    profile: str | None = option(
        None, Group.LOGS, "file for a Chrome trace of the engine (none: no trace)", min_length=1
    )
    profile_seconds: float = option(
        10.0, Group.LOGS, "length of the trace in seconds, from the first request", gt=0, le=3600
    )

    api_key: str | None = option(
        None,
        Group.ACCESS,
        "API key that clients must send (none: only those of api_key_file, if set)",
        min_length=1,
    )
    api_key_file: str | None = option(
        None,
        Group.ACCESS,
        "file of API keys, one per line, with an optional name before the key and options after it; the"
        " server reads it again when it changes",
        min_length=1,
    )
    priority_across_keys: bool = option(
        False,
        Group.ACCESS,
        "let the priority of a request order it among the requests of all keys, not only of its own key",
    )
    cors_origins: str | None = option(
        None,
        Group.ACCESS,
        "origins of web pages that may send requests, separated by commas, or *",
        min_length=1,
    )
    allowed_hosts: str | None = option(
        None,
        Group.ACCESS,
        "host names that requests may use, separated by commas, or * (none: only localhost and its addresses"
        " if the server listens there without an API key, else any)",
        min_length=1,
    )
    tls_cert: str | None = option(None, Group.ACCESS, "certificate file; enables HTTPS", min_length=1)
    tls_key: str | None = option(None, Group.ACCESS, "file of the certificate's private key", min_length=1)

    max_queued_requests: int = option(
        512,
        Group.LIMITS,
        "maximum number of sequences that wait for their first token; further requests get 429",
        ge=1,
    )
    max_queued_tokens: int = option(
        1 << 20,
        Group.LIMITS,
        "maximum number of prompt tokens of waiting sequences; further requests get 429",
        ge=1,
    )
    stalled_timeout: float = option(
        60.0,
        Group.LIMITS,
        "seconds after which a client that does not read its response is disconnected",
        gt=0,
        le=86400,
    )
    max_body: ByteCount = option(4 * MIB, Group.LIMITS, "maximum size of a request in bytes", ge=1024)
    max_held: ByteCount = option(
        64 * MIB,
        Group.LIMITS,
        "maximum bytes of all in-flight requests and responses; further requests get 429",
        ge=64 << 10,
    )
    max_kept_answers: ByteCount = option(
        32 * MIB,
        Group.LIMITS,
        "maximum bytes of answers kept for requests that repeat an Idempotency-Key (0: keep none)",
        ge=0,
    )
    max_stored_responses: ByteCount = option(
        32 * MIB,
        Group.LIMITS,
        "maximum bytes of responses stored for GET /v1/responses and previous_response_id (0: store none)",
        ge=0,
    )
    response_store: str | None = option(
        None,
        Group.SERVER,
        "SQLite file for stored responses, which then survive a restart (none: keep them in memory)",
        min_length=1,
    )
    max_n: int = option(8, Group.LIMITS, "maximum number of answers per prompt", ge=1, le=128)
    request_timeout: float = option(
        3600.0, Group.LIMITS, "maximum seconds per request, including the time in the queue", gt=0, le=1e9
    )

    @pydantic.model_validator(mode="after")
    def _certificate_and_key(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("tls_cert and tls_key belong together: set both or neither")
        return self

    @pydantic.model_validator(mode="after")
    def _fleet_and_engines(self) -> Self:
        if self.fleet is not None and self.replicas != 1:
            raise ConfigError(
                "fleet and replicas exclude each other: with a fleet, `octavo replica` runs the engines"
            )
        if self.fleet is not None and self.fleet_key is None:
            raise ConfigError(
                "a fleet needs a key: create the keys with `octavo fleet keys FOLDER`, and set fleet_key to"
                " FOLDER/front-end.key"
            )
        return self
