// A request of this page, as a command or a program. The key itself is never in it.

import { withSeed } from "../api/wire";
import type { Asked } from "./settings";

// Fields that OpenAI's client has no argument for.
const EXTENSIONS = {
  chat: ["top_k", "min_p", "repetition_penalty"],
  completions: ["top_k", "min_p", "repetition_penalty", "response_format"],
};

export function asCurl(asked: Asked, origin: string, hasKey: boolean): string {
  const lines = [
    `curl -sN ${origin}${asked.path}`,
    "  -H 'Content-Type: application/json'",
    ...(hasKey ? ['  -H "Authorization: Bearer $OCTAVO_API_KEY"'] : []),
    `  -d '${withSeed({ ...asked.body, stream: true }, asked.seed, 2).replaceAll("'", "'\\''")}'`,
  ];
  return lines.join(" \\\n");
}

export function asPython(asked: Asked, origin: string, hasKey: boolean): string {
  const own: [string, unknown][] = [];
  const extra: [string, unknown][] = [];
  for (const [name, value] of Object.entries(asked.body)) {
    (EXTENSIONS[asked.mode].includes(name) ? extra : own).push([name, value]);
  }
  const isChat = asked.mode === "chat";
  const call = isChat ? "client.chat.completions.create" : "client.completions.create";
  const text = isChat ? "chunk.choices[0].delta.content" : "chunk.choices[0].text";
  return [
    ...(hasKey ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url="${origin}/v1", api_key=${hasKey ? 'os.environ["OCTAVO_API_KEY"]' : '"none"'})`,
    `stream = ${call}(`,
    ...own.map(([name, value]) => `    ${name}=${pythonOf(value)},`),
    ...(asked.seed === null ? [] : [`    seed=${asked.seed},`]),
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

/** A JSON value as a Python literal. Python understands every string that JSON has. */
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
