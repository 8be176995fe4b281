"""The parts of the picture. Each is a function from what has been seen to lines, at most so many."""

import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo.config import counted
from octavo.top.history import History
from octavo.top.paint import (
    SLOT_LETTERS,
    Glyphs,
    Line,
    Span,
    Style,
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
    FinishedRequest,
    Latency,
    NodeView,
    PageRuns,
    SequenceView,
    StepView,
    ViewEvent,
)

LABEL = 12  # columns of a chart's name, and of its figures
FIGURES = 26
ID = 10  # columns of a request's name
ID_TAIL = 6  # last characters of its response's id


@dataclass(frozen=True)
class Space:
    width: int
    height: int
    glyphs: Glyphs


Panel = Callable[[History, Space], list[Line]]


def lines_of_pages(history: History, width: int) -> int:
    return 1 if history.view is None else 1 - -history.view.stats.pages_total // max(1, width)


def lines_of_steps(_: History, __: int) -> int:
    return 5


def lines_of_requests(history: History, _: int) -> int:
    return 1 if history.view is None else 1 + bool(history.view.sequences) + len(history.view.sequences)


def lines_of_finished(history: History, _: int) -> int:
    return 1 + bool(history.finished) + len(history.finished)


def lines_of_tree(history: History, _: int) -> int:
    return 1 if history.view is None else 1 + len(history.view.tree.nodes) + bool(history.view.tree.left_out)


def title(text: str, said: str, space: Space) -> Line:
    spans = line(Span(text, Style.TITLE), Span(f"  {said} " if said else " "))
    rest = max(0, space.width - width_of(spans))
    return (*spans, Span(space.glyphs.rule * rest, Style.DIM))


def header(history: History, space: Space) -> list[Line]:
    """One line; more while there is no view, to say why."""
    facts, glyphs = history.facts, space.glyphs
    name = Span("octavo top  " if facts is None else f"{clean(facts.model)}  ", Style.BOLD)
    if history.view is None:
        reason = textwrap.wrap(clean(history.state), max(10, space.width - 2))
        light = Span(f"{glyphs.light} no view", Style.BAD)
        return [line(name, light), *[line(Span(f"  {part}", Style.BAD)) for part in reason], ()]
    said = f"up {duration(history.uptime_seconds)}"
    if facts is not None:
        about = facts.facts
        said = f"{about.device} {about.dtype}, {about.max_model_len:,} tokens, octavo {facts.version}, {said}"
    light = Span(f"{glyphs.light} ", Style.GOOD)
    return [line(name, light, clean(history.state), Span(f"  {clean(said)}", Style.DIM))]


# -- charts ----------------------------------------------------------------------------------------------


def charts(history: History, space: Space) -> list[Line]:
    samples, view = list(history.samples), history.view
    drawn, prompts = history.rates
    latency = Latency(None, None, None, None) if view is None else view.latency
    stats = None if view is None else view.stats

    def two(middle: float | None, high: float | None) -> str:
        return f"{duration(middle)}, p99 {duration(high)}"

    rows: list[tuple[str, str, list[float | None]]] = [
        ("tokens/s", f"{drawn:,.0f}", [one.tokens_per_second for one in samples]),
        ("prompt tok/s", f"{prompts:,.0f}", [one.prompt_tokens_per_second for one in samples]),
        (
            "first token",
            two(latency.ttft_p50, latency.ttft_p99),
            [one.ttft for one in samples],
        ),
        (
            "next token",
            two(latency.itl_p50, latency.itl_p99),
            [one.itl for one in samples],
        ),
        (
            "running",
            "-" if stats is None else f"{stats.num_running}, {stats.num_waiting} waiting",
            [one.num_running for one in samples],
        ),
    ]
    wide = space.width - LABEL - FIGURES - 2
    return [
        line(Span(f"{name:<{LABEL}} ", Style.DIM), Span(f"{figure:<{FIGURES}} ", Style.BOLD), chart)
        for name, figure, values in rows[: space.height]
        for chart in [Span(sparkline(values, wide, space.glyphs.bars), Style.GOOD)]
    ]


# -- pages -----------------------------------------------------------------------------------------------


