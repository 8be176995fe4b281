"""`octavo inspect` on a small generated checkpoint and on a real GGUF file."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel

import octavo
from octavo import LLM
from octavo.bench.random_model import write_random_model
from octavo.kernels.library import find_library
from unit.cli.scripted import RunCommand

LAYERS, HEADS, KV_HEADS, HEAD_DIM, CONTEXT = 2, 4, 2, 8, 4096
PARAMETERS = 50 * 32 + 32


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": 50,
        "hidden_size": HEADS * HEAD_DIM,
        "intermediate_size": 64,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    weights = {"model.embed_tokens.weight": (50, 32), "model.norm.weight": (32,)}
    save_file(
        {name: np.zeros(shape, np.float32) for name, shape in weights.items()}, folder / "model.safetensors"
    )
    tokenizer = Tokenizer(WordLevel({"hello": 0, "</s>": 1}, "hello"))
    tokenizer.decoder = Fuse()
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "</s>", "chat_template": template})
    )
    return folder


def test_facts_and_kv_arithmetic(checkpoint: Path, run_octavo: RunCommand) -> None:
    ran = run_octavo("inspect", str(checkpoint), "--json", "--device", "cpu", "--kv-memory", "1MiB")
    facts = json.loads(ran.out)
    model, shape, text, kv = facts["model"], facts["shape"], facts["text"], facts["kv"]
    assert (model["architecture"], model["format"]) == ("LlamaForCausalLM", "safetensors")
    assert model["parameters"] == PARAMETERS
    assert (model["bytes_on_disk"], model["bytes_in_memory"]) == (PARAMETERS * 4, PARAMETERS * 2)
    assert (shape["layers"], shape["context"], shape["head_dim"]) == (LAYERS, CONTEXT, HEAD_DIM)
    assert (text["tokenizer"], text["eos"]) == ("WordLevel", [{"id": 1, "text": "</s>"}])
    assert text["rendered_sample"] == "[user] Hello!\n"
    assert kv["bytes_per_token"] == LAYERS * 2 * KV_HEADS * HEAD_DIM * 2
    assert kv["blocks"] == (1 << 20) // (kv["bytes_per_token"] * kv["block_size"])
    assert [sequence["length"] for sequence in kv["sequences"]] == [CONTEXT, 2048, 512]
    for sequence in kv["sequences"]:
        blocks_each = -(-sequence["length"] // kv["block_size"])
        assert sequence["fit"] * blocks_each <= kv["blocks"] < (sequence["fit"] + 1) * blocks_each


@pytest.mark.parametrize(
    "options", [(), ("--weights", "widened"), ("--dtype", "float32"), ("--block-size", "8")]
)
def test_quantised_weights_are_counted_at_their_size_in_memory(
    tmp_path: Path, run_octavo: RunCommand, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The figures equal those of the engine after loading."""
    if find_library() is None:
        pytest.skip("no native library was built when the package was installed")
    monkeypatch.setenv("OCTAVO_KERNEL_LIBRARY", str(find_library()))
    write_random_model("random:tiny", tmp_path, "Q8_0")
    ran = run_octavo("inspect", str(tmp_path), "--json", "--device", "cpu", *options)
    facts = json.loads(ran.out)
    given: dict[str, Any] = {options[0][2:].replace("-", "_"): options[1]} if options else {}
    with LLM(str(tmp_path), kv_memory="4MiB", device="cpu", **given) as llm:
        loaded = llm.facts.weight_bytes
    gains = 5 * 64
    dtype = facts["model"]["dtype"]
    assert facts["model"]["bytes_by_form_in_memory"].get("Q8_0") == loaded.get("Q8_0")
    item_bytes = 4 if dtype == "float32" else 2
    assert facts["model"]["bytes_in_memory"] == sum(loaded.values()) - gains * (4 - item_bytes)
    assert (
        facts["kv"]["free_bytes"] - facts["kv"]["free_bytes_after_weights"]
        == facts["model"]["bytes_in_memory"]
    )


def test_a_draft_model_is_counted(tiny_checkpoint: Path, run_octavo: RunCommand) -> None:
    flags = ("--device", "cpu", "--kv-memory", "4MiB")
    speculate = f"draft:{tiny_checkpoint}"
    alone = json.loads(run_octavo("inspect", str(tiny_checkpoint), "--json", *flags).out)["kv"]
    ran = run_octavo("inspect", str(tiny_checkpoint), "--json", *flags, "--speculate", speculate)
    both = json.loads(ran.out)["kv"]
    assert both["bytes_per_token"] == 2 * alone["bytes_per_token"]
    assert both["weight_bytes"] == 2 * alone["weight_bytes"]
    with LLM(str(tiny_checkpoint), kv_memory="4MiB", device="cpu", speculate=speculate) as llm:
        facts = llm.facts
    assert (facts.num_blocks, facts.block_size) == (both["blocks"], both["block_size"])
    assert list(facts.explanation) == both["explanation"]


def test_the_text_output_shows_the_same_facts(checkpoint: Path, run_octavo: RunCommand) -> None:
    out = run_octavo("inspect", str(checkpoint), "--device", "cpu", "--kv-memory", "1MiB").out
    rows = {line[:13].strip(): line[15:] for line in out.splitlines()}
    assert rows["parameters"] == f"{PARAMETERS:,}"
    assert rows["context"] == "4,096 tokens"
    assert rows["layers"] == "2, all with full attention"
    assert rows["EOS tokens"] == "</s> (1)"
    assert "  [user] Hello!" in out.splitlines()
    assert "2 layers x 2 (key, value) x 2 heads x 8 x 2 B = 128 B" in out
    assert "16 sequences of 512 tokens fit" in out


def test_the_singular_is_used_for_one_sequence(checkpoint: Path, run_octavo: RunCommand) -> None:
    out = run_octavo("inspect", str(checkpoint), "--device", "cpu", "--kv-memory", "512KiB").out
    assert "  1 sequence of 4,096 tokens fits" in out.splitlines()
    out = run_octavo("inspect", str(checkpoint), "--device", "cpu", "--kv-memory", "288KiB").out
    assert "  1 sequence of 2,048 tokens fits" in out.splitlines()


def test_a_model_that_does_not_fit_is_reported_with_the_other_facts(
    checkpoint: Path, run_octavo: RunCommand
) -> None:
    ran = run_octavo("inspect", str(checkpoint), "--device", "cpu", "--kv-memory", "1KiB")
    assert ran.code == 0
    assert "LlamaForCausalLM" in ran.out
    assert "does not fit: " in ran.out


def test_the_template_flag_prints_only_the_template(checkpoint: Path, run_octavo: RunCommand) -> None:
    out = run_octavo("inspect", str(checkpoint), "--template").out
    assert out == "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}\n"


@pytest.mark.parametrize("device", ["bogus", "cuda:99", "meta"])
def test_an_unusable_device_is_a_one_line_error(
    device: str, checkpoint: Path, run_octavo: RunCommand
) -> None:
    ran = run_octavo("inspect", str(checkpoint), "--device", device)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: device '{device}' cannot be used here (")
    assert ran.err.endswith("); try --device cpu\n")
    assert ran.err.count("\n") == 1


def test_neither_weights_nor_torch_are_loaded_for_a_cpu(checkpoint: Path) -> None:
    script = (
        "import sys; from octavo.cli.main import main; code = main(sys.argv[1:]);"
        "print([n for n in ('torch', 'octavo.checkpoint.load') if n in sys.modules], code, file=sys.stderr)"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")}
    ran = subprocess.run(
        [sys.executable, "-c", script, "inspect", str(checkpoint), "--device", "cpu"],
        capture_output=True,
        text=True,
        check=True,
        env=environ,
    )
    assert ran.stderr.strip() == "[] 0"


@pytest.mark.assets
def test_a_real_gguf_file(assets: Callable[[str], Path], run_octavo: RunCommand) -> None:
    path = assets("smollm2-135m-instruct-q4_1.gguf")
    facts = json.loads(run_octavo("inspect", str(path), "--json", "--device", "cpu").out)
    assert facts["model"]["parameters"] == 134_515_008
    assert facts["model"]["dtype"] == "bfloat16"
    assert facts["shape"]["layers"] == 30
    assert facts["text"]["vocabulary"] == 49_152
    assert facts["text"]["eos"][0]["text"] == "<|im_end|>"
    assert "<|im_start|>user\nHello!<|im_end|>" in facts["text"]["rendered_sample"]
    assert facts["kv"]["tokens"] > 8192


def test_machine_facts_need_no_model_and_list_what_affects_bits(
    run_octavo: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = json.loads(run_octavo("inspect", "--machine", "--json").out)
    assert machine["octavo"] == octavo.__version__
    assert machine["torch"] == version("torch")
    assert platform.libc_ver()[1] in machine["system"]
    printed = run_octavo("inspect", "--machine").out
    assert all(text in printed for text in (*machine, machine["kernels"], machine["processor"]))

    monkeypatch.setenv("OCTAVO_KERNEL_LIBRARY", str(tmp_path / "gone.so"))
    assert "cannot be loaded" in json.loads(run_octavo("inspect", "--machine", "--json").out)["kernels"]
