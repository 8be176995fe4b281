"""`octavo chat` with a scripted model and piped input."""

import io
import json
from pathlib import Path

import pytest

from octavo.cli.chat import COMMANDS
from octavo.cli.terminal import Terminal, TextStyle
from octavo.errors import RequestError
from unit.cli.scripted import THOUGHT, RunCommand, Scripted

INTERRUPT = "<Ctrl-C>"


def contents(messages: list[dict[str, str]]) -> list[str]:
    return [message["content"] for message in messages]


def test_a_conversation_continues_and_cache_hits_are_shown(
    run_octavo: RunCommand, scripted: Scripted
) -> None:
    llm = scripted([["Hi", " there"], ["Fine"]])
    ran = run_octavo("chat", "m", "--seed", "3", stdin="Hello you\nHow are you?\n", llm=llm)
    assert (ran.code, ran.out) == (0, "Hi there\nFine\n")
    assert contents(llm.asked[1]) == ["Hello you", "Hi there", "How are you?"]
    first, second = ran.err.splitlines()
    assert "prompt 2 (0 cached)" in first
    assert "prompt 7 (4 cached)" in second
    assert llm.is_closed


def test_reasoning_is_not_part_of_the_answer(run_octavo: RunCommand, scripted: Scripted) -> None:
    thinking = [THOUGHT + "Well", THOUGHT + "...", "Yes", "!"]
    llm = scripted([thinking, ["No"]])
    ran = run_octavo("chat", "m", stdin="Is it?\nSure?\n", llm=llm)
    assert ran.out == "Yes!\nNo\n"
    assert ran.err.startswith("Well...\n\n")
    assert llm.asked[1][1] == {"role": "assistant", "content": "Yes!", "reasoning_content": "Well..."}
    quiet = run_octavo("chat", "m", "--quiet", stdin="Is it?\n", llm=scripted([thinking]))
    assert (quiet.out, quiet.err) == ("Yes!\n", "")


def test_multi_line_messages(run_octavo: RunCommand, scripted: Scripted) -> None:
    llm = scripted([["a"], ["b"], ["c"]])
    stdin = 'one \\\ntwo\n"""three\n  four"""\n"""\nfive\n\nsix\n"""\n'
    run_octavo("chat", "m", stdin=stdin, llm=llm)
    assert [contents(asked)[-1] for asked in llm.asked] == ["one \ntwo", "three\n  four", "five\n\nsix"]


@pytest.mark.parametrize("stdin", ["a\\", '"""a', '"""a\n'])
def test_the_end_of_input_ends_a_message(stdin: str, run_octavo: RunCommand, scripted: Scripted) -> None:
    llm = scripted([["x"]])
    assert run_octavo("chat", "m", stdin=stdin, llm=llm).code == 0
    assert contents(llm.asked[0]) == ["a"]


def test_ctrl_c_stops_the_answer_but_not_the_program(run_octavo: RunCommand, scripted: Scripted) -> None:
    llm = scripted([["Once", " upon", INTERRUPT, " a", " time"], ["Yes"]])
    ran = run_octavo("chat", "m", stdin="Tell me\nGo on\n", llm=llm)
    assert (ran.code, ran.out) == (0, "Once upon\nYes\n")
    assert contents(llm.asked[1]) == ["Tell me", "Once upon", "Go on"]
    assert "stopped" in ran.err
    assert llm.num_given_up == 1


def test_ctrl_c_before_the_first_token_removes_the_message(
    run_octavo: RunCommand, scripted: Scripted
) -> None:
    llm = scripted([[INTERRUPT, "never"], ["Yes"]])
    ran = run_octavo("chat", "m", stdin="A long one\nA short one\n", llm=llm)
    assert (ran.code, ran.out) == (0, "\nYes\n")
    assert contents(llm.asked[1]) == ["A short one"]
    assert ran.err.splitlines()[0].startswith("0 tokens · prompt 3 (0 cached) · ")
    assert ran.err.splitlines()[0].endswith(" · stopped")


def test_an_error_ends_the_turn_and_removes_the_message(run_octavo: RunCommand, scripted: Scripted) -> None:
    llm = scripted([["a"], RequestError("too long"), ["c"]])
    ran = run_octavo("chat", "m", "-q", stdin="1\n2\n3\n", llm=llm)
    assert (ran.code, ran.out, ran.err) == (0, "a\nc\n", "error: too long\n")
    assert contents(llm.asked[2]) == ["1", "a", "3"]


def test_regenerate_undo_reset_and_system(run_octavo: RunCommand, scripted: Scripted) -> None:
    llm = scripted([["a"], ["b"], ["c"], ["d"], ["e"]])
    stdin = "1\n/regenerate\n2\n/undo\n3\n/reset\n/system Be kind.\n4\n/quit\nnever asked\n"
    ran = run_octavo("chat", "m", "-q", "--system", "S", stdin=stdin, llm=llm)
    assert ran.code == 0
    assert [contents(asked) for asked in llm.asked] == [
        ["S", "1"],
        ["S", "1"],
        ["S", "1", "b", "2"],
        ["S", "1", "b", "3"],
        ["Be kind.", "4"],
    ]
    assert llm.params[0].seed != llm.params[1].seed


