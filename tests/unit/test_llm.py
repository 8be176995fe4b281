"""The Python API, on a tiny random model whose tokens are bytes."""

import asyncio
import gc
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from octavo import LLM, RequestOutput, SamplingParams, StreamDelta
from octavo.errors import ConfigError, RequestError
from octavo.frontend.intake import Prompt
from octavo.frontend.output import Processed, RequestText
from octavo.plan import StepPlan, StepResult
from octavo.protocol import TokenOutput

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
SAMPLED = SamplingParams(seed=7, max_tokens=12, ignore_eos=True)


def content(output: RequestOutput) -> list[tuple[str, tuple[int, ...], str]]:
    return [(choice.text, choice.token_ids, choice.finish_reason) for choice in output.choices]


def logprobs(output: RequestOutput) -> list[float]:
    return [token.logprob for choice in output.choices for token in choice.logprobs or ()]


def test_results_are_complete_and_in_order(tiny_llm: LLM) -> None:
    prompts: list[Prompt] = ["first", [70, 71, 72], "the third is longer than the others"]
    outputs = tiny_llm.generate(prompts, GREEDY)
    assert [output.prompt for output in outputs] == ["first", None, prompts[2]]
    assert outputs[1].prompt_ids == (70, 71, 72)
    for output in outputs:
        assert len(output.token_ids) == 12
        assert output.finish_reason == "length"
        assert output.text == tiny_llm.tokenizer.decode(output.token_ids)
        assert min(output.timings.queue, output.timings.prefill, output.timings.decode) >= 0
        assert output.timings.prefill > 0


def test_batching_does_not_change_results(tiny_llm: LLM) -> None:
    prompts = [f"prompt number {number} " * (number + 1) for number in range(6)]
    params = [msgspec.structs.replace(SAMPLED, seed=number, n=2, logprobs=2) for number in range(6)]
    together = tiny_llm.generate(prompts, params)
    for prompt, its_params, output in zip(prompts, params, together, strict=True):
        alone = tiny_llm.generate(prompt, its_params)[0]
        assert content(alone) == content(output)
        assert logprobs(alone) == pytest.approx(logprobs(output), abs=1e-4)
        assert len(logprobs(alone)) == 2 * 12


def test_choices_differ_and_are_reproducible_from_the_seed(tiny_llm: LLM) -> None:
    params = msgspec.structs.replace(SAMPLED, n=4)
    first = tiny_llm.generate("hello", params)[0]
    assert len({choice.text for choice in first.choices}) == 4
    assert content(tiny_llm.generate("hello", params)[0]) == content(first)
    unseeded = tiny_llm.generate("hello", msgspec.structs.replace(params, seed=None))[0]
    reseeded = tiny_llm.generate("hello", msgspec.structs.replace(params, seed=unseeded.seed))[0]
    assert content(reseeded) == content(unseeded) != content(first)


def test_choices_share_the_prompt_blocks(tiny_checkpoint: Path) -> None:
    with LLM(str(tiny_checkpoint), kv_memory="4MiB", block_size=8) as llm:
        llm.generate([list(range(64, 128))], msgspec.structs.replace(SAMPLED, n=4, max_tokens=2))
        # 64 prompt tokens: computed once; three other choices reuse all blocks except the last.
        assert llm.stats().prompt_tokens_cached == 3 * 56
        assert llm.stats().tokens_computed <= 64 + 3 * 8 + 4


def test_a_stream_adds_up_to_the_result(tiny_llm: LLM) -> None:
    whole = tiny_llm.generate("stream me", SAMPLED)[0]
    deltas = list(tiny_llm.stream("stream me", SAMPLED))
    assert "".join(delta.text for delta in deltas) == whole.text
    assert tuple(token for delta in deltas for token in delta.token_ids) == whole.token_ids
    assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + ["length"]


def test_closing_a_stream_aborts_the_request(tiny_llm: LLM) -> None:
    stream = tiny_llm.stream("to be left early", msgspec.structs.replace(GREEDY, max_tokens=200))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    tiny_llm.step()
    assert tiny_llm.stats().num_running == 0
    assert not tiny_llm.has_unfinished


