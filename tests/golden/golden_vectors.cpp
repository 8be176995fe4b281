// Golden vectors: `golden_vectors ISA [nondefault_fp]` prints `name hash` for each case, computed with that instruction
// set. The hashes in golden_vectors.json are valid for every processor and compiler.
//
// With `nondefault_fp`, the thread that calls the kernels (and the threads that it starts) rounds upwards and treats
// subnormal numbers as zero, as if another library in the process had set that. The hashes must be the same.
//
// Exit codes: 0 on success, 1 if a kernel rejects its arguments, 2 for a usage error, 3 if this processor does not have
// the instruction set.
#include "golden.h"
#include "golden_model.h"

using namespace golden;

namespace {

constexpr ov_dtype DTYPES[] = {OV_BF16, OV_F32};

std::vector<int64_t> consecutive(int64_t first, int64_t count) {
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < count; ++i) numbers.push_back(first + i);
  return numbers;
}

// -- products --------------------------------------------------------------------------------------------------------

struct Shape {
  int64_t m, n, k;
};
constexpr Shape SHAPES[] = {{1, 64, 96},   {2, 33, 70},   {5, 96, 31}, {16, 40, 257},
                            {33, 100, 64}, {70, 65, 130}, {3, 7, 1}};

void product_cases(ov_pool* pool) {
  uint64_t seed = 100;
  for (const ov_dtype dtype : DTYPES) {
    for (const auto& [m, n, k] : SHAPES) {
      seed += 10;
      Values x = Values::random(dtype, m * k, seed), bias = Values::random(OV_F32, n, seed + 1);
      const Packed weight(Values::random(dtype, n * k, seed + 2), n, k);
      const std::string name = std::string("product/") + name_of(dtype) + "/" + std::to_string(m) + "x" +
                               std::to_string(n) + "x" + std::to_string(k);
      print_hash(name, multiply(pool, x, weight, nullptr, OV_F32));
      print_hash(name + "/bias", multiply(pool, x, weight, bias.floats(), OV_F32));
      if (dtype == OV_BF16) print_hash(name + "/bias/rounded", multiply(pool, x, weight, bias.floats(), OV_BF16));
    }
  }
}

// Numbers whose products are about 2^-126 or about 2^-150, mostly powers of two. The sum of one of each is often so
// close below 2^-126 that it is a normal number after rounding but not before.
Values near_min_normal(ov_dtype dtype, int64_t count, uint64_t seed) {
  Values values(dtype, count);
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t chance = random_bits(seed, uint64_t(i)) >> 32;
    const uint32_t exponent = chance % 4 == 0 ? 64 : 50 + chance / 4 % 4;
    const uint32_t number = random_float(seed + 1, uint64_t(i), {exponent, exponent});
    values.set(i, chance / 16 % 3 == 0 ? number : number & 0xff800000u);
  }
  return values;
}

void extreme_cases(ov_pool* pool) {
  const int64_t m = 18, n = 45, k = 75;
  for (const ov_dtype dtype : DTYPES) {
    const std::string name = std::string("product/") + name_of(dtype);
    // So close to the smallest normal number that sums and products cross it in both directions.
    Values x = Values::random(dtype, m * k, 90, {60, 66}), bias = Values::random(OV_F32, n, 91, {0, 4});
    const Packed small(Values::random(dtype, n * k, 92, {58, 66}), n, k);
    print_hash(name + "/subnormal", multiply(pool, x, small, bias.floats(), OV_F32));
    Values near = near_min_normal(dtype, 60 * 8, 80);
    const Packed near_weight(near_min_normal(dtype, 200 * 8, 82), 200, 8);
    print_hash(name + "/min_normal", multiply(pool, near, near_weight, nullptr, OV_F32));
    x = Values::extreme(dtype, m, k, 93);
    bias = Values::random(OV_F32, n, 94);
    const Packed ordinary(Values::random(dtype, n * k, 95), n, k), extreme(Values::extreme(dtype, n, k, 96), n, k);
    for (const Packed* weight : {&ordinary, &extreme}) {
      const std::string label = name + (weight == &extreme ? "/extreme_both" : "/extreme");
      print_hash(label, multiply(pool, x, *weight, bias.floats(), OV_F32));
      if (dtype == OV_BF16) print_hash(label + "/rounded", multiply(pool, x, *weight, bias.floats(), OV_BF16));
    }
  }
}

