"""Prepares prompts with the code of a server, but in this process."""

import asyncio

from octavo.fairness.tenant import Tenant
from octavo.frontend.text_model import TextModel
from octavo.prompting.jobs import (
    Job,
    JobOutput,
    JobResult,
    PromptFailed,
    PromptRejected,
    decode_result,
    encode_job,
    encode_result,
)
from octavo.prompting.process import PromptBuilder
from octavo.prompting.prompter import Prompter

LONGEST_TOKEN = 1 << 10


class DirectPrompter(Prompter):
    def __init__(self, model: TextModel) -> None:
        super().__init__(model.assets)
        self._builder = PromptBuilder(model, LONGEST_TOKEN)
        self.works = asyncio.Event()
        self.works.set()
        self.num_asked = self.num_given_up = 0

    async def run(self, tenant: Tenant, job: Job) -> JobOutput:
        self.num_asked += 1
        try:
            await self.works.wait()
        except asyncio.CancelledError:
            self.num_given_up += 1
            raise
        result: JobResult = decode_result(encode_result(self._builder.run(encode_job(job))))
        if isinstance(result, PromptRejected):
            raise result.error()
        assert not isinstance(result, PromptFailed)
        return result
