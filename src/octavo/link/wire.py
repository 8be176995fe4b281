"""Messages on the socket between front end and engine: structs of `protocol` and `view` as msgpack.
Never pickle."""

import msgspec

from octavo.protocol import (
    Abort,
    AskPrefixes,
    EngineOutputs,
    GenerateRequest,
    Goodbye,
    Hello,
    PrefixList,
    Ready,
)
from octavo.view import EngineView, Watch

ToEngine = Hello | Goodbye | GenerateRequest | Abort | AskPrefixes | Watch
FromEngine = Ready | EngineOutputs | PrefixList | EngineView

encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode
