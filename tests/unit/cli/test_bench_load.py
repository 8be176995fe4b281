"""The arguments of `octavo bench serve` and `sweep`, and their errors."""

import io
import re
import sys
from pathlib import Path

import pytest

from data.json_types import JsonObject
from octavo.bench.serve import Slo, Steady
from octavo.cli import bench_serve
from octavo.cli.bench_load import bar, slo_from, workload_from
from octavo.cli.main import build_parser
from octavo.cli.terminal import Terminal
from unit.bench.serve.fake_server import FakeServer, running
from unit.cli.scripted import RunCommand

URL = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["serve"], "no URL: name the server"),
        (["serve", URL, "--workload", "prefil"], r"unknown workload 'prefil'.*did you mean prefill"),
        (["serve", URL, "--requests", "0"], "--requests must be a whole number"),
        (["serve", URL, "--shared", "-1"], "--shared must be a whole number"),
        (["serve", URL, "--arrivals", "4"], "is not an arrival pattern"),
        (["serve", URL, "--prompt", "x"], "is not a length"),
        (["serve", URL, "--slo-ttft", "500"], "--slo-ttft '500' is not a time; give one such as 200ms"),
        (["serve", URL, "--body", "[1]"], r"--body '\[1\]' is not a JSON object"),
        (["serve", URL, "--html", "/no/such/folder/x.html"], "the folder /no/such/folder does not exist"),
        (["sweep", URL, "--from", "9", "--to", "3"], "--from must be above 0 and at most --to"),
        (["sweep", URL, "--attain", "2"], "--attain must be above 0 and at most 1"),
    ],
)
def test_invalid_arguments_are_rejected_before_sending(
    argv: list[str], error: str, run_octavo: RunCommand
) -> None:
    ran = run_octavo("bench", *argv)
    assert ran.code == 2
    assert re.search(error, ran.err), ran.err


def test_an_unreachable_server_is_a_one_line_error(run_octavo: RunCommand) -> None:
    ran = run_octavo("bench", "serve", URL)
    assert ran.code == 1
    assert "cannot connect to http://127.0.0.1:1/v1" in ran.err


def test_flags_change_a_workload() -> None:
    argv = ["bench", "serve", URL, "--workload", "prefix_caching", "--prompt", "5", "--shared", "7"]
    args = build_parser().parse_args([*argv, "--slo-itl", "20ms", "--slo-e2e", "1.5s"])
    workload = workload_from(args)
    assert (workload.shared, str(workload.prompt), str(workload.output)) == (7, "5", "32")
    assert workload.arrivals == Steady(8.0)
    assert slo_from(args) == Slo(itl=0.02, e2e=1.5)


def test_the_api_key_from_the_environment_is_sent(
    run_octavo: RunCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-env")
    small = ("--workload", "baseline", "--requests", "2", "--prompt", "3", "--output", "2")
    with running(FakeServer()) as server:
        ran = run_octavo("bench", "serve", server.url, *small, "--json", str(tmp_path / "load.json"))
        assert set(server.keys) == {"bearer sk-env"}
    assert ran.code == 0
    assert "sk-env" not in ran.out + ran.err + (tmp_path / "load.json").read_text()


def test_failed_requests_set_the_exit_code(run_octavo: RunCommand) -> None:
    def refuse(fields: JsonObject) -> tuple[int, str] | None:
        return (500, "no") if len(server.asked) == 2 else None

    with running(FakeServer(refuse=refuse)) as server:
        ran = run_octavo("bench", "serve", server.url, "--workload", "baseline", "--requests", "2")
    assert ran.code == 1
    assert "1 succeeded, 1 failed" in ran.out
    assert "1 of 2 requests failed" in ran.err


def test_the_ceiling_is_printed(run_octavo: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_serve, "CEILINGS", ((2, 4, 8),))
    ran = run_octavo("bench", "serve", "--ceiling")
    assert ran.code == 0
    assert re.search(r"^ +2 +4 +[\d,]+ +[\d,]+ +[\d,]+$", ran.out, re.MULTILINE)


def test_the_progress_bar_is_shown_only_on_a_terminal() -> None:
    from octavo.bench.serve import Progress

    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, is_shown in ((Screen(), True), (io.StringIO(), False)):
        terminal = Terminal(sys.stdin, sys.stdout, stream, {})
        with bar(terminal, quiet=False) as watch:
            assert (watch is not None) == is_shown
            if watch is not None:
                watch(Progress(8, 5, 3, 1, 200, 2.0))
        assert ("3/8" in stream.getvalue()) == is_shown
    assert "failed=1" in _last_bar(Screen())


def _last_bar(screen: io.StringIO) -> str:
    from octavo.bench.serve import Progress

    with bar(Terminal(sys.stdin, sys.stdout, screen, {}), quiet=False) as watch:
        assert watch is not None
        watch(Progress(8, 5, 3, 1, 200, 2.0))
        return screen.getvalue()
