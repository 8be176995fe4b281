"""`octavo bench` in its short form, on a tiny model and small kernels."""

import json
from pathlib import Path

import pytest

from octavo.cli import bench_output
from octavo.kernels.library import find_library
from unit.cli.scripted import RunCommand


@pytest.fixture(autouse=True)
def _small_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    if find_library() is None:
        pytest.skip("no native library was built when the package was installed")
    monkeypatch.setattr(bench_output, "PROBED_BYTES", 1 << 22)


@pytest.fixture
def library() -> str:
    """Return the path of the library, to set it again: `run_octavo` removes Octavo's variables."""
    return str(find_library())


def test_step_prints_a_table_and_the_same_json(
    library: str, run_octavo: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_KERNEL_LIBRARY", library)
    path = tmp_path / "step.json"
    arguments = (
        "bench step random:tiny --quick --batch 1 4 --context 32 --prefill 64 --against torch --threads 2"
    )
    ran = run_octavo(*arguments.split(), "--top-p", "0.9", "--json", str(path))
    assert ran.code == 0, ran.err
    header, *rows = ran.out.splitlines()
    assert header.split()[:3] == ["step", "ms", "tok/s"]
    content = json.loads(path.read_text())
    assert (content["model"], content["dtype"], content["threads"]) == ("random:tiny", "bfloat16", 2)
    names = ["decode 1 x 32", "decode 4 x 32", "prefill 1 x 64"]
    assert [result["name"] for result in content["results"]] == names
    for row, result in zip(rows, content["results"], strict=True):
        assert row.startswith(result["name"])
        assert sum(result["shares"].values()) == pytest.approx(1.0)
        assert result["fraction"] > 0
        assert result["speedup"] > 0
        assert result["num_turns"] >= 1
    assert "dropped because AMX was throttled" in ran.err


def test_a_quantised_random_model_reads_fewer_bytes(
    library: str, run_octavo: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_KERNEL_LIBRARY", library)
    gigabytes = []
    for options in ((), ("--format", "Q8_0"), ("--format", "Q8_0", "--weights", "widened")):
        path = tmp_path / "step.json"
        arguments = "bench step random:tiny --quick --batch 1 --context 8 --prefill 64 --threads 2 --json"
        ran = run_octavo(*arguments.split(), str(path), *options)
        assert ran.code == 0, ran.err
        _, result = json.loads(path.read_text())["results"]
        gigabytes.append(result["gigabytes"])
    plain, kept, widened = gigabytes
    weights = 2 * (512 * 64 + 2 * 64 * (2 * 64 + 2 * 32 + 3 * 128)) / 1e9
    assert plain == pytest.approx(widened)
    assert plain - kept == pytest.approx(weights * (1 - 34 / 64))


def test_kernels_can_be_selected_and_plotted(
    library: str, run_octavo: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("OCTAVO_KERNEL_LIBRARY", library)
    figures, picture = tmp_path / "kernels.json", tmp_path / "kernels.svg"
    arguments = ["--quick", "--filter", "smollm2 prefill", "--json", str(figures), "--plot", str(picture)]
    ran = run_octavo("bench", "kernels", *arguments)
    assert ran.code == 0, ran.err
    (result,) = json.loads(figures.read_text())["results"]
    assert result["name"] == "prefill attention smollm2-135m 1 x 1024"
    assert ran.out.splitlines()[1].startswith(result["name"])
    assert result["name"] in picture.read_text() or ">1024<" in picture.read_text()


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (
            ["kernels", "--filter", "warp drive"],
            "error: --filter 'warp drive' matches no kernel; choose from",
        ),
        (["kernels", "--plot", "a.jpeg"], "error: --plot a.jpeg: the file name must end with .svg or .png"),
        (["kernels", "--filter", "rows", "--plot", "a.svg"], "error: --plot"),
        (["step"], "error: no model: name one, as in 'octavo bench step MODEL'"),
        (
            ["kernels", "--format", "BF16", "Q9"],
            "error: --format Q9: unknown weight format; choose from BF16, Q4_K",
        ),
        (["step", "some/model", "--format", "Q4_K"], "error: --format applies to random models only"),
        (
            ["step", "random:tiny", "--format", "Q4_K"],
            "writing random:tiny\nerror: rows of 64 weights cannot",
        ),
        (["step", "random:gpt"], "writing random:gpt\nerror: unknown model random:gpt: use one of"),
        (
            ["step", "random:tiny", "--batch", "0"],
            "error: --batch, --context and --prefill must be whole numbers",
        ),
    ],
)
def test_invalid_arguments_are_rejected_before_measuring(
    argv: list[str], expected: str, run_octavo: RunCommand
) -> None:
    ran = run_octavo("bench", *argv)
    assert ran.code == 2
    assert ran.err.startswith(expected)
    assert ran.out == ""
