"""Unsupported schemes are rejected by name; damaged checkpoints raise CheckpointError and nothing else."""

import json
import logging
import os
import random
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from octavo import LLM
from octavo.checkpoint import open_checkpoint
from octavo.config import EngineOptions
from octavo.errors import CheckpointError
from unit.checkpoint.quantized import tiny_schemes
from unit.checkpoint.quantized.tiny_schemes import CASES, COMPRESSED, OTHERS, Made, Tensors
from unit.checkpoint.test_header_fuzz import NASTY_INTEGERS, mutate, mutate_digits

MUTATED_FILES = int(os.environ.get("OCTAVO_FUZZ_FILES", "2500")) // 40  # per scheme


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    return cache(lambda name: CASES[name].make(tmp_path_factory.mktemp(name)))


# -- rejected by name -----------------------------------------------------------------------------------


def _group(**weights: Any) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }


INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quant_method 'bitsandbytes'"),
        ({"quant_method": "mxfp4"}, "quant_method 'mxfp4'"),
        ({"bits": 4}, "quant_method 'None'"),
        ({"quant_method": ["gptq"]}, "quant_method"),
        (_group(**INT4) | {"format": "marlin-24"}, "format 'marlin-24'"),
        (_group(**INT4) | {"format": "nvfp4-pack-quantized"}, "format 'nvfp4-pack-quantized'"),
        (_group(**INT4) | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse-24-bitmask"),
        (_group(**INT4) | {"transform_config": {"config_groups": {"R1": {}}}}, "transforms"),
        (_group(**INT4 | {"num_bits": 3}), "3-bit int per group of 128"),
        (_group(**INT4 | {"num_bits": 4, "type": "float", "group_size": 16}), "4-bit float per group of 16"),
        (_group(num_bits=8, type="float", strategy="tensor_group"), "8-bit float per tensor_group"),
        (_group(num_bits=8, type="float", strategy="tensor", symmetric=False), "asymmetric"),
        ({"quant_method": "gptq", "bits": 3, "group_size": 128}, "GPTQ with 3 bits"),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "marlin"},
            "checkpoint_format 'marlin'",
        ),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"+:.*": {"bits": 8}}}, "dynamic"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemv"}, "version 'gemv'"),
        ({"quant_method": "awq", "bits": 8, "group_size": 128}, "AWQ with 8 bits"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fp8 in the format 'e5m2'"),
    ],
)
def test_unsupported_schemes_are_rejected_by_name(tmp_path: Path, config: object, named: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}))
    save_file({"layer.weight": torch.zeros(4, 4)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(checkpoint_path=tmp_path)
    assert named in str(caught.value)
    assert "not supported. Supported are compressed-tensors" in str(caught.value)


@pytest.mark.parametrize(
    "config",
    [
        "int4",
        [],
        {"quant_method": "gptq", "bits": "4"},
        {"quant_method": "awq"},
        {"quant_method": "fp8", "weight_block_size": [128]},
        {"quant_method": "fp8", "weight_block_size": [128, -1]},
        {"quant_method": "compressed-tensors"},
        {"config_groups": {"group_0": ["Linear"]}},
        _group(**INT4 | {"group_size": 0}),
        _group(num_bits=8, type="float", strategy="block"),
        _group(num_bits=8, type="float", strategy="block", block_structure="128x0"),
        {"config_groups": {str(index): {} for index in range(1001)}},
    ],
)
def test_invalid_configs_are_rejected(tmp_path: Path, config: object) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}))
    save_file({"layer.weight": torch.zeros(4, 4)}, tmp_path / "model.safetensors")
    if not config:  # an empty config counts as none
        open_checkpoint(checkpoint_path=tmp_path)
        return
    with pytest.raises(CheckpointError, match="quantization_config"):
        open_checkpoint(checkpoint_path=tmp_path)


# -- damaged --------------------------------------------------------------------------------------------


