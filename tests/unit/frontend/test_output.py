"""Detokenisation of outputs: stop strings across tokens, stop tokens, late outputs."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.frontend.intake import PreparedRequest
from octavo.frontend.output import RequestOutput, RequestText
from octavo.protocol import Abort, Failure, FailureCode, FinishReason, SamplingParams, Timings, TokenOutput
from octavo.server.explanation import ExplainedParts, explanation
from octavo.server.openai.response import usage_of
from octavo.text.assets import TextAssets
from octavo.text.tokenizer import Tokenizer

EOS = 256
NUM_DRAFTED, NUM_ACCEPTED = 12, 9


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Every byte is a token, and 256 is <eos>."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({char: index for index, char in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<eos>"])
    return Tokenizer(TextAssets(backend.to_str(), eos_token="<eos>", eos_ids=(EOS,)))


def drive(
    tokenizer: Tokenizer, token_ids: list[int], params: SamplingParams, finish: FinishReason
) -> tuple[str, RequestOutput, list[Abort]]:
    """Send one token per output, like an engine; after an abort, send the outputs that were in flight."""
    text = RequestText(PreparedRequest("r", "r", None, (1,), params, (None,)), tokenizer)  # type: ignore[arg-type]
    streamed, aborts = "", []
    for index, token in enumerate(token_ids):
        last = index == len(token_ids) - 1
        processed = text.process(
            TokenOutput(
                request_id="r",
                choice=0,
                token_ids=(token,),
                finish=finish if last else None,
                timings=Timings(0, 0, 0) if last else None,
                num_drafted=NUM_DRAFTED if last else 0,
                num_accepted=NUM_ACCEPTED if last else 0,
            )
        )
        streamed += processed.delta.text if processed.delta else ""
        if processed.abort:
            aborts.append(processed.abort)
    assert processed.finished is not None
    return streamed, processed.finished, aborts


@given(
    text=st.text(alphabet="ab" + string.whitespace + "é😀", min_size=1, max_size=30),
    stop=st.text(alphabet="ab 😀", min_size=1, max_size=3),
)
def test_stream_and_result_end_at_the_stop_string(tokenizer: Tokenizer, text: str, stop: str) -> None:
    ids = tokenizer.encode(text)
    params = SamplingParams(stop=(stop,), seed=0)
    streamed, result, aborts = drive(tokenizer, ids, params, FinishReason.LENGTH)
    assert streamed == result.text == text.split(stop, maxsplit=1)[0]
    if stop in text:
        assert result.finish_reason == "stop"
        assert result.choices[0].stop_reason == stop
        # Tokens count up to the one that completed the stop string; tokens in flight after it do not.
        assert tokenizer.decode(result.token_ids) == text.split(stop, maxsplit=1)[0] + stop
        completes_with_last_token = text.find(stop) + len(stop) == len(text)
        assert len(aborts) == (0 if completes_with_last_token else 1)
    else:
        assert (result.finish_reason, result.token_ids, aborts) == ("length", tuple(ids), [])


def test_a_result_its_explanation_and_the_usage_count_drafted_and_accepted_tokens(
    tokenizer: Tokenizer,
) -> None:
    _, result, _ = drive(tokenizer, tokenizer.encode("ab"), SamplingParams(seed=0), FinishReason.LENGTH)
    (choice,) = result.choices
    assert (choice.num_drafted, choice.num_accepted) == (NUM_DRAFTED, NUM_ACCEPTED)
    for shown_with in (tokenizer, None):
        shown = explanation([result], shown_with, tokenise_seconds=0, num_restarts=0, shown=ExplainedParts())
        (explained,) = shown["requests"][0]["choices"]
        assert (explained["drafted_tokens"], explained["accepted_tokens"]) == (NUM_DRAFTED, NUM_ACCEPTED)
    details = usage_of([result, result])["completion_tokens_details"]
    assert (details["drafted_tokens"], details["accepted_tokens"]) == (2 * NUM_DRAFTED, 2 * NUM_ACCEPTED)


def test_a_stop_token_is_counted_but_is_not_text(tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode("ab"), tokenizer.encode("c")[0]]
    params = SamplingParams(stop_token_ids=(ids[-1],), seed=0)
    streamed, result, _ = drive(tokenizer, ids, params, FinishReason.STOP)
    assert (streamed, result.text, result.token_ids) == ("ab", "ab", tuple(ids))
    assert result.choices[0].stop_reason == ids[-1]


def test_an_incomplete_character_is_emitted_only_at_the_end(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a😀")[:-1]
    streamed, result, _ = drive(tokenizer, ids, SamplingParams(seed=0), FinishReason.LENGTH)
    assert streamed == result.text == "a\N{REPLACEMENT CHARACTER}"


def test_no_stop_string_ends_the_text_before_min_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a.b.c.d")
    params = SamplingParams(stop=(".",), min_tokens=4, seed=0)
    streamed, result, _ = drive(tokenizer, ids, params, FinishReason.LENGTH)
    assert (streamed, result.text, len(result.token_ids)) == ("a.b", "a.b", 4)
    assert result.finish_reason == "stop"


def test_a_failure_is_reported_with_its_message_and_code(tokenizer: Tokenizer) -> None:
    params = SamplingParams(seed=0)
    text = RequestText(
        PreparedRequest("r", "r", None, (1,), params, (None,)),  # type: ignore[arg-type]
        tokenizer,
    )
    failed = TokenOutput(
        request_id="r",
        choice=0,
        finish=FinishReason.ERROR,
        timings=Timings(0, 0, 0),
        failure=Failure(FailureCode.GRAMMAR_TOO_COMPLEX, "make it simpler"),
    )
    processed = text.process(failed)
    assert processed.delta is not None
    assert processed.finished is not None
    for reported in (processed.delta, processed.finished.choices[0]):
        assert (reported.finish_reason, reported.error) == ("error", "make it simpler")
        assert reported.error_code is FailureCode.GRAMMAR_TOO_COMPLEX
