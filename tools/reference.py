"""Generate pages of docs/ from the code: run by `make reference`.

Options come from their definitions, commands from their parsers, and the Python API from its source. A test
compares the pages with the output of this script, so that they stay current. The pages about the HTTP APIs
in reference/ are written by hand; `http_fields` returns what their tables must list.
"""

import argparse
import ast
import contextlib
import inspect
import io
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pydantic

from octavo.cli.flags import SAMPLING_FLAGS
from octavo.cli.main import build_parser
from octavo.config import (
    EngineOptions,
    Group,
    Options,
    OptionSpec,
    ReplicaOptions,
    ServerOptions,
    format_size,
    option_specs,
)
from octavo.frontend.intake import RequestLimits, whole_numbers
from octavo.frontend.output import Choice, RequestOutput, StreamDelta
from octavo.llm import LLM, StepUpdate
from octavo.protocol import (
    NUMBERS,
    EngineFacts,
    EngineStats,
    FailureCode,
    GrammarKind,
    GrammarSpec,
    PrefillChunk,
    SamplingParams,
    Timings,
    TokenLogprob,
)
from octavo.server.anthropic.schema import CountTokensRequest, MessagesRequest
from octavo.server.ollama.schema import OllamaChat, OllamaCompletion, OllamaOptions, OllamaShow
from octavo.server.openai.responses.schema import ResponsesRequest
from octavo.server.openai.schema import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest

DOCS = Path(__file__).parents[1] / "docs"
HEADER = "<!-- Made by tools/reference.py: change the code it describes, then run `make reference`. -->\n\n"
MEMORY_OPTIONS = ("max_body",)  # their defaults are numbers of bytes
NO_BOUND = RequestLimits(vocab_size=1 << 31, max_model_len=1 << 31)

ABOUT_OPTIONS = """\
# Options

Set an option as a flag, an environment variable, or a line of the YAML file that `--config` names. They
take precedence in this order: `--block-size 64`, `OCTAVO_BLOCK_SIZE=64`, `block_size: 64`. In Python,
engine options are keyword arguments: `LLM(..., block_size=64)`. The value `none` means no value, and an
empty variable counts as unset. `octavo config show` prints every option, its value and its source.

## Engine options

For every command that loads a model, and for `LLM`.
"""
ABOUT_COMMANDS = """\
# Commands

`octavo COMMAND --help` prints the same information. Exit codes: 0 success, 1 failure, 2 usage error, 130
interrupted.
"""
ABOUT_DECISIONS = """\
# Decisions

Each record explains one decision: its context, the options, the decision and its consequences. A decision
that is reversed gets a new record, and the old one refers to it.
"""
ABOUT_DEFAULTS = """\
`LLM.default_params` contains what the checkpoint's `generation_config.json` recommends. It applies only to
calls without `SamplingParams`.
"""


def pages() -> dict[str, str]:
    """Return the content of each generated file of docs/."""
    return {
        "reference/options.md": HEADER + options_page(),
        "reference/commands.md": HEADER + commands_page(),
        "reference/python.md": HEADER + python_page(),
        "decisions/index.md": HEADER + decisions_page(),
    }


# -- options -----------------------------------------------------------------------------------------------


def options_page() -> str:
    return "\n".join(
        (
            ABOUT_OPTIONS,
            *_option_groups(EngineOptions),
            "## Server options\n",
            "For `octavo serve`, in addition to the engine options.\n",
            *_option_groups(ServerOptions),
            "## Replica options\n",
            "For `octavo replica`, in addition to the engine options, `--fleet-key`, `--grace` and"
            " `--log-format`.\n",
            *_option_groups(ReplicaOptions),
        )
    )


def _option_groups(kind: type[Options]) -> Iterator[str]:
    specs = option_specs(kind)
    for group in dict.fromkeys(spec.group for spec in specs):
        heading = (
            f"{group.capitalize()} of the server" if _is_in_both(group) and kind is ServerOptions else group
        )
        yield f"### {heading[0].upper()}{heading[1:]}\n"
        rows = [_option_row(spec) for spec in specs if spec.group is group]
        yield table(("option", "default", "values", "meaning"), rows)


def _is_in_both(group: Group) -> bool:
    return all(
        any(spec.group is group for spec in option_specs(kind)) for kind in (EngineOptions, ServerOptions)
    )


