// The settings of a request as typed, and the request body built from them.

import type { ChatBody, ChatMessage, CompletionBody, ResponseFormat, SamplingFields, Seed } from "../api/types";

export type Mode = "chat" | "completions";
export type FormatKind = "text" | "json_object" | "json_schema";

/** Numbers are kept as typed: for an empty field, the server's default applies. */
export interface Settings {
  system: string;
  temperature: string;
  top_p: string;
  top_k: string;
  min_p: string;
  max_tokens: string;
  seed: string;
  presence_penalty: string;
  frequency_penalty: string;
  repetition_penalty: string;
  n: string;
  stop: string; // one per line
  alternatives: string; // number of alternatives per token; empty: no probabilities
  format: FormatKind;
  schema: string;
}

export const DEFAULT_SETTINGS: Settings = {
  system: "",
  temperature: "",
  top_p: "",
  top_k: "",
  min_p: "",
  max_tokens: "256",
  seed: "",
  presence_penalty: "",
  frequency_penalty: "",
  repetition_penalty: "",
  n: "",
  stop: "",
  alternatives: "5",
  format: "text",
  schema: `{
  "type": "object",
  "properties": {
    "name": { "type": "string" },
    "number": { "type": "integer" }
  },
  "required": ["name", "number"],
  "additionalProperties": false
}`,
};

export type NumberSetting =
  | "temperature" | "top_p" | "top_k" | "min_p" | "max_tokens"
  | "presence_penalty" | "frequency_penalty" | "repetition_penalty" | "n" | "alternatives";

/** A request without its streaming fields. */
export type RequestContext =
  | { mode: "chat"; path: "/v1/chat/completions"; body: ChatBody; seed: Seed | null }
  | { mode: "completions"; path: "/v1/completions"; body: CompletionBody; seed: Seed | null };

/** An invalid setting. Only syntax is checked here; the server validates the values. */
export class SettingsError extends Error {}

export function chatRequest(settings: Settings, model: string | null, messages: ChatMessage[]): RequestContext {
  const alternatives = numberOf(settings, "alternatives");
  const maxTokens = numberOf(settings, "max_tokens");
  const system: ChatMessage[] = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
  const body: ChatBody = {
    ...(model === null ? {} : { model }),
    messages: [...system, ...messages],
    ...(maxTokens === null ? {} : { max_completion_tokens: maxTokens }),
    ...samplingFields(settings),
    ...(alternatives === null ? {} : { logprobs: true, top_logprobs: alternatives }),
  };
  return { mode: "chat", path: "/v1/chat/completions", body, seed: seedOf(settings) };
}

export function completionRequest(settings: Settings, model: string | null, prompt: string): RequestContext {
  const alternatives = numberOf(settings, "alternatives");
  const maxTokens = numberOf(settings, "max_tokens");
  const body: CompletionBody = {
    ...(model === null ? {} : { model }),
    prompt,
    ...(maxTokens === null ? {} : { max_tokens: maxTokens }),
    ...samplingFields(settings),
    ...(alternatives === null ? {} : { logprobs: alternatives }),
  };
  return { mode: "completions", path: "/v1/completions", body, seed: seedOf(settings) };
}

const SAMPLING_NUMBERS = [
  "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "n",
] as const;

function samplingFields(settings: Settings): SamplingFields {
  const fields: SamplingFields = {};
  for (const name of SAMPLING_NUMBERS) {
    const value = numberOf(settings, name);
    if (value !== null) fields[name] = value;
  }
  const stop = settings.stop.split("\n").filter((line) => line !== "");
  if (stop.length > 0) fields.stop = stop;
  const format = formatOf(settings);
  if (format !== null) fields.response_format = format;
  return fields;
}

function formatOf(settings: Settings): ResponseFormat | null {
  if (settings.format === "text") return null;
  if (settings.format === "json_object") return { type: "json_object" };
  return { type: "json_schema", json_schema: { name: "answer", schema: schemaOf(settings.schema) } };
}

function schemaOf(text: string): Record<string, unknown> {
  let schema: unknown;
  try {
    schema = JSON.parse(text);
  } catch (error) {
    throw new SettingsError(`The JSON schema is not valid JSON: ${(error as Error).message}`);
  }
  if (typeof schema !== "object" || schema === null || Array.isArray(schema)) {
    throw new SettingsError("The JSON schema must be an object.");
  }
  return schema as Record<string, unknown>;
}

function numberOf(settings: Settings, name: NumberSetting): number | null {
  const typed = settings[name].trim();
  if (typed === "") return null;
  const value = Number(typed);
  if (!Number.isFinite(value)) throw new SettingsError(`${name}: “${typed}” is not a number.`);
  return value;
}

function seedOf(settings: Settings): Seed | null {
  const typed = settings.seed.trim();
  if (typed === "") return null;
  if (!/^-?\d+$/.test(typed)) throw new SettingsError(`seed: “${typed}” is not an integer.`);
  return BigInt(typed).toString(); // JSON allows no leading zeros
}
