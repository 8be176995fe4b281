"""Engines that compute nothing, in separate processes: one behind HTTP, one behind a pipe.

python fakes.py http PORT
python fakes.py pipe
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from benchmarks.peers.engines import PeerEngine, Start


def fake_engine(name: str, kind: str, *, is_ours: bool = False) -> PeerEngine:
    def command(start: Start) -> list[str]:
        return [sys.executable, __file__, kind, str(start.port)]

    return PeerEngine(
        name,
        is_ours=is_ours,
        has_http=kind == "http",
        program=Path(sys.executable),
        command=command,
        # Peer engines do not get our PYTHONPATH; this fake needs it for its imports.
        environment=lambda start: {"PYTHONPATH": str(Path(__file__).parents[2])},
        version=lambda: "1.0",
        needs=lambda model: model.folder,
        notes=(f"{name} is a fake",),
    )


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._send(json.dumps({"data": [{"id": "model"}]}).encode())

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        chunks = [{"choices": [{"index": 0, "text": "x", "finish_reason": None}]}] * asked["max_tokens"]
        usage = {"prompt_tokens": len(asked["prompt"]), "completion_tokens": asked["max_tokens"]}
        events = [*map(json.dumps, [*chunks, {"choices": [], "usage": usage}]), "[DONE]"]
        self._send("".join(f"data: {event}\n\n" for event in events).encode(), "text/event-stream")

    def _send(self, body: bytes, kind: str = "application/json") -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def answer_pipe() -> None:
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)["requests"]
        answers = [
            {
                "sent_at": 0.0,
                "chunk_times": [0.5 * (count + 1) for count in range(one["output"])],
                "chunk_tokens": [1] * one["output"],
            }
            for one in asked
        ]
        print(json.dumps({"requests": answers}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "http":
        ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
    else:
        answer_pipe()
