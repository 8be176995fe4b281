"""Every request that a test sends and a server accepts conforms to the description that the server publishes.

A middleware, which is not in the product, writes each body that was answered with 200 into a file; nothing is
kept in memory, which some tests measure, and nothing is validated while a request is under way. A server in a
process of its own (`python recording.py FILE serve ...`) has the file that `Server.stop` reads. Applications
in the process of the tests have one each, which a fixture looks at after the test.
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
    from octavo.server.http.keys import Keys
    from octavo.server.lifecycle import RunningServer
    from octavo.server.state import ServerState

Description = dict[str, Any]

MOST_PROBLEMS = 5  # the first few say enough
LONGEST_SHOWN = 500  # characters


class Accepted(NamedTuple):
    path: str
    body: str  # JSON


class Recorder:
    """Middleware. `describe` is asked once, when something was accepted: the bounds are known then."""

    def __init__(self, app: "ASGIApp", describe: Callable[[], Description], requests: Path) -> None:
        self._app = app
        self._describe = describe
        self._requests = requests

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        pieces: list[bytes] = []

        async def heard() -> MutableMapping[str, Any]:
            message = await receive()
            pieces.append(message.get("body", b""))
            return message

        async def said(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                if message["status"] == 200:
                    self._write(Accepted(scope["path"], b"".join(pieces).decode()))
                pieces.clear()
            await send(message)

        await self._app(scope, heard, said)

    def _write(self, accepted: Accepted) -> None:
        is_first = not self._requests.exists()
        with self._requests.open("a") as file:
            if is_first:
                file.write(json.dumps(self._describe()) + "\n")
            file.write(json.dumps(accepted) + "\n")


def recorded(app: "FastAPI", requests: Path | None = None) -> "FastAPI":
    """The same application, which writes what it accepts into the file; without one, for `take_problems`."""
    from octavo.server.openapi import describe

    app.openapi()  # which takes long, once: not while the event loop is watched
    app.add_middleware(
        Recorder,
        describe=lambda: describe(app, app.state.server),
        requests=_folder() / uuid.uuid4().hex if requests is None else requests,
    )
    return app


def problems(description: Description, accepted: Iterable[Accepted]) -> Iterator[str]:
    """What the description does not allow, in words."""
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
    """For the files of this process. Removed when it ends."""
    folder = tempfile.mkdtemp(prefix="octavo-requests-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def take_problems() -> list[str]:
    """Of what was accepted since the last call."""
    found = []
    for requests in sorted(_folder().iterdir()):
        found += problems_in(requests)
        requests.unlink()
    return found[:MOST_PROBLEMS]


# -- a server in another process -----------------------------------------------------------------------------


def octavo_command(requests: Path | None) -> list[str]:
    """Starts `octavo`. A server so started writes what it accepts into the file."""
    if requests is None:
        return [sys.executable, "-m", "octavo.cli.main"]
    return [sys.executable, "-P", __file__, str(requests)]


def problems_in(requests: Path) -> list[str]:
    """Of what a server has written; none if it has accepted nothing, or was not asked to write."""
    if not requests.exists():
        return []
    description, accepted = read_requests(requests)
    return list(problems(description, accepted))[:MOST_PROBLEMS]


def read_requests(requests: Path) -> tuple[Description, list[Accepted]]:
    """The description, and every distinct request."""
    # A server that was killed has perhaps not written its last line to the end.
    first, *rest = [line for line in requests.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return json.loads(first), [Accepted(*json.loads(line)) for line in dict.fromkeys(rest)]


def record_into(requests: Path) -> None:
    """Before the server is opened: its application will be recorded."""
    from octavo.server import serve

    open_server = serve._open

    def open_recorded(options: "EngineOptions", server_options: "ServerOptions") -> "RunningServer":
        from octavo.server import app, lifecycle

        def build_recorded(state: "ServerState", keys: "Keys") -> "FastAPI":
            return recorded(app.build_app(state, keys), requests)

        lifecycle.build_app = build_recorded  # type: ignore[attr-defined]
        return open_server(options, server_options)

    serve._open = open_recorded


if __name__ == "__main__":
    from octavo.cli.main import main

    record_into(Path(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
