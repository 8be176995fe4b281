"""An application with API keys that can be changed, on simulated clocks."""

from collections.abc import Callable
from pathlib import Path

from data.json_types import Json
from octavo.config import ServerOptions
from octavo.server.app import build_app
from octavo.server.http.key_source import KeySource
from octavo.server.http.keys import Keys
from server.exchange import Exchange
from server.null_bench import Bench, Scrape
from server.recording import recorded

ALICE, BOB, OPS = "sk-alice-1", "sk-bob-0001", "sk-operator-1"
KEY_FILE = f"alice {ALICE}\nbob {BOB}\nops {OPS} role=operator\n"


class Clocks:
    def __init__(self) -> None:
        self.wall, self.monotonic = 1_800_000_000.0, 5000.0


class KeyedBench:
    """The application of a bench with a key file that can be changed."""

    def __init__(self, bench: Bench, path: Path, content: str = KEY_FILE) -> None:
        self.bench = bench
        self.path = path
        self.clocks = Clocks()
        path.write_text(content)
        self.keys = Keys(
            KeySource(ServerOptions(api_key_file=str(path))),
            wall_clock=lambda: self.clocks.wall,
            clock=lambda: self.clocks.monotonic,
        )
        self.app = recorded(build_app(bench.state, self.keys))

    def ask(self, key: str, path: str, body: Json) -> Exchange:
        return Exchange(self.app, path, body, ((b"authorization", f"Bearer {key}".encode()),))

    async def status(self, key: str, path: str = "/v1/models", body: Json = None) -> int:
        return (await self.ask(key, path, body).done()).status

    async def scrape(self, key: str = OPS) -> Scrape:
        return Scrape((await self.ask(key, "/metrics", None).done()).content.decode())

    def replace(self, content: str | bytes) -> None:
        """Replace the file, as editors and Kubernetes do, and reload it."""
        new = self.path.with_name("new")
        new.write_bytes(content if isinstance(content, bytes) else content.encode())
        new.replace(self.path)
        self.keys.reload()


RunKeyed = Callable[..., None]
