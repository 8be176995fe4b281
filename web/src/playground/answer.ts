// An answer, assembled chunk by chunk. Immutable values.

import type { ChatChoiceChunk, ChatLogprob, Chunk, CompletionChoiceChunk, Explanation, Usage } from "../api/types";

export interface Alternative {
  text: string;
  logprob: number;
}

export interface Token extends Alternative {
  alternatives: readonly Alternative[]; // best first
}

export interface Choice {
  index: number;
  text: string;
  reasoning: string;
  tokens: readonly Token[];
  numReasoning: number; // number of leading tokens that are reasoning, not answer
  finish: string | null;
}

export interface Answer {
  choices: readonly Choice[]; // by index
  usage: Usage | null;
  explanation: Explanation | null;
  fingerprint: string | null;
}

export const EMPTY_ANSWER: Answer = { choices: [], usage: null, explanation: null, fingerprint: null };

/** Return the answer with a chunk appended. */
export function extended(answer: Answer, chunk: Chunk): Answer {
  return {
    choices: chunk.choices.reduce(withPiece, answer.choices),
    usage: chunk.usage ?? answer.usage,
    explanation: chunk.octavo ?? answer.explanation,
    fingerprint: chunk.system_fingerprint ?? answer.fingerprint,
  };
}

function withPiece(
  choices: readonly Choice[],
  piece: ChatChoiceChunk | CompletionChoiceChunk,
): readonly Choice[] {
  const old = choices.find((choice) => choice.index === piece.index) ?? emptyChoice(piece.index);
  const grown = "delta" in piece ? afterChat(old, piece) : afterCompletion(old, piece);
  const others = choices.filter((choice) => choice.index !== piece.index);
  return [...others, grown].sort((one, other) => one.index - other.index);
}

function emptyChoice(index: number): Choice {
  return { index, text: "", reasoning: "", tokens: [], numReasoning: 0, finish: null };
}

function afterChat(choice: Choice, piece: ChatChoiceChunk): Choice {
  const tokens = (piece.logprobs?.content ?? []).map(({ token, bytes, logprob, top_logprobs }) => ({
    text: tokenText({ token, bytes }),
    logprob,
    alternatives: top_logprobs.map((other) => ({ text: tokenText(other), logprob: other.logprob })),
  }));
  const text = choice.text + (piece.delta.content ?? "");
  const reasoning = choice.reasoning + (piece.delta.reasoning_content ?? "");
  const all = tokens.length === 0 ? choice.tokens : [...choice.tokens, ...tokens];
  return {
    index: choice.index,
    text,
    reasoning,
    tokens: all,
    numReasoning: reasoning !== "" && text === "" ? all.length : choice.numReasoning,
    finish: piece.finish_reason ?? choice.finish,
  };
}

/** Return a token's text, or its bytes if they are not valid UTF-8 by themselves, so that different tokens look different. */
function tokenText({ token, bytes }: Pick<ChatLogprob, "token" | "bytes">): string {
  if (!token.includes("\ufffd")) return token;
  return bytes.map((byte) => `\\x${byte.toString(16).padStart(2, "0")}`).join("");
}

function afterCompletion(choice: Choice, piece: CompletionChoiceChunk): Choice {
  const { logprobs } = piece;
  const tokens = (logprobs?.tokens ?? []).map((text, index) => ({
    text: withoutPrefix(text),
    logprob: logprobs?.token_logprobs[index] ?? 0,
    alternatives: ranked(logprobs?.top_logprobs[index] ?? {}),
  }));
  return {
    ...choice,
    text: choice.text + piece.text,
    tokens: tokens.length === 0 ? choice.tokens : [...choice.tokens, ...tokens],
    finish: piece.finish_reason ?? choice.finish,
  };
}

/** Remove the prefix that the completions API puts before tokens written as bytes. */
function withoutPrefix(text: string): string {
  return text.replace(/^bytes:(?=\\x)/, "");
}

function ranked(logprobs: Record<string, number>): Alternative[] {
  const entries = Object.entries(logprobs).map(([text, logprob]) => ({
    text: withoutPrefix(text),
    logprob,
  }));
  return entries.sort((one, other) => other.logprob - one.logprob);
}

/** Return the index of the first character at which two texts differ, or null if they are equal. */
export function firstDifference(one: string, other: string): number | null {
  if (one === other) return null;
  const shorter = Math.min(one.length, other.length);
  for (let index = 0; index < shorter; index++) if (one[index] !== other[index]) return index;
  return shorter;
}
