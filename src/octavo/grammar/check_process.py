"""Check new grammars by compiling them: `python -m octavo.grammar.check_process PARENT`.

Each grammar is compiled in its own child process, which the kernel kills when it exceeds its time or memory
limit. Grammars are checked one after the other: most take one or two milliseconds, and two at a time would
take two cores away from the computation of tokens.
"""

import contextlib
import os
import resource
import signal
import sys

import msgspec

from octavo.errors import GrammarError
from octavo.grammar.checker import NOT_CHECKED, Verdict
from octavo.grammar.compiler import compile_grammar
from octavo.grammar.matcher import GrammarMatcher
from octavo.grammar.vocabulary import Vocabulary, byte_vocabulary
from octavo.link.parent import bind_to_parent
from octavo.protocol import GrammarSpec

CPU_SECONDS = 0.25
WALL_SECONDS = 5.0  # reached only on an overloaded machine; the check is then inconclusive
MEMORY_BYTES = 1 << 30
NICENESS = 5  # the computation of tokens has priority

NO_ANSWER = "the grammar cannot be used: no answer can match it, or it is too complex from the first token on"
TOO_COMPLEX = "the grammar takes too much time or memory to compile: simplify it"


def main(parent: int) -> None:
    bind_to_parent(parent)
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
    with os.fdopen(reader, "rb") as pipe:
        output = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
        return Verdict(NOT_CHECKED, is_final=False)
    return msgspec.json.decode(output, type=Verdict) if status == 0 else Verdict(TOO_COMPLEX)


def _compile(spec: GrammarSpec, vocabulary: Vocabulary) -> Verdict:
    try:
        compiled = compile_grammar(spec, vocabulary)
    except GrammarError as error:
        return Verdict(str(error))
    # Computing the first mask detects grammars that match nothing, such as `start: start`.
    return Verdict() if GrammarMatcher(compiled).can_begin() else Verdict(NO_ANSWER)


def _limit_this_process() -> None:
    """Set limits on time and memory. Signals of timers without a handler kill the process in any code."""
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main(int(sys.argv[1]))
