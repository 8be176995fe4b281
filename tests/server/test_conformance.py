"""`octavo check` passes on Octavo's server and finds every planted fault.

A faulty server is a real one with a wrapper that corrupts its replies. Each fault names the checks that must
find it, and each check finds at least one fault, so no check passes unconditionally.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from data.json_types import Json
from octavo.cli.main import main
from octavo.conformance.check import Check, CheckOutcome, run_check
from octavo.conformance.suite import ALL_CHECKS
from octavo.conformance.target import CheckTarget
from octavo.conformance.transport import HttpTransport, Reply, Request, Transport

pytestmark = pytest.mark.xdist_group("server")

KEY = "a-key-for-tests"
SERVER_PAGE = Path(__file__).parents[2] / "docs" / "server.md"
Spoil = Callable[[Request, Reply], Reply]


def named(group: str, name: str) -> Check:
    (check,) = (check for check in ALL_CHECKS if (check.group, check.name) == (group, name))
    return check


def spoiled(transport: Transport, spoil: Spoil) -> Transport:
    return lambda request: spoil(request, transport(request))


# --- ways to corrupt a reply


def body(change: Callable[[Json], object]) -> Spoil:
    """Change every JSON object of a reply: the answer, or each event of a stream."""

    def spoil(request: Request, reply: Reply) -> Reply:
        return replace(reply, body=with_objects(reply.body, lambda found: change(found) or found))

    return spoil


def with_objects(content: bytes, change: Callable[[Json], object]) -> bytes:
    if not content.startswith((b"data:", b"event:", b":")):
        return json.dumps(change(json.loads(content))).encode()
    lines = content.split(b"\n")
    for at, line in enumerate(lines):
        if line.startswith(b"data: {"):
            lines[at] = b"data: " + json.dumps(change(json.loads(line[6:]))).encode()
    return b"\n".join(lines)


def field(path: str, value: object) -> Spoil:
    """Set one field in every object that has it. A path such as `choices.finish_reason` traverses lists."""

    def change(found: Json) -> None:
        *parents, name = path.split(".")
        for one in reached(found, parents):
            if isinstance(one, dict) and name in one:
                if value is GONE:
                    del one[name]
                else:
                    one[name] = value(one[name]) if callable(value) else value

    return body(change)


GONE = object()


def reached(found: Json, path: list[str]) -> list[Json]:
    if isinstance(found, list):
        return [one for item in found for one in reached(item, path)]
    if not path:
        return [found]
    return reached(found[path[0]], path[1:]) if isinstance(found, dict) and found.get(path[0]) else []


def header(name: str, value: str | None) -> Spoil:
    def spoil(request: Request, reply: Reply) -> Reply:
        kept = {key: one for key, one in reply.headers.items() if key != name}
        return replace(reply, headers=kept if value is None else kept | {name: value})

    return spoil


def status(found: int, shown: int) -> Spoil:
    return lambda request, reply: replace(reply, status=shown) if reply.status == found else reply


def events(change: Callable[[list[bytes]], list[bytes]]) -> Spoil:
    def spoil(request: Request, reply: Reply) -> Reply:
        if not reply.body.startswith(b"data:"):
            return reply
        return replace(reply, body=b"\n\n".join(change(reply.body.split(b"\n\n"))))

    return spoil


def ignoring(name: str) -> Callable[[Transport], Transport]:
    """A server that accepts a field and ignores it."""

    def wrap(transport: Transport) -> Transport:
        def ask(request: Request) -> Reply:
            if request.body.startswith(b"{") and request.body.endswith(b"}"):
                fields = json.loads(re.sub(rb"\bNaN\b", b"null", request.body))
                fields.pop(name, None)
                request = replace(request, body=json.dumps(fields).encode())
            return transport(request)

        return ask

    return wrap


def deaf_to_developers(transport: Transport) -> Transport:
    def ask(request: Request) -> Reply:
        fields = json.loads(request.body)
        fields["messages"] = [one for one in fields["messages"] if one["role"] != "developer"]
        return transport(replace(request, body=json.dumps(fields).encode()))

    return ask


def forgetful(transport: Transport) -> Transport:
    """Answers change from one request to the next, even with a seed."""
    count = iter(range(10**6))
    text = body(
        lambda found: [one.update(text=f"{next(count)}") for one in found.get("choices", [])] and None
    )
    message = field("choices.message.content", lambda _: f"{next(count)}")
    numbers = field("choices.logprobs.content.logprob", lambda _: -1.0 - next(count))
    return spoiled(spoiled(spoiled(transport, text), message), numbers)


def constant(transport: Transport) -> Transport:
    return spoiled(transport, field("choices.message.content", "always the same"))


def without_key(transport: Transport) -> Transport:
    """A server that does not check keys."""
    return lambda request: transport(
        replace(request, headers={"authorization": f"Bearer {KEY}", **JSON_BODY})
    )


def with_system_text_only(transport: Transport) -> Transport:
    """A server that ignores system blocks."""

    def ask(request: Request) -> Reply:
        if b'"system"' in request.body:
            fields = json.loads(request.body)
            if isinstance(fields["system"], list):
                del fields["system"]
            request = replace(request, body=json.dumps(fields).encode())
        return transport(request)

    return ask


def renamed_event(name: bytes) -> Spoil:
    """The name of an event is not its type."""
    return lambda request, found: replace(found, body=found.body.replace(b"event: " + name, b"event: some"))


def never_missing(request: Request, found: Reply) -> Reply:
    return replace(found, status=200) if request.method == "GET" and found.status == 404 else found


JSON_BODY: Mapping[str, str] = {"content-type": "application/json"}


@dataclass(frozen=True)
class Fault:
    """`wrap` makes a server faulty; `found_by` lists the checks that must fail on it."""

    name: str
    wrap: Callable[[Transport], Transport]
    found_by: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return self.name


def fault(name: str, wrap: Callable[[Transport], Transport], *found_by: str) -> Fault:
    return Fault(
        name, wrap, tuple((group, check) for group, _, check in (one.partition(": ") for one in found_by))
    )


def reply(name: str, spoil: Spoil, *found_by: str) -> Fault:
    return fault(name, lambda transport: spoiled(transport, spoil), *found_by)


def once_more(payloads: list[bytes]) -> list[bytes]:
    """Repeat the last chunk, which has the finish_reason. After it come [DONE] and the end."""
    return [*payloads[:-2], payloads[-3], *payloads[-2:]]


def in_one_piece(payloads: list[bytes]) -> list[bytes]:
    chunks = [json.loads(payload[6:]) for payload in payloads[:-2]]
    joined = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    for chunk in chunks[1:]:
        chunk["choices"][0]["delta"] = {}
    chunks[0]["choices"][0]["delta"]["content"] = joined
    return [*(b"data: " + json.dumps(chunk).encode() for chunk in chunks), *payloads[-2:]]


def overflow_is_cut(request: Request, found: Reply) -> Reply:
    """As servers that truncate a prompt silently."""
    too_long = b"context_length_exceeded" in found.body
    return replace(found, status=200, body=b"{}") if too_long else found


FAULTS = (
    reply("object is a page", field("object", "page"), "models: list", "models: get"),
    reply("models without owned_by", field("owned_by", GONE), "models: get"),
    reply(
        "404 as 200", status(404, 200), "models: 404 for an unknown model", "errors: 404 for an unknown path"
    ),
    reply("404 as 400", status(404, 400), "errors: 404 model_not_found"),
    reply(
        "another model's name",
        field("model", "gpt"),
        "completions: response shape",
        "chat: response shape",
    ),
    reply("no created", field("created", GONE), "chat: response shape", "streams: chunk shape"),
    reply(
        "usage is one off",
        field("usage.total_tokens", lambda total: total + 1),
        "completions: usage adds up",
        "chat: usage adds up",
        "streams: include_usage",
    ),
    reply("counts of text", field("usage.prompt_tokens", 9), "chat: roles", "completions: token ids"),
    fault("max_tokens", ignoring("max_tokens"), "completions: max_tokens"),
    fault("max_completion_tokens", ignoring("max_completion_tokens"), "chat: max_completion_tokens"),
    fault("no echo", ignoring("echo"), "completions: echo", "completions: logprobs of the prompt"),
    fault(
        "no stop",
        ignoring("stop"),
        "completions: stop",
        "chat: stop",
        "streams: stop",
    ),
    fault("no n", ignoring("n"), "completions: n", "chat: n", "streams: n"),
    reply(
        "no logprobs",
        field("choices.logprobs", None),
        "completions: logprobs",
        "chat: logprobs",
        "streams: logprobs",
    ),
    reply("choices in disorder", field("choices.index", 0), "completions: list of prompts"),
    reply(
        "offsets fall",
        field("choices.logprobs.text_offset", lambda found: found[::-1]),
        "completions: logprobs",
    ),
    reply(
        "a logprob for the first token",
        field("choices.logprobs.token_logprobs", lambda found: [-1.0, *found[1:]]),
        "completions: logprobs of the prompt",
    ),
    reply("positive logprobs", field("choices.logprobs.content.logprob", 0.5), "chat: logprobs"),
    reply("no bytes", field("choices.logprobs.content.bytes", GONE), "chat: logprobs"),
    reply("no role", field("choices.message.role", GONE), "chat: response shape"),
    reply("no role in a stream", field("choices.delta.role", GONE), "streams: chunk shape"),
    reply("finish_reason is done", field("choices.finish_reason", "done"), "chat: response shape"),
    reply("no content-type", header("content-type", None), "streams: content-type"),
    reply("cached streams", header("cache-control", "max-age=9"), "streams: anti-buffering headers"),
    reply("all in one piece", events(in_one_piece), "streams: text arrives in pieces"),
    reply(
        "no [DONE]",
        events(lambda payloads: [*payloads[:-2], b""]),
        "streams: one finish_reason, then [DONE]",
        "streams: include_usage",
        "completions: streamed",
    ),
    reply("the last chunk twice", events(once_more), "streams: one finish_reason, then [DONE]", "streams: n"),
    reply(
        "a chunk is lost",
        events(lambda payloads: payloads[:1] + payloads[2:]),
        "streams: temperature 0: same as unstreamed",
        "streams: seed: same as unstreamed",
        "completions: streamed",
    ),
    reply("usage in every chunk", field("usage", {}), "streams: include_usage"),
    fault("no include_usage", ignoring("stream_options"), "streams: include_usage"),
    reply(
        "422",
        status(400, 422),
        "errors: 400 with param: invalid value",
        "errors: 400 with param: invalid type",
        "errors: 400 with param: missing field",
        "errors: 400 for malformed JSON",
        "errors: 400 before a stream",
        "errors: odd chats: never 422 or 5xx",
        "errors: odd completions: never 422 or 5xx",
        "errors: odd bodies: never 422 or 5xx",
    ),
    reply(
        "500", status(400, 500), "errors: odd chats: never 422 or 5xx", "errors: odd bodies: never 422 or 5xx"
    ),
    reply(
        "no param",
        field("error.param", None),
        "errors: 400 with param: invalid value",
        "errors: 400 with param: missing field",
    ),
    reply("the code is a number", field("error.code", 400), "errors: 400 for malformed JSON"),
    reply("errors of another shape", field("error", "no"), "errors: 404 model_not_found"),
    reply("a prompt is cut", overflow_is_cut, "errors: 400 context_length_exceeded"),
    fault("keys are not checked", without_key, "errors: 401 without a valid key"),
    reply("one id for all", field("id", "chatcmpl-1"), "ids: unique response ids"),
    reply("one x-request-id for all", header("x-request-id", "1"), "ids: x-request-id"),
    fault(
        "answers change",
        forgetful,
        "repeats: chat with a seed",
        "repeats: completion with a seed",
        "repeats: 8 concurrent: temperature 0",
        "repeats: 8 concurrent: chats with seeds",
        "repeats: 8 concurrent: completions with seeds",
        "repeats: 8 concurrent: logprobs",
        "chat: text parts",
        "chat: ignored and unknown fields",
    ),
    fault(
        "one answer for all",
        constant,
        "repeats: different seeds, different answers",
        "repeats: no seed, different answers",
    ),
    reply("messages by a user", field("role", "user"), "messages: response shape"),
    reply(
        "another text in messages",
        field("content.text", lambda text: text + "!"),
        "messages: same answer as chat",
        "messages: streamed as unstreamed",
    ),
    fault("no system blocks", with_system_text_only, "messages: text and blocks"),
    reply(
        "every message ends its turn",
        field("stop_reason", "end_turn"),
        "messages: max_tokens",
        "messages: tools",
    ),
    fault("no stop_sequences", ignoring("stop_sequences"), "messages: stop_sequences"),
    reply("nine input tokens", field("input_tokens", 9), "messages: count_tokens"),
    reply("another name of an event", renamed_event(b"message_stop"), "messages: order of events"),
    reply("errors of another type", field("error.type", "wrong"), "messages: errors"),
    fault("any x-api-key", without_key, "messages: x-api-key"),
    reply("no display_name", field("data.display_name", GONE), "messages: models"),
    fault("no forced calls", ignoring("tool_choice"), "messages: tools", "responses: tools"),
    reply("done responses", field("status", "done"), "responses: response shape"),
    reply(
        "another text in responses",
        field("output.content.text", lambda text: text + "!"),
        "responses: same answer as chat",
        "responses: streamed as unstreamed",
    ),
    fault("no max_output_tokens", ignoring("max_output_tokens"), "responses: max_output_tokens"),
    reply("another input", field("output.input", "<a"), "responses: custom tools"),
    fault("no text.format", ignoring("text"), "responses: text.format"),
    reply("another first event", renamed_event(b"response.created"), "responses: order of events"),
    reply("everything is stored", never_missing, "responses: stored responses", "responses: store: false"),
    fault("the developer role is ignored", deaf_to_developers, "chat: role developer"),
)


@pytest.fixture(scope="module")
def target(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CheckTarget]:
    """Octavo's server, with a key."""
    from server.process import Server

    flags = ("--kv-memory", "4MiB", "--served-model-name", "tiny", "--api-key", KEY)
    running = Server(tmp_path_factory.mktemp("conformance"), tiny_checkpoint, *flags)
    try:
        running.wait_until_ready()
        yield CheckTarget(HttpTransport.to(running.url, 30), "tiny", KEY)
    finally:
        running.stop()