def test_chat_equals_generate_on_the_rendered_prompt(tiny_llm: LLM) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    chat = tiny_llm.chat(messages, SAMPLED)[0]
    assert chat.prompt == "<|system|>be brief<|end|><|user|>hi<|end|><|assistant|>"
    assert content(tiny_llm.generate(chat.prompt, SAMPLED)[0]) == content(chat)
    several = tiny_llm.chat([messages, messages[1:]], SAMPLED)
    assert content(several[0]) == content(chat)
    streamed = "".join(delta.text for delta in tiny_llm.stream_chat(messages, SAMPLED))
    assert streamed == chat.text


def test_async_calls_share_a_batch_without_changing_results(tiny_llm: LLM) -> None:
    prompts = [f"async {number}" for number in range(5)]
    expected = [content(output) for output in tiny_llm.generate(prompts, SAMPLED)]

    async def collect(prompt: str) -> str:
        return "".join([delta.text async for delta in tiny_llm.astream(prompt, SAMPLED)])

    async def main() -> None:
        outputs = await asyncio.gather(*(tiny_llm.agenerate(prompt, SAMPLED) for prompt in prompts))
        assert [content(output) for output in outputs] == expected
        texts = await asyncio.gather(*(collect(prompt) for prompt in prompts))
        assert texts == [choices[0][0] for choices in expected]
        chat = await tiny_llm.achat([{"role": "user", "content": "hi"}], SAMPLED)
        assert content(chat) == content(tiny_llm.chat([{"role": "user", "content": "hi"}], SAMPLED)[0])

    before = tiny_llm.stats()
    asyncio.run(main())
    asyncio.run(main())  # a second event loop works as well
    after = tiny_llm.stats()
    sampled, steps = after.tokens_sampled - before.tokens_sampled, after.steps - before.steps
    assert steps < sampled / 2  # they were computed in one batch


def test_a_cancelled_task_frees_its_blocks(tiny_llm: LLM) -> None:
    async def main() -> None:
        task = asyncio.create_task(
            tiny_llm.agenerate("cancel", msgspec.structs.replace(GREEDY, max_tokens=300))
        )
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await tiny_llm.agenerate("another one goes on", GREEDY)

    asyncio.run(main())
    while tiny_llm.has_unfinished:
        tiny_llm.step()
    assert tiny_llm.stats().num_running == 0


def test_threads_get_their_own_answers(tiny_llm: LLM) -> None:
    expected = {n: content(tiny_llm.generate(f"thread {n}", SAMPLED)[0]) for n in range(6)}
    found = {}

    def ask(number: int) -> None:
        found[number] = content(tiny_llm.generate(f"thread {number}", SAMPLED)[0])

    threads = [threading.Thread(target=ask, args=(number,)) for number in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


def test_requests_can_be_driven_step_by_step(tiny_llm: LLM) -> None:
    names = [tiny_llm.add_request(f"step {number}", SAMPLED) for number in range(3)]
    aborted = tiny_llm.add_request("never mind", SAMPLED, request_id="mine")
    tiny_llm.step()
    tiny_llm.abort(aborted)
    tiny_llm.abort("unknown")
    deltas: list[StreamDelta] = []
    finished: dict[str, RequestOutput] = {}
    while tiny_llm.has_unfinished:
        update = tiny_llm.step()
        deltas += update.deltas
        finished |= {output.request_id: output for output in update.finished}
    assert set(finished) == {*names, "mine"}
    assert finished["mine"].finish_reason == "abort"
    for number, name in enumerate(names):
        assert content(finished[name]) == content(tiny_llm.generate(f"step {number}", SAMPLED)[0])
    terminal = Counter(delta.request_id for delta in deltas if delta.finish_reason)
    assert set(terminal.values()) == {1}


def test_a_duplicate_request_id_is_rejected_and_the_owner_is_unaffected(tiny_llm: LLM) -> None:
    tiny_llm.add_request("owner", SAMPLED, request_id="same")
    with pytest.raises(RequestError, match="already in use"):
        tiny_llm.add_request("intruder", SAMPLED, request_id="same")
    finished: list[RequestOutput] = []
    while tiny_llm.has_unfinished:
        finished += tiny_llm.step().finished
    assert [content(output) for output in finished] == [content(tiny_llm.generate("owner", SAMPLED)[0])]


def test_a_duplicate_request_id_does_not_affect_a_stream(tiny_llm: LLM) -> None:
    stream = tiny_llm.stream("owner", SAMPLED, request_id="mine")
    first = next(stream)
    with pytest.raises(RequestError, match="already in use"):
        tiny_llm.generate("intruder", SAMPLED, request_id="mine")
    text = first.text + "".join(delta.text for delta in stream)
    assert text == tiny_llm.generate("owner", SAMPLED)[0].text


def test_a_closed_stream_frees_its_request_id(tiny_llm: LLM) -> None:
    stream = tiny_llm.stream("closed", SAMPLED, request_id="mine")
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    again = tiny_llm.generate("another", SAMPLED, request_id="mine")[0]
    assert content(again) == content(tiny_llm.generate("another", SAMPLED)[0])


@pytest.mark.usefixtures("untraced")  # an interrupt can leave coverage's own lock held
def test_an_interrupt_affects_only_the_waiting_caller(tiny_llm: LLM) -> None:
    """Ctrl-C at any moment leaves the engine consistent, and a concurrent stream loses nothing."""
    beside = msgspec.structs.replace(SAMPLED, max_tokens=300)
    expected = tiny_llm.generate("beside", beside)[0].text
    stream = tiny_llm.stream("beside", beside)
    text = next(stream).text
    interrupted = 0
    for delay in range(30):
        signal.setitimer(signal.ITIMER_REAL, 0.001 + delay * 0.0007)
        try:
            tiny_llm.generate(["interrupted"] * 3, msgspec.structs.replace(GREEDY, max_tokens=60))
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        tiny_llm.check()
    assert interrupted > 10
    assert text + "".join(delta.text for delta in stream) == expected


@pytest.fixture(autouse=True)
def _alarms_interrupt() -> Iterator[None]:
    """Make SIGALRM act like Ctrl-C."""
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGALRM, previous)


