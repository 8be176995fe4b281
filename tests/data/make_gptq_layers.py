"""Write gptq_layers.safetensors: layers that AutoGPTQ packed, and what it makes of them.

AutoGPTQ cannot be a dependency of tests: its wheels are for CUDA. Its layer in plain torch does without:

    pip download --no-deps auto-gptq==0.7.1 && unzip auto_gptq-0.7.1-*.whl
    python tests/data/make_gptq_layers.py auto_gptq/nn_modules/qlinear/qlinear_cuda.py
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

OUT = Path(__file__).with_name("gptq_layers.safetensors")
N, K, GROUP = 32, 64, 32


def load_module(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("qlinear", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def layer(module: Any, bits: int, *, ordered: bool, zero_of_16: bool) -> dict[str, torch.Tensor]:
    torch.manual_seed(bits + ordered)
    linear = torch.nn.Linear(K, N, bias=False)
    top = 2**bits - 1
    g_idx = torch.arange(K) // GROUP
    if ordered:
        g_idx = g_idx[torch.randperm(K)]
    scales = (torch.rand(N, K // GROUP) / top + 2.0**-12).half().float()
    zeros = torch.randint(1, top, (N, K // GROUP)).float()
    codes = torch.randint(0, top + 1, (N, K))
    linear.weight.data = (codes - zeros[:, g_idx]) * scales[:, g_idx]
    packed = module.QuantLinear(bits, GROUP, K, N, False, weight_dtype=torch.float32)
    packed.autogptq_cuda_available = False
    packed.pack(linear, scales, zeros.clone(), g_idx.int())
    if zero_of_16:
        packed.qzeros[0, 0] |= 0xF0  # the second output's zero point: stored as 15
    meant = packed(torch.eye(K)).T.contiguous()
    return {
        "qweight": packed.qweight,
        "qzeros": packed.qzeros,
        "scales": packed.scales.half(),
        "g_idx": packed.g_idx.int(),
        "meant": meant,
    }


def main() -> None:
    module = load_module(sys.argv[1])
    layers = {
        "groups4": layer(module, 4, ordered=False, zero_of_16=False),
        "ordered4": layer(module, 4, ordered=True, zero_of_16=False),
        "sixteen4": layer(module, 4, ordered=False, zero_of_16=True),
        "groups8": layer(module, 8, ordered=False, zero_of_16=False),
    }
    save_file({f"{name}.{part}": value for name, one in layers.items() for part, value in one.items()}, OUT)


if __name__ == "__main__":
    main()
