// A canvas that fills the available width, renders at the screen's resolution and shows a tooltip at the pointer.

import { useComputed } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { paletteOf, type Palette } from "./colours";
import type { ThemeChoice } from "./theme";

export interface Size {
  width: number;
  height: number;
}

interface Props {
  label: string; // text alternative for screen readers
  theme: ThemeChoice;
  heightFor: (width: number) => number;
  draw: (context: CanvasRenderingContext2D, size: Size, palette: Palette) => void;
  hintAt?: (x: number, y: number, size: Size) => string | null;
}

export function Drawing({ label, theme, heightFor, draw, hintAt }: Props) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const [pointer, setPointer] = useState<{ x: number; y: number } | null>(null);
  const palette = useComputed(() => paletteOf(theme.isDark.value)).value;
  const size = { width, height: width > 0 ? heightFor(width) : 0 };

  useLayoutEffect(() => {
    const parent = canvas.current?.parentElement;
    if (!parent) return;
    const measure = () => setWidth(Math.floor(parent.clientWidth));
    const observer = new ResizeObserver(measure);
    observer.observe(parent);
    measure();
    return () => observer.disconnect();
  }, []);

  useEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (!canvas.current || !context || width === 0) return;
    const scale = window.devicePixelRatio || 1;
    const [pixelsWide, pixelsHigh] = [Math.round(size.width * scale), Math.round(size.height * scale)];
    if (canvas.current.width !== pixelsWide) canvas.current.width = pixelsWide;
    if (canvas.current.height !== pixelsHigh) canvas.current.height = pixelsHigh;
    canvas.current.style.height = `${size.height}px`;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, size.width, size.height);
    draw(context, size, palette);
  });

  const hint = pointer && hintAt ? hintAt(pointer.x, pointer.y, size) : null;
  const follow = (event: PointerEvent) => setPointer({ x: event.offsetX, y: event.offsetY });
  return (
    <div class="drawing">
      <canvas
        ref={canvas}
        role="img"
        aria-label={label}
        onPointerMove={follow}
        onPointerDown={follow}
        onPointerLeave={() => setPointer(null)}
      />
      {hint && pointer && (
        <div class="hint" aria-hidden="true" style={hintPlace(pointer, size)}>
          {hint}
        </div>
      )}
    </div>
  );
}

/** Return the tooltip's position: beside the pointer, on the side with more room. */
function hintPlace({ x, y }: { x: number; y: number }, size: Size): Record<string, string> {
  const horizontally = x > size.width / 2 ? { right: `${size.width - x + 12}px` } : { left: `${x + 12}px` };
  return { ...horizontally, top: `${y + 14}px` };
}
