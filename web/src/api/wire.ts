// JSON whose seeds are larger than a number of JavaScript can be.

import type { Seed } from "./types";

// In a string the quotes would be escaped, so this finds only fields. (A token "seed" is one, too, where alternatives
// are a map; but its value is no whole number.)
const SEEDS = /"seed":\s*(-?\d+)(?=\s*[,}])/g;

/** JSON, with seeds as text. */
export function parsed<Value>(json: string): Value {
  return JSON.parse(json.replace(SEEDS, '"seed":"$1"')) as Value;
}

/** The JSON of a body and a seed, which is written as a number. */
export function withSeed(body: object, seed: Seed | null, indent?: number): string {
  const json = JSON.stringify(body, undefined, indent);
  if (seed === null) return json;
  const before = indent === undefined ? "" : `\n${" ".repeat(indent)}`;
  const after = indent === undefined ? "" : "\n";
  return `${json.slice(0, -1).trimEnd()},${before}"seed":${indent === undefined ? "" : " "}${seed}${after}}`;
}
