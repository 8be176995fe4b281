"""Grammars made to harm: a verdict comes soon, and what is accepted cannot do much harm either."""

import random

import torch

from grammar.hostile import HOSTILE
from octavo.errors import GrammarError
from octavo.grammar.checker import GrammarChecker
from octavo.grammar.compiler import compile_grammar
from octavo.grammar.matcher import GrammarMatcher
from octavo.grammar.vocabulary import Vocabulary, byte_vocabulary
from octavo.protocol import GrammarSpec
from server.process import processor_seconds

LONGEST = 2.0  # seconds of a processor to a verdict
ANSWER = 200  # tokens


def test_every_verdict_takes_at_most_two_seconds_of_a_processor() -> None:
    """What it takes on the clock depends on who else wants the processor."""
    assert len(HOSTILE) >= 50
    checker = GrammarChecker()
    checker.submit(HOSTILE["lark: no grammar"]).exception()  # the process is there
    assert checker._process is not None
    try:
        late, num_refused = {}, 0
        for name, spec in HOSTILE.items():
            before = processor_seconds(checker._process.pid)
            num_refused += checker.submit(spec).exception() is not None
            seconds = processor_seconds(checker._process.pid) - before
            if seconds > LONGEST:
                late[name] = seconds
    finally:
        checker.close()
    assert not late
    assert num_refused > len(HOSTILE) // 2


def random_answer(spec: GrammarSpec, vocabulary: Vocabulary, dice: random.Random) -> tuple[int, bool]:
    """How many tokens it had, and whether it ended because the grammar became too complex."""
    mask = torch.zeros(-(-vocabulary.vocab_size // 32), dtype=torch.int32)
    bits = torch.arange(32, dtype=torch.int32)
    matcher = GrammarMatcher(compile_grammar(spec, vocabulary))
    for number in range(ANSWER):
        try:
            matcher.fill(mask.data_ptr(), mask.nbytes)
            choices = torch.nonzero((mask[:, None] >> bits & 1).flatten()).flatten().tolist()
            token_id = dice.choice(choices)
            if token_id == 256:
                return number, False
            matcher.append(token_id)
        except GrammarError:
            return number, True
    return ANSWER, False


def test_what_is_accepted_ends_alike_every_time() -> None:
    """With an answer or with an error, at the same token: bounds are counted in steps, not in seconds."""
    vocabulary, checker = byte_vocabulary(), GrammarChecker()
    accepted = [name for name, spec in HOSTILE.items() if checker.submit(spec).exception() is None]
    checker.close()
    ends = {}
    for name in accepted:
        first, second = (random_answer(HOSTILE[name], vocabulary, random.Random(name)) for _ in range(2))
        assert first == second
        ends[name] = first
    assert ends["lark: rules after a beginning"] == (1, True)
