// Shows the `octavo` object of a response: timing, cache use, and what is needed to reproduce the answer.

import type { Explanation, ExplainedChoice, ExplainedRequest } from "../api/types";
import { counted, count, duration } from "./format";

interface Props {
  explanation: Explanation;
  fingerprint: string | null;
}

export function ExplanationView({ explanation, fingerprint }: Props) {
  return (
    <div class="explanation">
      {explanation.requests.map((request, index) => (
        <RequestExplained key={index} request={request} explanation={explanation} fingerprint={fingerprint} />
      ))}
    </div>
  );
}

function RequestExplained({ request, explanation, fingerprint }: Props & { request: ExplainedRequest }) {
  const miss = request.first_miss;
  const numDrafted = sum(request.choices, (choice) => choice.drafted_tokens ?? 0);
  return (
    <>
      {request.choices.map((choice, index) => (
        <TimeBar key={index} choice={choice} name={request.choices.length > 1 ? `answer ${index + 1}` : null} />
      ))}
      <dl class="facts">
        <Fact name="Prompt" value={`${counted(request.prompt_tokens, "token")}, ${count(request.cached_tokens)} from the cache`} />
        {miss && <Fact name="First cache miss" value={`position ${miss.position}${miss.token === undefined ? "" : `, ${JSON.stringify(miss.token)}`}`} />}
        <Fact name="Tokenisation" value={duration(explanation.tokenise_seconds)} />
        {numDrafted > 0 && (
          <Fact name="Drafted tokens" value={`${count(numDrafted)}, ${count(sum(request.choices, (choice) => choice.accepted_tokens ?? 0))} accepted`} />
        )}
        <Fact name="Preemptions" value={count(sum(request.choices, (choice) => choice.preemptions))} />
        <Fact name="Engine restarts" value={count(explanation.engine_restarts)} />
        <Fact name="Seed" value={request.seed} isCode />
        {fingerprint && <Fact name="Fingerprint" value={fingerprint} isCode />}
      </dl>
      <Chunks choices={request.choices} />
    </>
  );
}

function Fact({ name, value, isCode = false }: { name: string; value: string; isCode?: boolean }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{isCode ? <code>{value}</code> : value}</dd>
    </div>
  );
}

/** Shows the durations of queueing, prompt and answer as proportional bars. */
function TimeBar({ choice, name }: { choice: ExplainedChoice; name: string | null }) {
  const parts = [
    { kind: "queue", text: "queued", seconds: choice.queue_seconds },
    { kind: "prefill", text: "prompt", seconds: choice.prefill_seconds },
    { kind: "decode", text: "answer", seconds: choice.decode_seconds },
  ];
  return (
    <div class="times">
      {name && <span class="times-name">{name}</span>}
      <div class="time-bar" aria-hidden="true">
        {parts.map(({ kind, seconds }) => (
          <span key={kind} class={`time time-${kind}`} style={{ flexGrow: String(seconds) }} />
        ))}
      </div>
      <ul class="legend">
        {parts.map(({ kind, text, seconds }) => (
          <li key={kind}>
            <span class={`swatch time-${kind}`} aria-hidden="true" />
            {text} <b>{duration(seconds)}</b>
          </li>
        ))}
      </ul>
    </div>
  );
}

function Chunks({ choices }: { choices: readonly ExplainedChoice[] }) {
  const chunks = choices.flatMap((choice) => choice.prefill_chunks);
  const leftOut = sum(choices, (choice) => choice.prefill_chunks_left_out);
  if (chunks.length === 0) return null;
  return (
    <table class="chunks">
      <caption>
        Computed prompt chunks{leftOut > 0 && ` (${count(leftOut)} more not shown)`}
      </caption>
      <thead>
        <tr>
          <th scope="col">from position</th>
          <th scope="col">tokens</th>
          <th scope="col">step duration</th>
        </tr>
      </thead>
      <tbody>
        {chunks.map((chunk, index) => (
          <tr key={index}>
            <td>{count(chunk.start)}</td>
            <td>{count(chunk.tokens)}</td>
            <td>{duration(chunk.seconds)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function sum(choices: readonly ExplainedChoice[], of: (choice: ExplainedChoice) => number): number {
  return choices.reduce((total, choice) => total + of(choice), 0);
}
