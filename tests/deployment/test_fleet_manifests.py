"""The manifests of a fleet are valid and follow the rules, and each rule finds a planted violation."""

import functools
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from deployment.fleet_rules import (
    ADAPTER,
    Folder,
    fleet_problems,
    kuberay_problems,
    options_of,
    ray_templates,
)
from deployment.rules import Manifest
from octavo.server.notify import Notifier
from patience import HANG_SECONDS

KUBERNETES = Path(__file__).parents[2] / "deploy/kubernetes"
FOLDERS = {name: Folder.read(KUBERNETES / name) for name in ("fleet", "kuberay")}
RULES: dict[str, Callable[[Folder], Iterable[str]]] = {"fleet": fleet_problems, "kuberay": kuberay_problems}
# The oldest that has every field (persistentVolumeClaimRetentionPolicy), and the newest that is known.
VERSIONS = ("1.27", kubernetes_validate.latest_version())


# Without this, each validation reads and decodes several megabytes again.
kubernetes_validate.utils.schema_contents = functools.cache(kubernetes_validate.utils.schema_contents)


def validate(manifest: Manifest, version: str) -> None:
    """Check a manifest against the published schema, in which unknown fields are errors."""
    if manifest["kind"] == "RayCluster":  # the schema of KubeRay is not published with those of Kubernetes
        for template in ray_templates(manifest):
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                **template,
                "metadata": {"name": "x", **template["metadata"]},
            }
            validate(pod, version)
        return
    kubernetes_validate.validate(manifest, version, strict=True)


def manifests() -> list[tuple[str, Manifest]]:
    single = [
        ("single", yaml.safe_load(path.read_text()))
        for path in sorted(KUBERNETES.glob("*.yaml"))
        if path.name != "kustomization.yaml"
    ]
    return single + [(name, one) for name, folder in FOLDERS.items() for one in folder.manifests]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("folder", "manifest"), manifests(), ids=lambda one: one if isinstance(one, str) else one["kind"]
)
def test_manifests_match_the_published_schemas(folder: str, manifest: Manifest, version: str) -> None:
    validate(manifest, version)


@pytest.mark.parametrize(
    ("name", "file", "old", "new"),
    [
        ("fleet", "replicas.yaml", "podManagementPolicy", "podManagmentPolicy"),
        ("fleet", "replicas.yaml", "terminationGracePeriodSeconds: 140", "terminationGracePeriodSeconds: 2m"),
        ("fleet", "services.yaml", "publishNotReadyAddresses: true", "publishNotReadyAddresses: 2"),
        ("fleet", "autoscalers.yaml", "averageUtilization: 70", "averageUtilisation: 70"),
        ("fleet", "network-policies.yaml", "podSelector:", "podSelectors:"),
        ("fleet", "disruption-budgets.yaml", "maxUnavailable", "maxUnavailble"),
        ("kuberay", "raycluster.yaml", "mountPath: /tmp", "path: /tmp"),
    ],
)
def test_schemas_find_mistakes(name: str, file: str, old: str, new: str) -> None:
    wrong = FOLDERS[name].replaced(file, old, new)
    changed = [one for one in wrong.manifests if one not in FOLDERS[name].manifests]
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(changed[0], VERSIONS[-1])


@pytest.mark.parametrize("name", FOLDERS)
def test_the_manifests_follow_the_rules(name: str) -> None:
    assert list(RULES[name](FOLDERS[name])) == []


