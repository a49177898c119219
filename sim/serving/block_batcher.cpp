#include "sim/serving/block_batcher.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "hw/model/model.hpp"
#include "sim/core/assert.hpp"
#include "sim/core/errors.hpp"
#include "sim/serving/history.hpp"
#include "sim/serving/store_rules.hpp"
#include "sim/store/block_run.hpp"
#include "sim/store/blocks/stores.hpp"
#include "sim/store/entries/policy_order.hpp"

namespace kvtier {
namespace {

/// The purpose of a transfer. A load comes from the tier behind HBM, and a request's load has no
/// purpose set. A fetch comes from behind that tier, before the load. The rest of the cookie is the
/// request or the copy.
constexpr std::uint64_t kIterationLoad = std::uint64_t{1} << 48;
constexpr std::uint64_t kFetchForIteration = std::uint64_t{6} << 48;
constexpr std::uint64_t kFetchForRequest = std::uint64_t{2} << 48;
constexpr std::uint64_t kCopy = std::uint64_t{3} << 48;
constexpr std::uint64_t kStallingCopy = std::uint64_t{4} << 48;
/// The cookie of a copy has its tier beside its number.
constexpr std::uint64_t kTierShift = 40;
constexpr std::uint64_t kPurposeMask = std::uint64_t{0xff} << 48;

std::uint64_t cookie_of(std::uint64_t tier, std::uint32_t copy) {
  return kCopy | (tier << kTierShift) | copy;
}

}  // namespace

BlockBatcher::BlockBatcher(const Setup& setup)
    : config_(*setup.config),
      backend_(*setup.backend),
      requests_(*setup.requests),
      keeps_kv_behind_cuts_(keeps_kv_behind_cuts(config_, requests_.source())),
      contexts_(requests_.source(), keeps_kv_behind_cuts_),
      loads_alone_(load_wait(config_.system) == LoadWait::request),
      by_priority_(requests_.preempts_by_priority()),
      found_when_scheduled_(config_.system.blocks->publication == Publication::scheduling),
      bytes_per_token_(kv_bytes_per_token(config_.model)),
      stored_bytes_per_token_(stored_kv_bytes_per_token(config_)),
      is_tree_(config_.system.blocks->unit == EvictionUnit::node),
      merges_((is_tree_ || config_.system.blocks->duplicates == Duplicates::merged) &&
              config_.system.blocks->publication < Publication::end),
      unequal_sizes_(has_unequal_layers(config_) ? stored_layer_sizes(config_)
                                                 : std::vector<Bytes>()),
      checks_sums_(setup.plain_store),
      whole_response_(config_.system.blocks->whole_response),
      takes_promised_(whole_response_ && config_.system.blocks->publication == Publication::never),
      delays_duplicates_(config_.system.blocks->delays_duplicates),
      whole_prompts_(config_.system.blocks->whole_prompts),
      keeps_nothing_(config_.system.blocks->publication == Publication::never &&
                     config_.system.tiers.count() == 1),
      prompts_first_(config_.system.batching != Batching::unified),
      one_prompt_(config_.system.batching == Batching::prefill_first),
      predictor_(config_.system.length_prediction, static_cast<std::uint64_t>(config_.seed)),
      budget_(token_budget(config_)),
      chunk_(config_.system.blocks->chunk.value_or(budget_)) {
  const StoreRules rules = timed_store_rules(config_);
  block_ = rules.pools.front().block.value;
  capacity_ = rules.pools.front().capacity;
  watermark_ =
      static_cast<std::int64_t>(config_.system.blocks->watermark * static_cast<double>(capacity_));
  if (setup.store == nullptr) {
    own_store_ = setup.plain_store
                     ? make_reference_store(rules, contexts_.streams(), *setup.registry)
                     : make_store(rules, contexts_.streams(), *setup.registry);
  }
  store_ = setup.store != nullptr ? setup.store : own_store_.get();
  if (setup.decisions != nullptr || backend_.has_bytes()) {
    BlockLog* log = nullptr;
    if (setup.decisions != nullptr) {
      log = &decisions_.emplace(rules, contexts_.streams(), *setup.decisions,
                                [this] { return backend_.now(); });
    }
    if (backend_.has_bytes()) {
      log = &bytes_.emplace(rules, contexts_.streams(), backend_, log);
    }
    const bool tells = store_->set_log(log);
    KVTIER_ASSERT(tells, "the options were checked");
  }
  for (const PoolRules& pool : rules.pools) {
    const bool first = accounts_.empty();
    block_tokens_.push_back(pool.block.value);
    const KvShares shares =
        first ? hbm_shares(config_) : KvShares{.capacity = bytes(accounts_.size(), pool.capacity)};
    accounts_.push_back(std::make_unique<Pool>(
        Pool::Setup{.medium = medium_of(pool.name), .registry = setup.registry, .shares = shares}));
  }
  later_writes_.resize(accounts_.size());
  buffers_.resize(accounts_.size());
  for (std::size_t i = 1; i < accounts_.size(); ++i) {
    buffers_[i].capacity = is_buffered(rules, i) ? config_.system.save.write_buffer : Bytes(0);
  }
  counted_.resize(accounts_.size());
  requests_.set_stored(this);
  looking_ahead_ = store_->looking_ahead();
  for (PolicyOrder* policies : looking_ahead_) {
    policies->set_queue(requests_);
  }
  if (config_.system.prefetch.name != kNoPrefetch) {
    prefetches_to_ = *prefetches_to(rules);
    const Medium to = accounts_[prefetches_to_]->medium();
    const Medium from = accounts_[prefetches_to_ + 1]->medium();
    prefetch_ = std::make_unique<QueuePrefetch>(QueuePrefetch::Setup{
        .policy = known_policy(setup.registry->prefetch, config_.system.prefetch.name)
                      .make(config_.system.prefetch.parameters),
        .queue = &requests_,
        .running = this,
        .memory = stored_bytes_per_token_ * block_tokens_[prefetches_to_] *
                  rules.pools[prefetches_to_].capacity,
        .bytes_per_token = stored_bytes_per_token_,
        .reserved = stored_bytes_per_token_ * block_tokens_[prefetches_to_] *
                    rules.pools[prefetches_to_].reserved,
        .lacking =
            [this](SessionSlot slot) {
              if (work_[slot].prefetch != 0) {
                return Tokens(0);
              }
              const Match found = store_->match(prompt_of(slot));
              return found.tokens - found_near(found);
            },
        .duration = [this, from,
                     to](Bytes moved) { return requests_.topology().idle_time(from, to, moved); }});
  }
  writes_back_ = accounts_.size() > 1 && rules.edges[0].write == Write::on_evict;
  ahead_ = blocks_ahead(rules);
  loads_beside_writes_ = has_victims_behind(rules);
  const bool responses_behind =
      rules.pools.size() > 1 && rules.edges.front().responses == Responses::computed;
  offers_responses_ = store_->offloads() && responses_behind;
  const auto is_filtered = [](const PoolRules& pool) { return filters_admission(pool); };
  // A tree takes a response at its end.
  notes_responses_ = !is_tree_ && (rules.publication == Publication::computed || responses_behind ||
                                   std::ranges::any_of(rules.pools, is_filtered) || bytes_);
}

void BlockBatcher::on_turn(SessionSlot slot) {
  if (slot >= work_.size()) {
    work_.resize(static_cast<std::size_t>(slot) + 1);
  }
  Work& work = work_[slot] = Work{};
  work.content = contexts_.of(slot, requests_.tokens(slot));
  work.prompt = work.content.prompt.tokens;
  if (whole_response_) {
    const RequestRecord& r = requests_.request(slot);
    work.expected = std::min(work.prompt + predictor_.predict(r.session, r.turn, r.output),
                             Tokens(capacity_ * block_));
  }
  if (keeps_kv_behind_cuts_ && requests_.request(slot).truncated.value > 0) [[unlikely]] {
    cut_history(slot);
  }
  if (requests_.is_dispatched()) [[unlikely]] {
    work.fetches_kv = requests_.fetches_kv(slot);
    requests_.note_cached(slot, store_->match(work.content.prompt).tokens);
  }
}

void BlockBatcher::cut_history(SessionSlot slot) {
  end_requests();
  settle();
  const Truncation cut = truncation_of(requests_.request(slot), config_.serving);
  const StreamId stream = work_[slot].content.prompt.stream;
  const Stretch gone{stream, cut.kept.value, (cut.kept + cut.dropped).value};
  for (Copy& copy : next_copies_) {
    leave_cut(copy.stretches, gone);
  }
  for (LaterWrites& writes : later_writes_) {
    for (Copy& copy : writes.waiting) {
      leave_cut(copy.stretches, gone);
    }
  }
  store_->cut(stream, cut.kept, cut.dropped);
  backend_.cut({contexts_.streams().birth(stream)}, cut.kept, cut.dropped);
  settle();
}

void BlockBatcher::on_enqueued(SessionSlot slot, QueuePosition position) {
  work_[slot].priority = requests_.priority(slot);
  work_[slot].position = position;
  tell_waiting(slot, position);
  if (by_priority_ && requests_.next() == position &&
      (asks_again_.empty() || precedes(slot, asks_again_.front()))) {
    lacks_room_ = false;
  }
  schedule_soon();
}

void BlockBatcher::tell_waiting(SessionSlot slot, QueuePosition position) {
  if (prefetch_) {
    const Context prompt = prompt_of(slot);
    std::vector<Stretch> path;
    const std::int64_t size = block_tokens_[prefetches_to_];
    contexts_.streams().path(prompt.stream, prompt.tokens.value / size, size, path);
    prefetch_->begin_waiting(position, path, prompt.tokens);
  }
  for (PolicyOrder* policies : looking_ahead_) {
    policies->begin_waiting(prompt_of(slot), position);
  }
}

SessionSlot BlockBatcher::take_from_queue(QueuePosition position) {
  if (prefetch_) {
    prefetch_->end_waiting(position);
    prefetch_waits_ = false;
  }
  for (PolicyOrder* policies : looking_ahead_) {
    policies->end_waiting(position);
  }
  return requests_.take(position);
}

void BlockBatcher::schedule_soon() {
  if (gpu_ == Gpu::idle && !std::exchange(about_to_schedule_, true)) {
    backend_.set_timer(backend_.now(), kBatcherTimer);
  }
  proceed();
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
        end_transfer(completion.payload & kPurposeMask,
                     completion.payload & ~(kOwnerMask | kPurposeMask));
      }
      break;
    case CompletionKind::timer:
      if (completion.payload == kDeadlineTimer) {
        on_deadline();
      } else {
        about_to_schedule_ = false;
      }
  }
  proceed();
}

