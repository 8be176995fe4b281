// The HTTP client of this page: sends the API key and turns error responses into `RequestFailed`.

import { signal } from "@preact/signals";
import type { ApiErrorBody } from "./types";
import { parsed } from "./wire";

const STORED_KEY = "octavo-key";

export interface Failure {
  message: string;
  status: number | null;
  code: string | null;
  param: string | null;
  requestId: string | null;
}

export class RequestFailed extends Error {
  constructor(readonly failure: Failure) {
    super(failure.message);
  }
}

/** Keeps the API key in the session storage of this tab; the browser deletes it when the tab closes. */
export class Client {
  readonly key = signal(sessionStorage.getItem(STORED_KEY) ?? "");
  /** The server requires a key, or has rejected the one it got. */
  readonly isRejected = signal(false);

  useKey(key: string): void {
    this.key.value = key;
    this.isRejected.value = false;
    if (key) sessionStorage.setItem(STORED_KEY, key);
    else sessionStorage.removeItem(STORED_KEY);
  }

  async getJson<Value>(path: string, signal?: AbortSignal): Promise<Value> {
    const response = await this.#send(path, signal ? { signal } : {});
    return parsed<Value>(await response.text());
  }

  /** Return the body of a streamed response. With `body`, which is JSON, the request is a POST. */
  async stream(path: string, signal: AbortSignal, body?: string): Promise<ReadableStream<Uint8Array>> {
    const response = await this.#send(path, body === undefined ? { signal } : { signal, body, method: "POST" });
    if (response.body === null) throw new RequestFailed(unexpected(response, "the response of the server has no body"));
    return response.body;
  }

  async #send(path: string, init: RequestInit): Promise<Response> {
    const headers = new Headers({ "Content-Type": "application/json" });
    if (this.key.value) headers.set("Authorization", `Bearer ${headerSafe(this.key.value)}`);
    const response = await reached(fetch(path, { ...init, headers, cache: "no-store" }));
    if (response.ok) return response;
    if (response.status === 401) this.isRejected.value = true;
    throw new RequestFailed(await failureOf(response));
  }
}

export function asFailure(error: unknown): Failure {
  if (error instanceof RequestFailed) return error.failure;
  const message = error instanceof Error ? error.message : String(error);
  return { message, status: null, code: null, param: null, requestId: null };
}

/** Convert an error event that ends a stream. */
export function failureInStream(body: ApiErrorBody): Failure {
  const { message, code, param } = body.error;
  return { message, status: null, code, param, requestId: null };
}

async function reached(response: Promise<Response>): Promise<Response> {
  try {
    return await response;
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new RequestFailed({
      message: "The server cannot be reached. Is it running?",
      status: null,
      code: null,
      param: null,
      requestId: null,
    });
  }
}

async function failureOf(response: Response): Promise<Failure> {
  try {
    const { error } = parsed<ApiErrorBody>(await response.text());
    return { ...unexpected(response, error.message), code: error.code, param: error.param };
  } catch {
    return unexpected(response, `the server returned status ${response.status}`);
  }
}

function unexpected(response: Response, message: string): Failure {
  const requestId = response.headers.get("x-request-id");
  return { message, status: response.status, code: null, param: null, requestId };
}

/** Replace characters that a header cannot carry, so that the server rejects a mistyped key instead of fetch() throwing. */
function headerSafe(key: string): string {
  return key.replace(/[^\x20-\x7e]/g, "?").trim();
}
