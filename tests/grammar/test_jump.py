"""Tokens that a grammar forces are computed as one chunk, which does not change the answer."""

import pytest

from grammar.schemas import SCHEMAS
from octavo import LLM, GrammarKind, GrammarSpec, SamplingParams

SPECS = {
    "a long constant": GrammarSpec(
        GrammarKind.REGEX, "(yes|no), that is what I have been saying all along[.!]{3}"
    ),
    "longer than a jump": GrammarSpec(GrammarKind.REGEX, "[ab]c{100}[de]{5}"),
    "records": GrammarSpec(
        GrammarKind.JSON_SCHEMA, next(case.text for case in SCHEMAS if case.name == "a page of results")
    ),
    "choice": GrammarSpec(GrammarKind.CHOICE, '["north by north west", "north by north east", "south"]'),
}


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_jumping_changes_only_the_number_of_steps(tiny_llm: LLM, name: str, temperature: float) -> None:
    """With logprobs, every token has its own step."""

    def answers(logprobs: int | None) -> tuple[list[tuple[int, ...]], int]:
        params = SamplingParams(
            temperature=temperature,
            seed=5,
            n=3,
            max_tokens=150,
            repetition_penalty=1.1,
            logprobs=logprobs,
            grammar=SPECS[name],
        )
        before = tiny_llm.stats().steps
        (output,) = tiny_llm.generate("North?", params, progress=False)
        return [choice.token_ids for choice in output.choices], tiny_llm.stats().steps - before

    jumped, few = answers(None)
    walked, many = answers(0)
    assert jumped == walked
    assert few < many
