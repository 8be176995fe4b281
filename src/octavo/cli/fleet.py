"""What the `octavo fleet` commands share: the connection to the server, the table, and waiting for an end."""

import argparse
import http.client
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from octavo.cli.invocation import Invocation
from octavo.cli.terminal import Terminal, TextStyle, table
from octavo.config import counted
from octavo.errors import OctavoError
from octavo.status import (
    FleetStatus,
    OperationState,
    OperationStatus,
    ReplicaState,
    ReplicaStatus,
)
from octavo.top.connection import PermanentFailure, ViewAddress, error_message, explain_error

DEFAULT_URL = "http://127.0.0.1:8000"
PATH = "/octavo/fleet"
REQUEST_SECONDS = 30.0
POLL_SECONDS = 0.25
EXIT_FAILED = 1

COLOURS = {ReplicaState.READY: TextStyle.GREEN, ReplicaState.FAILED: TextStyle.RED}

Answer = TypeVar("Answer", FleetStatus, OperationStatus)


class FleetRejected(OctavoError):
    """The server rejects a command. The message says what to do."""


def add_server_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", metavar="URL", default=DEFAULT_URL, help=f"server address [{DEFAULT_URL}]")
    # A separate `dest` name: the key is for the target server and is not an option of this process.
    parser.add_argument(
        "--api-key",
        metavar="K",
        dest="key_to_send",
        default=None,
        help="operator's API key to send [$OCTAVO_API_KEY]",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(config=None)


def add_wait_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-wait", action="store_true", help="return when the server has accepted the command"
    )


