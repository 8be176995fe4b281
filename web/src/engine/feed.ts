// The engine's own account of itself, read only while somebody looks at it.

import { signal } from "@preact/signals";
import { asFailure, RequestFailed, type Client, type Failure } from "../api/client";
import { eventsOf } from "../api/events";
import type { EngineEvent, FactsEvent, FeedEvent, ViewEvent } from "../api/types";
import { parsed } from "../api/wire";
import { after, NO_HISTORY, withNewEngine } from "./history";

const PATH = "/octavo/view?interval=0.25";
const FIRST_RETRY_SECONDS = 0.5;
const LAST_RETRY_SECONDS = 8;

export type Connection = "closed" | "opening" | "live" | "paused" | "broken";

export class Feed {
  readonly connection = signal<Connection>("closed");
  readonly failure = signal<Failure | null>(null);
  readonly facts = signal<FactsEvent | null>(null);
  readonly engine = signal<EngineEvent | null>(null); // not null: there is none to show
  readonly view = signal<ViewEvent | null>(null);
  readonly history = signal(NO_HISTORY);
  #abort: AbortController | null = null;

  constructor(private readonly client: Client) {}

  /** Until the function it returns is called. Nothing is read while the tab is hidden. */
  watch(): () => void {
    const look = () => (document.hidden ? this.#close("paused") : this.#open());
    document.addEventListener("visibilitychange", look);
    look();
    return () => {
      document.removeEventListener("visibilitychange", look);
      this.#close("closed");
    };
  }

  #open(): void {
    if (this.#abort !== null) return;
    this.#abort = new AbortController();
    void this.#readOn(this.#abort.signal);
  }

  #close(connection: Connection): void {
    this.#abort?.abort();
    this.#abort = null;
    this.connection.value = connection;
  }

  /** Again and again: a server that is restarted comes back. */
  async #readOn(signal: AbortSignal): Promise<void> {
    let patience = FIRST_RETRY_SECONDS;
    while (!signal.aborted) {
      this.connection.value = "opening";
      try {
        for await (const data of eventsOf(await this.client.stream(PATH, signal))) {
          if (signal.aborted) return;
          this.connection.value = "live";
          this.failure.value = null;
          patience = FIRST_RETRY_SECONDS;
          this.#take(parsed<FeedEvent>(data));
        }
        if (signal.aborted) return;
        this.connection.value = "broken";
      } catch (error) {
        if (signal.aborted) return;
        this.connection.value = "broken";
        this.failure.value = asFailure(error);
        if (error instanceof RequestFailed && error.failure.status === 401) break; // a new key opens it again
      }
      await new Promise((resolve) => setTimeout(resolve, patience * 1000));
      patience = Math.min(2 * patience, LAST_RETRY_SECONDS);
    }
    if (this.#abort?.signal === signal) this.#abort = null;
  }

  #take(event: FeedEvent): void {
    if (event.kind === "facts") {
      this.facts.value = event;
      this.engine.value = null;
      this.history.value = withNewEngine(this.history.value);
    } else if (event.kind === "engine") {
      this.engine.value = event.state === "serving" ? null : event;
    } else {
      this.engine.value = null;
      this.view.value = event;
      this.history.value = after(this.history.value, event);
    }
  }
}
