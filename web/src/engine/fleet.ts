// The replicas of the server and their rates, as collected from the feed. Immutable values.

import type { FleetEvent, ReplicaStatus } from "../api/types";

const RATE_SECONDS = 2.5; // averaging window of load and tokens per second
const HIT_SECONDS = 60; // averaging window of prefix hits: prompts are less frequent than tokens
const MIN_SECONDS = 0.5; // a new connection starts with an event, however recent the last one is

export interface Fleet {
  latest: FleetEvent;
  counters: ReadonlyMap<string, readonly Counters[]>; // by replica, of the last HIT_SECONDS
}

interface Counters {
  time: number;
  replica: ReplicaStatus;
}

/** Null: there is nothing to compute the rate from yet. */
export interface ReplicaRates {
  tokens: number | null; // per second
  load: number | null; // fraction of the time that steps took
  hits: number | null; // fraction of the prompt tokens that were found in the prefix cache
}

export function withFleet(fleet: Fleet | null, event: FleetEvent): Fleet {
  const counters = event.replicas.map((replica) => {
    const latest = { time: event.time, replica };
    return [replica.name, followed(fleet?.counters.get(replica.name) ?? [], latest)] as const;
  });
  return { latest: event, counters: new Map(counters) };
}

function followed(past: readonly Counters[], latest: Counters): readonly Counters[] {
  const last = past.at(-1);
  if (last === undefined || !precedes(last, latest)) return [latest];
  if (latest.time - last.time < MIN_SECONDS) return past;
  const kept = past.filter((one) => latest.time - one.time <= HIT_SECONDS);
  return [...(kept.length === 0 ? [last] : kept), latest];
}

/** Return whether both are of the same server: no count has decreased. */
function precedes(before: Counters, after: Counters): boolean {
  return (
    before.time <= after.time &&
    before.replica.step_seconds <= after.replica.step_seconds &&
    before.replica.tokens <= after.replica.tokens &&
    before.replica.prompt_tokens <= after.replica.prompt_tokens
  );
}

export function ratesOf(fleet: Fleet, name: string): ReplicaRates {
  const past = fleet.counters.get(name) ?? [];
  const [first, last] = [past[0], past.at(-1)];
  if (first === undefined || last === undefined) return { tokens: null, load: null, hits: null };
  const hits = hitsBetween(first.replica, last.replica) ?? hitsBetween(null, last.replica);
  const recent = past.find((one) => one !== last && last.time - one.time <= RATE_SECONDS) ?? past.at(-2);
  if (recent === undefined) return { tokens: null, load: null, hits };
  const seconds = last.time - recent.time;
  const busy = (last.replica.step_seconds - recent.replica.step_seconds) / seconds;
  return { tokens: (last.replica.tokens - recent.replica.tokens) / seconds, load: Math.min(1, busy), hits };
}

function hitsBetween(first: ReplicaStatus | null, last: ReplicaStatus): number | null {
  const prompts = last.prompt_tokens - (first?.prompt_tokens ?? 0);
  const cached = last.prompt_tokens_cached - (first?.prompt_tokens_cached ?? 0);
  return prompts === 0 ? null : Math.min(1, cached / prompts);
}

const BY_NAME = new Intl.Collator("en", { numeric: true }); // r2 before r10

export function byName(replicas: readonly ReplicaStatus[]): ReplicaStatus[] {
  return replicas.toSorted((one, other) => BY_NAME.compare(one.name, other.name));
}
