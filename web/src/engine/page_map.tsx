// Every page of the KV cache as a square: whose it is.

import { PAGE_FREE, PAGE_HELD, PAGE_IDLE, type PageRun, type RunningSequence } from "../api/types";
import { slotColour, type Palette } from "../parts/colours";
import { Drawing, type Size } from "../parts/drawing";
import type { ThemeChoice } from "../parts/theme";
import { count, counted, shortId } from "../parts/words";

const MOST_HEIGHT = 240;
const LARGEST_CELL = 22;
const SMALLEST_CELL = 3;

export interface PageCounts {
  free: number;
  idle: number;
  held: number;
  private: number;
}

export function countPages(runs: readonly PageRun[]): PageCounts {
  const counts = { free: 0, idle: 0, held: 0, private: 0 };
  for (const [code, length] of runs) {
    if (code === PAGE_FREE) counts.free += length;
    else if (code === PAGE_IDLE) counts.idle += length;
    else if (code === PAGE_HELD) counts.held += length;
    else counts.private += length;
  }
  return counts;
}

interface Grid {
  cell: number; // pixels
  columns: number;
  rows: number;
  pagesPerCell: number; // more than one where there are too many to see
}

/** The largest squares that fit. */
export function gridFor(numPages: number, width: number): Grid {
  for (let cell = LARGEST_CELL; cell >= SMALLEST_CELL; cell--) {
    const columns = Math.max(1, Math.floor(width / cell));
    const rows = Math.ceil(numPages / columns);
    if (rows * cell <= MOST_HEIGHT) return { cell, columns, rows, pagesPerCell: 1 };
  }
  const columns = Math.max(1, Math.floor(width / SMALLEST_CELL));
  const mostRows = Math.floor(MOST_HEIGHT / SMALLEST_CELL);
  const pagesPerCell = Math.ceil(numPages / (columns * mostRows));
  const rows = Math.ceil(numPages / pagesPerCell / columns);
  return { cell: SMALLEST_CELL, columns, rows, pagesPerCell };
}

function codeAt(runs: readonly PageRun[], page: number): number {
  let end = 0;
  for (const [code, length] of runs) {
    end += length;
    if (page < end) return code;
  }
  return PAGE_FREE;
}

function colourOf(code: number, palette: Palette): string {
  if (code === PAGE_FREE) return palette.inset;
  if (code === PAGE_IDLE) return palette.idle;
  return code === PAGE_HELD ? palette.accent : palette.slot(code);
}

function drawPages(
  context: CanvasRenderingContext2D, runs: readonly PageRun[], grid: Grid, palette: Palette,
): void {
  const gap = grid.cell >= 6 ? 1 : grid.cell >= 4 ? 0.5 : 0;
  let page = 0;
  for (const [code, length] of runs) {
    context.fillStyle = colourOf(code, palette);
    const first = Math.ceil(page / grid.pagesPerCell);
    const last = Math.ceil((page + length) / grid.pagesPerCell);
    for (let cell = first; cell < last; cell++) {
      const [x, y] = [(cell % grid.columns) * grid.cell, Math.floor(cell / grid.columns) * grid.cell];
      context.fillRect(x, y, grid.cell - gap, grid.cell - gap);
    }
    page += length;
  }
}

interface Props {
  runs: readonly PageRun[];
  sequences: readonly RunningSequence[];
  pageSize: number;
  theme: ThemeChoice;
}

export function PageMap({ runs, sequences, pageSize, theme }: Props) {
  const counts = countPages(runs);
  const numPages = counts.free + counts.idle + counts.held + counts.private;
  const summary =
    `${counted(numPages, "page")} of ${pageSize} tokens: ${count(counts.free)} free, ${count(counts.idle)} cached and idle, ` +
    `${count(counts.held)} cached and held, ${count(counts.private)} private to running sequences`;
  const gridOf = (size: Size) => gridFor(numPages, size.width);
  return (
    <section class="panel" aria-labelledby="pages-title">
      <h3 id="pages-title">KV pages</h3>
      <p class="note">Where keys and values live. Each square is a page of {pageSize} tokens.</p>
      <Drawing
        label={`Map of the KV cache. ${summary}.`}
        theme={theme}
        heightFor={(width) => {
          const grid = gridFor(numPages, width);
          return Math.max(1, grid.rows * grid.cell);
        }}
        draw={(context, size, palette) => drawPages(context, runs, gridOf(size), palette)}
        hintAt={(x, y, size) => hintFor(x, y, gridOf(size), runs, numPages, sequences)}
      />
      <ul class="legend">
        <LegendItem kind="free" text="free" value={counts.free} />
        <LegendItem kind="idle" text="cached, idle" value={counts.idle} />
        <LegendItem kind="held" text="cached, in use" value={counts.held} />
        <li>
          <span class="swatches" aria-hidden="true">
            {[0, 1, 2, 3].map((slot) => (
              <span key={slot} class="swatch" style={{ background: slotColour(slot, theme.isDark.value) }} />
            ))}
          </span>
          private, by request <b>{count(counts.private)}</b>
        </li>
      </ul>
    </section>
  );
}

function LegendItem({ kind, text, value }: { kind: string; text: string; value: number }) {
  return (
    <li>
      <span class={`swatch swatch-${kind}`} aria-hidden="true" />
      {text} <b>{count(value)}</b>
    </li>
  );
}

function hintFor(
  x: number, y: number, grid: Grid, runs: readonly PageRun[], numPages: number, sequences: readonly RunningSequence[],
): string | null {
  const column = Math.floor(x / grid.cell);
  const page = (Math.floor(y / grid.cell) * grid.columns + column) * grid.pagesPerCell;
  if (column >= grid.columns || page < 0 || page >= numPages) return null;
  const code = codeAt(runs, page);
  if (code === PAGE_FREE) return `page ${page}: free`;
  if (code === PAGE_IDLE) return `page ${page}: cached, held by nobody`;
  if (code === PAGE_HELD) return `page ${page}: cached, held by running sequences`;
  const owner = sequences.find((sequence) => sequence.slot === code);
  return `page ${page}: private to ${owner ? shortId(owner.request_id) : "a sequence"} in slot ${code}`;
}
