"""The options of the engine."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import pydantic
from pydantic import ValidationInfo

from octavo.config.definition import Allowed, ByteCount, Group, Options, option
from octavo.errors import ConfigError

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class EngineOptions(Options, frozen=True):
    """What decides how a model is loaded and run."""

    model: str | None = option(
        None, Group.MODEL, "hub id, or path of a checkpoint folder or GGUF file", min_length=1
    )
    checkpoint_path: str | None = option(
        None,
        Group.MODEL,
        "path of a checkpoint folder or GGUF file; never looked up on the hub",
        min_length=1,
    )
    revision: str | None = option(
        None, Group.MODEL, "commit, tag or branch of a hub model (none: its main branch)", min_length=1
    )
    tokenizer: str | None = option(
        None, Group.MODEL, "folder or hub id of the tokenizer (none: the checkpoint's own)", min_length=1
    )

    device: Annotated[str, Allowed("auto or a torch device such as cpu, cuda, cuda:1, mps")] = option(
        "auto",
        Group.COMPUTE,
        "where the model runs; auto: cuda if there is one, else cpu",
        pattern=r"^[a-z]+(:\d+)?$",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "auto",
        Group.COMPUTE,
        "type of weights, activations and KV; auto: what the checkpoint was saved in, and for GGUF files"
        " bfloat16 unless all their matrices are F32; bfloat16 for quantised ones that say float16",
    )
    quantize: Literal["int8", "int4"] | None = option(
        None,
        Group.COMPUTE,
        "quantise the weights of linear layers while they are read (none: as they are in the checkpoint);"
        " changes the answers",
    )
    threads: int | None = option(
        None,
        Group.COMPUTE,
        "threads for computing on a CPU (none: one per core)",
        ge=1,
    )

    kernels: Literal["auto", "torch", "portable", "avx2", "avx512", "amx", "neon"] = option(
        "auto",
        Group.COMPUTE,
        "native kernels on a CPU by instruction set, or plain torch; auto: the best this processor has",
    )
    weights: Literal["kept", "widened"] = option(
        "kept",
        Group.COMPUTE,
        "quantised weights: kept as they are stored, if dtype is bfloat16 and native kernels know their form;"
        " or widened to dtype, which takes more memory and may be faster for many sequences at once;"
        " answers are the same",
    )
    tape: bool = option(
        True,
        Group.COMPUTE,
        "with native kernels, run a step as one recorded call; off: call every kernel from Python",
    )

    max_model_len: int | None = option(
        None,
        Group.MEMORY,
        "longest prompt and answer together, in tokens (none: what the model supports and fits)",
        ge=1,
    )
    page_size: int = option(
        32,
        Group.MEMORY,
        "tokens of KV in a page; 0: one page as long as the context, so KV is contiguous",
        ge=0,
    )
    kv_memory: ByteCount | None = option(
        None, Group.MEMORY, "memory for KV pages (none: kv_fraction of what is free)", ge=1
    )
    kv_fraction: float | None = option(
        None,
        Group.MEMORY,
        "part of the memory left after the weights that KV pages may take, if kv_memory is not given"
        " (none: 0.5 on a CPU, 0.9 on an accelerator)",
        gt=0,
        le=1,
    )
    prefix_caching: bool = option(True, Group.MEMORY, "keep the KV of finished prompts and answers for reuse")

    weight_cache_size: ByteCount | None = option(
        40 * 10**9,
        Group.MEMORY,
        "disk space for packed weights, which later starts map instead of packing them again"
        " (0 or none: no such cache)",
        ge=0,
    )

    max_running: int = option(64, Group.SCHEDULING, "sequences computed at once", ge=1)
    max_step_tokens: int = option(
        512,
        Group.SCHEDULING,
        "tokens computed in a step at most; 0: no limit, so prompts are not chunked",
        ge=0,
    )
    admission: Literal["continuous", "static"] = option(
        "continuous",
        Group.SCHEDULING,
        "continuous: join as soon as there is room; static: only when all others are done",
    )

    log_level: Literal["debug", "info", "warning", "error"] = option(
        "info", Group.LOGS, "least urgent messages that the commands show"
    )

    def kv_fraction_on(self, device_type: str) -> float:
        """Part of the free memory for KV: a CPU's memory is shared with everything else on the machine."""
        if self.kv_fraction is not None:
            return self.kv_fraction
        return 0.5 if device_type == "cpu" else 0.9

    def dtype_for(self, checkpoint_config: Mapping[str, Any]) -> str:
        """The key of `DTYPE_BYTES` to compute in. The checkpoint decides what `auto` is, never the machine:
        one command has one answer everywhere. A config that says nothing means float32."""
        if self.dtype != "auto":
            return self.dtype
        said = str(checkpoint_config.get("dtype") or checkpoint_config.get("torch_dtype"))
        saved = said.removeprefix("torch.")
        if saved == "float16" and checkpoint_config.get("quantization_config"):
            return "bfloat16"  # GPTQ and AWQ say float16 of their scales; codes have no such type
        return saved if saved in DTYPE_BYTES else "float32"

    @pydantic.model_validator(mode="after")
    def _everybody_gets_a_token(self) -> Self:
        if 0 < self.max_step_tokens < self.max_running:
            raise ConfigError(
                f"max_step_tokens ({self.max_step_tokens}) must be at least max_running ({self.max_running}),"
                " so that every running sequence can get a token in every step; or 0 for no limit"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _one_checkpoint(self, info: ValidationInfo) -> Self:
        if self.model is not None and self.checkpoint_path is not None:
            origins = info.context or {}
            model, path = origins.get("model", "model"), origins.get("checkpoint_path", "checkpoint_path")
            raise ConfigError(
                f"both {model} ({self.model!r}) and {path} ({self.checkpoint_path!r}) name the checkpoint:"
                " give one of them (the value none cancels one that comes from the environment or a file)"
            )
        return self
