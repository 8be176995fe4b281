"""The published API description accepts the requests on the pages and in the examples."""

import json
import re
from pathlib import Path

import pytest

from data.engine_facts import engine_facts
from docs.pages import ROOT, all_blocks
from octavo.checkpoint import open_checkpoint
from octavo.config import ServerOptions
from octavo.frontend.text_model import TextModel
from octavo.server.app import build_app
from octavo.server.http.keys import Keys
from octavo.server.openapi import describe
from octavo.server.state import ServerState
from server.direct_prompter import DirectPrompter
from server.fake_replicas import FakeReplicas
from server.recording import Accepted, Description, problems

CURL = re.compile(r"curl [^']*?(?:https?://[^/\s]+|\$url)(/[\w/]+).*?-d '(\{.*?\})'(?:\n|$)", re.DOTALL)
SHELL_VARIABLES = {"model": "smollm2", "question": '[{"role": "user", "content": "Hello"}]'}


@pytest.fixture(scope="module")
def description(tiny_checkpoint: Path) -> Description:
    """Return the API description of a server whose model has the name used on the pages."""
    model = TextModel.of_checkpoint(open_checkpoint(str(tiny_checkpoint)), "smollm2")
    replicas = FakeReplicas(engine_facts())
    state = ServerState(ServerOptions(), model, replicas, prompter=DirectPrompter(model))  # type: ignore[arg-type]
    try:
        return describe(build_app(state, Keys()), state)
    finally:
        state.close()


def requests_in(text: str) -> list[Accepted]:
    """Return the bodies that curl sends."""
    filled = re.sub(r"'\"\$(\w+)\"'", lambda name: SHELL_VARIABLES[name[1]], text)
    return [Accepted(path, body) for path, body in CURL.findall(filled)]


SOURCES = {str(block): block.body for block in all_blocks() if "curl" in block.body} | {
    path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted(ROOT.glob("examples/**/*.sh"))
}


@pytest.mark.parametrize("source", SOURCES)
def test_curl_requests_match_the_api_description(source: str, description: Description) -> None:
    requests = requests_in(SOURCES[source])
    assert len(requests) == SOURCES[source].count("-d '{"), "a request was not found"
    for request in requests:
        assert json.loads(request.body)
    assert not list(problems(description, requests))


def test_requests_are_found_in_the_pages() -> None:
    assert sum(len(requests_in(text)) for text in SOURCES.values()) >= 8
