"""A model that is served under several names gives the same answer under each of them."""

import httpx
import pytest

from data.json_types import Json
from server.process import StartServer

pytestmark = pytest.mark.xdist_group("server")

ASKED = {"messages": [{"role": "user", "content": "hello"}], "seed": 3, "max_tokens": 8}


def test_every_name_has_the_same_answer(start: StartServer) -> None:
    server = start("--served-model-name", "tiny,gpt-4o,claude-*").wait_until_ready()

    def ask(**fields: Json) -> httpx.Response:
        return httpx.post(f"{server.url}/v1/chat/completions", json={**ASKED, **fields}, timeout=60)

    expected = ask().json()
    assert expected["model"] == "tiny"
    for name in ("tiny", "gpt-4o", "claude-some-model"):
        answer = ask(model=name).json()
        assert (answer["model"], answer["choices"]) == (name, expected["choices"])
        streamed = ask(model=name, stream=True)
        assert f'"model":"{name}"' in streamed.text
        assert httpx.get(f"{server.url}/v1/models/{name}").json()["id"] == name
    refused = ask(model="gpt-5")
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
    assert "tiny, gpt-4o, claude-*" in refused.json()["error"]["message"]
    listed = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert [model["id"] for model in listed] == ["tiny", "gpt-4o"]
    metrics = httpx.get(f"{server.url}/metrics").text
    assert 'model_name="tiny"' in metrics
    assert "gpt" not in metrics, "clients must not add time series"
    assert "claude" not in metrics, "clients must not add time series"


def test_an_invalid_list_of_names_stops_the_start(start: StartServer) -> None:
    server = start("--served-model-name", "a,,b")
    assert server.process.wait(60) != 0
    assert "served_model_name: 'a,,b' has an empty name" in server.log
