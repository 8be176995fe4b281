// A timeline of the last steps: one column per step, one row per slot.

import type { Step, StepDrafts, StepSlice } from "../api/types";
import type { Palette } from "../parts/colours";
import { Drawing, type Size } from "../parts/drawing";
import type { ThemeChoice } from "../parts/theme";
import { count, counted, duration } from "../parts/format";
import { NUM_STEPS } from "./history";

const BARS_HEIGHT = 44; // of the bars above the rows: duration of each step
const BARS_GAP = 8;
const MIN_ROWS = 8;
const MAX_ROWS_HEIGHT = 260;
const AXIS_WIDTH = 26;

/** Whether a sequence is past its prompt: it then computes one token per step, and drafts; each samples a token. */
export function isDecode([, , numTokens, numSampled]: StepSlice): boolean {
  return numSampled > 0 && numTokens === numSampled;
}

function draftsOf(slot: number, step: Step): StepDrafts | undefined {
  return step.drafts.find(([one]) => one === slot);
}

interface Layout {
  columnWidth: number;
  numRows: number;
  rowHeight: number;
}

function layoutFor(steps: readonly Step[], width: number): Layout {
  const slots = steps.flatMap((step) => [...step.slices.map(([slot]) => slot), ...step.preempted]);
  const numRows = slots.reduce((max, slot) => Math.max(max, slot + 1), MIN_ROWS);
  const rowHeight = Math.max(2, Math.min(14, Math.floor(MAX_ROWS_HEIGHT / numRows)));
  return { columnWidth: (width - AXIS_WIDTH) / NUM_STEPS, numRows, rowHeight };
}

/** The latest step is the rightmost column. */
function columnLeft(index: number, steps: readonly Step[], layout: Layout): number {
  return AXIS_WIDTH + (NUM_STEPS - steps.length + index) * layout.columnWidth;
}

function drawTimeline(
  context: CanvasRenderingContext2D, steps: readonly Step[], size: Size, palette: Palette,
): void {
  const layout = layoutFor(steps, size.width);
  drawAxis(context, layout, size, palette);
  const longest = steps.reduce((max, step) => Math.max(max, step.seconds), 1e-6);
  const gap = layout.columnWidth >= 4 ? 1 : 0;
  steps.forEach((step, index) => {
    const left = columnLeft(index, steps, layout);
    const width = layout.columnWidth - gap;
    const height = Math.max(1, (step.seconds / longest) * BARS_HEIGHT);
    context.fillStyle = step.slices.every(isDecode) ? palette.idle : palette.warm;
    context.fillRect(left, BARS_HEIGHT - height, width, height);
    for (const slice of step.slices) drawSlice(context, slice, left, width, layout, palette);
    for (const drafts of step.drafts) drawDrafts(context, drafts, left, width, layout, palette);
    for (const slot of step.preempted) drawPreemption(context, slot, left, width, layout, palette);
  });
  context.fillStyle = palette.muted;
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "left";
  context.fillText(`longest: ${duration(longest)}`, AXIS_WIDTH + 2, 10);
}

function drawAxis(context: CanvasRenderingContext2D, layout: Layout, size: Size, palette: Palette): void {
  const top = BARS_HEIGHT + BARS_GAP;
  context.fillStyle = palette.inset;
  context.fillRect(AXIS_WIDTH, top, size.width - AXIS_WIDTH, layout.numRows * layout.rowHeight);
  context.fillStyle = palette.muted;
  context.font = "10px system-ui, sans-serif";
  context.textAlign = "right";
  const every = Math.max(1, Math.ceil(22 / layout.rowHeight));
  for (let slot = 0; slot < layout.numRows; slot += every) {
    context.fillText(String(slot), AXIS_WIDTH - 5, top + slot * layout.rowHeight + Math.min(9, layout.rowHeight));
  }
}

function rowTop(slot: number, layout: Layout): number {
  return BARS_HEIGHT + BARS_GAP + slot * layout.rowHeight;
}

/** Draw a prompt chunk as a full cell and a generated token as a thinner bar. */
function drawSlice(
  context: CanvasRenderingContext2D, slice: StepSlice, left: number, width: number, layout: Layout, palette: Palette,
): void {
  const full = Math.max(1, layout.rowHeight - (layout.rowHeight >= 4 ? 1 : 0));
  const decodes = isDecode(slice);
  const height = decodes ? Math.max(1, Math.round(full * 0.4)) : full;
  context.globalAlpha = decodes ? 0.75 : 1;
  context.fillStyle = palette.slot(slice[0]);
  context.fillRect(left, rowTop(slice[0], layout) + (full - height) / 2, width, height);
  context.globalAlpha = 1;
}

