"""A prompt process that is being started serves all requests, whatever happens to the one that started it."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable

from octavo.fairness.tenant import Tenant
from octavo.prompting.jobs import TextIds, TextJob
from octavo.prompting.prompter import MAX_SHORT_BYTES, Prompter, PromptProcess
from unit.frontend.scripted_hub import byte_assets

TENANT = Tenant("someone", 1.0)
SHORT = TextJob(("ab",), add_special_tokens=False, max_model_len=100)
LONG = TextJob(("a" * 2 * MAX_SHORT_BYTES,), add_special_tokens=False, max_model_len=4 * MAX_SHORT_BYTES)
# Larger than the buffers of a socket, so that sending it takes several turns of the event loop.
LARGE_TEMPLATE = "{# " + "x" * (4 << 20) + " #}"


class RecordingPrompter(Prompter):
    def __init__(self) -> None:
        super().__init__(dataclasses.replace(byte_assets(), chat_template=LARGE_TEMPLATE))
        self.started: list[PromptProcess] = []

    def start(self) -> PromptProcess:
        process = super().start()
        if process not in self.started:
            self.started.append(process)
        return process

    async def next_start(self) -> PromptProcess:
        num_before = len(self.started)
        while len(self.started) == num_before:
            await asyncio.sleep(0)
        return self.started[-1]


def num_started(use: Callable[[RecordingPrompter], Awaitable[None]]) -> int:
    """Return how many processes the prompter started."""

    async def main() -> int:
        prompter = RecordingPrompter()
        try:
            await use(prompter)
        finally:
            prompter.close()
        return len(prompter.started)

    return asyncio.run(main())


def test_cancelling_the_request_that_starts_the_process_affects_no_other() -> None:
    async def use(prompter: RecordingPrompter) -> None:
        first = asyncio.create_task(prompter.run(TENANT, SHORT))
        await prompter.next_start()
        first.cancel()
        assert isinstance(await prompter.run(TENANT, SHORT), TextIds)

    assert num_started(use) == 1


def test_requests_survive_a_death_of_the_process_while_it_starts() -> None:
    """One is in the queue for short jobs, the other in the queue for long ones; a third is cancelled."""

    async def use(prompter: RecordingPrompter) -> None:
        jobs = [asyncio.create_task(prompter.run(TENANT, job)) for job in (SHORT, SHORT, LONG)]
        process = await prompter.next_start()
        await asyncio.sleep(0)  # all wait for the process
        process.end()
        await prompter.next_start()
        jobs[0].cancel()
        assert [type(result) for result in await asyncio.gather(*jobs[1:])] == [TextIds, TextIds]

    assert num_started(use) == 2