// -- quantised weights -----------------------------------------------------------------------------------------------

struct FormatCase {
  const char* name;
  ov_format format;
  int64_t block_k, block_bytes;
  std::vector<int64_t> halves;  // offsets of 16-bit scales in a weight block
  bool has_float = false;       // whether it starts with a 32-bit scale
};

std::vector<FormatCase> format_case_list() {
  return {{"q4_k", OV_Q4_K, 256, 144, {0, 2}},
          {"q5_k", OV_Q5_K, 256, 176, {0, 2}},
          {"q6_k", OV_Q6_K, 256, 210, {208}},
          {"q8_0", OV_Q8_0, 32, 34, {0}},
          {"q4_0", OV_Q4_0, 32, 18, {0}},
          {"q4_1", OV_Q4_1, 32, 20, {0, 2}},
          {"q5_0", OV_Q5_0, 32, 22, {0}},
          {"q5_1", OV_Q5_1, 32, 24, {0, 2}},
          {"q2_k", OV_Q2_K, 256, 84, {80, 82}},
          {"q3_k", OV_Q3_K, 256, 110, {108}},
          {"iq4_nl", OV_IQ4_NL, 32, 18, {0}},
          {"iq4_xs", OV_IQ4_XS, 256, 136, {0}},
          {"mxfp4", OV_MXFP4, 32, 17, {}},
          {"int4_32", OV_INT4_32, 32, 21, {}, true},
          {"int4_128", OV_INT4_128, 128, 69, {}, true},
          {"int8_32", OV_INT8_32, 32, 36, {}, true},
          {"int8_128", OV_INT8_128, 128, 132, {}, true},
          {"fp8_32", OV_FP8_32, 32, 36, {}, true},
          {"fp8_128", OV_FP8_128, 128, 132, {}, true}};
}

// Returns weight blocks of random codes, with scales around 2^-6.
std::vector<uint8_t> random_blocks(const FormatCase& test, int64_t num_blocks, uint64_t seed) {
  std::vector<uint8_t> blocks(size_t(num_blocks * test.block_bytes));
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = uint8_t(random_bits(seed, i) >> 40);
  for (int64_t b = 0; b < num_blocks; ++b) {
    uint8_t* block = blocks.data() + b * test.block_bytes;
    for (const int64_t place : test.halves) {
      const uint64_t bits = random_bits(seed + 1, uint64_t(b * 256 + place));
      const uint16_t half = uint16_t((bits & 0x83ff) | (6 + (bits >> 32) % 5) << 10);
      std::memcpy(block + place, &half, 2);
    }
    if (test.has_float) {
      const uint32_t scale = random_float(seed + 1, uint64_t(b), WEIGHTS);
      std::memcpy(block, &scale, 4);
    }
    if (test.format == OV_MXFP4) block[0] = uint8_t(115 + block[0] % 10);
    const bool is_fp8 = test.format == OV_FP8_32 || test.format == OV_FP8_128;
    for (int64_t i = 4; is_fp8 && i < test.block_bytes; ++i) block[i] = (block[i] & 0x7f) == 0x7f ? 0x3a : block[i];
  }
  return blocks;
}

// Hashes the unpacked rows, and products with several numbers of rows. The products are also compared with those of the
// same rows packed as bf16: results must not depend on the storage format.
void format_cases(ov_pool* pool) {
  const int64_t n = 40, k = 512;
  uint64_t seed = 3000;
  for (const FormatCase& test : format_case_list()) {
    seed += 10;
    const std::vector<uint8_t> blocks = random_blocks(test, n * (k / test.block_k), seed);
    const Packed weight(test.format, blocks.data(), n, k);
    std::vector<int64_t> ids = consecutive(0, n);
    Values rows(OV_BF16, n * k);
    const ov_embedding_args embedding{test.format, 0, weight.address(), n, k, ids.data(), rows.data(), k, n};
    check_ok(ov_embedding(pool, &embedding), "ov_embedding");
    const std::string name = std::string("format/") + test.name;
    print_hash(name + "/rows", rows);
    const Packed widened(rows, n, k);
    for (const int64_t m : {1, 18, 33, 70}) {
      Values x = Values::random(OV_BF16, m * k, seed + 3), bias = Values::random(OV_F32, n, seed + 4);
      const Values y = multiply(pool, x, weight, bias.floats(), OV_F32);
      const Values expected = multiply(pool, x, widened, bias.floats(), OV_F32);
      for (int64_t i = 0; i < y.count(); ++i) {
        if (y.canonical(i) != expected.canonical(i)) {
          check_ok(OV_BAD_VALUE, (name + ": not the product with its rows").c_str());
        }
      }
      print_hash(name + "/" + std::to_string(m), y);
    }
  }
}

