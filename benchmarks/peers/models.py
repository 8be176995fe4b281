"""The models that every engine runs, made once from a GGUF file of SmolLM2 and a tokenizer of Llama 3.2.

- `smollm2-135m`: the real SmolLM2-135M-Instruct, its weights rounded to bfloat16;
- `llama-3.2-1b`: random weights in the shape of Llama-3.2-1B, in bfloat16.

Each is there as a folder that transformers can read (Octavo, vLLM), as a GGUF file (llama.cpp), and as a
folder in OpenVINO's format. The weights are the same numbers everywhere.
"""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from octavo.bench.random_model import write_random_model

SMOLLM2 = "smollm2-135m"
LLAMA_1B = "llama-3.2-1b"


@dataclass(frozen=True)
class ModelFiles:
    """One model in all its forms."""

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


def make_models(peers: Path, root: Path, smollm2: Path, tokenizer: Path) -> None:
    """What is there is kept. Formats of peers that are not installed are left out."""
    for name in (SMOLLM2, LLAMA_1B):
        files = ModelFiles(root, name)
        if not files.folder.exists():
            if name == SMOLLM2:
                write_smollm2(smollm2, files.folder)
            else:
                write_llama_1b(tokenizer, files.folder)
        if not files.gguf.exists() and (peers / "llama.cpp").exists():
            write_gguf(peers / "llama.cpp", files)
        if not files.openvino.exists() and (peers / "openvino").exists():
            write_openvino(peers / "openvino", files)


def write_smollm2(gguf: Path, folder: Path) -> None:
    """The quantised file, widened to bfloat16."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    folder.mkdir(parents=True)
    tokenizer.save_pretrained(folder)
    # `save_pretrained` of the model refuses what was read from a quantised file.
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    unwanted = ("quantization_config", "_name_or_path")
    config = {name: value for name, value in model.config.to_dict().items() if name not in unwanted}
    (folder / "config.json").write_text(
        json.dumps(config | {"architectures": ["LlamaForCausalLM"]}, indent=2)
    )
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def write_llama_1b(tokenizer: Path, folder: Path) -> None:
    """With the tokenizer whose vocabulary the shape is made for."""
    write_random_model("random:llama-3.2-1b", folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, folder / name)


def write_gguf(llama_cpp: Path, files: ModelFiles) -> None:
    """With llama.cpp's own script."""
    command = [
        *(str(llama_cpp / "bin/python"), str(llama_cpp / "sources/convert_hf_to_gguf.py"), str(files.folder)),
        *("--outtype", "bf16", "--outfile", str(files.gguf)),
    ]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(llama_cpp / "sources/gguf-py")})


def write_openvino(openvino: Path, files: ModelFiles) -> None:
    """float16, because OpenVINO's exporter knows no bfloat16; the engine is asked to compute in bfloat16."""
    command = [
        *(str(openvino / "bin/optimum-cli"), "export", "openvino", "--model", str(files.folder)),
        *("--task", "text-generation-with-past", "--weight-format", "fp16", str(files.openvino)),
    ]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": "", "HF_HUB_OFFLINE": "1"})
