"""The report of a sweep as an HTML page."""

from octavo.bench.serve.load_page import MEASURES
from octavo.bench.serve.page import (
    Cell,
    cards,
    figure,
    heading,
    key,
    page,
    paragraph,
    section,
    table,
    warnings,
)
from octavo.bench.serve.picture import Axis, Frame, dots, line, picture, upright
from octavo.bench.serve.sweep import SweepBy, SweepPoint, SweepReport

UNITS = {SweepBy.RATE: "requests per second", SweepBy.CONCURRENCY: "concurrent requests"}


def sweep_page(report: SweepReport) -> str:
    unit = UNITS[report.plan.by]
    title = f"{report.workload.name} on {report.model}: maximum load"
    return page(
        f"{title}, octavo bench sweep",
        (
            heading(
                title,
                f"{report.url} · octavo {report.octavo} · seed {report.seed}",
                f"Prompt tokens: {report.workload.prompt}; output tokens: {report.workload.output};"
                f" prompts sent as {report.prompts}. {_rule(report)}",
            ),
            _cards(report, unit),
            warnings(report.warnings),
            section("Load curves", *_plots(report, unit)),
            section("All levels", _levels(report, unit)),
        ),
    )


def _rule(report: SweepReport) -> str:
    if not report.slo.is_given:
        return (
            "A level is sustained if no request failed and log(throughput) grew at least half as much as"
            " log(load)."
        )
    limits = ((name, getattr(report.slo, field)) for field, name, _ in MEASURES)
    objectives = ", ".join(f"{name} {1e3 * limit:g} ms" for name, limit in limits if limit is not None)
    return f"A level is sustained if at least {report.plan.attainment:.0%} of its requests met: {objectives}."


def _cards(report: SweepReport, unit: str) -> str:
    if report.knee is None:
        return cards([(Cell("none"), f"sustained level, from {report.plan.first:g} {unit}")])
    at_knee = next(point for point in report.points if point.level == report.knee)
    summary = at_knee.summary
    items = [
        (
            Cell(f"{report.knee:.3g}", "knee", report.knee),
            f"{unit} at the knee" + ", or more" * report.is_end_of_range,
        ),
        (
            Cell(
                f"{summary.output_tokens_per_second:,.1f}",
                "knee.output_tokens_per_second",
                summary.output_tokens_per_second,
            ),
            "output tokens per second at the knee",
        ),
    ]
    if summary.ttft is not None:
        items.append(
            (
                Cell(f"{1e3 * summary.ttft.p99:,.0f} ms", "knee.ttft.p99", summary.ttft.p99),
                "TTFT p99 at the knee",
            )
        )
    if summary.tpot is not None:
        items.append(
            (
                Cell(f"{1e3 * summary.tpot.p50:,.1f} ms", "knee.tpot.p50", summary.tpot.p50),
                "TPOT median at the knee",
            )
        )
    return cards(items)


def _plots(report: SweepReport, unit: str) -> tuple[str, ...]:
    points = report.points
    rates = [(point.level, point.summary.output_tokens_per_second) for point in points]
    plots = [figure("Output tokens per second", _plot(report, unit, rates, "output tokens per second"))]
    if report.slo.is_given:
        within = [(point.level, 100 * (point.summary.slo_attainment or 0.0)) for point in points]
        plots.append(
            figure("Requests within the SLO", _plot(report, unit, within, "requests within the SLO", "%"))
        )
    for name, field in (("TTFT", "ttft"), ("TPOT", "tpot")):
        times = [
            (point.level, 1e3 * found.p99)
            for point in points
            if (found := getattr(point.summary, field)) is not None
        ]
        if times:
            plots.append(
                figure(f"{name}, 99th percentile, ms", _plot(report, unit, times, f"{name} p99", " ms"))
            )
    colours = (("a", "sustained"), ("no", "not sustained"))
    return key(colours), f'<div class="pair">{"".join(plots)}</div>'


def _plot(
    report: SweepReport, unit: str, values: list[tuple[float, float]], name: str, suffix: str = ""
) -> str:
    levels = [point.level for point in report.points]
    low, high = min(levels), max(levels)
    frame = Frame(
        Axis(low / 1.15, high * 1.15, unit, is_logarithmic=True),
        Axis(
            0.0,
            1.12 * max(value for _, value in values) or 1.0,
            "",
            unit=suffix.strip() if suffix == "%" else "",
        ),
    )
    sustained = {point.level for point in report.points if point.holds}
    notes = [(level, value, f"{level:.3g} {unit}: {value:,.1f}{suffix}") for level, value in values]
    parts = [line(frame, values, "a")]
    if report.knee is not None and not report.is_end_of_range:
        parts.append(upright(frame, report.knee, f"knee {report.knee:.3g}", "slo"))
    parts.append(dots(frame, [note for note in notes if note[0] in sustained], "a"))
    parts.append(dots(frame, [note for note in notes if note[0] not in sustained], "no"))
    return picture(frame, f"{name} by {unit}, from {low:g} to {high:g}", parts)


def _levels(report: SweepReport, unit: str) -> str:
    header = (unit, "requests", "failed", "tokens/s", "requests/s", "goodput/s", "within SLO")
    times = ("TTFT p50", "TTFT p99", "TPOT p50", "ITL p99")
    return table(
        "All levels", (*header, *times, "sustained"), [_row(point) for point in report.points]
    ) + paragraph("Times are in milliseconds. Each level was measured with different prompts.")


def _row(point: SweepPoint) -> tuple[Cell, ...]:
    summary = point.summary
    prefix = f"{point.level!r}."
    attained = summary.slo_attainment
    times = []
    for field, percentile in (("ttft", "p50"), ("ttft", "p99"), ("tpot", "p50"), ("itl", "p99")):
        found = getattr(summary, field)
        value = None if found is None else getattr(found, percentile)
        text = "" if value is None else f"{1e3 * value:,.1f}"
        times.append(Cell(text, f"{prefix}{field}.{percentile}", value))
    rate = summary.output_tokens_per_second
    return (
        Cell(f"{point.level:.3g}"),
        Cell(f"{summary.num_requests:,}"),
        Cell(f"{summary.num_failed:,}"),
        Cell(f"{rate:,.1f}", f"{prefix}output_tokens_per_second", rate),
        Cell(f"{summary.requests_per_second:,.2f}"),
        Cell(
            "" if summary.goodput is None else f"{summary.goodput:,.2f}", f"{prefix}goodput", summary.goodput
        ),
        Cell("" if attained is None else f"{attained:.0%}"),
        *times,
        Cell("yes" if point.holds else "no"),
    )