void BlockBatcher::end_transfer(std::uint64_t purpose, std::uint64_t rest) {
  if (purpose == kFetchForRequest) {
    start_load(static_cast<SessionSlot>(rest));
  } else if (purpose == kFetchForIteration) {
    end_fetch_for_iteration();
  } else if (purpose == kCopy) {
    --copying_;
    const std::uint64_t tier = rest >> kTierShift;
    if (tier > 1) {
      --later_writes_[tier].in_flight;
      begin_later_writes();
    }
    on_copied(tier, static_cast<std::uint32_t>(rest));
    if (const auto awaited = awaited_.extract(static_cast<std::uint32_t>(rest))) {
      fill_buffer(tier, -awaited.mapped());
    }
  } else if (purpose == kPrefetch) {
    on_prefetched(static_cast<std::uint32_t>(rest));
  } else if (purpose == kStallingCopy) {
    end_stalling_copy();
  } else if (purpose == kIterationLoad) {
    load_.reset();
  } else {
    end_load(static_cast<SessionSlot>(rest));
  }
}

void BlockBatcher::on_copied(std::uint64_t tier, std::uint32_t id) {
  end_copy(tier, id);
  settle();  // what has arrived may be written on
}

void BlockBatcher::end_copy(std::uint64_t tier, std::uint32_t id) {
  store_->copied(id);
  prefetch_waits_ = false;
  drop_arrivals(cookie_of(tier, id));
}

TierCounters BlockBatcher::counters(std::size_t tier) const {
  return accounts_[tier]->counters(backend_.now());
}

Placement BlockBatcher::placement(SessionSlot slot) const {
  const Match found = store_->match(prompt_of(slot));
  return found.tokens.value == 0            ? Placement::none
         : found.tokens == found.by_pool[0] ? Placement::fastest
                                            : Placement::slower;
}

FoundTokens BlockBatcher::find(SessionSlot slot) const {
  const Match found = store_->refresh(prompt_of(slot));
  return {.nearest = found.by_pool[0], .total = found.tokens};
}

Tokens BlockBatcher::common_prefix(SessionSlot a, SessionSlot b) const {
  return contexts_.streams().common(prompt_of(a), prompt_of(b));
}

void BlockBatcher::check_invariants() const {
  store_->check_invariants();
  const FreeBlocks free = store_->free_blocks();
  KVTIER_ASSERT(
      accounts_.front()->total() == bytes(0, capacity_ - free.empty) &&
          accounts_.front()->used(Account::running) == bytes(0, capacity_ - free.available),
      "HBM has running requests and stored blocks");
  KVTIER_ASSERT(ended_.empty() && next_copies_.empty() && kept_.empty() && !any_copies(),
                "the tier behind knows of all that ended");
  KVTIER_ASSERT(!prefetch_ || !prefetch_->is_fetching(), "what was fetched has come");
  check_sums();
}

void BlockBatcher::check_sums() const {
  std::int64_t decoding = 0;
  Tokens context;
  std::int64_t reserved = 0;
  std::int64_t promised = 0;
  const auto add = [&](SessionSlot slot) {
    const Work& work = work_[slot];
    const std::int64_t held = blocks(work.held);
    reserved +=
        computed(slot) < work.prompt ? std::max<std::int64_t>(0, blocks(work.prompt) - held) : 0;
    promised += std::max<std::int64_t>(0, blocks(whole_context(work)) - held);
  };
  for (const Running& one : running_) {
    add(one.slot);
    if (work_[one.slot].decodes) {
      ++decoding;
      context += computed(one.slot);
      KVTIER_ASSERT(generated(one.slot) < requests_.request(one.slot).output &&
                        computed(one.slot) <= work_[one.slot].held_blocks_end,
                    "a request is due when its response ends or takes memory");
    }
  }
  std::ranges::for_each(loading_, add);
  KVTIER_ASSERT(decoding == decoding_ && context == decoding_context_,
                "requests that decode are counted");
  KVTIER_ASSERT(reserved == reserved_ && promised == promised_,
                "blocks that requests lack are counted");
}

// ---- What runs next ----

void BlockBatcher::proceed() {
  if (gpu_ == Gpu::idle) {
    if (!about_to_schedule_ && stalling_copies_ == 0) {
      if (planned_) {
        launch_if_ready();
      } else {
        schedule();
      }
    }
  } else if (!lacks_room_ && has_candidate()) {
    stop_decode();
  }
  if (prefetch_) {
    prefetch_next(false);
  }
  note_wait();
}

// ---- KV that comes nearer for requests that wait ----

