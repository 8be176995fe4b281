"""Build the image and run the pods of deploy/kubernetes: `python tools/try_image.py MODEL.gguf`.

Needs root, `buildah`, `uv` and packages of Debian, but no registry of images, no daemon and no cluster.

Build: a stand-in for the base image python:3.N-slim-bookworm is made of Debian's packages (debootstrap), and
has Debian's Python 3.11. The steps are those of deploy/Dockerfile. If its PYTHON_VERSION is another one, the
lock files are made again for 3.11, in a copy of the repository, because a lock fits one version.

Run: `buildah run` cannot make the root read-only, and its chroot isolation has no process namespace. So each
container of a manifest is started with the image's variables and entry point and the manifest's arguments,
variables, user and volumes, as process 1 of its own namespaces, without capabilities (`setpriv`), and with
the root bind-mounted read-only. All of them share a network namespace that has only loopback: nothing can be
downloaded. Not applied: limits of processor and memory, seccomp profiles, network policies, the kubelet's
probes.
"""

import argparse
import errno
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import yaml

ROOT = Path(__file__).resolve().parent.parent
SUITE = "bookworm"
STAND_IN_PYTHON = "3.11"  # of this suite
IMAGE = "octavo-try"
TIMEOUT = 300.0
API_KEY = "try-image"
# Files of this machine that pip and apt need to reach their packages. They are mounted during the build only.
HOST_FILES = (
    *("/etc/pip.conf", "/root/.config/pip", "/root/.pip", "/etc/ssl/certs"),
    *("/etc/apt/apt.conf.d", "/etc/apt/auth.conf.d"),
)
# Instead of a hub id and the memory of a node.
OVERRIDES = {"OCTAVO_MODEL": "/models/model.gguf", "OCTAVO_KV_MEMORY": "256MiB"}
QUESTION = {
    "model": "model",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "max_tokens": 16,
    "temperature": 0,
}
# Arguments: root, view, then `--` and the command; mounts as "source target ro|rw" lines on stdin.
ENTER = """\
set -eu
root=$1 view=$2
shift 2
mount --bind "$root" "$view"
mount -t proc proc "$view/proc"
mount -t tmpfs -o mode=755 tmpfs "$view/dev"
for name in null zero full random urandom; do
  : > "$view/dev/$name"
  mount --bind "/dev/$name" "$view/dev/$name"
done
mkdir "$view/dev/shm"
mount -t tmpfs -o mode=1777,size=64m tmpfs "$view/dev/shm"
while read -r source target access; do
  mount --bind "$source" "$view$target"
  mount -o "remount,bind,$access" "$view$target"
done
mount -o remount,bind,ro "$view"
exec chroot "$view" "$@" < /dev/null
"""


def run(*command: str | Path, **options: Any) -> None:
    print("+", " ".join(map(str, command))[:200], flush=True)
    subprocess.run(command, check=True, **options)


def say(text: str) -> None:
    print(f"try_image: {text}", flush=True)


# -- build -----------------------------------------------------------------------------------------------


