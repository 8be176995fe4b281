"""What the request bodies of all APIs have in common. Unknown fields are ignored and known ones are checked
strictly: a string is not accepted as a number. Ranges are validated in `frontend.intake`.

Validation runs on the event loop, so it must be fast for every body. It stops at the first invalid item of a
list: pydantic needs more than a kilobyte for each error, and a body can have a million items.
"""

import hashlib
from functools import cached_property
from typing import Annotated, Any, TypeVar

import pydantic
from pydantic import Field
from pydantic_core import PydanticSerializationError

from octavo.server.explanation import ExplainedParts
from octavo.server.http.errors import invalid
from octavo.text.chat_template import MAX_DEPTH

MAX_SALT = 256  # characters, which the prefix cache keeps as long as a block with this salt

Item = TypeVar("Item")
FailFastList = Annotated[list[Item], Field(fail_fast=True)]


class WireModel(pydantic.BaseModel, strict=True, extra="ignore", allow_inf_nan=False):
    """In every field, `null` means the same as omitting it."""


class OctavoOptions(WireModel):
    """What the `octavo` object of a response contains besides timings, cache hits and the seed."""

    prompt: bool = Field(False, description="include the prompt as rendered by the chat template")
    token_ids: bool = Field(False, description="include the token ids of prompt and answer")


class GenerationBody(WireModel):
    """The fields that all requests for an answer have, in any API."""

    model: str | None = None
    stream: bool | None = None
    # Extensions: how the server runs a request, and what it says about it.
    priority: int | None = Field(None, description="smaller values run first")
    timeout: float | None = Field(None, description="seconds after which the request is aborted")
    cache_salt: Annotated[str, Field(max_length=MAX_SALT)] | None = Field(
        None, description="only prompts with the same salt share cached prefixes"
    )
    octavo: bool | OctavoOptions | None = Field(
        None, description="add timings, cache hits and the seed to the response"
    )

    @cached_property
    def digest(self) -> bytes:
        """A digest of all fields that may change the response, apart from its beginning.

        Raises 400 if a field is nested too deeply.
        """
        try:
            content = self.model_dump_json(exclude={"resume_from", "timeout", "priority", "user"})
        except PydanticSerializationError as error:  # strings are Unicode and numbers are finite
            raise invalid(
                f"the body is nested too deeply: send at most {MAX_DEPTH} levels of lists and objects"
            ) from error
        return hashlib.blake2b(
            content.encode(), digest_size=32, person=type(self).__name__[:16].encode()
        ).digest()

    @property
    def is_stream(self) -> bool:
        return bool(self.stream)

    @property
    def includes_event_ids(self) -> bool:
        """Whether the stream can be continued after an event."""
        return False

    @property
    def last_event_id(self) -> str | None:
        """The event after which the stream continues, if the body names one."""
        return None

    @property
    def wants_explanation(self) -> bool:
        return bool(self.octavo)

    @property
    def shown(self) -> ExplainedParts:
        options = self.octavo
        return (
            ExplainedParts(options.prompt, options.token_ids)
            if isinstance(options, OctavoOptions)
            else ExplainedParts()
        )


# -- alternatives in the OpenAPI document, for what types alone do not say ---------------------------------


def needs(**types: Any) -> list[dict[str, Any]]:
    """Return OpenAPI alternatives: one field present with its type. (`null` means absent.)"""
    return [present(**{name: {"type": kind}}) for name, kind in types.items()]


def present(**fields: dict[str, Any]) -> dict[str, Any]:
    """Return an OpenAPI schema: all fields present, each matching its schema."""
    return {"required": list(fields), "properties": fields}


def if_given(**fields: dict[str, Any]) -> dict[str, Any]:
    """Return an OpenAPI schema: those fields that are present match their schemas."""
    return {"properties": fields}