void BlockBatcher::prefetch_next(bool plans) {
  prefetch_->note_demoted(store_->take_demoted());
  if (prefetch_->is_fetching() || requests_.queue_length() == 0) {
    return;
  }
  const SimTime now = backend_.now();
  const std::optional<Fetch> next = prefetch_->next(now);
  if (!next) {
    return;
  }
  if (next->at > now) {
    if (prefetch_->sets_timer(next->at)) {
      backend_.set_timer(next->at, kDeadlineTimer);
    }
    return;
  }
  const auto slot = static_cast<SessionSlot>(next->entry.value);
  if (prefetches_to_ == 0) {
    if (plans) {
      prefetch_to_first(slot);
    } else if (!prefetch_waits_ && !lacks_room_) {
      stop_decode();
    }
    return;
  }
  if (gpu_ == Gpu::idle) {
    store_->advance(now);  // it may have been idle for long
  }
  const auto begun = store_->prefetch(prompt_of(slot));
  if (!begun) {
    return;
  }
  work_[slot].prefetch = begun->id;
  const Tokens near = found_near(store_->match(prompt_of(slot)));
  prefetch_->begin(slot, begun->tokens, near + begun->tokens, now);
  pieces_.clear();
  if (backend_.has_bytes()) [[unlikely]] {
    pieces_ = pieces_of(contexts_.streams(), begun->stretches, Tokens(block_tokens_[2]));
  }
  static_cast<void>(move(2, begun->tokens, slot, kPrefetch | begun->id, pieces_));
  settle();
}

/// A request of the store holds the KV from now on, until it has come.
void BlockBatcher::prefetch_to_first(SessionSlot slot) {
  if (prefetch_waits_ || lacks_room_) {
    return;
  }
  Match match = store_->match(prompt_of(slot));
  const Room room{.taken = match.tokens,
                  .needed = match.tokens,
                  .watermark = watermark_ + (whole_response_ ? promised_ : 0),
                  .reserved = reserved_,
                  .comes_early = true};
  const auto id = match.waits ? std::nullopt : acquire_blocks(slot, room, match);
  if (!id) {
    prefetch_waits_ = true;
    return;
  }
  Work& work = work_[slot];
  work.prefetch = 1;
  work.loads = match.tokens - match.by_pool[0];
  work.loads_end = match.tokens;
  work.from_second = match.by_place[1];
  comes_to_first_ = ComesToFirst{slot, *id, match.before_loads};
  prefetch_->begin(slot, work.loads, match.tokens, backend_.now());
  settle();
}

void BlockBatcher::start_prefetch_to_first() {
  if (comes_to_first_ && !std::exchange(comes_to_first_->has_begun, true)) {
    const SessionSlot slot = comes_to_first_->slot;
    static_cast<void>(load(1, work_[slot].loads, {&slot, 1}, kPrefetch | slot));
  }
}

void BlockBatcher::end_prefetch_to_first() {
  const auto [slot, id, first, has_begun] = *std::exchange(comes_to_first_, std::nullopt);
  work_[slot].loads = Tokens(0);
  set_request(request_key(slot));
  store_->loaded(id);
  store_->publish_loaded(id);
  store_->release(id);
  if (store_->offloads()) {
    store_->end(id);
  }
  backend_.end_request(request_key(slot));
}

void BlockBatcher::on_prefetched(std::uint32_t id) {
  const auto [slot, tokens] = prefetch_->end(backend_.now());
  if (comes_to_first_) {
    end_prefetch_to_first();
  } else {
    static_cast<void>(store_->prefetched(id, tokens));
  }
  work_[slot].prefetch = 0;
  drop_arrivals(kPrefetch | id);
  settle();  // what has arrived may be written on
  lacks_room_ = prefetch_waits_ = false;
  stop_decode();
}

void BlockBatcher::on_deadline() {
  if (prefetch_) {
    prefetch_->on_timer();
  }
}

bool BlockBatcher::waits_for_storage() const {
  return prefetch_ && prefetch_->is_fetching() && requests_.queue_length() == 0 &&
         std::ranges::all_of(asks_again_, [&](SessionSlot slot) {
           return work_[slot].prefetch != 0 || uses_what_comes(slot);
         });
}

bool BlockBatcher::uses_what_comes(SessionSlot slot) const {
  // With loads of its own alone, the store publishes what it loads when it has come.
  return comes_to_first_ && (loads_beside_writes_ || !loads_alone_) &&
         contexts_.streams().common(prompt_of(slot), prompt_of(comes_to_first_->slot)) >
             comes_to_first_->first;
}

std::optional<SimDuration> BlockBatcher::tpot() const {
  // The iteration in work has not put out a token yet.
  const SimTime until = gpu_ == Gpu::idle ? backend_.now() : iteration_since_;
  SimDuration time;
  std::int64_t tokens = 0;
  for (const Running& one : running_) {
    if (const std::int64_t later = generated(one.slot).value - 1; later > 0) {
      tokens += later;
      time += until - requests_.request(one.slot).first_token;
    }
  }
  return tokens > 0 ? std::optional(time / tokens) : last_tpot_;
}

void BlockBatcher::for_each_running(const std::function<void(SimTime, Tokens)>& visit) const {
  for (const Running& one : running_) {
    if (generated(one.slot).value > 0) {
      const RequestRecord& r = requests_.request(one.slot);
      visit(r.first_token, predictor_.predict(r.session, r.turn, r.output));
    }
  }
}

void BlockBatcher::stop_decode() {
  if (gpu_ == Gpu::decode && !stopping_) {
    stopping_ = true;
    backend_.stop_decode();
  }
}

bool BlockBatcher::has_candidate() const {
  if (std::ssize(running_) >= config_.serving.slots) {
    return false;
  }
  const bool waiting = !asks_again_.empty() || requests_.queue_length() > 0;
  return (waiting && (!config_.serving.one_at_a_time || is_idle())) ||
         std::any_of(loading_.begin(), loading_.end(),
                     [&](SessionSlot slot) { return !work_[slot].loading; });
}

/// Nothing runs, and all that ended has been written.
bool BlockBatcher::is_idle() const {
  return running_.empty() && loading_.empty() && !comes_to_first_ && ended_.empty() &&
         next_copies_.empty() && kept_.empty() && !any_copies();
}

void BlockBatcher::note_wait() {
  const SimTime now = backend_.now();
  if (!requests_.any_waits()) {
    requests_.waits().set_none(now);
  } else if (std::ssize(running_) >= config_.serving.slots) {
    requests_.waits().set(WaitCause::batch_slots, now);
  } else if (waits_for_storage()) {
    requests_.waits().set(requests_.topology().wait_cause(accounts_[prefetches_to_ + 1]->medium(),
                                                          accounts_[prefetches_to_]->medium()),
                          now);
  } else {
    requests_.waits().set(lacks_room_ ? WaitCause::hbm_for_kv : WaitCause::gpu_compute, now);
  }
}

void BlockBatcher::schedule() {
  store_->advance(backend_.now());
  start_copies();
  if (checks_sums_) [[unlikely]] {
    check_sums();
  }
  prompts_.clear();
  reads_written_ = false;
  const bool preempted = plan();
  some_left_ = preempted || !ended_.empty();
  if (prefetch_ && prefetches_to_ == 0) {
    prefetch_next(true);
  }
  offer_all();
  planned_ = true;
  launch_if_ready();
}

void BlockBatcher::launch_if_ready() {
  const bool has_memory = take_memory();
  settle();
  if (has_memory && stalling_copies_ == 0) {
    launch();
    return;
  }
  is_delayed_ = true;
  if (has_memory && loads_beside_writes_ && !load_began_ && !reads_written_ &&
      tokens_to_load().value > 0) {
    load_began_ = true;
    load_prompts();
  }
}

void BlockBatcher::load_prompts() { load_ = load(1, tokens_to_load(), prompts_, kIterationLoad); }

Tokens BlockBatcher::tokens_to_load() const {
  Tokens sum;
  for (const SessionSlot slot : prompts_) {
    sum += work_[slot].loads;
  }
  return sum;
}

