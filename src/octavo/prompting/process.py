"""Makes prompts: `python -m octavo.prompting.process PARENT SOCKET`.

    front end                      this process                     its children
    Setup ---------------------->  loads the tokenizer
    a socket to work on -------->  forks ------------------------>  says its pid; then job in, answer out

A template or a tokenizer can loop, panic or take all memory. It does so in a child, which the kernel ends
when its time or its memory is used up, and which the front end kills when nobody waits for it any more. The
next is a fork: what takes long, imports and loading the tokenizer, has been done before.
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
from octavo.frontend.chat import compose, render
from octavo.frontend.intake import check_length
from octavo.frontend.text_model import TextModel
from octavo.frontend.tool_use import ToolUse
from octavo.link.parent import live_and_die_with
from octavo.prompting.jobs import (
    LENGTH,
    SECONDS,
    ChatJob,
    ChatPrompt,
    DecodedText,
    DecodeJob,
    Done,
    Failed,
    Job,
    Refused,
    ShownTokens,
    TextIds,
    TextJob,
    TokensJob,
    decode_job,
    decode_setup,
    encode_done,
    framed,
)
from octavo.protocol import SamplingParams
from octavo.text.assets import TextAssets
from octavo.text.chat_template import ChatTemplate
from octavo.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

MEMORY_BYTES = 1 << 30  # of a child, beyond what it has when it is forked
NICENESS = 5  # tokens come first
MOST_CHARS = 1 << 20  # of a text that somebody wants to look at

CANNOT_READ = "the model's tokenizer or chat template failed on this text"


def main(parent: int, descriptor: int) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # threads do not survive a fork
    live_and_die_with(parent)
    os.nice(NICENESS)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a child ended
    with socket.socket(fileno=descriptor) as control:
        model = _text_model(decode_setup(_receive(control)).assets)
        longest = max(map(len, map(model.tokenizer.token_text, range(model.tokenizer.vocab_size))), default=1)
        while True:
            message, descriptors, _, _ = socket.recv_fds(control, SECONDS.size, 1)
            if not message:
                return
            if os.fork() == 0:
                try:
                    control.close()
                    _limit_memory()
                    (seconds,) = SECONDS.unpack(message)
                    _work(socket.socket(fileno=descriptors[0]), Maker(model, longest), seconds)
                finally:
                    os._exit(0)
            os.close(descriptors[0])


def _text_model(assets: TextAssets) -> TextModel:
    template = ChatTemplate(assets)
    return TextModel("", assets, Tokenizer(assets), template, dialect_of(template.source), SamplingParams())


def _work(work: socket.socket, maker: "Maker", seconds: float) -> None:
    """Until the front end has no more for us, or a job takes more than so many seconds."""
    work.sendall(framed(str(os.getpid()).encode()))
    with contextlib.suppress(EOFError, OSError):
        while True:
            message = _receive(work)
            signal.setitimer(signal.ITIMER_PROF, seconds)  # ends the process, in whatever code it is
            answer = encode_done(maker.done(message))
            signal.setitimer(signal.ITIMER_PROF, 0)
            work.sendall(framed(answer))


class Maker:
    def __init__(self, model: TextModel, longest_token: int) -> None:
        """`longest_token` has so many characters, and no other has more."""
        self._model = model
        self._longest_token = longest_token

    def done(self, message: bytes) -> Done:
        try:
            return self._make(decode_job(message))
        except OctavoError as error:
            return Refused.of(error)
        except MemoryError:
            raise
        except BaseException as error:  # a panic of the library is no `Exception`
            logger.exception("a prompt could not be made")
            if type(error).__name__ == "PanicException":
                return Refused.of(RequestError(CANNOT_READ, "prompt"))
            return Failed()

    def _make(self, job: Job) -> Done:
        match job:
            case ChatJob():
                task = compose(job.chat, self._model)
                assert isinstance(task.prompt, str)
                ids = self._ids(task.prompt, task.add_special_tokens, job.max_model_len)
                return ChatPrompt(task.prompt, ids, task.params, task.format, task.grammars)
            case TextJob():
                return TextIds(
                    tuple(self._ids(text, job.add_special_tokens, job.max_model_len) for text in job.texts)
                )
            case TokensJob():
                return self._shown(job)
            case DecodeJob():
                return DecodedText(self._decoded(job.ids))

    def _ids(self, text: str, add_special_tokens: bool, max_model_len: int) -> tuple[int, ...]:
        check_length(-(-len(text) // self._longest_token), max_model_len, at_least=True)
        ids = tuple(self._model.tokenizer.encode(text, add_special_tokens=add_special_tokens))
        check_length(len(ids), max_model_len)
        return ids

    def _shown(self, job: TokensJob) -> ShownTokens:
        tokenizer, text = self._model.tokenizer, job.text
        if job.chat is not None:
            text = render(job.chat.messages, ToolUse(), self._model, job.chat.template)
        if len(text) > MOST_CHARS:
            raise RequestError(
                f"the text has {len(text)} characters; at most {MOST_CHARS} are tokenised", "prompt"
            )
        ids = tokenizer.encode(text, add_special_tokens=job.add_special_tokens)
        texts = msgspec.json.encode([tokenizer.token_text(i) for i in ids]) if job.with_texts else None
        return ShownTokens(len(ids), msgspec.json.encode(ids), texts)

    def _decoded(self, ids: tuple[int, ...]) -> str:
        size = self._model.tokenizer.vocab_size
        if min(ids, default=0) < 0 or max(ids, default=0) >= size:
            raise RequestError(f"tokens: ids are whole numbers from 0 to {size - 1}", "tokens")
        return self._model.tokenizer.decode(ids, skip_special_tokens=False)


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if sys.platform == "linux" else 0
    most = pages * resource.getpagesize() + MEMORY_BYTES
    if pages:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
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
