// How attention is cut into tasks. None of it shows in a result.
//
// Usually a task is up to 64 rows of one key-value head of a sequence, over all their splits. One that is much of the
// whole (a long context, few sequences) is cut further, into one task for each split, and merged afterwards.
//
// Sequences that decode behind the same prompt have its pages in common. A split of which all pages are the same is
// read once for all of them: their rows stand in the same tiles, which are nearly empty otherwise.
//
//     split            0         1         2
//     sequence 0   [ shared ][ shared ][ alone ]
//     sequence 1   [ shared ][ shared ][ alone ]      two tasks for each key-value head, and one more for each
//     sequence 2   [ shared ][ shared ][ alone ]      sequence; then a merge for each sequence
//
// The layers of a model attend over the same batch one after the other, so its plans are kept until another batch comes.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "attention.h"

namespace octavo {

struct AttentionPlan {
  // The results of splits that are merged later.
  size_t partial_bytes() const { return size_t(num_partials) * sizeof(float); }
  // Call it with so much memory before the tasks are used.
  void use(float* partials);

  std::vector<AttentionTask> tasks, merges;
  std::vector<AttentionMember> members;
  int64_t num_partials = 0;  // floats
};

// The plans of one batch: one for each shape and window among the layers, which are one or two in most models.
//
// A batch is known by what its vectors hold and not by where they are, since callers use the same memory for the next
// one. To compare them takes far less time than to plan.
class AttentionPlans {
 public:
  // Whether the arguments have the batch that was begun last. Reads of its vectors only what ov_attention may read,
  // although these arguments may be wrong: a batch that was begun is not.
  bool are_of(const ov_attention_args& args) const;
  void begin(const ov_attention_args& args);
  // Of the batch that was begun. Valid until the next call.
  AttentionPlan& plan(const ov_attention_args& args, int num_threads);

 private:
  // What a plan depends on besides the batch.
  struct Shape {
    bool operator==(const Shape&) const = default;
    int64_t heads, kv_heads, head_dim, window;
  };

  std::vector<int64_t> batch_;  // see each_part
  std::vector<std::pair<Shape, AttentionPlan>> plans_;
};

}  // namespace octavo
