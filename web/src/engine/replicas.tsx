// The replicas of the server. One of them can be chosen: its engine is shown below.

import type { ReplicaStatus } from "../api/types";
import { count, counted, duration, percent } from "../parts/format";
import type { Feed } from "./feed";
import { byName, ratesOf, type Fleet } from "./fleet";

const DOTS: Record<ReplicaStatus["state"], string> = {
  ready: "ready",
  starting: "loading",
  suspected: "loading",
  draining: "loading",
  restarting: "loading",
  unreachable: "unavailable",
  failed: "unavailable",
};

/** Nothing is shown for a single replica: the rest of the view shows all of it. */
export function Replicas({ feed }: { feed: Feed }) {
  const fleet = feed.fleet.value;
  if (fleet === null || fleet.latest.replicas.length < 2) return null;
  const { requests, unsent, moves } = fleet.latest;
  const waiting = unsent > 0 ? `, ${count(unsent)} of them not sent to a replica yet` : "";
  const summary = `${counted(requests, "request")} in flight${waiting}; ${counted(moves, "move")} between replicas since the start.`;
  const replicas = byName(fleet.latest.replicas);
  return (
    <section class="panel replicas" aria-labelledby="replicas-title">
      <h3 id="replicas-title">Replicas</h3>
      <p class="note">{summary}</p>
      <fieldset>
        <legend class="hidden">Replica whose engine is shown</legend>
        <label class="automatic">
          <Choice feed={feed} name={null} /> show the engine of the first usable replica
        </label>
        <div class="scrolls tall" tabIndex={0} role="region" aria-labelledby="replicas-title">
          <table>
            <thead>
              <tr>
                <th scope="col">show</th>
                <th scope="col">state</th>
                <th scope="col" class="number">up</th>
                <th scope="col" class="number">running</th>
                <th scope="col" class="number">waiting</th>
                <th scope="col" class="number">KV in use</th>
                <th scope="col" class="load">load</th>
                <th scope="col" class="number">tokens/s</th>
                <th scope="col" class="number">prompts from cache</th>
                <th scope="col" class="number">moved in</th>
                <th scope="col" class="number">moved out</th>
                <th scope="col" class="number">restarts</th>
              </tr>
            </thead>
            <tbody>
              {replicas.map((replica) => (
                <ReplicaRow key={replica.name} replica={replica} fleet={fleet} feed={feed} />
              ))}
            </tbody>
          </table>
        </div>
      </fieldset>
      <ul class="plain">
        {replicas.filter((replica) => replica.problem).map((replica) => (
          <li key={replica.name}>{replica.name}: {replica.problem}</li>
        ))}
      </ul>
    </section>
  );
}

function Choice({ feed, name }: { feed: Feed; name: string | null }) {
  return <input type="radio" name="replica" checked={feed.chosen.value === name} onChange={() => feed.choose(name)} />;
}

function ReplicaRow({ replica, fleet, feed }: { replica: ReplicaStatus; fleet: Fleet; feed: Feed }) {
  const rates = ratesOf(fleet, replica.name);
  const isShown = feed.shownReplica === replica.name;
  return (
    <tr class={isShown ? "shown" : undefined} aria-current={isShown || undefined} onClick={() => feed.choose(replica.name)}>
      <th scope="row">
        <label>
          <Choice feed={feed} name={replica.name} /> {replica.name}
        </label>
      </th>
      <td>
        <span class={`dot dot-${DOTS[replica.state]}`} aria-hidden="true" /> {replica.state}
      </td>
      <td class="number">{duration(replica.uptime_seconds)}</td>
      <td class="number">{count(replica.running)}</td>
      <td class="number">{count(replica.waiting)}</td>
      <td class="number">{replica.kv_blocks_total === 0 ? "–" : percent(replica.kv_blocks_used / replica.kv_blocks_total)}</td>
      <td class="load">
        <span class="meter" aria-hidden="true">
          <span style={{ inlineSize: `${(rates.load ?? 0) * 100}%` }} />
        </span>{" "}
        {rates.load === null ? "–" : `${Math.round(rates.load * 100)} %`}
      </td>
      <td class="number">{rates.tokens === null ? "–" : count(rates.tokens)}</td>
      <td class="number">{rates.hits === null ? "–" : percent(rates.hits)}</td>
      <td class="number">{count(replica.moves_in)}</td>
      <td class="number">{count(replica.moves_out)}</td>
      <td class="number">{count(replica.restarts)}</td>
    </tr>
  );
}
