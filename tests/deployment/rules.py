"""Rules for the files in deploy/. A rule yields a message for each problem."""

import re
from collections.abc import Iterator

from data.json_types import JsonObject
from octavo.frontend.engine_process import HUNG_AFTER
from octavo.server.http.listener import OTHER_FILES

Manifest = JsonObject

MARGIN = 15  # seconds after --grace at which a server ends, whatever hangs (octavo.server.signals)
MUST_BE_SET = re.compile(r"\$\{\w+:\?.+\}")  # compose does not start without it
HOST_NAME = re.compile(r"\b[\w-]+(\.[\w-]+)*\.(com|org|io|dev|net)\b")


def grace_of(arguments: list[str]) -> int:
    return int(arguments[arguments.index("--grace") + 1])


def deployment_problems(manifest: Manifest) -> Iterator[str]:
    yield from pod_problems(manifest)
    pod = manifest["spec"]["template"]["spec"]
    for container in pod["containers"]:
        # Readiness covers loading and draining; liveness fails only if a restart would help.
        paths = {"startup": "/readyz", "liveness": "/livez", "readiness": "/readyz"}
        yield from probe_problems(container, paths)
        yield from confinement_problems(container, pod)
        if "/tmp" not in {mount["mountPath"] for mount in container.get("volumeMounts", [])}:
            yield "the engine's socket needs a writable /tmp"
        yield from api_key_problems(container, pod)
        yield from shutdown_problems(container, pod, grace_of(container["args"]))


def pod_problems(manifest: Manifest) -> Iterator[str]:
    """Check what holds for the pods of every workload."""
    template = manifest["spec"]["template"]
    labels = manifest["spec"]["selector"]["matchLabels"]
    if not labels.items() <= template["metadata"]["labels"].items():
        yield "the selector does not find the pods"
    yield from privilege_problems(template["spec"])


def privilege_problems(pod: Manifest) -> Iterator[str]:
    if pod.get("enableServiceLinks") is not False:
        yield "enableServiceLinks would set OCTAVO_PORT"
    if pod.get("automountServiceAccountToken") is not False:
        yield "the pod has a token that it does not need"
    security = pod.get("securityContext", {})
    if security.get("runAsNonRoot") is not True or not security.get("runAsUser"):
        yield "the pod may run as root"
    if security.get("seccompProfile") != {"type": "RuntimeDefault"}:
        yield "no seccomp profile"


def probe_problems(container: Manifest, paths: dict[str, str]) -> Iterator[str]:
    for probe, path in paths.items():
        request = container.get(f"{probe}Probe", {}).get("httpGet", {})
        if request.get("path") != path:
            yield f"the {probe} probe does not use {path}"
        if request.get("port") not in [port["name"] for port in container["ports"]]:
            yield f"the {probe} probe uses a port that does not exist"
    startup = container.get("startupProbe", {})
    if startup.get("periodSeconds", 10) * startup.get("failureThreshold", 3) < 300:
        yield "a model has less than five minutes to load"


def confinement_problems(container: Manifest, pod: Manifest) -> Iterator[str]:
    for kind in ("requests", "limits"):
        if not {"cpu", "memory"} <= container.get("resources", {}).get(kind, {}).keys():
            yield f"no {kind} of processor and memory"
    security = container.get("securityContext", {})
    if security.get("allowPrivilegeEscalation") is not False:
        yield "privileges can be escalated"
    if security.get("readOnlyRootFilesystem") is not True:
        yield "the root file system can be written to"
    if security.get("capabilities", {}).get("drop") != ["ALL"]:
        yield "capabilities are kept"
    mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
    if not mounted <= {volume["name"] for volume in pod.get("volumes", [])}:
        yield "a mount without a volume"


def shutdown_problems(container: Manifest, pod: Manifest, grace: float) -> Iterator[str]:
    pause = int(container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [0])[-1])
    if pod.get("terminationGracePeriodSeconds", 30) < pause + grace + MARGIN:
        yield "in-flight answers are cut off before --grace is over"


