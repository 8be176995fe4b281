"""Large files are distinguished by hashing pieces of them."""

from pathlib import Path

from octavo.checkpoint import open_checkpoint
from octavo.checkpoint.identity import SAMPLE_BYTES, SAMPLES, identity
from unit.checkpoint.tiny_gguf import WriteGguf


def test_changes_in_sampled_pieces_of_a_large_file_are_detected(
    write_tiny_gguf: WriteGguf, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    write_tiny_gguf(path, layers=20)
    assert path.stat().st_size > 2 * SAMPLES * SAMPLE_BYTES
    before = identity(open_checkpoint(str(path)))
    assert before == identity(open_checkpoint(str(path)))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1  # the last piece ends with the file
    path.write_bytes(content)
    after = identity(open_checkpoint(str(path)))
    assert {name for name in before if before[name] != after[name]} == {"files"}
