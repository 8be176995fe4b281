"""What goes over the socket between front end and engine: structs of `protocol` as msgpack. Never pickle."""

import msgspec

from octavo.protocol import Abort, EngineOutputs, GenerateRequest, Hello, Ready

ToEngine = Hello | GenerateRequest | Abort
FromEngine = Ready | EngineOutputs

encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode
