"""`octavo quantize` on a small generated checkpoint."""

import json
from pathlib import Path

from octavo.checkpoint import open_checkpoint
from unit.cli.scripted import RunCommand


def test_a_quantised_checkpoint_is_written(
    run_octavo: RunCommand, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "out"
    ran = run_octavo("quantize", str(tiny_checkpoint), str(out), "--scheme", "int4")
    assert (ran.code, ran.out) == (0, "")
    assert f"{out}: " in ran.err
    assert " quantised to " in ran.err
    kinds = {tensor.source_dtype for tensor in open_checkpoint(checkpoint_path=out).tensors.values()}
    assert kinds == {"F32", "INT4_32"}
    assert json.loads((out / "config.json").read_text())["quantization_config"]["format"] == "pack-quantized"
    again = run_octavo("quantize", str(tiny_checkpoint), str(out), "--scheme", "int4")
    assert again.code == 2
    assert "already exists" in again.err


def test_quiet_prints_nothing(run_octavo: RunCommand, tiny_checkpoint: Path, tmp_path: Path) -> None:
    ran = run_octavo("quantize", str(tiny_checkpoint), str(tmp_path / "out"), "--scheme", "int8", "-q")
    assert (ran.code, ran.out, ran.err) == (0, "", "")


def test_invalid_arguments_are_rejected(
    run_octavo: RunCommand, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    for argv, code, complaint in (
        ((str(tiny_checkpoint), out), 2, "--scheme"),
        ((str(tiny_checkpoint), out, "--scheme", "int3"), 2, "int3"),
        ((str(tmp_path / "none"), out, "--scheme", "int8"), 1, "There is no file"),
    ):
        ran = run_octavo("quantize", *argv)
        assert ran.code == code, ran.err
        assert complaint in ran.err
    assert not (tmp_path / "out").exists()


def test_inspect_shows_the_result_of_the_quantize_option(
    run_octavo: RunCommand, tiny_checkpoint: Path
) -> None:
    ran = run_octavo("inspect", str(tiny_checkpoint), "--quantize", "int8", "--json")
    assert ran.code == 0, ran.err
    assert set(json.loads(ran.out)["model"]["bytes_by_stored_dtype"]) == {"F32", "INT8_32"}
