// The parts of the server's API that this page uses. docs/server.md describes all of it.

/** A seed has up to 64 bits and a JavaScript number only 53, so a seed is kept as a string of digits. */
export type Seed = string;

// -- errors and state ---------------------------------------------------------------------------------------

export interface ApiErrorBody {
  error: { message: string; type: string; param: string | null; code: string | null };
}

/** GET /readyz */
export interface Readiness {
  status: string;
  phase?: string;
  progress?: number;
  loaded?: string;
}

/** GET /v1/models */
export interface ModelList {
  data: { id: string; max_model_len?: number | null }[];
}

// -- requests -----------------------------------------------------------------------------------------------

export interface ChatMessage {
  role: "system" | "user" | "assistant";
  content: string;
}

export type ResponseFormat =
  | { type: "json_object" }
  | { type: "json_schema"; json_schema: { name: string; schema: Record<string, unknown> } };

export interface SamplingFields {
  model?: string;
  temperature?: number;
  top_p?: number;
  top_k?: number;
  min_p?: number;
  presence_penalty?: number;
  frequency_penalty?: number;
  repetition_penalty?: number;
  n?: number;
  stop?: string[];
  response_format?: ResponseFormat;
}

/** `withSeed` adds the seed. */
export interface ChatBody extends SamplingFields {
  messages: ChatMessage[];
  max_completion_tokens?: number;
  logprobs?: boolean;
  top_logprobs?: number;
}

export interface CompletionBody extends SamplingFields {
  prompt: string;
  max_tokens?: number;
  logprobs?: number;
}

export interface StreamFields {
  stream: true;
  stream_options: { include_usage: true };
  octavo: true;
}

// -- streamed answers ---------------------------------------------------------------------------------------

export interface ChatLogprob {
  token: string;
  logprob: number;
  bytes: number[];
}

export interface ChatChoiceChunk {
  index: number;
  delta: { content?: string | null; reasoning_content?: string };
  logprobs: { content: (ChatLogprob & { top_logprobs: ChatLogprob[] })[] | null } | null;
  finish_reason: string | null;
}

export interface CompletionChoiceChunk {
  index: number;
  text: string;
  logprobs: {
    tokens: string[];
    token_logprobs: (number | null)[];
    top_logprobs: (Record<string, number> | null)[];
  } | null;
  finish_reason: string | null;
}

export interface Chunk {
  choices: (ChatChoiceChunk | CompletionChoiceChunk)[];
  system_fingerprint?: string;
  usage?: Usage | null;
  octavo?: Explanation;
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  prompt_tokens_details?: { cached_tokens: number };
  completion_tokens_details?: { reasoning_tokens: number; drafted_tokens?: number; accepted_tokens?: number };
}

/** The `octavo` object of a response, or of a finished request (then without any text): its timing, and what is needed to reproduce it. */
export interface Explanation {
  tokenise_seconds: number;
  engine_restarts: number;
  requests: ExplainedRequest[];
}

export interface ExplainedRequest {
  seed: Seed;
  prompt_tokens: number;
  cached_tokens: number;
  first_miss: { position: number; token?: string } | null; // the engine view contains no text of requests
  choices: ExplainedChoice[];
}

export interface ExplainedChoice {
  queue_seconds: number;
  prefill_seconds: number;
  prefill_chunks: { start: number; tokens: number; seconds: number }[];
  prefill_chunks_left_out: number;
  decode_seconds: number;
  preemptions: number;
  drafted_tokens?: number; // absent in an answer that an older server gave
  accepted_tokens?: number;
  steps_passed_over: number;
  tokens: number;
}

// -- GET /octavo/view ---------------------------------------------------------------------------------------

export type FeedEvent = FactsEvent | EngineEvent | ViewEvent | FleetEvent;

export interface FactsEvent {
  kind: "facts";
  replica?: string; // whose engine the views show
  model: string;
  version: string;
  facts: EngineFacts;
  uptime_seconds: number;
}

export interface EngineFacts {
  vocab_size: number;
  max_model_len: number;
  block_size: number;
  num_blocks: number;
  device: string;
  dtype: string;
  explanation: string[];
  kv_bytes: number;
  system_fingerprint: string;
}

