"""What a request asks for, after its references have been resolved."""

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.server.openai.responses.items import Item
from octavo.server.openai.responses.schema import ResponsesRequest
from octavo.server.openai.responses.tools import ToolBox


@dataclass(frozen=True)
class AskedResponse:
    body: ResponsesRequest
    tools: ToolBox
    earlier: Sequence[Item]  # of the conversation that it continues
    given: Sequence[Item]  # its own input
    owner: bytes  # a digest of its API key
