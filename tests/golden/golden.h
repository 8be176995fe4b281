// Helpers for the golden vectors: inputs made with integer operations only, calls of the C interface, and hashes of the
// results. No function of <cmath> and no arithmetic on floats, because a compiler could fuse operations.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "octavo_kernels.h"

namespace golden {

inline void check_ok(ov_status status, const char* what) {
  if (status == OV_OK) return;
  std::fprintf(stderr, "golden_vectors: %s: %s\n", what, ov_status_text(status));
  std::exit(1);
}

// Returns number `index` of the splitmix64 stream `seed`.
inline uint64_t random_bits(uint64_t seed, uint64_t index) {
  uint64_t z = (seed << 32) + (index + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// A range of stored exponents of a float; that of 1.0 is 127.
struct Exponents {
  uint32_t min, max;
};
constexpr Exponents ORDINARY{121, 128};  // 2^-6 to 4
constexpr Exponents WEIGHTS{121, 124};   // 2^-6 to 2^-2

inline uint32_t random_float(uint64_t seed, uint64_t index, Exponents exponents) {
  const uint64_t bits = random_bits(seed, index);
  const uint32_t exponent = exponents.min + uint32_t((bits >> 32) % (exponents.max - exponents.min + 1));
  return uint32_t(bits & 0x80000000u) | (exponent << 23) | uint32_t(bits & 0x7fffffu);
}

// Rows are, in turn: huge, so that some sums overflow; tiny, so that some sums are subnormal; ordinary numbers mixed
// with subnormal numbers and zeros; numbers of a wide range; with an infinity; with a NaN.
inline uint32_t extreme_float(uint64_t seed, uint64_t row, uint64_t column) {
  const uint64_t index = (row << 20) + column, chance = random_bits(seed + 1, index);
  const uint32_t ordinary = random_float(seed, index, ORDINARY);
  const bool is_special_column = column == row % 5;
  switch (row % 6) {
    case 0: return random_float(seed, index, {247, 252});
    case 1: return random_float(seed, index, {0, 1});
    case 2:
      if (chance % 4 == 0) return random_float(seed, index, {0, 0});
      return chance % 4 == 1 ? ordinary & 0x80000000u : ordinary;
    case 3: return random_float(seed, index, {20, 230});
    case 4: return is_special_column ? 0x7f800000u | (ordinary & 0x80000000u) : ordinary;
    default: return is_special_column ? 0x7fc00000u : ordinary;
  }
}

inline size_t element_bytes(ov_dtype dtype) { return dtype == OV_BF16 ? 2 : 4; }

// Values of either dtype as raw bits. bf16 is the upper half of a float.
class Values {
 public:
  Values(ov_dtype dtype, int64_t count) : dtype_(dtype), bytes_(size_t(count) * element_bytes(dtype)) {}

  static Values random(ov_dtype dtype, int64_t count, uint64_t seed, Exponents exponents = ORDINARY) {
    Values values(dtype, count);
    for (int64_t i = 0; i < count; ++i) values.set(i, random_float(seed, uint64_t(i), exponents));
    return values;
  }

  static Values extreme(ov_dtype dtype, int64_t num_rows, int64_t width, uint64_t seed) {
    Values values(dtype, num_rows * width);
    for (int64_t i = 0; i < num_rows * width; ++i)
      values.set(i, extreme_float(seed, uint64_t(i / width), uint64_t(i % width)));
    return values;
  }

  void set(int64_t index, uint32_t float_bits) {
    const uint16_t upper = uint16_t(float_bits >> 16);
    if (dtype_ == OV_BF16) {
      std::memcpy(&bytes_[size_t(index) * 2], &upper, 2);
    } else {
      std::memcpy(&bytes_[size_t(index) * 4], &float_bits, 4);
    }
  }

  void* at(int64_t index) { return bytes_.data() + size_t(index) * element_bytes(dtype_); }
  void* data() { return bytes_.data(); }
  float* floats() { return reinterpret_cast<float*>(bytes_.data()); }
  int64_t count() const { return int64_t(bytes_.size() / element_bytes(dtype_)); }
  ov_dtype dtype() const { return dtype_; }

  // Returns an element as the bits of a float, with one pattern for every NaN.
  uint32_t canonical(int64_t index) const {
    uint32_t bits = 0;
    if (dtype_ == OV_BF16) {
      uint16_t upper;
      std::memcpy(&upper, &bytes_[size_t(index) * 2], 2);
      bits = uint32_t(upper) << 16;
    } else {
      std::memcpy(&bits, &bytes_[size_t(index) * 4], 4);
    }
    return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : bits;
  }

 private:
  ov_dtype dtype_;
  std::vector<uint8_t> bytes_;
};

// 64-bit FNV-1a over the little-endian bytes of integers, so it is the same on every machine.
class Hash {
 public:
  void add(uint64_t value, int num_bytes) {
    for (int i = 0; i < num_bytes; ++i) state_ = (state_ ^ ((value >> (8 * i)) & 0xff)) * 0x100000001b3u;
  }
  void add(const Values& values) {
    for (int64_t i = 0; i < values.count(); ++i) add(values.canonical(i), 4);
  }
  void add(float value) {
    Values one(OV_F32, 1);
    std::memcpy(one.data(), &value, 4);
    add(one);
  }
  void print(const std::string& name) const {
    std::printf("%s %016llx\n", name.c_str(), static_cast<unsigned long long>(state_));
  }

 private:
  uint64_t state_ = 0xcbf29ce484222325u;
};

inline void print_hash(const std::string& name, const Values& values) {
  Hash hash;
  hash.add(values);
  hash.print(name);
}

inline const char* name_of(ov_dtype dtype) { return dtype == OV_BF16 ? "bf16" : "f32"; }

// Memory from the library, with the alignment that it requires.
class Memory {
 public:
  explicit Memory(uint64_t num_bytes) : num_bytes_(num_bytes), address_(ov_alloc(num_bytes)) {
    if (address_ == nullptr) check_ok(OV_NO_MEMORY, "ov_alloc");
  }
  ~Memory() { ov_free(address_, num_bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void* address() const { return address_; }

 private:
  uint64_t num_bytes_;
  void* address_;
};

// A weight [n, k] in the packed form.
class Packed {
 public:
  Packed(Values rows, int64_t n, int64_t k) : Packed(rows.dtype(), rows.data(), n, k) {}
  Packed(ov_format format, const void* rows, int64_t n, int64_t k)
      : n(n), k(k), format(format), memory_(ov_packed_bytes(format, n, k)) {
    check_ok(ov_pack_rows(format, rows, k, 0, n, n, k, memory_.address()), "ov_pack_rows");
  }
  const void* address() const { return memory_.address(); }
  const int64_t n, k;
  const ov_format format;

 private:
  Memory memory_;
};

inline Values multiply(ov_pool* pool, Values& x, const Packed& weight, float* bias, ov_dtype out_dtype) {
  const int64_t m = x.count() / weight.k;
  Values y(out_dtype, m * weight.n);
  const ov_gemm_args args{x.dtype(), out_dtype, weight.format, 0,        x.data(),  weight.k, weight.address(),
                          bias,      y.data(),  weight.n,      m,        weight.n, weight.k};
  check_ok(ov_gemm(pool, &args), "ov_gemm");
  return y;
}

// Keys and values of one layer.
class KVMemory {
 public:
  KVMemory(ov_dtype dtype, int64_t num_blocks, int64_t block_size, int64_t kv_heads, int64_t head_dim)
      : keys_(ov_kv_bytes(dtype, num_blocks, block_size, kv_heads, head_dim)),
        values_(ov_kv_bytes(dtype, num_blocks, block_size, kv_heads, head_dim)),
        blocks{dtype, keys_.address(), values_.address(), num_blocks, block_size, kv_heads, head_dim} {}

  // Writes rows of k and v, `stride` elements apart, into the slots.
  void write(ov_pool* pool, const void* k, const void* v, int64_t stride, const std::vector<int64_t>& slots) {
    const int64_t dim = blocks.head_dim;
    const ov_kv_write_args args{blocks, k, stride, dim, v, stride, dim, slots.data(), int64_t(slots.size())};
    check_ok(ov_kv_write(pool, &args), "ov_kv_write");
  }

 private:
  Memory keys_, values_;

 public:
  const ov_kv_blocks blocks;
};

}  // namespace golden