def api_key_problems(container: Manifest, pod: Manifest) -> Iterator[str]:
    variables = {one["name"]: one.get("value", "") for one in container.get("env", [])}
    if "OCTAVO_API_KEY" in variables:
        yield "the API key is an environment variable"
    yield from secret_file_problems(container, pod, variables.get("OCTAVO_API_KEY_FILE", ""), "the API key")


def secret_file_problems(container: Manifest, pod: Manifest, path: str, what: str) -> Iterator[str]:
    """A key must be a file that only our group can read. Child processes would inherit a variable."""
    folder, _, name = path.rpartition("/")
    mounts = [mount for mount in container.get("volumeMounts", []) if mount["mountPath"] == folder]
    volumes = {volume["name"]: volume.get("secret") for volume in pod.get("volumes", [])}
    secret = volumes.get(mounts[0]["name"]) if mounts else None
    if secret is None or name not in [item["path"] for item in secret["items"]]:
        yield f"{what} does not come from a secret"
        return
    if secret.get("defaultMode") != 0o440 or mounts[0].get("readOnly") is not True:
        yield f"others can read or write {what}"
    if "fsGroup" not in pod.get("securityContext", {}):
        yield f"the server cannot read {what} without fsGroup"


def network_problems(policy: Manifest, deployment: Manifest) -> Iterator[str]:
    spec = policy["spec"]
    if spec["podSelector"] != deployment["spec"]["selector"]:
        yield "the policy is for other pods"
    if sorted(spec["policyTypes"]) != ["Egress", "Ingress"]:
        yield "a direction is not restricted"
    ports = {port["name"] for port in deployment["spec"]["template"]["spec"]["containers"][0]["ports"]}
    for rule in spec["ingress"]:
        senders = [labels.get("matchLabels") for one in rule.get("from", []) for labels in one.values()]
        if not senders or not all(senders):
            yield "every pod can send requests"
        if not rule.get("ports") or not {port["port"] for port in rule["ports"]} <= ports:
            yield "other ports than the API's port can be reached"
    for rule in spec["egress"]:
        numbers = {port["port"] for port in rule.get("ports", [])}
        if not numbers or not numbers <= {53, 443}:
            yield "the pods can reach more than DNS and a hub"
        if 53 in numbers and not rule.get("to"):
            yield "any DNS server may resolve names"


def budget_problems(budget: Manifest, deployment: Manifest) -> Iterator[str]:
    if budget["spec"]["selector"] != deployment["spec"]["selector"]:
        yield "the budget is for other pods"
    if not 1 <= budget["spec"].get("minAvailable", 0) < deployment["spec"]["replicas"]:
        yield "the budget allows all pods to be evicted, or none"


def service_problems(service: Manifest, deployment: Manifest) -> Iterator[str]:
    pod = deployment["spec"]["template"]
    if service["spec"]["selector"] != deployment["spec"]["selector"]["matchLabels"]:
        yield "the service is for other pods"
    names = [port["name"] for port in pod["spec"]["containers"][0]["ports"]]
    if any(port["targetPort"] not in names for port in service["spec"]["ports"]):
        yield "the service sends to a port that does not exist"