void BlockBatcher::launch() {
  planned_ = false;
  const bool was_delayed = std::exchange(is_delayed_, false);
  parts_.clear();
  keys_.clear();
  loaded_now_ = tokens_to_load();
  for (const SessionSlot slot : prompts_) {
    const Work& work = work_[slot];
    parts_.push_back({.added = work.chunk, .past = work.computed});
    keys_.push_back(request_key(slot));
  }
  gpu_since_ = iteration_since_ = backend_.now();
  stopping_ = false;
  if (!prompts_.empty()) {
    if (!begin_fetch_for_iteration()) {
      start_iteration();
    }
  } else if (decode_batch() > 0) {
    gpu_ = Gpu::decode;
    if (backend_.wants_running()) [[unlikely]] {
      tell_running();
    }
    const std::int64_t end = std::ranges::min_element(running_, {}, &Running::end)->end;
    backend_.start_decode({.batch = decode_batch(),
                           .context = decode_context(),
                           .iterations = iterations_within_room(end - decoded_)});
  } else if (some_left_ || !next_copies_.empty() || was_delayed) {
    // A request whose load has ended during the delay joins the next plan.
    about_to_schedule_ = true;
    backend_.set_timer(backend_.now(), kBatcherTimer);
  } else if (has_candidate() && lacks_room_ && is_idle()) {
    refuse_turn(turn_without_room());
  }
  start_prefetch_to_first();
  if (bytes_) [[unlikely]] {
    bytes_->end_moves_up();
  }
}

bool BlockBatcher::begin_fetch_for_iteration() {
  fetched_now_ = Tokens(0);
  for (const SessionSlot slot : prompts_) {
    fetched_now_ += work_[slot].loads_from_behind;
  }
  if (fetched_now_.value == 0) {
    return false;
  }
  gpu_ = Gpu::waits;
  static_cast<void>(load(2, fetched_now_, prompts_, kFetchForIteration));
  return true;
}

void BlockBatcher::end_fetch_for_iteration() {
  const SimDuration waited = backend_.now() - gpu_since_;
  const Medium from = accounts_[2]->medium();
  requests_.count_gpu(gpu_since_, {.exposed_load = waited});
  requests_.end_command(waited, waited,
                        requests_.topology().wait_cause(from, accounts_[1]->medium()));
  for (const SessionSlot slot : prompts_) {
    requests_.request(slot).exposed_load +=
        waited * work_[slot].loads_from_behind.value / fetched_now_.value;
  }
  gpu_since_ = backend_.now();
  start_iteration();
  drop_arrivals(kFetchForIteration);
}

void BlockBatcher::start_iteration() {
  gpu_ = Gpu::iteration;
  if (backend_.wants_running()) [[unlikely]] {
    tell_running();
  }
  if (loaded_now_.value > 0 && !std::exchange(load_began_, false)) {
    load_prompts();
  }
  const bool loads = load_.has_value();
  const TransferId load = loads ? *load_ : TransferId{};
  backend_.start_iteration(
      {.parts = parts_,
       .keys = keys_,
       .decode_batch = decode_batch(),
       .decode_context = decode_context(),
       .loads = {&load, loads ? std::size_t{1} : std::size_t{0}},
       .schedule = {.sizes = unequal_sizes_,
                    .whole = loads && waits_for_whole_load(config_, accounts_[1]->medium())}});
}

SessionSlot BlockBatcher::turn_without_room() const {
  const bool queued =
      asks_again_.empty() || (by_priority_ && requests_.queue_length() > 0 &&
                              precedes(requests_.waiting(requests_.next()), asks_again_.front()));
  return queued ? requests_.waiting(requests_.next()) : asks_again_.front();
}

void BlockBatcher::tell_running() {
  std::vector<EntryKey> keys;
  std::vector<Tokens> contexts;
  for (const auto& [slot, end, due] : running_) {
    if (decodes_ && work_[slot].decodes) {
      keys.push_back(request_key(slot));
      contexts.push_back(computed(slot) + Tokens(1));
    }
  }
  if (backend_.has_bytes()) {
    backend_.decode_next(keys);
  }
  if (backend_.wants_contexts()) {
    backend_.decode_contexts(contexts);
  }
}

void BlockBatcher::refuse_turn(SessionSlot slot) const {
  const RequestRecord& r = requests_.request(slot);
  throw ConfigError(fmt::format(
      "/system/tiers/hbm: expected room for each turn by itself, got {} blocks of {} tokens, but "
      "turn {} of session {} takes {} tokens",
      capacity_, block_, r.turn, r.session, work_[slot].prompt.value));
}

bool BlockBatcher::plan() {
  Tokens budget = budget_;
  if (prompts_first_) {
    admit_all(budget);
    decodes_ = prompts_.empty();
    return decodes_ && !make_room(budget);
  }
  decodes_ = true;
  const bool preempted = !make_room(budget);
  if (!preempted) {
    admit_all(budget);
  }
  return preempted;
}

bool BlockBatcher::make_room(Tokens& budget) {
  bool preempted = false;
  for (std::size_t i = 0;;) {
    // Others decode on in the memory that they have.
    const auto from = running_.begin() + static_cast<std::ptrdiff_t>(i);
    const std::int64_t most = std::min(running_.end() - from, budget.value);
    const std::int64_t others = first_due(from, from + most, decoded_ + 1) - from;
    budget -= Tokens(others);
    i += static_cast<std::size_t>(others);
    if (i == running_.size()) {
      return !preempted;
    }
    const SessionSlot slot = running_[i].slot;
    Work& work = work_[slot];
    const Tokens known = computed(slot);
    const bool decodes = known >= work.prompt;
    const Tokens more =
        decodes ? std::min(budget, Tokens(1)) : std::min({budget, chunk_, work.prompt - known});
    bool runs = true;
    while (runs && more.value > 0 && !grow(slot, known + more)) {
      preempted = true;
      runs = make_way(i, budget);
    }
    if (!runs) {
      continue;
    }
    budget -= more;
    if (decodes && more.value > 0) {
      begin_decoding(running_[i]);
    } else if (decodes) {
      stop_decoding(running_[i]);
    } else if (more.value > 0) {
      work.chunk = more;
      prompts_.push_back(slot);
    }
    ++i;
  }
}

std::size_t BlockBatcher::victim(std::size_t next) const {
  if (!by_priority_) {
    return running_.size() - 1;
  }
  // A release publishes what the iteration was about to compute. Where blocks are found only when
  // they are computed, requests that have their part of it stay.
  const auto first =
      running_.begin() + static_cast<std::ptrdiff_t>(found_when_scheduled_ ? 0 : next);
  return static_cast<std::size_t>(std::max_element(first, running_.end(),
                                                   [&](const Running& a, const Running& b) {
                                                     return precedes(a.slot, b.slot);
                                                   }) -
                                  running_.begin());
}

bool BlockBatcher::make_way(std::size_t& next, Tokens& budget) {
  const std::size_t place = victim(next);
  const SessionSlot slot = running_[place].slot;
  const bool itself = place == next;
  if (place < next) {
    const Work& work = work_[slot];
    const Tokens more = work.decodes ? Tokens(1) : work.chunk;
    take(slot, computed(slot) + more);
    budget += more;
    std::erase(prompts_, slot);
    --next;
  }
  preempt(slot);
  return !itself;
}

void BlockBatcher::insert(std::vector<SessionSlot>& slots, SessionSlot slot) const {
  slots.insert(std::upper_bound(slots.begin(), slots.end(), slot,
                                [&](SessionSlot a, SessionSlot b) { return precedes(a, b); }),
               slot);
}

