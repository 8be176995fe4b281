// The engine tab: a live view of blocks, steps, charts and requests.

import { useEffect } from "preact/hooks";
import type { EngineStats, FactsEvent } from "../api/types";
import type { ThemeChoice } from "../parts/theme";
import { bytes, count, duration, percent } from "../parts/format";
import { Charts } from "./charts";
import type { Connection, Feed } from "./feed";
import { BlockMap } from "./block_map";
import { PrefixTreeView } from "./prefix_tree";
import { Replicas } from "./replicas";
import { Finished, Running, Waiting } from "./requests";
import { Timeline } from "./timeline";

const CONNECTION_LABELS: Record<Connection, string> = {
  closed: "not connected",
  opening: "connecting",
  live: "live",
  paused: "paused while hidden",
  broken: "connection lost, reconnecting",
};

export function Engine({ feed, theme }: { feed: Feed; theme: ThemeChoice }) {
  useEffect(() => feed.watch(), [feed]);
  const view = feed.view.value;
  const facts = feed.facts.value;
  const { steps, samples, finished } = feed.history.value;
  return (
    <div class="engine">
      <h2 class="hidden">Engine</h2>
      <Status feed={feed} />
      <Replicas feed={feed} />
      {view === null || facts === null ? (
        <p class="empty panel">{feed.failure.value?.message ?? waitingText(feed)}</p>
      ) : (
        <>
          <Figures stats={view.stats} facts={facts} rate={samples.at(-1)?.generated ?? 0} />
          <div class="columns">
            <BlockMap runs={view.blocks} sequences={view.sequences} blockSize={facts.facts.block_size} theme={theme} />
            <PrefixTreeView tree={view.tree} theme={theme} />
          </div>
          <Timeline steps={steps} theme={theme} />
          <Charts samples={samples} theme={theme} />
          <div class="columns">
            <div class="stack">
              <Running sequences={view.sequences} theme={theme} />
              <Waiting waiting={view.waiting} total={view.stats.num_waiting} />
            </div>
            <Finished finished={finished} fingerprint={facts.facts.system_fingerprint} />
          </div>
        </>
      )}
    </div>
  );
}

function waitingText(feed: Feed): string {
  const engine = feed.engine.value;
  if (engine === null) return "Waiting for the first update from the engine.";
  const name = feed.chosen.value === null ? "The engine" : `The engine of ${feed.chosen.value}`;
  if (engine.state === "failed") return `${name} has failed. See the server log for the reason.`;
  if (engine.total === 0) return `${name} is ${engine.state}.`;
  return `${name} is ${engine.state}: ${bytes(engine.done)} of ${bytes(engine.total)}.`;
}

function Status({ feed }: { feed: Feed }) {
  const facts = feed.facts.value;
  const connection = feed.connection.value;
  const numReplicas = feed.fleet.value?.latest.replicas.length ?? 0;
  return (
    <p class="status">
      <span class={`dot dot-${connection}`} aria-hidden="true" />
      <span role="status">{feed.engine.value === null ? CONNECTION_LABELS[connection] : waitingText(feed)}</span>
      {feed.notice.value && <span role="alert">{feed.notice.value}</span>}
      {facts && (
        <span class="muted">
          {numReplicas > 1 && `${feed.shownReplica} of ${numReplicas} replicas · `}
          {facts.facts.dtype} on {facts.facts.device} · octavo {facts.version} · fingerprint{" "}
          <code>{facts.facts.system_fingerprint}</code>
        </span>
      )}
    </p>
  );
}

function Figures({ stats, facts, rate }: { stats: EngineStats; facts: FactsEvent; rate: number }) {
  const inUse = stats.blocks_total - stats.blocks_free - stats.blocks_idle;
  const hits = stats.prompt_tokens === 0 ? 0 : stats.prompt_tokens_cached / stats.prompt_tokens;
  return (
    <dl class="figures">
      <Figure name="running" value={count(stats.num_running)} note={`${count(stats.num_waiting)} waiting`} />
      <Figure name="tokens per second" value={count(rate)} note={`${count(stats.tokens_sampled)} in total`} />
      <Figure
        name="KV in use"
        value={percent(inUse / Math.max(1, stats.blocks_total))}
        note={`of ${bytes(facts.facts.kv_bytes)}`}
      />
      <Figure name="prompts from cache" value={percent(hits)} note={`${count(stats.prompt_tokens_cached)} tokens`} />
      <Figure name="mean step" value={duration(stats.step_seconds / Math.max(1, stats.steps))} note={`${count(stats.steps)} steps`} />
      {stats.tokens_drafted > 0 && (
        <Figure
          name="drafts accepted"
          value={percent(stats.tokens_accepted / stats.tokens_drafted)}
          note={`${count(stats.tokens_accepted)} of ${count(stats.tokens_drafted)}`}
        />
      )}
      <Figure name="preemptions" value={count(stats.preemptions)} note="since the start" />
    </dl>
  );
}

function Figure({ name, value, note }: { name: string; value: string; note: string }) {
  return (
    <div class="panel figure">
      <dt>{name}</dt>
      <dd>
        <b>{value}</b>
        <span class="muted">{note}</span>
      </dd>
    </div>
  );
}