class FleetClient:
    """Sends one request per connection: a proxy or a server may close those that are idle."""

    def __init__(self, address: ViewAddress, key: str | None) -> None:
        self.address = address
        self._key = key

    @classmethod
    def of(cls, call: Invocation) -> "FleetClient":
        key = call.args.key_to_send or call.terminal.environ.get("OCTAVO_API_KEY") or None
        return cls(ViewAddress.of(call.args.url), key)

    def status(self) -> FleetStatus:
        return self._ask("GET", PATH, None, FleetStatus)

    def command(self, name: str, body: Mapping[str, str]) -> OperationStatus:
        return self._ask("POST", f"{PATH}/{name}", body, OperationStatus)

    def _ask(self, method: str, path: str, body: Mapping[str, str] | None, kind: type[Answer]) -> Answer:
        secure = self.address.scheme == "https"
        make = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        headers = {} if self._key is None else {"authorization": f"Bearer {self._key}"}
        if body is not None:
            headers["content-type"] = "application/json"
        connection = make(self.address.host, timeout=REQUEST_SECONDS)
        try:
            content = None if body is None else msgspec.json.encode(body)
            connection.request(method, f"{self.address.base}{path}", content, headers)
            response = connection.getresponse()
            if response.status not in (200, 202):
                raise self._error(response)
            return msgspec.json.decode(response.read(), type=kind)
        except ValueError as error:  # characters that a header or a host name cannot contain
            if isinstance(error, msgspec.MsgspecError):
                raise PermanentFailure(explain_error(error, self.address)) from error
            raise PermanentFailure(
                f"cannot send a request to {self.address}: invalid address or API key ({error})"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise PermanentFailure(explain_error(error, self.address)) from error
        finally:
            connection.close()

    def _error(self, response: http.client.HTTPResponse) -> OctavoError:
        reason = error_message(response)
        if response.status == 401:
            problem = "needs an API key" if self._key is None else "does not accept this API key"
            return PermanentFailure(f"{self.address} {problem}: set one with --api-key or OCTAVO_API_KEY")
        if reason is None or (response.status in (404, 405) and "replica" not in reason):
            return PermanentFailure(
                f"{self.address} is not an Octavo server, or its version is too old: {PATH} returned status"
                f" {response.status}"
            )
        return FleetRejected(reason)


def run_command(call: Invocation, name: str, body: Mapping[str, str], progress: "OperationProgress") -> int:
    """Send a command, wait for its end unless --no-wait is given, and return the exit code."""
    client = FleetClient.of(call)
    operation = client.command(name, body)
    if not call.args.no_wait:
        operation = wait_for_end(client, operation, progress)
    if call.args.json:
        call.terminal.write(as_json(operation))
    elif operation.state is OperationState.DONE:
        call.terminal.write(progress.result(operation) + "\n")
    elif operation.state is not OperationState.FAILED:
        call.terminal.write(
            "the server has accepted the command: `octavo fleet status` shows how it proceeds\n"
        )
    if operation.problem is not None:
        call.terminal.error(operation.problem)
    return EXIT_FAILED if operation.state is OperationState.FAILED else 0


class OperationProgress:
    """Writes a line to stderr whenever what is shown has changed."""

    def __init__(
        self,
        terminal: Terminal,
        describe: Callable[[FleetStatus, OperationStatus], str],
        result: Callable[[OperationStatus], str],
    ) -> None:
        self.result = result
        self._terminal = terminal
        self._describe = describe
        self._last = ""

    def show(self, fleet: FleetStatus, operation: OperationStatus) -> None:
        ahead = [one for one in fleet.operations if one.number < operation.number and is_open(one)]
        queued = f"waiting for {counted(len(ahead), 'other command')}: {', '.join(map(named, ahead))}"
        line = queued if operation.state is OperationState.QUEUED else self._describe(fleet, operation)
        if line != self._last and is_open(operation):
            self._terminal.note(line)
        self._last = line


def wait_for_end(
    client: FleetClient, operation: OperationStatus, progress: OperationProgress
) -> OperationStatus:
    """Return the operation when it has ended. If this is interrupted, the server continues."""
    while True:
        fleet = client.status()
        found = [one for one in fleet.operations if one.number == operation.number]
        if not found:
            raise FleetRejected(
                "the server no longer lists this command, perhaps because it was restarted:"
                " look at `octavo fleet status`"
            )
        progress.show(fleet, found[0])
        if not is_open(found[0]):
            return found[0]
        time.sleep(POLL_SECONDS)


def is_open(operation: OperationStatus) -> bool:
    return operation.state in (OperationState.QUEUED, OperationState.RUNNING)


def named(operation: OperationStatus) -> str:
    then = "" if operation.then is None else f" (then {operation.then})"
    return f"{operation.kind} {operation.replica or ''}".rstrip() + then


def replica_of(fleet: FleetStatus, name: str | None) -> ReplicaStatus | None:
    return next((replica for replica in fleet.replicas if replica.name == name), None)


def as_json(content: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(content), indent=2).decode() + "\n"


# -- the table ---------------------------------------------------------------------------------------------


def fleet_table(fleet: FleetStatus, terminal: Terminal) -> str:
    header = (
        "replica",
        "state",
        "pid",
        "up",
        "restarts",
        "requests",
        "KV blocks",
        "steps",
        "tokens",
        "tokens/s",
    )
    lines = table([header, *map(_row, fleet.replicas)]).splitlines()
    shown = [terminal.styled(lines[0], TextStyle.BOLD, terminal.stdout)]
    for replica, line in zip(fleet.replicas, lines[1:], strict=True):
        colour = COLOURS.get(replica.state, TextStyle.YELLOW)
        state = terminal.styled(replica.state, colour, terminal.stdout)
        shown.append(line.replace(replica.state, state, 1))
    return "\n".join(shown) + "\n"


def _row(replica: ReplicaStatus) -> tuple[str, ...]:
    blocks = f"{replica.kv_blocks_used:,} of {replica.kv_blocks_total:,}"
    return (
        replica.name,
        replica.state,
        "-" if replica.pid is None else str(replica.pid),
        duration(replica.uptime_seconds),
        f"{replica.restarts:,}",
        f"{replica.requests:,}",
        blocks if replica.kv_blocks_total else "-",
        f"{replica.steps:,}",
        f"{replica.tokens:,}",
        f"{replica.tokens / replica.step_seconds:,.1f}" if replica.step_seconds else "-",
    )


def duration(seconds: float | None) -> str:
    """9 s, 8 min 9 s, 7 h 8 min, 6 d 7 h"""
    if seconds is None:
        return "-"
    whole = int(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"
