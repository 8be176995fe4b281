"""The trace of a few steps: it contains every token once, and spans are at the right times."""

from pathlib import Path

import msgspec
import pytest

from data.json_types import JsonObject
from octavo.engine.profile import Profile
from octavo.errors import ConfigError
from octavo.link.folder import EngineSettings
from octavo.link.heartbeat import HeartbeatFile
from octavo.link.profile_window import ProfileWindow
from octavo.protocol import GenerateRequest, KernelTime, KernelTimes, SamplingParams
from octavo.simulate.null_engine import start_null_engine

WINDOW_SECONDS = 8.0


class Clock:
    """Advances by a second on every read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def read_trace(path: Path) -> list[JsonObject]:
    """Read as trace viewers do: the closing bracket may be missing."""
    events: list[JsonObject] = msgspec.json.decode(path.read_bytes().rstrip().rstrip(b",") + b"]")
    return events


def kernel_times(seconds: float) -> KernelTimes:
    kinds = [KernelTime(seconds * factor, 1) for factor in (4, 3, 2, 1)]
    return KernelTimes(gemm=kinds[0], attention=kinds[1], rows=kinds[2], sampling=kinds[3])


def run(window: ProfileWindow, heartbeat: HeartbeatFile, lengths: list[int], max_tokens: int) -> Profile:
    """Run requests with prompts of these lengths to their end on an engine with this profile."""
    clock = Clock()
    profile = Profile(window, clock)
    core, _ = start_null_engine(EngineSettings({}), heartbeat, profile.around)
    params = SamplingParams(max_tokens=max_tokens, seed=0)
    for number, length in enumerate(lengths):
        prompt = tuple(range(100 * number, 100 * number + length))
        core.handle(GenerateRequest(request_id=f"r{number}", prompt_ids=prompt, params=params))
    num_steps = 0
    while core.has_unfinished:
        started = clock()
        result = core.step()
        num_steps += 1
        profile.record_step(started, clock(), result.stats, kernel_times(0.001 * num_steps**2))
    return profile


@pytest.fixture
def heartbeat(tmp_path: Path) -> HeartbeatFile:
    HeartbeatFile.create(tmp_path / "status")
    return HeartbeatFile.open(tmp_path / "status")


def test_every_token_is_in_one_span(tmp_path: Path, heartbeat: HeartbeatFile) -> None:
    window = ProfileWindow(str(tmp_path / "trace.json"), seconds=1e6)
    window.begin_file()
    profile = run(window, heartbeat, [20, 33], max_tokens=4)
    assert not profile.is_over
    events = read_trace(tmp_path / "trace.json")
    spans = [event for event in events if event["ph"] == "X"]
    on_engine = [span for span in spans if span["tid"] == 0]
    on_slots = [span for span in spans if span["tid"] > 0]
    steps = [span for span in on_engine if span["name"].startswith("step ")]
    assert sorted(span["name"] for span in on_slots if "prefill" in span["name"]) == [
        "prefill 20 @ 0",
        "prefill 33 @ 0",
    ]
    assert sum(span["name"].startswith("decode") for span in on_slots) == 2 * 3
    assert sum(step["args"]["tokens"] for step in steps) == 20 + 33 + 2 * 3
    names = [span["name"] for span in on_engine if not span["name"].startswith("step ")]
    assert names == ["schedule", "execute", "results"] * len(steps)
    for number, step in enumerate(steps):
        schedule, execute, results = [s for s in on_engine if s not in steps][3 * number : 3 * number + 3]
        assert schedule["ts"] == step["ts"]
        assert execute["ts"] == schedule["ts"] + schedule["dur"]
        assert results["ts"] == execute["ts"] + execute["dur"]
        assert results["ts"] + results["dur"] == step["ts"] + step["dur"]
        # Kernel times are per step: totals of 1, 4, 9 ms mean 3, 5, ... ms per step.
        assert execute.get("args", {}).get("sampling") == (2 * number + 1 if number else None)
    tracks = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert tracks == {"engine", "slot 0", "slot 1"}


def test_profiling_ends_after_its_window(tmp_path: Path, heartbeat: HeartbeatFile) -> None:
    window = ProfileWindow(str(tmp_path / "trace.json"), seconds=WINDOW_SECONDS)
    window.begin_file()
    assert run(window, heartbeat, [5], max_tokens=50).is_over
    events = read_trace(tmp_path / "trace.json")
    starts = [event["ts"] for event in events if event["name"].startswith("step ")]
    assert len(starts) > 1
    assert starts[-1] - starts[0] <= 1e6 * WINDOW_SECONDS


def test_the_next_engine_continues_the_same_file(tmp_path: Path, heartbeat: HeartbeatFile) -> None:
    window = ProfileWindow(str(tmp_path / "trace.json"), seconds=1e6)
    window.begin_file()
    run(window, heartbeat, [5], max_tokens=2)
    once = len(read_trace(tmp_path / "trace.json"))
    run(window, heartbeat, [5], max_tokens=2)
    assert len(read_trace(tmp_path / "trace.json")) == 2 * once


def test_an_unwritable_file_is_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="choose another file"):
        ProfileWindow(str(tmp_path / "no" / "trace.json"), 1.0).begin_file()