def compose_problems(compose: Manifest) -> Iterator[str]:
    for service in compose["services"].values():
        if service.get("read_only") is not True or service.get("cap_drop") != ["ALL"]:
            yield "the container may do more than it needs"
        if "no-new-privileges:true" not in service.get("security_opt", []):
            yield "privileges can be escalated"
        if not {"cpus", "memory"} <= service.get("deploy", {}).get("resources", {}).get("limits", {}).keys():
            yield "no limits"
        if int(service["stop_grace_period"].rstrip("s")) < grace_of(service["command"]) + MARGIN:
            yield "in-flight answers are cut off before --grace is over"
        if any(not port.startswith("127.0.0.1:") for port in service["ports"]):
            yield "the port is open on all addresses"
        given = {f"/run/secrets/{name}" for name in service.get("secrets", [])}
        if service["environment"].get("OCTAVO_API_KEY_FILE") not in given:
            yield "the API key does not come from a secret"
        for name, value in service["environment"].items():
            if value not in given and not MUST_BE_SET.fullmatch(value):
                yield f"{name} is a literal value, or is optional"
    for name, secret in compose["secrets"].items():
        if not MUST_BE_SET.fullmatch(secret.get("file", "")):
            yield f"the secret {name} is not a file that the user has to name"


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    """Return pairs of instruction and arguments, with joined lines and without comments."""
    lines = [line for line in dockerfile.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    split = (line.split(None, 1) for line in joined.splitlines() if line.strip())
    return [(name.upper(), arguments) for name, arguments in split]


def dockerfile_problems(dockerfile: str) -> Iterator[str]:
    """Check what a general linter does not."""
    steps = instructions(dockerfile)
    stages = [at for at, (name, _) in enumerate(steps) if name == "FROM"]
    last = steps[stages[-1] :]
    if len(stages) < 2:
        yield "the compiler is in the image"
    users = [arguments for name, arguments in last if name == "USER"]
    if not users or not re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1]):
        yield "the user is root, or a name that runAsNonRoot cannot check"
    if any("-slim" not in arguments for name, arguments in steps if name == "FROM"):
        yield "the base image is not slim"
    if not any(name == "HEALTHCHECK" and "/livez" in arguments for name, arguments in last):
        yield "no health check on /livez"
    for name, arguments in last:
        if name in ("ENTRYPOINT", "CMD") and not arguments.startswith("["):
            yield f"{name} runs in a shell, which does not forward SIGTERM"
    for name, arguments in steps:
        if HOST_NAME.search(arguments):
            yield f"{name} names a host"
        if name == "ADD":
            yield "ADD is used instead of COPY"
        for command in arguments.split("&&") if name == "RUN" else ():
            yield from unlocked_problems(command)


def unlocked_problems(command: str) -> Iterator[str]:
    """Everything that pip installs or builds with must have a hash; torch only if one is given."""
    if not re.search(r"-m pip (install|wheel)\b", command) or '"torch==' in command:
        return
    local = "/opt/wheel/" in command and "--no-deps" in command
    isolated = "pip wheel" in command and "--no-build-isolation" not in command
    if isolated or not (local or "pip wheel" in command or "--require-hashes" in command):
        yield f"no hash is required: {command.strip()}"


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
    "Type": "notify",
    "NotifyAccess": "main",
    "OOMPolicy": "continue",
    "LimitCORE": "0",
}


def bound_problems(settings: dict[str, str]) -> Iterator[str]:
    """Check that limits exist, and that a server in normal operation does not reach them."""
    if not 2 * HUNG_AFTER <= int(settings.get("WatchdogSec", 0)) <= 120:
        yield "WatchdogSec restarts a server that would recover by itself, or a hung server too late"
    if int(settings.get("LimitNOFILE", 0)) < 16 * OTHER_FILES:
        yield "LimitNOFILE is too low for many connections"
    if not 256 <= int(settings.get("TasksMax", 0)) <= 8192:
        yield "TasksMax is too low for a large machine, or no effective limit"
    if not re.fullmatch(r"\d+(%|[MGT])", settings.get("MemoryMax", "")):
        yield "MemoryMax does not limit memory"


def unit_problems(unit: str) -> Iterator[str]:
    settings = dict(line.split("=", 1) for line in unit.splitlines() if re.match(r"\w+=", line))
    for name, value in REQUIRED_OF_UNIT.items():
        if settings.get(name) != value:
            yield f"{name} is not {value or 'empty'}"
    yield from bound_problems(settings)
    if int(settings["TimeoutStopSec"]) < grace_of(settings["ExecStart"].split()) + MARGIN:
        yield "in-flight answers are cut off before --grace is over"
    if "OCTAVO_API_KEY=" in unit or "LoadCredential" not in settings:
        yield "keys are not passed as a credential"