REPLICAS = [
    (
        "matchLabels: {app.kubernetes.io/name: octavo-replica}",
        "matchLabels: {a: b}",
        "does not find the pods",
    ),
    ("enableServiceLinks: false", "", "OCTAVO_PORT"),
    ("automountServiceAccountToken: false", "", "token"),
    ("runAsNonRoot: true", "", "root"),
    ("seccompProfile: {type: RuntimeDefault}", "", "seccomp"),
    ("podManagementPolicy: Parallel", "", "one after the other"),
    ("serviceName: octavo-replicas", "serviceName: replicas", "no service"),
    ("terminationGracePeriodSeconds: 140", "terminationGracePeriodSeconds: 125", "--grace"),
    ("labelSelector:", "labelSelector: {matchLabels: {a: b}}\n          x:", "one node"),
    ("0.0.0.0:7070", "0.0.0.0:7071", "listen"),
    ("0.0.0.0:7070", "127.0.0.1:7070", "listen"),
    ("tcpSocket: {port: fleet}", "tcpSocket: {port: http}", "liveness"),
    ('limits: {cpu: "8"', 'limits: {cpu: "9"', "differ"),
    ('cpu: "8"', "cpu: 7500m", "part of a processor"),
    ("limits: {cpu: 100m, memory: 64Mi}", "limits: {cpu: 100m}", "limits of processor"),
    ("allowPrivilegeEscalation: false", "", "escalated"),
    ("readOnlyRootFilesystem: true", "", "written"),
    ("drop: [ALL]", "drop: []", "capabilities"),
    ("mountPath: /tmp", "mountPath: /var", "/tmp"),
    ("metadata: {name: models}", "metadata: {name: cache}", "without a volume"),
    ("/run/secrets/octavo/replica.key", "/models/replica.key", "from a secret"),
    ("defaultMode: 0440", "defaultMode: 0444", "others can read"),
    ("mountPath: /run/secrets/octavo, readOnly: true", "mountPath: /run/secrets/octavo", "or write"),
    ("fsGroup: 10001", "", "fsGroup"),
    (
        "livenessProbe:",
        "readinessProbe: {tcpSocket: {port: fleet}}\n          livenessProbe:",
        "knows its engine",
    ),
    ("test, -e, /run/octavo/ready", "test, -e, /run/ready", "no probe looks"),
    ("value: /run/octavo/notify", "value: /tmp/notify", "no probe looks"),
    ("{name: notify, mountPath: /run/octavo}\n            - ", "", "do not arrive"),
    ("secretName: octavo-replica", "secretName: octavo-front-end", "keys of the front ends"),
    ("updateStrategy", "replicas: 3\n  updateStrategy", "undo the autoscaler"),
    ("image: octavo", "image: octavo-old", "other images"),
]
FRONT_ENDS = [
    ("dns:octavo-replicas:7070", "dns:octavo-replicas:7071", "elsewhere"),
    ("dns:octavo-replicas:7070", "dns:replicas:7070", "elsewhere"),
    ('"--grace", "120"', '"--grace", "130"', "--grace is over"),
    ("maxUnavailable: 0", "maxUnavailable: 1", "fewer front ends"),
    ("path: /readyz", "path: /livez", "readiness"),
    ("preStop:", "postStart:", "before the Service knows"),
    ("/run/secrets/octavo/front-end.key", "/run/secrets/octavo/key", "fleet key does not come"),
    ("/run/secrets/octavo/api-key", "/run/secrets/octavo/key", "API key does not come"),
    ("name: OCTAVO_API_KEY_FILE", "name: OCTAVO_API_KEY", "environment variable"),
    ("configMapRef: {name: octavo-fleet}", "configMapRef: {name: other}", "different models"),
    ("matchLabels: {app.kubernetes.io/name: octavo-front-end}", "matchLabels: {a: b}", "find the pods"),
    ("mountPath: /tmp", "mountPath: /var", "writable /tmp"),
]
OTHERS = [
    ("kustomization.yaml", "  - services.yaml\n", "", "services.yaml is not listed"),
    ("kustomization.yaml", "- services.yaml", "- service.yaml", "service.yaml is not listed"),
    ("kustomization.yaml", "name: octavo\n", "name: server\n", "other images"),
    ("kustomization.yaml", "      - OCTAVO_MAX_MODEL_LEN=4096\n", "", "memory of each node"),
    ("services.yaml", "clusterIP: None", "", "virtual address"),
    ("services.yaml", "publishNotReadyAddresses: true", "", "DNS caches"),
    ("services.yaml", "port: 7070, ", "port: 7071, ", "elsewhere"),
    ("services.yaml", "targetPort: fleet", "targetPort: http", "port that does not exist"),
    (
        "services.yaml",
        "selector: {app.kubernetes.io/name: octavo-front-end}",
        "selector: {a: b}",
        "other pods",
    ),
    ("autoscalers.yaml", "kind: StatefulSet", "kind: Deployment", "something else"),
    ("autoscalers.yaml", "minReplicas: 2", "minReplicas: 1", "the only one"),
    ("autoscalers.yaml", "maxReplicas: 8", "maxReplicas: 1", "the only one"),
    ("autoscalers.yaml", "WindowSeconds: 300", "WindowSeconds: 30", "every pause"),
    ("autoscalers.yaml", "type: Pods, value: 1", "type: Pods, value: 2", "per minute"),
    ("autoscalers.yaml", "name: octavo_queue_seconds", "name: octavo_queue", "nothing provides octavo_queue"),
    ("autoscalers.yaml", "  name: octavo-front-end\n", "  name: other\n", "nothing scales octavo-front-end"),
    (
        "autoscalers.yaml",
        "    - type: External\n",
        "    - {type: Resource, resource: {name: cpu}}\n    - type: External\n",
        "under any load",
    ),
    (ADAPTER, "octavo:queue_seconds", "octavo:wait_seconds", "no metric octavo:wait_seconds"),
    (ADAPTER, "metricsQuery: max", "metricsQuery: sum", "added over front ends"),
    (ADAPTER, "{overrides: {namespace: {resource: namespace}}}", "{}", "all namespaces"),
    (ADAPTER, "as: octavo_queue_seconds", "as: octavo:queue_seconds", "not a name"),
    ("disruption-budgets.yaml", "maxUnavailable: 1", "maxUnavailable: 2", "at a time"),
    ("disruption-budgets.yaml", "matchLabels: {app", "matchLabels: {a: b, app", "no budget"),
    ("network-policies.yaml", "policyTypes: [Ingress, Egress]", "policyTypes: [Ingress]", "direction"),
    ("network-policies.yaml", "port: fleet", "port: http", "other ports"),
    ("network-policies.yaml", "matchLabels: {app.kubernetes.io/name: octavo-front-end}", "{}", "others than"),
    ("network-policies.yaml", "matchLabels: {app.kubernetes.io/name: octavo-replica}", "{}", "cannot reach"),
    ("network-policies.yaml", 'matchLabels: {octavo-client: "true"}', "{}", "every pod"),
    ("network-policies.yaml", "port: http", "port: 22", "API's port"),
    ("network-policies.yaml", "port: 443", "port: 80", "more than DNS"),
    (
        "network-policies.yaml",
        "- to:\n        - namespaceSelector",
        "- x:\n        - namespaceSelector",
        "any DNS",
    ),
]
KUBERAY = [
    ("raycluster.yaml", "value: token", "value: disabled", "no token"),
    ("raycluster.yaml", "name: octavo-ray, key", "name: other, key", "another one"),
    ("raycluster.yaml", "rayVersion: 2.60.0", "rayVersion: 2.51.0", "no token authentication"),
    ("raycluster.yaml", "name: octavo\n", "name: ray\n", "another Ray cluster"),
    ("raycluster.yaml", "runAsNonRoot: true", "runAsNonRoot: false", "root"),
    ("raycluster.yaml", "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "written"),
    ("raycluster.yaml", "defaultMode: 0440", "defaultMode: 0444", "others can read"),
    ("raycluster.yaml", "        labels: {app", "        labels: {a: b, app", "not protected"),
    ("network-policy.yaml", "matchLabels: {app.kubernetes.io/name: octavo-front-end}", "{}", "can reach Ray"),
    ("front-ends.yaml", "ray:octavo", "dns:octavo:7070", "do not ask Ray"),
    ("front-ends.yaml", "value: token", "value: disabled", "no token"),
    ("front-ends.yaml", "image: octavo-ray", "image: octavo", "other images"),
    ("service.yaml", "targetPort: http", "targetPort: web", "port that does not exist"),
    ("kustomization.yaml", "  - network-policy.yaml\n", "", "not listed"),
]
BREAKS = [
    *(("fleet", "replicas.yaml", *one) for one in REPLICAS),
    *(("fleet", "front-ends.yaml", *one) for one in FRONT_ENDS),
    *(("fleet", *one) for one in OTHERS),
    *(("kuberay", *one) for one in KUBERAY),
]


@pytest.mark.parametrize(("name", "file", "old", "new", "expected"), BREAKS)
def test_every_rule_finds_its_violation(name: str, file: str, old: str, new: str, expected: str) -> None:
    folder = FOLDERS[name].replaced(file, old, new)
    if name == "fleet" and expected == "different models":
        folder = folder.replaced(
            "kustomization.yaml",
            "configMapGenerator:\n",
            "configMapGenerator:\n  - {name: other, literals: [OCTAVO_MODEL=a/b]}\n",
        )
    problems = list(RULES[name](folder))
    assert any(expected in problem for problem in problems), problems


def test_wrong_options_are_detected() -> None:
    folder = FOLDERS["fleet"].replaced("replicas.yaml", "--listen", "--lisen")
    with pytest.raises(AssertionError, match="does not accept"):
        list(fleet_problems(folder))
    folder = FOLDERS["fleet"].replaced("kustomization.yaml", "MAX_MODEL_LEN", "MAX_LEN")
    with pytest.raises(AssertionError, match="OCTAVO_MAX_LEN"):
        list(fleet_problems(folder))


def test_the_image_and_all_pods_have_the_same_user() -> None:
    dockerfile = (KUBERNETES.parent / "Dockerfile").read_text()
    text = "".join(text for folder in FOLDERS.values() for text in folder.texts.values())
    users = {line.split()[1] for line in text.splitlines() if "runAsUser:" in line or "runAsGroup:" in line}
    assert [f"USER {user}:{user}\n" in dockerfile for user in users] == [True]


@pytest.mark.parametrize("path", ["", "fleet", "kuberay"])
def test_kustomize_builds_the_folders(path: str) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    done = subprocess.run(
        ["kubectl", "kustomize", str(KUBERNETES / path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    built = list(yaml.safe_load_all(done.stdout))
    for manifest in built:
        validate(manifest, VERSIONS[-1])
    if path == "fleet":
        (variables,) = [one for one in built if one["kind"] == "ConfigMap"]
        name = variables["metadata"]["name"]
        assert name != "octavo-fleet"  # it has the hash that replaces pods
        assert done.stdout.count(f"name: {name}\n") == 3
        assert "image: octavo\n" not in done.stdout


# -- the program that makes a replica's pod ready ---------------------------------------------------------


@contextmanager
def readiness_container(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the program of the container `readiness`, in another folder."""
    pod = FOLDERS["fleet"].named("StatefulSet", "octavo-replica")["spec"]["template"]["spec"]
    (container,) = [one for one in pod["containers"] if one["name"] == "readiness"]
    assert container["command"] == ["python", "-c"]
    (program,) = container["args"]
    process = subprocess.Popen([sys.executable, "-c", program.replace("/run/octavo", str(folder))])
    try:
        until((folder / "notify").is_socket)
        yield process
    finally:
        process.kill()
        process.wait()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def short_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose path is short enough for a socket."""
    folder = tmp_path_factory.mktemp("n")
    if len(str(folder)) > 90:
        pytest.skip("the folder for temporary files has a long path")
    return folder


def test_the_pod_is_ready_when_the_engine_is(short_folder: Path) -> None:
    """The notifier is that of the agent."""
    ready = short_folder / "ready"
    with readiness_container(short_folder):
        notifier = Notifier.take({"NOTIFY_SOCKET": str(short_folder / "notify")})
        notifier.ready()
        until(ready.exists)
        notifier.stopping()
        until(lambda: not ready.exists())
        notifier.close()
        notifier = Notifier.take({"NOTIFY_SOCKET": str(short_folder / "notify")})
        notifier.ready()
        until(ready.exists)
        notifier.loading()  # of the agent after a restart of its container
        until(lambda: not ready.exists())
        notifier.close()


def test_the_pod_stays_ready_when_only_the_readiness_container_is_restarted(short_folder: Path) -> None:
    with readiness_container(short_folder):
        notifier = Notifier.take({"NOTIFY_SOCKET": str(short_folder / "notify")})
        notifier.ready()
        until((short_folder / "ready").exists)
    with readiness_container(short_folder):
        assert (short_folder / "ready").exists()
    notifier.close()


def test_other_notifications_do_not_change_readiness(short_folder: Path) -> None:
    with readiness_container(short_folder), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        for message in (b"X_OCTAVO_REPLICA={}", b"WATCHDOG=1", b"\xff", b"EXTEND_TIMEOUT_USEC=1\nREADY=1"):
            sender.sendto(message, str(short_folder / "notify"))
        until((short_folder / "ready").exists)  # an unsent message of the start may come with the next one
        sender.sendto(b"WATCHDOG=1", str(short_folder / "notify"))
        sender.sendto(b"X_OCTAVO_REPLICA={}", str(short_folder / "notify"))
        time.sleep(0.2)
        assert (short_folder / "ready").exists()


def test_the_readiness_container_ends_on_sigterm(short_folder: Path) -> None:
    """Process 1 of a container ignores signals without a handler, and would delay the end of the pod."""
    with readiness_container(short_folder) as process:
        process.terminate()
        assert process.wait(HANG_SECONDS) == 0


def test_options_of_the_manifests_are_used() -> None:
    """The rules see what a container would: its arguments, its variables and those of the ConfigMap."""
    folder = FOLDERS["fleet"]
    pod = folder.named("StatefulSet", "octavo-replica")["spec"]["template"]["spec"]
    options = options_of(pod["containers"][0], folder)
    assert (options.options.max_model_len, options.server.grace) == (4096, 120)
    assert options.server.fleet_key == "/run/secrets/octavo/replica.key"
