"""Checks that every request that a server accepts in a test conforms to the description that it publishes.

A middleware, which is not part of the product, writes each body that was answered with 200 to a file. It
keeps nothing in memory, because some tests measure memory, and validates nothing while a request is in
flight. A server in another process (`python recording.py FILE serve ...`) writes the file that `Server.stop`
reads. Each application in the test process has its own file, which a fixture checks after the test.
"""

import atexit
import json
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import ASGIApp, Receive, Scope, Send

    from octavo.config import EngineOptions, ServerOptions
    from octavo.membership.remote_keepers import RemoteKeepers
    from octavo.server.http.keys import Keys
    from octavo.server.lifecycle import RunningServer
    from octavo.server.state import ServerState

Description = dict[str, Any]

MAX_PROBLEMS = 5  # more would repeat them
LONGEST_SHOWN = 500  # characters
# Of a server in another process. On a busy machine, imports alone may take longer than the product's limit,
# and nothing can interrupt them. A shutdown that hangs still fails the test that waits for it.
FORCED_EXIT_SECONDS = 600


class Accepted(NamedTuple):
    path: str
    body: str  # JSON


class Recorder:
    """Middleware. It calls `describe` once, at the first accepted request: by then the limits are known."""

    def __init__(self, app: "ASGIApp", describe: Callable[[], Description], requests: Path) -> None:
        self._app = app
        self._describe = describe
        self._requests = requests

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        pieces: list[bytes] = []

        async def recording_receive() -> MutableMapping[str, Any]:
            message = await receive()
            pieces.append(message.get("body", b""))
            return message

        async def recording_send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                if message["status"] == 200:
                    self._write(Accepted(scope["path"], b"".join(pieces).decode()))
                pieces.clear()
            await send(message)

        await self._app(scope, recording_receive, recording_send)

    def _write(self, accepted: Accepted) -> None:
        is_first = not self._requests.exists()
        with self._requests.open("a") as file:
            if is_first:
                file.write(json.dumps(self._describe()) + "\n")
            file.write(json.dumps(accepted) + "\n")


def recorded(app: "FastAPI", requests: Path | None = None) -> "FastAPI":
    """Record the requests that the application accepts, in a file or, without one, for `take_problems`."""
    from octavo.server.openapi import describe

    app.openapi()  # slow the first time, so not while blocking of the event loop is measured
    app.add_middleware(
        Recorder,
        describe=lambda: describe(app, app.state.server),
        requests=_folder() / uuid.uuid4().hex if requests is None else requests,
    )
    return app


def problems(description: Description, accepted: Iterable[Accepted]) -> Iterator[str]:
    """Describe each violation of the description."""
    from jsonschema import Draft202012Validator

    validators: dict[str, Draft202012Validator] = {}
    for path, body in accepted:
        if path not in validators:
            content = description["paths"][path]["post"]["requestBody"]["content"]
            Draft202012Validator.check_schema(content["application/json"]["schema"])
            validators[path] = Draft202012Validator(content["application/json"]["schema"])
        for error in validators[path].iter_errors(json.loads(body)):
            where = error.json_path.removeprefix("$.")
            yield (
                f"{path} accepts what /openapi.json does not allow, {where}: {error.message[:LONGEST_SHOWN]}"
                f"\n    in {body[:LONGEST_SHOWN]}"
            )


# -- applications in this process ----------------------------------------------------------------------------


@cache
def _folder() -> Path:
    """Return the folder for the files of this process. It is removed at exit."""
    folder = tempfile.mkdtemp(prefix="octavo-requests-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def take_problems() -> list[str]:
    """Return the problems of requests accepted since the last call."""
    found = []
    for requests in sorted(_folder().iterdir()):
        found += problems_in(requests)
        requests.unlink()
    return found[:MAX_PROBLEMS]


# -- a server in another process -----------------------------------------------------------------------------


def octavo_command(requests: Path | None) -> list[str]:
    """Return a command that runs `octavo`. A server started by it records accepted requests in the file."""
    if requests is None:
        return [sys.executable, "-m", "octavo.cli.main"]
    return [sys.executable, "-P", __file__, str(requests)]


def problems_in(requests: Path) -> list[str]:
    """Return the problems in the file of a server; none if it accepted or recorded nothing."""
    if not requests.exists():
        return []
    description, accepted = read_requests(requests)
    return list(problems(description, accepted))[:MAX_PROBLEMS]


def read_requests(requests: Path) -> tuple[Description, list[Accepted]]:
    """Return the description and every distinct request."""
    # A killed server may have left an incomplete last line.
    first, *rest = [line for line in requests.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return json.loads(first), [Accepted(*json.loads(line)) for line in dict.fromkeys(rest)]


def record_into(requests: Path) -> None:
    """Record the application of the next server. Call this before the server is opened."""
    from octavo.server import serve

    open_server = serve._open

    def open_recorded(
        options: "EngineOptions", server_options: "ServerOptions", keepers: "RemoteKeepers | None"
    ) -> "RunningServer":
        from octavo.server import app, lifecycle

        def build_recorded(state: "ServerState", keys: "Keys") -> "FastAPI":
            return recorded(app.build_app(state, keys), requests)

        lifecycle.build_app = build_recorded  # type: ignore[attr-defined]
        return open_server(options, server_options, keepers)

    serve._open = open_recorded


if __name__ == "__main__":
    from octavo.cli.main import main
    from octavo.server import signals

    signals.FORCED_EXIT_SECONDS = FORCED_EXIT_SECONDS  # before other modules import it
    record_into(Path(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
