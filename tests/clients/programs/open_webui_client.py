"""Starts Open WebUI with a home of its own, and chats through its API, with a connection of each kind."""

import importlib.metadata
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

URL = os.environ["URL"]
QUESTION = [{"role": "user", "content": "Hi!"}]
START_SECONDS = 300


def main() -> None:
    found = {
        "chat": chats({"ENABLE_OLLAMA_API": "False", "OPENAI_API_BASE_URL": f"{URL}/v1"}),
        "ollama": chats({"ENABLE_OPENAI_API": "False", "OLLAMA_BASE_URL": URL}),
    }
    print(json.dumps({"version": importlib.metadata.version("open-webui"), "found": found}))


def chats(connection: dict[str, str]) -> dict[str, str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as home:
        program, log = Path(sys.executable).parent / "open-webui", Path(home) / "log"
        with log.open("wb") as out:
            app = subprocess.Popen(
                [program, "serve", "--host", "127.0.0.1", "--port", str(port)],
                env=os.environ | settings(home) | connection,
                stdout=out,
                stderr=out,
            )
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
                wait_until_healthy(client, app, log)
                token = client.post("/api/v1/auths/signin", json={"email": "", "password": ""}).json()[
                    "token"
                ]
                client.headers["Authorization"] = f"Bearer {token}"
                (model,) = (one["id"] for one in client.get("/api/models").json()["data"])
                return {"plain": whole(client, model), "streamed": streamed(client, model)}
        finally:
            app.terminate()
            app.wait()


def settings(home: str) -> dict[str, str]:
    """Return settings with which it needs no other machine and no user."""
    return {
        "HOME": home,
        "DATA_DIR": home,
        "WEBUI_AUTH": "False",
        "WEBUI_SECRET_KEY": "secret",
        "OPENAI_API_KEY": "none",
        "OFFLINE_MODE": "True",
        "HF_HUB_OFFLINE": "1",
        "RAG_EMBEDDING_ENGINE": "openai",  # else it downloads a model
    }


def wait_until_healthy(client: httpx.Client, app: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and app.poll() is None:
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(1)
    sys.exit(f"Open WebUI did not start:\n{log.read_text()[-3000:]}")


def whole(client: httpx.Client, model: str) -> str:
    body = {"model": model, "messages": QUESTION, "stream": False}
    answer = client.post("/api/chat/completions", json=body).raise_for_status().json()
    text: str = answer["choices"][0]["message"]["content"]
    return text


def streamed(client: httpx.Client, model: str) -> str:
    body = {"model": model, "messages": QUESTION, "stream": True}
    texts = []
    with client.stream("POST", "/api/chat/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                choices = json.loads(line.removeprefix("data: ")).get("choices") or [{"delta": {}}]
                texts.append(choices[0]["delta"].get("content") or "")
    return "".join(texts)


main()
