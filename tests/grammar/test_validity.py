"""Answers under every schema of the collection conform to it at temperature 1, according to `jsonschema`.

By default this runs a short form. To run it with 2,000 answers of each real model:

    OCTAVO_TEST_FULL=1 python -m pytest tests/grammar/test_validity.py -k real
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import jsonschema
import pytest

from full_size import FULL
from grammar.schemas import SCHEMAS, Case
from octavo import LLM, GrammarKind, GrammarSpec, SamplingParams
from octavo.errors import GrammarError
from octavo.frontend.output import Choice
from octavo.grammar.compiler import compile_grammar
from octavo.grammar.matcher import GrammarMatcher
from octavo.grammar.vocabulary import byte_vocabulary

BYTES = byte_vocabulary()


def params(case: Case, seed: int, max_tokens: int) -> SamplingParams:
    spec = GrammarSpec(GrammarKind.JSON_SCHEMA, case.text)
    return SamplingParams(temperature=1.0, seed=seed, max_tokens=max_tokens, grammar=spec)


def problem(case: Case, choice: Choice, token_bytes: Callable[[int], bytes]) -> str | None:
    """Return what is wrong with an answer. A truncated answer must be a prefix of one that conforms."""
    if choice.finish_reason == "length":
        matcher = GrammarMatcher(compile_grammar(GrammarSpec(GrammarKind.JSON_SCHEMA, case.text), BYTES))
        try:
            for byte in b"".join(map(token_bytes, choice.token_ids)):
                matcher.append(byte)
        except GrammarError:
            return f"{case.name}: no answer begins with {choice.text!r}"
        return None
    if choice.finish_reason != "stop":
        return f"{case.name}: {choice.finish_reason}: {choice.error}"
    try:
        jsonschema.Draft202012Validator(case.schema).validate(json.loads(choice.text))
    except (ValueError, jsonschema.ValidationError) as error:
        return f"{case.name}: {choice.text!r}: {error}"
    return None


def generate(llm: LLM, asked: Sequence[tuple[Case, int]], max_tokens: int) -> tuple[int, int]:
    """Check that all answers conform; return how many were complete and how many were truncated."""
    prompts = [f"Here is an example of {case.name}, as JSON:\n" for case, _ in asked]
    outputs = llm.generate(prompts, [params(case, seed, max_tokens) for case, seed in asked], progress=False)
    choices = [output.choices[0] for output in outputs]
    problems = [
        problem(case, choice, llm.tokenizer.token_bytes)
        for (case, _), choice in zip(asked, choices, strict=True)
    ]
    assert not any(problems), [text for text in problems if text]
    whole = sum(choice.finish_reason == "stop" for choice in choices)
    return whole, len(choices) - whole


def test_answers_of_a_tiny_random_model_conform(
    tiny_llm: LLM, record_property: Callable[[str, object], None]
) -> None:
    """Run every schema once. A random model reaches unusual parts of a grammar."""
    whole, cut = generate(tiny_llm, [(case, number) for number, case in enumerate(SCHEMAS)], 100)
    record_property("validity", f"a tiny random model: {whole} whole answers conform, {cut} were cut off")
    assert whole > cut


@pytest.mark.assets
@pytest.mark.parametrize(
    "name", ["smollm2-135m-instruct-q4_1.gguf", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"]
)
def test_answers_of_real_models_conform(
    assets: Callable[[str], Path], name: str, record_property: Callable[[str, object], None]
) -> None:
    every = 1 if FULL else 9
    asked = [(case, seed) for seed in range(10 if FULL else 1) for case in SCHEMAS[::every]]
    with LLM(str(assets(name)), kv_memory="512MiB", progress=False) as llm:
        whole, cut = generate(llm, asked, 100 if FULL else 40)
    record_property("validity", f"{name}: {whole} whole answers conform, {cut} were cut off")
    assert whole + cut == len(asked)
