// Polls the server until it is ready and reports which model it serves.

import { signal } from "@preact/signals";
import { asFailure, RequestFailed, type Client } from "../api/client";
import type { ModelList, Readiness } from "../api/types";

const POLL_SECONDS = 1;

export type ServerState =
  | { kind: "connecting" }
  | { kind: "loading"; text: string }
  | { kind: "locked" } // the server requires a key
  | { kind: "ready"; model: string; maxModelLen: number | null }
  | { kind: "unavailable"; text: string };

export class ServerWatch {
  readonly state = signal<ServerState>({ kind: "connecting" });
  readonly model = signal<string | null>(null);

  constructor(private readonly client: Client) {}

  async watch(): Promise<void> {
    for (;;) {
      this.state.value = await this.#poll();
      if (this.state.value.kind === "ready" || this.state.value.kind === "locked") break;
      await new Promise((resolve) => setTimeout(resolve, POLL_SECONDS * 1000));
    }
    if (this.state.value.kind === "ready") this.model.value = this.state.value.model;
  }

  async #poll(): Promise<ServerState> {
    try {
      const ready = await readiness();
      if (ready.status !== "ready") return { kind: "loading", text: progressText(ready) };
      const [model] = (await this.client.getJson<ModelList>("/v1/models")).data;
      if (model === undefined) return { kind: "unavailable", text: "The server has no model." };
      return { kind: "ready", model: model.id, maxModelLen: model.max_model_len ?? null };
    } catch (error) {
      if (error instanceof RequestFailed && error.failure.status === 401) return { kind: "locked" };
      return { kind: "unavailable", text: asFailure(error).message };
    }
  }
}

/** Return the readiness. Status 503 is not an error here: the server is not ready yet. */
async function readiness(): Promise<Readiness> {
  try {
    return (await (await fetch("/readyz", { cache: "no-store" })).json()) as Readiness;
  } catch {
    throw new Error("The server cannot be reached. Is it running?");
  }
}

function progressText(ready: Readiness): string {
  const share = ready.progress === undefined ? "" : ` ${Math.round(ready.progress * 100)} %`;
  return `${ready.phase ?? ready.status}${share}`;
}
