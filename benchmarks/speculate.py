"""Measures speculative decoding: the speed of decoding with drafts divided by that without, per prompt.

    python benchmarks/speculate.py MODEL --speculate suffix [--part edits|agents|code|prose] [--prompts N]
                                         [--max-tokens 160] [--temperature 0] [--batch N]

The model is open twice, once without drafts. Every batch of prompts runs on both, in alternating order, and
the program fails unless the answers have the same tokens. Prompts are in the prefix cache before a run, so
its first step computes only their ends; it is not measured. Parts:

    edits   rename something in a source file of this repository, and write the whole file
    agents  call one of a few tools: answers resemble earlier answers
    code    write a new function
    prose   write a new text
"""

import argparse
import ast
import itertools
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo import LLM, SamplingParams

ROOT = Path(__file__).resolve().parents[1]
FILE_LINES = range(70, 131)
KV_MEMORY = "1GiB"

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
LANGUAGES = ("Python", "Rust")
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
FORMS = ("Write the beginning of a short story about", "Explain to a curious student:")
TASKS = (
    "Open the file {path} and show me its first 80 lines.",
    "Search the folder {folder} for all uses of `{name}`; ignore case.",
    "Run the tests of {path} with a timeout of 120 seconds, and stop at the first failure.",
    "Rename `{name}` in {path} to `{name}_value`, in the whole file.",
)


@dataclass(frozen=True)
class PartPrompt:
    text: str
    uses_tools: bool = False


@dataclass(frozen=True)
class RunFigures:
    """Figures of one batch of prompts on one model."""

    token_ids: tuple[tuple[int, ...], ...]
    seconds: float  # of decoding
    steps: int
    drafted: int
    accepted: int

    @property
    def num_decoded(self) -> int:
        """Tokens after the first of each answer."""
        return sum(len(ids) - 1 for ids in self.token_ids)


# -- prompts ----------------------------------------------------------------------------------------------


def source_files() -> list[Path]:
    paths = sorted((ROOT / "src" / "octavo").rglob("*.py"))
    return [path for path in paths if len(path.read_text("utf-8").splitlines()) in FILE_LINES]