def test_a_failed_regenerate_keeps_the_old_answer(run_octavo: RunCommand, scripted: Scripted) -> None:
    llm = scripted([["a"], RequestError("no"), ["c"]])
    run_octavo("chat", "m", stdin="1\n/regenerate\n2\n", llm=llm)
    assert contents(llm.asked[2]) == ["1", "a", "2"]


def test_set_changes_the_parameters(run_octavo: RunCommand, scripted: Scripted) -> None:
    llm = scripted([["a"], ["b"]])
    stdin = (
        "/set temperature 0.5\n/set stop END NOW\n/set stop_token_ids 4 5\n/set logit_bias 7=1 8=-2\n"
        "/set ignore_eos true\n/set max_tokens 9\n1\n/set max_tokens none\n/set stop none\n2\n/params\n"
    )
    ran = run_octavo("chat", "m", stdin=stdin, llm=llm)
    first, second = llm.params
    assert (first.temperature, first.stop, first.stop_token_ids) == (0.5, ("END NOW",), (4, 5))
    assert (first.logit_bias, first.ignore_eos, first.max_tokens) == ({7: 1.0, 8: -2.0}, True, 9)
    assert (second.max_tokens, second.stop, second.temperature) == (None, (), 0.5)
    assert ["temperature", "0.5"] in [line.split()[:2] for line in ran.err.splitlines()]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/regenerat", "unknown command /regenerat; did you mean regenerate?"),
        ("/xyz", "unknown command /xyz; /help lists the commands"),
        ("/set temprature 1", "unknown sampling parameter 'temprature'; did you mean temperature?"),
        ("/set n 2", "unknown sampling parameter 'n'"),
        ("/set top_p", "/set top_p needs a value"),
        ("/set top_p much", "top_p: 'much' is not allowed; give a number"),
        ("/set temperature nan", "temperature must be a number from 0 to 100"),
        ("/set top_p 2", "top_p must be a number from 0 to 1"),
        ("/set max_tokens 0", "max_tokens must be a whole number of at least 1"),
        ("/set min_tokens 1001", "min_tokens must be a whole number from 0 to 1000"),
        ("/set stop_token_ids 50", "stop_token_ids: token ids are whole numbers from 0 to 49"),
        ("/set logit_bias 1=inf", "logit_bias must be a number from -100 to 100"),
        ("/undo", "there is nothing to undo"),
        ("/regenerate", "there is no answer to regenerate"),
        ("/save", "/save needs a file name"),
        ("/save /nowhere/at/all", "cannot write /nowhere/at/all: No such file or directory"),
    ],
)
def test_invalid_commands_are_explained_and_the_chat_continues(
    line: str, expected: str, run_octavo: RunCommand, scripted: Scripted
) -> None:
    ran = run_octavo("chat", "m", stdin=f"{line}\nstill here\n", llm=scripted([["yes"]]))
    assert (ran.code, ran.out) == (0, "yes\n")
    assert f"error: {expected}" in ran.err.splitlines()[0]
    assert len(ran.err.splitlines()) == 2  # the figures of the answer


def test_an_invalid_flag_value_is_rejected_at_startup(run_octavo: RunCommand, scripted: Scripted) -> None:
    llm = scripted([])
    ran = run_octavo("chat", "m", "--temperature", "nan", stdin="1\n", llm=llm)
    assert (ran.code, ran.err) == (1, "error: temperature must be a number from 0 to 100\n")
    assert llm.is_closed


def test_save_does_not_overwrite_a_file(run_octavo: RunCommand, scripted: Scripted, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    ran = run_octavo(
        "chat", "m", "--system", "S", stdin=f"1\n/save {path}\n/save {path}\n", llm=scripted([["a"]])
    )
    saved = json.loads(path.read_text())
    assert (saved["model"], contents(saved["messages"])) == ("scripted", ["S", "1", "a"])
    assert f"error: {path} exists; choose another name" in ran.err


def test_help_lists_every_command_and_stats_show_the_cache(
    run_octavo: RunCommand, scripted: Scripted
) -> None:
    ran = run_octavo("chat", "m", stdin="/help\n/stats\n", llm=scripted([]))
    lines = ran.err.splitlines()
    assert all(any(line.startswith(f"/{name} ") for line in lines) for name in COMMANDS)
    assert any("100 (90 free, 5 in the prefix cache)" in line for line in lines)


def test_a_model_without_a_chat_template_is_rejected_at_startup(
    run_octavo: RunCommand, scripted: Scripted
) -> None:
    llm = scripted([], has_template=False)
    ran = run_octavo("chat", "m", stdin="1\n", llm=llm)
    assert (ran.code, ran.err) == (1, "error: this model has no chat template\n")
    assert llm.is_closed


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environ", "expected"),
    [
        (Screen(), {}, "\033[31mx\033[0m"),
        (Screen(), {"NO_COLOR": "1"}, "x"),
        (Screen(), {"TERM": "dumb"}, "x"),
        (io.StringIO(), {}, "x"),
    ],
)
def test_colours_only_on_terminals_that_support_them(
    stream: io.StringIO, environ: dict[str, str], expected: str
) -> None:
    terminal = Terminal(stream, stream, stream, environ)
    assert terminal.styled("x", TextStyle.RED, stream) == expected
