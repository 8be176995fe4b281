"""From a spec to a compiled grammar, by llguidance.

What bounds the work is counted in steps and states, never in seconds: so whether a grammar is accepted, and
whether an answer under it ends with an error, depends on the grammar and the tokens alone.
"""

import json
import re
from typing import Any

import llguidance

from octavo.errors import GrammarError
from octavo.grammar.limits import check_spec, choices_of, schema_of
from octavo.grammar.vocabulary import Vocabulary
from octavo.protocol import GrammarKind, GrammarSpec

# Between two parts of a JSON text: nothing, a space, or a new line with its indentation. Were it unbounded, a
# model that is lost could write spaces for ever.
WHITESPACE = r" |\n[ \t]{0,32}"

# These go over what a schema says of itself in "x-guidance", which a client could write.
JSON_OPTIONS: Any = {
    "whitespace_pattern": WHITESPACE,
    "whitespace_flexible": True,
    "item_separator": ",",
    "key_separator": ":",
    "coerce_one_of": False,  # a oneOf whose branches overlap is refused, not taken for an anyOf
    "lenient": False,  # so is every keyword that cannot be kept
}

MAX_LEXER_STATES = 20_000  # of one answer; each takes one or two kilobytes
STEP_LEXER_FUEL = 50_000  # for one token: about 4 ms
STEP_MAX_ITEMS = 50_000
# Of the parser, at one place of the text. A schema has four for each property that may come next. In a
# grammar that a client writes they may be as many ways to read one text, and time grows with their square.
MAX_ITEMS_IN_ROW = 2_000
MAX_ITEMS_IN_ROW_OF_LARK = 300
INITIAL_LEXER_FUEL = 1_000_000
MAX_GRAMMAR_SIZE = 100_000

UNSUPPORTED = re.compile(r"Unimplemented keys: (\[.*?\])")
LONGEST_MESSAGE = 300


class CompiledGrammar:
    """Never used itself, only copied: so a copy knows nothing of the answers before it."""

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._pristine = matcher

    def new_matcher(self) -> llguidance.LLMatcher:
        return self._pristine.deep_copy()


def compile_grammar(spec: GrammarSpec, vocabulary: Vocabulary) -> CompiledGrammar:
    """Raises GrammarError. A spec that nobody has checked may take long: see `checker`."""
    check_spec(spec)
    try:
        source = _source(spec)
    except ValueError as error:
        raise GrammarError(_message(str(error))) from error
    tokenizer: Any = vocabulary
    matcher = llguidance.LLMatcher(tokenizer, source, log_level=0, limits=_limits(spec.kind))
    if matcher.is_error():
        raise GrammarError(_message(matcher.get_error()))
    return CompiledGrammar(matcher)


def _limits(kind: GrammarKind) -> llguidance.LLParserLimits:
    return llguidance.LLParserLimits(
        initial_lexer_fuel=INITIAL_LEXER_FUEL,
        step_lexer_fuel=STEP_LEXER_FUEL,
        step_max_items=STEP_MAX_ITEMS,
        max_items_in_row=MAX_ITEMS_IN_ROW_OF_LARK if kind is GrammarKind.LARK else MAX_ITEMS_IN_ROW,
        max_lexer_states=MAX_LEXER_STATES,
        max_grammar_size=MAX_GRAMMAR_SIZE,
        precompute_large_lexemes=False,  # it would take as long as the vocabulary is large
        verbose_errors=False,
    )


def _source(spec: GrammarSpec) -> str:
    """In the notation of llguidance."""
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
    """For the person who sent the grammar."""
    found = UNSUPPORTED.search(problem)
    if found:
        keywords = ", ".join(json.loads(found[1]))
        return f"the schema has keywords that are not supported: {keywords}"
    if "coerce_one_of" in problem:
        return "oneOf is supported only where its branches cannot both hold: use anyOf"
    words = " ".join(problem.split())
    return f"the grammar cannot be used: {words[:LONGEST_MESSAGE]}"
