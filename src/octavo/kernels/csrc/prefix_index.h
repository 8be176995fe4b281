// Which replica of a fleet has the KV of which prefix, in bounded memory. Only a hint for routing: an engine compares
// tokens, so a wrong entry costs time and never an answer.
//
// Each block of a prefix has a 64-bit key, a hash of its tokens and of the key of the block before. An entry says that
// a replica has a block:
//
//      entry   | key, 8 bytes | slot, 2 | epoch, 2 | last use, 4 |
//
// An entry is in the window of its key: the WINDOW entries from the one that the key selects. Every operation on a key
// looks at its whole window, so entries can be removed without marks, and when a window is full, a new entry replaces
// the one that was used least recently. An entry counts only if its epoch is the current epoch of its slot. So all
// entries of a replica are forgotten by changing one number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "octavo_kernels.h"

namespace octavo {

class PrefixIndex {
 public:
  static constexpr size_t WINDOW = 32;
  // Of one block. If more replicas have it, it is easy to find anyway, and must not displace all others.
  static constexpr int MAX_HOLDERS = 12;
  // A replica that has a block has all before it. So an entry that was displaced is noticed only if this many blocks in
  // a row are unknown.
  static constexpr int64_t MAX_GAP = 4;
  static constexpr size_t NUM_SLOTS = 1 << 16;

  static PrefixIndex* open(uint64_t num_entries);  // a power of two, at least WINDOW; null if memory is exhausted
  ~PrefixIndex();
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  void add(uint16_t slot, const uint64_t* keys, int64_t num_keys);
  void remove(uint16_t slot, const uint64_t* keys, int64_t num_keys);
  void forget(uint16_t slot) { ++epochs_[slot]; }

  // Finds the replicas that have the most blocks of a prefix, the deepest first, and returns how many were found.
  // `tie` decides between equally deep ones.
  int64_t match(const uint64_t* keys, int64_t num_keys, uint64_t tie, ov_prefix_hit* hits, int64_t max_hits);

 private:
  struct Entry {
    uint64_t key;  // 0: empty
    uint16_t slot, epoch;
    uint32_t used;  // the value of `now_` at the last use
  };
  static_assert(sizeof(Entry) == 16);

  PrefixIndex(Entry* entries, uint64_t num_entries);
  Entry& at(uint64_t key, size_t offset) { return entries_[(key + offset) & mask_]; }
  bool is_current(const Entry& entry) const { return entry.key != 0 && entry.epoch == epochs_[entry.slot]; }
  void insert(uint16_t slot, uint64_t key);
  void prefetch(uint64_t key) const;

  Entry* const entries_;
  const uint64_t mask_;
  uint32_t now_ = 0;  // the number of operations; it may overflow, only differences count
  std::vector<uint16_t> epochs_;
  // During `match`: how many blocks each slot has, and the slots for which that is not 0.
  std::vector<uint32_t> depths_;
  std::vector<uint16_t> found_;
};

}  // namespace octavo
