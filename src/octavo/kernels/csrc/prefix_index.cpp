#include "prefix_index.h"

#include <algorithm>
#include <new>

#include "memory.h"

namespace octavo {

PrefixIndex* PrefixIndex::open(uint64_t num_entries) {
  Entry* entries = static_cast<Entry*>(allocate(num_entries * sizeof(Entry)));
  if (entries == nullptr) return nullptr;
  try {
    return new PrefixIndex(entries, num_entries);
  } catch (const std::bad_alloc&) {
    release(entries, num_entries * sizeof(Entry));
    return nullptr;
  }
}

PrefixIndex::PrefixIndex(Entry* entries, uint64_t num_entries)
    : entries_(entries), mask_(num_entries - 1), epochs_(NUM_SLOTS), depths_(NUM_SLOTS) {
  found_.reserve(NUM_SLOTS);  // so that `match` allocates nothing
}

PrefixIndex::~PrefixIndex() { release(entries_, (mask_ + 1) * sizeof(Entry)); }

void PrefixIndex::prefetch(uint64_t key) const {
  for (size_t offset = 0; offset <= WINDOW; offset += 4) __builtin_prefetch(&entries_[(key + offset) & mask_]);
}

void PrefixIndex::add(uint16_t slot, const uint64_t* keys, int64_t num_keys) {
  ++now_;
  for (int64_t i = 0; i < num_keys; ++i) {
    if (i + 1 < num_keys) prefetch(keys[i + 1]);
    if (keys[i] != 0) insert(slot, keys[i]);
  }
}

void PrefixIndex::insert(uint16_t slot, uint64_t key) {
  Entry* chosen = nullptr;         // an unused entry, or else the oldest of the window
  Entry* oldest_holder = nullptr;  // of the same key
  int num_holders = 0;
  uint64_t chosen_age = 0;
  for (size_t offset = 0; offset < WINDOW; ++offset) {
    Entry& entry = at(key, offset);
    const bool current = is_current(entry);
    if (current && entry.key == key) {
      if (entry.slot == slot) {
        entry.used = now_;
        return;
      }
      ++num_holders;
      if (oldest_holder == nullptr || now_ - entry.used > now_ - oldest_holder->used) oldest_holder = &entry;
    }
    const uint64_t age = current ? uint64_t(now_ - entry.used) : UINT64_MAX;
    if (chosen == nullptr || age > chosen_age) chosen = &entry, chosen_age = age;
  }
  *(num_holders < MAX_HOLDERS ? chosen : oldest_holder) = {key, slot, epochs_[slot], now_};
}

void PrefixIndex::remove(uint16_t slot, const uint64_t* keys, int64_t num_keys) {
  for (int64_t i = 0; i < num_keys; ++i) {
    if (i + 1 < num_keys) prefetch(keys[i + 1]);
    for (size_t offset = 0; offset < WINDOW; ++offset) {
      Entry& entry = at(keys[i], offset);
      if (entry.key == keys[i] && entry.slot == slot) entry = {};
    }
  }
}

int64_t PrefixIndex::match(const uint64_t* keys, int64_t num_keys, uint64_t tie, ov_prefix_hit* hits,
                           int64_t max_hits) {
  ++now_;
  found_.clear();
  for (int64_t i = 0, gap = 0; i < num_keys && gap < MAX_GAP; ++i) {
    if (i + 1 < num_keys) prefetch(keys[i + 1]);
    ++gap;
    for (size_t offset = 0; offset < WINDOW; ++offset) {
      Entry& entry = at(keys[i], offset);
      if (entry.key != keys[i] || !is_current(entry)) continue;
      if (depths_[entry.slot] == 0) found_.push_back(entry.slot);
      depths_[entry.slot] = uint32_t(i + 1);
      entry.used = now_;
      gap = 0;
    }
  }
  const auto mixed = [tie](uint16_t slot) { return (tie ^ slot) * 0x9E3779B97F4A7C15; };
  const auto is_better = [&](uint16_t a, uint16_t b) {
    return depths_[a] != depths_[b] ? depths_[a] > depths_[b] : mixed(a) < mixed(b);
  };
  const size_t num_hits = std::min(found_.size(), size_t(max_hits));
  std::partial_sort(found_.begin(), found_.begin() + int64_t(num_hits), found_.end(), is_better);
  for (size_t i = 0; i < num_hits; ++i) hits[i] = {int32_t(found_[i]), int32_t(depths_[found_[i]])};
  for (const uint16_t slot : found_) depths_[slot] = 0;
  return int64_t(num_hits);
}

}  // namespace octavo
