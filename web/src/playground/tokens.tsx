// The tokens of an answer, shaded by probability, with their alternatives.

import { memo } from "preact/compat";
import { useId, useRef, useState } from "preact/hooks";
import { percent } from "../parts/format";
import type { Alternative, Token } from "./answer";

const GROUP = 64; // tokens rendered together: a full group is not rendered again

/** A single tab stop; the arrow keys move from token to token. */
export function Tokens({ tokens, label }: { tokens: readonly Token[]; label: string }) {
  const box = useRef<HTMLDivElement>(null);
  const id = useId();
  const [chosen, setChosen] = useState<number | null>(null);
  const [place, setPlace] = useState<Record<string, string>>({});

  const show = (index: number | null) => {
    setChosen(index);
    if (index !== null && box.current) setPlace(placeOf(index, box.current));
  };
  const byPointer = (event: Event) => {
    const index = (event.target as HTMLElement).dataset.index;
    if (index !== undefined) show(Number(index));
  };
  const byKey = (event: KeyboardEvent) => {
    const next = nextIndex(event.key, chosen, tokens.length);
    if (next === undefined) return;
    event.preventDefault();
    show(next);
  };
  const groups = Array.from({ length: Math.ceil(tokens.length / GROUP) }, (_, index) => index * GROUP);
  const token = chosen === null ? undefined : tokens[chosen];
  return (
    <div class="tokens-box" ref={box} onPointerLeave={() => show(null)}>
      <div
        class="tokens"
        role="listbox"
        aria-label={label}
        aria-activedescendant={chosen === null ? undefined : `${id}-${chosen}`}
        tabIndex={0}
        onPointerOver={byPointer}
        onClick={byPointer}
        onKeyDown={byKey}
        onFocus={() => chosen === null && tokens.length > 0 && show(0)}
        onBlur={() => show(null)}
      >
        {groups.map((start) => (
          <TokenGroup key={start} tokens={tokens} start={start} end={Math.min(start + GROUP, tokens.length)}
            id={id} chosen={chosen !== null && chosen >= start && chosen < start + GROUP ? chosen : null} />
        ))}
      </div>
      {token && <TokenDetails token={token} place={place} />}
    </div>
  );
}

interface GroupProps {
  tokens: readonly Token[]; // all tokens of the answer; the list only grows
  start: number;
  end: number;
  id: string;
  chosen: number | null;
}

const TokenGroup = memo(
  ({ tokens, start, end, id, chosen }: GroupProps) => (
    <>
      {tokens.slice(start, end).map((token, offset) => (
        <span
          key={start + offset}
          id={`${id}-${start + offset}`}
          class="token"
          role="option"
          aria-selected={chosen === start + offset}
          aria-label={describe(token)}
          data-index={start + offset}
          style={{ "--surprise": surprise(token.logprob).toFixed(3) }}
        >
          {visible(token.text)}
        </span>
      ))}
    </>
  ),
  (before, now) => before.start === now.start && before.end === now.end && before.chosen === now.chosen,
);

function TokenDetails({ token, place }: { token: Token; place: Record<string, string> }) {
  const others = token.alternatives.some((one) => one.text === token.text)
    ? token.alternatives
    : [...token.alternatives, token];
  return (
    <div class="token-details" style={place} aria-hidden="true">
      <p>
        <code>{quoted(token.text)}</code> <b>{percent(Math.exp(token.logprob))}</b>
        <span class="muted"> log {token.logprob.toFixed(3)}</span>
      </p>
      <ol>
        {others.map((one, index) => (
          <AlternativeRow key={index} alternative={one} isChosen={one.text === token.text} />
        ))}
      </ol>
    </div>
  );
}

function AlternativeRow({ alternative, isChosen }: { alternative: Alternative; isChosen: boolean }) {
  const share = Math.exp(alternative.logprob);
  return (
    <li class={isChosen ? "alternative chosen" : "alternative"}>
      <code>{quoted(alternative.text)}</code>
      <span class="share"><span style={{ inlineSize: `${share * 100}%` }} /></span>
      <span class="number">{percent(share)}</span>
    </li>
  );
}

/** Return the shade of a token, from 0 (certain) to 1 (very improbable). A probability of 0.001 gives 0.75. */
function surprise(logprob: number): number {
  return Math.min(1, -logprob / 9.2);
}

function visible(text: string): string {
  return text === "" ? "␀" : text.replaceAll("\n", "↵\n").replaceAll("\t", "⇥\t");
}

function quoted(text: string): string {
  return JSON.stringify(text).slice(1, -1).replaceAll(" ", "␣");
}

function describe(token: Token): string {
  const others = token.alternatives
    .filter((one) => one.text !== token.text)
    .map((one) => `${JSON.stringify(one.text)} ${percent(Math.exp(one.logprob))}`);
  const instead = others.length === 0 ? "" : `; alternatives: ${others.join(", ")}`;
  return `${JSON.stringify(token.text)} ${percent(Math.exp(token.logprob))}${instead}`;
}

function nextIndex(key: string, chosen: number | null, length: number): number | null | undefined {
  if (key === "ArrowRight" || key === "ArrowDown") return Math.min(length - 1, (chosen ?? -1) + 1);
  if (key === "ArrowLeft" || key === "ArrowUp") return Math.max(0, (chosen ?? 1) - 1);
  if (key === "Home") return 0;
  if (key === "End") return length - 1;
  return key === "Escape" ? null : undefined;
}

/** Return the position of the details: below the token, within the box. */
function placeOf(index: number, box: HTMLElement): Record<string, string> {
  const token = box.querySelector<HTMLElement>(`[data-index="${index}"]`);
  const rect = token?.getClientRects()[0];
  if (!rect) return {};
  const outer = box.getBoundingClientRect();
  const left = Math.max(0, Math.min(rect.left - outer.left, outer.width - 270));
  return { left: `${left}px`, top: `${rect.bottom - outer.top + 6}px` };
}
