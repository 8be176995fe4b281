// How attention is divided into tasks. Results do not depend on it.
//
// Usually a task is up to 64 rows of one key-value head of a sequence, over all their splits. A task that is a large
// part of all work (a long context, few sequences) is divided further, into one task per split, and merged afterwards.
//
// Sequences that decode after the same prompt share its blocks. A split whose blocks are all shared is read once for
// all these sequences: their rows are in the same tiles, which would otherwise be nearly empty.
//
//     split            0         1         2
//     sequence 0   [ shared ][ shared ][  own  ]
//     sequence 1   [ shared ][ shared ][  own  ]      two tasks for each key-value head, and one more for each
//     sequence 2   [ shared ][ shared ][  own  ]      sequence; then a merge for each sequence
//
// The layers of a model run attention over the same batch one after the other, so the plans are kept until the batch
// changes.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "attention.h"

namespace octavo {

struct AttentionPlan {
  // Memory for the results of splits that are merged later.
  size_t partial_bytes() const { return size_t(num_partials) * sizeof(float); }
  // Sets that memory. Must be called before the tasks run.
  void use(float* partials);

  std::vector<AttentionTask> tasks, merges;
  std::vector<AttentionMember> members;
  int64_t num_partials = 0;  // floats
};

// The plans of one batch: one for each combination of shape and window among the layers; most models have one or two.
//
// Batches are compared by the contents of their vectors and not by address, since callers reuse the memory. Comparing
// takes far less time than planning.
class AttentionPlans {
 public:
  // Whether the arguments describe the current batch. The arguments are unchecked, but the comparison reads only
  // elements that ov_attention may read: it stops at the first difference from the current batch, which was checked.
  bool match(const ov_attention_args& args) const;
  // Makes this the current batch. The arguments have been checked.
  void begin(const ov_attention_args& args);
  // Returns a plan of the current batch. Valid until the next call.
  AttentionPlan& plan(const ov_attention_args& args, int num_threads);

 private:
  // Everything that a plan depends on besides the batch.
  struct Shape {
    bool operator==(const Shape&) const = default;
    int64_t heads, kv_heads, head_dim, window;
  };

  std::vector<int64_t> batch_;  // see each_part
  std::vector<std::pair<Shape, AttentionPlan>> plans_;
};

}  // namespace octavo