class ImageBuilder:
    """Builds the image with buildah, in a storage of its own."""

    def __init__(self, work: Path) -> None:
        self._work = work
        # vfs needs nothing of the file system; overlay does not work in every container.
        self._buildah = (
            *("buildah", "--root", str(work / "storage"), "--runroot", str(work / "run")),
            *("--storage-driver", "vfs"),
        )

    def build(self) -> None:
        base = f"docker.io/library/python:{STAND_IN_PYTHON}-slim-{SUITE}"
        if not self._has(base):
            self._make_base(base)
        context = self._make_context()
        mounted = [path for path in (*HOST_FILES, *_local_indexes()) if Path(path).exists()]
        volumes = [word for path in mounted for word in ("--volume", f"{path}:{path}:ro")]
        run(
            *(*self._buildah, "bud", "--isolation", "chroot", "--layers=false", "--pull-never"),
            *("--format", "docker", "--build-arg", f"PYTHON_VERSION={STAND_IN_PYTHON}", *volumes),
            *("--file", context / "deploy/Dockerfile", "--tag", IMAGE, context),
        )

    @contextmanager
    def mounted(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Yield the root of a container of the image, which may be changed, and the image's configuration."""
        name = self._ask("from", "--pull-never", IMAGE)
        try:
            configuration = json.loads(self._ask("inspect", "--type", "container", name))["OCIv1"]["config"]
            yield Path(self._ask("mount", name)), configuration
        finally:
            self._ask("rm", name)

    def _ask(self, *words: str) -> str:
        return subprocess.run(
            [*self._buildah, *words], check=True, stdout=subprocess.PIPE, text=True
        ).stdout.strip()

    def _has(self, image: str) -> bool:
        return bool(self._ask("images", "--quiet", "--filter", f"reference={image}"))

    def _make_base(self, name: str) -> None:
        """Make an image with the same commands as the official one: `python`, `venv` and Debian's tools."""
        root = self._work / "base"
        shutil.rmtree(root, ignore_errors=True)
        command, environ = self._debootstrap()
        packages = "python3,python3-venv,ca-certificates"
        run(*(*command, "--variant=minbase", f"--include={packages}", SUITE, root), env=environ)
        (root / "usr/bin/python").symlink_to("python3")
        container = self._ask("from", "scratch")
        run(*(*self._buildah, "copy", "--quiet", container, root, "/"))
        run(*(*self._buildah, "commit", "--quiet", "--rm", container, name))
        shutil.rmtree(root)

    def _debootstrap(self) -> tuple[list[str | Path], dict[str, str]]:
        """Return the command; if it is not installed, that of its package."""
        installed = shutil.which("debootstrap")
        if installed:
            return [installed], dict(os.environ)
        folder = self._work / "debootstrap"
        folder.mkdir(exist_ok=True)
        run("apt-get", "download", "debootstrap", cwd=folder)
        (package,) = folder.glob("*.deb")
        run("dpkg", "-x", package, folder)
        package.unlink()
        environ = {**os.environ, "DEBOOTSTRAP_DIR": str(folder / "usr/share/debootstrap")}
        return ["sh", folder / "usr/sbin/debootstrap"], environ

    def _make_context(self) -> Path:
        """Return a copy of the repository whose lock files fit the stand-in's Python."""
        context = self._work / "context"
        shutil.rmtree(context, ignore_errors=True)
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            stdout=subprocess.PIPE,
        ).stdout.decode()
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (context / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, context / name)
        dockerfile = context / "deploy/Dockerfile"
        text = dockerfile.read_text()
        changed = re.sub(
            r"^ARG PYTHON_VERSION=.*$", f"ARG PYTHON_VERSION={STAND_IN_PYTHON}", text, flags=re.MULTILINE
        )
        if changed != text:
            say(f"deploy/*.lock are for another Python: making them for {STAND_IN_PYTHON}, in a copy")
            dockerfile.write_text(changed)
            run(context / "tools/lock.sh")
        return context


def _local_indexes() -> list[str]:
    """Return folders with packages that pip is configured to use."""
    said = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    lines = [line for line in said.splitlines() if "index-url" in line or "find-links" in line]
    found = re.findall(r"(?:file://|['\s])(/[\w./-]+)", "\n".join(lines))
    return sorted({path.removesuffix("/simple") for path in found})


# -- run -------------------------------------------------------------------------------------------------


