"""Conversations to measure speculative decoding with: what is asked, and how the user or a tool answers."""

import ast
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.dialect.pieces import ParsedCall

ROOT = Path(__file__).resolve().parents[1]
FILE_LINES = range(70, 131)
SHOWN_LINES = 20  # of a file, in the result of a tool
FILES_PER_AGENT = 3

FUNCTIONS = (
    "parses a CSV line with quoted fields",
    "finds the longest common subsequence of two strings",
    "evaluates an arithmetic expression with brackets",
    "merges overlapping intervals",
    "converts a number to Roman numerals",
    "computes the edit distance of two words",
    "sorts a linked list",
    "validates an IPv6 address",
    "finds the shortest path in a weighted graph",
    "rotates a matrix in place",
    "implements a cache that evicts the least recently used entry",
    "balances a binary search tree",
    "encodes bytes as base64",
    "solves a Sudoku",
    "counts the words of a text file",
    "formats a duration in seconds for people",
    "generates all permutations of a list",
    "checks whether brackets are balanced",
    "multiplies two polynomials",
    "compresses a string by run lengths",
)
LANGUAGES = ("Python", "Rust", "Go", "TypeScript", "Java", "C", "Ruby", "Kotlin")
TOPICS = (
    "a lighthouse keeper who collects radios",
    "the history of the bicycle",
    "why the sky is blue",
    "a market in a harbour town",
    "how bread rises",
    "an old bridge and its engineer",
    "the migration of storks",
    "a chess game between two sisters",
    "how vaccines work",
    "a train that is never late",
    "the sources of the Nile",
    "a clockmaker and her apprentice",
    "the invention of paper",
    "life on a research ship",
    "how a violin is built",
    "an island without cars",
    "the economics of coffee",
    "a garden on a roof",
    "what glaciers leave behind",
    "a translator between two villages",
)
FORMS = (
    "Write the beginning of a short story about",
    "Explain to a curious student:",
    "Write a letter about",
    "Write a newspaper article about",
    "Write a dialogue between two friends about",
    "Describe in plain words:",
    "Write a speech about",
    "Write a review of a book about",
)
TASK = (
    "Work through these files of the folder {folder}, one after another:\n{files}\n"
    "For each file, read its first 80 lines, search the folder for the name that is given with it (ignore"
    " case), rename that name to the name with `_value` at its end in the whole file, and run the tests of"
    " the file with a timeout of 120 seconds, until the first failure. Call one tool at a time."
)
TURNS = 4 * FILES_PER_AGENT


@dataclass(frozen=True)
class Conversation:
    """`num_turns` above 1: the model calls a tool in each turn."""

    text: str
    num_turns: int = 1

    @property
    def uses_tools(self) -> bool:
        return self.num_turns > 1

    def start(self) -> list[dict[str, Any]]:
        return [{"role": "user", "content": self.text}]


def with_results(messages: Sequence[dict[str, Any]], calls: Sequence[ParsedCall]) -> list[dict[str, Any]]:
    """Return the messages of the next turn."""
    functions = [{"name": one.name, "arguments": one.arguments} for one in calls]
    made = [
        {"id": f"call_{number}", "type": "function", "function": function}
        for number, function in enumerate(functions)
    ]
    results = [
        {"role": "tool", "tool_call_id": f"call_{number}", "content": tool_result(one)}
        for number, one in enumerate(calls)
    ]
    return [*messages, {"role": "assistant", "content": "", "tool_calls": made}, *results]


def source_files() -> list[Path]:
    paths = sorted((ROOT / "src" / "octavo").rglob("*.py"))
    return [path for path in paths if len(path.read_text("utf-8").splitlines()) in FILE_LINES]


def names_in(path: Path) -> tuple[list[str], list[str]]:
    """Return the names of functions and of variables, in the order of the file."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    functions = [node.name for node in nodes if isinstance(node, ast.FunctionDef)]
    variables = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    return [n for n in functions if not n.startswith("__")], [n for n in variables if len(n) > 3]


def edits() -> list[Conversation]:
    prompts = []
    for number, path in enumerate(source_files()):
        functions, variables = names_in(path)
        is_function = bool(functions) and (number % 2 == 0 or not variables)
        if not functions and not variables:
            continue
        kind, name = ("function", functions[0]) if is_function else ("variable", variables[0])
        prompts.append(
            Conversation(
                f"Rename the {kind} `{name}` to `{name}_renamed` in this file. Return the whole file, and"
                f" nothing else.\n\n```python\n{path.read_text('utf-8')}```"
            )
        )
    return prompts


def agents() -> list[Conversation]:
    """An agent calls a tool in each turn, and gets its result."""
    conversations = []
    for folder, group in itertools.groupby(source_files(), key=lambda path: path.parent):
        paths = list(group)
        for start in range(0, len(paths) - FILES_PER_AGENT + 1, FILES_PER_AGENT):
            files = "\n".join(file_and_name(path) for path in paths[start : start + FILES_PER_AGENT])
            task = TASK.format(folder=folder.relative_to(ROOT), files=files)
            conversations.append(Conversation(task, num_turns=TURNS))
    return conversations


def file_and_name(path: Path) -> str:
    functions, variables = names_in(path)
    return f"- {path.relative_to(ROOT)}: `{next(iter(functions + variables), 'main')}`"


def tool_result(call: ParsedCall) -> str:
    """Return what a tool might answer."""
    arguments = json.loads(call.arguments)
    path = ROOT / str(arguments.get("path", ""))
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    match call.name:
        case "read_file":
            return "\n".join(lines[:SHOWN_LINES]) or "there is no such file"
        case "search":
            return f"3 matches of {arguments['string']!r} in {arguments['folder']}"
        case "rename":
            return f"renamed {arguments['old_name']} to {arguments['new_name']} in {arguments['path']}"
    return f"{len(lines)} passed in 0.41 s"


def code() -> list[Conversation]:
    return [
        Conversation(f"Write a {language} function that {function}.")
        for language in LANGUAGES
        for function in FUNCTIONS
    ]


def prose() -> list[Conversation]:
    return [Conversation(f"{form} {topic}.") for form in FORMS for topic in TOPICS]


PARTS: dict[str, Callable[[], list[Conversation]]] = {
    "edits": edits,
    "agents": agents,
    "code": code,
    "prose": prose,
}


def tool(name: str, description: str, **fields: dict[str, Any]) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


def tools() -> list[dict[str, Any]]:
    text, number, flag = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
    return [
        tool("read_file", "Read lines of a file", path=text, first_line=number, last_line=number),
        tool("search", "Search a folder for a string", folder=text, string=text, ignore_case=flag),
        tool("run_tests", "Run the tests of a file", path=text, timeout_seconds=number, stop_early=flag),
        tool("rename", "Rename an identifier", path=text, old_name=text, new_name=text, whole_file=flag),
    ]
