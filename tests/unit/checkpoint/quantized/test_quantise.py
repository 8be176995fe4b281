"""Quantising at load and writing a quantised folder give the same bits as compressed-tensors."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from gguf.constants import GGMLQuantizationType
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from data.tiny_llama import write_byte_tokenizer
from octavo import LLM, SamplingParams
from octavo.checkpoint import Checkpoint, open_checkpoint
from octavo.checkpoint import tensors as tensors_module
from octavo.checkpoint.quantized import SchemeName
from octavo.checkpoint.quantized.quantise import coding_for, quantise, round_to
from octavo.checkpoint.quantized.write import write_quantised
from octavo.checkpoint.safetensors_file import read_header
from octavo.cli.main import main
from octavo.engine.fingerprint import system_fingerprint
from octavo.errors import CheckpointError, ConfigError
from octavo.ops import select_ops
from octavo.weight_format import FORMATS
from unit.checkpoint.quantized import tiny_schemes
from unit.checkpoint.quantized.tiny_schemes import PACK, ranges, tiny_llama, weight_args
from unit.checkpoint.tiny_gguf import WriteGguf

SCHEMES: tuple[SchemeName, ...] = ("int8", "int4")
# Rows of 128 and 256 columns; of 96 and 128, so int4 has two group sizes; of 96 and 84, not quantised.
SIZES = {"whole": (128, 256), "mixed": (96, 128), "odd": (96, 84)}


@pytest.fixture
def write_plain(tmp_path: Path) -> Callable[..., Path]:
    def write(dtype: torch.dtype = torch.bfloat16, sizes: str = "whole") -> Path:
        folder = tmp_path / "plain"
        folder.mkdir()
        model = tiny_llama(*SIZES[sizes])
        state = {name: value.to(dtype).contiguous() for name, value in model.state_dict().items()}
        first = state["model.layers.0.mlp.up_proj.weight"]
        first[0] = 0  # a row without a scale of its own
        first[1, ::2] = -first[1, ::2].abs() * 100
        save_file(state, folder / "model.safetensors")
        config = model.config.to_dict() | {"architectures": ["LlamaForCausalLM"], "dtype": str(dtype)[6:]}
        (folder / "config.json").write_text(json.dumps(config))
        write_byte_tokenizer(folder)
        return folder

    return write


def write_out(plain: Path, out: Path, scheme: SchemeName, **settings: int) -> Path:
    opened = open_checkpoint(checkpoint_path=plain)
    written: list[int] = []
    write_quantised(plain, opened.config, opened.store, scheme, out, on_written=written.append, **settings)
    assert sum(written) == sum(tensor.nbytes for tensor in opened.tensors.values())
    return out


def rows_of(chunks: Iterator[tensors_module.RowChunk]) -> np.ndarray:
    return np.concatenate([chunk.values for chunk in chunks])


def assert_same(one: Checkpoint, other: Checkpoint) -> None:
    assert set(one.tensors) == set(other.tensors)
    for name, info in one.tensors.items():
        there = other.tensors[name]
        assert (info.shape, info.source_dtype) == (there.shape, there.source_dtype)
        assert np.array_equal(rows_of(one.chunks(name)), rows_of(other.chunks(name)))
        if info.source_dtype in FORMATS:
            assert np.array_equal(rows_of(one.blocks(name)), rows_of(other.blocks(name)))


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors_module, "CHUNK_ELEMENTS", 5000)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_written_folder_equals_quantising_at_load(
    scheme: SchemeName, dtype: torch.dtype, sizes: str, write_plain: Callable[..., Path], tmp_path: Path
) -> None:
    plain = write_plain(dtype, sizes)
    out = write_out(plain, tmp_path / "out", scheme)
    on_the_fly = open_checkpoint(checkpoint_path=plain, quantize=scheme)
    assert_same(on_the_fly, open_checkpoint(checkpoint_path=out))
    kinds = {info.source_dtype for info in on_the_fly.tensors.values()}
    stored = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}[dtype]
    expected = {
        ("int8", "whole"): {"INT8_128"},
        ("int8", "mixed"): {"INT8_128", "INT8_32"},
        ("int8", "odd"): {"INT8_32"},
        ("int4", "whole"): {"INT4_128"},
        ("int4", "mixed"): {"INT4_128", "INT4_32"},
        ("int4", "odd"): {"INT4_32"},
    }
    assert kinds == expected[scheme, sizes] | {stored}
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        assert on_the_fly.tensors[name].source_dtype == stored


@pytest.mark.parametrize("scheme", SCHEMES)
def test_stored_tensors_match_compressed_tensors(
    scheme: SchemeName, write_plain: Callable[..., Path], tmp_path: Path
) -> None:
    """In float32. In bfloat16 the library also divides in bfloat16, and its codes are less accurate."""
    plain = write_plain(torch.float32)
    written = load_file(write_out(plain, tmp_path / "out", scheme) / "model.safetensors")
    args = (
        weight_args(8, strategy="channel")
        if scheme == "int8"
        else weight_args(4, strategy="group", group_size=128)
    )
    compressor = BaseCompressor.get_value_from_registry(PACK)
    for name, weight in load_file(plain / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if weight.ndim == 1 or module in ("lm_head", "model.embed_tokens"):
            assert torch.equal(written[name], weight)
            continue
        scale, zero = calculate_qparams(*ranges(weight, args), args)
        parts = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}
        theirs = compressor.compress(parts, QuantizationScheme(targets=["Linear"], weights=args))
        for part in ("weight_packed", "weight_scale", "weight_shape"):
            assert torch.equal(written[f"{module}.{part}"], theirs[part]), f"{module}.{part}"


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_transformers_reads_the_written_folder(
    scheme: SchemeName, sizes: str, write_plain: Callable[..., Path], tmp_path: Path
) -> None:
    out = write_out(write_plain(sizes=sizes), tmp_path / "out", scheme)
    theirs = AutoModelForCausalLM.from_pretrained(out, dtype="auto")
    tokens = torch.randint(256, (1, 20), generator=torch.Generator().manual_seed(5))
    with torch.inference_mode():
        theirs(tokens)  # decompresses
    ours = open_checkpoint(checkpoint_path=out)
    weights = dict(theirs.named_parameters())
    quantised = [name for name, info in ours.tensors.items() if info.source_dtype in FORMATS]
    assert len(quantised) == (12 if sizes == "odd" else 14)
    for name in quantised:
        mine = torch.from_numpy(rows_of(ours.chunks(name))).to(weights[name].dtype)
        assert weights[name].dtype == torch.bfloat16
        assert torch.equal(mine, weights[name].data), name


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_written_folder_gives_the_same_answers_as_quantising_at_load(
    scheme: SchemeName, write_plain: Callable[..., Path], tmp_path: Path
) -> None:
    plain = write_plain()
    out = write_out(plain, tmp_path / "out", scheme)

    def answer(folder: Path, quantize: SchemeName | None) -> object:
        with LLM(str(folder), quantize=quantize, kv_memory="4MiB", threads=1, progress=False) as llm:
            params = SamplingParams(max_tokens=8, prompt_logprobs=20, logprobs=20, temperature=0)
            result = llm.generate([list(range(65, 90))], params)[0]
        return result.prompt_logprobs, result.choices[0].logprobs

    assert answer(plain, scheme) == answer(out, None)
    assert answer(plain, scheme) != answer(plain, None)


def test_hand_computed_example() -> None:
    """Ties round to even codes, and the largest weight of one sign is half a step out of range."""
    coding = coding_for("int4", 32)
    assert coding is not None
    weights = np.zeros((1, 32), dtype=np.float32)
    weights[0, :8] = [7.5, -7.5, 0.5, 1.5, 2.5, -0.5, -1.5, 7.0]
    rows = quantise("w", weights, coding, "F32")
    assert rows.scales.tolist() == [[1.0]]
    codes = [code - 8 for byte in rows.codes[0, :4].tolist() for code in (byte & 15, byte >> 4)]
    assert codes == [7, -8, 0, 2, 2, 0, -2, 7]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_weights_that_cannot_be_quantised_are_rejected(bad: float) -> None:
    coding = coding_for("int8", 32)
    assert coding is not None
    with pytest.raises(CheckpointError, match=r"layer\.weight has weights"):
        quantise("layer.weight", np.full((1, 32), bad, dtype=np.float32), coding, "F32")


def test_weights_too_small_for_a_scale_become_zero() -> None:
    coding = coding_for("int8", 32)
    assert coding is not None
    rows = quantise("w", np.full((1, 32), 1e-38, dtype=np.float32), coding, "F32")
    assert not rows.codes.any()
    assert np.isfinite(rows.scales).all()


def test_the_fingerprint_includes_the_scheme(write_plain: Callable[..., Path]) -> None:
    plain = write_plain()
    ops = select_ops("cpu", torch.bfloat16)
    words = {
        system_fingerprint(open_checkpoint(checkpoint_path=plain, quantize=scheme), ops)
        for scheme in (None, *SCHEMES)
    }
    assert len(words) == 3


@pytest.mark.parametrize(("name", "dtype"), [("BF16", torch.bfloat16), ("F16", torch.float16)])
def test_scales_are_rounded_as_in_torch(name: str, dtype: torch.dtype) -> None:
    """Includes ties, subnormal numbers and numbers next to a power of two."""
    random = np.random.default_rng(0)
    bits = random.integers(0, 0x7F000000, 100_000, dtype=np.uint32)
    bits[::2] = (bits[::2] & 0xFFFF0000) | 0x8000
    values = np.concatenate([bits.view(np.float32), random.standard_normal(100_000, dtype=np.float32) ** 2])
    theirs = torch.from_numpy(values).to(dtype).float().numpy()
    assert np.array_equal(round_to(values, name), theirs)


def test_tensors_are_aligned(write_plain: Callable[..., Path], tmp_path: Path) -> None:
    """Other programs map the file and view it as numbers."""
    plain = write_plain()
    tensors = load_file(plain / "model.safetensors")
    save_file({"a.norm.weight": torch.ones(3).bfloat16(), **tensors}, plain / "model.safetensors")
    out = write_out(plain, tmp_path / "out", "int4")
    sizes = {"I64": 8, "I32": 4, "BF16": 2}
    for entry in read_header(out / "model.safetensors").values():
        assert entry.offset % sizes[entry.dtype] == 0


def test_output_is_split_into_shards(write_plain: Callable[..., Path], tmp_path: Path) -> None:
    plain = write_plain()
    whole, cut = (
        write_out(plain, tmp_path / "whole", "int4"),
        write_out(plain, tmp_path / "cut", "int4", shard_bytes=100_000),
    )
    shards = sorted(cut.glob("*.safetensors"))
    assert len(shards) > 2
    assert shards[0].name == f"model-00001-of-{len(shards):05d}.safetensors"
    tensors = {name: tensor for shard in shards for name, tensor in load_file(shard).items()}
    index = json.loads((cut / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(tensors)
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
    assert_same(open_checkpoint(checkpoint_path=whole), open_checkpoint(checkpoint_path=cut))


def test_other_files_are_copied(write_plain: Callable[..., Path], tmp_path: Path) -> None:
    plain = write_plain()
    (plain / "chat_template.jinja").write_text("{{ messages }}")
    (plain / "pytorch_model.bin").write_text("not this")
    (plain / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict.fromkeys(load_file(plain / "model.safetensors"), "model.safetensors")})
    )
    out = write_out(plain, tmp_path / "out", "int8")
    texts = {"config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    assert {file.name for file in out.iterdir()} == texts | {"model.safetensors"}


def test_existing_folders_are_kept_and_failures_leave_no_files(
    write_plain: Callable[..., Path], tmp_path: Path
) -> None:
    plain = write_plain()
    opened = open_checkpoint(checkpoint_path=plain)
    with pytest.raises(ConfigError, match="already exists"):
        write_quantised(plain, opened.config, opened.store, "int8", plain)

    def fail(num_bytes: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_quantised(plain, opened.config, opened.store, "int8", tmp_path / "out", on_written=fail)
    assert [file.name for file in tmp_path.iterdir()] == ["plain"]


def test_quantised_checkpoints_are_rejected(tmp_path: Path, write_tiny_gguf: WriteGguf) -> None:
    made = tiny_schemes.COMPRESSED["w4a16-16"].make(tmp_path / "made")  # all weights are widened
    with pytest.raises(ConfigError, match="already quantised"):
        open_checkpoint(checkpoint_path=made.folder, quantize="int8")
    opened = open_checkpoint(checkpoint_path=made.folder)
    with pytest.raises(ConfigError, match="already quantised"):
        write_quantised(made.folder, opened.config, opened.store, "int8", tmp_path / "out")
    write_tiny_gguf(tmp_path / "a.gguf")
    with pytest.raises(ConfigError, match=r"already quantised.*Q8_0"):
        open_checkpoint(checkpoint_path=tmp_path / "a.gguf", quantize="int8")


def test_unquantised_gguf_files_can_be_quantised(tmp_path: Path, write_tiny_gguf: WriteGguf) -> None:
    write_tiny_gguf(tmp_path / "a.gguf", kind=GGMLQuantizationType.F16)
    plain, quantised = (
        open_checkpoint(checkpoint_path=tmp_path / "a.gguf", quantize=scheme) for scheme in (None, "int8")
    )
    for name, info in quantised.tensors.items():
        wide = rows_of(plain.chunks(name)).astype(np.float32)
        close = rows_of(quantised.chunks(name))
        if info.source_dtype != "INT8_32":
            assert np.array_equal(close, wide)
        else:
            step = np.abs(wide).max(axis=1, keepdims=True) / 127.5
            assert (np.abs(close - wide) <= step * 0.57).all()  # half a step plus the rounding of the scale
    assert quantised.tensors["model.layers.0.self_attn.q_proj.weight"].source_dtype == "INT8_32"


def test_the_command_rejects_gguf_files(
    tmp_path: Path, write_tiny_gguf: WriteGguf, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tiny_gguf(tmp_path / "a.gguf", kind=GGMLQuantizationType.F16)
    assert main(["quantize", str(tmp_path / "a.gguf"), str(tmp_path / "out"), "--scheme", "int8"]) == 2
    assert "is a GGUF file" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
