"""The messages between the front end and the prompt process: jobs and their results.

Jobs are JSON, as requests are: clients may send integers that are too large for msgpack.
"""

import struct
from enum import StrEnum

import msgspec

from octavo.dialect.reader import AnswerFormat
from octavo.errors import ContextLengthError, GrammarError, OctavoError, RequestError, TemplateError
from octavo.frontend.chat import ChatTask
from octavo.frontend.intake import FieldGrammar
from octavo.protocol import SamplingParams
from octavo.text.assets import TextAssets

LENGTH = struct.Struct("<I")  # before every message, in bytes
SECONDS = struct.Struct("<d")  # sent with the socket of a new worker: its CPU time limit per job
READY = b"r"  # sent by the prompt process when it can fork workers


class Setup(msgspec.Struct, frozen=True):
    """The first message to the prompt process."""

    assets: TextAssets


class ChatJob(msgspec.Struct, frozen=True, tag="chat"):
    chat: ChatTask
    max_model_len: int


class TextJob(msgspec.Struct, frozen=True, tag="text"):
    """Tokenise plain prompts. With a suffix, each asks for the text between it and the suffix."""

    texts: tuple[str, ...]
    add_special_tokens: bool
    max_model_len: int
    suffix: str = ""


class TokensJob(msgspec.Struct, frozen=True, tag="tokens"):
    """Tokenise a text or a chat for /tokenize."""

    text: str
    chat: ChatTask | None
    add_special_tokens: bool
    with_texts: bool  # also return the text of each token


class DecodeJob(msgspec.Struct, frozen=True, tag="decode"):
    ids: tuple[int, ...]


Job = ChatJob | TextJob | TokensJob | DecodeJob


class ChatPrompt(msgspec.Struct, frozen=True, tag="chat"):
    """The result of `compose` for a chat, with its prompt as token ids."""

    text: str
    ids: tuple[int, ...]
    params: SamplingParams
    format: AnswerFormat | None
    grammars: tuple[FieldGrammar, ...]


class TextIds(msgspec.Struct, frozen=True, tag="ids"):
    ids: tuple[tuple[int, ...], ...]  # one tuple per text


class EncodedTokens(msgspec.Struct, frozen=True, tag="tokens"):
    """Up to a million tokens, already encoded: the front end copies them into the response."""

    count: int
    ids: bytes  # JSON
    texts: bytes | None  # JSON


class DecodedText(msgspec.Struct, frozen=True, tag="decoded"):
    text: str


class RejectionKind(StrEnum):
    REQUEST = "request"
    LENGTH = "length"
    GRAMMAR = "grammar"
    TEMPLATE = "template"


class PromptRejected(msgspec.Struct, frozen=True, tag="rejected"):
    kind: RejectionKind
    message: str
    param: str | None

    @classmethod
    def of(cls, error: OctavoError) -> "PromptRejected":
        param = error.param if isinstance(error, RequestError) else None
        if isinstance(error, ContextLengthError):
            return cls(RejectionKind.LENGTH, str(error), param)
        if isinstance(error, GrammarError):
            return cls(RejectionKind.GRAMMAR, str(error), param)
        kind = RejectionKind.TEMPLATE if isinstance(error, TemplateError) else RejectionKind.REQUEST
        return cls(kind, str(error), param)

    def error(self) -> OctavoError:
        match self.kind:
            case RejectionKind.LENGTH:
                return ContextLengthError(self.message, self.param)
            case RejectionKind.GRAMMAR:
                return GrammarError(self.message, self.param or "grammar")
            case RejectionKind.TEMPLATE:
                return TemplateError(self.message)
            case RejectionKind.REQUEST:
                return RequestError(self.message, self.param)


class PromptFailed(msgspec.Struct, frozen=True, tag="failed"):
    """An unexpected failure, which the log describes."""


JobOutput = ChatPrompt | TextIds | EncodedTokens | DecodedText
JobResult = JobOutput | PromptRejected | PromptFailed

encode_setup = msgspec.msgpack.Encoder().encode
decode_setup = msgspec.msgpack.Decoder(Setup).decode
encode_job = msgspec.json.Encoder().encode
decode_job = msgspec.json.Decoder(Job).decode
encode_result = msgspec.msgpack.Encoder().encode
decode_result = msgspec.msgpack.Decoder(JobResult).decode


def framed(message: bytes) -> bytes:
    return LENGTH.pack(len(message)) + message
