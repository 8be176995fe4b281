// The C interface of the prefix index.
#include <bit>
#include <new>

#include "kernel_pool.h"
#include "prefix_index.h"
#include "siphash.h"

using namespace octavo;

struct ov_prefix_index {
  PrefixIndex* index;
};

namespace {

constexpr int64_t MAX_ENTRIES = int64_t(1) << 32;

uint64_t nonzero(uint64_t hash) { return hash == 0 ? 1 : hash; }

ov_status check(const ov_prefix_index* index, int32_t slot, const uint64_t* keys, int64_t num_keys) {
  if (index == nullptr || (keys == nullptr && num_keys != 0)) return OV_NULL_POINTER;
  if (slot < 0 || size_t(slot) >= PrefixIndex::NUM_SLOTS) return OV_BAD_VALUE;
  if (num_keys < 0 || num_keys > MAX_SIZE) return OV_BAD_SIZE;
  return OV_OK;
}

}  // namespace

extern "C" {

ov_status ov_prefix_root(const uint64_t* hash_key, const void* salt, int64_t num_bytes, uint64_t* key) {
  if (hash_key == nullptr || key == nullptr || (salt == nullptr && num_bytes != 0)) return OV_NULL_POINTER;
  if (num_bytes < 0 || num_bytes > MAX_SIZE) return OV_BAD_SIZE;
  *key = nonzero(SipHash({hash_key[0], hash_key[1]}).finish(salt, size_t(num_bytes)));
  return OV_OK;
}

ov_status ov_prefix_keys(const uint64_t* hash_key, uint64_t parent, const int32_t* tokens, int64_t num_blocks,
                         int64_t block_size, uint64_t* keys) {
  if (hash_key == nullptr || (num_blocks != 0 && (tokens == nullptr || keys == nullptr))) return OV_NULL_POINTER;
  if (num_blocks < 0 || num_blocks >= (int64_t(1) << 31) || !is_size(block_size)) return OV_BAD_SIZE;
  for (int64_t block = 0; block < num_blocks; ++block) {
    SipHash hash({hash_key[0], hash_key[1]});
    hash.add(parent);
    parent = nonzero(hash.finish(tokens + block * block_size, size_t(block_size) * sizeof *tokens));
    keys[block] = parent;
  }
  return OV_OK;
}

ov_status ov_prefix_open(int64_t num_entries, ov_prefix_index** index) {
  if (index == nullptr) return OV_NULL_POINTER;
  if (num_entries < int64_t(PrefixIndex::WINDOW) || num_entries > MAX_ENTRIES) return OV_BAD_SIZE;
  if (!std::has_single_bit(uint64_t(num_entries))) return OV_BAD_SIZE;
  PrefixIndex* opened = PrefixIndex::open(uint64_t(num_entries));
  ov_prefix_index* handle = opened == nullptr ? nullptr : new (std::nothrow) ov_prefix_index{opened};
  if (handle == nullptr) {
    delete opened;
    return OV_NO_MEMORY;
  }
  *index = handle;
  return OV_OK;
}

void ov_prefix_close(ov_prefix_index* index) {
  if (index == nullptr) return;
  delete index->index;
  delete index;
}

ov_status ov_prefix_add(ov_prefix_index* index, int32_t slot, const uint64_t* keys, int64_t num_keys) {
  if (const ov_status status = check(index, slot, keys, num_keys)) return status;
  index->index->add(uint16_t(slot), keys, num_keys);
  return OV_OK;
}

ov_status ov_prefix_remove(ov_prefix_index* index, int32_t slot, const uint64_t* keys, int64_t num_keys) {
  if (const ov_status status = check(index, slot, keys, num_keys)) return status;
  index->index->remove(uint16_t(slot), keys, num_keys);
  return OV_OK;
}

ov_status ov_prefix_forget(ov_prefix_index* index, int32_t slot) {
  if (const ov_status status = check(index, slot, nullptr, 0)) return status;
  index->index->forget(uint16_t(slot));
  return OV_OK;
}

ov_status ov_prefix_match(ov_prefix_index* index, const uint64_t* keys, int64_t num_keys, uint64_t tie,
                          ov_prefix_hit* hits, int64_t max_hits, int64_t* num_hits) {
  if (const ov_status status = check(index, 0, keys, num_keys)) return status;
  if (num_keys >= (int64_t(1) << 31)) return OV_BAD_SIZE;
  if (hits == nullptr || num_hits == nullptr) return OV_NULL_POINTER;
  if (!is_size(max_hits)) return OV_BAD_SIZE;
  *num_hits = index->index->match(keys, num_keys, tie, hits, max_hits);
  return OV_OK;
}

}  // extern "C"
