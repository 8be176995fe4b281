"""The engines that are compared: where each is installed, how it is started, what its version is.

All get the same weights in bfloat16, or quantised as `FORMATS` says, the same number of threads, prefix
caching, and about as much KV. Everything else is the engine's own default, except where its notes say so.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers.models import ModelFiles

MODEL_NAME = "model"  # under which all of them serve it
CONTEXT = 2048
LLAMA_CPP_CONTEXT = 1536  # tokens a slot: the longest request of all workloads has 1,088


@dataclass(frozen=True)
class Start:
    """How an engine is to be started."""

    model: ModelFiles
    port: int
    threads: int
    slots: int  # requests at once at most
    kv_gigabytes: int


@dataclass(frozen=True)
class Engine:
    name: str
    is_ours: bool
    has_http: bool  # no: driven in its own process through a pipe
    program: Path  # not there: not installed
    command: Callable[[Start], Sequence[str]]
    environment: Callable[[Start], Mapping[str, str]]
    version: Callable[[], str]
    needs: Callable[[ModelFiles], Path]  # the form of the model that it reads
    notes: Sequence[str] = field(default=())

    def why_not(self, model: ModelFiles) -> str | None:
        """Why it cannot run; None: it can."""
        if not self.program.exists():
            return "it is not installed (benchmarks/peers/install.sh)"
        if not self.needs(model).exists():
            return f"there is no {self.needs(model).name} (python -m benchmarks.peers models)"
        return None


def engines(root: Path) -> list[Engine]:
    """Ours first, then the peers, installed or not. `root` is where install.sh has put them."""
    here = Path(__file__).parent
    return [
        _octavo(),
        _vllm(root / "vllm"),
        _openvino(root / "openvino", here),
        _llama_cpp(root / "llama.cpp"),
    ]


def _octavo() -> Engine:
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

    return Engine(
        "Octavo",
        True,
        True,
        Path(sys.executable),
        command,
        lambda start: {},
        version,
        lambda model: model.ours,
    )


def _vllm(root: Path) -> Engine:
    def command(start: Start) -> list[str]:
        # As `vllm serve`, whose command does not find its own version in the package for CPUs.
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

    return Engine(
        "vLLM CPU",
        False,
        True,
        root / "bin/python",
        command,
        environment,
        version,
        lambda model: model.folder,
    )


def _openvino(root: Path, here: Path) -> Engine:
    def command(start: Start) -> list[str]:
        driver = str(here / "openvino_driver.py")
        arguments = (str(start.model.openvino), str(start.threads), str(start.kv_gigabytes))
        return [str(root / "bin/python"), driver, *arguments]

    def version() -> str:
        return _said(
            root / "bin/python", "from importlib.metadata import version; print(version('openvino-genai'))"
        )

    return Engine(
        "OpenVINO GenAI",
        False,
        False,
        root / "bin/python",
        command,
        lambda start: {},
        version,
        lambda model: model.openvino,
        (
            "OpenVINO GenAI runs inside the process that drives it, without HTTP and without making text,"
            " which flatters it; what others have as bfloat16 it stores as float16 and computes in bfloat16;"
            " 512 batched tokens, 64 sequences and dynamic split fuse are set",
        ),
    )


def _llama_cpp(root: Path) -> Engine:
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

    return Engine(
        "llama.cpp server", False, True, program, command, lambda start: {}, version, lambda model: model.gguf
    )


def environment_of(engine: Engine, start: Start) -> dict[str, str]:
    """Ours, without what would reach into another's Python or threads, and with what the engine wants."""
    kept = dict(os.environ)
    if not engine.is_ours:
        for name in ("PYTHONPATH", "OMP_NUM_THREADS"):
            kept.pop(name, None)
    return kept | {"HF_HUB_OFFLINE": "1"} | dict(engine.environment(start))


def _said(python: Path, program: str) -> str:
    return subprocess.run(
        [str(python), "-c", program], capture_output=True, text=True, check=True
    ).stdout.strip()
