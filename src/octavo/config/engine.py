"""The options of the engine."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import pydantic
from pydantic import ValidationInfo

from octavo.config.definition import AllowedText, ByteCount, Group, Options, SwitchableOff, option
from octavo.errors import ConfigError

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class EngineOptions(Options, frozen=True):
    """How a model is loaded and run."""

    model: str | None = option(
        None, Group.MODEL, "Hugging Face Hub id, or path of a checkpoint folder or GGUF file", min_length=1
    )
    checkpoint_path: str | None = option(
        None,
        Group.MODEL,
        "path of a checkpoint folder or GGUF file; never looked up on the Hub",
        min_length=1,
    )
    revision: str | None = option(
        None, Group.MODEL, "commit, tag or branch of a Hub model (none: its main branch)", min_length=1
    )
    tokenizer: str | None = option(
        None, Group.MODEL, "folder or Hub id of the tokenizer (none: the checkpoint's own)", min_length=1
    )

    device: Annotated[str, AllowedText("auto or a torch device such as cpu, cuda, cuda:1, mps")] = option(
        "auto",
        Group.COMPUTE,
        "device that runs the model; auto: cuda if available, else cpu",
        pattern=r"^[a-z]+(:\d+)?$",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "auto",
        Group.COMPUTE,
        "type of weights, activations and KV; auto: the type in which the checkpoint was saved, but bfloat16"
        " for GGUF files, unless all their matrices are F32, and for quantised checkpoints that declare"
        " float16",
    )
    quantize: Literal["int8", "int4"] | None = option(
        None,
        Group.COMPUTE,
        "quantise the weights of linear layers while loading (none: keep the weights of the checkpoint);"
        " changes the answers",
    )
    threads: int | None = option(
        None,
        Group.COMPUTE,
        "number of threads for computing on a CPU (none: one per core)",
        ge=1,
    )

    kernels: Literal["auto", "torch", "portable", "avx2", "avx512", "amx", "neon"] = option(
        "auto",
        Group.COMPUTE,
        "native CPU kernels by instruction set, or plain torch; auto: the best that the processor supports",
    )
    weights: Literal["kept", "widened"] = option(
        "kept",
        Group.COMPUTE,
        "quantised weights: kept as stored, if dtype is bfloat16 and the native kernels support their format;"
        " or widened to dtype, which takes more memory and may be faster for many concurrent sequences;"
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
        "maximum tokens of prompt and answer together (none: what the model supports and memory allows)",
        ge=1,
    )
    block_size: int = option(
        32,
        Group.MEMORY,
        "tokens per KV block; 0: one block as long as the context, so KV is contiguous",
        ge=0,
        former_name="page_size",
    )
    kv_memory: ByteCount | None = option(
        None, Group.MEMORY, "memory for KV blocks (none: kv_fraction of the free memory)", ge=1
    )
    kv_fraction: float | None = option(
        None,
        Group.MEMORY,
        "fraction of the memory left after loading the weights that KV blocks may take, if kv_memory is not"
        " set (none: 0.5 on a CPU, 0.9 on an accelerator)",
        gt=0,
        le=1,
    )
    prefix_caching: bool = option(
        True, Group.MEMORY, "keep the KV blocks of finished prompts and answers for reuse"
    )

    weight_cache_size: ByteCount | None = option(
        40 * 10**9,
        Group.MEMORY,
        "disk space for packed weights, which later starts map instead of packing them again"
        " (0 or none: no cache)",
        ge=0,
    )

    max_running: int = option(64, Group.SCHEDULING, "maximum number of sequences per step", ge=1)
    max_step_tokens: int = option(
        512,
        Group.SCHEDULING,
        "maximum number of tokens per step; 0: no limit, so prompts are not chunked",
        ge=0,
    )
    admission: Literal["continuous", "static"] = option(
        "continuous",
        Group.SCHEDULING,
        "when a waiting sequence starts; continuous: once there is space; static: when all others are done",
    )

    speculate: Annotated[
        str,
        AllowedText("off, auto, ngram, suffix, or draft:MODEL with the path or Hub id of a small model"),
        SwitchableOff(),
    ] = option(
        "off",
        Group.SCHEDULING,
        "how to guess the next tokens of an answer, which a step then verifies together; ngram: from its own"
        " text; suffix: also from earlier answers with the same cache salt; draft:MODEL: also by a small"
        " model with the same tokens; auto: suffix with native kernels, else off; answers are the same",
        pattern=r"^(off|auto|ngram|suffix|draft:.+)$",
    )
    draft_tokens: int = option(
        8,
        Group.SCHEDULING,
        "maximum number of tokens to guess per sequence and step; fewer are guessed if they would not be"
        " worth their time",
        ge=1,
        le=128,
    )

    log_level: Literal["debug", "info", "warning", "error"] = option("info", Group.LOGS, "minimum log level")

    @property
    def draft_model(self) -> str | None:
        """The path or Hub id of the draft model."""
        method, _, name = self.speculate.partition(":")
        return name if method == "draft" else None

    def kv_fraction_on(self, device_type: str) -> float:
        """Return the fraction of free memory for KV. A CPU's memory is shared with all other processes."""
        if self.kv_fraction is not None:
            return self.kv_fraction
        return 0.5 if device_type == "cpu" else 0.9

    def dtype_for(self, checkpoint_config: Mapping[str, Any]) -> str:
        """Return the dtype to compute in, a key of `DTYPE_BYTES`. `auto` depends on the checkpoint, not the
        machine, so a command gives the same answer everywhere. Without a declared dtype it is float32."""
        if self.dtype != "auto":
            return self.dtype
        declared = str(checkpoint_config.get("dtype") or checkpoint_config.get("torch_dtype"))
        saved = declared.removeprefix("torch.")
        if saved == "float16" and checkpoint_config.get("quantization_config"):
            return "bfloat16"  # GPTQ and AWQ declare float16 for their scales; the codes have no dtype
        return saved if saved in DTYPE_BYTES else "float32"

    @pydantic.model_validator(mode="after")
    def _check_step_tokens(self) -> Self:
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
                " give one of them (the value none unsets one from the environment or a file)"
            )
        return self
