// Formats a request as a curl command or a Python program. Neither contains the API key.

import { withSeed } from "../api/wire";
import type { RequestContext } from "./settings";

// Fields for which OpenAI's client has no argument.
const EXTENSIONS = {
  chat: ["top_k", "min_p", "repetition_penalty"],
  completions: ["top_k", "min_p", "repetition_penalty", "response_format"],
};

export function asCurl(request: RequestContext, origin: string, hasKey: boolean): string {
  const lines = [
    `curl -sN ${origin}${request.path}`,
    "  -H 'Content-Type: application/json'",
    ...(hasKey ? ['  -H "Authorization: Bearer $OCTAVO_API_KEY"'] : []),
    `  -d '${withSeed({ ...request.body, stream: true }, request.seed, 2).replaceAll("'", "'\\''")}'`,
  ];
  return lines.join(" \\\n");
}

export function asPython(request: RequestContext, origin: string, hasKey: boolean): string {
  const own: [string, unknown][] = [];
  const extra: [string, unknown][] = [];
  for (const [name, value] of Object.entries(request.body)) {
    (EXTENSIONS[request.mode].includes(name) ? extra : own).push([name, value]);
  }
  const isChat = request.mode === "chat";
  const call = isChat ? "client.chat.completions.create" : "client.completions.create";
  const text = isChat ? "chunk.choices[0].delta.content" : "chunk.choices[0].text";
  return [
    ...(hasKey ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url="${origin}/v1", api_key=${hasKey ? 'os.environ["OCTAVO_API_KEY"]' : '"none"'})`,
    `stream = ${call}(`,
    ...own.map(([name, value]) => `    ${name}=${pythonOf(value)},`),
    ...(request.seed === null ? [] : [`    seed=${request.seed},`]),
    ...(extra.length === 0 ? [] : [`    extra_body=${pythonOf(Object.fromEntries(extra))},`]),
    "    stream=True,",
    ")",
    "for chunk in stream:",
    "    if chunk.choices:",
    `        print(${text} or "", end="", flush=True)`,
    "print()",
    "",
  ].join("\n");
}

/** Return a JSON value as a Python literal. Every JSON string is also a valid Python string. */
function pythonOf(value: unknown): string {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(pythonOf).join(", ")}]`;
  if (typeof value === "object") {
    const entries = Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${pythonOf(item)}`);
    return `{${entries.join(", ")}}`;
  }
  return JSON.stringify(value);
}
