"""Runs coding agents in folders of their own, against one server."""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clients.catalog import TASK, Agent
from clients.rules import BROKEN_CODE
from patience import HANG_SECONDS

CODEX = Path(__file__).parents[2] / "examples" / "codex"
MODEL_SECONDS = 3600  # for an agent with a real model, which may compute long prompts slowly
OPENCODE_PACKAGES = {"chat": "@ai-sdk/openai-compatible", "messages": "@ai-sdk/anthropic"}


@dataclass(frozen=True)
class Service:
    url: str
    model: str
    max_model_len: int
    seconds: float = HANG_SECONDS  # maximum for one task


@dataclass(frozen=True)
class Workplace:
    """The folder of one agent, with a home and a project that are thrown away."""

    folder: Path

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def project(self) -> Path:
        return self.folder / "project"

    @property
    def file(self) -> Path:
        return self.project / "add.py"

    def prepare(self) -> None:
        self.home.mkdir(parents=True)
        self.project.mkdir()
        self.file.write_text(BROKEN_CODE)


def run_agent(agent: Agent, packages: Path, place: Workplace, service: Service) -> str:
    """Give an agent the task, and return its transcript. `packages` is a folder with `node_modules`."""
    place.prepare()
    command = _codex(place, service) if agent.name == "codex" else _opencode(agent, place, service)
    environ = {
        "HOME": str(place.home),
        "CODEX_HOME": str(place.home),
        "OCTAVO_API_KEY": "none",
        "TERM": "dumb",
    }
    done = subprocess.run(
        [packages / "node_modules" / ".bin" / command[0], *command[1:], TASK],
        cwd=place.project,
        env={"PATH": os.environ["PATH"], **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=service.seconds,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def _codex(place: Workplace, service: Service) -> Sequence[str]:
    """Configure it with the documented files."""
    config = (CODEX / "config.toml").read_text()
    assert config.count("http://127.0.0.1:8000") == 1
    config = config.replace("http://127.0.0.1:8000", service.url).replace("qwen-coder", service.model)
    (place.home / "config.toml").write_text(config)
    catalog = json.loads((CODEX / "models.json").read_text())
    catalog["models"][0] |= {"slug": service.model, "context_window": service.max_model_len}
    (place.home / "models.json").write_text(json.dumps(catalog))
    # The project is a temporary folder, and nothing but the server can be reached.
    return ("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")


def _opencode(agent: Agent, place: Workplace, service: Service) -> Sequence[str]:
    limit = {"context": service.max_model_len, "output": 2048}
    provider = {
        "npm": OPENCODE_PACKAGES[agent.api],
        "name": "Octavo",
        "options": {"baseURL": f"{service.url}/v1", "apiKey": "none"},
        "models": {service.model: {"name": service.model, "limit": limit}},
    }
    name = f"octavo/{service.model}"
    config = {
        "autoupdate": False,
        "share": "disabled",
        "model": name,
        "small_model": name,
        "permission": {"edit": "allow", "bash": "allow"},
        "provider": {"octavo": provider},
    }
    (place.project / "opencode.json").write_text(json.dumps(config))
    return ("opencode", "run")
