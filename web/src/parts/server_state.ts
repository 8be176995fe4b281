// Is the server there, and what does it serve? Asked until it is ready, and not after that.

import { signal } from "@preact/signals";
import { asFailure, RequestFailed, type Client } from "../api/client";
import type { ModelList, Readiness } from "../api/types";

const SECONDS_BETWEEN = 1;

export type ServerState =
  | { kind: "asking" }
  | { kind: "loading"; words: string }
  | { kind: "locked" } // the server wants a key
  | { kind: "ready"; model: string; maxModelLen: number | null }
  | { kind: "away"; words: string };

export class ServerWatch {
  readonly state = signal<ServerState>({ kind: "asking" });
  readonly model = signal<string | null>(null);

  constructor(private readonly client: Client) {}

  async watch(): Promise<void> {
    for (;;) {
      this.state.value = await this.#look();
      if (this.state.value.kind === "ready" || this.state.value.kind === "locked") break;
      await new Promise((resolve) => setTimeout(resolve, SECONDS_BETWEEN * 1000));
    }
    if (this.state.value.kind === "ready") this.model.value = this.state.value.model;
  }

  async #look(): Promise<ServerState> {
    try {
      const ready = await readiness();
      if (ready.status !== "ready") return { kind: "loading", words: inWords(ready) };
      const [model] = (await this.client.getJson<ModelList>("/v1/models")).data;
      if (model === undefined) return { kind: "away", words: "The server has no model." };
      return { kind: "ready", model: model.id, maxModelLen: model.max_model_len ?? null };
    } catch (error) {
      if (error instanceof RequestFailed && error.failure.status === 401) return { kind: "locked" };
      return { kind: "away", words: asFailure(error).message };
    }
  }
}

/** Says 503 while it is not ready, which is no failure to us. */
async function readiness(): Promise<Readiness> {
  try {
    return (await (await fetch("/readyz", { cache: "no-store" })).json()) as Readiness;
  } catch {
    throw new Error("The server cannot be reached. Is it running?");
  }
}

function inWords(ready: Readiness): string {
  const share = ready.progress === undefined ? "" : ` ${Math.round(ready.progress * 100)} %`;
  return `${ready.phase ?? ready.status}${share}`;
}
