// OpenAI's client for Node uses responses of a server at $URL: what it got goes to stdout as JSON.
import OpenAI from "openai";
import { zodTextFormat } from "openai/helpers/zod";
import { readFileSync } from "node:fs";
import { z } from "zod";

const client = new OpenAI({ baseURL: `${process.env.URL}/v1`, apiKey: "none", maxRetries: 0 });
const asked = { model: "scripted", input: "Hello" };

const plain = (await client.responses.create(asked)).output_text;
const stream = client.responses.stream(asked);
let pieces = "";
stream.on("response.output_text.delta", (event) => (pieces += event.delta));
const last = await stream.finalResponse();

const number = { type: "number" };
const parameters = { type: "object", properties: { a: number, b: number }, required: ["a", "b"] };
const tools = [{ type: "function", name: "add", description: "Add two numbers", strict: false, parameters }];
const first = await client.responses.create({ ...asked, tools });
const [call] = first.output.filter((item) => item.type === "function_call");
const output = { type: "function_call_output", call_id: call.call_id, output: "5" };
const answer = await client.responses.create({ ...asked, input: [output], previous_response_id: first.id, tools });
const stored = await client.responses.retrieve(first.id);
const items = [];
for await (const item of client.responses.inputItems.list(answer.id)) items.push(item.type);
await client.responses.delete(first.id);

const parsed = await client.responses.parse({
  ...asked, input: "As JSON, please", text: { format: zodTextFormat(z.object({ sum: z.number() }), "sum") },
});
const { version } = JSON.parse(readFileSync(new URL("node_modules/openai/package.json", import.meta.url)));
console.log(JSON.stringify({
  version,
  found: {
    responses: { plain, streamed: pieces, arguments: JSON.parse(call.arguments), result: answer.output_text },
  },
  last: { text: last.output_text, status: last.status },
  stored: stored.output, first: first.output, items, parsed: parsed.output_parsed,
}));
