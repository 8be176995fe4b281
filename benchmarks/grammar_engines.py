"""Compares grammar engines: which schemas they support and enforce, and how long compiling and masks take.

    python benchmarks/grammar_engines.py TOKENIZER_FOLDER [--engine NAME] [--every N]

The schemas are those of tests/grammar/schemas.jsonl. Each is compiled in a child process, which is killed
after ten seconds. Columns of the table:

compiled        number of schemas that the engine accepts
examples        of these, how many accept the conforming example, both compact and with spaces
wrong           of these, how many allow a non-conforming answer (by `jsonschema`) in random walks
compile, mask   processor time per schema, and per token of the example: median and 95th percentile
"""

import argparse
import json
import os
import random
import resource
import signal
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import jsonschema
import msgspec
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from grammar.schemas import REFUSED, SCHEMAS, Case
from octavo.grammar.compiler import CompiledGrammar, compile_grammar
from octavo.grammar.matcher import GrammarMatcher
from octavo.grammar.vocabulary import vocabulary_of
from octavo.protocol import GrammarKind, GrammarSpec
from octavo.text.huggingface import text_assets_from_directory
from octavo.text.tokenizer import Tokenizer

SECONDS = 10
MEMORY = 6 << 30
WALKS = 3
MAX_WALK_TOKENS = 120


class Matcher(Protocol):
    def fill(self, mask: torch.Tensor) -> None: ...

    def append(self, token_id: int) -> bool:
        """Return False if the token is not allowed."""


Engine = Callable[[str], Callable[[], Matcher]]  # compiles a schema; the result opens a matcher


class SchemaResult(msgspec.Struct):
    compile_ms: float = 0.0
    rejection: str | None = None
    num_accepted: int = 0  # of the two layouts
    wrong: str | None = None
    mask_us: list[float] = []


# -- engines ------------------------------------------------------------------------------------------------


def llguidance_engine(tokenizer: Tokenizer, vocab_size: int) -> Engine:
    vocabulary = vocabulary_of(tokenizer, vocab_size)

    class Guided:
        def __init__(self, compiled: CompiledGrammar) -> None:
            self._matcher = GrammarMatcher(compiled)

        def fill(self, mask: torch.Tensor) -> None:
            self._matcher.fill(mask.data_ptr(), mask.nbytes)

        def append(self, token_id: int) -> bool:
            self._matcher.append(token_id)
            return True

    def compile_schema(text: str) -> Callable[[], Matcher]:
        compiled = compile_grammar(GrammarSpec(GrammarKind.JSON_SCHEMA, text), vocabulary)
        return lambda: Guided(compiled)

    return compile_schema


def xgrammar_engine(tokenizer: Tokenizer, vocab_size: int) -> Engine:
    import xgrammar

    pieces = [tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)]
    info = xgrammar.TokenizerInfo(pieces, vocab_size=vocab_size, stop_token_ids=list(tokenizer.eos_ids))
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    class Guided:
        def __init__(self, compiled: Any) -> None:
            self._matcher = xgrammar.GrammarMatcher(compiled)

        def fill(self, mask: torch.Tensor) -> None:
            self._matcher.fill_next_token_bitmask(mask[None])

        def append(self, token_id: int) -> bool:
            return bool(self._matcher.accept_token(token_id))

    def compile_schema(text: str) -> Callable[[], Matcher]:
        compiled = compiler.compile_json_schema(text, any_whitespace=True, strict_mode=False)
        return lambda: Guided(compiled)

    return compile_schema


def outlines_engine(tokenizer: Tokenizer, vocab_size: int) -> Engine:
    import outlines_core

    by_bytes: dict[bytes, list[int]] = {}
    for token_id in range(tokenizer.vocab_size):
        if token_id not in tokenizer.special_ids and tokenizer.token_bytes(token_id):
            by_bytes.setdefault(tokenizer.token_bytes(token_id), []).append(token_id)
    vocabulary = outlines_core.Vocabulary(tokenizer.eos_ids[0], by_bytes)

    class Guided:
        def __init__(self, index: Any) -> None:
            self._guide = outlines_core.Guide(index)

        def fill(self, mask: torch.Tensor) -> None:
            self._guide.write_mask_into(mask.data_ptr(), mask.numel(), 4)

        def append(self, token_id: int) -> bool:
            if not self._guide.accepts_tokens([token_id]):
                return False
            self._guide.advance(token_id, return_tokens=False)
            return True

    def compile_schema(text: str) -> Callable[[], Matcher]:
        pattern = outlines_core.json_schema.build_regex_from_schema(text, r"[ \n]?")
        index = outlines_core.Index(pattern, vocabulary)
        return lambda: Guided(index)

    return compile_schema


ENGINES = {"llguidance": llguidance_engine, "xgrammar": xgrammar_engine, "outlines-core": outlines_engine}


# -- one schema ---------------------------------------------------------------------------------------------