// -- attention -------------------------------------------------------------------------------------------------------

struct Sequence {
  int64_t num_rows, context;
  std::vector<int64_t> blocks;
};

struct AttentionCase {
  std::string name;
  int64_t heads, kv_heads, dim, block_size, num_blocks;
  std::vector<Sequence> sequences;
  int64_t window = 0;
  float softcap = 0;
};

std::vector<int64_t> joined(std::vector<int64_t> one, const std::vector<int64_t>& two) {
  one.insert(one.end(), two.begin(), two.end());
  return one;
}

std::vector<AttentionCase> attention_case_list() {
  const std::vector<int64_t> shared = consecutive(0, 17);  // 544 shared tokens, followed by tokens of each sequence
  return {
      {"decode", 4, 2, 32, 32, 8, {{1, 1, {7}}, {1, 33, {3, 1}}, {1, 95, {5, 0, 2}}}},
      {"prefill", 6, 2, 48, 32, 8, {{37, 37, {4, 1}}, {70, 70, {0, 7, 3}}}},
      {"chunk", 4, 1, 64, 64, 4, {{21, 90, {2, 0}}, {5, 128, {1, 3}}}},
      {"splits", 4, 2, 32, 32, 36,
       {{1, 1100, consecutive(0, 35)}, {3, 513, consecutive(10, 17)}, {2, 512, consecutive(3, 16)}}},
      {"window", 4, 4, 16, 32, 24, {{1, 700, consecutive(0, 22)}, {40, 80, {23, 22, 5}}}, 41},
      {"softcap", 8, 1, 32, 32, 8, {{1, 77, {1, 2, 3}}, {19, 40, {4, 5}}}, 0, 2.5F},
      {"wide", 2, 1, 256, 32, 2, {{9, 45, {1, 0}}}},
      {"shared", 6, 2, 32, 32, 24,
       {{1, 560, joined(shared, {18})},
        {1, 570, joined(shared, {19})},
        {1, 544, shared},
        {4, 550, joined(shared, {20})}}},
  };
}

Values attend(ov_pool* pool, const AttentionCase& test, KVMemory& kv, Values& queries, int64_t num_rows) {
  std::vector<int64_t> first_rows, row_counts, contexts, offsets{0}, blocks;
  int64_t row = 0;
  for (const Sequence& sequence : test.sequences) {
    first_rows.push_back(row);
    row_counts.push_back(sequence.num_rows);
    contexts.push_back(sequence.context);
    blocks = joined(blocks, sequence.blocks);
    offsets.push_back(int64_t(blocks.size()));
    row += sequence.num_rows;
  }
  const int64_t stride = test.heads * test.dim;
  Values out(queries.dtype(), num_rows * stride);
  ov_attention_args args{};
  args.kv = kv.blocks;
  args.q = queries.data();
  args.q_stride = args.out_stride = stride;
  args.q_head_stride = args.out_head_stride = test.dim;
  args.out = out.data();
  args.num_rows = num_rows;
  args.heads = test.heads;
  args.num_sequences = int64_t(test.sequences.size());
  args.first_rows = first_rows.data();
  args.row_counts = row_counts.data();
  args.contexts = contexts.data();
  args.block_offsets = offsets.data();
  args.blocks = blocks.data();
  args.window = test.window;
  args.scale = 0x1.4p-3F;
  args.softcap = test.softcap;
  check_ok(ov_attention(pool, &args), "ov_attention");
  return out;
}

