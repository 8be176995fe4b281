"""Counters never decrease when engines are replaced."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from octavo.link.heartbeat import Phase
from octavo.observe.engine_tally import EngineTally
from octavo.protocol import EngineStats

NEW = EngineStats(
    num_running=0,
    num_waiting=0,
    blocks_total=9,
    blocks_free=9,
    blocks_cached=0,
    steps=1,  # the warm-up
    tokens_computed=1,
    prompt_tokens=1,
    prompt_tokens_cached=0,
    tokens_sampled=1,
    preemptions=0,
    step_seconds=5.0,
    tokens_drafted=3,
    tokens_accepted=2,
)


def after_step(stats: EngineStats, prompt_tokens: int) -> EngineStats:
    return msgspec.structs.replace(
        stats,
        steps=stats.steps + 1,
        prompt_tokens=stats.prompt_tokens + prompt_tokens,
        prompt_tokens_cached=stats.prompt_tokens_cached + prompt_tokens // 2,
        preemptions=stats.preemptions + prompt_tokens % 2,
        tokens_drafted=stats.tokens_drafted + prompt_tokens % 7,
        tokens_accepted=stats.tokens_accepted + prompt_tokens % 5,
        step_seconds=stats.step_seconds + 0.25,
    )


@given(st.lists(st.lists(st.integers(0, 100))))
def test_counters_accumulate_over_engine_restarts(lives: list[list[int]]) -> None:
    tally = EngineTally()
    for life in lives:
        tally.engine_ready(NEW)
        stats = NEW
        for prompt_tokens in life:
            stats = after_step(stats, prompt_tokens)
            tally.note(stats)
            tally.note(stats)  # a message without a step
        assert tally.is_ready
        tally.engine_lost()
        assert not tally.is_ready
    steps = [prompt_tokens for life in lives for prompt_tokens in life]
    counts = tally.counts
    assert counts.steps == tally.step_seconds.count == len(steps)
    assert counts.prompt_tokens == sum(steps)
    assert counts.prompt_tokens_cached == sum(step // 2 for step in steps)
    assert counts.preemptions == sum(step % 2 for step in steps)
    assert counts.tokens_drafted == sum(step % 7 for step in steps)
    assert counts.tokens_accepted == sum(step % 5 for step in steps)
    assert tally.step_seconds.sum == 0.25 * len(steps)


def test_startup_phases_are_those_of_the_last_start() -> None:
    tally = EngineTally()
    for began in (0.0, 100.0):
        tally.start_began(began)
        for after, phase in ((1, Phase.STARTING), (2, Phase.OPENING), (3, Phase.OPENING), (7, Phase.SERVING)):
            tally.note_phase(phase, began + after)
        tally.note_phase(Phase.SERVING, began + 50)
        assert tally.phase_seconds == {Phase.STARTING: 2.0, Phase.OPENING: 5.0}
        assert tally.phase_summary() == "starting 2.00 s, opening 5.00 s"
