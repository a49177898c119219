#include "sim/engine/block_batcher.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "hw/model.hpp"
#include "sim/core/assert.hpp"
#include "sim/core/errors.hpp"
#include "sim/engine/store_rules.hpp"
#include "sim/store/stores.hpp"

namespace kvtier {

BlockBatcher::BlockBatcher(const Setup& setup)
    : config_(*setup.config),
      backend_(*setup.backend),
      requests_(*setup.requests),
      contexts_(requests_.source()),
      bytes_per_token_(kv_bytes_per_token(config_.model)),
      budget_(token_budget(config_)),
      chunk_(config_.system.blocks->chunk.value_or(budget_)) {
  const StoreRules rules = store_rules(config_);
  block_ = rules.pools.front().block.value;
  block_bytes_ = bytes_per_token_ * block_;
  capacity_ = rules.pools.front().capacity;
  store_ = setup.plain_store ? make_reference_store(rules, contexts_.streams(), *setup.registry)
                             : make_store(rules, contexts_.streams(), *setup.registry);
  for (const PoolRules& pool : rules.pools) {
    const bool first = tiers_.empty();
    const KvShares shares =
        first ? hbm_shares(config_) : KvShares{.capacity = bytes(pool.capacity)};
    tiers_.push_back(std::make_unique<Pool>(Pool::Setup{.medium = medium_of(pool.name),
                                                        .config = &config_,
                                                        .registry = setup.registry,
                                                        .shares = shares}));
  }
  counted_.resize(tiers_.size());
}

void BlockBatcher::on_cut(SessionSlot, const Truncation&) {
  KVTIER_ASSERT(false, "turns of a session are served by one instance");
}

void BlockBatcher::on_turn(SessionSlot slot) {
  if (slot >= work_.size()) {
    work_.resize(static_cast<std::size_t>(slot) + 1);
  }
  Work& work = work_[slot] = Work{};
  work.content = contexts_.of(slot, requests_.tokens(slot));
  work.prompt = work.content.prompt.tokens;
}

void BlockBatcher::on_completion(Completion completion) {
  switch (completion.kind) {
    case CompletionKind::prefill:
      finish_iteration();
      break;
    case CompletionKind::decode:
      finish_decode(static_cast<std::int64_t>(completion.payload));
      break;
    case CompletionKind::transfer:
      if ((completion.payload & kOwnerMask) == kOwnTransfer) {
        end_load(static_cast<SessionSlot>(completion.payload & ~kOwnerMask));
      }
      break;
    case CompletionKind::timer:
      KVTIER_ASSERT(false, "nothing is timed here");
  }
  proceed();
}

TierCounters BlockBatcher::counters(std::size_t tier) const {
  return tiers_[tier]->counters(backend_.now());
}

void BlockBatcher::check_invariants() const {
  store_->check_invariants();
  const FreeBlocks free = store_->free_blocks();
  KVTIER_ASSERT(tiers_.front()->total() == bytes(capacity_ - free.empty) &&
                    tiers_.front()->used(Account::running) == bytes(capacity_ - free.available),
                "HBM has running requests and stored blocks");
}

// ---- What runs next ----

void BlockBatcher::proceed() {
  if (gpu_ == Gpu::idle) {
    schedule();
  } else if (gpu_ == Gpu::decode && !stopping_ && !lacks_room_ && has_candidate()) {
    stopping_ = true;
    backend_.stop_decode();
  }
  note_wait();
}

bool BlockBatcher::has_candidate() const {
  return std::ssize(running_) + std::ssize(loading_) < config_.serving.slots &&
         (!preempted_.empty() || requests_.queue_length() > 0);
}

void BlockBatcher::note_wait() {
  const SimTime now = backend_.now();
  if (!requests_.any_waits()) {
    requests_.waits().set_none(now);
  } else if (std::ssize(running_) + std::ssize(loading_) >= config_.serving.slots) {
    requests_.waits().set(WaitCause::batch_slots, now);
  } else {
    requests_.waits().set(lacks_room_ ? WaitCause::hbm_for_kv : WaitCause::gpu_compute, now);
  }
}

void BlockBatcher::schedule() {
  store_->advance(backend_.now());
  prompts_.clear();
  Tokens budget = budget_;
  if (make_room(budget)) {
    admit_all(budget);
  }
  settle();
  parts_.clear();
  keys_.clear();
  for (const SessionSlot slot : prompts_) {
    parts_.push_back({.added = work_[slot].chunk, .past = work_[slot].computed});
    keys_.push_back(requests_.key(slot));
  }
  decoding_ = 0;
  context_ = Tokens(0);
  Tokens least = kMostIterations;
  for (const SessionSlot slot : running_) {
    const Work& work = work_[slot];
    if (work.decodes_now) {
      ++decoding_;
      context_ += work.computed + Tokens(1);
      least = std::min(least, requests_.request(slot).output - work.generated);
    }
  }
  gpu_since_ = backend_.now();
  stopping_ = false;
  if (!prompts_.empty()) {
    gpu_ = Gpu::iteration;
    backend_.start_iteration({.parts = parts_,
                              .keys = keys_,
                              .decode_batch = decoding_,
                              .decode_context = context_,
                              .load = {}});
  } else if (decoding_ > 0) {
    gpu_ = Gpu::decode;
    backend_.start_decode({.batch = decoding_,
                           .context = context_,
                           .iterations = iterations_within_room(least.value)});
  } else if (has_candidate() && loading_.empty()) {
    const SessionSlot slot =
        preempted_.empty() ? requests_.waiting(requests_.next()) : preempted_.back();
    const RequestRecord& r = requests_.request(slot);
    throw ConfigError(fmt::format(
        "/system/tiers/hbm: expected room for each turn by itself, got {} blocks of {} tokens, but "
        "turn {} of session {} takes {} tokens",
        store_->free_blocks().available, block_, r.turn, r.session, work_[slot].prompt.value));
  }
}

bool BlockBatcher::make_room(Tokens& budget) {
  bool preempted = false;
  for (std::size_t i = 0; i < running_.size(); ++i) {
    const SessionSlot slot = running_[i];
    Work& work = work_[slot];
    const bool decodes = work.computed >= work.prompt;
    const Tokens more = decodes ? std::min(budget, Tokens(1))
                                : std::min({budget, chunk_, work.prompt - work.computed});
    work.decodes_now = false;
    if (more.value == 0 || !hold(slot, work.computed + more, preempted)) {
      continue;
    }
    budget -= more;
    work.decodes_now = decodes;
    if (!decodes) {
      work.chunk = more;
      prompts_.push_back(slot);
    }
  }
  return !preempted;
}

bool BlockBatcher::hold(SessionSlot slot, Tokens tokens, bool& preempted) {
  Work& work = work_[slot];
  while (!grow(work, tokens)) {
    preempted = true;
    const bool itself = running_.back() == slot;
    preempt_last();
    if (itself) {
      return false;
    }
  }
  return true;
}

/// The store need not hear of tokens that neither begin nor fill a block.
bool BlockBatcher::grow(Work& work, Tokens tokens) {
  if (tokens <= work.held) {
    return true;
  }
  const bool begins = blocks(tokens) > blocks(work.held);
  const bool fills = tokens.value / block_ > work.held.value / block_;
  if ((begins || fills) && !store_->grow(work.id, context(work, tokens))) {
    return false;
  }
  work.held = tokens;
  return true;
}

void BlockBatcher::set_computed(Work& work, Tokens tokens) {
  const bool fills = tokens.value / block_ > work.computed.value / block_;
  work.computed = tokens;
  if (fills) {
    store_->computed(work.id, tokens);
  }
}

void BlockBatcher::preempt_last() {
  const SessionSlot slot = running_.back();
  Work& work = work_[slot];
  RequestRecord& r = requests_.request(slot);
  if (work.computed >= work.prompt) {
    r.decode_share += decode_per_request_;
  }
  let_go(slot);
  work.prompt = work.content.prompt.tokens + work.generated;
  work.chunk = Tokens(0);
  work.decodes_now = false;
  preempted_.push_back(slot);
  requests_.set_suspended(preempted_.size());
  ++preemptions_;
}

void BlockBatcher::admit_all(Tokens& budget) {
  lacks_room_ = false;
  while (budget.value > 0 && has_candidate()) {
    const bool again = !preempted_.empty();
    const QueuePosition position = again ? kNotQueued : requests_.next();
    const SessionSlot slot = again ? preempted_.back() : requests_.waiting(position);
    if (!admit(slot, again, position, budget)) {
      lacks_room_ = true;
      return;
    }
  }
}

bool BlockBatcher::admit(SessionSlot slot, bool again, QueuePosition position, Tokens& budget) {
  Work& work = work_[slot];
  const Context prompt = context(work, work.prompt);
  Match match = store_->match(prompt);
  const Tokens behind = match.tokens - match.by_pool[0];
  const Tokens known = std::min(match.tokens, work.prompt - Tokens(1));
  const Tokens chunk = std::min({budget, chunk_, work.prompt - known});
  const std::vector<SessionSlot> others = loads_met(context(work, match.by_pool[0]));
  const bool waits = behind.value > 0 || !others.empty();
  // A release says that all of it has KV, so a request that waits takes no more than it found.
  const Tokens room = waits ? match.tokens : std::max(match.tokens, known + chunk);
  const auto id = store_->acquire(prompt, room, work.prompt, match);
  if (!id) {
    return false;
  }
  work.id = *id;
  work.computed = known;
  work.held = room;
  RequestRecord& r = requests_.request(slot);
  if (again) {
    preempted_.pop_back();
    requests_.set_suspended(preempted_.size());
  } else {
    static_cast<void>(requests_.admit(position));
    const Tokens reused = std::min(match.tokens, r.history);
    const bool spread = reused > match.by_pool[0];
    r.found = {.reused = reused,
               .medium = spread ? tiers_[1]->medium() : Medium::hbm,
               .late = false,
               .cause = reused < r.history ? LossCause::capacity : LossCause::none,
               .nearer = spread ? match.by_pool[0] : Tokens(0)};
    work.found = match.by_pool;
    ++hits_.turns;
    hits_.turns_with_hits += match.tokens.value > 0 ? 1 : 0;
    hits_.prompt_tokens += work.prompt.value;
    hits_.hit_tokens[0] += match.by_pool[0].value;
    hits_.hit_tokens[1] += behind.value;
  }
  ++slots_;
  for (const SessionSlot other : others) {
    ++work.awaited;
    work_[other].followers.push_back(slot);
  }
  if (behind.value > 0) {
    begin_load(slot, match);
  }
  if (waits) {
    loading_.push_back(slot);
    return true;
  }
  running_.push_back(slot);
  work.chunk = chunk;
  budget -= chunk;
  prompts_.push_back(slot);
  return true;
}

// ---- Loads ----

void BlockBatcher::begin_load(SessionSlot slot, const Match& match) {
  Work& work = work_[slot];
  work.loads_from = match.by_pool[0];
  work.loads_to = match.tokens;
  const Bytes moved = bytes_per_token_ * (work.loads_to - work.loads_from).value;
  tiers_[1]->count().read += moved;
  loaded_ += moved;
  ++work.awaited;
  static_cast<void>(backend_.start_transfer({.from = tiers_[1]->medium(),
                                             .to = Medium::hbm,
                                             .bytes = moved,
                                             .key = requests_.key(slot),
                                             .cookie = kOwnTransfer | slot}));
}

/// Requests that load blocks of this context.
std::vector<SessionSlot> BlockBatcher::loads_met(const Context& found) const {
  std::vector<SessionSlot> met;
  std::vector<Stretch> path;
  std::vector<Stretch> other_path;
  const Streams& streams = contexts_.streams();
  streams.path(found.stream, found.tokens.value / block_, block_, path);
  for (const SessionSlot other : loading_) {
    const Work& load = work_[other];
    if (load.loads_to == load.loads_from) {
      continue;
    }
    const std::int64_t from = load.loads_from.value / block_;
    streams.path(context(load, load.loads_to).stream, load.loads_to.value / block_, block_,
                 other_path);
    const bool meets = std::any_of(path.begin(), path.end(), [&](const Stretch& a) {
      return std::any_of(other_path.begin(), other_path.end(), [&](const Stretch& b) {
        return a.stream == b.stream && std::max({a.begin, b.begin, from}) < std::min(a.end, b.end);
      });
    });
    if (meets) {
      met.push_back(other);
    }
  }
  return met;
}

void BlockBatcher::end_load(SessionSlot slot) {
  Work& work = work_[slot];
  work.loads_from = work.loads_to;
  std::vector<SessionSlot> ready = std::exchange(work.followers, {});
  ready.push_back(slot);
  for (const SessionSlot one : ready) {
    if (--work_[one].awaited == 0) {
      loading_.erase(std::find(loading_.begin(), loading_.end(), one));
      running_.push_back(one);
      if (gpu_ == Gpu::decode && !stopping_) {
        stopping_ = true;
        backend_.stop_decode();
      }
    }
  }
}

// ---- The GPUs ----

void BlockBatcher::finish_iteration() {
  const SimTime now = backend_.now();
  const auto [compute, decode_part] = backend_.iteration_time();
  const SimDuration prefill = now - gpu_since_ - decode_part;
  gpu_ = Gpu::idle;
  requests_.gpu_time().prefill += prefill;
  requests_.gpu_time().decode += decode_part;
  requests_.waits().end_command(now - gpu_since_, SimDuration(), WaitCause::gpu_compute, now);
  const auto prompts = static_cast<std::int64_t>(prompts_.size());
  requests_.report_gpu(
      GpuActivity::prefill, gpu_since_,
      prompts == 1 ? requests_.request(prompts_.front()).session : std::int64_t{-1}, prompts);
  Tokens added;
  for (const PrefillPart& part : parts_) {
    added += part.added;
  }
  if (decoding_ > 0) {
    decode_per_request_ += decode_part / decoding_;
  }
  std::vector<SessionSlot> ended;
  for (const SessionSlot slot : running_) {
    Work& work = work_[slot];
    RequestRecord& r = requests_.request(slot);
    if (work.decodes_now) {
      decode(slot, 1);
    } else if (work.chunk.value > 0) {
      r.prefill_compute += prefill * work.chunk.value / added.value;
      set_computed(work, work.computed + std::exchange(work.chunk, Tokens(0)));
      if (work.computed < work.prompt) {
        continue;
      }
      if (work.generated.value == 0) {
        r.first_token = now;
      }
      r.decode_share -= decode_per_request_;
      ++work.generated.value;
    }
    if (work.generated == r.output) {
      ended.push_back(slot);
    }
  }
  for (const SessionSlot slot : ended) {
    finish_turn(slot);
  }
}

void BlockBatcher::finish_decode(std::int64_t iterations) {
  const SimDuration duration = backend_.now() - gpu_since_;
  gpu_ = Gpu::idle;
  requests_.gpu_time().decode += duration;
  requests_.waits().end_command(duration, SimDuration(), WaitCause::gpu_compute, backend_.now());
  requests_.report_gpu(GpuActivity::decode, gpu_since_, -1, decoding_);
  decode_per_request_ += duration / decoding_;
  std::vector<SessionSlot> ended;
  for (const SessionSlot slot : running_) {
    Work& work = work_[slot];
    if (work.decodes_now) {
      decode(slot, iterations);
      if (work.generated == requests_.request(slot).output) {
        ended.push_back(slot);
      }
    }
  }
  for (const SessionSlot slot : ended) {
    finish_turn(slot);
  }
}

void BlockBatcher::decode(SessionSlot slot, std::int64_t iterations) {
  Work& work = work_[slot];
  work.generated += Tokens(iterations);
  const Tokens computed = work.computed + Tokens(iterations);
  const bool grown = grow(work, computed);
  KVTIER_ASSERT(grown, "a decode is as long as the free blocks last");
  set_computed(work, computed);
}

std::int64_t BlockBatcher::iterations_within_room(std::int64_t most) const {
  const std::int64_t available = store_->free_blocks().available;
  const auto taken = [&](std::int64_t iterations) {
    std::int64_t sum = 0;
    for (const SessionSlot slot : running_) {
      const Work& work = work_[slot];
      sum += work.decodes_now ? blocks(work.computed + Tokens(iterations)) - blocks(work.held) : 0;
    }
    return sum;
  };
  if (taken(most) <= available) {
    return most;
  }
  std::int64_t fits = 1;
  std::int64_t exceeds = most;
  while (exceeds - fits > 1) {
    const std::int64_t middle = fits + (exceeds - fits) / 2;
    (taken(middle) <= available ? fits : exceeds) = middle;
  }
  return fits;
}

void BlockBatcher::finish_turn(SessionSlot slot) {
  RequestRecord& r = requests_.request(slot);
  r.decode_share += decode_per_request_;
  backend_.end_request(requests_.key(slot));
  requests_.report_blocks(slot, work_[slot].content.prompt.tokens, work_[slot].found);
  let_go(slot);
  settle();
  contexts_.end_turn(slot, requests_.finish(slot));
  contexts_.close_ended(*store_);
}

void BlockBatcher::let_go(SessionSlot slot) {
  Work& work = work_[slot];
  const bool grown = store_->grow(work.id, context(work, work.held));
  KVTIER_ASSERT(grown, "it has memory for what it holds");
  store_->release(work.id);
  running_.erase(std::find(running_.begin(), running_.end(), slot));
  --slots_;
  lacks_room_ = false;
}

// ---- Accounts ----

void BlockBatcher::settle() {
  const SimTime now = backend_.now();
  Pool& hbm = *tiers_.front();
  const FreeBlocks free = store_->free_blocks();
  const Bytes running = bytes(capacity_ - free.available) - hbm.used(Account::running);
  const Bytes stored = bytes(free.available - free.empty) - hbm.stored();
  if (running.value < 0) {
    hbm.charge(Account::running, running);
  }
  hbm.charge_stored(stored, now);
  if (running.value > 0) {
    hbm.charge(Account::running, running);
  }
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    const PoolCounters all = store_->counters(i);
    tiers_[i]->count().insertions += all.inserted - counted_[i].inserted;
    tiers_[i]->count().evictions += all.evicted - counted_[i].evicted;
    if (i > 0) {
      const Bytes written = bytes(all.inserted - counted_[i].inserted);
      tiers_[i]->charge_stored(bytes(store_->resident_blocks(i)) - tiers_[i]->stored(), now);
      if (written.value > 0) {
        hbm.count().read += written;
        tiers_[i]->count().written += written;
        tiers_[i]->count().blocks += written;
        ++tiers_[i]->count().stores;
        static_cast<void>(backend_.start_transfer({.from = Medium::hbm,
                                                   .to = tiers_[i]->medium(),
                                                   .bytes = written,
                                                   .key = {},
                                                   .cookie = kTierTransfer}));
      }
    }
    counted_[i] = all;
  }
  requests_.occupy(std::exchange(slots_, 0), hbm.used(Account::running));
}

}  // namespace kvtier
