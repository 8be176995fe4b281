"""The connection to a Ray cluster, and the commands for a fleet there."""

import logging
import os
import subprocess
import sys
import time
from typing import Any

from octavo.errors import ConfigError, FleetError
from octavo.ray.spec import NAMESPACE, FleetSpec, RayFleetStatus, fleet_actor_name

ANSWER_SECONDS = 30.0
PROBE_SECONDS = 180.0
RETRY_SECONDS = 0.2
# Ask the head something without a token. Exit codes: 0, it answers; REFUSED, it wants a token.
REFUSED = 3
PROBE = f"""\
import sys
from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError
try:
    GcsClient(address=sys.argv[1]).internal_kv_keys(b"octavo", namespace=None)
except AuthenticationError:
    sys.exit({REFUSED})
"""
AUTHENTICATION_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


def connect(address: str | None) -> Any:
    """Connect this process to a cluster, and return the module `ray`. `address` None: as Ray finds it."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError("Ray is not installed: pip install 'octavo[ray]'") from error
    try:
        ray.init(
            address=address or os.environ.get("RAY_ADDRESS") or "auto",
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise FleetError(
            f"cannot connect to a Ray cluster ({_reason(error)}): run this on one of its nodes, with the"
            " token in RAY_AUTH_TOKEN or ~/.ray/auth_token, and give --ray-address HOST:PORT if there are"
            " several clusters"
        ) from error
    return ray


def requires_token(address: str) -> bool:
    """Return whether the cluster refuses a client without a token. Raises FleetError without an answer.

    A process of its own asks, because Ray reads the token once per process.
    """
    environ = {name: value for name, value in os.environ.items() if name not in AUTHENTICATION_VARIABLES}
    environ["RAY_AUTH_MODE"] = "disabled"
    command = [sys.executable, "-c", PROBE, address]
    try:
        probe = subprocess.run(command, env=environ, capture_output=True, timeout=PROBE_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise FleetError(f"the head of the Ray cluster at {address} does not answer") from error
    if probe.returncode not in (0, REFUSED):
        last = probe.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise FleetError(f"cannot find out whether {address} requires a token: {last}")
    return probe.returncode == REFUSED


def check_authentication(address: str) -> None:
    """Raise FleetError if anybody who reaches the cluster may run commands on it."""
    if not requires_token(address):
        raise FleetError(
            f"the Ray cluster at {address} has no token authentication, so everybody who reaches its ports"
            " can run commands on its nodes. Start all its nodes with RAY_AUTH_MODE=token, or accept this"
            " with --allow-unauthenticated"
        )


class RayFleet:
    """The fleet of a name on the cluster that this process is connected to."""

    def __init__(self, ray: Any, name: str) -> None:
        self._ray = ray
        self._name = name

    def apply(self, spec: FleetSpec, grace: float) -> None:
        """Give the fleet a desired state. Its replicas go on, and are replaced if their options differ."""
        from octavo.ray.actors import FleetActor

        actor = self._find()
        if actor is not None:
            self._ray.kill(actor, no_restart=True)
        self._wait_until_gone()
        self._ray.remote(FleetActor).options(
            name=fleet_actor_name(self._name),
            namespace=NAMESPACE,
            lifetime="detached",
            num_cpus=0,
            max_restarts=-1,
            max_concurrency=8,
        ).remote(spec, grace)

    def status(self) -> RayFleetStatus | None:
        """Return the state of the fleet; None if there is none, or it does not answer at present."""
        status: RayFleetStatus | None = self._ask("status")
        return status

    def addresses(self) -> list[str] | None:
        """Return where the replicas listen; None if there is no fleet, or it does not answer at present."""
        addresses: list[str] | None = self._ask("addresses")
        return addresses

    def end(self) -> None:
        """End all replicas, then the fleet. Returns when they have ended."""
        actor = self._find()
        if actor is None:
            raise FleetError(f"there is no fleet {self._name!r} on this cluster")
        while actor is not None:
            try:
                self._ray.get(actor.end.remote())
                self._ray.kill(actor, no_restart=True)
                return
            except self._ray.exceptions.RayError:  # Ray starts it again, and then it must be asked again
                time.sleep(RETRY_SECONDS)
                actor = self._find()

    def _wait_until_gone(self) -> None:
        """Wait until the name of the fleet's actor is free."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while self._find() is not None:
            if time.monotonic() > deadline:
                raise FleetError(f"the earlier actor of the fleet {self._name!r} does not end: try again")
            time.sleep(RETRY_SECONDS)

    def _ask(self, method: str) -> Any:
        actor = self._find()
        if actor is None:
            return None
        try:
            return self._ray.get(getattr(actor, method).remote(), timeout=ANSWER_SECONDS)
        except self._ray.exceptions.RayError:
            return None

    def _find(self) -> Any:
        try:
            return self._ray.get_actor(fleet_actor_name(self._name), namespace=NAMESPACE)
        except ValueError:
            return None


def smallest_node_cpus(ray: Any) -> float:
    """Return the CPUs of the smallest node that has any: then every node has room for a replica."""
    sizes = [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]
    found = [size for size in sizes if size]
    if not found:
        raise FleetError("the Ray cluster has no CPUs: add nodes, or give --cpus-per-replica")
    return float(min(found))


def _reason(error: BaseException) -> str:
    """Return the first sentence of the error that was the first one."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().partition("\n")[0].partition(". ")[0]