def names_in(path: Path) -> tuple[list[str], list[str]]:
    """Return the names of functions and of variables, in the order of the file."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    functions = [node.name for node in nodes if isinstance(node, ast.FunctionDef)]
    variables = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    return [n for n in functions if not n.startswith("__")], [n for n in variables if len(n) > 3]


def edits() -> list[PartPrompt]:
    prompts = []
    for number, path in enumerate(source_files()):
        functions, variables = names_in(path)
        is_function = bool(functions) and (number % 2 == 0 or not variables)
        if not functions and not variables:
            continue
        kind, name = ("function", functions[0]) if is_function else ("variable", variables[0])
        prompts.append(
            PartPrompt(
                f"Rename the {kind} `{name}` to `{name}_renamed` in this file. Return the whole file, and"
                f" nothing else.\n\n```python\n{path.read_text('utf-8')}```"
            )
        )
    return prompts


def agents() -> list[PartPrompt]:
    prompts = []
    for path, task in zip(source_files(), itertools.cycle(TASKS), strict=False):
        functions, variables = names_in(path)
        name = next(iter(functions + variables), "main")
        place = path.relative_to(ROOT)
        prompts.append(PartPrompt(task.format(path=place, folder=place.parent, name=name), uses_tools=True))
    return prompts


def code() -> list[PartPrompt]:
    return [
        PartPrompt(f"Write a {language} function that {function}.")
        for language in LANGUAGES
        for function in FUNCTIONS
    ]


def prose() -> list[PartPrompt]:
    return [PartPrompt(f"{form} {topic}.") for form in FORMS for topic in TOPICS]


PARTS: dict[str, Callable[[], list[PartPrompt]]] = {
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


# -- measuring --------------------------------------------------------------------------------------------


def answer(llm: LLM, prompts: Sequence[PartPrompt], params: Sequence[SamplingParams]) -> RunFigures:
    chats = [[{"role": "user", "content": prompt.text}] for prompt in prompts]
    with_tools: dict[str, Any] = {}
    if prompts[0].uses_tools:
        with_tools = {"tools": tools(), "tool_choice": "required", "parallel_tool_calls": False}
    before = llm.stats()
    outputs = llm.chat(chats, params, progress=False, **with_tools)
    after = llm.stats()
    return RunFigures(
        tuple(output.token_ids for output in outputs),
        max(output.choices[0].timings.decode for output in outputs),
        after.steps - before.steps,
        after.tokens_drafted - before.tokens_drafted,
        after.tokens_accepted - before.tokens_accepted,
    )


def fill_prefix_cache(llm: LLM, prompts: Sequence[PartPrompt]) -> None:
    answer(llm, prompts, [SamplingParams(max_tokens=1, temperature=0.0)] * len(prompts))


def measure(
    plain: LLM, drafting: LLM, prompts: Sequence[PartPrompt], options: argparse.Namespace
) -> list[tuple[RunFigures, RunFigures]]:
    """Return the figures of each batch: without drafts, and with them."""
    measured = []
    for number, start in enumerate(range(0, len(prompts), options.batch)):
        batch = prompts[start : start + options.batch]
        params = [
            SamplingParams(max_tokens=options.max_tokens, temperature=options.temperature, seed=start + i)
            for i in range(len(batch))
        ]
        figures: dict[LLM, RunFigures] = {}
        for llm in (plain, drafting) if number % 2 == 0 else (drafting, plain):
            fill_prefix_cache(llm, batch)
            figures[llm] = answer(llm, batch, params)
        off, on = figures[plain], figures[drafting]
        if off.token_ids != on.token_ids:
            sys.exit(f"the answers differ: {[p.text for p in batch]!r}: {off.token_ids} {on.token_ids}")
        print(
            f"{start + len(batch)}/{len(prompts)}  {off.num_decoded} tokens,"
            f" {off.seconds:.2f} s off, {on.seconds:.2f} s on, {off.seconds / max(on.seconds, 1e-9):.2f}x,"
            f" {on.accepted}/{on.drafted} accepted",
            file=sys.stderr,
            flush=True,
        )
        if off.num_decoded:
            measured.append((off, on))
    return measured


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def print_row(part: str, measured: Sequence[tuple[RunFigures, RunFigures]]) -> None:
    if not measured:
        print(f"| {part} | no tokens |", flush=True)
        return
    low, middle, high = quartiles([off.seconds / on.seconds for off, on in measured])
    cells = [part, f"{middle:.2f} ({low:.2f} to {high:.2f})"]
    seconds, per_step, costs = [], [], []
    for figures in zip(*measured, strict=True):  # without drafts, then with them
        steps = max(1, sum(one.steps for one in figures) - len(figures))  # without the first of each run
        seconds.append(sum(one.seconds for one in figures))
        per_step.append(sum(one.num_decoded for one in figures) / steps)
        costs.append(1000 * seconds[-1] / steps)
    drafted, accepted = sum(on.drafted for _, on in measured), sum(on.accepted for _, on in measured)
    cells.append(" / ".join(f"{one:.2f}" for one in per_step))
    cells.append(f"{accepted} / {drafted}")
    cells.append(" / ".join(f"{one:.1f}" for one in costs))
    cells.append(" / ".join(f"{one:.1f}" for one in seconds))
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--speculate", choices=("ngram", "suffix"), default="suffix")
    parser.add_argument("--draft-tokens", type=int, help="maximum drafts per sequence and step")
    parser.add_argument("--part", choices=PARTS, action="append", help="may be repeated; all by default")
    parser.add_argument("--prompts", type=int, default=40, help="at most, per part")
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--batch", type=int, default=1, help="prompts at a time")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    shared = {"kv_memory": KV_MEMORY, "threads": options.threads, "progress": False}
    drafts = {} if options.draft_tokens is None else {"draft_tokens": options.draft_tokens}
    with (
        LLM(options.model, speculate="off", **shared) as plain,
        LLM(options.model, speculate=options.speculate, **drafts, **shared) as drafting,
    ):
        print(
            "| part | speed, times that without drafts (quartiles) | tokens per step, off / on"
            " | accepted / drafted | ms per step, off / on | s of decoding, off / on |"
            "\n|---|---|---|---|---|---|"
        )
        for part in options.part or PARTS:
            prompts = PARTS[part]()[: options.prompts]
            for llm in (plain, drafting):
                answer(llm, prompts[:1], [SamplingParams(max_tokens=4, temperature=0.0)])  # warm-up
            print_row(part, measure(plain, drafting, prompts, options))


if __name__ == "__main__":
    main()
