// The C interface of the kernel library. It uses plain pointers and sizes and neither C++ types nor libtorch, so one
// build works with every Python and torch version.
//
// A function that returns ov_status returns OV_OK or the reason why it rejected its arguments; if it rejects them, it
// writes nothing. Matrices are row-major with a stride in elements. bf16 values are passed as their 16 raw bits.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Integers instead of enum types: a caller may pass any number, and reading an invalid one must be defined behaviour.
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

// Instruction sets. Their order has no meaning: ov_has_isa returns whether a processor has one. Results depend neither
// on the ISA nor on the number of threads or rows.
typedef int32_t ov_isa;
enum { OV_PORTABLE = 0, OV_AVX2 = 1, OV_AVX512 = 2, OV_AMX = 3, OV_NEON = 4 };

typedef int32_t ov_dtype;
enum { OV_BF16 = 0, OV_F32 = 1 };

// Storage format of a weight. The first two are the values of ov_dtype. In the others the weights stay quantised; a
// product with them is bit-identical to the product with the same weights widened to bf16.
typedef int32_t ov_format;
enum {
  OV_FORMAT_BF16 = 0,
  OV_FORMAT_F32 = 1,
  // GGUF formats
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
  // formats of other checkpoints: 4 and 8 bits with one scale per group of 32 or 128 k
  OV_INT4_32 = 15,
  OV_INT4_128 = 16,
  OV_INT8_32 = 17,
  OV_INT8_128 = 18,
  OV_FP8_32 = 19,
  OV_FP8_128 = 20,
  OV_NUM_FORMATS = 21,
};

const char* ov_status_text(ov_status status);

// Version of the arithmetic, which is the definition of every operation from weights and token ids to tokens and
// logprobs. Libraries of the same version return bit-identical results for the same calls, on every processor, with
// every compiler and any number of threads. The version changes exactly when the golden vectors change (tests/golden);
// docs/law.md lists the versions.
#define OV_ARITHMETIC 1
int32_t ov_arithmetic(void);

// Whether the processor, operating system and hypervisor all support an ISA (1 or 0), and the best supported one.
int ov_has_isa(ov_isa isa);
ov_isa ov_best_isa(void);

// -- Kernel thread pool: the threads and scratch memory that kernels run on. One caller at a time. ---------------
typedef struct ov_pool ov_pool;
ov_status ov_pool_open(int32_t num_threads, ov_isa isa, ov_pool** pool);
void ov_pool_close(ov_pool* pool);

// Time spent in a pool's kernels since it was opened: number of calls of each kind, and how long their callers waited.
// The rest of a step's time is spent in the caller.
typedef struct {
  uint64_t nanoseconds, calls;
} ov_time;
typedef struct {
  ov_time gemm;       // ov_gemm
  ov_time attention;  // ov_kv_write, ov_attention
  ov_time rows;       // the row operations
  ov_time sampling;   // ov_sample
} ov_times;
ov_status ov_pool_times(const ov_pool* pool, ov_times* times);

// -- Memory: zeroed, on huge pages where the system supports them. -------------------------------------------------
void* ov_alloc(uint64_t num_bytes);
void ov_free(void* memory, uint64_t num_bytes);

// Checksum for files of packed weights. Detects accidental corruption, not deliberate changes. It is the same on every
// processor. Several threads may call it at the same time.
uint64_t ov_checksum(const void* data, uint64_t num_bytes);

// -- Prefix index: which replica of a fleet has the KV of which prefix. One caller at a time. ------------------------
// The key of a block of tokens is a keyed hash of them and of the key of the block before. The key before the first
// block is that of the salt. `hash_key` has two words. Keys are never 0.
ov_status ov_prefix_root(const uint64_t* hash_key, const void* salt, int64_t num_bytes, uint64_t* key);
ov_status ov_prefix_keys(const uint64_t* hash_key, uint64_t parent, const int32_t* tokens, int64_t num_blocks,
                         int64_t block_size, uint64_t* keys);

typedef struct {
  int32_t slot;   // the number of a replica, from 0 to 65535
  int32_t depth;  // blocks that it has, from the first one on
} ov_prefix_hit;
typedef struct ov_prefix_index ov_prefix_index;
ov_status ov_prefix_open(int64_t num_entries, ov_prefix_index** index);  // a power of two, at least 32; 16 bytes each
void ov_prefix_close(ov_prefix_index* index);
ov_status ov_prefix_add(ov_prefix_index* index, int32_t slot, const uint64_t* keys, int64_t num_keys);
ov_status ov_prefix_remove(ov_prefix_index* index, int32_t slot, const uint64_t* keys, int64_t num_keys);
ov_status ov_prefix_forget(ov_prefix_index* index, int32_t slot);  // everything that it has
// The replicas that have the most blocks of the prefix with these keys, the deepest first. `tie` decides between equal
// ones.
ov_status ov_prefix_match(ov_prefix_index* index, const uint64_t* keys, int64_t num_keys, uint64_t tie,
                          ov_prefix_hit* hits, int64_t max_hits, int64_t* num_hits);

