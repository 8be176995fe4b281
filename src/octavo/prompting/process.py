"""The prompt process: `python -m octavo.prompting.process PARENT SOCKET`.

    front end                      prompt process                   workers
    Setup ---------------------->  loads the tokenizer
          <----------------------  READY
    a socket ------------------->  forks a worker ----------------> sends its pid; then job in, result out

A template or tokenizer can loop, panic or exhaust memory. It does so in a worker, which the kernel kills when
a limit on CPU time or memory is exceeded, and which the front end kills when the client disconnects. The next
worker is only a fork: imports and loading the tokenizer, which are slow, happen before.
"""

import contextlib
import logging
import os
import resource
import signal
import socket
import sys
from pathlib import Path

import msgspec

from octavo.dialect.choose import dialect_of
from octavo.errors import OctavoError, RequestError
from octavo.frontend.chat import compose
from octavo.frontend.intake import check_length
from octavo.frontend.text_model import TextModel
from octavo.link.parent import bind_to_parent
from octavo.prompting.jobs import (
    LENGTH,
    READY,
    SECONDS,
    ChatJob,
    ChatPrompt,
    DecodedText,
    DecodeJob,
    EncodedTokens,
    Job,
    JobResult,
    PromptFailed,
    PromptRejected,
    TextIds,
    TextJob,
    TokensJob,
    decode_job,
    decode_setup,
    encode_result,
    framed,
)
from octavo.protocol import SamplingParams
from octavo.text.assets import TextAssets
from octavo.text.chat_template import ChatTemplate
from octavo.text.fill_in_middle import NO_FILL_IN_MIDDLE, FillInMiddle
from octavo.text.tokenizer import Tokenizer, is_panic

logger = logging.getLogger(__name__)

MEMORY_BYTES = 1 << 30  # limit of a worker, in addition to its memory at the fork
NICENESS = 5  # the engine has precedence
MAX_CHARS = 1 << 20  # of a text for /tokenize

PANICKED = "the model's tokenizer or chat template failed on this text"


def main(parent: int, descriptor: int) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # threads do not survive a fork
    bind_to_parent(parent)
    os.nice(NICENESS)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # reap workers automatically
    with socket.socket(fileno=descriptor) as control:
        model = _text_model(decode_setup(_receive(control)).assets)
        longest = max(map(len, map(model.tokenizer.token_text, range(model.tokenizer.vocab_size))), default=1)
        control.sendall(READY)
        while True:
            message, descriptors, _, _ = socket.recv_fds(control, SECONDS.size, 1)
            if not message:
                return
            if os.fork() == 0:
                try:
                    control.close()
                    _limit_memory()
                    (seconds,) = SECONDS.unpack(message)
                    _work(socket.socket(fileno=descriptors[0]), PromptBuilder(model, longest), seconds)
                finally:
                    os._exit(0)
            os.close(descriptors[0])


def _text_model(assets: TextAssets) -> TextModel:
    template = ChatTemplate(assets)
    return TextModel("", assets, Tokenizer(assets), template, dialect_of(template.source), SamplingParams())


def _work(work: socket.socket, builder: "PromptBuilder", seconds: float) -> None:
    """Run jobs until the front end closes the socket. A job may use `seconds` of CPU time."""
    work.sendall(framed(str(os.getpid()).encode()))
    with contextlib.suppress(EOFError, OSError):
        while True:
            message = _receive(work)
            signal.setitimer(signal.ITIMER_PROF, seconds)  # the signal ends the process, even in native code
            result = encode_result(builder.run(message))
            signal.setitimer(signal.ITIMER_PROF, 0)
            work.sendall(framed(result))


class PromptBuilder:
    def __init__(self, model: TextModel, longest_token: int) -> None:
        """`longest_token` is the maximum number of characters of a token."""
        self._model = model
        self._longest_token = longest_token

    def run(self, message: bytes) -> JobResult:
        try:
            return self._run(decode_job(message))
        except OctavoError as error:
            return PromptRejected.of(error)
        except MemoryError:
            raise
        except BaseException as error:  # a Rust panic is not an `Exception`
            logger.exception("cannot build a prompt")
            if is_panic(error):
                return PromptRejected.of(RequestError(PANICKED, "prompt"))
            return PromptFailed()

    def _run(self, job: Job) -> JobResult:
        match job:
            case ChatJob():
                task = compose(job.chat, self._model)
                assert isinstance(task.prompt, str)
                ids = self._ids(task.prompt, task.add_special_tokens, job.max_model_len)
                return ChatPrompt(task.prompt, ids, task.params, task.format, task.grammars)
            case TextJob():
                return TextIds(tuple(self._text_ids(text, job) for text in job.texts))
            case TokensJob():
                return self._tokens(job)
            case DecodeJob():
                return DecodedText(self._decoded(job.ids))

    def _text_ids(self, text: str, job: TextJob) -> tuple[int, ...]:
        if not job.suffix:
            return self._ids(text, job.add_special_tokens, job.max_model_len)
        fill, tokenizer = FillInMiddle.of_tokenizer(self._model.tokenizer), self._model.tokenizer
        if fill is None:
            raise RequestError(NO_FILL_IN_MIDDLE, "suffix")
        self._check_text(text + job.suffix, job.max_model_len)
        special = job.add_special_tokens
        ids = tuple(fill.prompt_ids(tokenizer, text, job.suffix, add_special_tokens=special))
        check_length(len(ids), job.max_model_len)
        return ids

    def _check_text(self, text: str, max_model_len: int) -> None:
        """Check the minimum number of tokens, before tokenising takes time."""
        check_length(-(-len(text) // self._longest_token), max_model_len, at_least=True)

    def _ids(self, text: str, add_special_tokens: bool, max_model_len: int) -> tuple[int, ...]:
        self._check_text(text, max_model_len)
        ids = tuple(self._model.tokenizer.encode(text, add_special_tokens=add_special_tokens))
        check_length(len(ids), max_model_len)
        return ids

    def _tokens(self, job: TokensJob) -> EncodedTokens:
        tokenizer, text = self._model.tokenizer, job.text
        if job.chat is not None:
            prompt = compose(job.chat, self._model).prompt
            assert isinstance(prompt, str)
            text = prompt
        if len(text) > MAX_CHARS:
            raise RequestError(f"the text has {len(text)} characters; the maximum is {MAX_CHARS}", "prompt")
        ids = tokenizer.encode(text, add_special_tokens=job.add_special_tokens)
        texts = msgspec.json.encode([tokenizer.token_text(i) for i in ids]) if job.with_texts else None
        return EncodedTokens(len(ids), msgspec.json.encode(ids), texts)

    def _decoded(self, ids: tuple[int, ...]) -> str:
        size = self._model.tokenizer.vocab_size
        if min(ids, default=0) < 0 or max(ids, default=0) >= size:
            raise RequestError(f"tokens: ids must be integers from 0 to {size - 1}", "tokens")
        return self._model.tokenizer.decode(ids, skip_special_tokens=False)


def _limit_memory() -> None:
    memory_pages = int(Path("/proc/self/statm").read_text().split()[0]) if sys.platform == "linux" else 0
    limit = memory_pages * resource.getpagesize() + MEMORY_BYTES
    if memory_pages:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _receive(connection: socket.socket) -> bytes:
    (size,) = LENGTH.unpack(_exactly(connection, LENGTH.size))
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    pieces = bytearray(size)
    view = memoryview(pieces)
    while view:
        num_bytes = connection.recv_into(view)
        if not num_bytes:
            raise EOFError
        view = view[num_bytes:]
    return bytes(pieces)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