class RunningContainer:
    """A running container. It is process 1 of its namespace."""

    def __init__(self, name: str, command: list[str], mounts: str, log: Path) -> None:
        self.name, self.log = name, log
        self._process = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, "enter", *command],
            stdin=subprocess.PIPE,
            stdout=log.open("wb"),
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._process.stdin is not None
        with self._process.stdin as stdin:
            stdin.write(mounts)

    @property
    def pid(self) -> int:
        """Return its process id on this machine; `unshare` waits for it."""
        pid = self._process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{self.name} is not {what}:\n{self.log.read_text()}")
            time.sleep(0.1)

    def end(self) -> None:
        """Send SIGTERM, as the kubelet does, and require exit code 0."""
        started_at = time.monotonic()
        os.kill(self.pid, 15)
        code = self._process.wait(TIMEOUT)
        if code != 0:
            raise SystemExit(f"{self.name} ended with {code}:\n{self.log.read_text()}")
        say(f"{self.name}: SIGTERM, exit code 0 after {time.monotonic() - started_at:.1f} s")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class PodRunner:
    """Starts the containers of pods, as a kubelet would."""

    def __init__(self, work: Path, root: Path, image: dict[str, Any], model: Path) -> None:
        self._work, self._root, self._image, self._model = work, root, image, model
        self.secrets: dict[str, dict[str, str]] = {}
        self.variables: dict[str, dict[str, str]] = {}  # of ConfigMaps
        self._hosts = work / "hosts"
        self._hosts.write_text("127.0.0.1 localhost octavo-replicas\n")

    def volume(self, workload: str, name: str) -> Path:
        return self._work / f"volume-{workload}-{name}"

    def make_keys(self) -> dict[str, str]:
        """Return the key files of a fleet by their names, made by the image's own command."""
        run("chroot", self._root, "/opt/octavo/bin/octavo", "fleet", "keys", "/tmp/keys")
        return {path.name: path.read_text() for path in (self._root / "tmp/keys").iterdir()}

    def start(self, manifest: dict[str, Any], name: str) -> RunningContainer:
        workload = manifest["metadata"]["name"]
        pod = manifest["spec"]["template"]["spec"]
        (container,) = [one for one in pod["containers"] if one["name"] == name]
        view = self._work / f"view-{workload}-{name}"
        view.mkdir()
        lines = [self._mount(manifest, mount) for mount in container["volumeMounts"]]
        lines.append(f"{self._hosts} /etc/hosts ro\n")
        if any(mount["mountPath"] == "/models" for mount in container["volumeMounts"]):
            (self.volume(workload, "models") / "model.gguf").touch()
            lines.append(f"{self._model} /models/model.gguf ro\n")
        user, group = pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsGroup"]
        command = [
            *(str(self._root), str(view), "setpriv", f"--reuid={user}", f"--regid={group}"),
            f"--groups={pod['securityContext']['fsGroup']}",
            *("--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"),
            *("env", "-i", f"--chdir={self._image['WorkingDir']}", *self._variables(container)),
            *container.get("command", self._image["Entrypoint"]),
            *container["args"],
        ]
        started = RunningContainer(
            f"{workload}/{name}", command, "".join(lines), self._work / f"{workload}-{name}.log"
        )
        say(f"{started.name}: {' '.join(map(str, container['args']))[:80].splitlines()[0]}")
        return started

    def _variables(self, container: dict[str, Any]) -> list[str]:
        found = dict(one.split("=", 1) for one in self._image["Env"])
        for source in container.get("envFrom", []):
            found |= self.variables[source["configMapRef"]["name"]]
        found |= {one["name"]: one["value"] for one in container.get("env", [])}
        return [f"{name}={value}" for name, value in {**found, **OVERRIDES}.items()]

    def _mount(self, manifest: dict[str, Any], mount: dict[str, Any]) -> str:
        """Create a volume if there is none yet, and return the line for ENTER."""
        pod, target = manifest["spec"]["template"]["spec"], mount["mountPath"]
        path = self.volume(manifest["metadata"]["name"], mount["name"])
        (self._root / target.lstrip("/")).mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.mkdir()
            group = pod["securityContext"]["fsGroup"]
            os.chown(path, 0, group)
            path.chmod(0o2777)
            volumes = {one["name"]: one for one in pod["volumes"]}
            secret = volumes.get(mount["name"], {}).get("secret", {})
            for item in secret.get("items", []):
                file = path / item["path"]
                file.write_text(self.secrets[secret["secretName"]][item["key"]])
                os.chown(file, 0, group)
                file.chmod(secret["defaultMode"])
        return f"{path} {target} {'ro' if mount.get('readOnly') else 'rw'}\n"


def check_confinement(container: RunningContainer) -> None:
    """Exit unless the container has no privileges and cannot write to its root."""
    status = dict(
        line.split(":\t", 1)
        for line in Path(f"/proc/{container.pid}/status").read_text().splitlines()
        if ":\t" in line
    )
    given = (
        status["Uid"].split(),
        int(status["CapEff"], 16),
        int(status["CapBnd"], 16),
        status["NoNewPrivs"],
    )
    if given != (["10001"] * 4, 0, 0, "1"):
        raise SystemExit(f"{container.name} has privileges: {given}")
    try:
        # As root, so that only the mount can prevent it.
        Path(f"/proc/{container.pid}/root/opt/octavo/probe").write_text("")
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        say(f"{container.name}: user 10001, no capabilities, read-only root")
        return
    raise SystemExit(f"{container.name} has a root that can be written to")


def status_of(path: str) -> int:
    try:
        with urlopen(f"http://127.0.0.1:8000{path}", timeout=10) as answer:
            return int(answer.status)
    except (URLError, ConnectionError, TimeoutError):
        return 0


def ask(where: str) -> tuple[str, str]:
    """Return the answer to the question, and its fingerprint."""
    headers = {"content-type": "application/json", "authorization": f"Bearer {API_KEY}"}
    request = Request("http://127.0.0.1:8000/v1/chat/completions", json.dumps(QUESTION).encode(), headers)
    with urlopen(request, timeout=TIMEOUT) as answer:
        body = json.load(answer)
    text = body["choices"][0]["message"]["content"]
    say(f"{where}: {answer.status} {text!r} {body['system_fingerprint']}")
    return text, body["system_fingerprint"]


