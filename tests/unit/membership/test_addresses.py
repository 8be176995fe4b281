"""The addresses of `--fleet`: fixed, in a file, or from a name server."""

import asyncio
import socket
from pathlib import Path

import pytest

from octavo.errors import ConfigError
from octavo.membership.address_source import AddressesUnavailable, AddressSource
from octavo.membership.addresses import FLEET_PORT, MAX_FILE_BYTES, parse_fleet

Record = tuple[int, int, int, str, tuple[str | int, ...]]


def listed(source: AddressSource) -> tuple[str, ...]:
    return asyncio.run(source.addresses())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("gpu-1:7001", ["gpu-1:7001"]),
        ("gpu-1", [f"gpu-1:{FLEET_PORT}"]),
        (" b:2 , a:1 ", ["a:1", "b:2"]),
        ("b:2,a:1,B:2,b:02", ["a:1", "b:2"]),
        ("10.0.0.1,10.0.0.1:7070", ["10.0.0.1:7070"]),
        ("[::1]:9", ["[::1]:9"]),
        ("[0:0::1],[::1]:7070", ["[::1]:7070"]),
        ("r-0.replicas.default.svc.cluster.local.:1", ["r-0.replicas.default.svc.cluster.local.:1"]),
        ("my_service:65535", ["my_service:65535"]),
    ],
)
def test_fixed_addresses(value: str, expected: list[str]) -> None:
    assert listed(parse_fleet(value)) == tuple(expected)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("", "an address is empty"),
        ("a:1,,b:2", "an address is empty"),
        ("a:1,", "an address is empty"),
        (":7070", "has no host"),
        ("a:0", "must be a number from 1 to 65535"),
        ("a:65536", "must be a number from 1 to 65535"),
        ("a:", "must be a number"),
        ("a:x", "must be a number"),
        ("a:1:2", "is not host:port|must be a number"),
        ("a:٣", "must be a number"),
        ("::1", r"in brackets, as \[::1\]:7070"),
        ("[::1", "is not host:port"),
        ("[gpu]:1", "no IPv6 address in its brackets"),
        ("[10.0.0.1]:1", "no IPv6 address in its brackets"),
        ("tcp://a:1", "without a scheme"),
        ("1.2.3:1", "no valid host"),
        ("256.1.1.1:1", "no valid host"),
        ("a b:1", "no valid host"),
        ("-a:1", "no valid host"),
        ("a..b:1", "no valid host"),
        ("é:1", "no valid host"),
        ("a" * 254, "no valid host"),
        ("a:1,file:x", "must be a number"),
        ("file:", "the path of the file is missing"),
        ("dns:", "an address is empty"),
        ("dns:7070", "no valid host"),
        ("dns:a:x", "must be a number"),
        ("dns:10.0.0.1:7070", "without dns:"),
    ],
)
def test_invalid_values_are_rejected(value: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=f"^fleet: .*({complaint}).*use host:port"):
        parse_fleet(value)


def test_a_file_is_read_again_every_time(tmp_path: Path) -> None:
    path = tmp_path / "replicas"
    source = parse_fleet(f"file:{path}")
    with pytest.raises(AddressesUnavailable, match="cannot read"):
        listed(source)
    path.write_text("# the fleet\r\nb:2  # second\n\n  a\n[::1]:3\nB:2")
    assert listed(source) == ("[::1]:3", "a:7070", "b:2")
    path.write_text("c:4\n")
    assert listed(source) == ("c:4",)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "lists no replica"),
        (b"# a:1\n\n", "lists no replica"),
        (b"a:1\nb:x\n", "line 2: the port of 'b:x'"),
        (b"a:1,b:2\n", "line 1"),
        (b"\xff\n", "as text"),
    ],
)
def test_an_invalid_file_is_unavailable(content: bytes, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "replicas"
    path.write_bytes(content)
    with pytest.raises(AddressesUnavailable, match=complaint):
        listed(parse_fleet(f"file:{path}"))


def test_a_huge_file_is_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "replicas"
    path.write_bytes(b"a:1\n" + b"#" * MAX_FILE_BYTES)
    with pytest.raises(AddressesUnavailable, match="is larger than"):
        listed(parse_fleet(f"file:{path}"))


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Record]]:
    """The records of a name server."""
    known: dict[str, list[Record]] = {}

    def resolve(host: str, port: int, family: int = 0, type: int = 0, *_: int) -> list[Record]:
        if host not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        assert (port, type) == (7001, socket.SOCK_STREAM)
        return known[host]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return known


def record(family: int, *address: str | int) -> Record:
    return (family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address)


def test_a_name_has_many_addresses(records: dict[str, list[Record]]) -> None:
    source = parse_fleet("dns:Replicas.svc:7001")
    with pytest.raises(AddressesUnavailable, match=r"cannot resolve replicas\.svc .*check the name"):
        listed(source)
    records["replicas.svc"] = [
        record(socket.AF_INET, "10.0.0.2", 7001),
        record(socket.AF_INET6, "fd00::1", 7001, 0, 0),
        record(socket.AF_INET, "10.0.0.1", 7001),
        record(socket.AF_INET, "10.0.0.2", 7001),
    ]
    assert listed(source) == ("10.0.0.1:7001", "10.0.0.2:7001", "[fd00::1]:7001")
    records["replicas.svc"] = records["replicas.svc"][:1]
    assert listed(source) == ("10.0.0.2:7001",)
    records["replicas.svc"] = []
    with pytest.raises(AddressesUnavailable, match="no A or AAAA record"):
        listed(source)


def test_a_name_is_resolved_by_the_operating_system() -> None:
    assert set(listed(parse_fleet("dns:localhost"))) <= {"127.0.0.1:7070", "[::1]:7070"}


def test_a_name_that_cannot_be_encoded_is_unavailable() -> None:
    with pytest.raises(AddressesUnavailable, match="cannot resolve"):
        listed(parse_fleet(f"dns:{'a' * 64}.invalid"))
