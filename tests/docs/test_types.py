"""Every Python program of the documentation passes the type checker, whether it can be run here or not."""

import subprocess
import sys
from pathlib import Path

from docs.pages import ROOT, all_blocks, is_made


def test_python_blocks(tmp_path: Path) -> None:
    """Marked blocks of a page are one program: the later ones use what the earlier ones define."""
    programs: dict[str, str] = {}
    for block in all_blocks():
        if block.language == "python" and block.title is None and not is_made(block.page):
            name = block.page.replace("/", "_").replace("-", "_").removesuffix(".md")
            part = "_together" if block.marker == "python" else f"_{block.line}"
            programs[name + part] = programs.get(name + part, "") + block.body
    assert len(programs) > 5
    for name, program in programs.items():
        (tmp_path / f"{name}.py").write_text(program)
    # Not strict: examples are for reading. The cache is that of `make types`.
    options = ["--no-strict", "--config-file", str(ROOT / "pyproject.toml"), "--check-untyped-defs"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *map(str, sorted(tmp_path.glob("*.py")))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
