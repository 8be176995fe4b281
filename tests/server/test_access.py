"""API keys, isolation between keys, outgoing connections, and memory that clients could make grow."""

import contextlib
import gc
import itertools
import json
import logging
import os
import re
import socket
import sys
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest

from data.json_types import Json
from full_size import FULL
from patience import HANG_SECONDS
from server.hostile import CHAT, COMPLETIONS, GOOD, check_answer
from server.null_bench import Bench, RunNull
from server.process import Server, StartServer

NUM_TIMED = 400 if FULL else 0

PROBES = {"/livez", "/readyz", "/healthz", "/health"}
WRONG_KEYS: tuple[bytes | None, ...] = (
    *(
        None,
        b"",
        b"Bearer",
        b"Bearer ",
        b"Bearer wrong",
        b"Bearer the-key-",
        b"Bearer the-key-a2",
        b"Basic the-key-a",
    ),
    *(b"the-key-a", b"Bearer the-key-a the-key-a", b"Bearer \xff\xfe\xc3", b"Bearer " + b"x" * (60 << 10)),
)


@pytest.fixture(scope="module")
def keyed(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("keyed")
    (folder / "keys").write_text("alice the-key-a role=operator\nbob the-key-b\n")
    flags = ("--kv-memory", "4MiB", "--served-model-name", "tiny", "--api-key-file", str(folder / "keys"))
    running = Server(folder, tiny_checkpoint, *flags)
    try:
        yield running.wait_until_ready()
        assert "the-key-a" not in running.log
    finally:
        running.stop()


def as_user(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer the-key-{name}"}


FLEET_COMMANDS = ("/octavo/fleet/drain", "/octavo/fleet/add", "/octavo/fleet/restart")


def routes(server: Server) -> list[tuple[str, str]]:
    """Return every endpoint. The API description is generated from the routes, so new ones are included."""
    description = server.get("/openapi.json", headers=as_user("a")).json()
    listed = [(method, path) for path, methods in description["paths"].items() for method in methods]
    ending = {"/v1/models/{model_id}": "/v1/models/tiny", "/octavo/view": "/octavo/view?count=1"}
    return [(method.upper(), ending.get(path, path)) for method, path in listed] + [("GET", "/openapi.json")]


def says_key_is_needed(path: str, error: Json) -> bool:
    """Whether an error is that of a missing or wrong key, in the form of the path's API."""
    if path.startswith("/api/"):
        return isinstance(error, str) and "a valid API key is needed" in error
    if path.startswith("/v1/messages"):
        return bool(error["type"] == "authentication_error")
    return bool(error["code"] == "invalid_api_key")


def test_every_endpoint_except_the_probes_requires_a_key(keyed: Server) -> None:
    """No endpoint sends a CORS header either, because none is configured."""
    found = routes(keyed)
    assert len(found) > 12
    origin = {"origin": "https://page.example", "content-type": "application/json"}
    plain = HTTPConnection("127.0.0.1", keyed.port, timeout=HANG_SECONDS)  # sends headers unchanged
    for (method, path), key in itertools.product(found, WRONG_KEYS):
        plain.request(method, path, headers=origin if key is None else {**origin, "authorization": key})
        refused = plain.getresponse()
        content = refused.read()
        assert refused.status == (200 if path in PROBES else 401), (method, path, key)
        if path not in PROBES:
            check_answer(refused.status, content, (path, key))
            assert says_key_is_needed(path, json.loads(content)["error"]), content
            assert refused.getheader("www-authenticate") == "Bearer"
        assert not [name for name, _ in refused.getheaders() if name.startswith("access-control")]
    with httpx.Client(base_url=keyed.url, timeout=HANG_SECONDS) as client:
        for method, path in found:
            good = client.request(method, path, headers=origin | as_user("a"), json=GOOD.get(path))
            # Without a body, a command to the fleet is not executed. There is no response with that id.
            expected = 400 if path.startswith("/octavo/fleet/") else 404 if "{response_id}" in path else 200
            assert good.status_code == expected, (method, path)
            preflight = client.request(
                "OPTIONS", path, headers=origin | {"access-control-request-method": "POST"}
            )
            assert preflight.status_code == 405
            assert not [name for name in preflight.headers if name.startswith("access-control")]


def test_a_key_of_one_megabyte_is_rejected_as_a_header(keyed: Server) -> None:
    with socket.create_connection(("127.0.0.1", keyed.port), timeout=HANG_SECONDS) as connection:
        received = b""
        try:
            connection.sendall(b"GET /v1/models HTTP/1.1\r\nAuthorization: Bearer " + b"x" * (1 << 20))
            received = connection.recv(65536)
        except OSError:  # the server closed the connection before everything was sent
            pass
    assert not received or received.startswith(b"HTTP/1.1 431")


def cached(server: Server, prompt: str, user: str, **fields: Json) -> int:
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0} | fields
    answer = server.post(COMPLETIONS, body, headers=as_user(user)).json()
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_prefix_caches_of_keys_are_isolated(keyed: Server) -> None:
    prompt = "a secret of alice, and long enough for some pages of it to be cached. " * 3
    assert cached(keyed, prompt, "a") == 0
    assert cached(keyed, prompt, "b") == 0
    assert cached(keyed, prompt, "a") > 100
    assert cached(keyed, prompt, "b") > 100, "cached by its own request"
    assert cached(keyed, prompt, "a", cache_salt="s") == 0
    assert cached(keyed, prompt, "a", cache_salt="s") > 100
    assert cached(keyed, prompt, "a", cache_salt="t") == 0
    assert cached(keyed, prompt, "b", cache_salt="alice\0") == 0
    assert cached(keyed, prompt, "b", cache_salt="\0") == 0


@pytest.mark.skipif(not FULL, reason="takes minutes: make figures")
def test_response_time_does_not_reveal_prompts_of_another_key(keyed: Server) -> None:
    """Measure how well bob's response times reveal which prompts alice has sent (AUC; 0.5: not at all).

    The same measurement detects prompts of the same key, which shows that it is sensitive enough.
    """

    client = httpx.Client(base_url=keyed.url, timeout=HANG_SECONDS)  # one connection reduces noise

    def seconds(prompt: str, user: str) -> float:
        body = {"prompt": prompt, "max_tokens": 1, "temperature": 0}
        started = time.perf_counter()
        assert client.post(COMPLETIONS, json=body, headers=as_user(user)).status_code == 200
        return time.perf_counter() - started

    def auc(user: str) -> float:
        hits: list[float] = []
        misses: list[float] = []
        for number in range(NUM_TIMED):
            known, unknown = (f"{kind} {number} of {user}. " + "z" * 440 for kind in ("known", "other"))
            seconds(known, "a")
            order = ((known, hits), (unknown, misses)) if number % 2 else ((unknown, misses), (known, hits))
            for prompt, times in order:
                times.append(seconds(prompt, user))
        faster = sum((hit < miss) + (hit == miss) / 2 for hit in hits for miss in misses)
        return faster / len(hits) / len(misses)

    other, own = auc("b"), auc("a")
    print(f"\nAUC across keys {other:.3f}, within one {own:.3f}, {NUM_TIMED} prompts each")
    assert own > 0.6, "the measurement is not sensitive enough"
    assert abs(other - 0.5) <= 0.05


WATCH = """
import ipaddress, os, sys
def is_address(host):
    try:
        return host is None or bool(ipaddress.ip_address(host))
    except ValueError:
        return False
def watch(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        if event == "socket.connect" and isinstance(arguments[1], (str, bytes)):
            return  # a unix socket
        if event == "socket.getaddrinfo" and is_address(arguments[0]):
            return  # resolves no name
        with open(os.environ["WATCHED"], "a") as log:
            log.write(f"{os.getpid()} {event} {arguments}\\n")
        raise PermissionError("no connections from here")
sys.addaudithook(watch)
with open(os.environ["WATCHED"], "a") as log:
    log.write(f"{os.getpid()} is watched\\n")
"""


def test_the_server_opens_no_outgoing_connection_and_one_port(start: StartServer, tmp_path: Path) -> None:
    """Use every endpoint while Python's audit hooks record all connections of the server's processes."""
    (tmp_path / "hooks").mkdir()
    (tmp_path / "hooks" / "sitecustomize.py").write_text(WATCH)
    log = tmp_path / "watched"
    paths = os.pathsep.join(filter(None, (str(tmp_path / "hooks"), os.environ.get("PYTHONPATH"))))
    server = start(
        "--served-model-name", "tiny", environ={"PYTHONPATH": paths, "WATCHED": str(log)}
    ).wait_until_ready()
    for method, path in routes(server):
        # A command to the replicas would end the engine that is watched.
        expected = 400 if path in FLEET_COMMANDS else 404 if "{response_id}" in path else 200
        assert server_asked(server, method, path).status_code == expected, path
    for path in (CHAT, COMPLETIONS):
        for fields in (
            {"stream": True},
            {"n": 3, "logprobs": 2 if path == COMPLETIONS else True},
            {"n": "x"},
        ):
            server.post(path, GOOD[path] | fields)
    image = {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest"}}
    assert server.post(CHAT, {"messages": [{"role": "user", "content": [image]}]}).status_code == 400
    assert server.engine_pid is not None
    processes = {server.process.pid, server.engine_pid}
    assert listening_ports(processes) == {server.port}
    lines = log.read_text().splitlines()
    assert processes <= {int(line.split()[0]) for line in lines}, "both processes must be audited"
    assert not [line for line in lines if not line.endswith("is watched")]


def server_asked(server: Server, method: str, path: str) -> httpx.Response:
    body: Json = [] if path in FLEET_COMMANDS else GOOD.get(path)  # a list is not valid
    return httpx.request(method, server.url + path, json=body, timeout=HANG_SECONDS)


def listening_ports(pids: set[int]) -> set[int]:
    """Return the TCP ports on which the processes listen, and their UDP ports."""
    sockets = set()
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed in the meantime
                if found := re.match(r"socket:\[(\d+)\]", os.readlink(entry)):
                    sockets.add(found[1])
    ports = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/{min(pids)}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            is_open = fields[3] == "0A" or table.startswith("udp")
            if is_open and fields[9] in sockets:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


STRANGE_USERS = 20_000 if FULL else 500


def never_the_same(number: int) -> list[tuple[str, Json]]:
    word = f"{number}-" + "x" * 100
    return [
        (f"/{word}", None),
        (f"/v1/models/{word}", None),
        (COMPLETIONS, {"user": word, "cache_salt": word, "prompt": word, "max_tokens": 1}),
        (CHAT, GOOD[CHAT] | {"chat_template_kwargs": {word: word}, "max_tokens": 1}),
        (CHAT, GOOD[CHAT] | {"model": word}),
    ]


@pytest.fixture
def no_logs() -> Iterator[None]:
    """Disable logs: pytest would keep every line in memory."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("no_logs")
def test_distinct_requests_do_not_grow_metrics_or_front_end_memory(run_null: RunNull) -> None:
    """With new paths, models, users, salts and variables, neither /metrics nor front-end memory grows."""

    async def test(bench: Bench) -> None:
        async def ask(numbers: range) -> tuple[int, int]:
            for number in numbers:
                for path, body in never_the_same(number):
                    assert (await bench.ask(path, body).done()).status in (200, 404)
            gc.collect()
            return len((await bench.scrape()).text), sys.getallocatedblocks()

        part = STRANGE_USERS // 4
        await ask(range(2 * part))
        size, blocks = await ask(range(10))
        kept = float("inf")
        for start in range(STRANGE_USERS, 2 * STRANGE_USERS, part):
            size_after, blocks_after = await ask(range(start, start + part))
            kept = min(kept, (blocks_after - blocks) / part)  # only a leak shows in every part
            blocks = blocks_after
        print(
            f"\n{STRANGE_USERS} of each: metrics {size} -> {size_after} characters, {kept:.2f} objects kept"
        )
        assert size_after < size * 1.05  # counters get more digits
        assert kept < 0.5

    run_null(test, step_seconds=0)


@pytest.mark.skipif(not FULL, reason="takes half an hour: make figures")
def test_distinct_requests_over_sockets_do_not_grow_process_memory(start: StartServer) -> None:
    """As above, but over sockets and with new headers, for the memory of front end and engine."""
    server = start("--served-model-name", "tiny").wait_until_ready()

    def ask(numbers: range) -> int:
        with httpx.Client(base_url=server.url, timeout=HANG_SECONDS) as client:
            for number in numbers:
                for path, body in never_the_same(number):
                    headers = dict.fromkeys(("traceparent", "x-request-id", "user-agent"), f"{number}")
                    client.request("GET" if body is None else "POST", path, json=body, headers=headers)
        assert server.engine_pid is not None
        return sum(map(resident, (server.process.pid, server.engine_pid)))

    before = ask(range(STRANGE_USERS // 4))
    kept = (ask(range(STRANGE_USERS, 2 * STRANGE_USERS)) - before) / STRANGE_USERS
    print(f"\n{STRANGE_USERS} of each over sockets: {kept:.0f} bytes of memory kept for each")
    assert kept < 1024


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


SOURCES = Path(__file__).parents[2] / "src" / "octavo"
RUNS_ITSELF = Path("simulate", "planted_bug.py")  # executes our own source; no server imports it
FORBIDDEN = re.compile(
    r"^\s*(?:import|from)\s+(?:pickle|marshal|shelve|dill|cloudpickle|joblib|requests|urllib3?\b(?!\.parse))"
    r"|\btorch\.load\b|(?<![\w.])(?:eval|exec|compile|__import__)\(|\btrust_remote_code\s*=\s*True"
    r"|\.recv_pyobj\(|\.send_pyobj\(",
    re.MULTILINE,
)


def test_no_source_executes_what_it_reads() -> None:
    """ruff bans some of these by syntax; this searches the text."""
    found = [
        f"{path.relative_to(SOURCES)}: {match[0]}"
        for path in sorted(SOURCES.rglob("*.py"))
        for match in FORBIDDEN.finditer(path.read_text())
        if path.relative_to(SOURCES) != RUNS_ITSELF
    ]
    assert found == []


def test_only_encrypted_connections_leave_the_machine() -> None:
    """The line before each TCP address protects its socket with CURVE and the allow-list."""
    found = [
        (before.strip(), line.strip())
        for path in sorted(SOURCES.rglob("*.py"))
        for before, line in itertools.pairwise(path.read_text().splitlines())
        if "tcp://" in line
    ]
    assert found == [
        ("self.key.protect_connection(socket, peer_public)", 'socket.connect(f"tcp://{address}")'),
        ("self._gate.protect(socket)", 'socket.bind(f"tcp://{address}")'),
    ]


pytestmark = pytest.mark.xdist_group("access")
