"""Errors for damaged checkpoints and for unsupported quantisation."""

from octavo.errors import CheckpointError

SUPPORTED = (
    "Supported are compressed-tensors (int8, int4, FP8, MXFP4), fp8, GPTQ (4 and 8 bits), AWQ (4 bits, gemm),"
    " GGUF files, and checkpoints that are not quantised."
)


def damaged(what: str) -> CheckpointError:
    return CheckpointError(f"{what}. The file is damaged: download it again.")


def unsupported(what: str) -> CheckpointError:
    return CheckpointError(f"The checkpoint is quantised with {what}, which is not supported. {SUPPORTED}")
