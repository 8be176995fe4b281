// XXH64 with seed 0 (Yann Collet's xxHash): a checksum at the speed of memory. It detects accidental corruption but is
// not cryptographic: two inputs with the same checksum are easy to construct.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace octavo {

namespace xxh64 {

constexpr uint64_t P1 = 0x9E3779B185EBCA87, P2 = 0xC2B2AE3D27D4EB4F, P3 = 0x165667B19E3779F9, P4 = 0x85EBCA77C2B2AE63,
                   P5 = 0x27D4EB2F165667C5;

template <typename Word>
inline uint64_t load(const unsigned char* bytes) {
  static_assert(std::endian::native == std::endian::little);
  Word word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

inline uint64_t round(uint64_t lane, uint64_t word) { return std::rotl(lane + word * P2, 31) * P1; }

// Mixes in the last bytes that do not fill the four lanes, fewer than 32.
inline uint64_t finish(uint64_t sum, const unsigned char* bytes, size_t left) {
  for (; left >= 8; left -= 8, bytes += 8) sum = std::rotl(sum ^ round(0, load<uint64_t>(bytes)), 27) * P1 + P4;
  if (left >= 4) {
    sum = std::rotl(sum ^ load<uint32_t>(bytes) * P1, 23) * P2 + P3;
    left -= 4, bytes += 4;
  }
  for (; left > 0; --left, ++bytes) sum = std::rotl(sum ^ *bytes * P5, 11) * P1;
  sum = (sum ^ sum >> 33) * P2;
  sum = (sum ^ sum >> 29) * P3;
  return sum ^ sum >> 32;
}

}  // namespace xxh64

inline uint64_t checksum(const void* data, size_t num_bytes) {
  using namespace xxh64;
  const unsigned char* bytes = static_cast<const unsigned char*>(data);
  size_t left = num_bytes;
  uint64_t sum = P5;
  if (left >= 32) {
    // Four independent chains, so that the processor executes four multiplications in parallel.
    uint64_t lanes[4] = {P1 + P2, P2, 0, 0 - P1};
    for (; left >= 32; left -= 32, bytes += 32)
      for (size_t lane = 0; lane < 4; ++lane) lanes[lane] = round(lanes[lane], load<uint64_t>(bytes + 8 * lane));
    sum = std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) + std::rotl(lanes[3], 18);
    for (uint64_t lane : lanes) sum = (sum ^ round(0, lane)) * P1 + P4;
  }
  return finish(sum + num_bytes, bytes, left);
}

}  // namespace octavo
