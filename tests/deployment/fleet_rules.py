"""Rules for deploy/kubernetes/fleet and deploy/kubernetes/kuberay. A rule yields a message for each problem.

The rules look at a folder as a whole, because its files must agree on names, labels, ports and metrics.
"""

import io
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import yaml

from data.json_types import Json
from deployment.rules import (
    Manifest,
    api_key_problems,
    confinement_problems,
    pod_problems,
    privilege_problems,
    probe_problems,
    secret_file_problems,
    shutdown_problems,
)
from octavo.cli.flags import options_from
from octavo.cli.main import build_parser
from octavo.cli.terminal import Terminal
from octavo.config import ResolvedOptions
from octavo.membership.addresses import NamedAddresses, parse_fleet
from octavo.membership.ray_addresses import RayAddresses
from octavo.observe.catalog import METRICS

KUSTOMIZATION = "kustomization.yaml"
ADAPTER = "prometheus-adapter.yaml"  # values of a Helm chart, not a manifest
FRONT_END_PROBES = {"startup": "/livez", "liveness": "/livez", "readiness": "/readyz"}
FIRST_RAY_WITH_TOKENS = (2, 52)


@cache
def _documents(text: str) -> tuple[Manifest, ...]:
    return tuple(yaml.safe_load_all(text))


