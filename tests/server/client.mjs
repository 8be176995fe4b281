// OpenAI's client for Node against a server at $URL: every answer goes to stdout as JSON.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.env.URL}/v1`, apiKey: "none", maxRetries: 0 });
const asked = { model: "tiny", messages: [{ role: "user", content: "hello" }], seed: 7, max_completion_tokens: 12 };

const chat = await client.chat.completions.create({ ...asked, logprobs: true, top_logprobs: 2, n: 2 });

let streamed = "";
let usage = null;
let finish = null;
const stream = await client.chat.completions.create({
  ...asked,
  stream: true,
  stream_options: { include_usage: true },
});
for await (const chunk of stream) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
  finish = chunk.choices[0]?.finish_reason ?? finish;
  usage = chunk.usage ?? usage;
}

// Its helper puts a stream together again, and is strict about the shape of chunks.
const helper = client.chat.completions.stream({ ...asked });
const put_together = await helper.finalContent();

const completion = await client.completions.create({
  model: "tiny", prompt: ["ab", "cd"], max_tokens: 4, temperature: 0, echo: true, logprobs: 1,
});
const models = [];
for await (const model of client.models.list()) models.push(model.id);

let refused = null;
try {
  await client.chat.completions.create({ ...asked, temperature: -1 });
} catch (error) {
  refused = { kind: error.constructor.name, status: error.status, param: error.param };
}

// To leave a stream early must not disturb anybody.
const left = await client.chat.completions.create({ ...asked, stream: true, max_completion_tokens: 400 });
for await (const chunk of left) break;

console.log(JSON.stringify({ chat, streamed, usage, finish, put_together, completion, models, refused }));