/// The store need not know of tokens that neither begin nor fill a block.
bool BlockBatcher::grow(SessionSlot slot, Tokens tokens) {
  Work& work = work_[slot];
  if (tokens <= work.held) {
    return true;
  }
  if (tokens >= work.held_blocks_end) {
    set_request(request_key(slot));
    if (!store_->grow(work.id, context(work, tokens))) {
      return false;
    }
    count_lacking(work, -1);
    work.held_blocks_end = Tokens(blocks(tokens) * block_);
    count_lacking(work, 1);
  }
  work.held = tokens;
  return true;
}

void BlockBatcher::count_lacking(const Work& work, std::int64_t times) {
  reserved_ += times * lacking_blocks(work, work.prompt);
  promised_ += times * lacking_blocks(work, whole_context(work));
}

void BlockBatcher::take(SessionSlot slot, Tokens tokens) {
  const bool grown = grow(slot, tokens);
  KVTIER_ASSERT(grown, "there is room for what was chosen");
}

void BlockBatcher::preempt(SessionSlot slot) {
  let_go(slot);
  backend_.end_request(request_key(slot));
  set_preempted(slot);
  if (by_priority_) {
    insert(asks_again_, slot);
  } else {
    asks_again_.insert(asks_again_.begin(), slot);
  }
  requests_.set_suspended(asks_again_.size());
}

void BlockBatcher::set_preempted(SessionSlot slot) {
  Work& work = work_[slot];
  if (work.computed >= work.prompt) {
    requests_.request(slot).decode_share += decode_per_request_;
  }
  work.prompt = work.content.prompt.tokens + work.generated;
  work.chunk = Tokens(0);
  ++preemptions_;
  requests_.preempted(slot);
}

void BlockBatcher::admit_all(Tokens& budget) {
  lacks_room_ = false;
  requests_.begin_batch();
  std::size_t load = 0;
  std::size_t again = 0;
  while (budget.value > 0 && std::ssize(running_) < config_.serving.slots) {
    if (load < loading_.size()) {
      const SessionSlot slot = loading_[load];
      if (work_[slot].loading) {
        ++load;
        continue;
      }
      if (!join(slot, budget)) {
        lacks_room_ = true;
        return;
      }
      loading_.erase(loading_.begin() + static_cast<std::ptrdiff_t>(load));
      continue;
    }
    if (config_.serving.one_at_a_time && !is_idle()) {
      return;
    }
    const bool queued = requests_.queue_length() > 0;
    bool from_queue = again == asks_again_.size();
    if (from_queue && !queued) {
      return;
    }
    if (by_priority_ && queued && !from_queue) {
      from_queue = precedes(requests_.waiting(requests_.next()), asks_again_[again]);
    }
    const QueuePosition position = from_queue ? requests_.next() : kNotQueued;
    const SessionSlot slot = from_queue ? requests_.waiting(position) : asks_again_[again];
    const Admitted admitted = admit(slot, budget);
    if (admitted == Admitted::no_room) {
      lacks_room_ = true;
      return;
    }
    if (admitted == Admitted::later) {
      if (from_queue) {
        asks_again_.insert(asks_again_.begin() + static_cast<std::ptrdiff_t>(again),
                           take_from_queue(position));
        requests_.set_suspended(asks_again_.size());
      }
      ++again;
      continue;
    }
    if (from_queue) {
      static_cast<void>(take_from_queue(position));
    } else {
      asks_again_.erase(asks_again_.begin() + static_cast<std::ptrdiff_t>(again));
      requests_.set_suspended(asks_again_.size());
    }
  }
}

BlockBatcher::Admitted BlockBatcher::admit_to_fetch(SessionSlot slot) {
  Work& work = work_[slot];
  const Context prompt = prompt_of(slot);
  Match match = store_->match(prompt);
  const Room room{.taken = work.prompt,
                  .needed = work.prompt,
                  .watermark = running_.empty() ? 0 : watermark_,
                  .reserved = reserved_,
                  .arrives = true};
  if (!acquire(slot, room, match)) {
    return Admitted::no_room;
  }
  work.fetches_kv = false;
  // The last token is computed again, with which the response begins.
  work.computed = work.prompt - Tokens(1);
  work.loads = Tokens(0);
  work.loading = match.tokens < work.computed;
  begin_loading(slot);
  requests_.fetch(slot, work.loading ? work.prompt - match.tokens : Tokens(0));
  return Admitted::loads;
}

void BlockBatcher::begin_loading(SessionSlot slot) {
  if (by_priority_) {
    insert(loading_, slot);
  } else {
    loading_.push_back(slot);
  }
}

void BlockBatcher::on_arrived(SessionSlot slot) {
  work_[slot].loading = false;
  stop_decode();
  schedule_soon();
}

void BlockBatcher::keep(SessionSlot slot) {
  Work& work = work_[slot];
  bring_up_to_date(work);
  kept_.emplace(requests_.number(slot), Kept{work.id, context(work, work.held)});
  leave_running(slot);
}

void BlockBatcher::let_go_kept(std::uint32_t request) {
  const auto found = kept_.find(request);
  KVTIER_ASSERT(found != kept_.end(), "KV that is let go was kept");
  const bool grown = store_->grow(found->second.id, found->second.context);
  KVTIER_ASSERT(grown, "it has memory for what it holds");
  store_->release(found->second.id);
  kept_.erase(found);
  lacks_room_ = false;
  settle();
  schedule_soon();
}

Tokens BlockBatcher::next_chunk(Tokens rest, Tokens budget) const {
  if (!whole_prompts_) {
    return std::min({budget, chunk_, rest});
  }
  const bool fits = rest <= budget || (rest > budget_ && prompts_.empty());
  return fits ? rest : Tokens(0);
}

BlockBatcher::Admitted BlockBatcher::admit(SessionSlot slot, Tokens& budget) {
  Work& work = work_[slot];
  if (work.fetches_kv) [[unlikely]] {
    return admit_to_fetch(slot);
  }
  if (work.prefetch != 0) {
    prefetch_->pass_over(backend_.now());
    return Admitted::later;
  }
  if (uses_what_comes(slot)) {
    return Admitted::later;
  }
  const Context prompt = prompt_of(slot);
  Match match = store_->match(prompt);
  if (match.waits || (delays_duplicates_ && is_being_computed(slot, match))) {
    return Admitted::later;
  }
  const Tokens behind = match.tokens - match.by_pool[0];
  const Tokens known = std::min(match.tokens, work.prompt - Tokens(1));
  const Tokens chunk = next_chunk(work.prompt - known, budget);
  if (chunk.value == 0) {
    return Admitted::no_room;
  }
  const bool waits = loads_alone_ && behind.value > 0;
  // A release says that all of it has KV, so a request that waits takes no more than it found.
  const Room room{
      .taken = waits ? match.tokens : std::max(match.tokens, known + chunk),
      .needed = whole_response_ ? whole_context(work) : work.prompt,
      .watermark = (running_.empty() ? 0 : watermark_) + (whole_response_ ? promised_ : 0),
      // The promised blocks include those that the prompts of others lack.
      .reserved = waits && !whole_response_ ? reserved_ : 0};
  if (!acquire(slot, room, match)) {
    return Admitted::no_room;
  }
  work.computed = known;
  if (waits) {
    work.loading = true;
    begin_loading(slot);
    if (work.loads_from_behind.value > 0) {
      static_cast<void>(load(2, work.loads_from_behind, {&slot, 1}, kFetchForRequest | slot));
    } else {
      start_load(slot);
    }
    return Admitted::loads;
  }
  run(slot, chunk, budget);
  return Admitted::runs;
}

bool BlockBatcher::acquire(SessionSlot slot, const Room& room, Match& match) {
  Work& work = work_[slot];
  const auto id = acquire_blocks(slot, room, match,
                                 work.in_store && store_->offloads() ? work.id : RequestId{});
  if (!id) {
    return false;
  }
  reads_written_ = reads_written_ || match.reads_written;
  hold(slot, *id, room.taken, match);
  return true;
}

