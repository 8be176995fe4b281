// Colours for canvases, which know nothing of style sheets.

export type Palette = Record<ColourName, string> & { slot: (slot: number) => string };

const NAMES = ["ink", "muted", "line", "panel", "inset", "accent", "idle", "danger", "warm"] as const;
export type ColourName = (typeof NAMES)[number];

/** The colours of the style sheet as they are now. */
export function paletteOf(isDark: boolean): Palette {
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);
  const entries = NAMES.map((name) => {
    probe.style.color = `var(--${name})`;
    return [name, getComputedStyle(probe).color] as const;
  });
  probe.remove();
  return { ...(Object.fromEntries(entries) as Record<ColourName, string>), slot: (slot) => slotColour(slot, isDark) };
}

/** Neighbouring slots get colours far apart, all of them equally bright. */
export function slotColour(slot: number, isDark: boolean): string {
  const hue = (35 + slot * 137.508) % 360;
  const lightness = (isDark ? 0.72 : 0.62) + (slot % 3 === 1 ? -0.07 : 0);
  return `oklch(${lightness} 0.13 ${hue.toFixed(1)})`;
}
