"""The parts of a release besides wheels: bill of materials, citation, and build settings."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import check_wheels
import pytest
import yaml
from click.testing import CliRunner

import octavo
from data.json_types import JsonObject
from patience import HANG_SECONDS

ROOT = Path(__file__).parents[2]
PROJECT: JsonObject = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = [
    path for path in sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")) if path.name != "config.yml"
]
SCHEMAS = {
    "vendor.github-workflows": WORKFLOWS,
    "custom.github-workflows-require-timeout": WORKFLOWS,
    "vendor.github-issue-forms": FORMS,
    "vendor.github-issue-config": [ROOT / ".github/ISSUE_TEMPLATE/config.yml"],
    "vendor.dependabot": [ROOT / ".github/dependabot.yml"],
    "vendor.citation-file-format": [ROOT / "CITATION.cff"],
}


@pytest.mark.parametrize("schema", SCHEMAS)
def test_metadata_files_match_their_schemas(schema: str) -> None:
    checker = pytest.importorskip("check_jsonschema")
    done = CliRunner().invoke(checker.main, ["--builtin-schema", schema, *map(str, SCHEMAS[schema])])
    assert done.exit_code == 0, done.output


def steps_of(workflow: Path) -> list[JsonObject]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"]
    return [step for job in jobs.values() for step in job.get("steps", [])]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_have_minimal_permissions(workflow: Path) -> None:
    """No write permission by default, only required ones per job; third-party actions are pinned."""
    content = yaml.safe_load(workflow.read_text())
    assert content["permissions"] in ({}, {"contents": "read"})
    for name, job in content["jobs"].items():
        written = {key for key, value in job.get("permissions", {}).items() if value == "write"}
        allowed = {
            "attest": {"id-token", "attestations"},
            "publish": {"id-token"},
            "announce": {"contents"},
        }
        assert written <= allowed.get(name, set()), name
    for step in steps_of(workflow):
        pinned = r"[\w-]+/[\w-]+@(v\d+|release/v1|[0-9a-f]{40})"
        assert re.fullmatch(pinned, step.get("uses", "a/b@v1")), step
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
        # The text of a title or branch name must not be executed as a command.
        assert "${{" not in step.get("run", "")
    assert "secrets." not in workflow.read_text()


def test_every_script_called_by_a_workflow_exists() -> None:
    commands = "\n".join(step.get("run", "") for workflow in WORKFLOWS for step in steps_of(workflow))
    called = set(re.findall(r"(?:tools|\.ci)/[\w.]+", commands))
    assert {".ci/run", "tools/changelog.py", "tools/build_wheels.sh", "tools/sbom.py"} <= called
    assert all((ROOT / name).is_file() for name in called)


def test_releases_use_the_tested_tools() -> None:
    """The workflow installs the tools by name, since the extra would also install torch."""
    workflow = (ROOT / ".github/workflows/release.yml").read_text()
    tools = " ".join(re.findall(r" -m pip install ((?:build|cibuildwheel)\b.*)", workflow))
    extra = PROJECT["project"]["optional-dependencies"]["release"]
    assert set(tools.split()) == {re.split(r"[<>=]", requirement)[0] for requirement in extra}


PLATFORMS = {
    "manylinux": "linux",
    "macosx": "macos",
}  # the name in a wheel's file name, and the name for cibuildwheel


@pytest.mark.parametrize("released", check_wheels.RELEASED)
def test_cibuildwheel_accepts_its_settings(released: str) -> None:
    """There is one wheel per platform, for every Python version."""
    pytest.importorskip("cibuildwheel")
    system, machine = released.split("_", 1)
    where = ["--platform", PLATFORMS[system], "--archs", machine]
    command = [sys.executable, "-m", "cibuildwheel", *where, "--print-build-identifiers"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=HANG_SECONDS
    )
    assert done.stdout.split() == [f"cp312-{released}"], done.stderr
    settings = PROJECT["tool"]["cibuildwheel"]
    assert (ROOT / settings["test-command"].split("{project}/")[1]).is_file()


def test_the_version_has_one_source() -> None:
    assert "version" not in PROJECT["project"]
    assert "version" not in yaml.safe_load((ROOT / "CITATION.cff").read_text())


def test_the_bill_of_materials_is_complete(tmp_path: Path) -> None:
    """The command validates against CycloneDX's schema; every direct dependency must be listed."""
    pytest.importorskip("cyclonedx_py")
    if "OCTAVO_TEST_PYTHON" not in os.environ:
        pytest.skip("OCTAVO_TEST_PYTHON is not set: it names the Python of a plain install")
    python = Path(os.environ["OCTAVO_TEST_PYTHON"])
    file = tmp_path / "octavo.cdx.json"
    command = [sys.executable, str(ROOT / "tools/sbom.py"), str(python.parent.parent), str(file)]
    subprocess.run(command, check=True, timeout=HANG_SECONDS)
    bill = json.loads(file.read_text())
    component = bill["metadata"]["component"]
    assert (component["name"], component["version"]) == ("octavo", octavo.__version__)
    listed = {part["name"].lower().replace("_", "-") for part in bill["components"]}
    direct = {re.split(r"[\[<>=]", text)[0].replace("_", "-") for text in PROJECT["project"]["dependencies"]}
    assert direct <= listed
