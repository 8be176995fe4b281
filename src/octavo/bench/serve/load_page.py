"""The report of one load as an HTML page."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import chain

import numpy as np

from octavo.bench.serve.page import (
    Cell,
    cards,
    figure,
    folded,
    heading,
    key,
    page,
    paragraph,
    section,
    sentence,
    table,
    warnings,
)
from octavo.bench.serve.picture import Axis, Frame, Points, area, bar, line, picture, upright
from octavo.bench.serve.record import LoadRecord
from octavo.bench.serve.report import LoadReport
from octavo.bench.serve.summary import Distribution

MAX_ROWS = 300  # of the timeline
MAX_LISTED = 2000
CURVE_POINTS = 200
NUM_BINS = 80
PERCENTILES = ("mean", "min", "p50", "p90", "p95", "p99", "max")
MEASURES = (
    ("ttft", "TTFT", "time to first token"),
    ("itl", "ITL", "time between tokens"),
    ("tpot", "TPOT", "time per output token"),
    ("e2e", "E2E", "end-to-end time"),
)


def load_page(report: LoadReport) -> str:
    workload = report.workload
    title = f"{workload.name} on {report.model}"
    shared = f", plus {workload.shared:,} shared tokens" if workload.shared else ""
    details = (
        f"{workload.num_requests} requests, {workload.arrivals}; prompt tokens: {workload.prompt}{shared}"
        f"; output tokens: {workload.output}; prompts sent as {report.prompts}; seed {report.seed}."
    )
    when = datetime.fromtimestamp(report.began, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return page(
        f"{title}: octavo bench serve",
        (
            heading(
                title,
                f"{report.url} · {when} · octavo {report.octavo}",
                f"{sentence(workload.description)} {details}",
            ),
            _cards(report),
            warnings(report.warnings),
            section("Latency", _latencies(report), _curves(report)),
            section("Requests over time", *_timeline(report)),
            section("StepForecast over time", _rates(report)),
            section("Method", paragraph(_method(report))),
            folded("All requests", _requests(report)),
        ),
    )


def _cards(report: LoadReport) -> str:
    summary = report.summary
    items = [
        (
            _number("output_tokens_per_second", summary.output_tokens_per_second, "{:,.1f}"),
            "output tokens per second",
        ),
        (_number("requests_per_second", summary.requests_per_second, "{:,.2f}"), "requests per second"),
    ]
    if summary.ttft is not None:
        items.append((_milliseconds("ttft.p50", summary.ttft.p50, " ms"), "TTFT, median"))
    if summary.tpot is not None:
        items.append((_milliseconds("tpot.p50", summary.tpot.p50, " ms"), "TPOT, median"))
    if summary.cache_hit_rate is not None:
        items.append(
            (_number("cache_hit_rate", summary.cache_hit_rate, "{:.1%}"), "of prompt tokens from the cache")
        )
    if summary.acceptance is not None:
        items.append((_number("acceptance", summary.acceptance, "{:.1%}"), "of drafted tokens accepted"))
    if summary.goodput is not None:
        items.append(
            (_number("goodput", summary.goodput, "{:,.2f}"), f"requests per second within {_slo(report)}")
        )
    return cards(items)


def _slo(report: LoadReport) -> str:
    limits = ((name, getattr(report.slo, field)) for field, name, _ in MEASURES)
    return ", ".join(f"{name} {1e3 * limit:g} ms" for name, limit in limits if limit is not None)


def _latencies(report: LoadReport) -> str:
    rows = []
    for field, name, meaning in MEASURES:
        found: Distribution | None = getattr(report.summary, field)
        if found is not None:
            cells = [_milliseconds(f"{field}.{each}", getattr(found, each)) for each in PERCENTILES]
            rows.append((Cell(f"{name}, {meaning}"), _number(f"{field}.count", found.count, "{:,}"), *cells))
    return table("Latency in milliseconds", ("latency, ms", "samples", *PERCENTILES), rows)


# -- the curves --------------------------------------------------------------------------------------


def samples(report: LoadReport, field: str) -> list[float]:
    good = [record for record in report.requests if record.is_good]
    if field == "itl":
        return list(chain.from_iterable(record.itl for record in good))
    return [value for record in good if (value := getattr(record, field)) is not None]


def _curves(report: LoadReport) -> str:
    figures = []
    for field, name, meaning in MEASURES:
        found: Distribution | None = getattr(report.summary, field)
        if found is not None and found.max > 0:
            limit: float | None = getattr(report.slo, field)
            caption = f"{name}, {meaning}"
            title = f"{caption}: median {1e3 * found.p50:.1f} ms, 99th percentile {1e3 * found.p99:.1f} ms"
            figures.append(figure(caption, _curve(samples(report, field), found, limit, title)))
    note = paragraph("Cumulative distribution: percentage of samples up to each latency.")
    return note + f'<div class="pair">{"".join(figures)}</div>'


def _curve(values: Sequence[float], found: Distribution, limit: float | None, title: str) -> str:
    """Draw the empirical distribution function through its quantiles."""
    unit, factor = ("s", 1.0) if found.max >= 2 else ("ms", 1e3)
    parts = np.linspace(0, 1, CURVE_POINTS)
    points = [
        (float(value) * factor, 100 * float(part))
        for value, part in zip(np.quantile(values, parts), parts, strict=True)
    ]
    shows_limit = limit is not None and limit <= 2 * found.max
    high = max(found.max, limit if shows_limit and limit is not None else 0.0)
    frame = Frame(Axis(0.0, 1.04 * high * factor, unit), Axis(0.0, 100.0, "", unit="%"))
    points = [(0.0, 0.0), (points[0][0], 0.0), *points, (1.04 * high * factor, 100.0)]
    marks = [
        upright(frame, found.p50 * factor, "p50", "p", row=9),
        upright(frame, found.p99 * factor, "p99", "p", row=11),
    ]
    if shows_limit and limit is not None:
        marks.append(upright(frame, limit * factor, "SLO", "slo", row=10))
    return picture(frame, title, (line(frame, points, "a"), *marks))


# -- the timeline ------------------------------------------------------------------------------------


def _timeline(report: LoadReport) -> tuple[str, ...]:
    records = sorted(report.requests, key=lambda record: (record.sent_at, record.number))
    step = math.ceil(len(records) / MAX_ROWS)
    shown = records[::step]
    knows_queue = any(record.reported_queue_seconds is not None for record in shown)
    first = ("prefill", "prompt") if knows_queue else ("prefill", "queue and prompt")
    colours = [("queue", "queue"), first, ("decode", "answer"), ("failed", "failed")]
    if not knows_queue:
        del colours[0]
    if not report.summary.num_failed:
        colours.pop()
    left_out = f" Every {step}th request is shown." if step > 1 else ""
    note = paragraph(f"Each row is a request, from sending it to its last token.{left_out}")
    return note, key(colours), _gantt(report, shown)


def _gantt(report: LoadReport, records: Sequence[LoadRecord]) -> str:
    pitch = min(14.0, max(3.0, 560 / len(records)))
    height = 52 + pitch * len(records)
    end = max(record.ended_at for record in records)
    frame = Frame(_seconds_axis(end), Axis(0, 1, ""), 1080, height, left=18, right=18, top=8, bottom=42)
    rows = (
        _row(frame, record, frame.top + number * pitch, pitch * 0.8) for number, record in enumerate(records)
    )
    title = f"{len(records)} requests over {end:.1f} seconds: queue, prompt and answer of each"
    return picture(frame, title, rows, has_y_ticks=False)


def _row(frame: Frame, record: LoadRecord, y: float, height: float) -> str:
    note = f"<title>request {record.number}: {_description(record)}</title>"
    if record.is_good:
        start = min(record.sent_at + (record.reported_queue_seconds or 0.0), record.chunk_times[0])
        pieces = [
            ((record.sent_at, start), "queue"),
            ((start, record.chunk_times[0]), "prefill"),
            ((record.chunk_times[0], record.ended_at), "decode"),
        ]
    else:
        pieces = [((record.sent_at, record.ended_at), "failed")]
    bars = (bar(frame, piece, kind, y=y, height=height) for piece, kind in pieces if piece[1] > piece[0])
    return f'<g class="row">{"".join(bars)}{note}</g>'


def _description(record: LoadRecord) -> str:
    if not record.is_good:
        return "failed"
    return (
        f"{record.num_prompt_tokens} + {record.completion_tokens} tokens, sent at {record.sent_at:.2f} s,"
        f" first token after {record.ttft:.3f} s, done after {record.e2e:.3f} s"
    )


# -- throughput --------------------------------------------------------------------------------------


def _rates(report: LoadReport) -> str:
    good = [record for record in report.requests if record.is_good]
    if not good:
        return paragraph("No request succeeded.")
    end = max(record.ended_at for record in good)
    tokens, in_flight = tokens_by_time(good, end), in_flight_by_time(report.requests, end)
    highest = max(rate for _, rate in tokens)
    maximum = max(count for _, count in in_flight)
    return (
        '<div class="pair">'
        + figure(
            "Output tokens per second",
            _area(tokens, end, f"output tokens per second over time, at most {highest:.0f}", "a"),
        )
        + figure(
            "Requests in flight",
            _area(in_flight, end, f"requests in flight over time, at most {maximum:.0f}", "b"),
        )
        + "</div>"
    )


def tokens_by_time(records: Sequence[LoadRecord], end: float) -> list[tuple[float, float]]:
    """Return tokens per second in NUM_BINS equal intervals, as steps."""
    width = end / NUM_BINS
    times = np.fromiter(chain.from_iterable(record.chunk_times for record in records), dtype=np.float64)
    counts = np.fromiter(chain.from_iterable(record.tokens_by_chunk for record in records), dtype=np.float64)
    totals, _ = np.histogram(times, bins=NUM_BINS, range=(0.0, end), weights=counts)
    return [
        point
        for number, total in enumerate(totals.tolist())
        for point in ((number * width, total / width), ((number + 1) * width, total / width))
    ]


def in_flight_by_time(records: Sequence[LoadRecord], end: float) -> list[tuple[float, float]]:
    """Return the number of requests in flight as steps: up when one is sent, down when its answer ends."""
    changes = sorted(
        chain(((record.sent_at, 1) for record in records), ((record.ended_at, -1) for record in records))
    )
    points = [(0.0, 0.0)]
    now = 0
    for moment, change in changes:
        points.append((min(moment, end), float(now)))
        now += change
        points.append((min(moment, end), float(now)))
    return points


def _area(points: Points, end: float, title: str, kind: str) -> str:
    frame = Frame(_seconds_axis(end), Axis(0.0, 1.08 * max(y for _, y in points) or 1.0, ""))
    return picture(frame, title, (area(frame, points, kind), line(frame, points, kind)))


def _seconds_axis(end: float) -> Axis:
    return Axis(0.0, end or 1.0, "seconds since the first request")


# -- texts and numbers -------------------------------------------------------------------------------


def _method(report: LoadReport) -> str:
    summary, client = report.summary, report.client
    per = (
        "per token"
        if summary.itl_is_per_token
        else "per chunk of the stream (chunks may have several tokens)"
    )
    return (
        "Times are measured at the client, from when it starts to send a request, including a new connection."
        f" ITL is {per}; TPOT is the time after the first token divided by the number of tokens after it."
        " Token counts are those of the server, from the usage at the end of each stream. The client used"
        f" {client.cpu_fraction:.1%} of a core and sent requests {1e3 * client.late_p99:.2f} ms late at the"
        " 99th percentile. One warm-up request is not included."
    )


def _requests(report: LoadReport) -> str:
    header = ("request", "sent, s", "prompt", "cached", "answer", "TTFT, ms", "TPOT, ms", "E2E, ms", "")
    rows = [
        (
            Cell(str(record.number)),
            Cell(f"{record.sent_at:.3f}"),
            Cell(f"{record.num_prompt_tokens:,}"),
            Cell("" if record.reported_cached_tokens is None else f"{record.reported_cached_tokens:,}"),
            Cell(f"{record.completion_tokens:,}"),
            Cell(f"{1e3 * record.ttft:,.1f}" if record.chunk_times else ""),
            Cell("" if record.tpot is None else f"{1e3 * record.tpot:,.2f}"),
            Cell(f"{1e3 * record.e2e:,.1f}"),
            Cell(record.error or "", is_text=True),
        )
        for record in report.requests[:MAX_LISTED]
    ]
    rest = len(report.requests) - len(rows)
    return table("All requests", header, rows) + (
        paragraph(f"The JSON file contains {rest} more.") if rest else ""
    )


def _number(name: str, value: float, form: str) -> Cell:
    return Cell(form.format(value), name, value)


def _milliseconds(name: str, seconds: float, unit: str = "") -> Cell:
    return Cell(f"{1e3 * seconds:,.1f}{unit}", name, seconds)
