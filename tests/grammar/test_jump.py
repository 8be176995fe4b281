"""Tokens that a grammar forces are computed as one chunk, which does not change the answer."""

from typing import Any

import pytest

from grammar.schemas import SCHEMAS
from octavo import LLM, GrammarKind, GrammarSpec, SamplingParams
from octavo.runner import model_runner
from octavo.sampling.sampler import SampleRow

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
def test_jumping_changes_only_the_number_of_rows(
    tiny_llm: LLM, name: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With logprobs, every token is sampled from its own row of logits.

    Rows are counted, not steps: a sequence whose mask is late skips a step, which depends on time.
    """
    rows: list[SampleRow] = []

    def counted(*fields: Any) -> SampleRow:
        rows.append(SampleRow(*fields))
        return rows[-1]

    monkeypatch.setattr(model_runner, "SampleRow", counted)

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
        before = len(rows)
        (output,) = tiny_llm.generate("North?", params, progress=False)
        return [choice.token_ids for choice in output.choices], len(rows) - before

    jumped, few = answers(None)
    walked, many = answers(0)
    assert jumped == walked
    assert few < many == sum(map(len, walked))