def _option_row(spec: OptionSpec) -> tuple[str, ...]:
    flags = f"`{spec.flag}`, `--no-{spec.flag[2:]}`" if spec.is_switch else f"`{spec.flag}`"
    return f"{flags}<br>`{spec.variable}`", _default(spec), spec.allowed, spec.description


def _default(spec: OptionSpec) -> str:
    if spec.default is None:
        return "none"
    if spec.is_switch:
        return "on" if spec.default else "off"
    return f"`{format_size(spec.default) if spec.name in MEMORY_OPTIONS else spec.default}`"


# -- commands ----------------------------------------------------------------------------------------------


def commands_page() -> str:
    commands = list(leaf_parsers(build_parser()))
    return "\n".join(
        (
            ABOUT_COMMANDS,
            table(
                ("command", ""),
                [(f"[`{name}`](#{name.replace(' ', '-')})", short) for name, short, _ in commands],
            ),
            *(_command(name, parser) for name, _, parser in commands),
        )
    )


def leaf_parsers(
    parser: argparse.ArgumentParser, name: str = "octavo", short: str = ""
) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Yield each command: its name, its one-line help, and its parser with all arguments."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        # A command adds its arguments when it is parsed; --help triggers only that.
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            parser.parse_known_args(["--help"])
        yield name, short, parser
    for group in groups:
        helps = {choice.dest: choice.help or "" for choice in group._choices_actions}
        for command, child in group.choices.items():
            yield from leaf_parsers(child, f"{name} {command}", helps[command])


def _command(name: str, parser: argparse.ArgumentParser) -> str:
    usage = (parser.usage or f"{name} [options]").removeprefix("usage: ")
    parts = [f"## {name}\n", f"```text\n{usage}\n```\n", f"{parser.description}\n"]
    own: list[tuple[str, ...]] = []
    shared: list[str] = []
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if not isinstance(action, argparse._HelpAction)]
        if group.title in set(Group):
            shared.append(str(group.title))
        elif actions:
            own += [(_argument(action), _help(action)) for action in actions]
    if own:
        parts.append(table(("argument", "meaning"), own))
    if shared:
        links = ", ".join(f"[{group}](options.md#{group})" for group in dict.fromkeys(shared))
        parts.append(f"It also accepts all [options](options.md) of these groups: {links}.\n")
    return "\n".join(parts)


def _argument(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"`{action.metavar or action.dest}`"
    takes = "" if action.nargs == 0 or action.metavar in ("", None) else f" {action.metavar}"
    return ", ".join(f"`{flag}{takes}`" for flag in action.option_strings)


def _help(action: argparse.Action) -> str:
    return (action.help or "").replace("%%", "%")


# -- the Python API ----------------------------------------------------------------------------------------

STRUCTS = (GrammarSpec, RequestOutput, Choice, StreamDelta, TokenLogprob, Timings, PrefillChunk, StepUpdate)


def python_page() -> str:
    helps = {
        flag.field: flag.help.removeprefix("with --json, ").removesuffix("; may be repeated")
        for flag in SAMPLING_FLAGS
    }
    return "\n".join(
        (
            "# Python API\n",
            "`from octavo import LLM, SamplingParams`. The API is fully typed (`py.typed`).",
            "[Offline batches](../offline.md) has examples.\n",
            "## LLM\n",
            f"{inspect.getdoc(LLM)}\n",
            *_methods(LLM),
            "## SamplingParams\n",
            f"{inspect.getdoc(SamplingParams)}\n",
            table(("field", "type", "default", "meaning"), _fields(SamplingParams, helps)),
            ABOUT_DEFAULTS,
            "## Outputs\n",
            *(_struct(kind) for kind in STRUCTS),
            "### GrammarKind\n",
            table(
                ("kind", "meaning"),
                [(f"`{kind.value}`", _comments(GrammarKind)[kind.name]) for kind in GrammarKind],
            ),
            "### FailureCode\n",
            table(
                ("code", "meaning"),
                [(f"`{code.value}`", _comments(FailureCode)[code.name]) for code in FailureCode],
            ),
            "## Engine facts and statistics\n",
            _struct(EngineFacts),
            _struct(EngineStats),
        )
    )


def _methods(owner: type) -> Iterator[str]:
    tree = ast.parse(inspect.getsource(owner))
    lines = inspect.getsource(owner).splitlines()
    (body,) = (node.body for node in tree.body if isinstance(node, ast.ClassDef))
    for node in body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        is_public = not node.name.startswith("_") or node.name == "__init__"
        if not is_public:
            continue
        is_property = any(isinstance(one, ast.Name) and one.id == "property" for one in node.decorator_list)
        head = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.body[0].lineno - 1]))
        name = owner.__name__ if node.name == "__init__" else node.name
        yield f"### {name}\n"
        yield f"```python\n{'@property' + chr(10) if is_property else ''}{head.removesuffix(':')}\n```\n"
        docstring = ast.get_docstring(node)
        if docstring:
            yield f"{docstring}\n"


