// JSON whose seeds may exceed the precision of a JavaScript number.

import type { Seed } from "./types";

// Matches only fields: within a string, the quotes would be escaped. (Where alternatives are a map, a token "seed" is
// also a field, but its value is not an integer.)
const SEEDS = /"seed":\s*(-?\d+)(?=\s*[,}])/g;

/** Parse JSON, with seeds as strings. */
export function parsed<Value>(json: string): Value {
  return JSON.parse(json.replace(SEEDS, '"seed":"$1"')) as Value;
}

/** Return the JSON of a body with the seed added as a number. */
export function withSeed(body: object, seed: Seed | null, indent?: number): string {
  const json = JSON.stringify(body, undefined, indent);
  if (seed === null) return json;
  const before = indent === undefined ? "" : `\n${" ".repeat(indent)}`;
  const after = indent === undefined ? "" : "\n";
  return `${json.slice(0, -1).trimEnd()},${before}"seed":${indent === undefined ? "" : " "}${seed}${after}}`;
}
