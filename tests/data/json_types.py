"""JSON: what is in it is known to a test, and not to its types."""

from typing import Any

Json = Any
JsonObject = dict[str, Json]