void BlockBatcher::hold(SessionSlot slot, RequestId id, Tokens held, Match& match) {
  Work& work = work_[slot];
  work.id = id;
  work.in_store = true;
  work.held = held;
  work.held_blocks_end = Tokens(blocks(held) * block_);
  count_lacking(work, 1);
  work.loads = match.tokens - match.by_pool[0];
  work.loads_end = match.tokens;
  work.far = std::move(match.far);
  work.from_second = std::move(match.by_place[1]);
  work.loads_from_behind = match.by_pool.size() > 2 ? work.loads - match.by_pool[1] : Tokens(0);
  if (!std::exchange(work.counted, true)) {
    match.count_fetched(work.prefetched);
    requests_.admitted(slot);
    note_found(slot, match);
    if (prefetch_) {
      note_prefetch(slot, match);
    }
  }
  ++slots_;
}

bool BlockBatcher::join(SessionSlot slot, Tokens& budget) {
  Work& work = work_[slot];
  publish_loaded(slot);
  const Tokens chunk = next_chunk(work.prompt - work.computed, budget);
  if (chunk.value == 0) {
    return false;
  }
  const std::int64_t lacking = blocks(work.prompt) - blocks(work.held);
  const std::int64_t kept = running_.empty() ? 0 : watermark_;
  if (lacking + kept > store_->free_blocks().available || !grow(slot, work.computed + chunk)) {
    return false;
  }
  run(slot, chunk, budget);
  return true;
}

void BlockBatcher::run(SessionSlot slot, Tokens chunk, Tokens& budget) {
  if (takes_promised_) {
    // Responses that are longer than was predicted may have taken it.
    static_cast<void>(grow(slot, whole_context(work_[slot])));
  }
  running_.push_back({slot});
  work_[slot].chunk = chunk;
  budget = one_prompt_ ? Tokens(0) : budget - chunk;
  prompts_.push_back(slot);
}

bool BlockBatcher::is_being_computed(SessionSlot slot, const Match& match) const {
  const Tokens end((match.tokens.value / block_ + 1) * block_);
  return std::ranges::any_of(prompts_, [&](SessionSlot other) {
    return work_[other].computed < end &&
           contexts_.streams().common(prompt_of(other), prompt_of(slot)) >= end;
  });
}

// ---- Requests that decode ----

void BlockBatcher::bring_up_to_date(Work& work) const {
  const Tokens more = decoded_since(work);
  work.computed += more;
  work.generated += more;
  work.since = decoded_;
  work.held = std::max(work.held, work.computed);
}

void BlockBatcher::begin_decoding(Running& one) {
  Work& work = work_[one.slot];
  if (!std::exchange(work.decodes, true)) {
    work.since = decoded_;
    one.end = decoded_ + (requests_.request(one.slot).output - work.generated).value;
    ++decoding_;
    decoding_context_ += work.computed;
  }
  set_due(one);
}

void BlockBatcher::stop_decoding(Running& one) {
  Work& work = work_[one.slot];
  if (work.decodes) {
    bring_up_to_date(work);
    work.decodes = false;
    --decoding_;
    decoding_context_ -= work.computed;
    one = {one.slot};
  }
}

template <class Visit>
void BlockBatcher::for_each_due(Visit visit) {
  auto one = running_.begin();
  while ((one = first_due(one, running_.end(), decoded_)) != running_.end()) {
    visit(*one++);
  }
}

void BlockBatcher::set_due(Running& one) const {
  const Work& work = work_[one.slot];
  Tokens next = std::max(work.held + Tokens(1), work.held_blocks_end);
  if (notes_responses_) {
    next = std::min(next, Tokens((work.computed.value / block_ + 1) * block_));
  }
  one.due = std::min(one.end, work.since + (next - work.computed).value);
}

void BlockBatcher::note_found(SessionSlot slot, const Match& match) {
  std::array<Tokens, kMedia> found{};
  for (std::size_t i = 0; i < accounts_.size(); ++i) {
    found[static_cast<std::size_t>(accounts_[i]->medium())] = match.by_pool[i];
  }
  RequestRecord& r = requests_.request(slot);
  r.set_found_of_prompt(
      found, keeps_nothing_ ? LossCause::not_stored : cause_of_missing(r, keeps_kv_behind_cuts_));
  if (requests_.fetches_kv(slot)) [[unlikely]] {
    return;  // its prompt was counted where it was computed
  }
  requests_.look_up_without_limit(slot);
  hits_.add(work_[slot].prompt, found, Tokens(block_));
}

void BlockBatcher::note_prefetch(SessionSlot slot, const Match& match) {
  if (const auto waited = prefetch_->use(slot, found_near(match), backend_.now())) {
    RequestRecord& r = requests_.request(slot);
    r.found.late = true;
    r.late_wait = *waited;
  }
}

// ---- Loads and copies ----

/// Tokens move a tier up for a request.
TransferId BlockBatcher::move(std::size_t from, Tokens tokens, SessionSlot slot,
                              std::uint64_t cookie, std::span<const KvPiece> pieces) {
  const Bytes moved = stored_bytes_per_token_ * tokens.value;
  accounts_[from]->count().read += moved;
  if (from == 1) {
    loaded_ += moved;
  } else {
    accounts_[from - 1]->count().written += moved;
  }
  return backend_.start_transfer({.from = accounts_[from]->medium(),
                                  .to = accounts_[from - 1]->medium(),
                                  .bytes = moved,
                                  .key = requests_.key(slot),
                                  .cookie = kOwnTransfer | cookie,
                                  .pieces = pieces});
}

TransferId BlockBatcher::load(std::size_t from, Tokens tokens, std::span<const SessionSlot> slots,
                              std::uint64_t cookie) {
  pieces_.clear();
  for (const SessionSlot slot : slots) {
    add_loads(from, slot);
  }
  return move(from, tokens, slots.front(), cookie, pieces_);
}

void BlockBatcher::add_loads(std::size_t from, SessionSlot slot) {
  const Work& work = work_[slot];
  if (!backend_.has_bytes() || work.loads.value == 0) [[likely]] {
    return;
  }
  const Tokens size(block_tokens_[from]);
  if (from > 1) {
    const std::vector<KvPiece> far = pieces_of(contexts_.streams(), work.far, size);
    pieces_.insert(pieces_.end(), far.begin(), far.end());
    return;
  }
  const Tokens first = work.loads_end - work.loads;
  std::vector<KvPiece> loaded =
      work.from_second.empty()
          ? pieces_of(contexts_.streams(), prompt_of(slot).stream, first, work.loads_end, size)
          : pieces_of(contexts_.streams(), work.from_second, size);
  for (KvPiece& piece : loaded) {
    piece.turn = request_key(slot);
    pieces_.push_back(piece);
  }
}

void BlockBatcher::drop_arrivals(std::uint64_t cookie) {
  if (backend_.has_bytes()) [[unlikely]] {
    backend_.drop_arrivals(kOwnTransfer | cookie);
  }
}

void BlockBatcher::start_load(SessionSlot slot) {
  static_cast<void>(load(1, work_[slot].loads, {&slot, 1}, slot));
  drop_arrivals(kFetchForRequest | slot);
}

// ---- Calls of the store ----

std::optional<RequestId> BlockBatcher::acquire_blocks(SessionSlot slot, const Room& room,
                                                      Match& match, RequestId again) {
  const Context prompt = prompt_of(slot);
  const EntryKey key = request_key(slot);
  if (backend_.has_bytes()) [[unlikely]] {
    const Streams& streams = contexts_.streams();
    const Context whole = work_[slot].content.whole;
    backend_.begin_request(key,
                           pieces_of(streams, whole.stream, Tokens(0), whole.tokens, Tokens(1)));
    backend_.share_blocks(
        key, match.by_place[1].empty()
                 ? pieces_of(streams, prompt.stream, Tokens(0), match.by_pool[0], Tokens(block_))
                 : pieces_of(streams, match.by_place[0], Tokens(block_)));
  }
  set_request(key, true);
  const auto id = store_->acquire(prompt, room, match, again);
  if (!id && backend_.has_bytes()) [[unlikely]] {
    backend_.end_request(key);
  }
  return id;
}