def test_a_garbage_collected_stream_is_aborted(tiny_llm: LLM) -> None:
    class Cycle:
        pass

    cycle = Cycle()
    cycle.me, cycle.stream = cycle, tiny_llm.stream("abandoned", GREEDY)  # type: ignore[attr-defined]
    next(cycle.stream)  # type: ignore[attr-defined]
    del cycle
    gc.collect()
    while tiny_llm.has_unfinished:
        tiny_llm.step()
    assert tiny_llm.stats().num_running == 0


def test_a_step_that_raises_ends_only_the_culprit(tiny_checkpoint: Path) -> None:
    with LLM(str(tiny_checkpoint), kv_memory="4MiB", block_size=8) as llm:
        expected = [content(output) for output in llm.generate(["one", "two"], SAMPLED)]
        core = llm._channel._open_core
        execute: Callable[[StepPlan], StepResult] = core._execute

        def touchy(plan: StepPlan) -> StepResult:
            if any(99 in piece.token_ids for piece in plan.slices):
                raise RuntimeError("I do not like 99")
            return execute(plan)

        core._execute = touchy
        prompts: list[Prompt] = ["one", [98, 99, 100], "two"]
        outputs = llm.generate(prompts, msgspec.structs.replace(SAMPLED))
        assert outputs[1].finish_reason == "error"
        assert "see its log for the reason" in (outputs[1].choices[0].error or "")
        assert [content(outputs[0]), content(outputs[2])] == expected
        llm.check()


