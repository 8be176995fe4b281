"""Requests that the pages and the examples show are allowed by the published description of the API."""

import json
import re
from pathlib import Path

import pytest

from data.engine_facts import engine_facts
from docs.pages import ROOT, all_blocks
from octavo.checkpoint import open_checkpoint
from octavo.config import ServerOptions
from octavo.frontend.hub import Hub
from octavo.frontend.text_model import TextModel
from octavo.server.app import build_app
from octavo.server.http.keys import Keys
from octavo.server.openapi import describe
from octavo.server.state import ServerState
from server.direct_prompter import DirectPrompter
from server.fake_supervisor import FakeSupervisor
from server.recording import Accepted, Description, problems

CURL = re.compile(r"curl [^']*?(?:https?://[^/\s]+|\$url)(/[\w/]+).*?-d '(\{.*?\})'(?:\n|$)", re.DOTALL)
SHELL_VARIABLES = {"model": "smollm2", "question": '[{"role": "user", "content": "Hello"}]'}


@pytest.fixture(scope="module")
def description(tiny_checkpoint: Path) -> Description:
    """Of a server whose model has the name that the pages use."""
    model = TextModel.of_checkpoint(open_checkpoint(str(tiny_checkpoint)), "smollm2")
    supervisor = FakeSupervisor(engine_facts())
    state = ServerState(ServerOptions(), model, Hub(), supervisor, prompter=DirectPrompter(model))  # type: ignore[arg-type]
    try:
        return describe(build_app(state, Keys()), state)
    finally:
        state.close()


def requests_in(text: str) -> list[Accepted]:
    """What curl is told to send."""
    filled = re.sub(r"'\"\$(\w+)\"'", lambda name: SHELL_VARIABLES[name[1]], text)
    return [Accepted(path, body) for path, body in CURL.findall(filled)]


SOURCES = {str(block): block.body for block in all_blocks() if "curl" in block.body} | {
    path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted(ROOT.glob("examples/**/*.sh"))
}


@pytest.mark.parametrize("source", SOURCES)
def test_requests_for_curl_are_allowed(source: str, description: Description) -> None:
    requests = requests_in(SOURCES[source])
    assert len(requests) == SOURCES[source].count("-d '{"), "a request was not found"
    for request in requests:
        assert json.loads(request.body)
    assert not list(problems(description, requests))


def test_requests_were_found() -> None:
    assert sum(len(requests_in(text)) for text in SOURCES.values()) >= 8
