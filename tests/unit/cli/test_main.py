"""The `octavo` command: help without torch, flags for every option, one-line errors, exit codes."""

import json
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import octavo
from data.json_types import JsonObject
from octavo import LLM
from octavo.cli.flags import CHAT_SAMPLING_FLAGS, SAMPLING_FLAGS, SamplingFlag, sampling_value
from octavo.cli.main import build_parser, main
from octavo.config import EngineOptions, OptionSpec, ReplicaOptions, ServerOptions, option_specs
from octavo.errors import CapacityError, ConfigError, OctavoError
from octavo.protocol import GrammarKind, GrammarSpec, SamplingParams
from unit.cli.scripted import RunCommand

# Modules that help and config must not load: argparse, msgspec and pydantic are sufficient.
HEAVY_MODULES = ("torch", "numpy", "tokenizers", "gguf", "huggingface_hub", "jinja2", "yaml", "tqdm")
CHECK_LIGHT = f"""
import sys
from octavo.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print([name for name in {HEAVY_MODULES!r} if name in sys.modules], file=sys.stderr)
"""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True, env=environ
    )


@pytest.mark.parametrize("argv", [["--help"], ["generate", "--help"], ["config", "show"]], ids=" ".join)
def test_help_and_config_import_nothing_heavy(argv: list[str]) -> None:
    assert python("-c", CHECK_LIGHT, *argv).stderr.strip() == "[]"


# Modules that are imported after the engine process has started, while the engine imports its own.
FOR_LATER = ("uvloop", "zmq", "fastapi", "uvicorn", "prometheus_client", "octavo.frontend.hub")
CHECK_EARLY = f"""
import subprocess, sys
from octavo.cli.main import main

def start(command, **settings):
    print([name for name in {(*HEAVY_MODULES, *FOR_LATER)!r} if name in sys.modules])
    sys.exit("octavo.engine.process" not in command)

subprocess.Popen = start
main(["serve", "some-model.gguf", "--port", "0"])
"""


def test_serve_starts_its_engine_before_heavy_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert python("-c", CHECK_EARLY).stdout.strip() == "[]"


# The CPU time of a command is compared with that of the imports it needs, measured in turn: absolute times
# depend on the machine.
ARGPARSE = "import argparse, logging, dataclasses"
PYDANTIC = (
    ARGPARSE
    + """, pydantic, msgspec
class Options(pydantic.BaseModel):
    size: int
"""
)


@pytest.mark.parametrize(("argv", "needed"), [(["--help"], ARGPARSE), (["config", "show"], PYDANTIC)])
def test_help_and_config_take_little_more_than_their_imports(
    argv: list[str], needed: str, figure: Callable[[str], None]
) -> None:
    """A command takes a bounded multiple of its imports. It has one thread and does not wait, so its CPU time
    is what a user waits for on an idle machine."""
    ratios = []
    for _ in range(5):
        least = processor_seconds("-c", needed)
        ratios.append(processor_seconds("-m", "octavo.cli.main", *argv) / least)
    figure(f"octavo {' '.join(argv)}: {statistics.median(ratios):.2f} times its imports ({least:.3f} s)")
    assert statistics.median(ratios) < 2 * 2


