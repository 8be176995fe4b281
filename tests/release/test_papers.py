"""What a release carries besides wheels: bill of materials, citation, and the settings that build it."""

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
def test_files_for_others_are_valid(schema: str) -> None:
    checker = pytest.importorskip("check_jsonschema")
    done = CliRunner().invoke(checker.main, ["--builtin-schema", schema, *map(str, SCHEMAS[schema])])
    assert done.exit_code == 0, done.output


def steps_of(workflow: Path) -> list[JsonObject]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"]
    return [step for job in jobs.values() for step in job.get("steps", [])]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_may_do_little(workflow: Path) -> None:
    """Nothing by default, and no job more than it must; what others wrote is held to a version."""
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
        # What a title or a branch's name holds must not become a command.
        assert "${{" not in step.get("run", "")
    assert "secrets." not in workflow.read_text()


def test_every_script_that_a_workflow_calls_is_there() -> None:
    commands = "\n".join(step.get("run", "") for workflow in WORKFLOWS for step in steps_of(workflow))
    called = set(re.findall(r"(?:tools|\.ci)/[\w.]+", commands))
    assert {".ci/run", "tools/changelog.py", "tools/build_wheels.sh", "tools/sbom.py"} <= called
    assert all((ROOT / name).is_file() for name in called)


def test_a_release_has_the_tools_that_were_tested() -> None:
    """The workflow installs them by name: the extra would bring torch along."""
    workflow = (ROOT / ".github/workflows/release.yml").read_text()
    tools = " ".join(re.findall(r" -m pip install ((?:build|cibuildwheel)\b.*)", workflow))
    extra = PROJECT["project"]["optional-dependencies"]["release"]
    assert set(tools.split()) == {re.split(r"[<>=]", requirement)[0] for requirement in extra}


PLATFORMS = {"manylinux": "linux", "macosx": "macos"}  # as a wheel's name has it, and as cibuildwheel does


@pytest.mark.parametrize("released", check_wheels.RELEASED)
def test_cibuildwheel_understands_its_settings(released: str) -> None:
    """One wheel for each platform: it fits every Python."""
    pytest.importorskip("cibuildwheel")
    system, machine = released.split("_", 1)
    where = ["--platform", PLATFORMS[system], "--archs", machine]
    command = [sys.executable, "-m", "cibuildwheel", *where, "--print-build-identifiers"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.split() == [f"cp312-{released}"], done.stderr
    settings = PROJECT["tool"]["cibuildwheel"]
    assert (ROOT / settings["test-command"].split("{project}/")[1]).is_file()


def test_one_source_of_the_version() -> None:
    assert "version" not in PROJECT["project"]
    assert "version" not in yaml.safe_load((ROOT / "CITATION.cff").read_text())


def test_the_bill_of_materials(tmp_path: Path) -> None:
    """Valid by CycloneDX's own schema, which the command sees to, and with every direct dependency."""
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
