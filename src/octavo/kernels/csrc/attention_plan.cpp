#include "attention_plan.h"

#include <cstring>

namespace octavo {

namespace {

constexpr int64_t MAX_PARTIALS = int64_t(16) << 20;  // floats: 64 MB
constexpr int64_t NO_PARTIALS = -1;
constexpr int64_t NOT_SHARED = -1;
constexpr size_t MAX_PLANS = 8;  // of a batch; no model has that many shapes

int64_t num_splits(const AttentionTask& task) { return task.end_split - task.first_split; }
int64_t cost(const AttentionTask& task) { return num_splits(task) * (TILE_ROWS + task.num_rows); }

class Planner {
 public:
  Planner(const ov_attention_args& args, int num_threads);

  AttentionPlan plan;

 private:
  void find_shared_splits();
  bool have_same_split(int64_t one, int64_t other, int64_t split) const;
  bool decodes(int64_t sequence) const;
  // Whether the sequence attends to the whole split: then all members of a task attend to the same units.
  bool can_share(int64_t sequence, int64_t split) const;
  int64_t& leader(int64_t sequence, int64_t split) { return leaders_[size_t(sequence * max_splits_ + split)]; }
  bool is_shared(int64_t sequence, int64_t split) const;
  bool shares(int64_t sequence) const;

  void each_row_block(const auto& visit) const;
  void plan_all(int64_t largest_cost);
  void plan_cut(AttentionTask task, int64_t sequence);
  void plan_shared_splits();
  void add(AttentionTask task, std::vector<AttentionTask>& to, int64_t sequence, int64_t partials_at);

