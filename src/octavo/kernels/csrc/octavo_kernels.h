// The whole C interface of the kernel library. Plain pointers and sizes, no C++ types, no libtorch: one build
// serves every Python and torch version.
//
// Every function returns OV_OK or says what was wrong with its arguments; nothing is written in that case.
// Matrices are row-major with a stride in elements. bf16 values are their 16 raw bits.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Integers and not enum types: a caller may pass any number, and reading a wrong one must be defined.
typedef int32_t ov_status;
enum {
  OV_OK = 0,
  OV_NULL_POINTER = 1,
  OV_BAD_SIZE = 2,
  OV_BAD_STRIDE = 3,
  OV_MISALIGNED = 4,
  OV_NO_MEMORY = 5,
  OV_UNKNOWN_ISA = 6,
  OV_BAD_VALUE = 7,
};

// Instruction sets. Their order means nothing: ov_has_isa says which of them a processor has. A result depends neither
// on the ISA nor on the number of threads or rows.
typedef int32_t ov_isa;
enum { OV_PORTABLE = 0, OV_AVX2 = 1, OV_AVX512 = 2, OV_AMX = 3, OV_NEON = 4 };

typedef int32_t ov_dtype;
enum { OV_BF16 = 0, OV_F32 = 1 };

// How a weight is stored. The first two are those of ov_dtype; the others stay quantised, and every product with them
// has the bits of the product with the weights widened to bf16.
typedef int32_t ov_format;
enum {
  OV_FORMAT_BF16 = 0,
  OV_FORMAT_F32 = 1,
  // of GGUF files
  OV_Q4_K = 2,
  OV_Q5_K = 3,
  OV_Q6_K = 4,
  OV_Q8_0 = 5,
  OV_Q4_0 = 6,
  OV_Q4_1 = 7,
  OV_Q5_0 = 8,
  OV_Q5_1 = 9,
  OV_Q2_K = 10,
  OV_Q3_K = 11,
  OV_IQ4_NL = 12,
  OV_IQ4_XS = 13,
  OV_MXFP4 = 14,
  // of others: 4 and 8 bits with a scale for each group of 32 or 128 k
  OV_INT4_32 = 15,
  OV_INT4_128 = 16,
  OV_INT8_32 = 17,
  OV_INT8_128 = 18,
  OV_FP8_32 = 19,
  OV_FP8_128 = 20,
  OV_NUM_FORMATS = 21,
};

const char* ov_status_text(ov_status status);

// The number of the arithmetic: of the definition of every operation from weights and token ids to tokens and logprobs.
// With equal numbers, equal calls have equal results, bit for bit, on every processor, under every compiler and with
// any number of threads. It changes exactly when the golden vectors do (tests/golden); docs/law.md lists the versions.
#define OV_ARITHMETIC 1
int32_t ov_arithmetic(void);

// Whether processor, operating system and hypervisor together allow an ISA (1 or 0), and the best that they allow.
int ov_has_isa(ov_isa isa);
ov_isa ov_best_isa(void);

// -- Engine: the threads and scratch memory that kernels run on. One caller at a time. ---------------------------
typedef struct ov_engine ov_engine;
ov_status ov_engine_open(int32_t num_threads, ov_isa isa, ov_engine** engine);
void ov_engine_close(ov_engine* engine);

// Where an engine's time went since it was opened: the calls of each kind and how long their callers waited for them.
// The rest of a step's time is the caller's own.
typedef struct {
  uint64_t nanoseconds, calls;
} ov_time;
typedef struct {
  ov_time gemm;       // ov_gemm
  ov_time attention;  // ov_kv_write, ov_attention
  ov_time rows;       // the row operations
  ov_time sampling;   // ov_sample
} ov_times;
ov_status ov_engine_times(const ov_engine* engine, ov_times* times);

// -- Memory: zeroed, on huge pages where the system has them. -----------------------------------------------------
void* ov_alloc(uint64_t num_bytes);
void ov_free(void* memory, uint64_t num_bytes);

// For files of packed weights. Finds accidents, not attackers. The same on every processor; several threads may call it.
uint64_t ov_checksum(const void* data, uint64_t num_bytes);