class Folder:
    """The files of a kustomization."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts
        files = [name for name in texts if name not in (KUSTOMIZATION, ADAPTER)]
        self.manifests = [one for name in files for one in _documents(texts[name])]
        (self.kustomization,) = _documents(texts[KUSTOMIZATION])

    @classmethod
    def read(cls, path: Path) -> "Folder":
        return cls({one.name: one.read_text() for one in sorted(path.iterdir())})

    def replaced(self, name: str, old: str, new: str) -> "Folder":
        assert old in self.texts[name], f"{name} does not contain {old}"
        return Folder({**self.texts, name: self.texts[name].replace(old, new)})

    def named(self, kind: str, name: str) -> Manifest:
        """Return a manifest; an empty one if there is none."""
        found = [one for one in self.manifests if (one["kind"], one["metadata"]["name"]) == (kind, name)]
        return found[0] if found else {}

    def of_kind(self, kind: str) -> list[Manifest]:
        return [one for one in self.manifests if one["kind"] == kind]

    @property
    def adapter_rules(self) -> list[Manifest]:
        (values,) = _documents(self.texts[ADAPTER])
        rules: list[Manifest] = values["rules"]["external"]
        return rules

    @property
    def shared_variables(self) -> dict[str, dict[str, str]]:
        """Return the variables of each generated ConfigMap."""
        return {
            one["name"]: dict(literal.split("=", 1) for literal in one["literals"])
            for one in self.kustomization.get("configMapGenerator", [])
        }


def options_of(container: Manifest, folder: Folder) -> ResolvedOptions:
    """Return the options of an Octavo container, as its command line would. Raises if they are wrong."""
    variables = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    for source in container.get("envFrom", []):
        variables |= folder.shared_variables[source["configMapRef"]["name"]]
    return _options(tuple(container["args"]), tuple(sorted(variables.items())))


@cache
def _options(arguments: tuple[str, ...], variables: tuple[tuple[str, str], ...]) -> ResolvedOptions:
    said = io.StringIO()
    try:
        args = build_parser().parse_args(arguments)
    except SystemExit as end:  # argparse has printed the reason
        raise AssertionError(f"octavo does not accept {arguments}") from end
    resolved = options_from(args, Terminal(io.StringIO(), said, said, dict(variables)))
    assert not resolved.warnings, resolved.warnings
    return resolved


def fleet_problems(folder: Folder) -> Iterator[str]:
    replicas, front_ends = folder.named("StatefulSet", "octavo-replica"), _front_ends(folder)
    yield from listing_problems(folder)
    yield from image_problems(folder)
    yield from replica_problems(replicas, folder)
    yield from front_end_problems(front_ends, folder)
    yield from agreement_problems(replicas, front_ends, folder)
    for workload in (replicas, front_ends):
        yield from autoscaler_problems(workload, folder)
        yield from fleet_budget_problems(workload, folder)
    yield from replica_network_problems(replicas, front_ends, folder)
    yield from front_end_network_problems(replicas, front_ends, folder)
    yield from adapter_problems(folder)


def _front_ends(folder: Folder) -> Manifest:
    return folder.named("Deployment", "octavo-front-end")


def _selector(workload: Manifest) -> Json:
    return workload["spec"]["selector"]["matchLabels"]


def _pod(workload: Manifest) -> Manifest:
    pod: Manifest = workload["spec"]["template"]["spec"]
    return pod


def _container(pod: Manifest, name: str) -> Manifest:
    (found,) = [one for one in pod["containers"] if one["name"] == name]
    container: Manifest = found
    return container


def listing_problems(folder: Folder) -> Iterator[str]:
    files = folder.texts.keys() - {KUSTOMIZATION, ADAPTER}
    for name in sorted(files ^ set(folder.kustomization["resources"])):
        yield f"{name} is not listed, or does not exist"


def image_problems(folder: Folder) -> Iterator[str]:
    """One image for everything: front ends and replicas of one version belong together."""
    named = {one["name"] for one in folder.kustomization["images"]}
    used = set(re.findall(r"^\s*image: (\S+)$", "\n".join(folder.texts.values()), re.MULTILINE))
    if used != named:
        yield f"other images than the kustomization's: {sorted(used ^ named)}"


# -- pods ------------------------------------------------------------------------------------------------


def replica_problems(manifest: Manifest, folder: Folder) -> Iterator[str]:
    yield from pod_problems(manifest)
    yield from spread_problems(_pod(manifest), _selector(manifest))
    pod = _with_claims(manifest)
    for container in pod["containers"]:
        yield from confinement_problems(container, pod)
        resources = container["resources"]
        if resources.get("requests") != resources.get("limits"):
            yield "requests and limits differ, so the replica has no processors of its own"
    if manifest["spec"].get("podManagementPolicy") != "Parallel":
        yield "replicas start one after the other"
    replica = _container(pod, "replica")
    if not replica["resources"]["limits"]["cpu"].isdecimal():
        yield "a part of a processor slows down all threads"
    options = options_of(replica, folder)
    if not options.is_given("max_model_len"):
        yield "max_model_len depends on the memory of each node"
    port = {one["name"]: one["containerPort"] for one in replica["ports"]}.get("fleet")
    if options.replica.listen != f"0.0.0.0:{port}":
        yield "the agent does not listen on the port of the container"
    if replica.get("livenessProbe", {}).get("tcpSocket") != {"port": "fleet"}:
        yield "the liveness probe does not use the agent's port"
    if "/tmp" not in {mount["mountPath"] for mount in replica["volumeMounts"]}:
        yield "the engine's socket needs a writable /tmp"
    yield from secret_file_problems(replica, pod, options.server.fleet_key or "", "the fleet key")
    yield from shutdown_problems(replica, pod, options.server.grace)
    yield from readiness_problems(replica, pod)


def _with_claims(manifest: Manifest) -> Manifest:
    """Return the pod of a StatefulSet with a volume for each claim."""
    claims = [{"name": one["metadata"]["name"]} for one in manifest["spec"].get("volumeClaimTemplates", [])]
    return {**_pod(manifest), "volumes": [*_pod(manifest)["volumes"], *claims]}


def readiness_problems(replica: Manifest, pod: Manifest) -> Iterator[str]:
    """The pod is ready when the engine is, so that an update waits for it. The agent listens earlier."""
    if "readinessProbe" in replica:
        yield "the agent has no probe that knows its engine"
    variables = {one["name"]: one.get("value", "") for one in replica["env"]}
    folder = variables.get("NOTIFY_SOCKET", "").rpartition("/")[0]
    watcher = _container(pod, "readiness")
    if watcher.get("readinessProbe", {}).get("exec", {}).get("command") != ["test", "-e", f"{folder}/ready"]:
        yield "no probe looks at the file that the notifications create"
    shared = [
        {one["mountPath"]: one["name"] for one in container["volumeMounts"]}.get(folder)
        for container in (replica, watcher)
    ]
    if None in shared or shared[0] != shared[1]:
        yield "the notifications of the agent do not arrive"


def front_end_problems(manifest: Manifest, folder: Folder) -> Iterator[str]:
    yield from pod_problems(manifest)
    pod = _pod(manifest)
    yield from spread_problems(pod, _selector(manifest))
    if manifest["spec"]["strategy"] != {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}:
        yield "an update leaves fewer front ends"
    (front_end,) = pod["containers"]
    yield from probe_problems(front_end, FRONT_END_PROBES)
    yield from confinement_problems(front_end, pod)
    yield from api_key_problems(front_end, pod)
    if "/tmp" not in {mount["mountPath"] for mount in front_end["volumeMounts"]}:
        yield "the server needs a writable /tmp"
    if "preStop" not in front_end.get("lifecycle", {}):
        yield "the port closes before the Service knows"
    options = options_of(front_end, folder)
    yield from secret_file_problems(front_end, pod, options.server.fleet_key or "", "the fleet key")
    yield from shutdown_problems(front_end, pod, options.server.grace)


def spread_problems(pod: Manifest, labels: Json) -> Iterator[str]:
    spread = pod.get("topologySpreadConstraints", [])
    if [one["labelSelector"]["matchLabels"] for one in spread] != [labels]:
        yield "one node may have all the pods"


# -- what the files must agree on ------------------------------------------------------------------------


def agreement_problems(replicas: Manifest, front_ends: Manifest, folder: Folder) -> Iterator[str]:
    replica, front_end = _container(_pod(replicas), "replica"), _container(_pod(front_ends), "front-end")
    given, expected = options_of(front_end, folder), options_of(replica, folder)
    if given.options.model != expected.options.model:
        yield "front ends and replicas have different models"
    secrets = [
        {one["secret"]["secretName"] for one in _pod(workload)["volumes"] if "secret" in one}
        for workload in (replicas, front_ends)
    ]
    if secrets[0] & secrets[1]:
        yield "replicas can read the keys of the front ends"
    service = folder.named("Service", replicas["spec"]["serviceName"])
    if not service:
        yield "there is no service with the name that the StatefulSet gives"
        return
    if service["spec"].get("clusterIP") != "None":
        yield "the replicas are behind one virtual address"
    if service["spec"].get("publishNotReadyAddresses") is not True:
        yield "front ends find replicas only when DNS caches expire"
    (port,) = service["spec"]["ports"]
    source = parse_fleet(given.server.fleet or "")
    if source != NamedAddresses(service["metadata"]["name"], port["port"]):
        yield "the front ends look for replicas elsewhere"
    yield from target_problems(service, replicas)
    yield from target_problems(folder.named("Service", "octavo-front-end"), front_ends)


def target_problems(service: Manifest, workload: Manifest) -> Iterator[str]:
    if service["spec"]["selector"] != _selector(workload):
        yield "the service is for other pods"
    names = {
        port["name"] for container in _pod(workload)["containers"] for port in container.get("ports", [])
    }
    if not {port["targetPort"] for port in service["spec"]["ports"]} <= names:
        yield "the service sends to a port that does not exist"


def autoscaler_problems(workload: Manifest, folder: Folder) -> Iterator[str]:
    name = workload["metadata"]["name"]
    scaler = folder.named("HorizontalPodAutoscaler", name).get("spec")
    if scaler is None:
        yield f"nothing scales {name}"
        return
    target = {"apiVersion": "apps/v1", "kind": workload["kind"], "name": name}
    if scaler["scaleTargetRef"] != target:
        yield f"the autoscaler of {name} scales something else"
    if "replicas" in workload["spec"]:
        yield f"applying {name} again would undo the autoscaler"
    if not 2 <= scaler["minReplicas"] <= scaler["maxReplicas"]:
        yield f"one pod of {name} may be the only one"
    down = scaler.get("behavior", {}).get("scaleDown", {})
    if down.get("stabilizationWindowSeconds", 0) < 300:
        yield f"the number of {name} follows every pause"
    if down.get("policies") != [{"type": "Pods", "value": 1, "periodSeconds": 60}]:
        yield f"more than one pod of {name} is removed per minute"
    provided = {rule["name"]["as"] for rule in folder.adapter_rules}
    for metric in scaler["metrics"]:
        if metric["type"] == "External" and metric["external"]["metric"]["name"] not in provided:
            yield f"nothing provides {metric['external']['metric']['name']}"
        if metric["type"] == "Resource" and workload["kind"] == "StatefulSet":
            yield "an engine uses its processors fully under any load"


def adapter_problems(folder: Folder) -> Iterator[str]:
    known = {metric.name for metric in METRICS}
    for rule in folder.adapter_rules:
        (name,) = re.findall(r'__name__="([^"]+)"', rule["seriesQuery"])
        if name not in known:
            yield f"there is no metric {name}"
        if not rule["metricsQuery"].startswith("max("):
            yield f"{name} is added over front ends, which all export the same engines"
        if rule["resources"] != {"overrides": {"namespace": {"resource": "namespace"}}}:
            yield f"{name} of all namespaces"
        if re.search(r"[^a-z0-9_]", rule["name"]["as"]):
            yield f"{rule['name']['as']} is not a name for a metric of Kubernetes"


def fleet_budget_problems(workload: Manifest, folder: Folder) -> Iterator[str]:
    name = workload["metadata"]["name"]
    budget = folder.named("PodDisruptionBudget", name).get("spec", {})
    if budget.get("selector", {}).get("matchLabels") != _selector(workload):
        yield f"there is no budget for {name}"
    if budget.get("maxUnavailable") != 1:
        yield f"more than one pod of {name}, or none, may be evicted at a time"


# -- network ---------------------------------------------------------------------------------------------


def replica_network_problems(replicas: Manifest, front_ends: Manifest, folder: Folder) -> Iterator[str]:
    policy = folder.named("NetworkPolicy", "octavo-replica")["spec"]
    yield from policy_problems(policy, replicas)
    expected = {
        "from": [{"podSelector": {"matchLabels": _selector(front_ends)}}],
        "ports": [{"port": "fleet", "protocol": "TCP"}],
    }
    if policy["ingress"] != [expected]:
        yield "others than the front ends can reach the replicas, or other ports"
    for rule in policy["egress"]:
        yield from outside_problems(rule)


def front_end_network_problems(replicas: Manifest, front_ends: Manifest, folder: Folder) -> Iterator[str]:
    policy = folder.named("NetworkPolicy", "octavo-front-end")["spec"]
    yield from policy_problems(policy, front_ends)
    for rule in policy["ingress"]:
        senders = [labels.get("matchLabels") for one in rule.get("from", []) for labels in one.values()]
        if not senders or not all(senders):
            yield "every pod can send requests"
        if rule.get("ports") != [{"port": "http", "protocol": "TCP"}]:
            yield "other ports than the API's port can be reached"
    to_replicas = {
        "to": [{"podSelector": {"matchLabels": _selector(replicas)}}],
        "ports": [{"port": "fleet", "protocol": "TCP"}],
    }
    if to_replicas not in policy["egress"]:
        yield "the front ends cannot reach the replicas"
    for rule in policy["egress"]:
        if rule != to_replicas:
            yield from outside_problems(rule)


def policy_problems(policy: Manifest, workload: Manifest) -> Iterator[str]:
    if policy["podSelector"] != {"matchLabels": _selector(workload)}:
        yield "the policy is for other pods"
    if sorted(policy["policyTypes"]) != ["Egress", "Ingress"]:
        yield "a direction is not restricted"


def outside_problems(rule: Manifest) -> Iterator[str]:
    numbers = {port["port"] for port in rule.get("ports", [])}
    if not numbers or not numbers <= {53, 443}:
        yield "the pods can reach more than DNS and a hub"
    if 53 in numbers and not rule.get("to"):
        yield "any DNS server may resolve names"


# -- KubeRay ---------------------------------------------------------------------------------------------


def kuberay_problems(folder: Folder) -> Iterator[str]:
    front_ends = _front_ends(folder)
    yield from listing_problems(folder)
    yield from image_problems(folder)
    yield from front_end_problems(front_ends, folder)
    yield from target_problems(folder.named("Service", "octavo-front-end"), front_ends)
    (front_end,) = _pod(front_ends)["containers"]
    if not isinstance(parse_fleet(options_of(front_end, folder).server.fleet or ""), RayAddresses):
        yield "the front ends do not ask Ray"
    (cluster,) = folder.of_kind("RayCluster")
    address = f"ray://{cluster['metadata']['name']}-head-svc:10001"
    if {"name": "RAY_ADDRESS", "value": address} not in front_end["env"]:
        yield "the front ends look for another Ray cluster"
    if tuple(map(int, cluster["spec"]["rayVersion"].split(".")[:2])) < FIRST_RAY_WITH_TOKENS:
        yield "this version of Ray has no token authentication"
    tokens = [token_of(front_end)]
    for template in ray_templates(cluster):
        pod = template["spec"]
        yield from privilege_problems(pod)
        (node,) = pod["containers"]
        yield from confinement_problems(node, pod)
        yield from secret_file_problems(node, pod, "/run/secrets/octavo/replica.key", "the fleet key")
        tokens.append(token_of(node))
    if None in tokens or any(token != tokens[0] for token in tokens):
        yield "a part of the Ray cluster has no token, or another one"
    yield from ray_network_problems(cluster, front_ends, folder)


def ray_templates(cluster: Manifest) -> list[Manifest]:
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    return [group["template"] for group in groups]


def token_of(container: Manifest) -> Json:
    """Return where the token of Ray comes from; None if there is none or it is not used."""
    variables = {one["name"]: one for one in container["env"]}
    if variables.get("RAY_AUTH_MODE", {}).get("value") != "token":
        return None
    return variables.get("RAY_AUTH_TOKEN", {}).get("valueFrom", {}).get("secretKeyRef")


def ray_network_problems(cluster: Manifest, front_ends: Manifest, folder: Folder) -> Iterator[str]:
    policy = folder.named("NetworkPolicy", "octavo-ray")["spec"]
    labels = policy["podSelector"]["matchLabels"]
    if any(template["metadata"]["labels"] != labels for template in ray_templates(cluster)):
        yield "a node of the Ray cluster is not protected"
    allowed = [{"podSelector": {"matchLabels": one}} for one in (labels, _selector(front_ends))]
    if policy["ingress"] != [{"from": allowed}]:
        yield "others than the front ends can reach Ray"
