"""Python blocks that the tests do not run pass mypy in strict mode."""

import subprocess
import sys
from pathlib import Path

from docs.pages import ROOT, all_blocks, is_made


def test_python_blocks_pass_mypy(tmp_path: Path) -> None:
    """Marked blocks are run, and excerpts are compared with their files (test_blocks.py)."""
    unmarked = [block for block in all_blocks() if block.language == "python" and block.marker is None]
    programs = [block for block in unmarked if block.title is None and not is_made(block.page)]
    assert programs, "no blocks to check: delete this test"
    for number, block in enumerate(programs):
        (tmp_path / f"block_{number}.py").write_text(f"# {block}\n{block.body}")
    # Uses the cache of `make types`.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *map(str, sorted(tmp_path.glob("*.py")))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{[str(block) for block in programs]}\n{done.stdout}{done.stderr}"