// -- Matrix product with packed weights: y[m, n] = x[m, k] * w[n, k]^T + bias[n] -----------------------------------
// Whether there is such a format (1 or 0), and the version of all packed forms, which changes when one of them does.
int ov_has_format(ov_format format);
#define OV_LAYOUT 1
int32_t ov_layout_version(void);
// 0 if there is no such format, or k is not a multiple of its blocks.
uint64_t ov_packed_bytes(ov_format format, int64_t n, int64_t k);
// Rows first_row ... first_row + num_rows - 1 of w, as they stream in; `packed` was zeroed before the first ones. Rows of
// a quantised format are their blocks, as formats/*.h has them, one row after the other; their stride is k. OV_BAD_VALUE:
// a scale or a weight is not finite, and what is packed must not be used.
ov_status ov_pack_rows(ov_format format, const void* rows, int64_t stride, int64_t first_row, int64_t num_rows,
                       int64_t n, int64_t k, void* packed);
typedef struct {
  ov_dtype dtype;       // of x
  ov_dtype out_dtype;   // of y; OV_BF16 only if dtype is OV_BF16
  ov_format format;     // of the weights: that of x, or a quantised one if x is OV_BF16
  int32_t reserved;
  const void* x;
  int64_t x_stride;
  const void* packed;
  const float* bias;    // or null
  void* y;
  int64_t y_stride;
  int64_t m, n, k;
} ov_gemm_args;
ov_status ov_gemm(ov_engine* engine, const ov_gemm_args* args);

// y = the rows `ids` of w, back from the packed form: floats if the weights are, and else bf16.
typedef struct {
  ov_format format;
  int32_t reserved;
  const void* packed;
  int64_t n, k;
  const int64_t* ids;  // [num_rows], each below n
  void* y;
  int64_t y_stride;
  int64_t num_rows;
} ov_embedding_args;
ov_status ov_embedding(ov_engine* engine, const ov_embedding_args* args);

// -- Row operations: x[row, head, i] with strides in elements; i is contiguous. The result may be the input. ---------
// They compute in float and round once, at the end. All ISAs agree bit for bit.

// y = x / sqrt(mean(x^2) + eps) * gain, of each head of each row. A plain row is one head.
typedef struct {
  ov_dtype dtype;
  float eps;
  const void* x;
  int64_t x_stride, x_head_stride;
  const float* gain;  // [width]
  void* y;
  int64_t y_stride, y_head_stride;
  int64_t num_rows, num_heads, width;
} ov_rms_norm_args;
ov_status ov_rms_norm(ov_engine* engine, const ov_rms_norm_args* args);

// sum = stream + update, rounded; y = the norm of sum. y is none of the others.
typedef struct {
  ov_dtype dtype;
  float eps;
  const void* stream;
  int64_t stream_stride;
  const void* update;
  int64_t update_stride;
  const float* gain;  // [width]
  void* sum;
  int64_t sum_stride;
  void* y;
  int64_t y_stride;
  int64_t num_rows, width;
} ov_add_rms_norm_args;
ov_status ov_add_rms_norm(ov_engine* engine, const ov_add_rms_norm_args* args);

// Each head's first half a and second half b become a * cos - b * sin and b * cos + a * sin.
typedef struct {
  ov_dtype dtype;
  const void* x;
  int64_t x_stride, x_head_stride;
  const float* cosines;  // [num_positions, head_dim / 2]
  const float* sines;
  const int64_t* positions;  // [num_rows], each below num_positions
  int64_t num_positions;
  void* y;
  int64_t y_stride, y_head_stride;
  int64_t num_rows, num_heads, head_dim;
} ov_rope_args;
ov_status ov_rope(ov_engine* engine, const ov_rope_args* args);

// y[width] = activation(gate) * up, of gate_up[2 * width] with the gate first. OV_GELU is the tanh form.
typedef int32_t ov_activation;
enum { OV_SILU = 0, OV_GELU = 1 };
typedef struct {
  ov_dtype dtype;
  ov_activation activation;
  const void* gate_up;
  int64_t gate_up_stride;
  void* y;
  int64_t y_stride;
  int64_t num_rows, width;
} ov_gated_args;
ov_status ov_gated(ov_engine* engine, const ov_gated_args* args);