def test_a_detokenizer_error_is_raised_only_to_its_caller(
    tiny_llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = RequestText.process

    def fails(self: RequestText, output: TokenOutput) -> Processed:
        if self._prepared.name == "bad":
            raise RuntimeError("no text")
        return process(self, output)

    expected = tiny_llm.generate("good", GREEDY)[0].text
    monkeypatch.setattr(RequestText, "process", fails)
    tiny_llm.add_request("bad", GREEDY, request_id="bad")
    tiny_llm.add_request("neighbour", GREEDY, request_id="neighbour")
    assert (
        "".join(delta.text for delta in tiny_llm.stream("good", GREEDY)) == expected
    )  # this call executes the steps
    with pytest.raises(RuntimeError, match="no text"):
        tiny_llm.step()
    tiny_llm.add_request("bad", GREEDY, request_id="bad")  # its request id is free again
    finished = []
    failures = 0
    while tiny_llm.has_unfinished:
        try:
            finished += [output.request_id for output in tiny_llm.step().finished]
        except RuntimeError:
            failures += 1
    assert (finished, failures) == (["neighbour"], 1)
    with pytest.raises(RuntimeError, match="no text"):
        list(tiny_llm.stream("bad", GREEDY, request_id="bad"))
    assert tiny_llm.generate("good", GREEDY)[0].text == expected
    assert tiny_llm.stats().num_running == 0


def test_the_prompt_is_scored_once_for_all_choices(tiny_llm: LLM) -> None:
    params = msgspec.structs.replace(SAMPLED, n=3, prompt_logprobs=1)
    output = tiny_llm.generate("score me once", params)[0]
    assert output.prompt_logprobs is not None
    assert [score.token_id for score in output.prompt_logprobs] == list(output.prompt_ids[1:])
    assert content(output) == content(
        tiny_llm.generate("score me once", msgspec.structs.replace(SAMPLED, n=3))[0]
    )


def test_logprobs_equal_the_prompt_logprobs(tiny_llm: LLM) -> None:
    """Sampled tokens have the same logprobs when they are sent back as a prompt."""
    drawn = tiny_llm.generate("score", msgspec.structs.replace(SAMPLED, logprobs=3))[0]
    scores = drawn.choices[0].logprobs
    assert scores is not None
    ids = [*drawn.prompt_ids, *drawn.token_ids]
    scored = tiny_llm.generate([ids], SamplingParams(max_tokens=1, prompt_logprobs=3, temperature=0))[0]
    assert scored.prompt_logprobs is not None
    assert [score.token_id for score in scored.prompt_logprobs] == ids[1:]
    tail = scored.prompt_logprobs[-len(scores) :]
    for ours, theirs in zip(scores, tail, strict=True):
        assert ours.token_id == theirs.token_id
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
        assert [token for token, _ in ours.top] == [token for token, _ in theirs.top]


def test_a_repeated_prompt_is_cached_and_gives_the_same_answer(tiny_checkpoint: Path) -> None:
    prompt = list(range(60, 120))
    with LLM(str(tiny_checkpoint), kv_memory="4MiB", block_size=8) as llm:
        cold, warm = llm.generate([prompt], SAMPLED)[0], llm.generate([prompt], SAMPLED)[0]
        assert (cold.num_cached, warm.num_cached) == (0, 56)
        assert content(cold) == content(warm)
        salted = llm.generate([prompt], SAMPLED, cache_salt="another tenant")[0]
        assert salted.num_cached == 0
    with LLM(str(tiny_checkpoint), kv_memory="4MiB", block_size=8, prefix_caching=False) as llm:
        assert [llm.generate([prompt], SAMPLED)[0].num_cached for _ in range(2)] == [0, 0]


def test_a_timeout_ends_only_its_request(tiny_llm: LLM) -> None:
    slow = tiny_llm.add_request("too slow", msgspec.structs.replace(GREEDY, max_tokens=400), timeout=1e-6)
    other = tiny_llm.generate("in time", GREEDY)[0]
    finished = tiny_llm.step().finished
    assert [(output.request_id, output.finish_reason) for output in finished] == [(slow, "deadline")]
    assert other.finish_reason == "length"


def test_errors_of_invalid_calls_explain_the_fix(tiny_llm: LLM) -> None:
    with pytest.raises(RequestError, match="one for each"):
        tiny_llm.generate(["a", "b"], [GREEDY])
    with pytest.raises(RequestError, match="maximum context length is"):
        tiny_llm.generate("x" * 600, GREEDY)
    with pytest.raises(ConfigError, match="no model"):
        LLM()
    with pytest.raises(ConfigError, match="give one of them"):
        LLM("a", checkpoint_path="b")
    with pytest.raises(ConfigError, match="did you mean block_size"):
        LLM("a", blocksize=3)


def test_calls_on_a_closed_llm_raise(tiny_checkpoint: Path) -> None:
    llm = LLM(str(tiny_checkpoint), kv_memory="1MiB")
    llm.close()
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate("x", GREEDY)
    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(llm.agenerate("x", GREEDY))


def test_the_progress_bar_shows_counts(tiny_llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_llm.generate(["progress"] * 3, GREEDY, progress=True)
    shown = capsys.readouterr().err
    assert "3/3" in shown
    assert "tokens/s" in shown
    assert "% of prompts from cache" in shown