def changed(model: Made, folder: Path, change: Callable[[Tensors], None]) -> Path:
    tensors = load_file(model.folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_bytes((model.folder / "config.json").read_bytes())
    return folder


def read_everything(folder: Path) -> None:
    checkpoint = open_checkpoint(checkpoint_path=folder)
    for name in checkpoint.tensors:
        for chunk in checkpoint.chunks(name):
            assert chunk.values.size
        if name in checkpoint.formats:
            for chunk in checkpoint.blocks(name):
                assert chunk.values.size


LAYER = "model.layers.0.mlp.up_proj"


@pytest.mark.parametrize("part", ["weight_scale", "weight_shape", "weight_zero_point"])
def test_missing_tensors_are_rejected(made: Callable[[str], Made], tmp_path: Path, part: str) -> None:
    def lose(tensors: Tensors) -> None:
        del tensors[f"{LAYER}.{part}"]

    folder = changed(made("w4a16-128-asymmetric"), tmp_path, lose)
    with pytest.raises(CheckpointError, match=f"{LAYER} is quantised but has no {part}"):
        read_everything(folder)


@pytest.mark.parametrize(
    ("name", "part", "value"),
    [
        ("w4a16-128", "weight_scale", np.nan),
        ("w4a16-128-f16", "weight_scale", np.inf),
        ("fp8-channel", "weight", np.nan),
        ("gptq-128", "scales", np.nan),
        ("mxfp4", "weight_scale", 255),
        ("gptq-ordered", "g_idx", 99),
        ("gptq-ordered", "g_idx", -5),
    ],
)
def test_invalid_numbers_are_rejected(
    made: Callable[[str], Made], tmp_path: Path, name: str, part: str, value: float
) -> None:
    def spoil(tensors: Tensors) -> None:
        tensors[f"{LAYER}.{part}"].view(-1)[3] = value

    complaints = {"weight": "weights that are NaN", "g_idx": "refers to groups that do not exist"}
    with pytest.raises(CheckpointError, match=complaints.get(part, "has a scale that is not finite")):
        read_everything(changed(made(name), tmp_path, spoil))


def test_duplicate_weights_are_rejected(made: Callable[[str], Made], tmp_path: Path) -> None:
    folder = changed(
        made("w4a16-128"),
        tmp_path,
        lambda tensors: tensors.update({f"{LAYER}.weight": torch.zeros(256, 128)}),
    )
    with pytest.raises(CheckpointError, match="is present twice"):
        read_everything(folder)


def test_tensors_that_do_not_match_the_config_are_rejected(
    made: Callable[[str], Made], tmp_path: Path
) -> None:
    def double(tensors: Tensors) -> None:
        scale = tensors[f"{LAYER}.weight_scale"]
        tensors[f"{LAYER}.weight_scale"] = torch.cat([scale, scale], 1)

    with pytest.raises(CheckpointError, match="match no scheme in quantization_config"):
        read_everything(changed(made("w4a16-128"), tmp_path, double))


NASTY_VALUES: tuple[object, ...] = (*NASTY_INTEGERS, -1, 0.5, None, True, "x", [], {}, "re:(a+)+$")


def mutate_config(config: Mapping[str, Any], dice: random.Random) -> dict[str, Any]:
    """Delete or replace one entry anywhere in quantization_config."""
    copy: dict[str, Any] = json.loads(json.dumps(config))
    at: Any = copy["quantization_config"]
    while True:
        key = dice.choice(list(at) if isinstance(at, dict) else list(range(len(at))))
        if isinstance(at[key], dict | list) and at[key] and dice.random() < 0.8:
            at = at[key]
            continue
        if dice.random() < 0.2:
            del at[key]
        else:
            at[key] = dice.choice(NASTY_VALUES)
        return copy


@pytest.fixture
def bounded_memory() -> Iterator[None]:
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 << 20


def damaged_files(model: Made, dice: random.Random) -> Iterator[tuple[bytes, bytes]]:
    """Yield config.json and the weights with one part damaged: the config, the header or the data."""
    original = (model.folder / "model.safetensors").read_bytes()
    config = json.loads((model.folder / "config.json").read_text())
    whole_config = json.dumps(config).encode()
    length = struct.unpack("<Q", original[:8])[0]
    header, data = original[8 : 8 + length], original[8 + length :]
    for index in range(MUTATED_FILES):
        match index % 4:
            case 0:
                yield json.dumps(mutate_config(config, dice)).encode(), original
            case 1:
                lying = mutate_digits(header, dice)
                yield whole_config, struct.pack("<Q", len(lying)) + lying + data
            case 2:
                yield whole_config, mutate(original, length + 8, dice)
            case _:
                noisy = bytearray(original)
                for _ in range(200):
                    noisy[dice.randrange(length + 8, len(noisy))] = dice.randrange(256)
                yield whole_config, bytes(noisy)


@pytest.mark.usefixtures("untraced", "bounded_memory")
@pytest.mark.parametrize(
    "name", ["w4a16-64-asymmetric", "w8a16-channel", "w8a8-asymmetric", "fp8-block", "mxfp4", *OTHERS]
)
def test_damaged_checkpoints_are_read_or_rejected(name: str, tmp_path: Path) -> None:
    model = CASES[name].make(tmp_path / "made")
    folder = tmp_path / "damaged"
    folder.mkdir()
    good = bad = 0
    for config, weights in damaged_files(model, random.Random(name)):
        (folder / "config.json").write_bytes(config)
        (folder / "model.safetensors").write_bytes(weights)
        began = time.process_time()
        try:
            read_everything(folder)
            good += 1
        except CheckpointError:
            bad += 1
        assert time.process_time() - began < 1
    assert good + bad == MUTATED_FILES
    assert bad > MUTATED_FILES / 4


# -- not quantised, widened, left out -------------------------------------------------------------------


def test_weights_with_out_of_range_scales_are_widened(
    made: Callable[[str], Made], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def shrink(tensors: Tensors) -> None:
        tensors[f"{LAYER}.weight_scale"][0, 0] = 2.0**-101
        tensors["model.layers.1.mlp.up_proj.weight_scale"][0, 0] = 2.0**100

    folder = changed(made("w4a16-128"), tmp_path, shrink)
    with caplog.at_level(logging.INFO, "octavo"):
        checkpoint = open_checkpoint(checkpoint_path=folder)
        kinds = {name: info.source_dtype for name, info in checkpoint.tensors.items()}
    assert kinds[f"{LAYER}.weight"] == "F32"
    assert kinds["model.layers.1.mlp.up_proj.weight"] == "INT4_128"
    assert "dequantising 1 weights at load: scales out of range" in caplog.messages
    read_everything(folder)


def test_unquantised_activations_are_logged(
    made: Callable[[str], Made], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "octavo"):
        _ = open_checkpoint(checkpoint_path=made("w8a8-channel").folder).tensors
    note = "the checkpoint was made for 8-bit int activations; Octavo does not quantise activations"
    assert note in caplog.messages


def test_two_schemes_in_one_checkpoint(tmp_path: Path) -> None:
    four, eight = COMPRESSED["w4a16-32"], COMPRESSED["w8a16-channel"]
    config = tiny_schemes.compressed_config("pack-quantized", four.args, eight.args)
    encoders = {
        "mlp": tiny_schemes.compressed(four.form, four.args, four.dtype),
        "attn": tiny_schemes.compressed(eight.form, eight.args, eight.dtype),
    }
    model = tiny_schemes.make(tmp_path, config, encoders)
    checkpoint = open_checkpoint(checkpoint_path=tmp_path)
    for name, meant in model.weights.items():
        assert checkpoint.tensors[name].source_dtype == ("INT4_32" if "mlp" in name else "INT8_128")
        values = np.concatenate([chunk.values for chunk in checkpoint.chunks(name)])
        assert torch.equal(torch.from_numpy(values), meant)


def test_other_scales_and_zero_biases_are_ignored(made: Callable[[str], Made], tmp_path: Path) -> None:
    model = made("gptq-128")

    def add(tensors: Tensors) -> None:
        tensors["model.layers.0.self_attn.k_scale"] = torch.ones(1)
        tensors[f"{LAYER}.input_scale"] = torch.ones(1)
        tensors[f"{LAYER}.bias"] = torch.zeros(256)

    folder = changed(model, tmp_path, add)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).write_bytes((model.folder / file).read_bytes())
    LLM(str(folder), dtype="float32", kv_memory="4MiB", progress=False).close()

    def add_a_real_one(tensors: Tensors) -> None:
        add(tensors)
        tensors[f"{LAYER}.bias"][3] = 1

    changed(model, tmp_path, add_a_real_one)
    with pytest.raises(CheckpointError, match=rf"unexpected: {LAYER}\.bias"):
        LLM(str(folder), dtype="float32", kv_memory="4MiB", progress=False)


def test_compute_dtype_of_quantised_checkpoints() -> None:
    """GPTQ and AWQ checkpoints declare float16, which CPUs compute badly; the default is bfloat16."""
    quantised = {"dtype": "float16", "quantization_config": {"quant_method": "awq"}}
    assert EngineOptions().dtype_for(quantised) == "bfloat16"
    assert EngineOptions(dtype="float16").dtype_for(quantised) == "float16"
    assert EngineOptions().dtype_for({"dtype": "float16"}) == "float16"
    assert EngineOptions().dtype_for({**quantised, "dtype": "float32"}) == "float32"