void attention_cases(ov_pool* pool) {
  uint64_t seed = 400;
  for (const ov_dtype dtype : DTYPES) {
    for (const AttentionCase& test : attention_case_list()) {
      seed += 10;
      KVMemory kv(dtype, test.num_blocks, test.block_size, test.kv_heads, test.dim);
      const int64_t num_slots = test.num_blocks * test.block_size, stride = test.kv_heads * test.dim;
      Values keys = Values::random(dtype, num_slots * stride, seed);
      Values values = Values::random(dtype, num_slots * stride, seed + 1);
      kv.write(pool, keys.data(), values.data(), stride, consecutive(0, num_slots));
      int64_t num_rows = 0;
      for (const Sequence& sequence : test.sequences) num_rows += sequence.num_rows;
      Values queries = Values::random(dtype, num_rows * test.heads * test.dim, seed + 2);
      print_hash(std::string("attention/") + name_of(dtype) + "/" + test.name,
                 attend(pool, test, kv, queries, num_rows));
    }
  }
}

// -- rows ------------------------------------------------------------------------------------------------------------

void norm_cases(ov_pool* pool, ov_dtype dtype, int64_t width, const std::string& name) {
  const int64_t rows = 5, heads = 3;
  Values x = Values::random(dtype, rows * heads * width, 600), update = Values::random(dtype, rows * width, 601);
  Values gain = Values::random(OV_F32, width, 602, {125, 127});
  Values y(dtype, rows * heads * width), sum(dtype, rows * width), normed(dtype, rows * width);
  const ov_rms_norm_args norm{dtype, 0x1p-20F, x.data(), heads * width, width, gain.floats(), y.data(), heads * width,
                              width, rows, heads, width};
  check_ok(ov_rms_norm(pool, &norm), "ov_rms_norm");
  print_hash("rms_norm" + name, y);
  const ov_add_rms_norm_args add_norm{dtype, 0x1p-17F, x.data(), width, update.data(), width, gain.floats(),
                                      sum.data(), width, normed.data(), width, rows, width};
  check_ok(ov_add_rms_norm(pool, &add_norm), "ov_add_rms_norm");
  print_hash("add_rms_norm" + name + "/sum", sum);
  print_hash("add_rms_norm" + name + "/normed", normed);
}

void elementwise_cases(ov_pool* pool, ov_dtype dtype, int64_t width, const std::string& name) {
  const int64_t rows = 7;
  // The range from where an activation is zero to where it is the identity.
  Values gate_up = Values::random(dtype, rows * 2 * width, 610, {112, 134}), y(dtype, rows * width);
  for (const ov_activation activation : {OV_SILU, OV_GELU}) {
    const ov_gated_args gated{dtype, activation, gate_up.data(), 2 * width, y.data(), width, rows, width};
    check_ok(ov_gated(pool, &gated), "ov_gated");
    print_hash((activation == OV_SILU ? "silu" : "gelu") + name, y);
  }
  const ov_add_args add{dtype, gate_up.data(), 2 * width, gate_up.at(width), 2 * width, y.data(), width, rows, width};
  check_ok(ov_add(pool, &add), "ov_add");
  print_hash("add" + name, y);
  const ov_scale_args scale{dtype, 0x1.5bf0a8p+3F, gate_up.data(), 2 * width, y.data(), width, rows, width};
  check_ok(ov_scale(pool, &scale), "ov_scale");
  print_hash("scale" + name, y);
}

void rope_case(ov_pool* pool, ov_dtype dtype, int64_t dim, const std::string& name) {
  const int64_t rows = 6, heads = 3, num_positions = 11;
  Values x = Values::random(dtype, rows * heads * dim, 620), y(dtype, rows * heads * dim);
  Values cosines = Values::random(OV_F32, num_positions * dim / 2, 621, {110, 126});
  Values sines = Values::random(OV_F32, num_positions * dim / 2, 622, {110, 126});
  const std::vector<int64_t> positions{0, 10, 3, 3, 7, 1};
  const ov_rope_args rope{dtype, x.data(), heads * dim, dim, cosines.floats(), sines.floats(), positions.data(),
                          num_positions, y.data(), heads * dim, dim, rows, heads, dim};
  check_ok(ov_rope(pool, &rope), "ov_rope");
  print_hash("rope" + name, y);
}