// -- Matrix product with packed weights: y[m, n] = x[m, k] * w[n, k]^T + bias[n] -----------------------------------
// Whether the format exists (1 or 0), and the version of the packed layouts, which changes when one of them changes.
int ov_has_format(ov_format format);
#define OV_LAYOUT 1
int32_t ov_layout_version(void);
// Size of the packed weights; 0 if the format does not exist or k is not a multiple of its weight block.
uint64_t ov_packed_bytes(ov_format format, int64_t n, int64_t k);
// Packs rows first_row ... first_row + num_rows - 1 of w, so that rows can be packed while they are read from a file.
// The caller zeroes `packed` before the first call. Rows of a quantised format consist of weight blocks as described in
// formats/*.h, one row after the other; their stride is k. OV_BAD_VALUE: a scale or a weight is not finite, and the
// packed weights must not be used.
ov_status ov_pack_rows(ov_format format, const void* rows, int64_t stride, int64_t first_row, int64_t num_rows,
                       int64_t n, int64_t k, void* packed);
typedef struct {
  ov_dtype dtype;       // of x
  ov_dtype out_dtype;   // of y; OV_BF16 only if dtype is OV_BF16
  ov_format format;     // of the weights: the dtype of x, or a quantised format if x is OV_BF16
  int32_t reserved;
  const void* x;
  int64_t x_stride;
  const void* packed;
  const float* bias;    // or null
  void* y;
  int64_t y_stride;
  int64_t m, n, k;
} ov_gemm_args;
ov_status ov_gemm(ov_pool* pool, const ov_gemm_args* args);

// y = the rows `ids` of w, unpacked: float if the format is OV_FORMAT_F32, otherwise bf16.
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
ov_status ov_embedding(ov_pool* pool, const ov_embedding_args* args);

// -- Row operations: x[row, head, i] with strides in elements; i is contiguous. Output and input may be the same. ----
// They compute in float and round once, at the end. Results are bit-identical on all ISAs.

// y = x / sqrt(mean(x^2) + eps) * gain, for each head of each row. A row without heads has num_heads = 1.
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
ov_status ov_rms_norm(ov_pool* pool, const ov_rms_norm_args* args);

// sum = stream + update, rounded; y = the norm of sum. y must not overlap the other arrays.
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
ov_status ov_add_rms_norm(ov_pool* pool, const ov_add_rms_norm_args* args);

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
ov_status ov_rope(ov_pool* pool, const ov_rope_args* args);

// y[width] = activation(gate) * up, where gate_up[2 * width] holds gate, then up. OV_GELU is the tanh approximation.
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
ov_status ov_gated(ov_pool* pool, const ov_gated_args* args);

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
ov_status ov_add(ov_pool* pool, const ov_add_args* args);

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
ov_status ov_scale(ov_pool* pool, const ov_scale_args* args);

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
ov_status ov_softcap(ov_pool* pool, const ov_softcap_args* args);

// Computes the tables of ov_rope from first_position on: cosines and sines [num_positions, half] of the angles
// position * inverse_frequencies[half]. Angles are rounded to float; cosines and sines are computed in double and
// rounded to float. A frequency must be 0 or more, and no angle may be greater than 2^27.
ov_status ov_rope_angles(ov_pool* pool, const float* inverse_frequencies, int64_t half, int64_t first_position,
                         int64_t num_positions, float* cosines, float* sines);

// finite[row] = 1 if all numbers of the row are finite, else 0.
ov_status ov_finite(ov_dtype dtype, const void* x, int64_t x_stride, int64_t num_rows, int64_t width, uint8_t* finite);

// -- Sampling: one token for each row of float32 logits [num_rows, vocab] --------------------------------------------
// The steps and their order are as in octavo/sampling/transforms.py, the noise is that of octavo/sampling/random.py.
typedef struct {
  double temperature;  // 0: greedy
  double top_p;        // 1 or more: off
  double min_p;        // 0 to 1; 0: off
  int64_t top_k;       // 0: off
  uint64_t noise_key;
  // Tokens to penalise, each listed once, and how often each was generated.
  const int64_t* seen_ids;
  const float* seen_counts;
  int64_t num_seen;
  float repetition_penalty, presence_penalty, frequency_penalty;
  int32_t num_top;  // number of alternatives to report; 0: only the token's own logprob, -1: no logprobs
  const int64_t* bias_ids;  // each listed once
  const float* bias_values;
  int64_t num_biased;
  const int64_t* banned_ids;
  int64_t num_banned;
  int64_t given;  // token to score instead of drawing one, or -1
  const uint32_t* allowed;  // bit i % 32 of word i / 32: token i may be drawn; null: every token may be drawn
  int64_t num_allowed_words;
} ov_sample_row;

typedef int32_t ov_row_error;
enum {
  OV_ROW_OK = 0,
  OV_ROW_UNUSABLE_LOGITS = 1,  // the maximum is NaN or infinite
  OV_ROW_NO_TOKEN_LEFT = 2,    // penalties, bias, bans and the allowed tokens exclude every token
  OV_ROW_BAD_ID = 3,           // a token id is outside the vocabulary
};

