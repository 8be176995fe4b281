// One request and its answer.

import { signal } from "@preact/signals";
import { asFailure, failureInStream, type Client, type Failure } from "../api/client";
import { eventsOf } from "../api/events";
import type { ApiErrorBody, Chunk, StreamFields } from "../api/types";
import { parsed, withSeed } from "../api/wire";
import { EMPTY_ANSWER, extended } from "./answer";
import type { Asked } from "./settings";

export type Progress = "running" | "complete" | "stopped" | "failed";

const STREAMED: StreamFields = { stream: true, stream_options: { include_usage: true }, octavo: true };
const END = "[DONE]";

export class Exchange {
  readonly answer = signal(EMPTY_ANSWER);
  readonly progress = signal<Progress>("running");
  readonly failure = signal<Failure | null>(null);
  readonly firstTokenSeconds = signal<number | null>(null);
  readonly seconds = signal<number | null>(null);
  readonly #abort = new AbortController();

  constructor(readonly asked: Asked) {}

  /** Resolves when the answer is over, however it has ended. */
  async run(client: Client): Promise<void> {
    const began = performance.now();
    try {
      await this.#read(client, began);
      this.progress.value = this.failure.value === null ? "complete" : "failed";
    } catch (error) {
      if (this.#abort.signal.aborted) {
        this.progress.value = "stopped";
      } else {
        this.failure.value = asFailure(error);
        this.progress.value = "failed";
      }
    }
    this.seconds.value = (performance.now() - began) / 1000;
  }

  /** The server hears that the connection is closed, and gives up the request. */
  stop(): void {
    this.#abort.abort();
  }

  async #read(client: Client, began: number): Promise<void> {
    const json = withSeed({ ...this.asked.body, ...STREAMED }, this.asked.seed);
    const body = await client.stream(this.asked.path, this.#abort.signal, json);
    for await (const data of eventsOf(body)) {
      if (data === END) return;
      const event = parsed<Chunk | ApiErrorBody>(data);
      if ("error" in event) {
        this.failure.value = failureInStream(event);
        return;
      }
      this.firstTokenSeconds.value ??= (performance.now() - began) / 1000;
      this.answer.value = extended(this.answer.value, event);
    }
    throw new Error("The connection was closed before the answer was complete.");
  }
}
