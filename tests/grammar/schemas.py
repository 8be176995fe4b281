"""A collection of JSON schemas in the shapes that clients send, each with an answer that conforms to it.

The schemas are our own (schemas.jsonl, one per line). Their shapes are those of public collections: every
keyword alone and combined with others, API records, tool arguments, configuration files. `SCHEMAS` are those
that our grammars support; `REFUSED` those that they reject, each with a word that the error must contain.
"""

from pathlib import Path

import msgspec

from data.json_types import Json, JsonObject


class Case(msgspec.Struct, frozen=True):
    name: str
    schema: JsonObject
    example: Json  # conforms
    refused_for: str = ""

    @property
    def text(self) -> str:
        return msgspec.json.encode(self.schema).decode()


_LINES = Path(__file__).with_name("schemas.jsonl").read_bytes().splitlines()
_CASES = [msgspec.json.decode(line, type=Case) for line in _LINES]
SCHEMAS = [case for case in _CASES if not case.refused_for]
REFUSED = [case for case in _CASES if case.refused_for]