typedef struct {
  int64_t token_id;   // -1 if there is an error
  float logprob;      // from the raw logits; at least logprob_floor
  ov_row_error error;
} ov_sampled;

// top_ids and top_logprobs are [num_rows, top_stride], best first; they may be null if no row has num_top > 0.
// logprob_floor is finite. Smaller logprobs are raised to it, for example that of a token with the logit -infinity.
ov_status ov_sample(ov_pool* pool, const float* logits, int64_t logits_stride, int64_t num_rows, int64_t vocab,
                    const ov_sample_row* rows, ov_sampled* sampled, int64_t* top_ids, float* top_logprobs,
                    int64_t top_stride, float logprob_floor);

// -- Attention over keys and values in blocks -------------------------------------------------------------------------
// One layer's keys and values: two arrays of ov_kv_bytes() each, aligned to 64 bytes, filled by ov_kv_write.
// attention.h describes the layout. Each block is contiguous, so a block can be copied as bytes. Slots that were never
// written may hold anything.
typedef struct {
  ov_dtype dtype;  // of keys, values, queries and output
  void* keys;
  void* values;
  int64_t num_blocks;
  int64_t block_size;  // tokens in a block: a multiple of 32
  int64_t kv_heads;
  int64_t head_dim;    // a multiple of 16, at most 256
} ov_kv_blocks;
// Size of the array of keys, and of that of values. 0 if an argument is invalid.
uint64_t ov_kv_bytes(ov_dtype dtype, int64_t num_blocks, int64_t block_size, int64_t kv_heads, int64_t head_dim);

typedef struct {
  ov_kv_blocks kv;
  const void* k;  // [num_rows, kv_heads, head_dim]
  int64_t k_stride, k_head_stride;
  const void* v;
  int64_t v_stride, v_head_stride;
  const int64_t* slots;  // [num_rows]: block * block_size + offset, all different
  int64_t num_rows;
} ov_kv_write_args;
ov_status ov_kv_write(ov_pool* pool, const ov_kv_write_args* args);

// Row r of sequence s is row first_rows[s] + r of q and out, and has the position contexts[s] - row_counts[s] + r. It
// attends to the keys in (position - window, position]; without a window, to all keys up to its position. Position p of
// the sequence is in block blocks[block_offsets[s] + p / block_size]. Query head h reads the key-value head
// h / (heads / kv_heads).
//
//     out = softmax(cap(scale * q k^T)) v,  cap(x) = softcap * tanh(x / softcap)
typedef struct {
  ov_kv_blocks kv;
  const void* q;  // [num_rows, heads, head_dim]
  int64_t q_stride, q_head_stride;
  void* out;
  int64_t out_stride, out_head_stride;
  int64_t num_rows, heads;
  int64_t num_sequences;
  const int64_t* first_rows;     // [num_sequences]
  const int64_t* row_counts;     // [num_sequences]
  const int64_t* contexts;       // [num_sequences]: number of keys up to and including the last row's own
  const int64_t* block_offsets;  // [num_sequences + 1]
  const int64_t* blocks;         // [block_offsets[num_sequences]]
  int64_t window;                // 0: none
  float scale;
  float softcap;                 // 0: none
} ov_attention_args;
ov_status ov_attention(ov_pool* pool, const ov_attention_args* args);

// -- Tape: the kernel calls of a model's forward pass, recorded once and replayed as one call ------------------------
// A call on the tape has the arguments of a function above. Arguments that differ from step to step (the number of
// rows, the addresses of activations and of the step's tables) are patched before the call: the eight bytes at `offset`
// become values[source] + addend, where `values` belong to the step. values[0] is the number of rows.
//
// Sources from num_values on are places in the tape's own memory, for data that one call writes and others read: place
// i has place_row_bytes[i] bytes per row.
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
// Copies its arguments.
ov_status ov_tape_open(const ov_tape_call* calls, int64_t num_calls, int64_t num_values, const int64_t* place_row_bytes,
                       int64_t num_places, ov_tape** tape);
void ov_tape_close(ov_tape* tape);
// Stops at the first call that rejects its arguments and returns its status; the calls before it have run.
ov_status ov_tape_run(ov_pool* pool, ov_tape* tape, const int64_t* values, int64_t num_values);

// -- Probes: current speed of this machine ---------------------------------------------------------------------------
// Bytes per second when all threads together read `num_bytes` (8 KiB or more) of memory, aligned to 64 bytes, once; 0
// if the arguments are invalid. To measure DRAM, use much more memory than the caches hold, and write to it first.
double ov_probe_read(ov_pool* pool, const void* memory, uint64_t num_bytes);
// Floating-point operations per second when all threads multiply tiles from the L1 cache; 0 without AMX.
double ov_probe_amx(ov_pool* pool, int32_t num_steps);

#ifdef __cplusplus
}
#endif
