// A checksum at the speed of memory, for data that accidents may have changed.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace octavo {

// Eight chains, so that the processor works on eight multiplications at once. A step is a bijection of the chain for a
// given word and of the word for a given chain: a change inside one word always shows, others but for one in 2^64.
inline uint64_t checksum(const void* data, size_t num_bytes) {
  constexpr size_t LANES = 8;
  constexpr uint64_t FACTOR = 0x9E3779B97F4A7C15;  // odd, with bits everywhere
  const auto step = [](uint64_t chain, uint64_t word) { return std::rotl(chain ^ word, 29) * FACTOR; };

  uint64_t chains[LANES];
  for (size_t lane = 0; lane < LANES; lane++) chains[lane] = FACTOR * (lane + 1);
  const char* bytes = static_cast<const char*>(data);
  size_t left = num_bytes;
  uint64_t words[LANES];
  for (; left >= sizeof words; left -= sizeof words, bytes += sizeof words) {
    std::memcpy(words, bytes, sizeof words);
    for (size_t lane = 0; lane < LANES; lane++) chains[lane] = step(chains[lane], words[lane]);
  }
  std::memset(words, 0, sizeof words);
  std::memcpy(words, bytes, left);
  uint64_t sum = step(FACTOR, num_bytes);  // tells a tail of zeros from none
  for (size_t lane = 0; lane < LANES; lane++) sum = step(sum, step(chains[lane], words[lane]));
  return sum ^ (sum >> 32);
}

}  // namespace octavo
