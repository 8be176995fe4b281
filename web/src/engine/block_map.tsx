// A map of the KV cache: one square per block, coloured by its owner.

import { BLOCK_FREE, BLOCK_HELD, BLOCK_IDLE, type BlockRun, type RunningSequence } from "../api/types";
import { slotColour, type Palette } from "../parts/colours";
import { Drawing, type Size } from "../parts/drawing";
import type { ThemeChoice } from "../parts/theme";
import { count, counted, shortId } from "../parts/format";

const MAX_HEIGHT = 240;
const LARGEST_CELL = 22;
const SMALLEST_CELL = 3;

export interface BlockCounts {
  free: number;
  idle: number;
  held: number;
  private: number;
}

export function countBlocks(runs: readonly BlockRun[]): BlockCounts {
  const counts = { free: 0, idle: 0, held: 0, private: 0 };
  for (const [code, length] of runs) {
    if (code === BLOCK_FREE) counts.free += length;
    else if (code === BLOCK_IDLE) counts.idle += length;
    else if (code === BLOCK_HELD) counts.held += length;
    else counts.private += length;
  }
  return counts;
}

interface Grid {
  cell: number; // pixels
  columns: number;
  rows: number;
  blocksPerCell: number; // more than 1 if single blocks would be too small to see
}

/** Return the grid with the largest squares that fit. */
export function gridFor(numBlocks: number, width: number): Grid {
  for (let cell = LARGEST_CELL; cell >= SMALLEST_CELL; cell--) {
    const columns = Math.max(1, Math.floor(width / cell));
    const rows = Math.ceil(numBlocks / columns);
    if (rows * cell <= MAX_HEIGHT) return { cell, columns, rows, blocksPerCell: 1 };
  }
  const columns = Math.max(1, Math.floor(width / SMALLEST_CELL));
  const maxRows = Math.floor(MAX_HEIGHT / SMALLEST_CELL);
  const blocksPerCell = Math.ceil(numBlocks / (columns * maxRows));
  const rows = Math.ceil(numBlocks / blocksPerCell / columns);
  return { cell: SMALLEST_CELL, columns, rows, blocksPerCell };
}

function codeAt(runs: readonly BlockRun[], block: number): number {
  let end = 0;
  for (const [code, length] of runs) {
    end += length;
    if (block < end) return code;
  }
  return BLOCK_FREE;
}

function colourOf(code: number, palette: Palette): string {
  if (code === BLOCK_FREE) return palette.inset;
  if (code === BLOCK_IDLE) return palette.idle;
  return code === BLOCK_HELD ? palette.accent : palette.slot(code);
}

function drawBlocks(
  context: CanvasRenderingContext2D, runs: readonly BlockRun[], grid: Grid, palette: Palette,
): void {
  const gap = grid.cell >= 6 ? 1 : grid.cell >= 4 ? 0.5 : 0;
  let block = 0;
  for (const [code, length] of runs) {
    context.fillStyle = colourOf(code, palette);
    const first = Math.ceil(block / grid.blocksPerCell);
    const last = Math.ceil((block + length) / grid.blocksPerCell);
    for (let cell = first; cell < last; cell++) {
      const [x, y] = [(cell % grid.columns) * grid.cell, Math.floor(cell / grid.columns) * grid.cell];
      context.fillRect(x, y, grid.cell - gap, grid.cell - gap);
    }
    block += length;
  }
}

interface Props {
  runs: readonly BlockRun[];
  sequences: readonly RunningSequence[];
  blockSize: number;
  theme: ThemeChoice;
}

export function BlockMap({ runs, sequences, blockSize, theme }: Props) {
  const counts = countBlocks(runs);
  const numBlocks = counts.free + counts.idle + counts.held + counts.private;
  const summary =
    `${counted(numBlocks, "block")} of ${blockSize} tokens: ${count(counts.free)} free, ${count(counts.idle)} cached and idle, ` +
    `${count(counts.held)} cached and in use, ${count(counts.private)} private to running sequences`;
  const gridOf = (size: Size) => gridFor(numBlocks, size.width);
  return (
    <section class="panel" aria-labelledby="blocks-title">
      <h3 id="blocks-title">KV blocks</h3>
      <p class="note">Memory for keys and values. Each square is a block of {blockSize} tokens.</p>
      <Drawing
        label={`Map of the KV cache. ${summary}.`}
        theme={theme}
        heightFor={(width) => {
          const grid = gridFor(numBlocks, width);
          return Math.max(1, grid.rows * grid.cell);
        }}
        draw={(context, size, palette) => drawBlocks(context, runs, gridOf(size), palette)}
        hintAt={(x, y, size) => hintFor(x, y, gridOf(size), runs, numBlocks, sequences)}
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
  x: number, y: number, grid: Grid, runs: readonly BlockRun[], numBlocks: number, sequences: readonly RunningSequence[],
): string | null {
  const column = Math.floor(x / grid.cell);
  const block = (Math.floor(y / grid.cell) * grid.columns + column) * grid.blocksPerCell;
  if (column >= grid.columns || block < 0 || block >= numBlocks) return null;
  const code = codeAt(runs, block);
  if (code === BLOCK_FREE) return `block ${block}: free`;
  if (code === BLOCK_IDLE) return `block ${block}: cached, idle`;
  if (code === BLOCK_HELD) return `block ${block}: cached, in use by running sequences`;
  const owner = sequences.find((sequence) => sequence.slot === code);
  return `block ${block}: private to ${owner ? shortId(owner.request_id) : "a sequence"} in slot ${code}`;
}
