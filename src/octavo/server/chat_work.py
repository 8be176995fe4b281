"""The work of a request for a chat, whatever its API: one prompt, built from a `ChatTask`."""

from dataclasses import dataclass

import msgspec

from octavo.fairness.tenant import Tenant
from octavo.frontend.chat import ChatTask
from octavo.frontend.intake import PromptTask
from octavo.prompting.jobs import ChatJob, ChatPrompt
from octavo.prompting.prompter import Prompter
from octavo.protocol import SamplingParams


@dataclass(frozen=True)
class ChatWork:
    chat: ChatTask
    # Whether `max_tokens` is a bound and no request for room: an answer may end earlier, with the context.
    # Agents ask for as many tokens as the largest models write.
    ends_with_context: bool = False
    num_prompts: int = 1

    @property
    def params(self) -> SamplingParams:
        return self.chat.params

    async def tasks(self, prompter: Prompter, tenant: Tenant, max_model_len: int) -> list[PromptTask]:
        result = await prompter.run(tenant, ChatJob(self.chat, max_model_len))
        assert isinstance(result, ChatPrompt)
        params = result.params
        if self.ends_with_context:
            params = within(max_model_len - len(result.ids), params)
        return [
            PromptTask(result.ids, params, text=result.text, format=result.format, grammars=result.grammars)
        ]


def within(room: int, params: SamplingParams) -> SamplingParams:
    """Return the parameters with at most as many tokens as there is room for."""
    if params.max_tokens is None or params.max_tokens <= room:
        return params
    return msgspec.structs.replace(params, max_tokens=room)
