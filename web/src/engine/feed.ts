// The live feed of the engine, open only while the engine tab is visible.

import { signal } from "@preact/signals";
import { asFailure, RequestFailed, type Client, type Failure } from "../api/client";
import { eventsOf } from "../api/events";
import type { EngineEvent, FactsEvent, FeedEvent, ViewEvent } from "../api/types";
import { parsed } from "../api/wire";
import { withFleet, type Fleet } from "./fleet";
import { after, NO_HISTORY, withNewEngine, withNewReplica } from "./history";

const PATH = "/octavo/view?interval=0.25";
const FIRST_RETRY_SECONDS = 0.5;
const MAX_RETRY_SECONDS = 8;

export type Connection = "closed" | "opening" | "live" | "paused" | "broken";

export class Feed {
  readonly connection = signal<Connection>("closed");
  readonly failure = signal<Failure | null>(null);
  readonly facts = signal<FactsEvent | null>(null);
  readonly engine = signal<EngineEvent | null>(null); // not null while no engine is serving
  readonly view = signal<ViewEvent | null>(null);
  readonly history = signal(NO_HISTORY);
  readonly fleet = signal<Fleet | null>(null);
  readonly chosen = signal<string | null>(null); // replica whose engine is shown; null: the server chooses
  readonly notice = signal<string | null>(null); // why the choice has changed
  #abort: AbortController | null = null;

  constructor(private readonly client: Client) {}

  /** Read the feed until the returned function is called. The connection is closed while the browser tab is hidden. */
  watch(): () => void {
    this.notice.value = null;
    const update = () => (document.hidden ? this.#close("paused") : this.#open());
    document.addEventListener("visibilitychange", update);
    update();
    return () => {
      document.removeEventListener("visibilitychange", update);
      this.#close("closed");
    };
  }

  /** Show the engine of a replica, or (null) of one that the server chooses. */
  choose(replica: string | null, notice: string | null = null): void {
    this.notice.value = notice;
    if (replica === this.chosen.value) return;
    this.chosen.value = replica;
    this.view.value = null;
    this.engine.value = null;
    this.#close("opening");
    this.#open();
  }

  get shownReplica(): string | null {
    return this.chosen.value ?? this.facts.value?.replica ?? null;
  }

  #open(): void {
    if (this.#abort !== null) return;
    this.#abort = new AbortController();
    void this.#readLoop(this.#abort.signal);
  }

  #close(connection: Connection): void {
    this.#abort?.abort();
    this.#abort = null;
    this.connection.value = connection;
  }

  /** Read events, and reconnect whenever the connection ends: the server may have been restarted. */
  async #readLoop(signal: AbortSignal): Promise<void> {
    let retrySeconds = FIRST_RETRY_SECONDS;
    while (!signal.aborted) {
      this.connection.value = "opening";
      try {
        for await (const data of eventsOf(await this.client.stream(this.#path, signal))) {
          if (signal.aborted) return;
          this.connection.value = "live";
          this.failure.value = null;
          retrySeconds = FIRST_RETRY_SECONDS;
          this.#handle(parsed<FeedEvent>(data));
        }
        if (signal.aborted) return;
        this.#break();
      } catch (error) {
        if (signal.aborted) return;
        this.#break();
        this.failure.value = asFailure(error);
        // The replica was removed, or the server was restarted without it.
        if (this.chosen.value !== null && this.failure.value.param === "replica") return this.#returnToAutomatic();
        // The key is invalid, or is no operator's: a new key reopens the feed.
        if (error instanceof RequestFailed && [401, 403].includes(error.failure.status ?? 0)) break;
      }
      await new Promise((resolve) => setTimeout(resolve, retrySeconds * 1000));
      retrySeconds = Math.min(2 * retrySeconds, MAX_RETRY_SECONDS);
    }
    if (this.#abort?.signal === signal) this.#abort = null;
  }

  #break(): void {
    this.connection.value = "broken";
    this.fleet.value = null; // the last states of the replicas would look like present ones
  }

  get #path(): string {
    return this.chosen.value === null ? PATH : `${PATH}&replica=${encodeURIComponent(this.chosen.value)}`;
  }

  #returnToAutomatic(): void {
    this.choose(null, `${this.chosen.value} was removed. The first usable replica is shown.`);
  }

  #handle(event: FeedEvent): void {
    if (event.kind === "fleet") {
      this.fleet.value = withFleet(this.fleet.value, event);
    } else if (event.kind === "facts") {
      const isSame = this.facts.value?.replica === event.replica;
      this.history.value = (isSame ? withNewEngine : withNewReplica)(this.history.value);
      this.facts.value = event;
      this.engine.value = null;
    } else if (event.kind === "engine") {
      if (event.state === "removed" && this.chosen.value !== null) return this.#returnToAutomatic();
      this.engine.value = event.state === "serving" ? null : event;
    } else {
      this.engine.value = null;
      this.view.value = event;
      this.history.value = after(this.history.value, event);
    }
  }
}
