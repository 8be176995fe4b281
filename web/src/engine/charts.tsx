// Charts of throughput and latency over the last 2 minutes.

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { paletteOf, type ColourName } from "../parts/colours";
import type { ThemeChoice } from "../parts/theme";
import { count, duration } from "../parts/format";
import type { Sample } from "./history";

interface Line {
  label: string;
  colour: ColourName;
  of: (sample: Sample) => number | null;
}

interface ChartProps {
  title: string;
  lines: readonly Line[];
  samples: readonly Sample[];
  format: (value: number) => string;
  theme: ThemeChoice;
}

const HEIGHT = 150;
const LONGEST_SECONDS = 120;
const SHORTEST_SECONDS = 30;
const TICK_SECONDS = [5, 10, 15, 30, 60];

const THROUGHPUT: readonly Line[] = [
  { label: "answers", colour: "accent", of: (sample) => sample.generated },
  { label: "prompts", colour: "warm", of: (sample) => sample.computed },
];
const FIRST_TOKEN: readonly Line[] = [
  { label: "median", colour: "accent", of: (sample) => sample.ttftP50 },
  { label: "99th percentile", colour: "warm", of: (sample) => sample.ttftP99 },
];
const BETWEEN_TOKENS: readonly Line[] = [
  { label: "median", colour: "accent", of: (sample) => sample.itlP50 },
  { label: "99th percentile", colour: "warm", of: (sample) => sample.itlP99 },
];
const SEQUENCES: readonly Line[] = [
  { label: "running", colour: "accent", of: (sample) => sample.running },
  { label: "waiting", colour: "warm", of: (sample) => sample.waiting },
];

export function Charts({ samples, theme }: { samples: readonly Sample[]; theme: ThemeChoice }) {
  return (
    <section class="charts" aria-label="Throughput and latency">
      <Chart title="Tokens per second" lines={THROUGHPUT} samples={samples} format={count} theme={theme} />
      <Chart title="Sequences" lines={SEQUENCES} samples={samples} format={count} theme={theme} />
      <Chart title="Time to first token" lines={FIRST_TOKEN} samples={samples} format={duration} theme={theme} />
      <Chart title="Time between tokens" lines={BETWEEN_TOKENS} samples={samples} format={duration} theme={theme} />
    </section>
  );
}

function Chart({ title, lines, samples, format, theme }: ChartProps) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const isDark = theme.isDark.value;

  useEffect(() => {
    const element = place.current;
    if (!element) return;
    const chart = new uPlot(optionsFor(lines, format, element.clientWidth, isDark), [[], ...lines.map(() => [])], element);
    plot.current = chart;
    const observer = new ResizeObserver(() => chart.setSize({ width: element.clientWidth, height: HEIGHT }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      chart.destroy();
      plot.current = null;
    };
  }, [isDark, lines, format]);

  useEffect(() => {
    const recent = samples.filter((sample) => sample.time > (samples.at(-1)?.time ?? 0) - LONGEST_SECONDS);
    const values = lines.map((line) => recent.map(line.of));
    plot.current?.setData([recent.map((sample) => sample.time), ...values]);
  }, [samples, isDark, lines]);

  const latest = samples.at(-1);
  return (
    <figure class="panel chart">
      <figcaption>
        <h3>{title}</h3>
        <ul class="legend">
          {lines.map((line) => {
            const value = latest ? line.of(latest) : null;
            return (
              <li key={line.label}>
                <span class={`swatch swatch-line-${line.colour}`} aria-hidden="true" />
                {line.label} <b>{value === null ? "–" : format(value)}</b>
              </li>
            );
          })}
        </ul>
      </figcaption>
      <div ref={place} class="plot" aria-hidden="true" />
    </figure>
  );
}

function optionsFor(lines: readonly Line[], format: (value: number) => string, width: number, isDark: boolean): uPlot.Options {
  const palette = paletteOf(isDark);
  const axis = { stroke: palette.muted, grid: { stroke: palette.line, width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { show: false },
    padding: [8, 8, 0, 0],
    scales: {
      x: { time: false, range: (_, first, latest) => timesShown(first ?? 0, latest ?? 0) },
      y: { range: (_, __, max) => [0, max > 0 ? max * 1.15 : 1] },
    },
    axes: [
      { ...axis, size: 22, splits: (_, __, first, latest) => ticksOf(first, latest), values: (plot, ticks) => ticks.map((tick) => agoText(tick, plot.scales.x?.max ?? 0)) },
      { ...axis, size: 56, space: 34, values: (_, ticks) => ticks.map(format) },
    ],
    series: [
      {},
      ...lines.map((line) => ({ stroke: palette[line.colour], width: 1.75, points: { show: false }, spanGaps: false })),
    ],
  };
}

/** Return the time range to show: all samples, but at least 30 s and at most 120 s. */
function timesShown(first: number, latest: number): [number, number] {
  return [Math.min(latest - SHORTEST_SECONDS, Math.max(first, latest - LONGEST_SECONDS)), latest];
}

/** Return ticks at round numbers of seconds before the latest sample. */
function ticksOf(first: number, latest: number): number[] {
  const every = TICK_SECONDS.find((seconds) => (latest - first) / seconds <= 4) ?? 60;
  return Array.from({ length: Math.floor((latest - first) / every) }, (_, index) => latest - (index + 1) * every).reverse();
}

function agoText(time: number, now: number): string {
  return `−${Math.round(now - time)} s`;
}
