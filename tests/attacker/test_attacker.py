"""The attacker in short form: short attacks on a real model and on a fleet, and three of the planted bugs.

`make attack` runs the full size. On a slow machine there are fewer actions, and tenants wait for the front
end too, not only for the engine: so half of a share is enough here.
"""

import dataclasses
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from attacker.attack import Settings
from attacker.bugs import BUGS, Bug
from attacker.connections import outgoing_connections
from attacker.plant.sitecustomize import edited
from attacker.planted import SETTINGS, attack_with, check_place, is_found, write_model
from attacker.run import run
from patience import HANG_SECONDS
from server.test_access import WATCH

pytestmark = pytest.mark.xdist_group("attacker")

SEED = 20261117
IN_CI = (
    "a key in a trailer is accepted",
    "a body that is not JSON is an internal error",
    "a queue slot is kept after a disconnect",
)


@pytest.mark.assets
def test_the_invariants_hold_during_an_attack(
    assets: Callable[[str], Path], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    model = assets("smollm2-135m-instruct-q4_1.gguf")
    settings = Settings(seconds=30, seed=SEED, patience=HANG_SECONDS, min_share=Settings.min_share / 2)
    outcome = run(model, tmp_path, settings, tmp_path / "actions.log")
    record_property("load", outcome.summary.splitlines()[0])
    actions = "\n".join(outcome.findings.last_violation_actions)
    violations = "\n".join(map(str, outcome.findings.violations))
    assert outcome.is_clean, f"{violations}\nlast actions:\n{actions}\n{outcome.log[-3000:]}"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("attacker"))


def test_the_invariants_hold_without_a_planted_bug(tiny: Path, tmp_path: Path) -> None:
    """The control for the planted bugs. The tiny model generates enough tokens to measure every share."""
    outcome = attack_with(None, tiny, tmp_path, min_share=SETTINGS.min_share / 2)
    assert outcome.is_clean, "\n".join([outcome.summary, *map(str, outcome.findings.violations)])
    assert outcome.findings.counts["other apis"] > 0
    assert outcome.findings.counts["stored responses"] > 0


def test_the_invariants_hold_during_an_attack_on_a_fleet(tiny: Path, tmp_path: Path) -> None:
    """Audit hooks record the connections that Python opens, however short. Invariant 6 covers libzmq."""
    hooks, watched = tmp_path / "hooks", tmp_path / "watched"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(WATCH)
    paths = os.pathsep.join(filter(None, (str(hooks), os.environ.get("PYTHONPATH"))))
    settings = dataclasses.replace(
        SETTINGS,
        num_agents=2,
        seconds=15,
        round_seconds=15,
        flags=("--kv-memory", "384KiB", "--max-running", "2"),
        patience=HANG_SECONDS,
        min_share=0.0,  # not judged: 18 to 68 % with the tiny model on a busy machine, cause unknown
    )
    environ = {"PYTHONPATH": paths, "WATCHED": str(watched)}
    outcome = run(tiny, tmp_path, settings, tmp_path / "actions.log", environ)
    assert outcome.is_clean, "\n".join([outcome.summary, *map(str, outcome.findings.violations)])
    assert outcome.findings.counts["outgoing connections seen"] > 0, "those to the replicas"
    assert outcome.findings.counts["kill agent"] > 0
    lines = watched.read_text().splitlines()
    num_processes = len({line for line in lines if line.endswith("is watched")})
    assert num_processes > 2 + 2, "two agents with their engines, and the front end"
    assert not [line for line in lines if not line.endswith("is watched")]


def test_connections_that_a_process_opens_are_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with socket.create_connection(address) as client, server.accept()[0]:
            (found,) = [
                one for one in outgoing_connections([os.getpid()], [address]) if one.remote == address
            ]
            assert found == (os.getpid(), "tcp", address)
            accepted = client.getsockname()
            assert accepted not in [one.remote for one in outgoing_connections([os.getpid()], [address])]
            assert accepted in [one.remote for one in outgoing_connections([os.getpid()], [])]
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as udp:
        udp.bind(("::1", 0))
        assert "udp6" in {one.protocol for one in outgoing_connections([os.getpid()], [])}


@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.name in IN_CI], ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Bug, tiny: Path, tmp_path: Path) -> None:
    outcome = attack_with(bug, tiny, tmp_path)
    assert is_found(bug, outcome), "\n".join([outcome.summary, *map(str, outcome.findings.violations)])


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_code_that_a_planted_bug_changes_exists(bug: Bug) -> None:
    check_place(bug)


def test_a_planted_bug_without_its_code_is_an_error() -> None:
    source = "class A:\n    def f(self):\n        return 1\n\n    def g(self):\n        return 2\n"
    assert edited(source, "A.g", "return 2", "return 3") == source.replace("return 2", "return 3")
    for method, right in (("A.g", "return 1"), ("A.h", "return 2"), ("A.f", "r"), ("B", "return 1")):
        with pytest.raises(LookupError, match="the code has changed"):
            edited(source, method, right, "")
