"""The panels of the screen. Each is a function that returns at most `space.height` lines for a history."""

import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo.config import counted
from octavo.status import ReplicaState
from octavo.top.history import History
from octavo.top.paint import (
    SLOT_LETTERS,
    CellStyle,
    Glyphs,
    Line,
    Span,
    clean,
    duration,
    line,
    of_slot,
    runs,
    sparkline,
    width_of,
)
from octavo.view import (
    CACHED_HELD,
    CACHED_IDLE,
    FREE,
    BlockRuns,
    FinishedRequest,
    Latency,
    NodeView,
    SequenceView,
    StepView,
    ViewEvent,
)

LABEL = 12  # columns of a chart's name
FIGURES = 26  # columns of its figures
ID = 10  # columns of a request's name
ID_TAIL = 6  # number of characters shown from the end of its response's id


@dataclass(frozen=True)
class Space:
    width: int
    height: int
    glyphs: Glyphs


Panel = Callable[[History, Space], list[Line]]


def lines_of_blocks(history: History, width: int) -> int:
    return 1 if history.view is None else 1 - -history.view.stats.blocks_total // max(1, width)


def lines_of_steps(history: History, _: int) -> int:
    return 5 + any(step.drafts for step in history.steps)


def lines_of_requests(history: History, _: int) -> int:
    return 1 if history.view is None else 1 + bool(history.view.sequences) + len(history.view.sequences)


def lines_of_finished(history: History, _: int) -> int:
    return 1 + bool(history.finished) + len(history.finished)


def lines_of_tree(history: History, _: int) -> int:
    return 1 if history.view is None else 1 + len(history.view.tree.nodes) + bool(history.view.tree.left_out)


def title(text: str, detail: str, space: Space) -> Line:
    spans = line(Span(text, CellStyle.TITLE), Span(f"  {detail} " if detail else " "))
    rest = max(0, space.width - width_of(spans))
    return (*spans, Span(space.glyphs.rule * rest, CellStyle.DIM))


def header(history: History, space: Space) -> list[Line]:
    """Return one line, or several with the reason while there is no view."""
    facts, glyphs = history.facts, space.glyphs
    name = Span("octavo top  " if facts is None else f"{clean(facts.model)}  ", CellStyle.BOLD)
    notice = [line(Span(f"  {clean(history.notice)}", CellStyle.WARN))] if history.notice else []
    if history.view is None:
        reason = textwrap.wrap(clean(_reason(history)), max(10, space.width - 2))
        light = Span(f"{glyphs.light} no data", CellStyle.BAD)
        return [line(name, light), *notice, *[line(Span(f"  {part}", CellStyle.BAD)) for part in reason], ()]
    detail = f"up {duration(history.uptime_seconds)}"
    if facts is not None:
        engine = facts.facts
        model = f"{engine.device} {engine.dtype}, {engine.max_model_len:,} tokens"
        detail = f"{model}, octavo {facts.version}, {detail}"
    state, style = _state(history)
    light, replica = Span(f"{glyphs.light} ", style), Span(_shown_replica(history), CellStyle.BOLD)
    return [line(name, light, state, replica, Span(f"  {clean(detail)}", CellStyle.DIM)), *notice]


def _state(history: History) -> tuple[str, CellStyle]:
    """Return the state of the server, or that of the shown one of its replicas if it is not ready."""
    replicas = history.fleet.replicas
    for replica in replicas if len(replicas) > 1 else ():
        if replica.name == history.shown_replica and replica.state is not ReplicaState.READY:
            return replica.state, CellStyle.WARN
    return clean(history.state), CellStyle.GOOD


def _reason(history: History) -> str:
    """Return why there is no view: also why a chosen replica has no engine."""
    problems = [one.problem for one in history.fleet.replicas if one.name == history.chosen and one.problem]
    return ": ".join([history.state, *problems])


def _shown_replica(history: History) -> str:
    """Return which of several replicas is shown, and whether the user has chosen it."""
    number = len(history.fleet.replicas)
    if number < 2:
        return ""
    automatic = "" if history.chosen is not None else " (automatic)"
    return f"  {clean(history.shown_replica or '-')} of {number:,}{automatic}"


# -- charts ----------------------------------------------------------------------------------------------


