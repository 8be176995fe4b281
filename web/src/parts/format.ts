// Formats numbers, durations, sizes and ids for display.

export function count(value: number): string {
  return Math.round(value).toLocaleString("en");
}

export function counted(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}

export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds === 0) return "0 ms";
  if (seconds < 0.0995) return `${(seconds * 1000).toFixed(seconds < 0.00995 ? 1 : 0)} ms`;
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

export function bytes(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(units.length - 1, Math.floor(Math.log2(Math.max(1, value)) / 10));
  const scaled = value / 2 ** (10 * power);
  return `${scaled.toFixed(scaled < 10 && power > 0 ? 1 : 0)} ${units[power]}`;
}

export function percent(share: number): string {
  const value = share * 100;
  if (value > 0 && value < 0.01) return "< 0.01 %";
  return `${value.toFixed(value < 1 ? 2 : value < 99.95 ? 1 : 0)} %`;
}

/** Shorten an id to its last 8 characters, in which ids differ. */
export function shortId(id: string): string {
  return id.length <= 14 ? id : `…${id.slice(-8)}`;
}
