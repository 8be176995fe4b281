"""The sampling parameters a checkpoint recommends, for requests that say nothing."""

from collections.abc import Mapping
from typing import Any

from octavo.errors import CheckpointError, RequestError
from octavo.protocol import SamplingParams

RECOMMENDED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def default_params(generation_config: Mapping[str, Any]) -> SamplingParams:
    """Only what `generation_config.json` says; where it asks for greedy decoding, that."""
    values = {
        name: generation_config[name] for name in RECOMMENDED if generation_config.get(name) is not None
    }
    if generation_config.get("do_sample") is False:
        values["temperature"] = 0.0
    try:
        return SamplingParams(**values)
    except RequestError as error:
        raise CheckpointError(
            f"generation_config.json of the checkpoint has a bad value: {error}. Correct {error.param} there,"
            " or remove it."
        ) from error
