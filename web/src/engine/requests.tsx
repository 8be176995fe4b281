// Lists of running, waiting and finished requests.

import { useState } from "preact/hooks";
import type { FinishedRequest, RunningSequence, WaitingSequence } from "../api/types";
import { slotColour } from "../parts/colours";
import { ExplanationView } from "../parts/explanation";
import type { ThemeChoice } from "../parts/theme";
import { count, counted, duration, shortId } from "../parts/format";

const MAX_WAITING_SHOWN = 8;

export function Running({ sequences, theme }: { sequences: readonly RunningSequence[]; theme: ThemeChoice }) {
  return (
    <section class="panel" aria-labelledby="running-title">
      <h3 id="running-title">Running</h3>
      {sequences.length === 0 ? (
        <p class="empty">No requests are running. Use the playground or send requests to the API.</p>
      ) : (
        <div class="scrolls tall" tabIndex={0} role="region" aria-labelledby="running-title">
          <table>
            <thead>
              <tr>
                <th scope="col">slot</th>
                <th scope="col">request</th>
                <th scope="col" class="number">prompt</th>
                <th scope="col" class="number">cached</th>
                <th scope="col">computed</th>
                <th scope="col" class="number">answer</th>
                <th scope="col" class="number">blocks (shared)</th>
                <th scope="col" class="number">preempted</th>
              </tr>
            </thead>
            <tbody>
              {bySlot(sequences).map((sequence) => (
                <RunningRow key={sequence.slot} sequence={sequence} isDark={theme.isDark.value} />
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

/** Sort by slot, in the order of the timeline's rows. */
function bySlot(sequences: readonly RunningSequence[]): RunningSequence[] {
  return sequences.toSorted((one, other) => one.slot - other.slot);
}

function RunningRow({ sequence, isDark }: { sequence: RunningSequence; isDark: boolean }) {
  const share = sequence.num_computed / Math.max(1, sequence.num_tokens);
  return (
    <tr>
      <td>
        <span class="swatch" aria-hidden="true" style={{ background: slotColour(sequence.slot, isDark) }} /> {sequence.slot}
      </td>
      <td>
        <code title={sequence.request_id}>{shortId(clientId(sequence.request_id))}</code>
        {sequence.choice > 0 && ` #${sequence.choice + 1}`}
      </td>
      <td class="number">{count(sequence.num_prompt)}</td>
      <td class="number">{count(sequence.num_cached)}</td>
      <td>
        <span class="meter" aria-hidden="true">
          <span style={{ inlineSize: `${share * 100}%` }} />
        </span>
        <span class="hidden">{Math.round(share * 100)} %</span>
      </td>
      <td class="number">{count(Math.max(0, sequence.num_tokens - sequence.num_prompt))}</td>
      <td class="number">
        {count(sequence.num_blocks)} ({count(sequence.num_shared_blocks)})
      </td>
      <td class="number">{count(sequence.preemptions)}</td>
    </tr>
  );
}

/** Return the id as the client knows it: the engine appends the prompt index, which is 0 for most requests. */
function clientId(id: string): string {
  return id.replace(/-0$/, "");
}

export function Waiting({ waiting, total }: { waiting: readonly WaitingSequence[]; total: number }) {
  if (total === 0) return null;
  return (
    <section class="panel" aria-labelledby="waiting-title">
      <h3 id="waiting-title">Waiting: {count(total)}</h3>
      <ul class="plain">
        {waiting.slice(0, MAX_WAITING_SHOWN).map((one) => (
          <li key={`${one.request_id}/${one.choice}`}>
            <code title={one.request_id}>{shortId(clientId(one.request_id))}</code> {counted(one.num_prompt, "prompt token")}, for{" "}
            {duration(one.seconds_waiting)}
            {one.preemptions > 0 && `, ${counted(one.preemptions, "preemption")}`}
          </li>
        ))}
      </ul>
      {total > MAX_WAITING_SHOWN && <p class="note">and {count(total - MAX_WAITING_SHOWN)} more</p>}
    </section>
  );
}

export function Finished({ finished, fingerprint }: { finished: readonly FinishedRequest[]; fingerprint: string | null }) {
  return (
    <section class="panel" aria-labelledby="finished-title">
      <h3 id="finished-title">Finished</h3>
      {finished.length === 0 ? (
        <p class="empty">Requests that finish while this view is open appear here with their timing.</p>
      ) : (
        <ul class="plain finished tall" tabIndex={0} aria-labelledby="finished-title">
          {finished.map((request) => (
            <li key={request.request_id}>
              <FinishedRow request={request} fingerprint={fingerprint} />
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

function FinishedRow({ request, fingerprint }: { request: FinishedRequest; fingerprint: string | null }) {
  const [isOpen, setOpen] = useState(false);
  const rate = request.tokens_per_second;
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        <code title={request.response_id ?? request.request_id}>{shortId(request.response_id ?? request.request_id)}</code>
        <span class={request.error ? "badge badge-bad" : "badge"}>{request.error ?? request.finish_reason ?? request.status}</span>
        <span>
          {count(request.prompt_tokens)} → {counted(request.completion_tokens, "token")}
        </span>
        <span class="muted">
          {duration(request.seconds)}
          {rate !== null && `, ${rate.toFixed(rate < 100 ? 1 : 0)} tokens/s`}
        </span>
      </summary>
      {isOpen && (
        <>
          <dl class="facts">
            <div><dt>ID in the log</dt><dd><code>{request.request_id}</code></dd></div>
            <div><dt>Endpoint</dt><dd>{request.route}, {request.stream ? "streamed" : "not streamed"}, status {request.status ?? "none"}</dd></div>
            <div><dt>Time to first token</dt><dd>{duration(request.seconds_to_first_token)}</dd></div>
            {!request.octavo && <div><dt>Queued</dt><dd>{duration(request.queue_seconds)}</dd></div>}
          </dl>
          {request.octavo && <ExplanationView explanation={request.octavo} fingerprint={fingerprint} />}
        </>
      )}
    </details>
  );
}
