"""The options of `octavo serve`."""

from typing import Literal, Self

import pydantic

from octavo.config.definition import ByteCount, Group, Options, option
from octavo.errors import ConfigError

MIB = 1 << 20


class ServerOptions(Options, frozen=True):
    """What decides who may ask, how much, and where."""

    host: str = option("127.0.0.1", Group.SERVER, "address to listen on; 0.0.0.0: all of them", min_length=1)
    port: int = option(8000, Group.SERVER, "port to listen on; 0: any that is free", ge=0, le=65535)
    served_model_name: str | None = option(
        None, Group.SERVER, "name clients ask for (none: the name of the checkpoint)", min_length=1
    )
    page: bool = option(True, Group.SERVER, "show a playground and the engine at work at /")
    grace: float = option(
        30.0, Group.SERVER, "seconds that answers under way have to finish after SIGTERM", ge=0, le=86400
    )

    log_format: Literal["human", "json"] = option(
        "human", Group.LOGS, "lines of text, or one JSON object a line"
    )
    otlp_endpoint: str | None = option(
        None,
        Group.LOGS,
        "OpenTelemetry collector to send spans to, over HTTP (none: no tracing)",
        min_length=1,
    )

    profile: str | None = option(
        None, Group.LOGS, "file for a Chrome trace of what the engine does (none: no trace)", min_length=1
    )
    profile_seconds: float = option(
        10.0, Group.LOGS, "how long the trace goes on after the first request", gt=0, le=3600
    )

    api_key: str | None = option(
        None, Group.ACCESS, "key that clients must send (none: anybody may ask)", min_length=1
    )
    api_key_file: str | None = option(
        None,
        Group.ACCESS,
        "file of such keys: one a line, after a name and a space if you like",
        min_length=1,
    )
    cors_origins: str | None = option(
        None, Group.ACCESS, "web pages that may ask, as origins with commas between, or *", min_length=1
    )
    allowed_hosts: str | None = option(
        None,
        Group.ACCESS,
        "names that clients may call the server by, with commas between, or * (none: only localhost and its"
        " addresses if it listens there and asks for no key, else any)",
        min_length=1,
    )
    tls_cert: str | None = option(None, Group.ACCESS, "file of the certificate, to serve https", min_length=1)
    tls_key: str | None = option(None, Group.ACCESS, "file of the certificate's key", min_length=1)

    max_queued_requests: int = option(
        512, Group.LIMITS, "sequences that may wait for their first token; more are refused with 429", ge=1
    )
    max_queued_tokens: int = option(
        1 << 20, Group.LIMITS, "prompt tokens that may wait; more are refused with 429", ge=1
    )
    stalled_timeout: float = option(
        60.0,
        Group.LIMITS,
        "seconds after which a client that reads nothing of its answer is cut off",
        gt=0,
        le=86400,
    )
    max_body: ByteCount = option(4 * MIB, Group.LIMITS, "largest request", ge=1024)
    max_held: ByteCount = option(
        64 * MIB, Group.LIMITS, "bytes of all requests and answers under way; more get 503", ge=64 << 10
    )
    max_n: int = option(8, Group.LIMITS, "most answers to one prompt", ge=1, le=128)
    request_timeout: float = option(
        3600.0, Group.LIMITS, "seconds a request may take, waiting included", gt=0, le=1e9
    )

    @pydantic.model_validator(mode="after")
    def _certificate_and_key(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("tls_cert and tls_key go together: give both, or none")
        return self