void row_cases(ov_pool* pool) {
  for (const ov_dtype dtype : DTYPES) {
    for (const int64_t width : {1, 15, 37, 64, 130}) {
      const std::string name = std::string("/") + name_of(dtype) + "/" + std::to_string(width);
      norm_cases(pool, dtype, width, name);
      elementwise_cases(pool, dtype, width, name);
      rope_case(pool, dtype, 2 * width, name);
    }
  }
}

void angle_cases(ov_pool* pool) {
  const int64_t half = 37, count = 70;
  Values frequencies = Values::random(OV_F32, half, 601, {107, 127}), cosines(OV_F32, count * half), sines = cosines;
  for (int64_t i = 0; i < half; ++i) frequencies.set(i, frequencies.canonical(i) & 0x7fffffffu);
  for (const int64_t first : {int64_t(0), int64_t(4000), int64_t(131000), int64_t(33000000)}) {
    check_ok(ov_rope_angles(pool, frequencies.floats(), half, first, count, cosines.floats(), sines.floats()),
         "ov_rope_angles");
    print_hash("angles/" + std::to_string(first) + "/cosines", cosines);
    print_hash("angles/" + std::to_string(first) + "/sines", sines);
  }
}

void softcap_cases(ov_pool* pool) {
  const int64_t num_rows = 5, width = 83;
  for (const ov_dtype dtype : DTYPES) {
    Values x = Values::random(dtype, num_rows * width, 611, {110, 136}), y(dtype, num_rows * width);
    for (const float cap : {30.0f, 0.7f}) {
      const ov_softcap_args args{dtype, cap, x.data(), width, y.data(), width, num_rows, width};
      check_ok(ov_softcap(pool, &args), "ov_softcap");
      print_hash(std::string("softcap/") + name_of(dtype) + (cap > 1.0f ? "/30" : "/0.7"), y);
    }
  }
}

// -- sampling --------------------------------------------------------------------------------------------------------

constexpr int64_t VOCAB = 1003;

struct Lists {
  std::vector<int64_t> seen_ids = consecutive(40, 60), bias_ids = consecutive(5, 9), banned_ids = consecutive(0, 5);
  Values seen_counts = Values(OV_F32, 60), bias_values = Values::random(OV_F32, 9, 701);
  std::vector<uint32_t> allowed;

  Lists() {
    constexpr uint32_t ONE = 0x3f800000, TWO = 0x40000000;
    for (int64_t i = 0; i < 60; ++i) seen_counts.set(i, i % 3 == 0 ? 0 : i % 3 == 1 ? ONE : TWO);
    for (uint64_t word = 0; word < (VOCAB + 31) / 32; ++word) allowed.push_back(uint32_t(random_bits(702, word)));
  }
};

ov_sample_row plain_row(uint64_t number) {
  ov_sample_row row{};
  row.temperature = 1;
  row.top_p = 1;
  row.repetition_penalty = 1;
  row.noise_key = random_bits(703, number);
  row.num_top = 5;
  row.given = -1;
  return row;
}

struct SampleCase {
  const char* name;
  ov_sample_row row;
};

std::vector<SampleCase> sample_case_list(Lists& lists) {
  std::vector<SampleCase> cases;
  const auto add = [&](const char* name, const auto& change) {
    ov_sample_row row = plain_row(cases.size());
    change(row);
    cases.push_back({name, row});
  };
  add("greedy", [](ov_sample_row& row) { row.temperature = 0; });
  add("plain", [](ov_sample_row&) {});
  add("cool", [](ov_sample_row& row) { row.temperature = 0.3; });
  add("hot", [](ov_sample_row& row) { row.temperature = 1.7; });
  add("top_k", [](ov_sample_row& row) { row.top_k = 20; });
  add("top_p", [](ov_sample_row& row) { row.top_p = 0.9; });
  add("min_p", [](ov_sample_row& row) { row.min_p = 0.05; });
  add("all_three", [](ov_sample_row& row) {
    row.temperature = 0.8;
    row.top_k = 50;
    row.top_p = 0.95;
    row.min_p = 0.02;
  });
  add("penalties", [&](ov_sample_row& row) {
    row.seen_ids = lists.seen_ids.data();
    row.seen_counts = lists.seen_counts.floats();
    row.num_seen = int64_t(lists.seen_ids.size());
    row.repetition_penalty = 1.3F;
    row.presence_penalty = 0.4F;
    row.frequency_penalty = 0.2F;
  });
  add("bias_and_bans", [&](ov_sample_row& row) {
    row.bias_ids = lists.bias_ids.data();
    row.bias_values = lists.bias_values.floats();
    row.num_biased = int64_t(lists.bias_ids.size());
    row.banned_ids = lists.banned_ids.data();
    row.num_banned = int64_t(lists.banned_ids.size());
  });
  add("allowed", [&](ov_sample_row& row) {
    row.allowed = lists.allowed.data();
    row.num_allowed_words = int64_t(lists.allowed.size());
    row.top_p = 0.7;
  });
  add("given", [](ov_sample_row& row) { row.given = 77; });
  return cases;
}

