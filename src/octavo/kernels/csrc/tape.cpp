// The tape: kernel calls that are recorded once and replayed with the values of each step.
//
// Nothing is computed here. Every call goes through its function of the C interface, which checks the patched
// arguments like those of any other caller.
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "kernel_pool.h"

namespace {

struct Kernel {
  int64_t args_bytes;
  ov_status (*run)(ov_pool* pool, const void* args);
};

template <class Args, ov_status (*FUNCTION)(ov_pool*, const Args*)>
constexpr Kernel kernel_of() {
  static_assert(sizeof(Args) % 8 == 0);  // keeps the arguments of the next call aligned
  return {sizeof(Args),
          [](ov_pool* pool, const void* args) { return FUNCTION(pool, static_cast<const Args*>(args)); }};
}

// Indexed by ov_kernel.
constexpr Kernel KERNELS[] = {
    kernel_of<ov_embedding_args, ov_embedding>(),       kernel_of<ov_gemm_args, ov_gemm>(),
    kernel_of<ov_rms_norm_args, ov_rms_norm>(),         kernel_of<ov_add_rms_norm_args, ov_add_rms_norm>(),
    kernel_of<ov_rope_args, ov_rope>(),                 kernel_of<ov_gated_args, ov_gated>(),
    kernel_of<ov_add_args, ov_add>(),                   kernel_of<ov_scale_args, ov_scale>(),
    kernel_of<ov_kv_write_args, ov_kv_write>(),         kernel_of<ov_attention_args, ov_attention>(),
};
constexpr ov_kernel NUM_KERNELS = sizeof(KERNELS) / sizeof(KERNELS[0]);

struct Call {
  ov_kernel kernel;
  size_t args_at;  // in ov_tape::args
};

struct Patch {
  size_t at;  // in ov_tape::args
  int32_t source;
  int64_t addend;
};

ov_status check_call(const ov_tape_call& call, int64_t num_sources) {
  if (call.args == nullptr || (call.patches == nullptr && call.num_patches != 0)) return OV_NULL_POINTER;
  if (call.kernel < 0 || call.kernel >= NUM_KERNELS) return OV_BAD_VALUE;
  if (call.args_bytes != KERNELS[call.kernel].args_bytes || call.num_patches < 0) return OV_BAD_SIZE;
  for (int32_t i = 0; i < call.num_patches; ++i) {
    const ov_patch& patch = call.patches[i];
    if (patch.offset < 0 || patch.offset % 8 != 0 || patch.offset > call.args_bytes - 8) return OV_BAD_VALUE;
    if (patch.source < 0 || patch.source >= num_sources) return OV_BAD_VALUE;
  }
  return OV_OK;
}

}  // namespace

struct ov_tape {
  // Assigns addresses to the places: one after the other, each with room for the rows of this step.
  ov_status place(int64_t num_rows) {
    const auto size_of = [&](int64_t row_bytes) { return (row_bytes * num_rows + 63) / 64 * 64; };
    int64_t total = 0;
    for (const int64_t row_bytes : place_row_bytes) total += size_of(row_bytes);
    int64_t next = reinterpret_cast<int64_t>(memory.get(size_t(total)));
    if (next == 0 && total > 0) return OV_NO_MEMORY;
    for (size_t i = 0; i < place_row_bytes.size(); ++i) {
      sources[size_t(num_values) + i] = next;
      next += size_of(place_row_bytes[i]);
    }
    return OV_OK;
  }

  void patch() {
    for (const Patch& patch : patches) {
      const int64_t value = sources[size_t(patch.source)] + patch.addend;
      std::memcpy(args.data() + patch.at, &value, sizeof(value));
    }
  }

  // A step streams the weights through the caches, so arguments allocated call by call would be cache misses. Instead
  // they are contiguous, in the order in which they are read, and are all patched at once.
  std::vector<Call> calls;
  std::vector<Patch> patches;
  std::vector<std::byte> args;
  int64_t num_values;
  std::vector<int64_t> place_row_bytes;
  std::vector<int64_t> sources;  // the values of the step, then the addresses of the places
  octavo::Scratch memory;
};

extern "C" {

ov_status ov_tape_open(const ov_tape_call* calls, int64_t num_calls, int64_t num_values, const int64_t* place_row_bytes,
                       int64_t num_places, ov_tape** tape) {
  if (calls == nullptr || tape == nullptr || (place_row_bytes == nullptr && num_places != 0)) return OV_NULL_POINTER;
  if (!octavo::is_size(num_calls) || !octavo::is_size(num_values)) return OV_BAD_SIZE;
  if (num_places != 0 && !octavo::is_size(num_places)) return OV_BAD_SIZE;
  for (int64_t i = 0; i < num_places; ++i) {
    if (!octavo::is_size(place_row_bytes[i])) return OV_BAD_SIZE;
  }
  for (int64_t i = 0; i < num_calls; ++i) {
    if (const ov_status status = check_call(calls[i], num_values + num_places)) return status;
  }
  try {
    auto opened = std::make_unique<ov_tape>();
    opened->num_values = num_values;
    opened->place_row_bytes.assign(place_row_bytes, place_row_bytes + num_places);
    opened->sources.resize(size_t(num_values + num_places));
    for (int64_t i = 0; i < num_calls; ++i) {
      const ov_tape_call& call = calls[i];
      const size_t at = opened->args.size();
      opened->calls.push_back({call.kernel, at});
      const auto* args = static_cast<const std::byte*>(call.args);
      opened->args.insert(opened->args.end(), args, args + call.args_bytes);
      for (int32_t p = 0; p < call.num_patches; ++p) {
        const ov_patch& patch = call.patches[p];
        opened->patches.push_back({at + size_t(patch.offset), patch.source, patch.addend});
      }
    }
    *tape = opened.release();
  } catch (const std::bad_alloc&) {
    return OV_NO_MEMORY;
  }
  return OV_OK;
}

void ov_tape_close(ov_tape* tape) { delete tape; }

ov_status ov_tape_run(ov_pool* pool, ov_tape* tape, const int64_t* values, int64_t num_values) {
  if (pool == nullptr || tape == nullptr || values == nullptr) return OV_NULL_POINTER;
  if (num_values != tape->num_values || !octavo::is_size(values[0])) return OV_BAD_SIZE;
  std::memcpy(tape->sources.data(), values, size_t(num_values) * sizeof(int64_t));
  if (const ov_status status = tape->place(values[0])) return status;
  tape->patch();
  for (const Call& call : tape->calls) {
    if (const ov_status status = KERNELS[call.kernel].run(pool, tape->args.data() + call.args_at)) return status;
  }
  return OV_OK;
}

}  // extern "C"
