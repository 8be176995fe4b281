// The prefix tree of the cache: a node's width is its length in blocks, and children are stacked to its right.

import { useState } from "preact/hooks";
import type { PrefixTree, TreeNode } from "../api/types";
import type { Palette } from "../parts/colours";
import { Drawing, type Size } from "../parts/drawing";
import type { ThemeChoice } from "../parts/theme";
import { count, counted } from "../parts/format";

const HEIGHT = 220;
const MAX_ROW_HEIGHT = 26;

export interface Box {
  node: TreeNode;
  left: number; // blocks before it
  top: number; // leaves above it
  leaves: number;
  depth: number;
}

/** Return each node's position in depth-first order: right of its parent, with one row per leaf below it. */
export function boxesOf(nodes: readonly TreeNode[]): Box[] {
  const ids = new Set(nodes.map((node) => node.id));
  const children = Map.groupBy(nodes, (node) => (node.parent !== null && ids.has(node.parent) ? node.parent : null));
  const boxes: Box[] = [];
  const place = (node: TreeNode, left: number, top: number, depth: number): number => {
    const box = { node, left, top, leaves: 0, depth };
    boxes.push(box);
    for (const child of children.get(node.id) ?? []) {
      box.leaves += place(child, left + node.num_blocks, top + box.leaves, depth + 1);
    }
    box.leaves = Math.max(1, box.leaves);
    return box.leaves;
  };
  let top = 0;
  for (const root of children.get(null) ?? []) top += place(root, 0, top, 0);
  return boxes;
}

interface Scale {
  x: number; // pixels per block
  y: number; // pixels per leaf
}

function scaleFor(boxes: readonly Box[], width: number): Scale {
  const blocks = boxes.reduce((max, box) => Math.max(max, box.left + box.node.num_blocks), 1);
  const leaves = boxes.reduce((max, box) => Math.max(max, box.top + box.leaves), 1);
  return { x: width / blocks, y: Math.min(MAX_ROW_HEIGHT, HEIGHT / leaves) };
}

function drawTree(
  context: CanvasRenderingContext2D, boxes: readonly Box[], size: Size, palette: Palette,
): void {
  const scale = scaleFor(boxes, size.width);
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  for (const { node, left, top, leaves } of boxes) {
    const [x, y] = [left * scale.x, top * scale.y];
    const [width, height] = [node.num_blocks * scale.x - 1, leaves * scale.y - (scale.y > 3 ? 1 : 0)];
    if (width <= 0) continue;
    const isHeld = node.holders > 0;
    context.fillStyle = isHeld ? palette.accent : palette.idle;
    context.globalAlpha = node.holders === 1 ? 0.72 : 1;
    context.fillRect(x, y, width, Math.max(0.5, height));
    context.globalAlpha = 1;
    if (width > 34 && height > 12) {
      context.fillStyle = isHeld ? palette.panel : palette.ink;
      context.fillText(width > 80 ? counted(node.num_blocks, "block") : String(node.num_blocks), x + 6, y + height / 2);
    }
  }
}

export function PrefixTreeView({ tree, theme }: { tree: PrefixTree; theme: ThemeChoice }) {
  const [isOpen, setOpen] = useState(false);
  const boxes = boxesOf(tree.nodes);
  const blocks = tree.nodes.reduce((sum, node) => sum + node.num_blocks, 0);
  const held = tree.nodes.filter((node) => node.holders > 0).length;
  const summary =
    `${counted(tree.nodes.length, "node")} with ${counted(blocks, "block")}, ${count(held)} of them in use` +
    (tree.left_out > 0 ? `; ${counted(tree.left_out, "node")} more not shown` : "");
  return (
    <section class="panel" aria-labelledby="tree-title">
      <h3 id="tree-title">Prefix tree</h3>
      <p class="note">Prompts with a common prefix share its blocks. Width is the length in blocks; branches are stacked.</p>
      {tree.nodes.length === 0 ? (
        <p class="empty">Nothing is cached yet.</p>
      ) : (
        <Drawing
          label={`Prefix tree of the cache: ${summary}.`}
          theme={theme}
          heightFor={(width) => {
            const scale = scaleFor(boxes, width);
            return Math.ceil(boxes.reduce((max, box) => Math.max(max, (box.top + box.leaves) * scale.y), 1));
          }}
          draw={(context, size, palette) => drawTree(context, boxes, size, palette)}
          hintAt={(x, y, size) => hintFor(x, y, boxes, scaleFor(boxes, size.width))}
        />
      )}
      <ul class="legend">
        <li><span class="swatch swatch-held" aria-hidden="true" /> in use (solid: by several sequences)</li>
        <li><span class="swatch swatch-idle" aria-hidden="true" /> idle, evicted when blocks run out</li>
        <li>{summary}</li>
      </ul>
      <details onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary>As a list</summary>
        {isOpen && <TreeList boxes={boxes} />}
      </details>
    </section>
  );
}

function TreeList({ boxes }: { boxes: readonly Box[] }) {
  return (
    <ul class="tree-list">
      {boxes.map(({ node, depth }) => (
        <li key={node.id} style={{ "--depth": String(depth) }}>
          {inWords(node)}
        </li>
      ))}
    </ul>
  );
}

function inWords(node: TreeNode): string {
  const holders = node.holders === 0 ? "idle" : `in use by ${counted(node.holders, "sequence")}`;
  return `${counted(node.num_blocks, "block")}, ${counted(node.num_tokens, "token")}, ${holders}, tenant ${node.salt}`;
}

function hintFor(x: number, y: number, boxes: readonly Box[], scale: Scale): string | null {
  const [block, leaf] = [x / scale.x, y / scale.y];
  const found = boxes.find(
    ({ node, left, top, leaves }) =>
      left <= block && block < left + node.num_blocks && top <= leaf && leaf < top + leaves,
  );
  return found ? inWords(found.node) : null;
}
