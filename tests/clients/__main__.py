"""Runs real clients, unmodified: `python -m clients [NAME...]`, or `make clients`.

Each is installed in its newest version into a folder of its own below --folder, which later runs use again.
Libraries and agents get a model that always calls the tool it is given: see `rules`. With --model, agents get
that model instead, and the result says whether it managed the task.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clients.agents import MODEL_SECONDS, Service, Workplace, run_agent
from clients.catalog import AGENTS, LIBRARIES, Agent, Library
from clients.rules import FIXED_CODE, GREETING, RESULT, Editor, calculator
from data.json_types import JsonObject
from patience import HANG_SECONDS
from server.process import Server
from server.scripted import FACTS, Rule, scripted_server

PROGRAMS = Path(__file__).parent / "programs"
EXPECTED = {"plain": GREETING, "streamed": GREETING, "arguments": {"a": 2, "b": 3}, "result": RESULT}
CONTEXT = 32768


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m clients", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="clients to run [all]")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "octavo-clients")
    parser.add_argument("--model", type=Path, help="a model for the agents, instead of the scripted one")
    parser.add_argument("--transcripts", type=Path, help="folder for what the agents print")
    args = parser.parse_args()
    wanted = [one for one in (*LIBRARIES, *AGENTS) if not args.names or one.name in args.names]
    failures = 0
    for one in wanted:
        try:
            if isinstance(one, Library):
                version, apis = run_library(one, args.folder)
            else:
                version, apis = try_agent(one, args.folder, args.model, args.transcripts)
            outcome = "works"
        except (AssertionError, subprocess.SubprocessError) as error:
            failures += 1
            version, apis, outcome = "", "", f"FAILED: {error}"
        print(f"{one.name:22} {version:12} {apis:28} {outcome}", flush=True)
    return 1 if failures else 0


# -- libraries ---------------------------------------------------------------------------------------------


def run_library(library: Library, folder: Path) -> tuple[str, str]:
    """Run a library's program, check what it got, and return its version and APIs."""
    place = folder / library.program.partition(".")[0]
    is_node = library.program.endswith(".mjs")
    command = node(place, library.packages) if is_node else python(place, library.packages)
    source = (PROGRAMS / library.program).read_text()
    (place / library.program).write_text(source)
    with scripted(answer) as url:
        done = subprocess.run(
            [*command, library.program],
            cwd=place,
            env=os.environ | {"URL": url},
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    seen: JsonObject = json.loads(done.stdout.splitlines()[-1])
    for api, found in seen["found"].items():
        wrong = {name: found[name] for name in EXPECTED if name in found and found[name] != EXPECTED[name]}
        assert not wrong, (api, wrong)
        assert {"plain", "result" if library.calls_tools else "streamed"} <= set(found), api
    return seen["version"], ", ".join(seen["found"])


def answer(prompt: str) -> str:
    return '{"sum": 5}' if "As JSON" in prompt else calculator(prompt)


def node(place: Path, packages: tuple[str, ...]) -> list[str]:
    if not (place / "node_modules").exists():
        place.mkdir(parents=True, exist_ok=True)
        install(["npm", "install", "--no-audit", "--no-fund", "--prefix", str(place), *packages])
    return ["node"]


def python(place: Path, packages: tuple[str, ...]) -> list[str]:
    interpreter = place / "venv" / "bin" / "python"
    if not interpreter.exists():
        install([sys.executable, "-m", "venv", str(place / "venv")])
        install([str(interpreter), "-m", "pip", "install", "-q", "-U", "pip"])
        install([str(interpreter), "-m", "pip", "install", "-q", *packages])
    return [str(interpreter)]


def install(command: list[str]) -> None:
    print(f"  {' '.join(command)}", file=sys.stderr, flush=True)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


# -- agents ------------------------------------------------------------------------------------------------


def try_agent(agent: Agent, folder: Path, model: Path | None, transcripts: Path | None) -> tuple[str, str]:
    """Give an agent the task, check the file that it edits, and return its version and API."""
    packages = folder / agent.name
    node(packages, (agent.package,))
    described = json.loads((packages / "node_modules" / agent.package / "package.json").read_text())
    with tempfile.TemporaryDirectory(prefix="octavo-agent-") as temporary:
        place = Workplace(Path(temporary) / agent.name)
        with service(place, model) as found:
            transcript = run_agent(agent, packages, place, found)
        if transcripts is not None:
            transcripts.mkdir(parents=True, exist_ok=True)
            (transcripts / f"{agent.name}-{agent.api}.txt").write_text(transcript)
        assert place.file.read_text() == FIXED_CODE, f"the file was not fixed:\n{transcript}"
    return described["version"], agent.api


@contextmanager
def service(place: Workplace, model: Path | None) -> Iterator[Service]:
    if model is None:
        with scripted(Editor(place.file)) as url:
            yield Service(url, "scripted", FACTS.max_model_len)
        return
    with tempfile.TemporaryDirectory() as logs:
        flags = ("--served-model-name", "model", "--max-model-len", str(CONTEXT), "--kv-memory", "2GiB")
        server = Server(Path(logs), model, *flags)
        try:
            yield Service(server.wait_until_ready().url, "model", CONTEXT, MODEL_SECONDS)
        finally:
            server.stop()


@contextmanager
def scripted(rule: Rule) -> Iterator[str]:
    tokenizer = Path(os.environ["OCTAVO_TEST_ASSETS"]) / "tokenizer-qwen2.5"
    with scripted_server(tokenizer, rule, "scripted,claude-*") as server:
        yield server.url.removesuffix("/v1")


if __name__ == "__main__":
    sys.exit(main())
