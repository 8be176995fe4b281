"""The work of a request for completions of texts, whatever its API."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import msgspec

from octavo.fairness.tenant import Tenant
from octavo.frontend.intake import FieldGrammar, Prompt, PromptTask
from octavo.prompting.jobs import TextIds, TextJob
from octavo.prompting.prompter import Prompter
from octavo.protocol import SamplingParams
from octavo.server.chat_work import within
from octavo.server.http.errors import ApiError, unsupported
from octavo.text.fill_in_middle import NO_FILL_IN_MIDDLE, FillInMiddle
from octavo.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class TextWork:
    prompts: Sequence[Prompt]  # either all token ids or all texts
    params: SamplingParams
    add_special_tokens: bool = True
    grammars: tuple[FieldGrammar, ...] = ()
    suffix: str = ""  # the text that follows each answer
    ends_with_context: bool = False  # as in `ChatWork`

    @property
    def num_prompts(self) -> int:
        return len(self.prompts)

    def before(self, suffix: str, tokenizer: Tokenizer) -> Self:
        """Return the work of filling in the text between each prompt and the suffix.

        Raises 400 if the model has no tokens for that.
        """
        fill = FillInMiddle.of_tokenizer(tokenizer)
        if fill is None:
            raise ApiError(400, NO_FILL_IN_MIDDLE, param="suffix", code="unsupported_parameter")
        if not all(isinstance(prompt, str) for prompt in self.prompts):
            raise unsupported("suffix", "suffix with a prompt of token ids")
        params = self.params
        if not params.ignore_eos:
            stops = tuple(dict.fromkeys((*params.stop_token_ids, *fill.stop_ids)))
            params = msgspec.structs.replace(params, stop_token_ids=stops)
        return replace(self, params=params, suffix=suffix)

    async def tasks(self, prompter: Prompter, tenant: Tenant, max_model_len: int) -> list[PromptTask]:
        texts = tuple([prompt for prompt in self.prompts if isinstance(prompt, str)])
        if not texts:
            return [self._task(prompt, None, max_model_len) for prompt in self.prompts]
        job = TextJob(texts, self.add_special_tokens, max_model_len, self.suffix)
        result = await prompter.run(tenant, job)
        assert isinstance(result, TextIds)
        return [self._task(ids, text, max_model_len) for ids, text in zip(result.ids, texts, strict=True)]

    def _task(self, ids: Prompt, text: str | None, max_model_len: int) -> PromptTask:
        params = within(max_model_len - len(ids), self.params) if self.ends_with_context else self.params
        # With a suffix, the text of the prompt is only a part of it.
        return PromptTask(ids, params, text=None if self.suffix else text, grammars=self.grammars)
