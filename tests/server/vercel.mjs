// Vercel's AI SDK against a server at $URL: every answer goes to stdout as JSON.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";

const provider = createOpenAICompatible({
  name: "octavo", baseURL: `${process.env.URL}/v1`, apiKey: "none", includeUsage: true,
});
const asked = { prompt: "hello", seed: 7, maxOutputTokens: 12, maxRetries: 0 };

async function whole(model) {
  const { text, usage, finishReason: finish, warnings } = await generateText({ ...asked, model });
  return { text, usage, finish, warnings };
}

async function streamed(model) {
  const stream = streamText({ ...asked, model });
  let text = "";
  for await (const piece of stream.textStream) text += piece;
  return { text, usage: await stream.usage, finish: await stream.finishReason };
}

const chat = provider.chatModel("tiny");
const completion = provider.completionModel("tiny");
let refused = null;
try {
  await generateText({ ...asked, model: chat, temperature: -1 });
} catch (error) {
  refused = { status: error.statusCode, message: error.message };
}
console.log(JSON.stringify({
  chat: await whole(chat), chat_streamed: await streamed(chat),
  text: await whole(completion), text_streamed: await streamed(completion), refused,
}));
