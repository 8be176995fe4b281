"""Where the addresses of a fleet's replicas come from: the option `--fleet`.

    host:port,host:port    the same addresses for the whole run
    file:PATH              one `host:port` per line, with # comments; read again every time
    dns:NAME:PORT          all A and AAAA records of a name, such as that of a headless service
    ray:NAME               the replicas of a fleet on a Ray cluster, started with `octavo fleet up`

`:port` may be omitted. An address with IPv6 is `[::1]:7070`.
"""

import asyncio
import ipaddress
import re
import socket
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import ConfigError
from octavo.membership.address_source import AddressesUnavailable, AddressSource
from octavo.membership.ray_addresses import RayAddresses

FLEET_PORT = 7070
MAX_FILE_BYTES = 1 << 20
FORMS = "use host:port,host:port or file:PATH or dns:NAME:PORT or ray:NAME"

FLEET_NAME = re.compile("[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")

HOST_NAME = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*\.?"
)
# A host in brackets or without a colon, then perhaps a port.
HOST_AND_PORT = re.compile(r"(?:\[(?P<ipv6>[^\]]*)\]|(?P<host>[^:\[\]]*))(?::(?P<port>.*))?")


@dataclass(frozen=True)
class FixedAddresses:
    listed: tuple[str, ...]

    async def addresses(self) -> tuple[str, ...]:
        return self.listed


@dataclass(frozen=True)
class FileAddresses:
    path: Path

    async def addresses(self) -> tuple[str, ...]:
        return await asyncio.to_thread(self._read)

    def _read(self) -> tuple[str, ...]:
        try:
            with self.path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise AddressesUnavailable(
                f"fleet: cannot read {self.path} as text: write one host:port per line, as UTF-8"
            ) from None
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "invalid path"
            raise AddressesUnavailable(
                f"fleet: cannot read {self.path} ({reason}): write one host:port per line"
            ) from error
        if len(content) > MAX_FILE_BYTES:
            raise AddressesUnavailable(f"fleet: {self.path} is larger than {MAX_FILE_BYTES} bytes")
        found = set()
        for number, line in enumerate(text.split("\n"), start=1):
            address = line.partition("#")[0].strip()
            try:
                if address:
                    found.add(parse_address(address))
            except ConfigError as error:
                raise AddressesUnavailable(f"fleet: {self.path}, line {number}: {error}") from None
        if not found:
            raise AddressesUnavailable(f"fleet: {self.path} lists no replica: write one host:port per line")
        return tuple(sorted(found))


@dataclass(frozen=True)
class NamedAddresses:
    name: str
    port: int

    async def addresses(self) -> tuple[str, ...]:
        try:
            records = await asyncio.get_running_loop().getaddrinfo(
                self.name, self.port, type=socket.SOCK_STREAM
            )
        except (OSError, UnicodeError) as error:  # UnicodeError: a label of the name is too long
            reason = error.strerror if isinstance(error, OSError) else "invalid name"
            raise AddressesUnavailable(
                f"fleet: cannot resolve {self.name} ({reason}): check the name, and that replicas are ready"
            ) from error
        # Families other than these two have no port.
        hosts = {
            str(address[0]) for family, *_, address in records if family in (socket.AF_INET, socket.AF_INET6)
        }
        if not hosts:
            raise AddressesUnavailable(f"fleet: {self.name} has no A or AAAA record: check the name")
        return tuple(sorted(_joined(host, self.port) for host in hosts))


def parse_fleet(value: str) -> AddressSource:
    """Return the source of addresses that a value of `--fleet` describes. Raises ConfigError.

    Does not read the file, and does not ask the name server or Ray.
    """
    kind, colon, rest = value.strip().partition(":")
    try:
        if colon and kind == "file":
            if not rest:
                raise ConfigError("the path of the file is missing")
            return FileAddresses(Path(rest))
        if colon and kind == "dns":
            name, port = _parse_parts(rest)
            if _is_ip(name):
                raise ConfigError("after dns: give a name, or give the address itself without dns:")
            return NamedAddresses(name, port)
        if colon and kind == "ray":
            return RayAddresses(check_fleet_name(rest))
        items = [item.strip() for item in value.split(",")]
        return FixedAddresses(tuple(sorted({parse_address(item) for item in items})))
    except ConfigError as error:
        raise ConfigError(f"fleet: {error}; {FORMS}") from None


def check_fleet_name(name: str) -> str:
    """Return the name of a fleet on a Ray cluster. Raises ConfigError."""
    if not FLEET_NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is not a name: use up to 32 lower-case letters, digits and hyphens")
    return name


def parse_address(text: str) -> str:
    """Return `host:port` in its only form: lower case, a port, IPv6 in brackets. Raises ConfigError."""
    return _joined(*_parse_parts(text))


def _parse_parts(text: str) -> tuple[str, int]:
    """Return host and port. An IPv6 host is without its brackets."""
    if "://" in text:
        raise ConfigError(f"{text!r} must be host:port, without a scheme")
    if text.count(":") > 1 and _is_ip(text):
        raise ConfigError(f"{text!r} is an IPv6 address: write it in brackets, as [{text}]:{FLEET_PORT}")
    found = HOST_AND_PORT.fullmatch(text)
    if found is None:
        raise ConfigError(f"{text!r} is not host:port")
    return _checked_host(found, text), _checked_port(found["port"], text)


def _checked_host(found: re.Match[str], text: str) -> str:
    if found["ipv6"] is not None:
        try:
            return str(ipaddress.IPv6Address(found["ipv6"]))
        except ValueError:
            raise ConfigError(f"{text!r} has no IPv6 address in its brackets") from None
    host = found["host"].lower()
    if not host:
        raise ConfigError(f"{text!r} has no host" if text else "an address is empty")
    # The last label of a name is never a number, so this is meant as an IPv4 address.
    is_number = host.rstrip(".").rpartition(".")[2].isdecimal()
    if not (_is_ip(host) if is_number else HOST_NAME.fullmatch(host)):
        raise ConfigError(f"{text!r} has no valid host name or IP address")
    return host


def _checked_port(port: str | None, text: str) -> int:
    if port is None:
        return FLEET_PORT
    if not re.fullmatch("[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise ConfigError(f"the port of {text!r} must be a number from 1 to 65535")
    return int(port)


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