  const ov_attention_args& args_;
  const int64_t group_;  // query heads of a key-value head
  int64_t max_splits_ = 0;
  // For each sequence and split: the first sequence with the same blocks, or NOT_SHARED if no other sequence has them.
  // Empty if nothing is shared.
  std::vector<int64_t> leaders_;
  std::vector<int64_t> regions_;  // for each sharing sequence and key-value head: where its partials begin
};

Planner::Planner(const ov_attention_args& args, int num_threads)
    : args_(args), group_(args.heads / args.kv.kv_heads) {
  find_shared_splits();
  int64_t total = 0;
  each_row_block([&](const AttentionTask& task, int64_t) { total += cost(task); });
  plan_all(total / (num_threads * 4));
  if (plan.num_partials > MAX_PARTIALS) {
    leaders_.clear();
    plan_all(total);
  }
}

// -- Splits that sequences share --------------------------------------------------------------------------------------

bool Planner::decodes(int64_t sequence) const { return args_.row_counts[sequence] == 1; }

bool Planner::can_share(int64_t sequence, int64_t split) const {
  return decodes(sequence) && args_.contexts[sequence] >= (split + 1) * SPLIT;
}

bool Planner::have_same_split(int64_t one, int64_t other, int64_t split) const {
  const int64_t block_size = args_.kv.block_size;
  const int64_t first = split * SPLIT / block_size, end = parts_of((split + 1) * SPLIT, block_size);
  const int64_t* blocks = args_.blocks + args_.block_offsets[one];
  const int64_t* other_blocks = args_.blocks + args_.block_offsets[other];
  for (int64_t i = first; i < end; ++i) {
    if (blocks[i] != other_blocks[i]) return false;
  }
  return true;
}

void Planner::find_shared_splits() {
  // A window would cut the splits of each sequence differently, and a group that fills a task gains nothing.
  if (args_.num_sequences < 2 || args_.window > 0 || group_ > TASK_ROWS / 2) return;
  for (int64_t s = 0; s < args_.num_sequences; ++s) {
    if (decodes(s)) max_splits_ = at_least(max_splits_, args_.contexts[s] / SPLIT);
  }
  if (max_splits_ == 0) return;
  leaders_.assign(size_t(args_.num_sequences * max_splits_), NOT_SHARED);
  // Sequences share a prefix: after the first split that is not shared, no other is.
  bool found_any = false, found_here = true;
  for (int64_t split = 0; split < max_splits_ && found_here; ++split) {
    found_here = false;
    for (int64_t s = 1; s < args_.num_sequences; ++s) {
      if (!can_share(s, split)) continue;
      for (int64_t other = 0; other < s; ++other) {
        const bool is_first = leader(other, split) == NOT_SHARED || leader(other, split) == other;
        if (!is_first || !can_share(other, split) || !have_same_split(other, s, split)) continue;
        leader(other, split) = leader(s, split) = other;
        found_any = found_here = true;
        break;
      }
    }
  }
  if (!found_any) leaders_.clear();
}

bool Planner::is_shared(int64_t sequence, int64_t split) const {
  return !leaders_.empty() && split < max_splits_ && leaders_[size_t(sequence * max_splits_ + split)] != NOT_SHARED;
}

bool Planner::shares(int64_t sequence) const {
  for (int64_t split = 0; split < max_splits_; ++split) {
    if (is_shared(sequence, split)) return true;
  }
  return false;
}

// -- Tasks ------------------------------------------------------------------------------------------------------------

// Calls visit(task, sequence) for each block of TASK_ROWS rows. The last rows of a sequence come first: they attend to
// the most keys, and the longest tasks should start first.
void Planner::each_row_block(const auto& visit) const {
  for (int64_t s = 0; s < args_.num_sequences; ++s) {
    const int64_t num_rows = args_.row_counts[s] * group_, start = args_.contexts[s] - args_.row_counts[s];
    for (int64_t head = 0; head < args_.kv.kv_heads; ++head) {
      for (int64_t row_block = parts_of(num_rows, TASK_ROWS) - 1; row_block >= 0; --row_block) {
        const int64_t first = row_block * TASK_ROWS, last = at_most(first + TASK_ROWS, num_rows) - 1;
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

void Planner::add(AttentionTask task, std::vector<AttentionTask>& to, int64_t sequence, int64_t partials_at) {
  task.first_member = int64_t(plan.members.size());
  task.num_members = 1;
  plan.members.push_back({sequence, partials_at, nullptr});
  to.push_back(task);
}

void Planner::plan_all(int64_t largest_cost) {
  plan.tasks.clear();
  plan.merges.clear();
  plan.members.clear();
  plan.num_partials = 0;
  regions_.assign(leaders_.empty() ? 0 : size_t(args_.num_sequences * args_.kv.kv_heads), NO_PARTIALS);
  each_row_block([&](const AttentionTask& task, int64_t sequence) {
    const bool is_large = num_splits(task) > 1 && cost(task) > largest_cost;
    if (is_large || shares(sequence)) {
      plan_cut(task, sequence);
    } else {
      add(task, plan.tasks, sequence, NO_PARTIALS);
    }
  });
  plan_shared_splits();
}

// Plans a task for each split that the sequence does not share, and the merge of all its splits.
void Planner::plan_cut(AttentionTask task, int64_t sequence) {
  const int64_t size = task.num_rows * result_size(args_.kv.head_dim);
  if (!regions_.empty()) regions_[size_t(sequence * args_.kv.kv_heads + task.kv_head)] = plan.num_partials;
  add(task, plan.merges, sequence, plan.num_partials);
  for (int64_t split = task.first_split; split < task.end_split; ++split, plan.num_partials += size) {
    if (is_shared(sequence, split)) continue;
    AttentionTask part = task;
    part.first_split = split;
    part.end_split = split + 1;
    add(part, plan.tasks, sequence, plan.num_partials);
  }
}

void Planner::plan_shared_splits() {
  if (leaders_.empty()) return;
  const int64_t max_members = TASK_ROWS / group_, size = group_ * result_size(args_.kv.head_dim);
  for (int64_t split = 0; split < max_splits_; ++split) {
    for (int64_t first = 0; first < args_.num_sequences; ++first) {
      if (leader(first, split) != first) continue;
      for (int64_t head = 0; head < args_.kv.kv_heads; ++head) {
        AttentionTask task = {};
        const auto close = [&] {
          if (task.num_members > 0) plan.tasks.push_back(task);
          task.num_members = 0;
        };
        for (int64_t s = first; s < args_.num_sequences; ++s) {
          if (leader(s, split) != first) continue;
          if (task.num_members == 0) task = {nullptr, int64_t(plan.members.size()), 0, head, 0, 0, split, split + 1};
          const int64_t region = regions_[size_t(s * args_.kv.kv_heads + head)];
          plan.members.push_back({s, region + split * size, nullptr});
          ++task.num_members;
          task.num_rows += group_;
          if (task.num_members == max_members) close();
        }
        close();
      }
    }
  }
}

// -- Plans of a batch -------------------------------------------------------------------------------------------------

// Calls `visit(values, count)` for everything that the checks of a batch and its plans depend on, until a call returns
// false.
bool each_part(const ov_attention_args& args, const auto& visit) {
  const int64_t num = args.num_sequences, block_size = args.kv.block_size;
  const int64_t sizes[] = {num, args.num_rows, block_size, args.kv.num_blocks};
  if (!visit(sizes, 4) || !visit(args.first_rows, num) || !visit(args.row_counts, num)) return false;
  if (!visit(args.contexts, num) || !visit(args.block_offsets, num + 1)) return false;
  for (int64_t s = 0; s < num; ++s) {
    if (!visit(args.blocks + args.block_offsets[s], parts_of(args.contexts[s], block_size))) return false;
  }
  return true;
}

}  // namespace

void AttentionPlan::use(float* partials) {
  for (AttentionMember& member : members) {
    member.partials = member.partials_at == NO_PARTIALS ? nullptr : partials + member.partials_at;
  }
  for (std::vector<AttentionTask>* list : {&tasks, &merges}) {
    for (AttentionTask& task : *list) task.members = members.data() + task.first_member;
  }
}

bool AttentionPlans::match(const ov_attention_args& args) const {
  size_t at = 0;
  return each_part(args, [&](const int64_t* values, int64_t count) {
    const size_t end = at + size_t(count);
    if (end > batch_.size() || std::memcmp(&batch_[at], values, size_t(count) * sizeof(int64_t)) != 0) return false;
    at = end;
    return true;
  });
}

void AttentionPlans::begin(const ov_attention_args& args) {
  std::vector<int64_t> batch;
  each_part(args, [&](const int64_t* values, int64_t count) {
    batch.insert(batch.end(), values, values + count);
    return true;
  });
  plans_.clear();
  batch_ = std::move(batch);
}

AttentionPlan& AttentionPlans::plan(const ov_attention_args& args, int num_threads) {
  const Shape shape = {args.heads, args.kv.kv_heads, args.kv.head_dim, args.window};
  for (auto& [other, plan] : plans_) {
    if (other == shape) return plan;
  }
  if (plans_.size() == MAX_PLANS) plans_.clear();
  return plans_.emplace_back(shape, Planner(args, num_threads).plan).second;
}

}  // namespace octavo
