// The conversation: questions and streamed answers.

import { useEffect, useRef } from "preact/hooks";
import type { Explanation } from "../api/types";
import { CopyButton } from "../parts/copy_button";
import { ExplanationView } from "../parts/explanation";
import { FailureView } from "../parts/failure";
import { count, counted, duration } from "../parts/format";
import { firstDifference, type Choice } from "./answer";
import type { Exchange } from "./exchange";
import type { Session, Turn } from "./session";
import { asCurl, asPython } from "./snippets";
import { Tokens } from "./tokens";

const NEAR_END = 80; // pixels; scroll along only if the reader is near the end

export function Conversation({ session }: { session: Session }) {
  const box = useRef<HTMLDivElement>(null);
  const turns = session.turns.value;
  const latest = turns.at(-1)?.exchanges.at(-1)?.answer.value;

  useEffect(() => {
    const element = box.current;
    if (!element || session.current.value === null) return;
    const isNearEnd = element.scrollHeight - element.scrollTop - element.clientHeight < NEAR_END + 60;
    if (isNearEnd) element.scrollTop = element.scrollHeight;
  }, [latest, session]);
  useEffect(() => {
    if (box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [turns.length]);

  return (
    <div class="conversation" ref={box} tabIndex={0} role="region" aria-label="Conversation">
      {turns.length === 0 && <Welcome session={session} />}
      {turns.map((turn) => (
        <TurnView key={turn.id} turn={turn} session={session} />
      ))}
    </div>
  );
}

const EXAMPLES = {
  chat: ["What is the capital of France?", "Explain a KV cache to a child.", "Write a haiku about rain."],
  completions: ["The capital of France is", "def fibonacci(n):", "Once upon a time"],
};

function Welcome({ session }: { session: Session }) {
  const isChat = session.mode.value === "chat";
  return (
    <div class="welcome">
      <h3>{isChat ? "Chat with the model" : "Complete a text"}</h3>
      <p>
        Tokens are shaded by probability; point at one to see its alternatives. Every answer can be reproduced from its
        seed.
      </p>
      <ul class="examples">
        {EXAMPLES[session.mode.value].map((example) => (
          <li key={example}>
            <button type="button" onClick={() => (session.draft.value = example)}>{example}</button>
          </li>
        ))}
      </ul>
    </div>
  );
}

function TurnView({ turn, session }: { turn: Turn; session: Session }) {
  const [first, ...repeats] = turn.exchanges;
  return (
    <article class="turn" aria-label={`Question: ${turn.question.slice(0, 80)}`}>
      <div class="question">{turn.question}</div>
      {first && <ExchangeView exchange={first} turn={turn} session={session} />}
      {repeats.map((exchange, index) => (
        <div class="repeat" key={index}>
          <RepeatTitle exchange={exchange} first={first} />
          <ExchangeView exchange={exchange} turn={turn} session={session} />
        </div>
      ))}
    </article>
  );
}

/** Shows whether a repeated answer equals the first one. */
function RepeatTitle({ exchange, first }: { exchange: Exchange; first: Exchange | undefined }) {
  if (exchange.progress.value !== "complete" || !first) return <p class="repeat-title">Repeated</p>;
  const [texts, again] = [first, exchange].map((one) =>
    one.answer.value.choices.map((choice) => choice.reasoning + choice.text).join("\n"),
  );
  const difference = firstDifference(texts ?? "", again ?? "");
  return difference === null ? (
    <p class="repeat-title same">Repeated: identical text</p>
  ) : (
    <p class="repeat-title different">Repeated: text differs from character {difference + 1}</p>
  );
}

interface ExchangeProps {
  exchange: Exchange;
  turn: Turn;
  session: Session;
}

function ExchangeView({ exchange, turn, session }: ExchangeProps) {
  const answer = exchange.answer.value;
  const isRunning = exchange.progress.value === "running";
  const failure = exchange.failure.value;
  return (
    <div class={isRunning ? "answer running" : "answer"} aria-busy={isRunning}>
      {answer.choices.length === 0 && isRunning && <p class="muted">…</p>}
      {answer.choices.map((choice) => (
        <ChoiceView key={choice.index} choice={choice} showsTokens={session.showsTokens.value}
          name={answer.choices.length > 1 ? `Answer ${choice.index + 1}` : null} />
      ))}
      {failure && <FailureView failure={failure} />}
      {!isRunning && <AnswerFooter exchange={exchange} turn={turn} session={session} />}
    </div>
  );
}

function ChoiceView({ choice, showsTokens, name }: { choice: Choice; showsTokens: boolean; name: string | null }) {
  const { text, reasoning, tokens, numReasoning } = choice;
  const owner = name ? name.toLowerCase() : "the answer";
  const hasTokens = showsTokens && tokens.length > 0;
  return (
    <div class="choice">
      {name && <h4>{name}</h4>}
      {reasoning && (
        <details class="reasoning" open>
          <summary>Reasoning</summary>
          {hasTokens ? (
            <Tokens tokens={tokens.slice(0, numReasoning)} label={`Tokens of the reasoning for ${owner}`} />
          ) : (
            <div class="text">{reasoning}</div>
          )}
        </details>
      )}
      {hasTokens ? (
        <Tokens tokens={tokens.slice(numReasoning)} label={`Tokens of ${owner}`} />
      ) : (
        <div class="text">{text}</div>
      )}
    </div>
  );
}

function AnswerFooter({ exchange, turn, session }: ExchangeProps) {
  const { explanation, fingerprint } = exchange.answer.value;
  const seed = explanation?.requests[0]?.seed ?? exchange.request.seed;
  const request = { ...exchange.request, seed };
  const hasKey = session.client.key.value !== "";
  return (
    <div class="answer-footer">
      <p class="small muted">{summaryOf(exchange)}</p>
      <div class="actions">
        {seed !== null && exchange.progress.value === "complete" && (
          <button type="button" class="quiet" disabled={session.current.value !== null}
            onClick={() => void session.repeat(turn, seed)}>
            Repeat with this seed
          </button>
        )}
        <CopyButton label="Copy as curl" text={() => asCurl(request, location.origin, hasKey)} />
        <CopyButton label="Copy as Python" text={() => asPython(request, location.origin, hasKey)} />
      </div>
      {explanation && (
        <details>
          <summary>Timing and reproduction</summary>
          <ExplanationView explanation={explanation} fingerprint={fingerprint} />
        </details>
      )}
    </div>
  );
}

function summaryOf(exchange: Exchange): string {
  const { usage, explanation, choices } = exchange.answer.value;
  const first = exchange.firstTokenSeconds.value;
  const details = usage?.prompt_tokens_details;
  const reasoning = usage?.completion_tokens_details?.reasoning_tokens ?? 0;
  const parts = [
    exchange.progress.value === "stopped" && "Stopped",
    usage && counted(usage.completion_tokens, "token"),
    explanation && speed(explanation),
    first !== null && `first token after ${duration(first)}`,
    usage && details && `${count(details.cached_tokens)} of ${counted(usage.prompt_tokens, "prompt token")} cached`,
    reasoning > 0 && `${count(reasoning)} for reasoning`,
    choices[0]?.finish && `finish reason: ${choices[0].finish}`,
  ];
  return parts.filter(Boolean).join(" · ");
}

/** Return the decoding speed. It excludes the time to the first token, which is shown separately. */
function speed(explanation: Explanation): string {
  const choices = explanation.requests.flatMap((request) => request.choices);
  const tokens = choices.reduce((sum, choice) => sum + Math.max(0, choice.tokens - 1), 0);
  const seconds = Math.max(...choices.map((choice) => choice.decode_seconds));
  return seconds > 0 && tokens > 0 ? `${(tokens / seconds).toFixed(1)} tokens/s` : "";
}
