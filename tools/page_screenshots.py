"""Take the screenshots of the web page for the docs: `python tools/page_screenshots.py MODEL [FOLDER]`.

Requires playwright (`pip install playwright`) and an installed Chromium. The page is that of a real server
with 3 replicas, and the engine view is taken while 32 streams run.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
from crowd import crowd
from playwright.sync_api import sync_playwright

NUM_REPLICAS = 3
NUM_STREAMS = 32
WATCH_SECONDS = 20.0
START_SECONDS = 120.0
SYSTEM = "You are a helpful assistant who answers in plain words and never makes anything up. " * 6
QUESTION = "What is the capital of France, and what is it known for?"


@contextmanager
def server(model: str) -> Iterator[str]:
    """Run a server with the model and yield its URL."""
    flags = ("--dtype", "bfloat16", "--kv-memory", "384MiB", "--max-model-len", "2048", "--port", "0")
    replicas = ("--replicas", str(NUM_REPLICAS))
    command = [sys.executable, "-m", "octavo.cli.main", "serve", model, *flags, *replicas]
    with (
        tempfile.NamedTemporaryFile("w+") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
    ):
        try:
            deadline = time.monotonic() + START_SECONDS
            is_ready = rf"(?s)is ready at (\S+)/v1.*r{NUM_REPLICAS - 1}: the engine is ready"
            while not (found := re.search(is_ready, Path(log.name).read_text())):
                assert process.poll() is None, Path(log.name).read_text()
                assert time.monotonic() < deadline, "the server did not become ready in time"
                time.sleep(0.1)
            yield found[1]
        finally:
            process.terminate()


def streams(url: str) -> AbstractContextManager[None]:
    def run_client(client: int, is_over: threading.Event) -> None:
        for number in range(1_000_000):
            subject = " very old" * (client * (number + 3) % 23)
            messages = [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": f"Tell me a story about a{subject} king."},
            ]
            body = {
                "messages": messages,
                "seed": client,
                "max_tokens": 60 + 13 * (client % 9),
                "stream": True,
            }
            with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=None) as answer:
                for _ in answer.iter_lines():
                    if is_over.is_set():
                        return

    return crowd(NUM_STREAMS, run_client)


def playground(page: Any, url: str) -> None:
    page.goto(url)
    page.locator(".dot-ready").wait_for()
    for name, value in {"temperature": "0.6", "seed": "2", "max_tokens": "120"}.items():
        page.locator(f"[name={name}]").fill(value)
    page.get_by_label("Message", exact=True).fill(QUESTION)
    page.keyboard.press("Enter")
    page.locator(".answer-footer summary").click(timeout=60_000)
    page.get_by_label("Message", exact=True).evaluate("box => box.blur()")
    page.locator(".token").nth(17).hover()


def engine(page: Any, url: str) -> None:
    page.goto(f"{url}/#engine")
    page.get_by_text("live", exact=True).wait_for()
    page.wait_for_timeout(WATCH_SECONDS * 1000)
    page.get_by_role("img", name="the last 120 steps").wait_for(timeout=60_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("docs/assets"))
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    chromium = os.environ.get("OCTAVO_CHROMIUM") or shutil.which("chromium")
    with server(arguments.model) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        page = browser.new_page(viewport={"width": 1280, "height": 720}, color_scheme="light")
        playground(page, url)
        page.screenshot(path=arguments.folder / "playground.png")
        page.close()
        page = browser.new_page(viewport={"width": 1280, "height": 1500}, color_scheme="light")
        with streams(url):
            engine(page, url)
            page.screenshot(path=arguments.folder / "engine-view.png")
        page.close()
        browser.close()


if __name__ == "__main__":
    main()
