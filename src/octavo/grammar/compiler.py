"""Compile a grammar spec with llguidance.

All limits on work count steps and states, never seconds. Whether a grammar is accepted, and whether an answer
that follows it ends with an error, therefore depends on the grammar and the tokens alone.
"""

import json
import re
import time
from typing import Any

import llguidance

from octavo.errors import GrammarError
from octavo.grammar.limits import check_spec, choices_of, row_limit, schema_of
from octavo.grammar.vocabulary import Vocabulary
from octavo.protocol import GrammarKind, GrammarSpec

# Allowed between two parts of a JSON text: nothing, a space, or a new line with its indentation. Without a
# bound, a confused model could write spaces forever.
WHITESPACE = r" |\n[ \t]{0,32}"

# These override the options in "x-guidance" of a schema, which a client could set.
JSON_OPTIONS: Any = {
    "whitespace_pattern": WHITESPACE,
    "whitespace_flexible": True,
    "item_separator": ",",
    "key_separator": ":",
    "coerce_one_of": False,  # a oneOf with overlapping branches is rejected, not treated as an anyOf
    "lenient": False,  # unsupported keywords are rejected
}

MAX_LEXER_STATES = 20_000  # per answer; each takes one or two kilobytes
STEP_LEXER_FUEL = 50_000  # per token: about 4 ms
STEP_MAX_ITEMS = 50_000
INITIAL_LEXER_FUEL = 1_000_000
MAX_GRAMMAR_SIZE = 100_000

UNSUPPORTED = re.compile(r"Unimplemented keys: (\[.*?\])")
MAX_MESSAGE_CHARS = 300


class CompiledGrammar:
    """A grammar that has compiled once. Every matcher is compiled anew, in about a millisecond: copies of an
    `LLMatcher` share the tables that its limits count, so that answers would fail because of others."""

    def __init__(self, source: str, vocabulary: Vocabulary, limits: llguidance.LLParserLimits) -> None:
        """Raises GrammarError."""
        self._source = source
        self._tokenizer: Any = vocabulary
        self._limits = limits
        began = time.thread_time()
        problem = self.new_matcher().get_error()
        self.seconds = time.thread_time() - began  # CPU time to compile
        if problem:
            raise GrammarError(_message(problem))

    def new_matcher(self) -> llguidance.LLMatcher:
        return llguidance.LLMatcher(self._tokenizer, self._source, log_level=0, limits=self._limits)


def compile_grammar(spec: GrammarSpec, vocabulary: Vocabulary) -> CompiledGrammar:
    """Raises GrammarError. Compiling an unchecked spec may take long: see `checker`."""
    check_spec(spec)
    try:
        source = _source(spec)
    except ValueError as error:
        raise GrammarError(_message(str(error))) from error
    return CompiledGrammar(source, vocabulary, _limits(spec))


def lark_of(spec: GrammarSpec) -> str:
    """Return a regex or a Lark grammar as Lark."""
    if spec.kind is GrammarKind.LARK:
        return spec.text
    (grammar,) = json.loads(_source(spec))["grammars"]
    text: str = grammar["lark_grammar"]
    return text


def _limits(spec: GrammarSpec) -> llguidance.LLParserLimits:
    return llguidance.LLParserLimits(
        initial_lexer_fuel=INITIAL_LEXER_FUEL,
        step_lexer_fuel=STEP_LEXER_FUEL,
        step_max_items=STEP_MAX_ITEMS,
        max_items_in_row=row_limit(spec),
        max_lexer_states=MAX_LEXER_STATES,
        max_grammar_size=MAX_GRAMMAR_SIZE,
        precompute_large_lexemes=False,  # takes time in proportion to the vocabulary
        verbose_errors=False,
    )


def _source(spec: GrammarSpec) -> str:
    """Return the grammar in the format of llguidance."""
    make = llguidance.LLMatcher
    match spec.kind:
        case GrammarKind.JSON_SCHEMA:
            return make.grammar_from_json_schema(schema_of(spec), overrides=JSON_OPTIONS)
        case GrammarKind.JSON_OBJECT:
            return make.grammar_from_json_schema({"type": "object"}, overrides=JSON_OPTIONS)
        case GrammarKind.REGEX:
            return make.grammar_from_regex(spec.text)
        case GrammarKind.CHOICE:
            return make.grammar_from_regex("|".join(map(re.escape, choices_of(spec))))
        case GrammarKind.LARK | GrammarKind.CALLS:
            return make.grammar_from_lark(spec.text)


def _message(problem: str) -> str:
    """Return the error message for the client that sent the grammar."""
    found = UNSUPPORTED.search(problem)
    if found:
        keywords = ", ".join(json.loads(found[1]))
        return f"the schema has unsupported keywords: {keywords}"
    if "coerce_one_of" in problem:
        return "oneOf is supported only if its branches exclude each other: use anyOf"
    words = " ".join(problem.split())
    return f"the grammar cannot be used: {words[:MAX_MESSAGE_CHARS]}"