def charts(history: History, space: Space) -> list[Line]:
    samples, view = list(history.samples), history.view
    sampled, prompts = history.rates
    latency = Latency(None, None, None, None) if view is None else view.latency
    stats = None if view is None else view.stats

    def percentiles(middle: float | None, high: float | None) -> str:
        return f"{duration(middle)}, p99 {duration(high)}"

    rows: list[tuple[str, str, list[float | None]]] = [
        ("tokens/s", f"{sampled:,.0f}", [sample.tokens_per_second for sample in samples]),
        ("prompt tok/s", f"{prompts:,.0f}", [sample.prompt_tokens_per_second for sample in samples]),
        (
            "first token",
            percentiles(latency.ttft_p50, latency.ttft_p99),
            [sample.ttft for sample in samples],
        ),
        (
            "inter-token",
            percentiles(latency.itl_p50, latency.itl_p99),
            [sample.itl for sample in samples],
        ),
        (
            "running",
            "-" if stats is None else f"{stats.num_running}, {stats.num_waiting} waiting",
            [sample.num_running for sample in samples],
        ),
    ]
    wide = space.width - LABEL - FIGURES - 2
    return [
        line(Span(f"{name:<{LABEL}} ", CellStyle.DIM), Span(f"{figure:<{FIGURES}} ", CellStyle.BOLD), chart)
        for name, figure, values in rows[: space.height]
        for chart in [Span(sparkline(values, wide, space.glyphs.bars), CellStyle.GOOD)]
    ]


# -- blocks -----------------------------------------------------------------------------------------------