void BlockBatcher::note_computed(SessionSlot slot) {
  set_request(request_key(slot));
  store_->computed(work_[slot].id, work_[slot].computed);
  share_merged(slot, work_[slot].computed);
}

void BlockBatcher::release(SessionSlot slot) {
  set_request(request_key(slot));
  store_->release(work_[slot].id);
}

void BlockBatcher::publish_loaded(SessionSlot slot) {
  set_request(request_key(slot));
  store_->publish_loaded(work_[slot].id);
}

void BlockBatcher::share_merged(SessionSlot slot, Tokens tokens) {
  if (merges_ && backend_.has_bytes()) [[unlikely]] {
    const Tokens whole(tokens.value / block_ * block_);
    backend_.share_blocks(request_key(slot),
                          pieces_of(contexts_.streams(), context(work_[slot], tokens).stream,
                                    Tokens(0), whole, Tokens(block_)));
  }
}

void BlockBatcher::end_load(SessionSlot slot) {
  Work& work = work_[slot];
  work.loading = false;
  work.loads = work.loads_from_behind = Tokens(0);
  store_->loaded(work.id);
  stop_decode();
}

/// Offers the blocks that the iteration computes, and those of requests that have ended.
void BlockBatcher::offer_all() {
  if (!store_->offloads()) {
    return;
  }
  const auto offer = [&](SessionSlot slot) {
    Work& work = work_[slot];
    const bool decodes = decodes_ && work.decodes;
    if (work.chunk.value > 0 || work.offers_again || (decodes && offers_responses_)) {
      set_request(request_key(slot));
      work.offers_again =
          !store_->offer(work.id, computed(slot) + (decodes ? Tokens(1) : work.chunk));
      some_offer_again_ = some_offer_again_ || work.offers_again;
    }
  };
  if (std::exchange(some_offer_again_, false) || offers_responses_) {
    std::ranges::for_each(running_, offer, &Running::slot);
  } else {
    std::ranges::for_each(prompts_, offer);
  }
  end_requests();
  take_copies();
  contexts_.close_ended(*store_);
}

void BlockBatcher::end_requests() {
  for (const Ended& ended : ended_) {
    set_request(ended.key);
    static_cast<void>(store_->offer(ended.id, ended.computed));
  }
  for (const Ended& ended : ended_) {
    store_->end(ended.id);
    backend_.end_request(ended.key);
  }
  ended_.clear();
}

void BlockBatcher::take_copies() {
  if (accounts_.size() == 1) {
    return;
  }
  bool later = false;
  for (const Copy& copy : store_->take_copies()) {
    if (copy.pool == 1 && store_->offloads()) {
      next_copies_.push_back(copy);
    } else if (copy.pool > 1 && !copy.waits) {
      later_writes_[copy.pool].waiting.push_back(copy);
      later = true;
    } else {
      start_copy(copy);
    }
  }
  for (const Copy& awaited : store_->take_awaited()) {
    const auto waits = std::ranges::find(next_copies_, awaited.id, &Copy::id);
    if (waits != next_copies_.end()) {
      start_copy(*waits);
      next_copies_.erase(waits);
    }
    const Bytes held = bytes(awaited.pool, awaited.blocks);
    awaited_[awaited.id] += held;
    fill_buffer(awaited.pool, held);
  }
  if (later) {
    begin_later_writes();
  }
}

void BlockBatcher::start_copies() {
  std::for_each(next_copies_.begin(), next_copies_.end(),
                [&](const Copy& copy) { start_copy(copy); });
  next_copies_.clear();
}

void BlockBatcher::start_copy(const Copy& copy) {
  if (copy.waits) {
    begin_stalling_copy();
  } else {
    ++copying_;
  }
  start_write(copy, kOwnTransfer | (copy.waits ? kStallingCopy : cookie_of(copy.pool, copy.id)));
}

/// To a tier from the one before it.
void BlockBatcher::start_write(const Copy& copy, std::uint64_t cookie) {
  Pool& from = *accounts_[copy.pool - 1];
  Pool& to = *accounts_[copy.pool];
  const Bytes written = bytes(copy.pool, copy.blocks);
  pieces_.clear();
  if (backend_.has_bytes()) [[unlikely]] {
    for (const Stretch& stretch : copy.stretches) {
      pieces_.push_back(piece_of(contexts_.streams(), stretch, Tokens(block_tokens_[copy.pool])));
    }
  }
  from.count().read += written;
  to.count().written += written;
  to.count().blocks += written;
  ++to.count().stores;
  static_cast<void>(backend_.start_transfer({.from = from.medium(),
                                             .to = to.medium(),
                                             .bytes = written,
                                             .key = {},
                                             .cookie = cookie,
                                             .pieces = pieces_}));
}

/// Writes share the rate of a tier, so that many at once all arrive late.
void BlockBatcher::begin_later_writes() {
  // HiCache has one thread that backs up, LMCache four workers of a disk.
  const std::int64_t most = is_tree_ ? 1 : 4;
  for (std::size_t i = 0; i < later_writes_.size(); ++i) {
    LaterWrites& writes = later_writes_[i];
    while ((stalling_copies_ == 0 || buffers_[i].is_exceeded()) && writes.in_flight < most &&
           !writes.waiting.empty()) {
      ++writes.in_flight;
      start_copy(writes.waiting.front());
      writes.waiting.pop_front();
    }
  }
}

void BlockBatcher::fill_buffer(std::size_t tier, Bytes more) {
  WriteBuffer& buffer = buffers_[tier];
  const bool was_exceeded = buffer.is_exceeded();
  buffer.used += more;
  if (buffer.is_exceeded() && !was_exceeded) {
    begin_stalling_copy();
  } else if (was_exceeded && !buffer.is_exceeded()) {
    end_stalling_copy();
  }
}

void BlockBatcher::begin_stalling_copy() {
  if (stalling_copies_++ == 0) {
    stalled_since_ = backend_.now();
    stop_decode();
  }
}

void BlockBatcher::set_idle() {
  gpu_ = Gpu::idle;
  stalled_since_ = backend_.now();  // if a copy stalls since the iteration began
}

void BlockBatcher::end_stalling_copy() {
  if (--stalling_copies_ == 0) {
    begin_later_writes();
    if (gpu_ == Gpu::idle) {
      requests_.count_gpu(stalled_since_, {.exposed_save = backend_.now() - stalled_since_});
      requests_.report_gpu(GpuActivity::save_stall, stalled_since_, -1, 0);
    }
    drop_arrivals(kStallingCopy);
  }
}

// ---- The GPUs ----

