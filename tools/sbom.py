"""Write the bill of materials of a plain install as CycloneDX JSON: `python tools/sbom.py VENV FILE`.

cyclonedx-bom lists the installed packages and validates the list against CycloneDX's schema. The same
packages give the same file.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from changelog import ROOT, package_version

KEPT = ("name", "description", "license", "dependencies")


def project_table(root: Path) -> str:
    """Return a pyproject.toml with a literal version: the scanner does not ask the build backend for it."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    facts = {key: project[key] for key in KEPT} | {"version": package_version(root)}
    # JSON strings and lists of strings are valid TOML.
    return "[project]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in facts.items())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the bill of materials of an environment.")
    parser.add_argument("venv", type=Path, help="environment with only Octavo installed")
    parser.add_argument("file", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder, "pyproject.toml")
        project.write_text(project_table(ROOT), encoding="utf-8")
        command = [sys.executable, "-m", "cyclonedx_py", "environment", "--pyproject", str(project)]
        command += ["--mc-type", "library", "--output-reproducible", "--validate", "--of", "JSON"]
        command += ["-o", str(options.file), str(options.venv)]
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