def _struct(kind: type) -> str:
    docstring = kind.__dict__.get("__doc__") and inspect.getdoc(kind)  # not that of its base class
    return (
        f"### {kind.__name__}\n\n"
        + (f"{docstring}\n\n" if docstring else "")
        + table(("field", "type", "default", "meaning"), _fields(kind, {}))
    )


def _fields(kind: type, helps: Mapping[str, str]) -> list[tuple[str, ...]]:
    comments = _comments(kind)
    rows: list[tuple[str, ...]] = []
    for node in _body(kind):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
            default = "" if node.value is None else f"`{ast.unparse(node.value)}`"
            meaning = helps.get(name) or comments.get(name, "")
            rows.append((f"`{name}`", f"`{ast.unparse(node.annotation)}`", default, meaning))
    return rows


def _body(kind: type) -> list[ast.stmt]:
    (owner,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(owner, ast.ClassDef)
    return owner.body


def _comments(kind: type) -> dict[str, str]:
    """Return the end-of-line comments of a class, by field."""
    found = {}
    for line in inspect.getsource(kind).splitlines():
        field, mark, comment = line.partition("  # ")
        if mark:
            found[field.strip().partition(":")[0].partition(" ")[0]] = comment
    return found


# -- the HTTP APIs -----------------------------------------------------------------------------------------

REQUESTS: tuple[type[pydantic.BaseModel], ...] = (
    *(ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest),
    *(MessagesRequest, CountTokensRequest, ResponsesRequest),
    *(OllamaChat, OllamaCompletion, OllamaOptions, OllamaShow),
)
SAME_BOUNDS = {
    "top_logprobs": "logprobs",
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "repeat_penalty": "repetition_penalty",
}


def http_fields() -> dict[str, dict[str, str]]:
    """Return the fields of each request and their types: the first two columns of the tables."""
    return {kind.__name__: {name: _accepted(kind, name) for name in _wire_names(kind)} for kind in REQUESTS}


def _wire_names(kind: type[pydantic.BaseModel]) -> list[str]:
    return [field.alias or name for name, field in kind.model_fields.items()]


def _accepted(kind: type[pydantic.BaseModel], name: str) -> str:
    schema = kind.model_json_schema()
    types = " or ".join(dict.fromkeys(_type_names(schema["properties"][name], schema.get("$defs", {}))))
    bounds: Mapping[str, tuple[float, float]] = {**NUMBERS, **whole_numbers(NO_BOUND)}
    low, high = bounds.get(SAME_BOUNDS.get(name, name), (None, None))
    if low is None or types in ("boolean", "any"):
        return types
    if high is not None and high >= 1 << 31:
        return f"{types}, from {low:g}" if low >= 0 else types
    return f"{types}, {low:g} to {high:g}"


def _type_names(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterable[str]:
    if "anyOf" in schema and "type" not in schema:  # next to a type, anyOf restricts that type
        for part in schema["anyOf"]:
            if part.get("type") != "null":
                yield from _type_names(part, definitions)
    elif "$ref" in schema:
        yield from _type_names(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    elif any(isinstance(value, str) for value in schema.get("enum", ())):
        yield from (f'`"{value}"`' for value in schema["enum"])
    else:
        yield schema.get("type", "any")


# -- decisions ---------------------------------------------------------------------------------------------


def decisions_page() -> str:
    rows = []
    for path in sorted(DOCS.glob("decisions/0*.md")):
        heading = path.read_text().partition("\n")[0]
        title = re.sub(r"^# \d+[.:] ", "", heading)
        rows.append((f"[{int(path.name[:4])}]({path.name})", title))
    return ABOUT_DECISIONS + "\n" + table(("", ""), rows)


# -- Markdown ----------------------------------------------------------------------------------------------


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


if __name__ == "__main__":
    for name, text in pages().items():
        (DOCS / name).write_text(text)
        print(f"docs/{name}: {len(text.splitlines())} lines")
