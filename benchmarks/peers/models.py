"""The models that every engine runs, made once from GGUF files and the tokenizer of Llama 3.2.

- `smollm2-135m`: the real SmolLM2-135M-Instruct, its weights rounded to bfloat16;
- `llama-3.2-1b`: random bfloat16 weights in the shape of Llama-3.2-1B;
- `qwen2.5-coder-1.5b`, `smollm2-135m-q4_1`, `smollm2-135m-q8_0`: quantised according to `FORMATS`.

Each model exists as a folder that transformers can read (for vLLM), as a GGUF file (for llama.cpp), and as a
folder in OpenVINO's format. The bfloat16 models have the same weights in all three. The source of a quantised
model is a GGUF file; for the two folders its weights are widened to bfloat16 and quantised again.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from octavo.bench.random_model import write_random_model

SMOLLM2 = "smollm2-135m"
LLAMA_1B = "llama-3.2-1b"
QWEN = "qwen2.5-coder-1.5b"
SMOLLM2_Q4, SMOLLM2_Q8 = "smollm2-135m-q4_1", "smollm2-135m-q8_0"

# For each quantised model: the engines that run it, each with its format.
FORMATS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        QWEN: {
            "Octavo": "Q4_K_M",
            "vLLM CPU": "int4 in groups of 128, head in bfloat16",
            "OpenVINO GenAI": "int4 in groups of 128, embedding and head in int8",
            "llama.cpp server": "Q4_K_M",
        },
        SMOLLM2_Q4: {"Octavo": "Q4_1", "llama.cpp server": "Q4_1"},
        SMOLLM2_Q8: {"Octavo": "Q8_0", "llama.cpp server": "Q8_0"},
    }
)


@dataclass(frozen=True)
class ModelFiles:
    """Paths of one model in all its file formats."""

    root: Path
    name: str

    @property
    def folder(self) -> Path:
        return self.root / self.name

    @property
    def gguf(self) -> Path:
        return self.root / f"{self.name}.gguf"

    @property
    def openvino(self) -> Path:
        return self.root / f"{self.name}.openvino"

    @property
    def ours(self) -> Path:
        """Return the path that Octavo reads, whose tokenizer also makes the prompts."""
        return self.gguf if self.name in FORMATS else self.folder


@dataclass(frozen=True)
class Sources:
    """Files from which models are made. Models whose source is None are left out."""

    smollm2: Path | None = None  # GGUF file, Q4_1
    qwen: Path | None = None  # GGUF file, Q4_K_M
    tokenizer: Path | None = None  # folder with the tokenizer of Llama 3.2


def make_models(peers: Path, root: Path, sources: Sources) -> None:
    """Make the missing files. Formats of peers that are not installed are left out."""
    root.mkdir(parents=True, exist_ok=True)
    smollm2, qwen, tokenizer = sources.smollm2, sources.qwen, sources.tokenizer
    if smollm2 is not None:
        make_bfloat16(peers, ModelFiles(root, SMOLLM2), lambda folder: write_widened(smollm2, folder))
        make_smaller(peers, root, smollm2)
    if tokenizer is not None:
        make_bfloat16(peers, ModelFiles(root, LLAMA_1B), lambda folder: write_llama_1b(tokenizer, folder))
    if qwen is not None:
        make_qwen(peers, ModelFiles(root, QWEN), qwen)


def make_bfloat16(peers: Path, files: ModelFiles, write_folder: Callable[[Path], None]) -> None:
    if not files.folder.exists():
        write_folder(files.folder)
    if not files.gguf.exists() and (peers / "llama.cpp").exists():
        write_gguf(peers / "llama.cpp", files)
    if not files.openvino.exists() and (peers / "openvino").exists():
        # float16, because the exporter does not support bfloat16; the engine still computes in bfloat16.
        write_openvino(peers / "openvino", files.folder, files.openvino, "fp16")


def make_smaller(peers: Path, root: Path, smollm2: Path) -> None:
    """Make both quantised SmolLM2 models from one 4-bit file: a link to it, and a conversion to 8 bits."""
    q4, q8 = ModelFiles(root, SMOLLM2_Q4).gguf, ModelFiles(root, SMOLLM2_Q8).gguf
    link(smollm2, q4)
    program = peers / "llama.cpp/build/bin/llama-quantize"
    if not q8.exists() and program.exists():
        subprocess.run([str(program), "--allow-requantize", str(q4), str(q8), "Q8_0"], check=True)


def make_qwen(peers: Path, files: ModelFiles, gguf: Path) -> None:
    link(gguf, files.gguf)
    widened = files.root / f"{files.name}.widened"
    if not widened.exists():
        write_widened(gguf, widened)
    if not files.folder.exists():
        write_quantised(widened, files.folder)
    if not files.openvino.exists() and (peers / "openvino").exists():
        write_openvino(
            peers / "openvino", widened, files.openvino, "int4", "--group-size", "128", "--ratio", "1.0"
        )


def link(file: Path, name: Path) -> None:
    if not name.exists():
        name.symlink_to(file.resolve())


def write_widened(gguf: Path, folder: Path) -> None:
    """Widen the quantised file to bfloat16."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    folder.mkdir(parents=True)
    tokenizer.save_pretrained(folder)
    # The model's `save_pretrained` rejects weights that were read from a quantised file.
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    unwanted = ("quantization_config", "_name_or_path")
    config = {name: value for name, value in model.config.to_dict().items() if name not in unwanted}
    (folder / "config.json").write_text(
        json.dumps(config | {"architectures": [type(model).__name__]}, indent=2)
    )
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def write_quantised(folder: Path, out: Path) -> None:
    """Quantise to int4 in groups of 128, in the compressed-tensors format."""
    command = [sys.executable, "-m", "octavo.cli.main", "quantize", str(folder), str(out), "--scheme", "int4"]
    subprocess.run(command, check=True)


def write_llama_1b(tokenizer: Path, folder: Path) -> None:
    """Write the random model with the tokenizer whose vocabulary it has."""
    write_random_model("random:llama-3.2-1b", folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, folder / name)


def write_gguf(llama_cpp: Path, files: ModelFiles) -> None:
    """Convert the folder to GGUF with llama.cpp's own script."""
    command = [
        *(str(llama_cpp / "bin/python"), str(llama_cpp / "sources/convert_hf_to_gguf.py"), str(files.folder)),
        *("--outtype", "bf16", "--outfile", str(files.gguf)),
    ]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(llama_cpp / "sources/gguf-py")})


def write_openvino(openvino: Path, folder: Path, out: Path, weights: str, *more: str) -> None:
    command = [
        *(str(openvino / "bin/optimum-cli"), "export", "openvino", "--model", str(folder)),
        *("--task", "text-generation-with-past", "--weight-format", weights, *more, str(out)),
    ]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": "", "HF_HUB_OFFLINE": "1"})
