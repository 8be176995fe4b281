// The colour theme: light, dark, or that of the operating system.

import { computed, effect, signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";

const STORED_THEME = "octavo-theme";
const NEXT: Record<Theme, Theme> = { system: "light", light: "dark", dark: "system" };

export class ThemeChoice {
  readonly chosen = signal<Theme>(stored());
  readonly #systemIsDark = signal(false);
  readonly isDark = computed(() =>
    this.chosen.value === "system" ? this.#systemIsDark.value : this.chosen.value === "dark",
  );

  constructor() {
    const query = matchMedia("(prefers-color-scheme: dark)");
    this.#systemIsDark.value = query.matches;
    query.addEventListener("change", () => (this.#systemIsDark.value = query.matches));
    effect(() => {
      document.documentElement.dataset.theme = this.chosen.value;
    });
  }

  next(): void {
    this.chosen.value = NEXT[this.chosen.value];
    localStorage.setItem(STORED_THEME, this.chosen.value);
  }
}

function stored(): Theme {
  const theme = localStorage.getItem(STORED_THEME);
  return theme === "light" || theme === "dark" ? theme : "system";
}