// y = a + b
typedef struct {
  ov_dtype dtype;
  const void* a;
  int64_t a_stride;
  const void* b;
  int64_t b_stride;
  void* y;
  int64_t y_stride;
  int64_t num_rows, width;
} ov_add_args;
ov_status ov_add(ov_engine* engine, const ov_add_args* args);

// y = x * factor
typedef struct {
  ov_dtype dtype;
  float factor;
  const void* x;
  int64_t x_stride;
  void* y;
  int64_t y_stride;
  int64_t num_rows, width;
} ov_scale_args;
ov_status ov_scale(ov_engine* engine, const ov_scale_args* args);

// y = tanh(x / cap) * cap, for a finite cap > 0
typedef struct {
  ov_dtype dtype;
  float cap;
  const void* x;
  int64_t x_stride;
  void* y;
  int64_t y_stride;
  int64_t num_rows, width;
} ov_softcap_args;
ov_status ov_softcap(ov_engine* engine, const ov_softcap_args* args);

// The tables of ov_rope from first_position on: cosines and sines [num_positions, half] of the angles
// position * inverse_frequencies[half]. The angle is rounded to float; its cosine and sine are computed in double, and
// rounded to float. A frequency is 0 or more; no angle is greater than 2^27.
ov_status ov_rope_angles(ov_engine* engine, const float* inverse_frequencies, int64_t half, int64_t first_position,
                         int64_t num_positions, float* cosines, float* sines);

// finite[row] = 1 if all numbers of the row are finite, else 0.
ov_status ov_finite(ov_dtype dtype, const void* x, int64_t x_stride, int64_t num_rows, int64_t width, uint8_t* finite);

// -- Sampling: one token for each row of float32 logits [num_rows, vocab] --------------------------------------------
// The steps and their order are those of octavo/sampling/transforms.py, the noise is that of octavo/sampling/random.py.
typedef struct {
  double temperature;  // 0: the best token
  double top_p;        // 1 and more: off
  double min_p;        // 0 to 1; 0: off
  int64_t top_k;       // 0: off
  uint64_t noise_key;
  // Penalties for tokens that were seen, each once, with how often they were generated.
  const int64_t* seen_ids;
  const float* seen_counts;
  int64_t num_seen;
  float repetition_penalty, presence_penalty, frequency_penalty;
  int32_t num_top;  // alternatives to report: 0 only the token's own logprob, -1 no logprobs
  const int64_t* bias_ids;  // each once
  const float* bias_values;
  int64_t num_biased;
  const int64_t* banned_ids;
  int64_t num_banned;
  int64_t given;  // a token to score instead of drawing one, or -1
  const uint32_t* allowed;  // bit i % 32 of word i / 32: token i may be drawn; null: every token may
  int64_t num_allowed_words;
} ov_sample_row;

typedef int32_t ov_row_error;
enum {
  OV_ROW_OK = 0,
  OV_ROW_UNUSABLE_LOGITS = 1,  // the greatest is NaN or infinite
  OV_ROW_NO_TOKEN_LEFT = 2,    // after penalties, bias, bans and the allowed tokens
  OV_ROW_BAD_ID = 3,           // a token id is outside the vocabulary
};

typedef struct {
  int64_t token_id;   // -1 with an error
  float logprob;      // under the raw logits; at least logprob_floor
  ov_row_error error;
} ov_sampled;

// top_ids and top_logprobs are [num_rows, top_stride], best first; null if no row asks for alternatives. No logprob is
// less than logprob_floor, which is finite: that of a token with the logit -infinity is equal to it.
ov_status ov_sample(ov_engine* engine, const float* logits, int64_t logits_stride, int64_t num_rows, int64_t vocab,
                    const ov_sample_row* rows, ov_sampled* sampled, int64_t* top_ids, float* top_logprobs,
                    int64_t top_stride, float logprob_floor);

// -- Attention over keys and values in pages -------------------------------------------------------------------------
// One layer's keys and values: two arrays of ov_kv_bytes() each, aligned to 64 bytes, filled by ov_kv_write. The layout
// is in attention.h; it is contiguous by block, so a block can be copied as bytes. What was never written may be garbage.
typedef struct {
  ov_dtype dtype;  // of keys, values, queries and output
  void* keys;
  void* values;
  int64_t num_blocks;
  int64_t page_size;  // tokens in a block: a multiple of 32
  int64_t kv_heads;
  int64_t head_dim;   // a multiple of 16, at most 256
} ov_kv_pages;
// Of the keys, and of the values. 0 if a size is wrong.
uint64_t ov_kv_bytes(ov_dtype dtype, int64_t num_blocks, int64_t page_size, int64_t kv_heads, int64_t head_dim);

