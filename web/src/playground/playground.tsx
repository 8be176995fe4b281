// The playground tab: conversation, message box and request parameters.

import { useEffect, useRef } from "preact/hooks";
import { Conversation } from "./conversation";
import { Parameters } from "./parameters";
import type { Session } from "./session";
import type { Mode } from "./settings";

const WIDE = "(min-width: 900px)"; // as in the style sheet: wide enough to show the parameters

export function Playground({ session }: { session: Session }) {
  return (
    <div class="playground">
      <section class="talk" aria-label="Playground">
        <h2 class="hidden">Playground</h2>
        <Bar session={session} />
        <Conversation session={session} />
        <Composer session={session} />
      </section>
      <aside aria-label="Request parameters">
        <details class="panel drawer" open={matchMedia(WIDE).matches}>
          <summary>Parameters</summary>
          <Parameters session={session} />
        </details>
      </aside>
    </div>
  );
}

const MODES: readonly { mode: Mode; label: string }[] = [
  { mode: "chat", label: "Chat" },
  { mode: "completions", label: "Completion" },
];

function Bar({ session }: { session: Session }) {
  return (
    <div class="bar">
      <fieldset class="segments">
        <legend class="hidden">Request type</legend>
        {MODES.map(({ mode, label }) => (
          <label key={mode}>
            <input type="radio" name="mode" value={mode} checked={session.mode.value === mode}
              disabled={session.current.value !== null} onChange={() => (session.mode.value = mode)} />
            <span>{label}</span>
          </label>
        ))}
      </fieldset>
      <label class="check">
        <input type="checkbox" checked={session.showsTokens.value}
          onChange={(event) => (session.showsTokens.value = event.currentTarget.checked)} />
        Show tokens
      </label>
      {session.showsTokens.value && (
        <span class="scale" aria-hidden="true">
          expected <span class="scale-bar" /> surprising
        </span>
      )}
      <button type="button" class="quiet end" disabled={session.turns.value.length === 0} onClick={() => session.clear()}>
        {session.mode.value === "chat" ? "New chat" : "Clear"}
      </button>
    </div>
  );
}

function Composer({ session }: { session: Session }) {
  const box = useRef<HTMLTextAreaElement>(null);
  const isRunning = session.current.value !== null;
  const isChat = session.mode.value === "chat";
  const draft = session.draft.value;

  useEffect(() => {
    if (!box.current) return;
    box.current.style.height = "auto";
    box.current.style.height = `${Math.min(box.current.scrollHeight + 2, 220)}px`;
  }, [draft]);

  const byKey = (event: KeyboardEvent) => {
    if (event.key === "Escape" && isRunning) session.stop();
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    void session.ask();
  };
  return (
    <form class="composer" aria-label="Your question" onSubmit={(event) => { event.preventDefault(); void session.ask(); }}>
      {session.problem.value && <p class="failure" role="alert">{session.problem.value}</p>}
      <div class="composer-row">
        <textarea ref={box} rows={1} value={draft} aria-label={isChat ? "Message" : "Prompt"}
          placeholder={isChat ? "Write a message" : "Write a text for the model to complete"}
          onInput={(event) => (session.draft.value = event.currentTarget.value)} onKeyDown={byKey} />
        {isRunning ? (
          <button type="button" class="primary stop" onClick={() => session.stop()}>Stop</button>
        ) : (
          <button type="submit" class="primary" disabled={draft.trim() === ""}>Send</button>
        )}
      </div>
      <p class="keys small muted">Enter sends, Shift+Enter starts a new line, Escape stops the answer.</p>
      <p class="hidden" role="status">{session.announcement.value}</p>
    </form>
  );
}
