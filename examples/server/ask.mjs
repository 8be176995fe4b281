// Call a server with OpenAI's client for Node: a streamed answer, and the handling of an error.
//
//   npm install openai
//   node examples/server/ask.mjs http://127.0.0.1:8000 MODEL
import OpenAI from "openai";

const [url, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: process.env.OCTAVO_API_KEY ?? "none" });
const messages = [{ role: "user", content: "What is the capital of France?" }];

const stream = await client.chat.completions.create({
  model, messages, temperature: 0, max_completion_tokens: 24, stream: true,
});
for await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta?.content ?? "");
console.log();

try {
  await client.chat.completions.create({ model, messages, temperature: -1 });
} catch (error) {
  console.log(`rejected with ${error.status} because of ${error.param}`);
}