typedef struct {
  ov_kv_pages pages;
  const void* k;  // [num_rows, kv_heads, head_dim]
  int64_t k_stride, k_head_stride;
  const void* v;
  int64_t v_stride, v_head_stride;
  const int64_t* slots;  // [num_rows]: block * page_size + offset, none twice
  int64_t num_rows;
} ov_kv_write_args;
ov_status ov_kv_write(ov_engine* engine, const ov_kv_write_args* args);

// Row r of sequence s is row first_rows[s] + r of q and out, and has the position contexts[s] - row_counts[s] + r. It
// sees the keys in (position - window, position]; without a window, all up to its position. Position p of the sequence
// is in block blocks[block_offsets[s] + p / page_size]. Query head h reads the key-value head h / (heads / kv_heads).
//
//     out = softmax(cap(scale * q k^T)) v,  cap(x) = softcap * tanh(x / softcap)
typedef struct {
  ov_kv_pages pages;
  const void* q;  // [num_rows, heads, head_dim]
  int64_t q_stride, q_head_stride;
  void* out;
  int64_t out_stride, out_head_stride;
  int64_t num_rows, heads;
  int64_t num_sequences;
  const int64_t* first_rows;     // [num_sequences]
  const int64_t* row_counts;     // [num_sequences]
  const int64_t* contexts;       // [num_sequences]: keys that the last row sees, itself included
  const int64_t* block_offsets;  // [num_sequences + 1]
  const int64_t* blocks;         // [block_offsets[num_sequences]]
  int64_t window;                // 0: none
  float scale;
  float softcap;                 // 0: none
} ov_attention_args;
ov_status ov_attention(ov_engine* engine, const ov_attention_args* args);

// -- Tape: the kernel calls of a model's forward pass, written down once and run again as one call -----------------------
// A call on the tape has the arguments of a function above. Those that differ from step to step (the number of rows,
// the addresses of activations and of the step's tables) are patched before it runs: the eight bytes at `offset`
// become values[source] + addend, with the values that the step brings. values[0] is the number of rows.
//
// Sources from num_values on are places in the tape's own memory, for what one call writes and others read: place i
// has place_row_bytes[i] bytes for each row.
typedef int32_t ov_kernel;
enum {
  OV_EMBEDDING = 0,
  OV_GEMM = 1,
  OV_RMS_NORM = 2,
  OV_ADD_RMS_NORM = 3,
  OV_ROPE = 4,
  OV_GATED = 5,
  OV_ADD = 6,
  OV_SCALE = 7,
  OV_KV_WRITE = 8,
  OV_ATTENTION = 9,
};

typedef struct {
  int32_t offset;  // in the arguments
  int32_t source;
  int64_t addend;
} ov_patch;

typedef struct {
  ov_kernel kernel;
  int32_t num_patches;
  const ov_patch* patches;
  const void* args;
  int64_t args_bytes;
} ov_tape_call;

typedef struct ov_tape ov_tape;
// Copies what it is given.
ov_status ov_tape_open(const ov_tape_call* calls, int64_t num_calls, int64_t num_values, const int64_t* place_row_bytes,
                       int64_t num_places, ov_tape** tape);
void ov_tape_close(ov_tape* tape);
// Stops at the first call that is refused and returns its status; the calls before it have run.
ov_status ov_tape_run(ov_engine* engine, ov_tape* tape, const int64_t* values, int64_t num_values);

// -- Probes: what this machine can do, now. ------------------------------------------------------------------------
// Bytes per second when all threads read `num_bytes` (8 KiB at least) of memory aligned to 64 bytes once; 0 if the
// arguments are wrong. A roofline of DRAM asks for far more than the caches hold, written before.
double ov_probe_read(ov_engine* engine, const void* memory, uint64_t num_bytes);
// Floating-point operations per second of all threads multiplying tiles from the L1 cache; 0 without AMX.
double ov_probe_amx(ov_engine* engine, int32_t num_steps);

#ifdef __cplusplus
}
#endif
