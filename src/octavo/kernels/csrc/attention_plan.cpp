#include "attention_plan.h"

namespace octavo {

namespace {

constexpr int64_t MOST_PARTIALS = int64_t(16) << 20;  // floats: 64 MB
constexpr int64_t NO_PARTIALS = -1;
constexpr int64_t ALONE = -1;

int64_t num_splits(const AttentionTask& task) { return task.end_split - task.first_split; }
int64_t cost(const AttentionTask& task) { return num_splits(task) * (TILE_ROWS + task.num_rows); }

}  // namespace

AttentionPlan::AttentionPlan(const ov_attention_args& args, int num_threads)
    : args_(args), group_(args.heads / args.pages.kv_heads) {
  find_shared_splits();
  int64_t total = 0;
  each_block_of_rows([&](const AttentionTask& task, int64_t) { total += cost(task); });
  plan_all(total / (num_threads * 4));
  if (num_partials_ > MOST_PARTIALS) {
    leaders_.clear();
    plan_all(total);
  }
}

// -- Splits that sequences have in common -----------------------------------------------------------------------------

bool AttentionPlan::decodes(int64_t sequence) const { return args_.row_counts[sequence] == 1; }

bool AttentionPlan::can_share(int64_t sequence, int64_t split) const {
  return decodes(sequence) && args_.contexts[sequence] >= (split + 1) * SPLIT;
}

bool AttentionPlan::have_split_in_common(int64_t one, int64_t other, int64_t split) const {
  const int64_t page = args_.pages.page_size, first = split * SPLIT / page, end = parts_of((split + 1) * SPLIT, page);
  const int64_t* blocks = args_.blocks + args_.block_offsets[one];
  const int64_t* other_blocks = args_.blocks + args_.block_offsets[other];
  for (int64_t i = first; i < end; ++i) {
    if (blocks[i] != other_blocks[i]) return false;
  }
  return true;
}

void AttentionPlan::find_shared_splits() {
  // A window would cut splits differently for each sequence; and a group that fills a task gains nothing.
  if (args_.num_sequences < 2 || args_.window > 0 || group_ > TASK_ROWS / 2) return;
  for (int64_t s = 0; s < args_.num_sequences; ++s) {
    if (decodes(s)) most_splits_ = at_least(most_splits_, args_.contexts[s] / SPLIT);
  }
  if (most_splits_ == 0) return;
  leaders_.assign(size_t(args_.num_sequences * most_splits_), ALONE);
  // What is shared begins with the prompt: behind a split that nobody shares there are no others.
  bool found_any = false, found_here = true;
  for (int64_t split = 0; split < most_splits_ && found_here; ++split) {
    found_here = false;
    for (int64_t s = 1; s < args_.num_sequences; ++s) {
      if (!can_share(s, split)) continue;
      for (int64_t other = 0; other < s; ++other) {
        const bool is_first = leader(other, split) == ALONE || leader(other, split) == other;
        if (!is_first || !can_share(other, split) || !have_split_in_common(other, s, split)) continue;
        leader(other, split) = leader(s, split) = other;
        found_any = found_here = true;
        break;
      }
    }
  }
  if (!found_any) leaders_.clear();
}

bool AttentionPlan::is_shared(int64_t sequence, int64_t split) const {
  return !leaders_.empty() && split < most_splits_ && leaders_[size_t(sequence * most_splits_ + split)] != ALONE;
}

bool AttentionPlan::shares(int64_t sequence) const {
  for (int64_t split = 0; split < most_splits_; ++split) {
    if (is_shared(sequence, split)) return true;
  }
  return false;
}

// -- Tasks ------------------------------------------------------------------------------------------------------------

// Longest first: the last rows of a sequence see most.
void AttentionPlan::each_block_of_rows(const auto& visit) const {
  for (int64_t s = 0; s < args_.num_sequences; ++s) {
    const int64_t num_rows = args_.row_counts[s] * group_, start = args_.contexts[s] - args_.row_counts[s];
    for (int64_t head = 0; head < args_.pages.kv_heads; ++head) {
      for (int64_t block = parts_of(num_rows, TASK_ROWS) - 1; block >= 0; --block) {
        const int64_t first = block * TASK_ROWS, last = at_most(first + TASK_ROWS, num_rows) - 1;
        const int64_t first_key = args_.window > 0 ? at_least(start + first / group_ - args_.window + 1, 0) : 0;
        const int64_t last_key = start + last / group_;
        AttentionTask task = {};
        task.kv_head = head;
        task.first_row = first;
        task.num_rows = last - first + 1;
        task.first_split = first_key / SPLIT;
        task.end_split = last_key / SPLIT + 1;
        visit(task, s);
      }
    }
  }
}

void AttentionPlan::add(AttentionTask task, std::vector<AttentionTask>& to, int64_t sequence, int64_t partials_at) {
  task.first_member = int64_t(members_.size());
  task.num_members = 1;
  members_.push_back({sequence, partials_at, nullptr});
  to.push_back(task);
}

void AttentionPlan::plan_all(int64_t largest_cost) {
  tasks_.clear();
  merges_.clear();
  members_.clear();
  num_partials_ = 0;
  regions_.assign(leaders_.empty() ? 0 : size_t(args_.num_sequences * args_.pages.kv_heads), NO_PARTIALS);
  each_block_of_rows([&](const AttentionTask& task, int64_t sequence) {
    const bool is_large = num_splits(task) > 1 && cost(task) > largest_cost;
    if (is_large || shares(sequence)) {
      plan_cut(task, sequence);
    } else {
      add(task, tasks_, sequence, NO_PARTIALS);
    }
  });
  plan_shared_splits();
}

// A task for each split that the sequence has alone, and the merge of all.
void AttentionPlan::plan_cut(AttentionTask task, int64_t sequence) {
  const int64_t size = task.num_rows * result_size(args_.pages.head_dim);
  if (!regions_.empty()) regions_[size_t(sequence * args_.pages.kv_heads + task.kv_head)] = num_partials_;
  add(task, merges_, sequence, num_partials_);
  for (int64_t split = task.first_split; split < task.end_split; ++split, num_partials_ += size) {
    if (is_shared(sequence, split)) continue;
    AttentionTask part = task;
    part.first_split = split;
    part.end_split = split + 1;
    add(part, tasks_, sequence, num_partials_);
  }
}

void AttentionPlan::plan_shared_splits() {
  if (leaders_.empty()) return;
  const int64_t most_members = TASK_ROWS / group_, size = group_ * result_size(args_.pages.head_dim);
  for (int64_t split = 0; split < most_splits_; ++split) {
    for (int64_t first = 0; first < args_.num_sequences; ++first) {
      if (leader(first, split) != first) continue;
      for (int64_t head = 0; head < args_.pages.kv_heads; ++head) {
        AttentionTask task = {};
        const auto close = [&] {
          if (task.num_members > 0) tasks_.push_back(task);
          task.num_members = 0;
        };
        for (int64_t s = first; s < args_.num_sequences; ++s) {
          if (leader(s, split) != first) continue;
          if (task.num_members == 0) task = {nullptr, int64_t(members_.size()), 0, head, 0, 0, split, split + 1};
          const int64_t region = regions_[size_t(s * args_.pages.kv_heads + head)];
          members_.push_back({s, region + split * size, nullptr});
          ++task.num_members;
          task.num_rows += group_;
          if (task.num_members == most_members) close();
        }
        close();
      }
    }
  }
}

void AttentionPlan::use(float* partials) {
  for (AttentionMember& member : members_) {
    member.partials = member.partials_at == NO_PARTIALS ? nullptr : partials + member.partials_at;
  }
  for (std::vector<AttentionTask>* some : {&tasks_, &merges_}) {
    for (AttentionTask& task : *some) task.members = members_.data() + task.first_member;
  }
}

}  // namespace octavo
