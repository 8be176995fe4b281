// Colours for canvases, to which style sheets do not apply.

export type Palette = Record<ColourName, string> & { slot: (slot: number) => string };

const NAMES = ["ink", "muted", "line", "panel", "inset", "accent", "idle", "danger", "warm"] as const;
export type ColourName = (typeof NAMES)[number];

/** Return the current colours of the style sheet. */
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

/** Return the colour of a slot. Neighbouring slots differ strongly in hue and have similar brightness. */
export function slotColour(slot: number, isDark: boolean): string {
  const hue = (35 + slot * 137.508) % 360;
  const lightness = (isDark ? 0.72 : 0.62) + (slot % 3 === 1 ? -0.07 : 0);
  return `oklch(${lightness} 0.13 ${hue.toFixed(1)})`;
}
