"""What the front end asks of the process that makes prompts, and what it is told.

Jobs are JSON, as requests are: msgpack knows no large numbers, and clients may write some.
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
SECONDS = struct.Struct("<d")  # with the socket of a new child: processor time for each of its jobs


class Setup(msgspec.Struct, frozen=True):
    """For the process, once."""

    assets: TextAssets


class ChatJob(msgspec.Struct, frozen=True, tag="chat"):
    chat: ChatTask
    max_model_len: int


class TextJob(msgspec.Struct, frozen=True, tag="text"):
    """Plain prompts."""

    texts: tuple[str, ...]
    add_special_tokens: bool
    max_model_len: int


class TokensJob(msgspec.Struct, frozen=True, tag="tokens"):
    """Of a text, or of a chat, that somebody wants to look at."""

    text: str
    chat: ChatTask | None
    add_special_tokens: bool
    with_texts: bool  # of single tokens


class DecodeJob(msgspec.Struct, frozen=True, tag="decode"):
    ids: tuple[int, ...]


Job = ChatJob | TextJob | TokensJob | DecodeJob


class ChatPrompt(msgspec.Struct, frozen=True, tag="chat"):
    """What `compose` made of a chat, and its prompt as ids."""

    text: str
    ids: tuple[int, ...]
    params: SamplingParams
    format: AnswerFormat | None
    grammars: tuple[FieldGrammar, ...]


class TextIds(msgspec.Struct, frozen=True, tag="ids"):
    ids: tuple[tuple[int, ...], ...]  # of each text


class ShownTokens(msgspec.Struct, frozen=True, tag="tokens"):
    """There may be a million: they are passed on as they are."""

    count: int
    ids: bytes  # JSON
    texts: bytes | None  # JSON


class DecodedText(msgspec.Struct, frozen=True, tag="decoded"):
    text: str


class RefusalKind(StrEnum):
    REQUEST = "request"
    LENGTH = "length"
    GRAMMAR = "grammar"
    TEMPLATE = "template"


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    kind: RefusalKind
    message: str
    param: str | None

    @classmethod
    def of(cls, error: OctavoError) -> "Refused":
        param = error.param if isinstance(error, RequestError) else None
        if isinstance(error, ContextLengthError):
            return cls(RefusalKind.LENGTH, str(error), param)
        if isinstance(error, GrammarError):
            return cls(RefusalKind.GRAMMAR, str(error), param)
        kind = RefusalKind.TEMPLATE if isinstance(error, TemplateError) else RefusalKind.REQUEST
        return cls(kind, str(error), param)

    def error(self) -> OctavoError:
        match self.kind:
            case RefusalKind.LENGTH:
                return ContextLengthError(self.message, self.param)
            case RefusalKind.GRAMMAR:
                return GrammarError(self.message, self.param or "grammar")
            case RefusalKind.TEMPLATE:
                return TemplateError(self.message)
            case RefusalKind.REQUEST:
                return RequestError(self.message, self.param)


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Nothing that was foreseen; the log has it."""


Made = ChatPrompt | TextIds | ShownTokens | DecodedText
Done = Made | Refused | Failed

encode_setup = msgspec.msgpack.Encoder().encode
decode_setup = msgspec.msgpack.Decoder(Setup).decode
encode_job = msgspec.json.Encoder().encode
decode_job = msgspec.json.Decoder(Job).decode
encode_done = msgspec.msgpack.Encoder().encode
decode_done = msgspec.msgpack.Decoder(Done).decode


def framed(message: bytes) -> bytes:
    return LENGTH.pack(len(message)) + message