/** Draw a slice with drafts over its plain form: a taller bar, filled up to the accepted ones, then striped. */
function drawDrafts(
  context: CanvasRenderingContext2D, drafts: StepDrafts, left: number, width: number, layout: Layout, palette: Palette,
): void {
  const [slot, numDrafted, numAccepted] = drafts;
  const height = Math.max(2, Math.round(layout.rowHeight * 0.8));
  const filled = Math.max(1, Math.round((height * (1 + numAccepted)) / (1 + numDrafted)));
  const top = rowTop(slot, layout) + Math.floor((layout.rowHeight - height) / 2);
  context.fillStyle = palette.inset;
  context.fillRect(left, rowTop(slot, layout), width, layout.rowHeight);
  context.globalAlpha = 0.75;
  context.fillStyle = palette.slot(slot);
  context.fillRect(left, top + height - filled, width, filled);
  for (let y = top; y < top + height - filled; y += 2) context.fillRect(left, y, width, 1);
  context.globalAlpha = 1;
}

function drawPreemption(
  context: CanvasRenderingContext2D, slot: number, left: number, width: number, layout: Layout, palette: Palette,
): void {
  const [x, y] = [left + width / 2, rowTop(slot, layout) + layout.rowHeight / 2];
  const reach = Math.max(2.5, layout.rowHeight / 2.5);
  context.strokeStyle = palette.danger;
  context.lineWidth = 2;
  context.beginPath();
  context.moveTo(x - reach, y - reach);
  context.lineTo(x + reach, y + reach);
  context.moveTo(x + reach, y - reach);
  context.lineTo(x - reach, y + reach);
  context.stroke();
}

export function Timeline({ steps, theme }: { steps: readonly Step[]; theme: ThemeChoice }) {
  return (
    <section class="panel" aria-labelledby="steps-title">
      <h3 id="steps-title">Steps</h3>
      <p class="note">The last {NUM_STEPS} steps, one column per step and one row per batch slot. Bars at the top show step durations.</p>
      <Drawing
        label={summaryOf(steps)}
        theme={theme}
        heightFor={(width) => {
          const layout = layoutFor(steps, width);
          return BARS_HEIGHT + BARS_GAP + layout.numRows * layout.rowHeight;
        }}
        draw={(context, size, palette) => drawTimeline(context, steps, size, palette)}
        hintAt={(x, y, size) => hintFor(x, y, steps, layoutFor(steps, size.width))}
      />
      <ul class="legend">
        <li><span class="mark mark-prefill" aria-hidden="true" /> prompt chunk</li>
        <li><span class="mark mark-decode" aria-hidden="true" /> generated token</li>
        <li><span class="mark mark-drafted" aria-hidden="true" /> drafted tokens: accepted filled, rejected striped</li>
        <li><span class="mark mark-preempted" aria-hidden="true">×</span> preempted</li>
        <li><span class="swatch swatch-warm" aria-hidden="true" /> step that includes a prompt</li>
      </ul>
    </section>
  );
}

function summaryOf(steps: readonly Step[]): string {
  const slices = steps.flatMap((step) => step.slices);
  const chunks = slices.filter((slice) => !isDecode(slice));
  const preemptions = steps.reduce((sum, step) => sum + step.preempted.length, 0);
  const drafts = steps.flatMap((step) => step.drafts);
  const numDrafted = drafts.reduce((sum, [, drafted]) => sum + drafted, 0);
  const numAccepted = drafts.reduce((sum, [, , accepted]) => sum + accepted, 0);
  const ofDrafts = numDrafted === 0 ? "" : `, ${count(numAccepted)} of ${counted(numDrafted, "drafted token")} accepted`;
  return (
    `Timeline of the last ${counted(steps.length, "step")}: ${counted(chunks.length, "prompt chunk")}, ` +
    `${counted(slices.length - chunks.length + numAccepted, "generated token")}, ${counted(preemptions, "preemption")}${ofDrafts}.`
  );
}

function hintFor(x: number, y: number, steps: readonly Step[], layout: Layout): string | null {
  const index = Math.floor((x - AXIS_WIDTH) / layout.columnWidth) - (NUM_STEPS - steps.length);
  const step = steps[index];
  if (step === undefined) return null;
  const chunks = step.slices.filter((slice) => !isDecode(slice));
  const numPrompt = chunks.reduce((sum, slice) => sum + numKnown(slice), 0);
  const whole =
    `step ${step.step}: ${duration(step.seconds)}, ${count(step.slices.length - chunks.length)} decoding, ` +
    `${counted(chunks.length, "prompt chunk")} (${counted(numPrompt, "token")})`;
  const slot = Math.floor((y - BARS_HEIGHT - BARS_GAP) / layout.rowHeight);
  const slice = step.slices.find(([one]) => one === slot);
  if (step.preempted.includes(slot)) return `${whole}\nslot ${slot}: preempted`;
  if (slice === undefined) return whole;
  const what = isDecode(slice) ? `token ${slice[1]}` : `prompt ${slice[1]}–${slice[1] + numKnown(slice) - 1}`;
  return `${whole}\nslot ${slot}: ${what}${draftHint(draftsOf(slot, step))}`;
}

/** Tokens of a slice that are not drafts. */
function numKnown([, , numTokens, numSampled]: StepSlice): number {
  return numTokens - Math.max(0, numSampled - 1);
}

function draftHint(drafts: StepDrafts | undefined): string {
  if (drafts === undefined) return "";
  const [, numDrafted, numAccepted] = drafts;
  return `, ${count(numDrafted)} drafted: ${count(numAccepted)} accepted, ${count(numDrafted - numAccepted)} rejected`;
}
