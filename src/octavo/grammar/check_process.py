"""Compiles grammars that nobody knows yet: `python -m octavo.grammar.check_process PARENT`.

Each in a child of its own, which the kernel ends when its time or its memory is used up. One after the other:
most take a millisecond or two, and two at a time would take two cores from those who compute tokens.
"""

import contextlib
import os
import resource
import signal
import sys

import msgspec

from octavo.errors import GrammarError
from octavo.grammar.checker import LOST, Verdict
from octavo.grammar.compiler import compile_grammar
from octavo.grammar.matcher import GrammarMatcher
from octavo.grammar.vocabulary import Vocabulary, byte_vocabulary
from octavo.link.parent import live_and_die_with
from octavo.protocol import GrammarSpec

CPU_SECONDS = 0.25
WALL_SECONDS = 5.0  # on a machine that has little time for us: then nothing is known of the grammar
MEMORY_BYTES = 1 << 30
NICENESS = 5  # tokens come first

NO_ANSWER = (
    "the grammar cannot be used: no answer conforms to it, or it is too complex from the first token on"
)
TOO_COMPLEX = "the grammar takes too long, or too much memory, to compile: make it simpler"


def main(parent: int) -> None:
    live_and_die_with(parent)
    os.nice(NICENESS)
    vocabulary = byte_vocabulary()
    for line in sys.stdin.buffer:
        verdict = _verdict(msgspec.json.decode(line, type=GrammarSpec), vocabulary)
        sys.stdout.buffer.write(msgspec.json.encode(verdict) + b"\n")
        sys.stdout.buffer.flush()


def _verdict(spec: GrammarSpec, vocabulary: Vocabulary) -> Verdict:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.close(reader)
            _limit_this_process()
            os.write(writer, msgspec.json.encode(_compile(spec, vocabulary)))
            os._exit(0)
        os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        told = answer.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
        return Verdict(LOST, is_final=False)
    return msgspec.json.decode(told, type=Verdict) if status == 0 else Verdict(TOO_COMPLEX)


def _compile(spec: GrammarSpec, vocabulary: Vocabulary) -> Verdict:
    try:
        compiled = compile_grammar(spec, vocabulary)
    except GrammarError as error:
        return Verdict(str(error))
    # With the first mask it shows whether there is any answer: `start: start` has none.
    return Verdict() if GrammarMatcher(compiled).can_begin() else Verdict(NO_ANSWER)


def _limit_this_process() -> None:
    """Timers that nobody handles end a process, in whatever code it is."""
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main(int(sys.argv[1]))
