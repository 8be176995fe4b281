// Vercel's AI SDK against a server at $URL, through two APIs: what it got goes to stdout as JSON.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { readFileSync } from "node:fs";
import { z } from "zod";

const baseURL = `${process.env.URL}/v1`;
const calls = [];
const add = tool({
  description: "Add two numbers",
  inputSchema: z.object({ a: z.number(), b: z.number() }),
  execute: async (input) => {
    calls.push(input);
    return input.a + input.b;
  },
});

async function ask(model) {
  const asked = { model, prompt: "Hello", maxOutputTokens: 100, maxRetries: 0 };
  const { text: plain, warnings } = await generateText(asked);
  let streamed = "";
  for await (const piece of streamText(asked).textStream) streamed += piece;
  const loop = { ...asked, tools: { add }, stopWhen: stepCountIs(3) };
  const { text: result } = await generateText(loop);
  const turn = streamText(loop);
  for await (const _ of turn.fullStream);
  return { plain, streamed, arguments: calls.pop(), result, streamed_result: await turn.text, warnings };
}

const found = {
  messages: await ask(createAnthropic({ baseURL, apiKey: "none" })("scripted")),
  responses: await ask(createOpenAI({ baseURL, apiKey: "none" }).responses("scripted")),
};
const { version } = JSON.parse(readFileSync(new URL("node_modules/ai/package.json", import.meta.url)));
console.log(JSON.stringify({ version, found }));
