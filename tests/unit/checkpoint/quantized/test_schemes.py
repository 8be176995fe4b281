"""Every scheme compared with its library: values bit for bit, weight blocks, and the engine's logits."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from safetensors.torch import load_file, save_file

from data import make_gptq_layers
from octavo import LLM, SamplingParams
from octavo.checkpoint import Checkpoint, open_checkpoint
from octavo.checkpoint import tensors as tensors_module
from octavo.weight_format import FORMATS
from unit.checkpoint.quantized.tiny_schemes import CASES, Made

TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    return cache(lambda name: CASES[name].make(tmp_path_factory.mktemp(name)))


def values_of(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    chunks = list(checkpoint.chunks(name))
    starts = np.cumsum([0] + [len(chunk.values) for chunk in chunks])
    assert [chunk.start for chunk in chunks] == list(starts[:-1])
    assert sum(chunk.source_nbytes for chunk in chunks) == checkpoint.tensors[name].nbytes
    assert {chunk.dtype for chunk in chunks} == {"F32"}
    return torch.from_numpy(np.concatenate([chunk.values for chunk in chunks]))


def value_of_block(form: str, block: npt.NDArray[np.uint8]) -> list[float]:
    """Decode by the definition of the format, one weight at a time."""
    scale = block[:4].view(np.float32)[0]
    codes: list[float]
    match form.partition("_")[0]:
        case "INT4":
            nibbles = [nibble for byte in block[5:] for nibble in (byte & 15, byte >> 4)]
            codes = [int(nibble) - int(block[4]) for nibble in nibbles]
        case "INT8":
            codes = [int(code) for code in block[4:].view(np.int8)]
        case _:
            codes = torch.from_numpy(block[4:].copy()).view(torch.float8_e4m3fn).float().tolist()
    return [float(np.float32(code) * scale) for code in codes]


def values_of_blocks(form: str, rows: npt.NDArray[np.uint8]) -> torch.Tensor:
    if form == "MXFP4":
        return torch.from_numpy(dequantize(rows, GGMLQuantizationType.MXFP4))
    blocks = rows.reshape(len(rows), -1, FORMATS[form].block_bytes)
    return torch.tensor([[value for block in row for value in value_of_block(form, block)] for row in blocks])


@pytest.mark.parametrize("name", CASES)
def test_values_and_blocks_match_the_library(
    name: str, made: Callable[[str], Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in many chunks, of which the last one is shorter."""
    model = made(name)
    monkeypatch.setattr(tensors_module, "CHUNK_ELEMENTS", 5000)
    checkpoint = open_checkpoint(checkpoint_path=model.folder)
    assert set(checkpoint.tensors) == set(model.weights) | set(model.plain)
    for weight_name, meant in model.weights.items():
        info = checkpoint.tensors[weight_name]
        assert info.shape == tuple(meant.shape)
        assert info.source_dtype == CASES[name].source_dtype
        ours = values_of(checkpoint, weight_name)
        assert torch.equal(ours, meant), weight_name
        rounded = model.rounded[weight_name]
        assert torch.equal(ours.to(rounded.dtype), rounded), weight_name
        if info.source_dtype in FORMATS:
            chunks = list(checkpoint.store.blocks(weight_name))
            assert sum(chunk.source_nbytes for chunk in chunks) == info.nbytes
            assert {chunk.dtype for chunk in chunks} == {info.source_dtype}
            rows = np.concatenate([chunk.values for chunk in chunks])
            assert rows.dtype == np.uint8
            assert rows.shape == (info.shape[0], FORMATS[info.source_dtype].row_bytes(info.shape[1]))
            few = slice(0, None, 37)  # the decoder above is slow
            assert torch.equal(values_of_blocks(info.source_dtype, rows[few]), ours[few])
        else:
            with pytest.raises(ValueError, match="not stored in weight blocks"):
                next(checkpoint.store.blocks(weight_name))
    for plain_name, tensor in model.plain.items():
        assert torch.equal(values_of(checkpoint, plain_name), tensor)


@pytest.mark.parametrize("name", CASES)
def test_engine_logits_match_transformers(name: str, made: Callable[[str], Made]) -> None:
    """Compare with transformers in float32, with weights dequantised by the library."""
    model = made(name)
    reference = model.model
    reference.load_state_dict(model.plain | model.weights)
    tokens = torch.randint(256, (40,), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        theirs = reference(tokens[None]).logits[0].log_softmax(-1)
    with LLM(str(model.folder), dtype="float32", kv_memory="4MiB", threads=1, progress=False) as llm:
        params = SamplingParams(max_tokens=1, prompt_logprobs=20, temperature=0)
        scores = llm.generate([tokens.tolist()], params)[0].prompt_logprobs
    assert scores is not None
    assert len(scores) == len(tokens) - 1
    for position, score in enumerate(scores):
        assert abs(score.logprob - theirs[position, tokens[position + 1]]) < TOLERANCE
        for token_id, logprob in score.top:
            assert abs(logprob - theirs[position, token_id]) < TOLERANCE


@pytest.mark.parametrize("name", CASES)
def test_quantised_and_widened_weights_give_the_same_answer(
    name: str, made: Callable[[str], Made], tmp_path: Path
) -> None:
    """Compare in bfloat16, bit for bit, with a checkpoint of the dequantised weights."""
    model = made(name)
    rounded = {key: value.bfloat16().float() for key, value in model.weights.items()}
    save_file(rounded | model.plain, tmp_path / "model.safetensors")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / file).write_bytes((model.folder / file).read_bytes())
    config = json.loads((model.folder / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert scores_of(model.folder) == scores_of(tmp_path)


def scores_of(folder: Path) -> object:
    tokens = torch.randint(256, (40,), generator=torch.Generator().manual_seed(3)).tolist()
    with LLM(str(folder), dtype="bfloat16", kv_memory="4MiB", threads=1, progress=False) as llm:
        params = SamplingParams(max_tokens=8, prompt_logprobs=20, logprobs=20, temperature=0)
        answer = llm.generate([tokens], params)[0]
    return answer.prompt_logprobs, answer.choices[0].logprobs


@pytest.mark.parametrize(
    ("layer", "form"), [("groups4", "INT4_32"), ("ordered4", "F32"), ("sixteen4", "F32"), ("groups8", "F32")]
)
def test_layers_packed_by_autogptq(layer: str, form: str, tmp_path: Path) -> None:
    """data/make_gptq_layers.py documents their origin."""
    tensors = load_file(make_gptq_layers.OUT)
    parts = {name: value for name, value in tensors.items() if name.startswith(layer)}
    meant = parts.pop(f"{layer}.meant")
    save_file(parts, tmp_path / "model.safetensors")
    scheme = {"quant_method": "gptq", "bits": int(layer[-1]), "group_size": 32}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": scheme}))
    checkpoint = open_checkpoint(checkpoint_path=tmp_path)
    assert checkpoint.tensors[f"{layer}.weight"].source_dtype == form
    assert torch.equal(values_of(checkpoint, f"{layer}.weight"), meant)
