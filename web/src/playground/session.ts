// The questions and answers since the page was opened.

import { computed, signal } from "@preact/signals";
import type { Client } from "../api/client";
import type { ChatMessage, Seed } from "../api/types";
import { Exchange } from "./exchange";
import { chatRequest, completionRequest, DEFAULT_SETTINGS, SettingsError, type Mode, type Settings } from "./settings";

/** A question and its answers: the first one, then its repetitions. */
export interface Turn {
  id: number;
  question: string;
  exchanges: readonly Exchange[];
}

export class Session {
  readonly mode = signal<Mode>("chat");
  readonly settings = signal<Settings>(DEFAULT_SETTINGS);
  readonly showsTokens = signal(true);
  readonly draft = signal("");
  readonly problem = signal(""); // with the settings; shown above the message box
  readonly announcement = signal(""); // for screen readers
  readonly #turns = { chat: signal<readonly Turn[]>([]), completions: signal<readonly Turn[]>([]) };
  readonly turns = computed(() => this.#turns[this.mode.value].value);
  readonly current = signal<Exchange | null>(null);

  constructor(
    readonly client: Client,
    readonly model: { readonly value: string | null },
  ) {}

  change(changes: Partial<Settings>): void {
    this.settings.value = { ...this.settings.value, ...changes };
  }

  async ask(): Promise<void> {
    const question = this.draft.value;
    if (this.current.value !== null || question.trim() === "") return;
    try {
      const exchange = new Exchange(this.#requestFor(question));
      this.#turns[this.mode.value].value = [
        ...this.turns.value,
        { id: performance.now(), question, exchanges: [exchange] },
      ];
      this.problem.value = "";
      if (this.mode.value === "chat") this.draft.value = "";
      await this.#run(exchange);
    } catch (error) {
      if (!(error instanceof SettingsError)) throw error;
      this.problem.value = error.message;
    }
  }

  /** Send the first request again with the seed it had. The answer is bit-identical. */
  async repeat(turn: Turn, seed: Seed): Promise<void> {
    const first = turn.exchanges[0];
    if (this.current.value !== null || first === undefined) return;
    const again = new Exchange({ ...first.request, seed });
    const turns = this.#turns[first.request.mode];
    turns.value = turns.value.map((one) =>
      one.id === turn.id ? { ...one, exchanges: [...one.exchanges, again] } : one,
    );
    await this.#run(again);
  }

  stop(): void {
    this.current.value?.stop();
  }

  clear(): void {
    this.stop();
    this.#turns[this.mode.value].value = [];
    this.problem.value = "";
  }

  async #run(exchange: Exchange): Promise<void> {
    this.current.value = exchange;
    this.announcement.value = "The model is answering.";
    await exchange.run(this.client);
    this.current.value = null;
    this.announcement.value = outcome(exchange);
  }

  #requestFor(question: string) {
    const settings = this.settings.value;
    if (this.mode.value === "completions") return completionRequest(settings, this.model.value, question);
    return chatRequest(settings, this.model.value, [
      ...this.turns.value.flatMap(asMessages),
      { role: "user", content: question },
    ]);
  }
}

/** Return a turn as messages of the chat history. A failed turn is omitted. */
function asMessages(turn: Turn): ChatMessage[] {
  const exchange = turn.exchanges[0];
  const text = exchange?.answer.value.choices[0]?.text;
  if (!text || exchange.progress.value === "failed") return [];
  return [
    { role: "user", content: turn.question },
    { role: "assistant", content: text },
  ];
}

function outcome(exchange: Exchange): string {
  const failure = exchange.failure.value;
  if (failure !== null) return `The request failed: ${failure.message}`;
  const tokens = exchange.answer.value.usage?.completion_tokens;
  if (exchange.progress.value === "stopped") return "The answer was stopped.";
  return tokens === undefined ? "The answer is complete." : `The answer is complete: ${tokens} tokens.`;
}