// Many rows per case, because a difference in the last bit rarely changes a token.
void sampling_cases(ov_pool* pool) {
  constexpr int64_t ROWS = 24, NUM_TOP = 5;
  Lists lists;
  for (const SampleCase& test : sample_case_list(lists)) {
    Values logits = Values::random(OV_F32, ROWS * VOCAB, 710, {122, 130}), top(OV_F32, ROWS * NUM_TOP);
    std::vector<ov_sample_row> rows(ROWS, test.row);
    for (size_t row = 0; row < rows.size(); ++row) rows[row].noise_key += row * 0x1234567;
    std::vector<ov_sampled> sampled(ROWS);
    std::vector<int64_t> top_ids(ROWS * NUM_TOP);
    check_ok(ov_sample(pool, logits.floats(), VOCAB, ROWS, VOCAB, rows.data(), sampled.data(), top_ids.data(),
                   top.floats(), NUM_TOP, -9999),
         "ov_sample");
    Hash hash;
    for (const ov_sampled& one : sampled) {
      hash.add(uint64_t(one.token_id), 8);
      hash.add(one.logprob);
      hash.add(uint32_t(one.error), 4);
    }
    for (const int64_t id : top_ids) hash.add(uint64_t(id), 8);
    hash.add(top);
    hash.print(std::string("sampling/") + test.name);
  }
}

// -- the command -----------------------------------------------------------------------------------------------------

struct NamedIsa {
  const char* name;
  ov_isa isa;
};
constexpr NamedIsa ISAS[] = {
    {"portable", OV_PORTABLE}, {"avx2", OV_AVX2}, {"avx512", OV_AVX512}, {"amx", OV_AMX}, {"neon", OV_NEON}};

ov_pool* open_pool(const char* name) {
  for (const auto& [known, isa] : ISAS) {
    if (std::strcmp(name, known) != 0) continue;
    ov_pool* pool = nullptr;
    const ov_status status = ov_pool_open(2, isa, &pool);
    if (status == OV_UNKNOWN_ISA) {
      std::fprintf(stderr, "golden_vectors: this processor does not have %s\n", name);
      std::exit(3);
    }
    check_ok(status, "ov_pool_open");
    return pool;
  }
  std::fprintf(stderr, "golden_vectors: %s is not an instruction set: portable, avx2, avx512, amx, neon\n", name);
  std::exit(2);
}

// Makes this thread round upwards and flush subnormal numbers.
void set_nondefault_fp() {
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr(0x1f80 | 0x8040 | 0x4000);
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, %0" ::"r"((uint64_t(1) << 24) | (uint64_t(1) << 22)));
#endif
}

}  // namespace

int main(int num_arguments, char** arguments) {
  const bool is_nondefault_fp = num_arguments == 3 && std::strcmp(arguments[2], "nondefault_fp") == 0;
  if (num_arguments != 2 && !is_nondefault_fp) {
    std::fprintf(stderr, "usage: golden_vectors portable|avx2|avx512|amx|neon [nondefault_fp]\n");
    return 2;
  }
  if (is_nondefault_fp) set_nondefault_fp();
  ov_pool* pool = open_pool(arguments[1]);
  std::printf("arithmetic %d\n", ov_arithmetic());
  product_cases(pool);
  extreme_cases(pool);
  format_cases(pool);
  attention_cases(pool);
  row_cases(pool);
  angle_cases(pool);
  softcap_cases(pool);
  sampling_cases(pool);
  for (const ov_dtype dtype : DTYPES) model_case(pool, dtype);
  ov_pool_close(pool);
  return 0;
}
