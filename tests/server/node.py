"""Programs for Node that ask a server."""

import json
import os
import shutil
import subprocess
from pathlib import Path

from data.json_types import Json
from patience import HANG_SECONDS


def run_node(program: str, folder: Path, url: str, told: Json = None) -> Json:
    """What a program of this folder prints, as JSON. `folder` is where it finds its packages."""
    done = subprocess.run(
        ["node", shutil.copy(Path(__file__).parent / program, folder)],
        env=os.environ | {"URL": url},
        input=json.dumps(told),
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
