// Anthropic's client for Node against a server at $URL: what it got goes to stdout as JSON.
import Anthropic from "@anthropic-ai/sdk";
import { readFileSync } from "node:fs";

const client = new Anthropic({ baseURL: process.env.URL, apiKey: "none", maxRetries: 0 });
const asked = { model: "scripted", max_tokens: 100, messages: [{ role: "user", content: "Hello" }] };
const text = (message) => message.content.filter((block) => block.type === "text").map((block) => block.text).join("");

const plain = text(await client.messages.create(asked));
const stream = client.messages.stream(asked);
let pieces = "";
stream.on("text", (piece) => (pieces += piece));
const last = await stream.finalMessage();

// The helper calls the tool, sends its result and goes on until the answer has no calls.
const calls = [];
const number = { type: "number" };
const add = {
  type: "custom",
  name: "add",
  description: "Add two numbers",
  input_schema: { type: "object", properties: { a: number, b: number }, required: ["a", "b"] },
  parse: (input) => input,
  run: (input) => {
    calls.push(input);
    return String(input.a + input.b);
  },
};
const answer = await client.beta.messages.toolRunner({ ...asked, tools: [add] });
const streamed = client.beta.messages.toolRunner({ ...asked, tools: [add], stream: true });
let result = null;
for await (const turn of streamed) result = text(await turn.finalMessage());

const { input_tokens: counted } = await client.messages.countTokens({ model: "scripted", messages: asked.messages });
const models = [];
for await (const model of client.models.list()) models.push(model.id);
let refused = null;
try {
  await client.messages.create({ ...asked, model: "unknown" });
} catch (error) {
  refused = { kind: error.constructor.name, status: error.status, type: error.error.error.type };
}
const { version } = JSON.parse(readFileSync(new URL("node_modules/@anthropic-ai/sdk/package.json", import.meta.url)));
console.log(JSON.stringify({
  version,
  found: { messages: { plain, streamed: pieces, arguments: calls[0], result: text(answer) } },
  last: { text: text(last), usage: last.usage, stop: last.stop_reason },
  calls, result, counted, models, refused,
}));