void BlockBatcher::finish_iteration() {
  const SimTime now = backend_.now();
  const auto [compute, decode_part] = backend_.iteration_time();
  const bool loads = loaded_now_.value > 0;
  const SimDuration waited =
      loads ? requests_.waited_for_kv(now - gpu_since_, compute) : SimDuration();
  const SimDuration prefill = now - gpu_since_ - waited - decode_part;
  set_idle();
  requests_.count_gpu(gpu_since_,
                      {.prefill = prefill, .decode = decode_part, .exposed_load = waited});
  requests_.end_command(now - gpu_since_, waited,
                        loads ? requests_.topology().wait_cause(accounts_[1]->medium(), Medium::hbm)
                              : WaitCause::gpu_compute);
  const auto prompts = static_cast<std::int64_t>(prompts_.size());
  requests_.report_gpu(
      GpuActivity::prefill, gpu_since_,
      prompts == 1 ? requests_.request(prompts_.front()).session : std::int64_t{-1}, prompts);
  report_iterations(1);
  Tokens added;
  for (const PrefillPart& part : parts_) {
    added += part.added;
  }
  if (decode_batch() > 0) {
    decode_per_request_ += decode_part / decode_batch();
  }
  count_decoded(decodes_ ? 1 : 0);
  complete_.clear();
  for_each_due([&](Running& one) {
    const SessionSlot slot = one.slot;
    Work& work = work_[slot];
    RequestRecord& r = requests_.request(slot);
    if (work.decodes) {
      decode(one);
    } else if (work.chunk.value > 0) {
      r.prefill_compute += prefill * work.chunk.value / added.value;
      if (loads) {
        r.exposed_load += waited * work.loads.value / loaded_now_.value;
        if (work.loads.value > 0) {
          work.loads = work.loads_from_behind = Tokens(0);
          store_->loaded(work.id);
        }
      }
      work.computed += std::exchange(work.chunk, Tokens(0));
      note_computed(slot);
      if (work.computed < work.prompt) {
        return;
      }
      if (work.generated.value == 0) {
        requests_.first_token(slot);
      }
      r.decode_share -= decode_per_request_;
      ++work.generated.value;
    }
    if (work.generated == r.output) {
      complete_.push_back(slot);
    }
  });
  std::ranges::for_each(complete_, [&](SessionSlot slot) { finish_turn(slot); });
  settle();
}

void BlockBatcher::report_iterations(std::int64_t iterations) {
  if (!requests_.reports_iterations()) {
    return;
  }
  for (const auto& [slot, end, due] : running_) {
    const Tokens chunk = work_[slot].chunk;
    if ((decodes_ && work_[slot].decodes) || chunk.value > 0) {
      requests_.add_to_iteration(slot, chunk);
    }
  }
  requests_.report_iterations(iteration_since_, iterations);
}

void BlockBatcher::finish_decode(std::int64_t iterations) {
  const SimDuration duration = backend_.now() - gpu_since_;
  set_idle();
  requests_.count_gpu(gpu_since_, {.decode = duration});
  requests_.end_command(duration, SimDuration(), WaitCause::gpu_compute);
  requests_.report_gpu(GpuActivity::decode, gpu_since_, -1, decoding_);
  report_iterations(iterations);
  decode_per_request_ += duration / decoding_;
  last_tpot_ = duration / iterations;
  on_decoded(iterations);
  count_decoded(iterations);
  complete_.clear();
  for_each_due([&](Running& one) {
    if (work_[one.slot].decodes) {
      decode(one);
      if (one.end == decoded_) {
        complete_.push_back(one.slot);
      }
    }
  });
  std::ranges::for_each(complete_, [&](SessionSlot slot) { finish_turn(slot); });
}

void BlockBatcher::decode(Running& one) {
  Work& work = work_[one.slot];
  const Tokens before = work.computed;
  // A decode is as long as the free blocks last.
  take(one.slot, computed(one.slot));
  bring_up_to_date(work);
  if (notes_responses_ && work.computed.value / block_ > before.value / block_) {
    note_computed(one.slot);
  }
  set_due(one);
}

std::int64_t BlockBatcher::iterations_to_offer() const {
  std::int64_t least = kMostIterations.value;
  for (const auto& [slot, end, due] : running_) {
    if (work_[slot].decodes) {
      least = std::min(least, block_tokens_[1] - computed(slot).value % block_tokens_[1]);
    }
  }
  return std::max<std::int64_t>(1, least - 1);
}

std::int64_t BlockBatcher::iterations_within_room(std::int64_t most) {
  if (offers_responses_) {
    most = std::min(most, iterations_to_offer());
  }
  const FreeBlocks free = store_->free_blocks();
  most = iterations_within(writes_back_ ? free.empty : free.available, most);
  // Blocks are written ahead when too few are free.
  const bool writes_ahead = ahead_ > 0 && free.available > free.empty && free.empty >= ahead_;
  return writes_ahead ? iterations_within(free.empty - ahead_, most - 1) + 1 : most;
}

std::int64_t BlockBatcher::iterations_within(std::int64_t available, std::int64_t most) {
  // A request takes one block at most in each block_ iterations.
  for (std::int64_t fit = available / decoding_ * block_; fit < most;) {
    std::int64_t left = available;
    next_takes_.clear();
    for (const auto& [slot, end, due] : running_) {
      if (work_[slot].decodes) {
        const std::int64_t full = (work_[slot].held_blocks_end - computed(slot)).value;
        const std::int64_t taken = fit > full ? (fit - full + block_ - 1) / block_ : 0;
        left -= taken;
        next_takes_.push_back(full + taken * block_);
      }
    }
    if (left >= decoding_) {
      fit += left / decoding_ * block_;
      continue;
    }
    const auto without_room = next_takes_.begin() + left;
    std::nth_element(next_takes_.begin(), without_room, next_takes_.end());
    if (*without_room <= fit + block_) {
      return std::min(*without_room, most);
    }
    fit += block_;
  }
  return most;
}

void BlockBatcher::finish_turn(SessionSlot slot) {
  RequestRecord& r = requests_.request(slot);
  r.decode_share += decode_per_request_;
  if (requests_.keeps_kv(slot)) [[unlikely]] {
    keep(slot);
  } else {
    let_go(slot);
  }
  if (store_->offloads()) {
    ended_.push_back({work_[slot].id, work_[slot].computed, request_key(slot)});
    backend_.release_request(request_key(slot));
  } else {
    backend_.end_request(request_key(slot));
  }
  settle();
  contexts_.end_turn(slot, requests_.finish(slot));
  if (!store_->offloads()) {
    contexts_.close_ended(*store_);
  }
}

void BlockBatcher::let_go(SessionSlot slot) {
  Work& work = work_[slot];
  bring_up_to_date(work);
  set_request(request_key(slot));
  const Tokens left = takes_promised_ ? work.computed : work.held;
  const bool grown = store_->grow(work.id, context(work, left));
  KVTIER_ASSERT(grown, "it has memory for what it holds");
  release(slot);
  leave_running(slot);
}

void BlockBatcher::leave_running(SessionSlot slot) {
  const auto one = std::ranges::find(running_, slot, &Running::slot);
  stop_decoding(*one);
  running_.erase(one);
  count_lacking(work_[slot], -1);
  --slots_;
  lacks_room_ = prefetch_waits_ = false;
}

// ---- Accounts ----

void BlockBatcher::settle() {
  const SimTime now = backend_.now();
  Pool& hbm = *accounts_.front();
  const FreeBlocks free = store_->free_blocks();
  const Bytes running = bytes(0, capacity_ - free.available) - hbm.used(Account::running);
  const Bytes stored = bytes(0, free.available - free.empty) - hbm.stored();
  if (running.value < 0) {
    hbm.charge(Account::running, running);
  }
  hbm.charge_stored(stored, now);
  if (running.value > 0) {
    hbm.charge(Account::running, running);
  }
  for (std::size_t i = 0; i < accounts_.size(); ++i) {
    const PoolCounters all = store_->counters(i);
    accounts_[i]->count().insertions += all.inserted - counted_[i].inserted;
    accounts_[i]->count().evictions += all.evicted - counted_[i].evicted;
    accounts_[i]->count().refused += all.skipped - counted_[i].skipped;
    if (i > 0) {
      accounts_[i]->charge_stored(bytes(i, store_->resident_blocks(i)) - accounts_[i]->stored(),
                                  now);
    }
    counted_[i] = all;
  }
  take_copies();
  requests_.occupy(std::exchange(slots_, 0), hbm.used(Account::running));
}

}  // namespace kvtier