def blocks(history: History, space: Space) -> list[Line]:
    view, glyphs = history.view, space.glyphs
    if view is None:
        return [title("KV blocks", "", space)]
    stats = view.stats
    private = stats.blocks_total - stats.blocks_free - stats.blocks_cached
    held = stats.blocks_cached - stats.blocks_idle
    per_cell = max(1, -(-stats.blocks_total // max(1, space.width * (space.height - 1))))
    detail = (
        f"{stats.blocks_total:,}: {glyphs.free} {stats.blocks_free:,} free  "
        f"{glyphs.idle} {stats.blocks_idle:,} cached  {glyphs.held} {held:,} shared  0-Z {private:,} private"
        + (f"  ({per_cell} per cell)" if per_cell > 1 else "")
    )
    cells = [_block_cell(code, glyphs) for code in cell_codes(view.blocks, per_cell)]
    rows = [runs(cells[at : at + space.width]) for at in range(0, len(cells), space.width)]
    return [title("KV blocks", detail, space), *rows[: space.height - 1]]


def cell_codes(block_runs: BlockRuns, per_cell: int) -> list[int]:
    """Return the most common code in each cell of `per_cell` blocks."""
    codes: list[int] = []
    cell: Counter[int] = Counter()
    room = per_cell
    for code, count in block_runs:
        left = count
        while left:
            taken = min(left, room)
            cell[code] += taken
            left -= taken
            room -= taken
            if not room:
                codes.append(cell.most_common(1)[0][0])
                cell.clear()
                room = per_cell
                whole, left = divmod(left, per_cell)
                codes += [code] * whole
    return [*codes, cell.most_common(1)[0][0]] if cell else codes


def _block_cell(code: int, glyphs: Glyphs) -> tuple[str, str]:
    known = {
        FREE: (glyphs.free, CellStyle.DIM),
        CACHED_IDLE: (glyphs.idle, CellStyle.DIM),
        CACHED_HELD: (glyphs.held, CellStyle.HELD),
    }
    return known.get(code) or (SLOT_LETTERS[code % len(SLOT_LETTERS)], of_slot(code))


# -- steps and requests ------------------------------------------------------------------------------------


def steps(history: History, space: Space) -> list[Line]:
    recent, glyphs = list(history.steps), space.glyphs
    wide = space.width - LABEL - 1
    last = recent[-1] if recent else None
    detail = "" if last is None else f"{last.step:,}: {duration(last.seconds)}, {_contents(last)}"
    prefill = [float(sum(_chunks(step))) for step in recent]
    decode = [float(len(step.slices) - len(_chunks(step))) for step in recent]
    accepted = [float(sum([number for _, _, number in step.drafts])) for step in recent]
    has_drafts = any(step.drafts for step in recent)
    preempted = "".join([glyphs.preempted if step.preempted else " " for step in recent[-wide:]])
    marks = (
        ("prefill", sparkline(prefill, wide, glyphs.bars), CellStyle.PREFILL),
        ("decodes", sparkline(decode, wide, glyphs.bars), CellStyle.GOOD),
        *([("accepted", sparkline(accepted, wide, glyphs.bars), CellStyle.GOOD)] if has_drafts else ()),
        ("preempted", preempted.rjust(max(wide, 0)), CellStyle.BAD),
        ("duration", sparkline([step.seconds for step in recent], wide, glyphs.bars), CellStyle.PLAIN),
    )
    rows = [line(Span(f"{name:<{LABEL}} ", CellStyle.DIM), Span(text, style)) for name, text, style in marks]
    return [title("Steps", detail, space), *rows][: space.height]


def _num_known(count: int, num_sampled: int) -> int:
    """Return how many tokens of a slice are not drafts: all but the last sampled rows of several."""
    return count - max(0, num_sampled - 1)


def _chunks(step: StepView) -> list[int]:
    """Return the lengths of the slices that compute part of a prompt."""
    known = [_num_known(count, num_sampled) for _, _, count, num_sampled in step.slices]
    return [number for number in known if number > 1]


def _contents(step: StepView) -> str:
    chunks = _chunks(step)
    words = [counted(len(step.slices) - len(chunks), "decode")]
    if step.drafts:
        num_accepted = sum([accepted for _, _, accepted in step.drafts])
        words.append(
            f"{num_accepted} of {counted(sum([drafted for _, drafted, _ in step.drafts]), 'draft')} accepted"
        )
    if chunks:
        words.append(f"{counted(sum(chunks), 'token')} of {counted(len(chunks), 'prompt')}")
    if step.preempted:
        words.append(f"{len(step.preempted)} preempted")
    return ", ".join(words)


def requests(history: History, space: Space) -> list[Line]:
    view = history.view
    if view is None:
        return [title("Running", "", space)]
    stats = view.stats
    waiting = f", {stats.num_waiting} waiting{_first_waiting(view)}" if stats.num_waiting else ""
    head = (
        f"{'slot':<5} {'request':<{ID}} {'prompt':>7} {'cached':>6} {'tokens':>6} {'blocks':>9} {'pre':>3} "
    )
    wide = space.width - len(head)
    lines = [title("Running", f"{stats.num_running}{waiting}", space)]
    if view.sequences and space.height > 2:
        lines.append(line(Span(head + f"{'recent steps':>{max(wide, 0)}}", CellStyle.DIM)))
    recent = list(history.steps)[-wide:] if wide > 0 else []
    room = space.height - len(lines)
    cut = len(view.sequences) > room
    shown = view.sequences[: max(0, room - cut)]
    timelines = _timelines(recent, frozenset(sequence.slot for sequence in shown), space.glyphs)
    for sequence in shown:
        row = Span(_request_row(sequence), of_slot(sequence.slot))
        lines.append((row, *runs(timelines[sequence.slot])))
    if cut and room > 0:
        lines.append(line(Span(f"     and {len(view.sequences) - room + 1} more", CellStyle.DIM)))
    return lines[: space.height]


def _first_waiting(view: ViewEvent) -> str:
    if not view.waiting:
        return ""
    first = view.waiting[0]
    name = _name(first.request_id, first.choice)
    return f" (first {name}, {first.num_prompt:,} tokens, {duration(first.seconds_waiting)})"


def _name(request_id: str, choice: int) -> str:
    """Return the end of a response's id, and the numbers of its prompt and choice if they are not 0."""
    response, _, prompt = clean(request_id).rpartition("-")
    return response[-ID_TAIL:] + (f"-{prompt}" if prompt != "0" else "") + (f".{choice}" if choice else "")


def _request_row(sequence: SequenceView) -> str:
    done = min(sequence.num_computed, sequence.num_prompt)
    prompt = f"{sequence.num_prompt:,}"
    if done < sequence.num_prompt:  # still in prefill
        prompt = f"{100 * done // sequence.num_prompt}%/{prompt}"
    own = sequence.num_blocks - sequence.num_shared_blocks
    return (
        f"{SLOT_LETTERS[sequence.slot % len(SLOT_LETTERS)]} {sequence.slot:>3} "
        f"{_name(sequence.request_id, sequence.choice):<{ID}} {prompt:>7} {sequence.num_cached:>6,} "
        f"{sequence.num_tokens - sequence.num_prompt:>6,} {f'{sequence.num_shared_blocks}+{own}':>9} "
        f"{sequence.preemptions or '':>3} "
    )


def _timelines(
    steps: Sequence[StepView], slots: frozenset[int], glyphs: Glyphs
) -> dict[int, list[tuple[str, str]]]:
    """Return one character per step for each slot."""
    timelines = {slot: [(" ", str(CellStyle.PLAIN))] * len(steps) for slot in slots}
    for at, step in enumerate(steps):
        for slot, _, count, num_sampled in step.slices:
            if slot in slots:
                is_chunk = _num_known(count, num_sampled) > 1
                chunk = (glyphs.chunk, CellStyle.PREFILL) if is_chunk else (glyphs.decode, CellStyle.GOOD)
                timelines[slot][at] = chunk
        for slot in slots.intersection(step.preempted):
            timelines[slot][at] = (glyphs.preempted, CellStyle.BAD)
    return timelines


def finished(history: History, space: Space) -> list[Line]:
    ended = list(history.finished)
    lines = [title("Finished", f"last {len(ended)}" if ended else "", space)]
    if ended and space.height > 2:
        head = f"{'status':>6} {'request':<{ID}} {'prompt':>7} {'cached':>6} {'tokens':>6} "
        head += f"{'first':>8} {'total':>8} {'tok/s':>6}  details"
        lines.append(line(Span(head, CellStyle.DIM)))
    rows = [_finished_row(request) for request in reversed(ended)]
    return [*lines, *rows][: space.height]


def _finished_row(request: FinishedRequest) -> Line:
    name = request.response_id or request.request_id
    status = "closed" if request.status is None else str(request.status)  # the client disconnected
    is_good = request.status == 200 and request.error is None
    figures = (
        f" {clean(name)[-ID_TAIL:]:<{ID}} {request.prompt_tokens:>7,} {request.cached_tokens:>6,} "
        f"{request.completion_tokens:>6,} {duration(request.seconds_to_first_token):>8} "
        f"{duration(request.seconds):>8} {request.tokens_per_second or 0:>6,.0f}  "
    )
    return line(
        Span(f"{status:>6}", CellStyle.GOOD if is_good else CellStyle.BAD),
        figures,
        Span(_details(request), CellStyle.DIM),
    )


def _details(request: FinishedRequest) -> str:
    """Return the error, or the finish reason and where the time of the first choice went."""
    if request.error is not None:
        return clean(request.error)
    words = [clean(request.finish_reason or "")]
    for explained in (request.octavo or {}).get("requests", ()):
        for choice in explained.get("choices", ()):
            chunks = len(choice["prefill_chunks"]) + choice["prefill_chunks_left_out"]
            words += [
                f"queue {duration(choice['queue_seconds'])}",
                f"prefill {duration(choice['prefill_seconds'])} in {counted(chunks, 'chunk')}",
                f"decode {duration(choice['decode_seconds'])}",
            ]
            if choice["preemptions"]:
                words.append(counted(choice["preemptions"], "preemption"))
            if drafted := choice.get("drafted_tokens"):  # older servers have no such number
                words.append(f"{choice['accepted_tokens']:,} of {counted(drafted, 'draft')} accepted")
            return ", ".join(words)
    return ", ".join(words)


# -- the prefix tree ---------------------------------------------------------------------------------------


def tree(history: History, space: Space) -> list[Line]:
    view = history.view
    if view is None or not view.tree.nodes:
        return [title("Prefix tree", "", space)]
    nodes, left_out = view.tree.nodes, view.tree.left_out
    stats = view.stats
    detail = f"{counted(len(nodes) + left_out, 'node')}, {counted(stats.blocks_cached, 'block')}"
    if stats.prompt_tokens:
        detail += f", hit rate {100 * stats.prompt_tokens_cached / stats.prompt_tokens:.0f} %"
    rows = _branches(nodes, space.glyphs)
    room = space.height - 1
    if len(rows) > room or left_out:
        shown = rows[: max(0, room - 1)]
        num_hidden = len(rows) - len(shown) + left_out
        rows = [*shown, line(Span(f"and {num_hidden:,} more", CellStyle.DIM))]
    return [title("Prefix tree", detail, space), *rows][: space.height]


def _branches(nodes: Sequence[NodeView], glyphs: Glyphs) -> list[Line]:
    """Return the tree depth first; siblings with more holders, then with more blocks, come first."""
    children: dict[int | None, list[NodeView]] = {}
    for node in nodes:
        children.setdefault(node.parent, []).append(node)
    weight: dict[int, tuple[int, int]] = {}
    for node in reversed(nodes):  # children come after their parents
        below = sum([weight[child.id][1] for child in children.get(node.id, ())])
        weight[node.id] = node.holders, below + node.num_blocks
    rows: list[Line] = []
    stack: list[tuple[NodeView, str, str]] = []

    def push(parent: int | None, indent: str) -> None:
        ranked = sorted(children.get(parent, ()), key=lambda node: weight[node.id], reverse=True)
        for number, node in reversed(list(enumerate(ranked))):
            is_last = number == len(ranked) - 1
            branch = glyphs.last_branch if is_last else glyphs.branch
            stack.append((node, indent + branch, indent + ("  " if is_last else glyphs.trunk)))

    push(None, "")
    while stack:
        node, lead, indent = stack.pop()
        held = (
            Span(f", held by {counted(node.holders, 'sequence')}", CellStyle.HELD)
            if node.holders
            else Span(", idle", CellStyle.DIM)
        )
        rows.append(
            line(
                Span(lead + " ", CellStyle.DIM),
                f"{node.num_tokens:,} tokens, {counted(node.num_blocks, 'block')}",
                held,
            )
        )
        push(node.id, indent)
    return rows
