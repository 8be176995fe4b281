"""Prompts made by the same code as in a server, without its process."""

import asyncio

from octavo.frontend.text_model import TextModel
from octavo.prompting.jobs import Done, Failed, Job, Made, Refused, decode_done, encode_done, encode_job
from octavo.prompting.process import Maker
from octavo.prompting.prompter import Prompter

LONGEST_TOKEN = 1 << 10


class DirectPrompter(Prompter):
    def __init__(self, model: TextModel) -> None:
        super().__init__(model.assets)
        self._maker = Maker(model, LONGEST_TOKEN)
        self.works = asyncio.Event()
        self.works.set()
        self.num_asked = self.num_given_up = 0

    async def run(self, job: Job) -> Made:
        self.num_asked += 1
        try:
            await self.works.wait()
        except asyncio.CancelledError:
            self.num_given_up += 1
            raise
        done: Done = decode_done(encode_done(self._maker.done(encode_job(job))))
        if isinstance(done, Refused):
            raise done.error()
        assert not isinstance(done, Failed)
        return done
