"""Checks that the attacker finds planted bugs: one short attack for each, with every kind of action."""

import dataclasses
import importlib.util
import json
import os
import shutil
import time
from pathlib import Path

from attacker.attack import Settings
from attacker.bugs import BUGS, Bug
from attacker.plant.sitecustomize import VARIABLE, edited
from attacker.run import Outcome, run
from data.tiny_llama import write_tiny_llama
from patience import HANG_SECONDS

PLANT = Path(__file__).parent / "plant"
CONTEXT = 1024
# With few slots, requests wait for the engine even though the steps of the tiny model are short. The share is
# lower than with a real model, where generating tokens takes nearly all of the time.
SETTINGS = Settings(
    seconds=40,
    round_seconds=10,
    seed=1,
    flags=("--kv-memory", "384KiB", "--max-running", "4"),
    patience=10,
    min_share=0.6,
)
# With a planted bug. Most are found in the first round, but a slow machine may need more.
MAX_SECONDS = 400


def write_model(folder: Path) -> Path:
    """Write the tiny model, whose server starts in a few seconds, with a longer context."""
    model = folder / "tiny"
    model.mkdir()
    write_tiny_llama(model)
    config = model / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": CONTEXT}))
    return model


def check_place(bug: Bug) -> None:
    """Raise LookupError if the code that the bug changes is not there any more."""
    spec = importlib.util.find_spec(bug.module)
    if spec is None or spec.origin is None:
        raise LookupError(f"planted bug {bug.name!r}: there is no module {bug.module}")
    try:
        edited(Path(spec.origin).read_text(), bug.method, bug.right, bug.wrong)
    except LookupError as error:
        raise LookupError(f"planted bug {bug.name!r} in {bug.module}: {error}") from None


def attack_with(
    bug: Bug | None, model: Path, folder: Path, *, min_share: float = SETTINGS.min_share
) -> Outcome:
    """Attack a server with a planted bug until it is found, or without one, as a control."""
    settings, environ = dataclasses.replace(SETTINGS, patience=HANG_SECONDS, min_share=min_share), {}
    if bug is not None:
        check_place(bug)
        settings = dataclasses.replace(
            SETTINGS, seconds=MAX_SECONDS, stops_at=frozenset(bug.found_by), num_agents=bug.num_agents
        )
        paths = [str(PLANT), os.environ.get("PYTHONPATH", "")]
        planted = {name: getattr(bug, name) for name in ("module", "method", "right", "wrong")}
        environ = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), VARIABLE: json.dumps(planted)}
    folder = folder / "planted"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return run(model, folder, settings, folder / "actions.log", environ)


def is_found(bug: Bug, outcome: Outcome) -> bool:
    return outcome.findings.has(bug.found_by)


def run_planted(folder: Path, name: str | None) -> int:
    """Attack with each bug, or with the one of this name. Returns 1 if one is not found, or if there
    are violations without a bug."""
    bugs = [bug for bug in BUGS if name in (None, bug.name)]
    for bug in bugs:
        check_place(bug)
    model = write_model(folder)
    control = attack_with(None, model, folder)
    print(f"without a bug: {control.summary.splitlines()[0]}", flush=True)
    missed = [] if control.is_clean else ["the control without a bug has violations"]
    for bug in bugs:
        began = time.monotonic()
        outcome = attack_with(bug, model, folder)
        found = is_found(bug, outcome)
        print(f"{'found' if found else 'MISSED'} in {time.monotonic() - began:.0f} s: {bug.name}")
        for violation in outcome.findings.violations[:3]:
            print(f"    {violation}", flush=True)
        if not found:
            missed.append(f"missed {bug.name!r}")
    print(f"{len(bugs)} planted bugs: " + ("; ".join(missed) or "all found"))
    return 1 if missed or not bugs else 0
