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
#pragma once

#include <vector>

#include "attention.h"

namespace octavo {

class AttentionPlan {
 public:
  AttentionPlan(const ov_attention_args& args, int num_threads);

  // The results of splits that are merged later.
  size_t partial_bytes() const { return size_t(num_partials_) * sizeof(float); }
  // Call once, with so much memory, before the tasks are used.
  void use(float* partials);

  const std::vector<AttentionTask>& tasks() const { return tasks_; }
  const std::vector<AttentionTask>& merges() const { return merges_; }

 private:
  void find_shared_splits();
  bool have_split_in_common(int64_t one, int64_t other, int64_t split) const;
  bool decodes(int64_t sequence) const;
  // Whole splits only: then all that are in a task see the same units of it.
  bool can_share(int64_t sequence, int64_t split) const;
  int64_t& leader(int64_t sequence, int64_t split) { return leaders_[size_t(sequence * most_splits_ + split)]; }
  bool is_shared(int64_t sequence, int64_t split) const;
  bool shares(int64_t sequence) const;

  void each_block_of_rows(const auto& visit) const;
  void plan_all(int64_t largest_cost);
  void plan_cut(AttentionTask task, int64_t sequence);
  void plan_shared_splits();
  void add(AttentionTask task, std::vector<AttentionTask>& to, int64_t sequence, int64_t partials_at);

  const ov_attention_args& args_;
  const int64_t group_;  // query heads of a key-value head
  int64_t most_splits_ = 0;
  // Of each sequence and split: the first sequence that has the split's pages, or -1 if no other has them. Empty if
  // nothing is shared.
  std::vector<int64_t> leaders_;
  std::vector<int64_t> regions_;  // of each sharing sequence and key-value head: where its partials begin

  std::vector<AttentionTask> tasks_, merges_;
  std::vector<AttentionMember> members_;
  int64_t num_partials_ = 0;  // floats
};

}  // namespace octavo
