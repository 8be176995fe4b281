"""Runs Node programs that send requests to a server."""

import json
import os
import shutil
import subprocess
from pathlib import Path

from data.json_types import Json
from patience import HANG_SECONDS


def run_node(program: str | Path, folder: Path, url: str, data: Json = None) -> Json:
    """Run a program (by its name in this folder, or its path) and return its output as JSON.

    `folder` contains its packages.
    """
    done = subprocess.run(
        ["node", shutil.copy(Path(__file__).parent / program, folder)],
        env=os.environ | {"URL": url},
        input=json.dumps(data),
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
