// The frame of the page: server state, tabs, API key and colour theme.

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { Client } from "./api/client";
import { Engine } from "./engine/engine";
import type { Feed } from "./engine/feed";
import type { ServerWatch } from "./parts/server_state";
import type { Theme, ThemeChoice } from "./parts/theme";
import { Playground } from "./playground/playground";
import type { Session } from "./playground/session";

export interface AppProps {
  client: Client;
  server: ServerWatch;
  session: Session;
  feed: Feed;
  theme: ThemeChoice;
}

const TABS = [
  { id: "playground", label: "Playground" },
  { id: "engine", label: "Engine" },
] as const;
type TabId = (typeof TABS)[number]["id"];

function tabInAddress(): TabId {
  return TABS.find(({ id }) => `#${id}` === location.hash)?.id ?? "playground";
}

export function App({ client, server, session, feed, theme }: AppProps) {
  const tab = useSignal<TabId>(tabInAddress());
  useEffect(() => {
    void server.watch();
    const follow = () => (tab.value = tabInAddress());
    window.addEventListener("hashchange", follow);
    return () => window.removeEventListener("hashchange", follow);
  }, [server, tab]);

  const isLocked = client.isRejected.value;
  return (
    <>
      <a class="skip" href="#main">Skip to content</a>
      <header>
        <h1>Octavo</h1>
        <ServerLine server={server} />
        <nav aria-label="Views" class="tabs">
          {TABS.map(({ id, label }) => (
            <a key={id} href={`#${id}`} aria-current={tab.value === id ? "page" : undefined}>{label}</a>
          ))}
        </nav>
        <ThemeButton theme={theme} />
      </header>
      <main id="main" tabIndex={-1}>
        {(isLocked || client.key.value !== "") && <KeyForm client={client} server={server} isLocked={isLocked} />}
        {tab.value === "playground" ? (
          <Playground session={session} />
        ) : (
          // A new key reopens the feed.
          <Engine key={client.key.value} feed={feed} theme={theme} />
        )}
      </main>
    </>
  );
}

function ServerLine({ server }: { server: ServerWatch }) {
  const state = server.state.value;
  const text = {
    connecting: "connecting…",
    loading: state.kind === "loading" ? state.text : "",
    locked: "API key required",
    ready: state.kind === "ready" ? state.model : "",
    unavailable: state.kind === "unavailable" ? state.text : "",
  }[state.kind];
  return (
    <p class="server" role="status">
      <span class={`dot dot-${state.kind}`} aria-hidden="true" />
      <span class="hidden">Model: </span>{text}
    </p>
  );
}

interface KeyFormProps {
  client: Client;
  server: ServerWatch;
  isLocked: boolean;
}

/** A form while the server requires a key, otherwise a button that forgets the key. */
function KeyForm({ client, server, isLocked }: KeyFormProps) {
  const typed = useSignal("");
  if (!isLocked) {
    return (
      <p class="key-line small">
        This tab uses your API key.{" "}
        <button type="button" class="quiet" onClick={() => client.useKey("")}>Forget the key</button>
      </p>
    );
  }
  const use = (event: Event) => {
    event.preventDefault();
    client.useKey(typed.value.trim());
    void server.watch();
  };
  return (
    <form class="panel key-form" onSubmit={use} aria-label="API key">
      <h2>{client.key.value ? "The server rejected this API key" : "This server requires an API key"}</h2>
      <p>
        Enter one of the keys that the server was started with (<code>--api-key</code>, <code>--api-key-file</code> or{" "}
        <code>OCTAVO_API_KEY</code>). It is stored in this tab only and deleted when you close the tab.
      </p>
      <div class="composer-row">
        <input type="password" aria-label="API key" autocomplete="off" required value={typed.value}
          onInput={(event) => (typed.value = event.currentTarget.value)} />
        <button type="submit" class="primary">Use this key</button>
      </div>
    </form>
  );
}

const THEME_LABELS: Record<Theme, string> = { system: "Auto", light: "Light", dark: "Dark" };

function ThemeButton({ theme }: { theme: ThemeChoice }) {
  const label = THEME_LABELS[theme.chosen.value];
  return (
    <button type="button" class="quiet theme" aria-label={`Colours: ${label}. Change`} onClick={() => theme.next()}>
      <svg viewBox="0 0 16 16" width="14" height="14" aria-hidden="true">
        <circle cx="8" cy="8" r="6.5" fill="none" stroke="currentColor" stroke-width="1.5" />
        <path d="M8 1.5a6.5 6.5 0 0 1 0 13z" fill="currentColor" />
      </svg>
      {label}
    </button>
  );
}