def documents(path: str) -> dict[str, dict[str, Any]]:
    """Return the manifests of a file by their names."""
    found = yaml.safe_load_all((ROOT / "deploy/kubernetes" / path).read_text())
    return {one["metadata"]["name"]: one for one in found}


def try_single(pods: PodRunner) -> tuple[str, str]:
    pods.secrets["octavo"] = {"api-key": f"ops {API_KEY} role=operator\n"}
    with ExitStack() as stack:
        server = pods.start(documents("deployment.yaml")["octavo"], "octavo")
        stack.callback(server.close)
        server.wait_until(lambda: status_of("/readyz") == 200, "ready")
        check_confinement(server)
        answer = ask(server.name)
        server.end()
    return answer


def try_fleet(pods: PodRunner) -> tuple[str, str]:
    kustomization = yaml.safe_load((ROOT / "deploy/kubernetes/fleet/kustomization.yaml").read_text())
    for one in kustomization["configMapGenerator"]:
        pods.variables[one["name"]] = dict(literal.split("=", 1) for literal in one["literals"])
    keys = pods.make_keys()
    pods.secrets["octavo-replica"] = {"replica.key": keys["replica.key"]}
    pods.secrets["octavo-front-end"] = {
        "front-end.key": keys["front-end.key"],
        "api-key": f"ops {API_KEY} role=operator\n",
    }
    replicas = documents("fleet/replicas.yaml")["octavo-replica"]
    ready = pods.volume("octavo-replica", "notify") / "ready"
    with ExitStack() as stack:
        readiness, replica = (pods.start(replicas, name) for name in ("readiness", "replica"))
        front_end = pods.start(documents("fleet/front-ends.yaml")["octavo-front-end"], "front-end")
        for one in (readiness, replica, front_end):
            stack.callback(one.close)
        front_end.wait_until(lambda: status_of("/livez") == 200, "live")
        say(f"front end is live; ready: {status_of('/readyz') == 200}; replica ready: {ready.exists()}")
        replica.wait_until(ready.exists, "ready")
        front_end.wait_until(lambda: status_of("/readyz") == 200, "ready")
        for one in (readiness, replica, front_end):
            check_confinement(one)
        for _ in range(20):  # the liveness probe
            socket.create_connection(("127.0.0.1", 7070), timeout=10).close()
        answer = ask(front_end.name)
        replica.end()
        replica_log = replica.log.read_text()
        readiness.wait_until(lambda: not ready.exists(), "unready after SIGTERM")
        front_end.end()
        readiness.end()
    if "refused connections" in replica_log:
        raise SystemExit(f"probes are logged:\n{replica_log}")
    return answer


def run_pods(builder: ImageBuilder, model: Path) -> None:
    run("ip", "link", "set", "lo", "up")
    with tempfile.TemporaryDirectory(prefix="octavo-pods-") as folder, builder.mounted() as (root, image):
        os.chmod(folder, 0o755)
        if image["User"] != "10001:10001":
            raise SystemExit(f"the image runs as {image['User']}")
        pods = PodRunner(Path(folder), root, image, model)
        alone = try_single(pods)
        if "Paris" not in alone[0]:
            raise SystemExit(f"a wrong answer: {alone[0]}")
        if try_fleet(pods) != alone:
            raise SystemExit("the fleet and the single server give different answers")
    say("the single server and the fleet give the same answer")


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path, help="a GGUF file of a small chat model")
    parser.add_argument(
        "--work", type=Path, help="folder to keep the images in, 4 GB (none: a temporary one)"
    )
    parser.add_argument("--no-build", action="store_true", help="use the image in --work")
    parser.add_argument("--in-namespace", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("try_image: needs root, to mount and to change users")
    with ExitStack() as stack:
        work = args.work or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="octavo-image-")))
        work.mkdir(parents=True, exist_ok=True)
        builder = ImageBuilder(work.resolve())
        if args.in_namespace:
            run_pods(builder, args.model.resolve())
            return
        if not args.no_build:
            builder.build()
        run(
            *(
                "unshare",
                "--net",
                "--mount",
                "--propagation",
                "private",
                sys.executable,
                __file__,
                args.model,
            ),
            *("--work", work, "--in-namespace"),
        )


if __name__ == "__main__":
    main()