def processor_seconds(*arguments: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    python(*arguments)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def example_of(spec: OptionSpec) -> list[str]:
    examples = {"N": "99", "X": "0.5", "SIZE": "3MiB", "TEXT": "abc"}
    if spec.is_switch:
        return [f"--no-{spec.flag.removeprefix('--')}"]
    if spec.name == "speculate":  # a text with a pattern
        return [spec.flag, "draft:small.gguf"]
    return [spec.flag, examples.get(spec.metavar) or spec.metavar.split("|")[-1]]


@pytest.mark.parametrize("spec", option_specs(), ids=lambda spec: spec.name)
def test_every_option_has_a_flag_a_variable_and_a_key(
    spec: OptionSpec, run_octavo: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag, value = spec.flag, (["false"] if spec.is_switch else example_of(spec))[-1]
    path = tmp_path / "c.yaml"
    path.write_text(f"{spec.name}: {value}\n")

    def shown(*argv: str) -> JsonObject:
        fact: JsonObject = json.loads(run_octavo("config", "show", "--json", *argv).out)[spec.name]
        return fact

    by_flag, by_file = shown(*example_of(spec)), shown("--config", str(path))
    monkeypatch.setenv(spec.variable, value)
    by_variable = shown()
    assert by_flag["value"] == by_file["value"] == by_variable["value"] != spec.default
    assert [by_flag["origin"], by_file["origin"], by_variable["origin"]] == [
        f"flag {flag}",
        f"file {path}:{spec.name}",
        f"environment {spec.variable}",
    ]


def test_config_show_hides_the_key(run_octavo: RunCommand) -> None:
    for arguments in ((), ("--json",)):
        ran = run_octavo("config", "show", "--api-key", "a-secret", *arguments)
        assert "a-secret" not in ran.out
        assert "(hidden)" in ran.out


def test_config_show_prints_values_and_origins(
    run_octavo: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_THREADS", "2")
    monkeypatch.setenv("OCTAVO_THREAD", "2")
    ran = run_octavo("config", "show", "--kv-memory", "1KiB", "--no-prefix-caching")
    rows = [line.split(maxsplit=2) for line in ran.out.splitlines()]
    assert rows[0] == ["option", "value", "origin"]
    specs = [spec for kind in (EngineOptions, ServerOptions, ReplicaOptions) for spec in option_specs(kind)]
    assert [row[0] for row in rows[1:]] == [spec.name for spec in specs]
    assert ["threads", "2", "environment OCTAVO_THREADS"] in rows
    assert ["kv_memory", "1024", "flag --kv-memory"] in rows
    assert ["prefix_caching", "false", "flag --prefix-caching"] in rows
    assert ["model", "none", "default"] in rows
    assert ran.err == "warning: OCTAVO_THREAD is set but is not an option; did you mean OCTAVO_THREADS?\n"


def test_every_sampling_parameter_has_a_flag() -> None:
    assert sorted(flag.field for flag in SAMPLING_FLAGS) == sorted(SamplingParams.__struct_fields__)
    typed = "--temperature 0 --stop a --stop b --logit-bias 5=-1.5 -n 2 --stop-token-id 7 --ignore-eos"
    typed += " --no-skip-special-tokens --seed none --top-k 4 --grammar regex=a=b"
    args = build_parser().parse_args(["generate", *typed.split()])
    given = {
        name: sampling_value(name, value)
        for name, value in vars(args).items()
        if hasattr(SamplingParams, name)
    }
    assert given == {
        "temperature": 0.0,
        "stop": ("a", "b"),
        "logit_bias": {5: -1.5},
        "n": 2,
        "stop_token_ids": (7,),
        "ignore_eos": True,
        "skip_special_tokens": False,
        "seed": None,
        "top_k": 4,
        "grammar": GrammarSpec(GrammarKind.REGEX, "a=b"),
    }
    assert sampling_value("grammar", "json_object") == GrammarSpec(GrammarKind.JSON_OBJECT)
    with pytest.raises(ConfigError, match="a kind and its text"):
        sampling_value("grammar", "poetry=rhymes")


NOT_TEXT = [flag for flag in SAMPLING_FLAGS if flag.metavar != "TEXT"]


@pytest.mark.parametrize("flag", NOT_TEXT, ids=lambda flag: flag.field)
def test_invalid_sampling_values_are_explained(flag: SamplingFlag) -> None:
    with pytest.raises(ConfigError, match=f"{flag.field}: 'x' is not allowed; give "):
        sampling_value(flag.field, ["x"] if flag.is_repeated else "x")


def test_chat_omits_flags_for_several_answers_and_logprobs() -> None:
    missing = {flag.field for flag in SAMPLING_FLAGS} - {flag.field for flag in CHAT_SAMPLING_FLAGS}
    assert missing == {"n", "logprobs", "prompt_logprobs"}


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (
            ["generate", "-p", "x"],
            "error: no model: name one, as in 'octavo generate MODEL', or set OCTAVO_MODEL",
        ),
        (["generate", "m", "--model", "other", "-p", "x"], "error: MODEL is 'm' but --model is 'other'"),
        (["generate", "m", "--checkpoint-path", "p", "-p", "x"], "error: both flag --model ('m') and flag"),
        (
            ["generate", "m", "-p", "x", "--block-size", "x"],
            "error: flag --block-size: 'x' is not allowed; give",
        ),
        (["generate", "m", "-p", "x", "--system", "y"], "error: --system needs a chat: add --chat"),
        (["generate", "m", "-p", "-", "-p", "-"], "error: -p - reads all of stdin"),
        (["inspect"], "error: no model"),
        (
            ["config", "show", "--config", "absent.yaml"],
            "error: cannot read the config file absent.yaml: No such file",
        ),
    ],
)
def test_usage_errors_are_one_line_and_exit_2(argv: list[str], expected: str, run_octavo: RunCommand) -> None:
    ran = run_octavo(*argv)
    assert ran.code == 2
    assert ran.err.startswith(expected)
    assert ran.err.count("\n") == 1
    assert ran.out == ""


def test_flags_cannot_be_abbreviated(run_octavo: RunCommand) -> None:
    ran = run_octavo("config", "show", "--block-siz", "3")
    assert ran.code == 2
    assert "unrecognized arguments: --block-siz" in ran.err


def test_other_errors_exit_1_and_debug_shows_the_traceback(run_octavo: RunCommand) -> None:
    def fails(options: EngineOptions, *, progress: bool) -> LLM:
        raise CapacityError("too small")

    assert main(["generate", "m", "-p", "x"], open_model=fails) == 1
    with pytest.raises(OctavoError):
        main(["generate", "m", "-p", "x", "--debug"], open_model=fails)


def test_undecodable_input_and_unencodable_output() -> None:
    command = [sys.executable, "-m", "octavo.cli.main", "generate", "m"]
    environ = os.environ | {"PYTHONIOENCODING": "utf-8"}
    ran = subprocess.run(command, input=b"caf\xe9", capture_output=True, check=False, env=environ)
    assert (ran.returncode, ran.stderr) == (2, b"error: stdin is not utf-8 text (byte 3): convert it first\n")
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "octavo.cli.main", "config", "show", "--model", "caf\u00e9"]
    ran = subprocess.run(command, capture_output=True, check=True, env=ascii_only)
    assert b"caf?" in ran.stdout


def test_version(run_octavo: RunCommand) -> None:
    assert run_octavo("--version").out == f"octavo {octavo.__version__}\n"


def test_a_closed_output_pipe_is_not_an_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ran = subprocess.run(
        [sys.executable, "-m", "octavo.cli.main", "config", "show"],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    assert (ran.returncode, ran.stderr) == (141, "")