@pytest.mark.parametrize("check", ALL_CHECKS, ids=lambda check: f"{check.group}: {check.name}")
def test_octavo_passes_the_check(check: Check, target: CheckTarget) -> None:
    result = run_check(check, target)
    assert (result.outcome, result.detail) == (CheckOutcome.PASSED, "")


@pytest.mark.parametrize("broken", FAULTS, ids=str)
def test_every_planted_fault_is_found(broken: Fault, target: CheckTarget) -> None:
    server = replace(target, transport=broken.wrap(target.transport))
    for group, name in broken.found_by:
        result = run_check(named(group, name), server)
        assert result.outcome == CheckOutcome.FAILED, f"{group}: {name}: {result}"
        assert 0 < len(result.detail) <= 120


def test_every_check_finds_at_least_one_fault() -> None:
    found = {one for broken in FAULTS for one in broken.found_by}
    assert {(check.group, check.name) for check in ALL_CHECKS} == found


def test_an_explicit_rejection_counts_as_not_supported(target: CheckTarget) -> None:
    def without_echo(request: Request) -> Reply:
        if b'"echo"' not in request.body:
            return target.transport(request)
        error = {
            "message": "echo is not supported",
            "type": "invalid_request_error",
            "param": "echo",
            "code": None,
        }
        return Reply(400, {}, json.dumps({"error": error}).encode())

    result = run_check(named("completions", "echo"), replace(target, transport=without_echo))
    assert (result.outcome, result.detail) == (
        CheckOutcome.NOT_SUPPORTED,
        "status 400: echo is not supported",
    )
    crashed = lambda request: replace(without_echo(request), status=500)  # noqa: E731
    assert (
        run_check(named("completions", "echo"), replace(target, transport=crashed)).outcome
        == CheckOutcome.FAILED
    )


