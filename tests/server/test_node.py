"""The Node clients of OpenAI and Vercel; skipped if Node or the packages are not available."""

from pathlib import Path

import pytest

from server.node import run_node
from server.process import Server

pytestmark = pytest.mark.xdist_group("server")


def test_the_node_client(server: Server, node_folder: Path) -> None:
    seen = run_node("client.mjs", node_folder, server.url)
    first, second = seen["chat"]["choices"]
    assert seen["streamed"] == seen["put_together"] == first["message"]["content"]
    assert first["message"]["content"] != second["message"]["content"]
    assert len(first["logprobs"]["content"][0]["top_logprobs"]) == 2
    assert (seen["finish"], seen["usage"]["completion_tokens"]) == ("length", 12)
    assert [choice["text"][:2] for choice in seen["completion"]["choices"]] == ["ab", "cd"]
    assert seen["models"] == ["tiny"]
    assert seen["refused"] == {"kind": "BadRequestError", "status": 400, "param": "temperature"}


def test_the_vercel_ai_sdk(server: Server, node_folder: Path) -> None:
    seen = run_node("vercel.mjs", node_folder, server.url)
    for whole, streamed in ((seen["chat"], seen["chat_streamed"]), (seen["text"], seen["text_streamed"])):
        assert whole["text"] == streamed["text"] != ""
        assert whole["finish"] == streamed["finish"] == "length"
        for usage in (whole["usage"], streamed["usage"]):
            assert usage["outputTokens"] == 12
            assert usage["inputTokens"] + 12 == usage["totalTokens"]
    assert seen["chat"]["warnings"] == []
    assert seen["refused"] == {"status": 400, "message": "temperature must be a number from 0 to 100"}
