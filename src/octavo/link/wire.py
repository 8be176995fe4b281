"""Messages on the socket between front end and engine: structs of `protocol` and `view` as msgpack.
Never pickle."""

import msgspec

from octavo.protocol import Abort, EngineOutputs, GenerateRequest, Hello, Ready
from octavo.view import EngineView, Watch

ToEngine = Hello | GenerateRequest | Abort | Watch
FromEngine = Ready | EngineOutputs | EngineView

encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode
