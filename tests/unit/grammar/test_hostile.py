"""Hostile grammars get a verdict quickly, and accepted ones have bounded cost."""

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

LONGEST = 2.0  # CPU seconds per verdict
ANSWER = 200  # tokens


def test_every_verdict_takes_at_most_two_cpu_seconds() -> None:
    """Elapsed time would depend on other load on the machine."""
    assert len(HOSTILE) >= 50
    checker = GrammarChecker()
    checker.submit(HOSTILE["lark: no grammar"]).exception()  # starts the process
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
    """Return the length of a random answer and whether the grammar became too complex in it."""
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


def test_accepted_hostile_grammars_end_deterministically() -> None:
    """They end with an answer or an error at the same token: limits count steps, not seconds."""
    vocabulary, checker = byte_vocabulary(), GrammarChecker()
    accepted = [name for name, spec in HOSTILE.items() if checker.submit(spec).exception() is None]
    checker.close()
    ends = {}
    for name in accepted:
        first, second = (random_answer(HOSTILE[name], vocabulary, random.Random(name)) for _ in range(2))
        assert first == second
        ends[name] = first
    assert ends["lark: rules after a beginning"] == (1, True)
    opening = len('<tool_call>\n{"name": "write"}\n')
    assert ends["call: rules after a beginning"] == (opening + 1, True)