/** Sent while no engine is serving. */
export interface EngineEvent {
  kind: "engine";
  state: "starting" | "loading" | "serving" | "failed" | "removed";
  done: number;
  total: number;
}

/** All replicas: the first event, and then at most one per second. */
export interface FleetEvent {
  kind: "fleet";
  time: number;
  requests: number;
  unsent: number; // in-flight requests that no replica has
  moves: number;
  replicas: ReplicaStatus[];
}

/** Counters never decrease while the replica exists. */
export interface ReplicaStatus {
  name: string;
  state: "starting" | "ready" | "suspected" | "draining" | "restarting" | "unreachable" | "failed";
  uptime_seconds: number | null;
  running: number;
  waiting: number;
  kv_blocks_used: number;
  kv_blocks_total: number;
  problem?: string | null; // why it has no engine that is ready
  restarts: number;
  moves_in: number;
  moves_out: number;
  step_seconds: number;
  tokens: number;
  prompt_tokens: number;
  prompt_tokens_cached: number;
}

export interface ViewEvent {
  kind: "view";
  time: number;
  stats: EngineStats;
  blocks: BlockRun[];
  sequences: RunningSequence[];
  waiting: WaitingSequence[];
  tree: PrefixTree;
  steps: Step[];
  steps_left_out?: number;
  finished: FinishedRequest[];
  latency: Latency;
}

/** Counters never decrease during the lifetime of an engine. */
export interface EngineStats {
  num_running: number;
  num_waiting: number;
  blocks_total: number;
  blocks_free: number;
  blocks_cached: number;
  blocks_idle: number;
  steps: number;
  tokens_computed: number;
  prompt_tokens: number;
  prompt_tokens_cached: number;
  tokens_sampled: number;
  preemptions: number;
  tokens_drafted: number;
  tokens_accepted: number;
  step_seconds: number;
}

/** A run of consecutive blocks in the same state. A code >= 0 is the slot to which the blocks are private. */
export type BlockRun = [code: number, count: number];

export const BLOCK_FREE = -1;
export const BLOCK_IDLE = -2;
export const BLOCK_HELD = -3;

export interface RunningSequence {
  slot: number;
  request_id: string;
  choice: number;
  num_prompt: number;
  num_tokens: number;
  num_computed: number;
  num_cached: number;
  num_blocks: number;
  num_shared_blocks: number;
  preemptions: number;
}

export interface WaitingSequence {
  request_id: string;
  choice: number;
  num_prompt: number;
  num_tokens: number;
  preemptions: number;
  seconds_waiting: number;
}

export interface PrefixTree {
  nodes: TreeNode[];
  left_out: number;
}

export interface TreeNode {
  id: number;
  parent: number | null;
  num_blocks: number;
  num_tokens: number;
  holders: number;
  salt: number;
}

export interface Step {
  step: number;
  time: number;
  seconds: number;
  slices: StepSlice[];
  preempted: number[];
  drafts: StepDrafts[]; // of the slices that ended with drafted tokens
}

/** With drafts, several rows sample a token: that of the last known token, and one for each draft. */
export type StepSlice = [slot: number, start: number, numTokens: number, numSampled: number];
export type StepDrafts = [slot: number, numDrafted: number, numAccepted: number];

export interface FinishedRequest {
  request_id: string;
  response_id?: string | null; // as sent to the client; the ids of its sequences start with it
  route: string;
  status: number | null;
  model: string;
  stream: boolean | null;
  prompt_tokens: number;
  cached_tokens: number;
  completion_tokens: number;
  finish_reason: string | null;
  queue_seconds: number | null;
  seconds_to_first_token: number | null;
  seconds: number;
  tokens_per_second: number | null;
  error: string | null;
  octavo?: Explanation | null;
}

/** In seconds, over a window of about the last 10 s. */
export interface Latency {
  ttft_p50: number | null;
  ttft_p99: number | null;
  itl_p50: number | null;
  itl_p99: number | null;
}
