"""Responses to requests that a client may repeat: after an event id, or with an Idempotency-Key."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive

from octavo.server.answer import AnswerWriter, respond
from octavo.server.event_ids import StreamOrigin, body_tag, resumed_stream
from octavo.server.followed_answer import Follower, follow, shared_receive
from octavo.server.generation import Generation, RequestContext, Work
from octavo.server.http.errors import invalid
from octavo.server.http.keys import binding, caller
from octavo.server.http.sse import Framing
from octavo.server.identity import ResponseIdentity, identity_of_key
from octavo.server.kept_answers import KeptAnswer
from octavo.server.operate.record import record_of
from octavo.server.state import ServerState
from octavo.server.wire import GenerationBody

IDEMPOTENCY_KEY = "idempotency-key"
LAST_EVENT_ID = "last-event-id"
MAX_KEY = 255  # characters


async def respond_once(
    request: Request,
    body: GenerationBody,
    work: Work,
    make_writer: Callable[[Generation], AnswerWriter],
    *,
    prefix: str,
    framing: Framing,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return the response, or the one to an earlier request with the same Idempotency-Key.

    `prefix` is that of the response id. `framing` is that of the stream, if the response is one. `headers`
    are those of the response in addition to its usual ones.
    """
    state: ServerState = request.app.state.server
    asked = Asked(request, body, work, make_writer, prefix, headers or {})
    origin, key = _resumed(request, body), _idempotency_key(request)
    if origin is not None:  # repeating it has no effect, so its key is not needed
        return await asked.compute(origin.identity, request.receive, origin=origin)
    if key is None:
        return await asked.compute(state.identities.new(), request.receive, is_new=True)
    name, digest = (binding(request), key), body.digest
    while (kept := state.kept_answers.find(name, digest)) is not None:
        if kept.pieces is None:  # too large to be kept
            return await asked.compute(kept.identity, request.receive)
        response = await follow(
            kept,
            _follower(request, body),
            request.receive,
            is_stream=body.is_stream,
            framing=framing,
            headers=asked.headers,
        )
        if response is not None:
            return response
    kept = state.kept_answers.open(name, caller(request).name, digest, identity_of_key(name[0], key, digest))
    try:
        return await asked.compute(kept.identity, shared_receive(request.receive, kept), kept=kept)
    except BaseException:
        kept.fail()
        raise


@dataclass(frozen=True)
class Asked:
    """A request, and what its endpoint needs to answer it."""

    request: Request
    body: GenerationBody
    work: Work
    make_writer: Callable[[Generation], AnswerWriter]
    prefix: str
    headers: Mapping[str, str]

    async def compute(
        self,
        identity: ResponseIdentity,
        receive: Receive,
        *,
        is_new: bool = False,
        origin: StreamOrigin | None = None,
        kept: KeptAnswer | None = None,
    ) -> Response:
        """Return the response. `is_new`: no other has this identity. `origin`: None for a new stream."""
        request, body = self.request, self.body
        state: ServerState = request.app.state.server
        if origin is None and body.includes_event_ids:
            origin = StreamOrigin(binding(request), identity, body_tag(body.digest))
        context = RequestContext(
            response_id=identity.response_id(self.prefix),
            created=identity.created,
            seed=identity.seed,
            engine_id=(identity if is_new else state.identities.new()).response_id(self.prefix),
            tenant=caller(request),
            is_stream=body.is_stream,
            model=body.model or state.model.name,
            shown=body.shown,
            priority=body.priority or 0,
            arrival=request.state.arrival,
            timeout=body.timeout,
            cache_salt=body.cache_salt or "",
            origin=origin,
        )
        state.check_ready()  # again: reading the body may have taken long
        generation = Generation(state, context, record_of(request), receive, request.state.holding)
        return await respond(generation, self.work, self.make_writer, kept, headers=self.headers)


def _follower(request: Request, body: GenerationBody) -> Follower:
    state: ServerState = request.app.state.server
    timeout = state.timeout(body.timeout)
    return Follower(state, record_of(request).keyed, request.state.holding, request.state.arrival + timeout)


def _resumed(request: Request, body: GenerationBody) -> StreamOrigin | None:
    """Return the origin of a stream that continues after an event; None for a new response."""
    param, event_id = "resume_from", body.last_event_id
    if event_id is None:
        param, event_id = "Last-Event-ID", request.headers.get(LAST_EVENT_ID) if body.is_stream else None
    if not event_id:
        return None
    if not body.includes_event_ids:
        raise invalid(
            f"{param} continues only streams with event ids: send the body of the first request, with stream"
            " and stream_options.include_event_ids set to true",
            param,
        )
    return resumed_stream(event_id, binding(request), body_tag(body.digest), param=param)


def _idempotency_key(request: Request) -> str | None:
    key = request.headers.get(IDEMPOTENCY_KEY)
    if key is not None and not (key.isascii() and key.isprintable() and 1 <= len(key) <= MAX_KEY):
        raise invalid(
            f"the header Idempotency-Key must have 1 to {MAX_KEY} printable ASCII characters",
            "Idempotency-Key",
        )
    return key
