"""The web page in Chromium, on a real server with the tiny model. Every test checks that there are no
requests to other hosts, no errors in the console and no violations of the Content-Security-Policy.

All tests are in one module, so that the browser is closed at its end: playwright keeps an event loop running.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from crowd import crowd

from page.browser import Open, Scheme, launched, opened, serious_violations
from patience import HANG_SECONDS
from server.process import Server
from server.scripted import scripted_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page, Request

pytestmark = pytest.mark.xdist_group("page")

KEY = "key-of-the-page"
AUTHORIZED = {"authorization": f"Bearer {KEY}"}
CHAT = "/v1/chat/completions"

# Records the length of the answer whenever it changes.
RECORD_LENGTHS = """() => {
  window.lengths = new Set();
  const look = () => window.lengths.add(document.querySelector(".answer .text")?.textContent.length);
  const everything = { subtree: true, childList: true, characterData: true };
  new MutationObserver(look).observe(document.querySelector(".conversation"), everything);
}"""


@pytest.fixture(scope="module")
def served(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = ("--kv-memory", "4MiB", "--served-model-name", "tiny", "--api-key", KEY)
    running = Server(tmp_path_factory.mktemp("page"), tiny_checkpoint, *flags)
    try:
        yield running.wait_until_ready()
        assert "Traceback" not in running.log, running.log
    finally:
        running.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with launched() as found:
        yield found


@pytest.fixture
def open_page(browser: "Browser", served: Server) -> Open:
    return partial(opened, browser, served.url, key=KEY)


def fill(page: "Page", **settings: str) -> None:
    if not page.get_by_label("Presence penalty").is_visible():
        page.locator("summary", has_text="More").click()
    for name, value in settings.items():
        page.locator(f"[name={name}]").fill(value)


def ask(page: "Page", question: str, box: str = "Message") -> "Locator":
    """Send a question and return the last answer when it is complete."""
    before = page.locator(".answer-footer").count()
    page.get_by_label(box, exact=True).fill(question)
    page.keyboard.press("Enter")
    page.locator(".answer-footer").nth(before).wait_for()
    return page.locator(".answer").last


def plain_text(page: "Page") -> str:
    """Return the text of the last answer."""
    page.get_by_label("Show tokens").uncheck()
    text: str = page.locator(".answer").last.locator(".text").first.evaluate("element => element.textContent")
    return text


def test_a_chat_is_streamed_and_matches_the_api(served: Server, open_page: Open) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    fields = {"temperature": 0.8, "top_p": 0.9, "top_k": 40, "min_p": 0.01, "seed": 7, "max_tokens": 150}
    body = {"messages": messages, "frequency_penalty": 0.3, **fields}
    expected = served.post(CHAT, body, headers=AUTHORIZED).json()["choices"][0]["message"]["content"]
    assert len(expected) > 5
    with open_page() as page:
        page.get_by_label("Show tokens").uncheck()
        fill(
            page,
            system="Be brief.",
            frequency_penalty="0.3",
            **{name: str(value) for name, value in fields.items()},
        )
        page.evaluate(RECORD_LENGTHS)
        ask(page, "hello")
        assert plain_text(page) == expected
        assert len(set(page.evaluate("[...window.lengths]")) - {None, 0}) > 1, "the answer was not streamed"
        assert "prompt tokens cached" in page.locator(".answer-footer").inner_text()
        # The conversation continues from there.
        history = [*messages, {"role": "assistant", "content": expected}, {"role": "user", "content": "more"}]
        continued = served.post(CHAT, body | {"messages": history}, headers=AUTHORIZED).json()
        ask(page, "more")
        assert plain_text(page) == continued["choices"][0]["message"]["content"]


def test_each_token_shows_its_probability_and_alternatives(served: Server, open_page: Open) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "seed": 7, "max_tokens": 12}
    body |= {"logprobs": True, "top_logprobs": 4}
    scores = served.post(CHAT, body, headers=AUTHORIZED).json()["choices"][0]["logprobs"]["content"]
    with open_page() as page:
        fill(page, seed="7", max_tokens="12", alternatives="4")
        tokens = ask(page, "hello").get_by_role("listbox", name="Tokens of the answer")
        assert tokens.get_by_role("option").count() == len(scores)
        tokens.focus()
        page.keyboard.press("ArrowRight")
        chosen = tokens.get_by_role("option", selected=True)
        assert chosen.get_attribute("data-index") == "1"
        assert tokens.get_attribute("aria-activedescendant") == chosen.get_attribute("id")
        details = page.locator(".token-details")
        assert f"log {scores[1]['logprob']:.3f}" in details.inner_text()
        others = {tuple(other["bytes"]) for other in (*scores[1]["top_logprobs"], scores[1])}
        assert details.locator("li").count() == len(others)
        assert details.locator("li.chosen").count() == 1
        page.keyboard.press("Escape")
        assert details.count() == 0
        tokens.get_by_role("option").first.hover()
        assert f"log {scores[0]['logprob']:.3f}" in details.inner_text()


def test_an_answer_can_be_reproduced(open_page: Open) -> None:
    """With a seed chosen by the server: 63 bits, more than a JavaScript number can represent."""
    with open_page() as page:
        fill(page, temperature="1.5", max_tokens="80", n="2")
        bodies: list[str] = []
        page.on("request", lambda request: bodies.append(request.post_data) if request.post_data else None)
        ask(page, "surprise me")
        page.get_by_role("button", name="Repeat with this seed").click()
        page.get_by_text("Repeated: identical text").wait_for()
        page.locator(".answer-footer summary").first.click()
        seed = page.locator(".facts div", has_text="Seed").locator("dd").first.inner_text()
        assert int(seed) >= 0
        assert "seed" not in json.loads(bodies[0])
        assert json.loads(bodies[1]) == {**json.loads(bodies[0]), "seed": int(seed)}


def test_copied_code_reproduces_a_completion_with_a_schema(open_page: Open) -> None:
    kind = {"type": "string", "minLength": 6, "maxLength": 12}
    schema = {
        "type": "object",
        "properties": {"it's": kind},
        "required": ["it's"],
        "additionalProperties": False,
    }
    with open_page() as page:
        page.get_by_text("Completion", exact=True).click()
        fill(
            page, seed="18446744073709551615", max_tokens="200", repetition_penalty="1.1", stop="never comes"
        )
        page.get_by_label("Answer format").select_option("json_schema")
        page.get_by_label("JSON schema").fill("{")
        page.get_by_label("Prompt", exact=True).fill("a 'quoted' prompt")
        page.keyboard.press("Enter")
        page.get_by_text("The JSON schema is not valid JSON").wait_for()
        page.get_by_label("JSON schema").fill(json.dumps(schema))
        ask(page, "a 'quoted' prompt", "Prompt")
        text = plain_text(page)
        assert set(json.loads(text)) == {"it's"}
        is_there = "start => navigator.clipboard.readText().then(text => text.startsWith(start))"
        for label, start, command in (
            ("Copy as Python", "import os", [sys.executable, "-c"]),
            ("Copy as curl", "curl -sN", ["sh", "-c"]),
        ):
            page.get_by_role("button", name=label).click()
            page.wait_for_function(is_there, arg=start)
            program = page.evaluate("navigator.clipboard.readText()")
            assert KEY not in program
            environ = os.environ | {"OCTAVO_API_KEY": KEY}
            done = subprocess.run(
                [*command, program],
                env=environ,
                capture_output=True,
                text=True,
                timeout=HANG_SECONDS,
                check=True,
            )
            assert copied_answer(done.stdout) == text


def copied_answer(output: str) -> str:
    """Return the answer: a copied program prints the text, a copied curl command the events."""
    events = [line[6:] for line in output.splitlines() if line.startswith("data: {")]
    return "".join(json.loads(event)["choices"][0]["text"] for event in events) if events else output[:-1]


def test_an_answer_can_be_stopped(served: Server, open_page: Open) -> None:
    with open_page() as page:
        engine = served.engine_pid
        assert engine is not None
        os.kill(engine, signal.SIGSTOP)  # so that the answer does not finish
        try:
            page.get_by_label("Message", exact=True).fill("hello")
            page.keyboard.press("Enter")
            page.get_by_role("button", name="Stop").click()
            page.get_by_text("Stopped", exact=True).wait_for()
        finally:
            os.kill(engine, signal.SIGCONT)
        ask(page, "hello again")
        assert page.get_by_text("Stopped", exact=True).count() == 1


@pytest.mark.assets
def test_reasoning_is_shown_separately(browser: "Browser", assets: Callable[[str], Path]) -> None:
    """On a model with scripted answers."""
    with (
        scripted_server(assets("tokenizer-qwen3")) as server,
        opened(browser, server.url.removesuffix("/v1"), key=None) as page,
    ):
        server.says("<think>\nThat is easy.\n</think>\n\nParis it is.")
        answer = ask(page, "What is the capital of France?")
        thoughts = answer.locator(".reasoning")
        assert "That" in thoughts.get_by_role("option").nth(2).inner_text()
        spoken = (
            answer.get_by_role("listbox", name="Tokens of the answer").get_by_role("option").all_inner_texts()
        )
        assert "".join(spoken).startswith("Paris it is.")
        page.get_by_label("Show tokens").uncheck()
        assert thoughts.locator(".text").inner_text().strip() == "That is easy."
        assert answer.locator(".choice > .text").inner_text().strip() == "Paris it is."


def test_errors_show_the_servers_message(served: Server, open_page: Open) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "temperature": 1000}
    words = served.post(CHAT, body, headers=AUTHORIZED).json()["error"]["message"]
    with open_page(expected_status=400) as page:
        fill(page, temperature="1000")
        ask(page, "hello")
        alert = page.get_by_role("alert").inner_text()
        assert words in alert
        assert "field temperature" in alert
        assert re.search(r"req_[0-9a-f]{24}", alert), "the id that is also in the log"


def test_a_missing_or_wrong_key_shows_what_to_do(browser: "Browser", served: Server) -> None:
    with opened(browser, served.url, key=None, expected_status=401) as page:
        page.get_by_text("This server requires an API key").wait_for()
        page.get_by_label("API key", exact=True).last.fill("wrong ключ")
        page.get_by_role("button", name="Use this key").click()
        page.get_by_text("The server rejected this API key").wait_for()
        assert serious_violations(page) == []
        page.get_by_role("link", name="Engine").click()
        page.get_by_text("a valid API key is needed").wait_for()
        page.get_by_label("API key", exact=True).last.fill(KEY)
        page.get_by_role("button", name="Use this key").click()
        page.get_by_text("live", exact=True).wait_for()
        page.get_by_role("link", name="Playground").click()
        ask(page, "hello")
        page.reload()
        page.get_by_text("This tab uses your API key").wait_for()
        page.get_by_role("button", name="Forget the key").click()
        assert page.evaluate("sessionStorage.length") == 0


def streams(url: str, number: int) -> AbstractContextManager[None]:
    """Run clients that send requests with a common prefix in a loop."""

    def run_client(client: int, is_over: threading.Event) -> None:
        with httpx.Client(base_url=url, headers=AUTHORIZED, timeout=HANG_SECONDS) as http:
            while not is_over.is_set():
                question = "All of them begin with these words, so that they share blocks. " * 2 + f"{client}"
                body = {
                    "prompt": question,
                    "max_tokens": 120,
                    "seed": client,
                    "ignore_eos": True,
                    "stream": True,
                }
                with http.stream("POST", "/v1/completions", json=body) as answer:
                    for _ in answer.iter_lines():
                        if is_over.is_set():
                            break

    return crowd(number, run_client)


def numbers_in(label: str | None) -> list[int]:
    return [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", label or "")]


def test_the_engine_view_shows_blocks_steps_tree_and_requests(served: Server, open_page: Open) -> None:
    with open_page() as page:
        with streams(served.url, 4):
            look_at_the_engine(page)
        open_finished(page)
        assert "Seed" in page.locator(".finished .explanation").first.inner_text()


def look_at_the_engine(page: "Page") -> None:
    page.get_by_role("link", name="Engine").click()
    page.get_by_text("live", exact=True).wait_for()
    page.locator(".finished details").nth(3).wait_for()  # all four clients have been served
    block_map = page.get_by_role("img", name="Map of the KV cache")
    held = 0
    for _ in range(1000):  # between two requests of the clients, no block may be held
        total, _, free, idle, held, private = numbers_in(block_map.get_attribute("aria-label"))
        assert free + idle + held + private == total
        if held > 0:
            break
        page.wait_for_timeout(20)
    assert held > 0, "the clients share a prefix"
    shown = numbers_in(page.get_by_role("img", name="Timeline").get_attribute("aria-label"))
    steps, chunks, tokens = shown[:3]
    assert steps > 10
    assert chunks >= 1
    assert tokens > steps, "steps must contain several answers"
    assert numbers_in(page.get_by_role("img", name="Prefix tree").get_attribute("aria-label"))[0] > 1
    for name in ("Map of the KV cache", "Timeline", "Prefix tree"):
        assert num_colours(page.get_by_role("img", name=name)) > 2, name
    assert page.locator(".plot canvas").count() == 4


def open_finished(page: "Page") -> None:
    """Open a completed request: one whose client disconnected has no explanation. No requests may run
    meanwhile, or they push it out of the list.

    Use the keyboard: new entries are inserted above, and a row that moves during a click is not clicked."""
    page.locator(".finished summary", has_text="length").first.press("Enter")
    page.locator(".finished .time-bar").first.wait_for()


def num_colours(canvas: "Locator") -> int:
    found: int = canvas.evaluate(
        """canvas => { const pixels = new Uint32Array(
             canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer);
           return new Set(pixels).size }"""
    )
    return found


def test_the_engine_feed_is_open_only_while_visible(open_page: Open) -> None:
    with open_page() as page:
        opened_feeds: list[Request] = []
        page.on(
            "request", lambda request: opened_feeds.append(request) if "/octavo/view" in request.url else None
        )
        ask(page, "hello")
        assert opened_feeds == [], "the playground must not open a feed"
        page.get_by_role("link", name="Engine").click()
        page.get_by_text("live", exact=True).wait_for()
        hide = (
            "isHidden => { Object.defineProperty(document, 'hidden', {value: isHidden, configurable: true});"
        )
        hide += "document.dispatchEvent(new Event('visibilitychange')) }"
        with page.expect_event("requestfailed", lambda request: request == opened_feeds[0]):
            page.evaluate(hide, True)
        page.get_by_text("paused while hidden").wait_for()
        page.evaluate(hide, False)
        page.get_by_text("live", exact=True).wait_for()
        assert len(opened_feeds) == 2
        with page.expect_event("requestfailed", lambda request: request == opened_feeds[1]):
            page.get_by_role("link", name="Playground").click()
        assert len(opened_feeds) == 2


@pytest.fixture
def fleet(tiny_checkpoint: Path, tmp_path: Path) -> Iterator[Server]:
    flags = ("--replicas", "2", "--kv-memory", "4MiB", "--api-key", KEY)
    running = Server(tmp_path, tiny_checkpoint, *flags)
    try:
        running.wait_for_log("r1: the engine is ready")
        yield running
        assert "Traceback" not in running.log, running.log
    finally:
        running.stop()


def test_the_engine_of_any_replica_can_be_shown(browser: "Browser", fleet: Server) -> None:
    tokens = dict.fromkeys(("r0", "r1"), 0)
    while tokens["r0"] == tokens["r1"]:
        fleet.post("/v1/completions", {"prompt": "abc", "max_tokens": 90, "ignore_eos": True}, AUTHORIZED)
        tokens = {name: tokens_of(fleet, name) for name in tokens}
    with opened(browser, fleet.url, key=KEY) as page:
        page.get_by_role("link", name="Engine").click()
        rows = page.locator(".replicas tbody tr")
        rows.nth(1).wait_for()
        for number, name in enumerate(tokens):
            rows.nth(number).filter(has_text=re.compile(rf"{name}\s*ready")).wait_for()
        assert page.get_by_role("radio", name="first usable").is_checked()
        page.get_by_text("r0 of 2 replicas").wait_for()
        rows.nth(1).click()
        wait_for_engine(page, "r1", tokens)
        assert page.get_by_role("radio", name="r1").is_checked()
        assert serious_violations(page) == []
        page.get_by_role("radio", name="r1").press("ArrowUp")
        wait_for_engine(page, "r0", tokens)
        page.get_by_role("radio", name="first usable").check()
        page.set_viewport_size({"width": 360, "height": 740})
        wait_for_engine(page, "r0", tokens)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        page.get_by_role("radio", name="r1").check()
        wait_for_engine(page, "r1", tokens)
        fleet.post("/octavo/fleet/drain", {"replica": "r1", "then": "remove"}, AUTHORIZED)
        page.get_by_role("alert").filter(has_text="r1 was removed").wait_for()
        page.locator(".replicas").wait_for(state="detached")
        page.locator(".figures", has_text=f"{tokens['r0']} in total").wait_for()


def tokens_of(server: Server, replica: str) -> int:
    """Return the number of tokens that the engine of a replica has sampled."""
    seen = server.get(f"/octavo/view?count=1&replica={replica}", AUTHORIZED).text.strip()
    tokens: int = json.loads(seen.split("data: ")[-1])["stats"]["tokens_sampled"]
    return tokens


def wait_for_engine(page: "Page", replica: str, tokens: dict[str, int]) -> None:
    """Wait until the view is that of a replica that has sampled this number of tokens."""
    page.get_by_text(f"{replica} of 2 replicas").wait_for()
    page.locator(".replicas .shown th", has_text=replica).wait_for()
    page.locator(".figures", has_text=f"{tokens[replica]} in total").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_accessible(scheme: Scheme, served: Server, open_page: Open) -> None:
    """axe-core finds nothing serious in both views with content, in both colour schemes."""
    with open_page(color_scheme=scheme) as page:
        fill(page, seed="3", max_tokens="40")
        ask(page, "hello")
        page.locator(".answer-footer summary").click()
        assert serious_violations(page) == []
        with streams(served.url, 2):
            page.get_by_role("link", name="Engine").click()
            page.locator(".finished summary", has_text="length").first.wait_for()
            assert serious_violations(page) == []
        open_finished(page)
        assert serious_violations(page) == []


def test_the_page_fits_a_phone(open_page: Open) -> None:
    with open_page(size=(360, 740), has_touch=True) as page:
        for tab in ("Playground", "Engine"):
            page.get_by_role("link", name=tab).click()
            page.locator(".playground, .figures").wait_for()
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, (
                f"{tab} is wider than the screen"
            )


def test_the_colour_scheme_can_be_chosen(open_page: Open) -> None:
    background = "getComputedStyle(document.documentElement).backgroundColor"
    with open_page(color_scheme="light") as page:
        light = page.evaluate(background)
        button = page.get_by_role("button", name="Colours")
        button.click()
        button.click()
        assert page.evaluate(background) != light
        page.reload()
        assert "Dark" in (button.get_attribute("aria-label") or "")
        assert page.evaluate(background) != light
