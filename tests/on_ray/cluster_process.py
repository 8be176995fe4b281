"""A Ray cluster on this machine, controlled through stdin. Run by `ray_cluster.RayCluster`.

    add CPUS        start a node, and print its id
    kill ID         kill all processes of a node with SIGKILL
    kill-head       kill the head with SIGKILL
    status NAME     print the state of a fleet, as JSON

Each command is answered with one line.
"""

import inspect
import json
import os
import signal
import sys
import time
from dataclasses import asdict
from typing import Any

import msgspec
import ray
import ray._private.services
from ray._raylet import (  # type: ignore[attr-defined]
    DASHBOARD_AGENT_LISTEN_PORT_NAME,
    METRICS_AGENT_PORT_NAME,
    METRICS_EXPORT_PORT_NAME,
    persist_port,
)
from ray.cluster_utils import Cluster

from chaos.machines import unused_port
from octavo.ray.cluster import RayFleet
from octavo.ray.spec import NAMESPACE
from patience import HANG_SECONDS

NO_PORT = -1


def node_settings() -> dict[str, Any]:
    return {"object_store_memory": 80 << 20, "runtime_env_agent_port": unused_port()}


def be_patient() -> None:
    """Let Ray wait for its processes. On a busy machine, it would give up: a node after 15 s without the
    ports of its metrics, which are not used here, and whoever starts a node after 30 s."""
    find_node, start_node = ray._private.services.get_node, ray._private.services.start_raylet

    def find_patiently(*arguments: Any, **settings: Any) -> Any:
        deadline = time.monotonic() + 4 * HANG_SECONDS
        while True:
            try:
                return find_node(*arguments, **settings)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def start_without_ports(*arguments: Any, **settings: Any) -> Any:
        given = inspect.signature(start_node).bind(*arguments, **settings).arguments
        for name in (METRICS_AGENT_PORT_NAME, METRICS_EXPORT_PORT_NAME, DASHBOARD_AGENT_LISTEN_PORT_NAME):
            persist_port(given["session_dir"], given["node_id"], name, NO_PORT)
        return start_node(*arguments, **settings)

    ray._private.services.get_node = find_patiently
    ray._private.services.start_raylet = start_without_ports


class ClusterProcess:
    def __init__(self) -> None:
        head = node_settings() | {"num_cpus": 0, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._is_connected = False

    def address(self) -> str:
        return str(self._cluster.address)

    def add(self, cpus: str) -> str:
        node = self._cluster.add_node(num_cpus=int(cpus), **node_settings())
        return str(node.node_id)

    def kill(self, node_id: str) -> str:
        (node,) = [one for one in self._cluster.worker_nodes if one.node_id == node_id]
        self._kill(node)
        self._cluster.worker_nodes.remove(node)
        return "killed"

    def kill_head(self) -> str:
        self._kill(self._cluster.head_node)
        return "killed"

    def status(self, name: str) -> str:
        if not self._is_connected:
            ray.init(self._cluster.address, namespace=NAMESPACE, log_to_driver=False)
            self._is_connected = True
        status = RayFleet(ray, name).status()
        if status is None:
            return "null"
        replicas = [None if one is None else asdict(one) for one in status.replicas.values()]
        encoded = {"num_wanted": status.num_wanted, "num_ready": status.num_ready, "replicas": replicas}
        return json.dumps(encoded, default=msgspec.to_builtins)

    def _kill(self, node: Any) -> None:
        for processes in node.all_processes.values():
            for one in processes:
                if one.process.poll() is None:
                    os.kill(one.process.pid, signal.SIGKILL)
                    one.process.wait()


def main() -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # for messages of Ray
    be_patient()
    cluster = ClusterProcess()
    answers.write(f"{cluster.address()}\n")
    for line in sys.stdin:
        command, *arguments = line.split()
        answer = getattr(cluster, command.replace("-", "_"))(*arguments)
        answers.write(f"{answer}\n")
    os._exit(0)  # the test kills what is left


if __name__ == "__main__":
    main()
