"""Views of a server, for tests without one."""

import random

from data.engine_facts import engine_facts
from octavo.protocol import EngineStats
from octavo.status import ReplicaState, ReplicaStatus
from octavo.top.history import History
from octavo.view import (
    CACHED_HELD,
    CACHED_IDLE,
    FREE,
    FactsEvent,
    FinishedRequest,
    FleetEvent,
    Latency,
    NodeView,
    SequenceView,
    StepView,
    TreeView,
    ViewEvent,
    WaitingView,
)

FACTS = FactsEvent(replica="r0", model="tiny", version="1", facts=engine_facts(), uptime_seconds=5.0)


def a_view(number: int, num_running: int = 3, num_blocks: int = 1000) -> ViewEvent:
    """Return the view of second `number`, with all parts filled."""
    drawn = random.Random(number)
    codes = (FREE, CACHED_IDLE, CACHED_HELD, *range(num_running))
    runs, left = [], num_blocks
    while left:
        count = drawn.randint(1, min(left, 40))
        runs.append((drawn.choice(codes), count))
        left -= count
    stats = EngineStats(
        num_running=num_running,
        num_waiting=number,
        blocks_total=num_blocks,
        blocks_free=100,
        blocks_cached=500,
        blocks_idle=50,
        steps=10 * number,
        tokens_computed=200 * number,
        prompt_tokens=150 * number,
        prompt_tokens_cached=50 * number,
        tokens_sampled=100 * number,
        preemptions=1,
    )
    nodes = [
        NodeView(block, None if block < 2 else block // 2, 1 + block, 32, block % 3, 0) for block in range(40)
    ]
    return ViewEvent(
        time=1000.0 + number,
        stats=stats,
        blocks=tuple(runs),
        sequences=tuple(
            SequenceView(slot, f"cmpl-abcdef{slot}-0", slot % 2, 100, 110, 60, 32, 4, 1, 0)
            for slot in range(num_running)
        ),
        waiting=tuple(WaitingView(f"cmpl-w{one}-1", 0, 9, 9, 0, 1.5) for one in range(min(number, 64))),
        tree=TreeView(tuple(nodes), 5),
        latency=Latency(0.02, 0.5, 0.001, None),
        steps=tuple(
            StepView(10 * number + step, 1000.0, 0.01, ((0, 5, 1, 1), (1, 0, 64, 0)), (2,) * (step == 3))
            for step in range(10)
        ),
        steps_left_out=0,
        finished=(a_finished(),),
        finished_left_out=0,
    )


def a_finished(**changes: object) -> FinishedRequest:
    choice = {
        "queue_seconds": 0.1,
        "prefill_seconds": 0.2,
        "prefill_chunks": [{}],
        "prefill_chunks_left_out": 0,
        "decode_seconds": 0.3,
        "preemptions": 1,
    }
    fields: dict[str, object] = {
        "request_id": "req_1",
        "response_id": "cmpl-abcdef",
        "route": "/v1/completions",
        "status": 200,
        "model": "tiny",
        "stream": True,
        "prompt_tokens": 10,
        "cached_tokens": 0,
        "completion_tokens": 20,
        "finish_reason": "length",
        "queue_seconds": 0.1,
        "seconds_to_first_token": 0.3,
        "seconds": 0.6,
        "tokens_per_second": 33.3,
        "error": None,
        "octavo": {"requests": [{"choices": [choice]}]},
    }
    return FinishedRequest(**(fields | changes))  # type: ignore[arg-type]


def a_replica(number: int, name: str = "r0", **changes: object) -> ReplicaStatus:
    """Return a replica in second `number` of its life: half of the time it computed, 10 tokens per second."""
    fields: dict[str, object] = {
        "name": name,
        "state": ReplicaState.READY,
        "pid": 1234,
        "uptime_seconds": 1.0 + number,
        "requests": 3,
        "sequences": 4,
        "running": 3,
        "waiting": 1,
        "kv_blocks_used": 250,
        "kv_blocks_total": 1000,
        "fingerprint": "fp_1",
        "restarts": 2,
        "failures": 1,
        "suspicions": 0,
        "moves_in": 5,
        "moves_out": 7,
        "steps": 20 * number,
        "step_seconds": 0.5 * number,
        "tokens": 10 * number,
        "prompt_tokens": 100 * number,
        "prompt_tokens_cached": 40 * number,
        "preemptions": 0,
    }
    return ReplicaStatus(**(fields | changes))  # type: ignore[arg-type]


def a_fleet(number: int, *replicas: ReplicaStatus) -> FleetEvent:
    """Return the event of second `number`."""
    return FleetEvent(time=1000.0 + number, requests=9, unsent=2, moves=12, replicas=replicas)


def a_history(num_views: int = 5, num_running: int = 3, num_blocks: int = 1000) -> History:
    history = History()
    history.note(FACTS)
    for number in range(num_views):
        history.note(a_view(number, num_running, num_blocks))
    return history


def a_fleet_history(*names: str, **changes: object) -> History:
    """Return a history with replicas of these names, of which `changes` describes the last."""
    history = a_history()
    for number in range(1, 4):
        replicas = [a_replica(number, name) for name in names[:-1]]
        history.note(a_fleet(number, *replicas, a_replica(number, names[-1], **changes)))
    return history
