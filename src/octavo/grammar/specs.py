"""Create grammar specs from schemas, pydantic models and lists of choices."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pydantic

from octavo.errors import GrammarError
from octavo.protocol import GrammarKind, GrammarSpec

Schema = Mapping[str, Any] | type[pydantic.BaseModel]


def of_schema(schema: Schema) -> GrammarSpec:
    """Return the spec of a JSON schema or a pydantic model. Answers have properties in the same order."""
    is_model = isinstance(schema, type) and issubclass(schema, pydantic.BaseModel)
    value = schema.model_json_schema() if is_model else schema  # type: ignore[union-attr]
    try:
        return GrammarSpec(GrammarKind.JSON_SCHEMA, msgspec.json.encode(value).decode())
    except (TypeError, msgspec.MsgspecError, RecursionError) as error:
        raise GrammarError(f"the schema cannot be encoded as JSON: {error}") from error


def of_choices(choices: Sequence[str]) -> GrammarSpec:
    return GrammarSpec(GrammarKind.CHOICE, msgspec.json.encode(list(choices)).decode())
