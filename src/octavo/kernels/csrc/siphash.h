// SipHash-2-4 (Aumasson and Bernstein): a keyed 64-bit hash. Without the key, nobody can choose inputs whose hashes
// collide more often than chance.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace octavo {

struct HashKey {
  uint64_t low, high;
};

class SipHash {
 public:
  explicit SipHash(const HashKey& key)
      : v0_(key.low ^ 0x736f6d6570736575),
        v1_(key.high ^ 0x646f72616e646f6d),
        v2_(key.low ^ 0x6c7967656e657261),
        v3_(key.high ^ 0x7465646279746573) {}

  // Adds 8 bytes.
  void add(uint64_t word) {
    v3_ ^= word;
    round();
    round();
    v0_ ^= word;
    num_bytes_ += 8;
  }

  // Adds any number of bytes, once, after all words. Returns the hash of everything.
  uint64_t finish(const void* data, size_t num_bytes) {
    static_assert(std::endian::native == std::endian::little);
    const unsigned char* bytes = static_cast<const unsigned char*>(data);
    for (; num_bytes >= 8; num_bytes -= 8, bytes += 8) {
      uint64_t word;
      std::memcpy(&word, bytes, sizeof word);
      add(word);
    }
    uint64_t last = (num_bytes_ + num_bytes) << 56;
    for (size_t i = 0; i < num_bytes; ++i) last |= uint64_t(bytes[i]) << (8 * i);
    add(last);
    v2_ ^= 0xff;
    for (int i = 0; i < 4; ++i) round();
    return v0_ ^ v1_ ^ v2_ ^ v3_;
  }

 private:
  void round() {
    v0_ += v1_, v2_ += v3_;
    v1_ = std::rotl(v1_, 13) ^ v0_, v3_ = std::rotl(v3_, 16) ^ v2_;
    v0_ = std::rotl(v0_, 32);
    v2_ += v1_, v0_ += v3_;
    v1_ = std::rotl(v1_, 17) ^ v2_, v3_ = std::rotl(v3_, 21) ^ v0_;
    v2_ = std::rotl(v2_, 32);
  }

  uint64_t v0_, v1_, v2_, v3_;
  uint64_t num_bytes_ = 0;
};

}  // namespace octavo
