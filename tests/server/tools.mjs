// OpenAI's client for Node calls tools by itself, streamed and not: what happened goes to stdout as JSON.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.env.URL, apiKey: "none", maxRetries: 0 });
const calls = [];
const number = { type: "number" };
const tool = (name, run) => ({
  type: "function",
  function: {
    name,
    description: `${name} two numbers`,
    parameters: { type: "object", properties: { a: number, b: number }, required: ["a", "b"] },
    parse: JSON.parse,
    function: (args) => {
      calls.push([name, args]);
      return String(run(args));
    },
  },
});
const tools = [tool("add", ({ a, b }) => a + b), tool("multiply", ({ a, b }) => a * b)];
const asked = { model: "scripted", messages: [{ role: "user", content: "What is 1 + 2, and 3 * 4?" }], tools };

const whole = await client.chat.completions.runTools(asked).finalContent();
const streamed = await client.chat.completions.runTools({ ...asked, stream: true }).finalContent();
console.log(JSON.stringify({ whole, streamed, calls }));
