"""Messages between front end and engine round-trip, and other bytes are rejected."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.link.wire import decode_from_engine, decode_to_engine, encode
from octavo.protocol import (
    Abort,
    EngineFacts,
    EngineOutputs,
    EngineStats,
    Failure,
    FailureCode,
    FinishReason,
    GenerateRequest,
    Hello,
    PrefillChunk,
    Ready,
    SamplingParams,
    Timings,
    TokenLogprob,
    TokenOutput,
)

STATS = EngineStats(
    num_running=1,
    num_waiting=2,
    blocks_total=3,
    blocks_free=4,
    blocks_cached=5,
    steps=6,
    tokens_computed=7,
    prompt_tokens=8,
    prompt_tokens_cached=9,
    tokens_sampled=10,
    preemptions=11,
)


def test_messages_to_the_engine_round_trip() -> None:
    params = SamplingParams(seed=(1 << 64) - 1, logit_bias={7: -0.5}, stop=("a", "\u00e9"), max_tokens=3)
    request = GenerateRequest(
        request_id="r", choice=2, prompt_ids=(1, 2), params=params, deadline=1.5, resume_ids=(3,)
    )
    for message in (Hello(), Abort("r"), Abort("r", 1), request):
        assert decode_to_engine(encode(message)) == message


@given(st.floats(allow_nan=False), st.floats(allow_nan=False, max_value=0.0))
def test_floats_cross_the_wire_bit_for_bit(seconds: float, logprob: float) -> None:
    output = TokenOutput(
        request_id="r",
        choice=0,
        token_ids=(5,),
        logprobs=(TokenLogprob(5, logprob, ((5, logprob), (6, -seconds))),),
        finish=FinishReason.STOP,
        timings=Timings(
            seconds, 0.0, 0.0, (PrefillChunk(0, 512, seconds), PrefillChunk(512, 1, -seconds)), 7
        ),
    )
    message = EngineOutputs((output,), STATS)
    assert decode_from_engine(encode(message)) == message


@pytest.mark.parametrize("code", FailureCode)
def test_failures_keep_their_code(code: FailureCode) -> None:
    request = GenerateRequest(request_id="r", prompt_ids=(1,), params=SamplingParams())
    refused = TokenOutput.of_rejected(request, "a reason")
    assert refused.failure == Failure(FailureCode.ENGINE_FAILED, "a reason")
    output = msgspec.structs.replace(refused, failure=Failure(code, "a reason"))
    message = EngineOutputs((output,), STATS)
    assert decode_from_engine(encode(message)) == message


def test_ready_round_trips() -> None:
    facts = EngineFacts(
        vocab_size=1,
        max_model_len=2,
        block_size=3,
        num_blocks=4,
        device="cpu",
        dtype="x",
        explanation=("a",),
        kv_bytes=5,
        system_fingerprint="fp_0",
    )
    assert decode_from_engine(encode(Ready(facts, STATS))) == Ready(facts, STATS)


@given(st.binary(max_size=200))
def test_random_bytes_raise_only_expected_errors(data: bytes) -> None:
    for decode in (decode_to_engine, decode_from_engine):
        try:
            decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
        pytest.fail("random bytes were decoded as a message")
