// OpenAI's client for Node: asks all that is on stdin of a server at $URL, and prints what it understood.
import { readFileSync } from "node:fs";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.env.URL}/v1`, apiKey: "none", maxRetries: 0 });

const seen = [];
for (const { endpoint, body } of JSON.parse(readFileSync(0, "utf8"))) {
  const completions = endpoint === "chat" ? client.chat.completions : client.completions;
  try {
    const answer = await completions.create(body);
    if (body.stream) {
      const chunks = [];
      for await (const chunk of answer) chunks.push(chunk);
      seen.push({ chunks });
    } else {
      seen.push({ whole: answer });
    }
  } catch (error) {
    if (!(error instanceof OpenAI.APIError)) throw error;
    seen.push({ error: { status: error.status, param: error.param } });
  }
}
console.log(JSON.stringify(seen));
