// One request and its answer.

import { signal } from "@preact/signals";
import { asFailure, failureInStream, type Client, type Failure } from "../api/client";
import { eventsOf } from "../api/events";
import type { ApiErrorBody, Chunk, StreamFields } from "../api/types";
import { parsed, withSeed } from "../api/wire";
import { EMPTY_ANSWER, extended } from "./answer";
import type { RequestContext } from "./settings";

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

  constructor(readonly request: RequestContext) {}

  /** Resolves when the answer is complete, stopped or failed. */
  async run(client: Client): Promise<void> {
    const start = performance.now();
    try {
      await this.#read(client, start);
      this.progress.value = this.failure.value === null ? "complete" : "failed";
    } catch (error) {
      if (this.#abort.signal.aborted) {
        this.progress.value = "stopped";
      } else {
        this.failure.value = asFailure(error);
        this.progress.value = "failed";
      }
    }
    this.seconds.value = (performance.now() - start) / 1000;
  }

  /** Close the connection; the server then cancels the request. */
  stop(): void {
    this.#abort.abort();
  }

  async #read(client: Client, start: number): Promise<void> {
    const json = withSeed({ ...this.request.body, ...STREAMED }, this.request.seed);
    const body = await client.stream(this.request.path, this.#abort.signal, json);
    for await (const data of eventsOf(body)) {
      if (data === END) return;
      const event = parsed<Chunk | ApiErrorBody>(data);
      if ("error" in event) {
        this.failure.value = failureInStream(event);
        return;
      }
      this.firstTokenSeconds.value ??= (performance.now() - start) / 1000;
      this.answer.value = extended(this.answer.value, event);
    }
    throw new Error("The connection was closed before the answer was complete.");
  }
}