def pages(history: History, space: Space) -> list[Line]:
    view, glyphs = history.view, space.glyphs
    if view is None:
        return [title("KV pages", "", space)]
    stats = view.stats
    private = stats.pages_total - stats.pages_free - stats.pages_cached
    held = stats.pages_cached - stats.pages_idle
    per_cell = max(1, -(-stats.pages_total // max(1, space.width * (space.height - 1))))
    said = (
        f"{stats.pages_total:,}: {glyphs.free} {stats.pages_free:,} free  "
        f"{glyphs.idle} {stats.pages_idle:,} cached  {glyphs.held} {held:,} shared  0-Z {private:,} private"
        + (f"  ({per_cell} a cell)" if per_cell > 1 else "")
    )
    cells = [_page_cell(code, glyphs) for code in cell_codes(view.pages, per_cell)]
    rows = [runs(cells[at : at + space.width]) for at in range(0, len(cells), space.width)]
    return [title("KV pages", said, space), *rows[: space.height - 1]]


def cell_codes(page_runs: PageRuns, per_cell: int) -> list[int]:
    """The commonest code in each cell of so many pages."""
    codes: list[int] = []
    cell: Counter[int] = Counter()
    room = per_cell
    for code, count in page_runs:
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


def _page_cell(code: int, glyphs: Glyphs) -> tuple[str, str]:
    known = {
        FREE: (glyphs.free, Style.DIM),
        CACHED_IDLE: (glyphs.idle, Style.DIM),
        CACHED_HELD: (glyphs.held, Style.HELD),
    }
    return known.get(code) or (SLOT_LETTERS[code % len(SLOT_LETTERS)], of_slot(code))


# -- steps and requests ------------------------------------------------------------------------------------


def steps(history: History, space: Space) -> list[Line]:
    noted, glyphs = list(history.steps), space.glyphs
    wide = space.width - LABEL - 1
    last = noted[-1] if noted else None
    said = "" if last is None else f"{last.step:,}: {duration(last.seconds)}, {_contents(last)}"
    prefill = [float(sum([n for _, _, n, _ in step.slices if n > 1])) for step in noted]
    decode = [float(len([1 for _, _, n, _ in step.slices if n == 1])) for step in noted]
    preempted = "".join([glyphs.preempted if step.preempted else " " for step in noted[-wide:]])
    marks = (
        ("prefill", sparkline(prefill, wide, glyphs.bars), Style.PREFILL),
        ("decodes", sparkline(decode, wide, glyphs.bars), Style.GOOD),
        ("preempted", preempted.rjust(max(wide, 0)), Style.BAD),
        ("seconds", sparkline([step.seconds for step in noted], wide, glyphs.bars), Style.PLAIN),
    )
    rows = [line(Span(f"{name:<{LABEL}} ", Style.DIM), Span(text, style)) for name, text, style in marks]
    return [title("Steps", said, space), *rows][: space.height]


def _contents(step: StepView) -> str:
    chunks = [count for _, _, count, _ in step.slices if count > 1]
    words = [counted(len(step.slices) - len(chunks), "decode")]
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
    head = f"{'slot':<5} {'request':<{ID}} {'prompt':>7} {'cached':>6} {'tokens':>6} {'pages':>9} {'pre':>3} "
    wide = space.width - len(head)
    lines = [title("Running", f"{stats.num_running}{waiting}", space)]
    if view.sequences and space.height > 2:
        lines.append(line(Span(head + f"{'the last steps':>{max(wide, 0)}}", Style.DIM)))
    noted = list(history.steps)[-wide:] if wide > 0 else []
    room = space.height - len(lines)
    cut = len(view.sequences) > room
    shown = view.sequences[: max(0, room - cut)]
    timelines = _timelines(noted, frozenset(sequence.slot for sequence in shown), space.glyphs)
    for sequence in shown:
        row = Span(_request_row(sequence), of_slot(sequence.slot))
        lines.append((row, *runs(timelines[sequence.slot])))
    if cut and room > 0:
        lines.append(line(Span(f"     and {len(view.sequences) - room + 1} more", Style.DIM)))
    return lines[: space.height]


def _first_waiting(view: ViewEvent) -> str:
    if not view.waiting:
        return ""
    first = view.waiting[0]
    name = _name(first.request_id, first.choice)
    return f" (first {name}, {first.num_prompt:,} tokens, {duration(first.seconds_waiting)})"


def _name(request_id: str, choice: int) -> str:
    """The end of a response's id, and which of its prompts and answers it is, if there are several."""
    response, _, prompt = clean(request_id).rpartition("-")
    return response[-ID_TAIL:] + (f"-{prompt}" if prompt != "0" else "") + (f".{choice}" if choice else "")


def _request_row(sequence: SequenceView) -> str:
    done = min(sequence.num_computed, sequence.num_prompt)
    prompt = f"{sequence.num_prompt:,}"
    if done < sequence.num_prompt:  # still being read
        prompt = f"{100 * done // sequence.num_prompt}%/{prompt}"
    own = sequence.num_pages - sequence.num_shared_pages
    return (
        f"{SLOT_LETTERS[sequence.slot % len(SLOT_LETTERS)]} {sequence.slot:>3} "
        f"{_name(sequence.request_id, sequence.choice):<{ID}} {prompt:>7} {sequence.num_cached:>6,} "
        f"{sequence.num_tokens - sequence.num_prompt:>6,} {f'{sequence.num_shared_pages}+{own}':>9} "
        f"{sequence.preemptions or '':>3} "
    )


def _timelines(
    noted: Sequence[StepView], slots: frozenset[int], glyphs: Glyphs
) -> dict[int, list[tuple[str, str]]]:
    """For each slot, one character for each step."""
    timelines = {slot: [(" ", str(Style.PLAIN))] * len(noted) for slot in slots}
    for at, step in enumerate(noted):
        for slot, _, count, _ in step.slices:
            if slot in slots:
                chunk = (glyphs.chunk, Style.PREFILL) if count > 1 else (glyphs.decode, Style.GOOD)
                timelines[slot][at] = chunk
        for slot in slots.intersection(step.preempted):
            timelines[slot][at] = (glyphs.preempted, Style.BAD)
    return timelines


def finished(history: History, space: Space) -> list[Line]:
    ended = list(history.finished)
    lines = [title("Finished", f"{len(ended)} seen", space)]
    if ended and space.height > 2:
        head = f"{'status':>6} {'request':<{ID}} {'prompt':>7} {'cached':>6} {'tokens':>6} "
        head += f"{'first':>8} {'total':>8} {'tok/s':>6}  why"
        lines.append(line(Span(head, Style.DIM)))
    rows = [_finished_row(one) for one in reversed(ended)]
    return [*lines, *rows][: space.height]


def _finished_row(one: FinishedRequest) -> Line:
    name = one.response_id or one.request_id
    status = "gone" if one.status is None else str(one.status)
    is_good = one.status == 200 and one.error is None
    figures = (
        f" {clean(name)[-ID_TAIL:]:<{ID}} {one.prompt_tokens:>7,} {one.cached_tokens:>6,} "
        f"{one.completion_tokens:>6,} {duration(one.seconds_to_first_token):>8} {duration(one.seconds):>8} "
        f"{one.tokens_per_second or 0:>6,.0f}  "
    )
    return line(
        Span(f"{status:>6}", Style.GOOD if is_good else Style.BAD), figures, Span(_why(one), Style.DIM)
    )


def _why(one: FinishedRequest) -> str:
    """The explanation in a few words: what the time was spent on, if it was much."""
    if one.error is not None:
        return clean(one.error)
    words = [clean(one.finish_reason or "")]
    for explained in (one.octavo or {}).get("requests", ()):
        for choice in explained.get("choices", ()):
            chunks = len(choice["prefill_chunks"]) + choice["prefill_chunks_left_out"]
            words += [
                f"queue {duration(choice['queue_seconds'])}",
                f"prompt {duration(choice['prefill_seconds'])} in {chunks}",
                f"answer {duration(choice['decode_seconds'])}",
            ]
            if choice["preemptions"]:
                words.append(counted(choice["preemptions"], "preemption"))
            return ", ".join(words)
    return ", ".join(words)


# -- the prefix tree ---------------------------------------------------------------------------------------


def tree(history: History, space: Space) -> list[Line]:
    view = history.view
    if view is None or not view.tree.nodes:
        return [title("Prefix tree", "", space)]
    nodes, left_out = view.tree.nodes, view.tree.left_out
    stats = view.stats
    said = f"{counted(len(nodes) + left_out, 'node')}, {counted(stats.pages_cached, 'page')}"
    if stats.prompt_tokens:
        said += f", {100 * stats.prompt_tokens_cached / stats.prompt_tokens:.0f} % of prompts found"
    rows = _branches(nodes, space.glyphs)
    room = space.height - 1
    if len(rows) > room or left_out:
        hidden = len(rows) + left_out - max(0, room - 1)
        rows = [*rows[: max(0, room - 1)], line(Span(f"and {hidden:,} more", Style.DIM))]
    return [title("Prefix tree", said, space), *rows][: space.height]


def _branches(nodes: Sequence[NodeView], glyphs: Glyphs) -> list[Line]:
    """Depth first; of siblings, those with more holders and more below them come first."""
    children: dict[int | None, list[NodeView]] = {}
    for node in nodes:
        children.setdefault(node.parent, []).append(node)
    weight: dict[int, tuple[int, int]] = {}
    for node in reversed(nodes):  # children stand behind their parents
        below = sum([weight[child.id][1] for child in children.get(node.id, ())])
        weight[node.id] = node.holders, below + node.num_pages
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
        held = Span(f", held by {node.holders}", Style.HELD) if node.holders else Span(", idle", Style.DIM)
        rows.append(
            line(
                Span(lead + " ", Style.DIM),
                f"{node.num_tokens:,} tokens, {counted(node.num_pages, 'page')}",
                held,
            )
        )
        push(node.id, indent)
    return rows
