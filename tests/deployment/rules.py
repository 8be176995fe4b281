"""What must hold of the files in deploy/. A rule returns what is wrong, in words; nothing: all is well."""

import re
from collections.abc import Iterator

from data.json_types import JsonObject

Manifest = JsonObject

MARGIN = 5  # seconds that an orderly end takes beside --grace
HOST_NAME = re.compile(r"\b[\w-]+(\.[\w-]+)*\.(com|org|io|dev|net)\b")


def grace_of(arguments: list[str]) -> int:
    return int(arguments[arguments.index("--grace") + 1])


def deployment_problems(manifest: Manifest) -> Iterator[str]:
    template = manifest["spec"]["template"]
    pod = template["spec"]
    labels = manifest["spec"]["selector"]["matchLabels"]
    if not labels.items() <= template["metadata"]["labels"].items():
        yield "the selector does not find the pods"
    if pod.get("enableServiceLinks") is not False:
        yield "enableServiceLinks would set OCTAVO_PORT"
    if pod.get("automountServiceAccountToken") is not False:
        yield "the pod has a token that it does not need"
    security = pod.get("securityContext", {})
    if security.get("runAsNonRoot") is not True or not security.get("runAsUser"):
        yield "the pod may run as root"
    if security.get("seccompProfile") != {"type": "RuntimeDefault"}:
        yield "no seccomp profile"
    for container in pod["containers"]:
        yield from container_problems(container, pod)


def container_problems(container: Manifest, pod: Manifest) -> Iterator[str]:
    # Ready is what loads and drains; live is what a restart would help.
    for probe, path in (("startup", "/readyz"), ("liveness", "/livez"), ("readiness", "/readyz")):
        request = container.get(f"{probe}Probe", {}).get("httpGet", {})
        if request.get("path") != path:
            yield f"the {probe} probe does not ask {path}"
        if request.get("port") not in [port["name"] for port in container["ports"]]:
            yield f"the {probe} probe asks a port that is not there"
    startup = container.get("startupProbe", {})
    if startup.get("periodSeconds", 10) * startup.get("failureThreshold", 3) < 300:
        yield "a model has less than five minutes to load"
    for kind in ("requests", "limits"):
        if not {"cpu", "memory"} <= container.get("resources", {}).get(kind, {}).keys():
            yield f"no {kind} of processor and memory"
    security = container.get("securityContext", {})
    if security.get("allowPrivilegeEscalation") is not False:
        yield "privileges may grow"
    if security.get("readOnlyRootFilesystem") is not True:
        yield "the root file system can be written"
    if security.get("capabilities", {}).get("drop") != ["ALL"]:
        yield "capabilities are kept"
    mounted = {mount["name"]: mount["mountPath"] for mount in container.get("volumeMounts", [])}
    if "/tmp" not in mounted.values():
        yield "the engine's socket needs a /tmp that can be written"
    if not mounted.keys() <= {volume["name"] for volume in pod.get("volumes", [])}:
        yield "a mount without a volume"
    keys = [one for one in container.get("env", []) if one["name"] == "OCTAVO_API_KEY"]
    if not keys or "secretKeyRef" not in keys[0].get("valueFrom", {}):
        yield "the API key does not come from a secret"
    pause = int(container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [0])[-1])
    if pod.get("terminationGracePeriodSeconds", 30) < pause + grace_of(container["args"]) + MARGIN:
        yield "answers under way are cut off before --grace is over"


def budget_problems(budget: Manifest, deployment: Manifest) -> Iterator[str]:
    if budget["spec"]["selector"] != deployment["spec"]["selector"]:
        yield "the budget is for other pods"
    if not 1 <= budget["spec"].get("minAvailable", 0) < deployment["spec"]["replicas"]:
        yield "the budget lets all pods go, or none"


