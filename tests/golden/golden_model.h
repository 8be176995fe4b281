// A complete decoder with two layers, built from calls of the C interface.
#pragma once

#include "golden.h"

namespace golden {

class Model {
 public:
  static constexpr int64_t VOCAB = 307, WIDTH = 96, HEADS = 4, KV_HEADS = 2, DIM = 32, INNER = 136, LAYERS = 2;
  static constexpr int64_t BLOCK = 32, MAX_POSITIONS = 64, QKV = (HEADS + 2 * KV_HEADS) * DIM;

  Model(ov_pool* pool, ov_dtype dtype)
      : pool_(pool),
        dtype_(dtype),
        embedding_(Values::random(dtype, VOCAB * WIDTH, 900, {122, 126}), VOCAB, WIDTH),
        head_(Values::random(dtype, VOCAB * WIDTH, 904, WEIGHTS), VOCAB, WIDTH),
        last_gain_(Values::random(OV_F32, WIDTH, 901, {126, 127})),
        // These need not be sines and cosines, only the same on every machine.
        cosines_(Values::random(OV_F32, MAX_POSITIONS * DIM / 2, 902, {123, 126})),
        sines_(Values::random(OV_F32, MAX_POSITIONS * DIM / 2, 903, {123, 126})) {
    for (int64_t layer = 0; layer < LAYERS; ++layer) layers_.push_back(new Layer(dtype, 910 + 10 * uint64_t(layer)));
  }
  ~Model() {
    for (Layer* layer : layers_) delete layer;
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Returns the logits after the last of the tokens, whose positions begin at `start`.
  Values logits(const std::vector<int64_t>& ids, int64_t start) {
    const int64_t rows = int64_t(ids.size());
    std::vector<int64_t> positions;
    for (int64_t row = 0; row < rows; ++row) positions.push_back(start + row);
    Values stream(dtype_, rows * WIDTH), normed(dtype_, rows * WIDTH);
    const ov_embedding_args embedding{dtype_, 0,  embedding_.address(), VOCAB, WIDTH,
                                      ids.data(), stream.data(),        WIDTH, rows};
    check_ok(ov_embedding(pool_, &embedding), "ov_embedding");
    const ov_rms_norm_args first{dtype_, EPS, stream.data(), WIDTH, WIDTH, layers_[0]->attention_gain.floats(),
                                 normed.data(), WIDTH, WIDTH, rows, 1, WIDTH};
    check_ok(ov_rms_norm(pool_, &first), "ov_rms_norm");
    for (int64_t layer = 0; layer < LAYERS; ++layer) {
      Layer& current = *layers_[size_t(layer)];
      Values attended = attention(current, normed, positions);
      add_norm(stream, multiply(pool_, attended, current.out, nullptr, dtype_), current.inner_gain, normed);
      Values gate_up = multiply(pool_, normed, current.gate_up, nullptr, dtype_), inner(dtype_, rows * INNER);
      const ov_gated_args gated{dtype_, layer % 2 ? OV_GELU : OV_SILU, gate_up.data(), 2 * INNER, inner.data(), INNER,
                                rows, INNER};
      check_ok(ov_gated(pool_, &gated), "ov_gated");
      Values& gain = layer + 1 < LAYERS ? layers_[size_t(layer + 1)]->attention_gain : last_gain_;
      add_norm(stream, multiply(pool_, inner, current.down, nullptr, dtype_), gain, normed);
    }
    Values last(dtype_, WIDTH);
    std::memcpy(last.data(), normed.at((rows - 1) * WIDTH), size_t(WIDTH) * element_bytes(dtype_));
    return multiply(pool_, last, head_, nullptr, OV_F32);
  }

 private:
  struct Layer {
    Layer(ov_dtype dtype, uint64_t seed)
        : qkv(Values::random(dtype, QKV * WIDTH, seed, WEIGHTS), QKV, WIDTH),
          qkv_bias(Values::random(OV_F32, QKV, seed + 1, WEIGHTS)),
          out(Values::random(dtype, WIDTH * HEADS * DIM, seed + 2, WEIGHTS), WIDTH, HEADS * DIM),
          gate_up(Values::random(dtype, 2 * INNER * WIDTH, seed + 3, WEIGHTS), 2 * INNER, WIDTH),
          down(Values::random(dtype, WIDTH * INNER, seed + 4, WEIGHTS), WIDTH, INNER),
          attention_gain(Values::random(OV_F32, WIDTH, seed + 5, {126, 127})),
          inner_gain(Values::random(OV_F32, WIDTH, seed + 6, {126, 127})),
          kv(dtype, MAX_POSITIONS / BLOCK, BLOCK, KV_HEADS, DIM) {}
    Packed qkv;
    Values qkv_bias;
    Packed out, gate_up, down;
    Values attention_gain, inner_gain;
    KVMemory kv;
  };

  static constexpr float EPS = 0x1p-20f;

  void add_norm(Values& stream, Values update, Values& gain, Values& normed) {
    const int64_t rows = stream.count() / WIDTH;
    const ov_add_rms_norm_args args{dtype_,         EPS,   stream.data(), WIDTH,         update.data(), WIDTH,
                                    gain.floats(), stream.data(), WIDTH, normed.data(), WIDTH,         rows,
                                    WIDTH};
    check_ok(ov_add_rms_norm(pool_, &args), "ov_add_rms_norm");
  }

  Values attention(Layer& layer, Values& normed, const std::vector<int64_t>& positions) {
    const int64_t rows = int64_t(positions.size());
    Values qkv = multiply(pool_, normed, layer.qkv, layer.qkv_bias.floats(), dtype_);
    // Queries and keys are side by side in a row and are rotated in place.
    const ov_rope_args rope{dtype_, qkv.data(), QKV, DIM, cosines_.floats(), sines_.floats(), positions.data(),
                            MAX_POSITIONS, qkv.data(), QKV, DIM, rows, HEADS + KV_HEADS, DIM};
    check_ok(ov_rope(pool_, &rope), "ov_rope");
    layer.kv.write(pool_, qkv.at(HEADS * DIM), qkv.at((HEADS + KV_HEADS) * DIM), QKV, positions);
    const int64_t first_row = 0, context = positions.back() + 1, offsets[] = {0, MAX_POSITIONS / BLOCK};
    const int64_t blocks[] = {0, 1};
    Values out(dtype_, rows * HEADS * DIM);
    const ov_attention_args args{layer.kv.blocks, qkv.data(), QKV, DIM, out.data(), HEADS * DIM, DIM, rows,
                                 HEADS, 1, &first_row, &rows, &context, offsets, blocks, 0, 0x1.6a09e6p-3f, 0};
    check_ok(ov_attention(pool_, &args), "ov_attention");
    return out;
  }

  ov_pool* pool_;
  ov_dtype dtype_;
  Packed embedding_, head_;
  Values last_gain_, cosines_, sines_;
  std::vector<Layer*> layers_;
};

// Prefills a prompt of 40 tokens and samples 24 tokens, each of which is the input of the next step.
inline void model_case(ov_pool* pool, ov_dtype dtype) {
  constexpr int64_t PROMPT = 40, DRAWN = 24, NUM_TOP = 3;
  Model model(pool, dtype);
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < PROMPT; ++i) ids.push_back(int64_t(random_bits(950, uint64_t(i)) % uint64_t(Model::VOCAB)));
  Hash hash;
  int64_t position = 0;
  for (int64_t step = 0; step < DRAWN; ++step) {
    Values logits = model.logits(ids, position);
    position += int64_t(ids.size());
    ov_sample_row row{};
    row.temperature = 0.875;
    row.top_p = 0.96875;
    row.repetition_penalty = 1;
    row.noise_key = random_bits(951, uint64_t(step));
    row.num_top = NUM_TOP;
    row.given = -1;
    ov_sampled sampled{};
    int64_t top_ids[NUM_TOP];
    Values top(OV_F32, NUM_TOP);
    check_ok(ov_sample(pool, logits.floats(), Model::VOCAB, 1, Model::VOCAB, &row, &sampled, top_ids, top.floats(),
                   NUM_TOP, -9999),
         "ov_sample");
    hash.add(logits);
    hash.add(uint64_t(sampled.token_id), 8);
    hash.add(sampled.logprob);
    for (const int64_t id : top_ids) hash.add(uint64_t(id), 8);
    hash.add(top);
    if (sampled.error != OV_ROW_OK) check_ok(OV_BAD_VALUE, "a row of ov_sample");
    ids.assign(1, sampled.token_id);
  }
  hash.print(std::string("model/") + name_of(dtype));
}

}  // namespace golden
