"""A sequence with a late grammar mask skips steps; nothing else changes."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from grammar.test_jump import SPECS
from octavo import LLM, RequestOutput, SamplingParams
from octavo.runner.slot_grammars import AllowedTokens, SlotGrammars


@pytest.fixture(scope="module")
def llm(tiny_checkpoint: Path) -> Iterator[LLM]:
    """Use our own kernels, in which the rows of a batch are independent of each other."""
    with LLM(str(tiny_checkpoint), kv_memory="4MiB", kernels="portable", max_running=8) as llm:
        yield llm


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make masks and forced tokens late at random, and record which were late in the returned list."""
    rng = random.Random(7)
    noted: list[str] = []
    allowed, forced = SlotGrammars.allowed, SlotGrammars.forced

    def allowed_late(slots: SlotGrammars, slot: int, until: float) -> AllowedTokens | None:
        found = allowed(slots, slot, until + 300)
        if slot in slots._slots and rng.random() < 0.4:
            noted.append("mask")
            slots._late.add(slot)
            return None
        return found

    def forced_late(slots: SlotGrammars, slot: int, until: float) -> tuple[int, ...]:
        if rng.random() < 0.4:
            noted.append("forced")
            return ()
        return forced(slots, slot, until + 300)

    monkeypatch.setattr(SlotGrammars, "allowed", allowed_late)
    monkeypatch.setattr(SlotGrammars, "forced", forced_late)
    return noted


def ask(llm: LLM, *, urgency: int = 0) -> list[object]:
    """Run constrained and other sequences together; with `urgency`, later ones preempt earlier ones."""
    ended: dict[str, RequestOutput] = {}
    number = 0
    for temperature in (0.0, 1.0):
        for spec in (None, *SPECS.values()):
            for logprobs in (None, 2):
                params = SamplingParams(
                    temperature=temperature,
                    seed=number,
                    n=2,
                    max_tokens=60,
                    logprobs=logprobs,
                    prompt_logprobs=1 if number % 3 == 0 else None,
                    repetition_penalty=1.1,
                    grammar=spec,
                )
                llm.add_request(
                    f"Request {number}", params, request_id=str(number), priority=-urgency * number
                )
                ended |= {output.request_id: output for output in llm.step().finished}
                number += 1
    while llm.has_unfinished:
        ended |= {output.request_id: output for output in llm.step().finished}
    return [
        (
            output.prompt_logprobs,
            [(choice.token_ids, choice.logprobs, choice.text) for choice in output.choices],
        )
        for _, output in sorted(ended.items())
    ]


@pytest.mark.parametrize("urgency", [0, 1])
def test_late_masks_do_not_change_tokens(llm: LLM, request: pytest.FixtureRequest, urgency: int) -> None:
    plain = ask(llm)
    late: list[str] = request.getfixturevalue("late")
    assert ask(llm, urgency=urgency) == plain
    assert {"mask", "forced"} <= set(late)
    llm.check()


def test_unconstrained_sequences_get_a_token_in_every_step(llm: LLM, late: list[str]) -> None:
    plain = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    constrained = SamplingParams(temperature=0, max_tokens=60, grammar=SPECS["records"])
    outputs = llm.generate(["a", "b", "c"], [plain, constrained, plain], progress=False)
    assert "mask" in late
    assert [outputs[i].choices[0].timings.num_passed_over for i in (0, 2)] == [0, 0]