def service_problems(service: Manifest, deployment: Manifest) -> Iterator[str]:
    pod = deployment["spec"]["template"]
    if service["spec"]["selector"] != deployment["spec"]["selector"]["matchLabels"]:
        yield "the service is for other pods"
    names = [port["name"] for port in pod["spec"]["containers"][0]["ports"]]
    if any(port["targetPort"] not in names for port in service["spec"]["ports"]):
        yield "the service sends to a port that is not there"


def compose_problems(compose: Manifest) -> Iterator[str]:
    for service in compose["services"].values():
        if service.get("read_only") is not True or service.get("cap_drop") != ["ALL"]:
            yield "the container may do more than it needs"
        if "no-new-privileges:true" not in service.get("security_opt", []):
            yield "privileges may grow"
        if not {"cpus", "memory"} <= service.get("deploy", {}).get("resources", {}).get("limits", {}).keys():
            yield "no limits"
        if int(service["stop_grace_period"].rstrip("s")) < grace_of(service["command"]) + MARGIN:
            yield "answers under way are cut off before --grace is over"
        if any(not port.startswith("127.0.0.1:") for port in service["ports"]):
            yield "the port is open to everybody"
        for name, value in service["environment"].items():
            if not re.fullmatch(r"\$\{\w+:\?.+\}", value):
                yield f"{name} is written down, or may be left out"


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    """(instruction, its arguments), lines joined and comments gone."""
    lines = [line for line in dockerfile.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    split = (line.split(None, 1) for line in joined.splitlines() if line.strip())
    return [(name.upper(), arguments) for name, arguments in split]


def dockerfile_problems(dockerfile: str) -> Iterator[str]:
    """What a general linter does not know."""
    steps = instructions(dockerfile)
    stages = [at for at, (name, _) in enumerate(steps) if name == "FROM"]
    last = steps[stages[-1] :]
    if len(stages) < 2:
        yield "the compiler is in the image"
    users = [arguments for name, arguments in last if name == "USER"]
    if not users or not re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1]):
        yield "the user is root, or has a name that runAsNonRoot cannot judge"
    if any("-slim" not in arguments for name, arguments in steps if name == "FROM"):
        yield "the base image is not slim"
    if not any(name == "HEALTHCHECK" and "/livez" in arguments for name, arguments in last):
        yield "no health check on /livez"
    for name, arguments in last:
        if name in ("ENTRYPOINT", "CMD") and not arguments.startswith("["):
            yield f"{name} goes through a shell, which does not pass SIGTERM on"
    for name, arguments in steps:
        if HOST_NAME.search(arguments):
            yield f"{name} names a host"
        if name == "ADD":
            yield "ADD where COPY would do"
        for command in arguments.split("&&") if name == "RUN" else ():
            yield from unlocked_problems(command)


def unlocked_problems(command: str) -> Iterator[str]:
    """Whatever pip installs or builds with is held to a hash; torch is, if one was given."""
    if not re.search(r"-m pip (install|wheel)\b", command) or '"torch==' in command:
        return
    local = "/opt/wheel/" in command and "--no-deps" in command
    isolated = "pip wheel" in command and "--no-build-isolation" not in command
    if isolated or not (local or "pip wheel" in command or "--require-hashes" in command):
        yield f"not held to a hash: {command.strip()}"


REQUIRED_OF_UNIT = {
    "DynamicUser": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "PrivateDevices": "yes",
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "",
    "RestrictNamespaces": "yes",
    "SystemCallArchitectures": "native",
    "KillMode": "mixed",
    "Restart": "on-failure",
}


def unit_problems(unit: str) -> Iterator[str]:
    settings = dict(line.split("=", 1) for line in unit.splitlines() if re.match(r"\w+=", line))
    for name, value in REQUIRED_OF_UNIT.items():
        if settings.get(name) != value:
            yield f"{name} is not {value or 'empty'}"
    if int(settings["TimeoutStopSec"]) < grace_of(settings["ExecStart"].split()) + MARGIN:
        yield "answers under way are cut off before --grace is over"
    if "OCTAVO_API_KEY=" in unit or "LoadCredential" not in settings:
        yield "keys do not come as a credential"
