"""`octavo generate` with a scripted model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.errors import RequestError
from octavo.protocol import SamplingParams
from unit.cli.scripted import THOUGHT, RunCommand, Scripted

INTERRUPT = "<Ctrl-C>"


def test_one_prompt_streams_and_prints_figures_on_stderr(run_octavo: RunCommand, scripted: Scripted) -> None:
    llm = scripted([["Hel", "lo"]])
    ran = run_octavo("generate", "m", "-p", "one two three", "--seed", "5", "--block-size", "16", llm=llm)
    assert (ran.code, ran.out) == (0, "Hello\n")
    assert "3 tokens · " in ran.err
    assert " · prompt 3 (0 cached) · first token " in ran.err
    assert ran.err.endswith(" · seed 5\n")
    assert llm.asked == ["one two three"]
    assert llm.params == [SamplingParams(seed=5)]
    assert llm.options is not None
    assert (llm.options.model, llm.options.block_size) == ("m", 16)
    assert llm.is_closed


@pytest.mark.parametrize("command", [["generate", "-p", "x"], ["generate", "-p", "x", "-p", "y"], ["chat"]])
def test_quiet_prints_only_the_text(command: list[str], tiny_checkpoint: Path) -> None:
    """In a separate process with a real model, no component writes to stderr."""
    options = ["-q", "--log-level", "debug", "--device", "cpu", "--kv-memory", "1MiB", "--max-tokens", "3"]
    ran = subprocess.run(
        [sys.executable, "-m", "octavo.cli.main", command[0], str(tiny_checkpoint), *command[1:], *options],
        input="hello\n",
        capture_output=True,
        encoding="utf-8",
        check=True,
        env=os.environ | {"OCTAVO_BLOCK_SIZ": "1"},
    )
    assert ran.stdout
    assert ran.stderr == ""


def test_the_models_own_parameters_are_the_defaults(run_octavo: RunCommand, scripted: Scripted) -> None:
    llm = scripted([["a"]], default_params=SamplingParams(temperature=0.6, top_k=20))
    run_octavo("generate", "m", "-p", "x", "--top-k", "5", "--seed", "1", llm=llm)
    assert llm.params == [SamplingParams(temperature=0.6, top_k=5, seed=1)]


def test_each_run_has_a_new_seed_and_shows_it(run_octavo: RunCommand, scripted: Scripted) -> None:
    llm = scripted([["a"], ["b"]])
    errs = [run_octavo("generate", "m", "-p", "x", llm=llm).err for _ in range(2)]
    seeds = [params.seed for params in llm.params]
    assert seeds[0] != seeds[1]
    assert all(err.endswith(f" · seed {seed}\n") for err, seed in zip(errs, seeds, strict=True))


def test_the_prompt_can_be_piped(run_octavo: RunCommand, scripted: Scripted) -> None:
    llm = scripted([["a"], ["b"]])
    run_octavo("generate", "m", stdin="from a pipe\n\n", llm=llm)
    run_octavo("generate", "m", "-p", "-", stdin="again", llm=llm)
    assert llm.asked == ["from a pipe\n", "again"]


def test_a_missing_prompt_at_a_terminal_is_explained(run_octavo: RunCommand) -> None:
    ran = run_octavo("generate", "m", stdin=None)
    assert (ran.code, ran.err) == (2, "error: no prompt: give one with -p TEXT, or pipe it in\n")


def test_chat_applies_the_template(run_octavo: RunCommand, scripted: Scripted) -> None:
    llm = scripted([["a"]])
    run_octavo("generate", "m", "--chat", "--system", "Be brief.", "-p", "Hi", llm=llm)
    assert llm.asked == [[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]]


def test_several_prompts_and_answers_are_printed_in_order(run_octavo: RunCommand, scripted: Scripted) -> None:
    llm = scripted([["a"], ["b"], ["c"], ["d"]])
    ran = run_octavo("generate", "m", "-p", "x", "-p", "y", "-n", "2", llm=llm)
    assert ran.out == "a\nb\nc\nd\n"
    assert "prompt 2, answer 1: stop" in ran.err
    assert "4 answers · 4 tokens · " in ran.err


def test_json_is_one_object_per_answer(run_octavo: RunCommand, scripted: Scripted) -> None:
    ran = run_octavo(
        "generate", "m", "--json", "-q", "-p", "x", "-n", "2", "--seed", "9", llm=scripted([["a"], ["b"]])
    )
    first, second = (json.loads(line) for line in ran.out.splitlines())
    assert (first["text"], second["text"], second["choice"]) == ("a", "b", 1)
    assert first["token_ids"] == [0]
    assert first["finish_reason"] == "stop"
    assert first["usage"] == {"prompt_tokens": 3, "cached_tokens": 2, "completion_tokens": 1}
    timings = {"queue": 0.1, "prefill": 0.2, "decode": 0.3}
    assert first["timings"] == timings | {"chunks": [], "num_chunks_left_out": 0, "num_passed_over": 0}
    assert first["seed"] == 9
    assert first["system_fingerprint"] == "fp_0123456789ab"


@pytest.mark.parametrize("prompts", [["-p", "x"], ["-p", "x", "-p", "y"]], ids=["streamed", "together"])
def test_reasoning_is_separate_from_the_answer(
    prompts: list[str], run_octavo: RunCommand, scripted: Scripted
) -> None:
    """Reasoning goes to stderr, which --quiet leaves empty; in JSON, it has its own field."""
    answers = [[THOUGHT + "Well", THOUGHT + "...", "Yes", "!"], ["No"]][: len(prompts) // 2]
    texts = ["Yes!", "No"][: len(answers)]
    command = ["generate", "m", "--chat", *prompts]

    ran = run_octavo(*command, llm=scripted(list(answers)))
    assert ran.out.splitlines() == texts
    assert ran.err.count("Well...\n") == 1

    quiet = run_octavo(*command, "--quiet", llm=scripted(list(answers)))
    assert (quiet.out, quiet.err) == (ran.out, "")

    as_json = run_octavo(*command, "--quiet", "--json", llm=scripted(list(answers)))
    found = [json.loads(line) for line in as_json.out.splitlines()]
    assert [answer["text"] for answer in found] == texts
    assert [answer["reasoning"] for answer in found] == ["Well...", None][: len(answers)]


def test_a_rejected_request_is_a_one_line_error(run_octavo: RunCommand, scripted: Scripted) -> None:
    llm = scripted([RequestError("top_p must be a number from 0 to 1", "top_p")])
    ran = run_octavo("generate", "m", "-p", "x", "--top-p", "7", llm=llm)
    assert (ran.code, ran.out, ran.err) == (1, "", "error: top_p must be a number from 0 to 1\n")
    assert llm.is_closed


def test_ctrl_c_keeps_the_printed_text_and_exits_130(run_octavo: RunCommand, scripted: Scripted) -> None:
    llm = scripted([["a", INTERRUPT, "b", "c"]])
    ran = run_octavo("generate", "m", "-p", "x", llm=llm)
    assert (ran.code, ran.out) == (130, "a\n")
    assert "Traceback" not in ran.err
    assert llm.num_given_up == 1
    assert llm.is_closed


def test_ctrl_c_before_the_first_token(run_octavo: RunCommand, scripted: Scripted) -> None:
    llm = scripted([[INTERRUPT, "never"]])
    ran = run_octavo("generate", "m", "-p", "x", llm=llm)
    assert (ran.code, ran.out) == (130, "\n")
    assert llm.is_closed