def examine(case: Case, engine: Engine, tokenizer: Tokenizer, short: torch.Tensor) -> SchemaResult:
    """Compile a schema, follow its example and take random walks. `short` marks tokens of one byte."""
    outcome = SchemaResult()
    started = time.process_time()
    try:
        open_matcher = engine(case.text)
    except Exception as error:
        outcome.rejection = f"{type(error).__name__}: {error}"[:200]
        return outcome
    outcome.compile_ms = (time.process_time() - started) * 1e3
    mask = torch.zeros(len(short) // 32, dtype=torch.int32)
    eos_id = tokenizer.eos_ids[0]
    for separators in ((",", ":"), (", ", ": ")):
        text = json.dumps(case.example, ensure_ascii=False, separators=separators)
        times = follow(open_matcher(), [*tokenizer.encode(text, add_special_tokens=False), eos_id], mask)
        if times is not None:
            outcome.num_accepted += 1
            outcome.mask_us += times
    for seed in range(WALKS):
        text, is_complete = walk(open_matcher(), mask, tokenizer, short, random.Random(f"{case.name} {seed}"))
        if is_complete and not conforms(text, case.schema):
            outcome.wrong = text[:200]
    return outcome


def follow(matcher: Matcher, token_ids: list[int], mask: torch.Tensor) -> list[float] | None:
    """Return the microseconds of each mask; None if a token is not allowed."""
    times = []
    for token_id in token_ids:
        started = time.process_time()
        try:
            matcher.fill(mask)
        except Exception:
            return None
        times.append((time.process_time() - started) * 1e6)
        if not int(mask[token_id // 32]) >> token_id % 32 & 1:
            return None
        matcher.append(token_id)
    return times


def walk(
    matcher: Matcher, mask: torch.Tensor, tokenizer: Tokenizer, short: torch.Tensor, dice: random.Random
) -> tuple[str, bool]:
    """Return a random answer and whether it is complete. Short tokens are preferred, so that strings end."""
    bits = torch.arange(32, dtype=torch.int32)
    eos_ids = list(tokenizer.eos_ids)
    data = b""
    for _ in range(MAX_WALK_TOKENS):
        try:
            matcher.fill(mask)
        except Exception:
            break
        allowed = (mask[:, None] >> bits & 1).flatten().bool()
        can_end = bool(allowed[eos_ids].any())
        allowed[eos_ids] = False
        if can_end and (dice.random() < 0.3 or not allowed.any()):
            return data.decode("utf-8", "replace"), True
        some = allowed & short if dice.random() < 0.8 else allowed
        choices = torch.nonzero(some if some.any() else allowed).flatten()
        if not len(choices):
            break
        token_id = int(choices[dice.randrange(len(choices))])
        data += tokenizer.token_bytes(token_id)
        matcher.append(token_id)
    return data.decode("utf-8", "replace"), False


def conforms(text: str, schema: Any) -> bool:
    try:
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError):
        return False
    except Exception:
        return True  # the validator does not support the schema
    return True


# -- all schemas --------------------------------------------------------------------------------------------


def in_child(work: Callable[[], SchemaResult]) -> SchemaResult:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        os.write(writer, msgspec.json.encode(work()))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        data = file.read()
    _, status = os.waitpid(child, 0)
    if status == 0:
        return msgspec.json.decode(data, type=SchemaResult)
    return SchemaResult(rejection=f"ended by signal {status & 127} after at most {SECONDS} s")


def spread(values: list[float]) -> str:
    if not values:
        return "-"
    return f"{statistics.median(values):.3g} / {sorted(values)[int(0.95 * (len(values) - 1))]:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--engine", choices=[*ENGINES], action="append")
    parser.add_argument("--every", type=int, default=1, help="use only every Nth schema")
    parser.add_argument("--details", action="store_true", help="print rejected schemas and wrong answers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = Tokenizer(text_assets_from_directory(options.tokenizer))
    vocab_size = -(-tokenizer.vocab_size // 64) * 64
    short = torch.tensor([len(tokenizer.token_bytes(token_id)) == 1 for token_id in range(vocab_size)])
    cases = [*SCHEMAS, *REFUSED][:: options.every]
    print(f"{len(cases)} schemas, {vocab_size} tokens")
    print("| engine | setup s | compiled | examples | wrong | compile ms | mask us |")
    print("|---|---|---|---|---|---|---|")
    for name in options.engine or ENGINES:
        started = time.process_time()
        engine = ENGINES[name](tokenizer, vocab_size)
        ready = time.process_time() - started
        outcomes = [in_child(partial(examine, case, engine, tokenizer, short)) for case in cases]
        compiled = [one for one in outcomes if one.rejection is None]
        columns = [
            f"{ready:.1f}",
            len(compiled),
            sum(one.num_accepted == 2 for one in compiled),
            sum(one.wrong is not None for one in compiled),
            spread([one.compile_ms for one in compiled]),
            spread([us for one in compiled for us in one.mask_us]),
        ]
        print(f"| {name} | {' | '.join(map(str, columns))} |", flush=True)
        if options.details:
            for case, one in zip(cases, outcomes, strict=True):
                if one.rejection or one.num_accepted < 2 or one.wrong:
                    print(
                        f"  {case.name}: {one.rejection or ''} accepts {one.num_accepted}, wrong: {one.wrong}"
                    )


if __name__ == "__main__":
    main()