def test_the_documented_command(
    target: CheckTarget, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert isinstance(target.transport, HttpTransport)
    file = tmp_path / "results.json"
    typed = re.search(r"<!-- test: check -->\n```console\n\$ octavo (.*)\n```", SERVER_PAGE.read_text())
    assert typed is not None
    replaced = {"http://127.0.0.1:8000": target.transport.url, "smollm2": target.model}
    arguments = [replaced.get(word, word) for word in typed[1].split()]
    assert target.transport.url in arguments
    code = main([*arguments, "--api-key", KEY, "--json", str(file)])
    printed = capsys.readouterr()
    assert code == 0, printed.out
    assert f"{len(ALL_CHECKS)} passed, 0 failed, 0 not supported" in printed.err
    lines = printed.out.splitlines()
    assert len(lines) == 1 + len(ALL_CHECKS)
    assert (
        len({line.index(word) for line, word in zip(lines[1:], ["passed"] * len(lines), strict=False)}) == 1
    )
    written = json.loads(file.read_text())
    assert (written["model"], len(written["checks"])) == ("tiny", len(ALL_CHECKS))
    assert KEY not in file.read_text() + printed.out + printed.err


def test_the_command_reports_failed_checks(target: CheckTarget, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the key, most checks fail. The exit code shows this, and each row has the reason."""
    assert isinstance(target.transport, HttpTransport)
    assert main(["check", target.transport.url, "--model", "tiny"]) == 1
    printed = capsys.readouterr()
    assert re.search(r"^chat +response shape +failed +\d+  status 401: ", printed.out, re.MULTILINE)


def test_an_unreachable_server_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "http://127.0.0.1:1"]) == 1
    assert "cannot be reached" in capsys.readouterr().err
    assert main(["check", "ftp://somewhere"]) == 2
