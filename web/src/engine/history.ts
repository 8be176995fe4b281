// The recent past of the engine, as collected from the feed. Immutable values.

import type { EngineStats, FinishedRequest, Step, ViewEvent } from "../api/types";

export const NUM_STEPS = 120;
const NUM_FINISHED = 100;
const NUM_SAMPLES = 1200; // 5 minutes at 4 samples per second
const RATE_SECONDS = 1; // averaging window of rates

/** One point of every chart. */
export interface Sample {
  time: number;
  generated: number; // tokens per second
  computed: number; // prompt tokens per second
  running: number;
  waiting: number;
  ttftP50: number | null;
  ttftP99: number | null;
  itlP50: number | null;
  itlP99: number | null;
}

export interface History {
  steps: readonly Step[];
  samples: readonly Sample[];
  finished: readonly FinishedRequest[]; // latest first
  counters: readonly Counters[]; // of the last RATE_SECONDS, for rates
}

interface Counters {
  time: number;
  stats: EngineStats;
}

export const NO_HISTORY: History = { steps: [], samples: [], finished: [], counters: [] };

export function after(history: History, view: ViewEvent): History {
  const counters = recent(history.counters, { time: view.time, stats: view.stats });
  return {
    steps: [...history.steps, ...view.steps].slice(-NUM_STEPS),
    samples: [...history.samples, sampleOf(view, counters)].slice(-NUM_SAMPLES),
    finished: [...view.finished.toReversed(), ...history.finished].slice(0, NUM_FINISHED),
    counters,
  };
}

/** Drop steps and counters: those of a new engine start from zero. */
export function withNewEngine(history: History): History {
  return { ...history, steps: [], counters: [] };
}

/** Drop all that is of one replica. Finished requests are those of the server. */
export function withNewReplica(history: History): History {
  return { ...NO_HISTORY, finished: history.finished };
}

function recent(counters: readonly Counters[], latest: Counters): readonly Counters[] {
  const kept = counters.filter((one) => latest.time - one.time <= RATE_SECONDS + 0.01);
  const before = counters.at(-1);
  return [...(kept.length === 0 && before ? [before] : kept), latest];
}

function sampleOf(view: ViewEvent, counters: readonly Counters[]): Sample {
  const { stats, latency } = view;
  const before = counters[0];
  const seconds = before === undefined ? 0 : view.time - before.time;
  const sampled = seconds > 0 && before ? stats.tokens_sampled - before.stats.tokens_sampled : 0;
  const computed = seconds > 0 && before ? stats.tokens_computed - before.stats.tokens_computed : 0;
  return {
    time: view.time,
    generated: seconds > 0 ? Math.max(0, sampled) / seconds : 0,
    // Each sampled token is itself computed one step later; the remainder are prompt tokens.
    computed: seconds > 0 ? Math.max(0, computed - sampled) / seconds : 0,
    running: stats.num_running,
    waiting: stats.num_waiting,
    ttftP50: latency.ttft_p50,
    ttftP99: latency.ttft_p99,
    itlP50: latency.itl_p50,
    itlP99: latency.itl_p99,
  };
}
