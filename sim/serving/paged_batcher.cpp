#include "sim/serving/paged_batcher.hpp"

#include <algorithm>

#include "hw/model/model.hpp"
#include "sim/core/assert.hpp"
#include "sim/serving/history.hpp"
#include "sim/serving/running_responses.hpp"
#include "sim/serving/store_rules.hpp"

namespace kvtier {
namespace {

/// In the cookie of transfers that an iteration waits for; in others is the request.
constexpr std::uint64_t kOfIteration = std::uint64_t{1} << 48;

}  // namespace

PagedBatcher::PagedBatcher(const Setup& setup)
    : config_(*setup.config),
      backend_(*setup.backend),
      requests_(*setup.requests),
      store_({.facts = store_facts(*setup.config),
              .registry = setup.registry,
              .backend = setup.backend,
              .queue = setup.requests,
              .running = this,
              .decisions = setup.decisions,
              .timer = kBatcherTimer,
              .mark = kTierTransfer}),
      mixes_(setup.config->system.batching == Batching::unified),
      shares_(setup.config->system.sharing == Sharing::prompts),
      loads_alone_(load_wait(setup.config->system) == LoadWait::request),
      stored_sizes_(stored_layer_sizes(*setup.config)),
      unequal_layers_(has_unequal_layers(*setup.config)),
      block_bytes_(kv_bytes_per_token(setup.config->model) *
                   setup.config->system.paging->block_size.value),
      block_size_(setup.config->system.paging->block_size.value),
      token_budget_(token_budget(*setup.config)),
      reserve_(static_cast<std::int64_t>(
          static_cast<double>(running_kv_capacity(*setup.config) / block_bytes_) *
          setup.config->system.paging->decode_reserve)),
      takers_(static_cast<std::size_t>(block_size_), 0),
      predictor_(setup.config->system.length_prediction,
                 static_cast<std::uint64_t>(setup.config->seed)) {
  requests_.set_stored(&store_);
  store_.on_load_ready = [this](SessionSlot slot, Medium medium) { finish_fetch(slot, medium); };
}

void PagedBatcher::on_turn(SessionSlot slot) {
  const RequestRecord& r = requests_.request(slot);
  if (slot >= work_.size()) {
    work_.resize(static_cast<std::size_t>(slot) + 1);
  }
  work_[slot] = {.arrival = next_arrival_++, .length = r.history + r.input};
  if (shares_ && r.shared.value > 0 && !store_.has_joined_prompt(slot)) {
    store_.join_prompt(slot, prompt_key(r.shared_prompt), r.shared);
  }
  truncate_stored(store_, slot, config_, r);
}

void PagedBatcher::on_enqueued(SessionSlot slot, QueuePosition position) {
  store_.on_enqueued(slot, position);
  proceed();
}

void PagedBatcher::on_completion(Completion completion) {
  switch (completion.kind) {
    case CompletionKind::prefill:
      finish_iteration();
      break;
    case CompletionKind::decode:
      finish_decode(static_cast<std::int64_t>(completion.payload));
      break;
    case CompletionKind::transfer:
      if (completion.payload == (kOwnTransfer | kOfIteration)) {
        finish_load();
      } else if ((completion.payload & kOwnerMask) == kOwnTransfer) {
        finish_own_load(static_cast<SessionSlot>(completion.payload));
      } else {
        store_.on_transfer(MoveId{static_cast<std::uint32_t>(completion.payload)});
      }
      // When the next copy is due depends on the blocks that the running decode takes.
      if (gpu_ == Gpu::decode && !stopping_ && store_.saves_ahead()) {
        stopping_ = true;
        backend_.stop_decode();
      }
      break;
    case CompletionKind::timer:
      store_.on_timer();
  }
  proceed();
}

void PagedBatcher::proceed() {
  act();
  note_wait();
}

void PagedBatcher::note_wait() {
  const SimTime now = backend_.now();
  if (!requests_.any_waits()) {
    requests_.waits().set_none(now);
  } else if (batch_size() >= config_.serving.slots) {
    requests_.waits().set(WaitCause::batch_slots, now);
  } else if (lacks_blocks_) {
    requests_.waits().set(WaitCause::hbm_for_kv, now);
  } else {
    requests_.waits().set(gpu_ == Gpu::stalled ? WaitCause::write_buffer : WaitCause::gpu_compute,
                          now);
  }
}

/// Gives the GPUs work if they have none, or a decode that runs an end.
void PagedBatcher::act() {
  if (gpu_ == Gpu::idle || gpu_ == Gpu::stalled) {
    schedule();
    return;
  }
  static_cast<void>(store_.make_room());
  if (gpu_ == Gpu::decode && !stopping_) {
    const std::optional<Candidate> candidate = next();
    if (!ready_.empty() || (candidate && admissible(candidate->slot))) {
      stopping_ = true;
      backend_.stop_decode();
    }
  }
}

void PagedBatcher::check_invariants() const {
  Pool::Sums sums;
  for (const Running& running : running_) {
    const Work& work = work_[running.slot];
    sums[Account::running] += taken(work, Tokens(work.length_offset + iteration_));
  }
  for (const std::vector<Prompt>& prompts : {loading_, ready_}) {
    for (const Prompt& prompt : prompts) {
      const Work& work = work_[prompt.slot];
      sums[Account::running] += taken(work, work.length + Tokens(1));
    }
  }
  if (!prompts_.empty()) {
    // In the middle of an iteration's end some prompts run already and others do not.
    sums[Account::running] = store_.hbm().used(Account::running);
  }
  store_.check_invariants(sums);
}

// ---- What runs next ----

bool PagedBatcher::must_stall() const {
  return store_.hbm().write_buffer_excess().value > 0 ||
         (config_.system.save.mode == SaveMode::blocking && store_.saves_in_progress() > 0);
}

void PagedBatcher::schedule() {
  count_stall();  // an admission may begin the measured part
  if (must_stall()) {
    stall();
    return;
  }
  if (mixes_) {
    if (!make_room_to_decode()) {
      stall();
      return;
    }
    join_ready();
    admit_all();
  } else {
    join_ready();
    admit_all();
    if (prompts_.empty() && !make_room_to_decode()) {
      stall();
      return;
    }
  }
  static_cast<void>(store_.make_room());
  if (batch_size() == 0 && next()) {
    KVTIER_ASSERT(store_.room_comes(), "an idle instance has room or waits for it");
    stall();
    return;
  }
  end_stall();
  if (!prompts_.empty()) {
    start_iteration();
  } else if (!running_.empty()) {
    start_decode();
  }
}

std::optional<PagedBatcher::Candidate> PagedBatcher::next() const {
  if (!suspended_.empty()) {
    return Candidate{suspended_.back(), kNotQueued};
  }
  if (requests_.queue_length() == 0) {
    return std::nullopt;
  }
  const QueuePosition position = requests_.next();
  return Candidate{requests_.waiting(position), position};
}

void PagedBatcher::admit_all() {
  for (std::optional<Candidate> candidate = next(); candidate && admissible(candidate->slot);
       candidate = next()) {
    admit(*candidate);
  }
}

bool PagedBatcher::admissible(SessionSlot slot) {
  store_.want(Bytes(0));
  lacks_blocks_ = false;
  const std::int64_t batch = batch_size();
  if (batch >= config_.serving.slots) {
    return false;
  }
  const Tokens length = work_[slot].length;
  const Tokens apart = stored_apart(slot);
  const auto within_budget = [&] {
    Tokens computed = length - store_.findable(slot, length - apart - Tokens(1));
    if (apart.value > 0 && store_.finds_prompt(slot)) {
      computed -= apart;
    }
    return prompt_tokens_ + decoding_tokens() + computed <= token_budget_;
  };
  if (!within_budget()) {
    return false;
  }
  // The last token is computed, and the one after it needs a place. A shared prefix that is not
  // there, or leaves to make room, may take a block more than the rest with it.
  const auto needed = [&] {
    const bool shared = apart.value > 0 && store_.shares_prompt(slot);
    const std::int64_t prompt = blocks(length + Tokens(1) - (shared ? apart : Tokens(0))) +
                                (apart.value > 0 && !shared ? 1 : 0);
    return block_bytes_ * (prompt + (mixes_ ? growth(1) : 0) + (batch > 0 ? reserve_ : 0));
  };
  while (store_.available_to(slot) < needed()) {
    store_.want(store_.available() + needed() - store_.available_to(slot));
    if (!store_.make_room()) {
      lacks_blocks_ = true;
      return false;
    }
  }
  store_.want(Bytes(0));
  // Room may have been made at the cost of what the session itself had stored.
  return within_budget();
}

void PagedBatcher::admit(const Candidate& candidate) {
  const SessionSlot slot = candidate.slot;
  const bool again = candidate.position == kNotQueued;
  if (again) {
    suspended_.pop_back();
    requests_.set_suspended(suspended_.size());
  } else {
    static_cast<void>(requests_.admit(candidate.position));
    store_.on_dequeued(slot);
  }
  Work& work = work_[slot];
  RequestRecord& r = requests_.request(slot);
  const Tokens stored_apart = this->stored_apart(slot);
  Lookup prefix;
  if (stored_apart.value > 0) {
    prefix = store_.admit_prompt(slot);
    const bool shared = store_.shares_prompt(slot);
    work.apart = shared ? stored_apart : Tokens(0);
    backend_.begin_with(requests_.key(slot), {.key = prompt_key(r.shared_prompt),
                                              .tokens = stored_apart,
                                              .exists = prefix.reused.value > 0,
                                              .shared = shared});
  }
  const Lookup rest =
      store_.admit(slot, requests_.key(slot), work.length - stored_apart - Tokens(1),
                   taken(work, work.length + Tokens(1)));
  const Lookup found = stored_apart.value > 0 ? combine(prefix, rest) : rest;
  occupy(1);
  if (!again) {
    r.found = found;
    if (found.reused >= r.history) {
      r.found.cause = LossCause::none;
    }
  }
  Prompt admitted{.slot = slot,
                  .part = {.added = work.length - found.reused, .past = found.reused},
                  .loaded = Tokens(0)};
  const auto load = [&](Medium from, const KvPiece& piece) {
    work.loads.emplace_back(from, piece);
    admitted.loaded += piece.count;
  };
  work.loads.clear();
  if (prefix.reused.value > 0 && prefix.medium != Medium::hbm) {
    load(prefix.medium,
         {.key = prompt_key(r.shared_prompt),
          .first = Tokens(0),
          .count = prefix.reused,
          .turn = work.apart.value == 0 ? std::optional(requests_.key(slot)) : std::nullopt});
  }
  for (const SessionStore::LoadPart& part : store_.parts_to_load()) {
    load(part.from, {.key = requests_.key(slot), .first = part.first, .count = part.count});
  }
  work.awaited = 0;
  work.waits_since = backend_.now();
  if (found.late) {
    work.awaited = 1;
    work.fetched = rest.late ? rest.reused : Tokens(0);
    loading_.push_back(admitted);
  } else if (loads_alone_ && admitted.loaded.value > 0) {
    loading_.push_back(admitted);
    start_own_loads(slot);
  } else {
    join(admitted);
  }
}

void PagedBatcher::join(const Prompt& prompt) {
  prompts_.push_back(prompt);
  parts_.push_back(prompt.part);
  keys_.push_back(requests_.key(prompt.slot));
  prompt_tokens_ += prompt.part.added;
  loaded_now_ += prompt.loaded;
  for (const auto& [from, piece] : work_[prompt.slot].loads) {
    loads_[static_cast<std::size_t>(from)].push_back(piece);
  }
}

void PagedBatcher::join_ready() {
  std::size_t joined = 0;
  while (joined < ready_.size() &&
         prompt_tokens_ + decoding_tokens() + ready_[joined].part.added <= token_budget_) {
    join(ready_[joined++]);
  }
  ready_.erase(ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(joined));
}

// ---- Requests that wait for their KV alone ----

std::vector<PagedBatcher::Prompt>::iterator PagedBatcher::loading(SessionSlot slot) {
  const auto found = std::ranges::find(loading_, slot, &Prompt::slot);
  KVTIER_ASSERT(found != loading_.end(), "the request waits for its KV");
  return found;
}

void PagedBatcher::start_own_loads(SessionSlot slot) {
  Work& work = work_[slot];
  for (std::size_t i = 0; i < kMedia; ++i) {
    std::vector<KvPiece> pieces;
    Tokens tokens;
    for (const auto& [from, piece] : work.loads) {
      if (from == static_cast<Medium>(i)) {
        pieces.push_back(piece);
        tokens += piece.count;
      }
    }
    if (!pieces.empty()) {
      const Bytes bytes = stored_sizes_.back() * tokens.value;
      loaded_[i] += bytes;
      ++work.awaited;
      static_cast<void>(backend_.start_transfer({.from = static_cast<Medium>(i),
                                                 .to = Medium::hbm,
                                                 .bytes = bytes,
                                                 .key = requests_.key(slot),
                                                 .cookie = kOwnTransfer | slot,
                                                 .pieces = pieces}));
    }
  }
}

void PagedBatcher::finish_own_load(SessionSlot slot) {
  Work& work = work_[slot];
  if (--work.awaited == 0) {
    work.loads.clear();
    loading(slot)->loaded = Tokens(0);
    store_.end_load(slot);
    make_ready(slot);
  }
}

void PagedBatcher::finish_fetch(SessionSlot slot, Medium medium) {
  Work& work = work_[slot];
  RequestRecord& r = requests_.request(slot);
  Prompt& prompt = *loading(slot);
  r.late_wait = backend_.now() - work.waits_since;
  if (medium != Medium::hbm) {
    work.loads.emplace_back(
        medium, KvPiece{.key = requests_.key(slot), .first = Tokens(0), .count = work.fetched});
    prompt.loaded += work.fetched;
  }
  work.awaited = 0;
  if (loads_alone_ && prompt.loaded.value > 0) {
    start_own_loads(slot);
  } else {
    make_ready(slot);
  }
}

void PagedBatcher::make_ready(SessionSlot slot) {
  const auto prompt = loading(slot);
  requests_.request(slot).exposed_load += backend_.now() - work_[slot].waits_since;
  ready_.push_back(*prompt);
  loading_.erase(prompt);
}

bool PagedBatcher::make_room_to_decode() {
  store_.reserve(Bytes(0));
  while (available() < growth(1)) {
    store_.want(block_bytes_ * growth(1));
    if (store_.make_room()) {
      continue;
    }
    if (store_.room_comes()) {
      return false;
    }
    suspend_latest();
  }
  store_.reserve(block_bytes_ * growth(1));
  return true;
}

void PagedBatcher::suspend_latest() {
  KVTIER_ASSERT(batch_size() > 1, "one request alone always has room");
  const auto latest =
      std::max_element(running_.begin(), running_.end(),
                       [](const Running& a, const Running& b) { return a.arrival < b.arrival; });
  const Running suspended = *latest;
  running_.erase(latest);
  std::make_heap(running_.begin(), running_.end(), FinishesLater{});
  const SessionSlot slot = suspended.slot;
  Work& work = work_[slot];
  RequestRecord& r = requests_.request(slot);
  work.length = Tokens(work.length_offset + iteration_);
  work.generated = r.output - Tokens(suspended.finish_iteration - iteration_);
  --takers(work);
  context_ -= work.length;
  r.decode_share += decode_per_request_;
  backend_.end_request(requests_.key(slot));
  // The KV of its last token was not computed yet.
  save(slot, work.length, work.length - Tokens(1));
  occupy(-1);
  const auto behind = std::find_if(suspended_.begin(), suspended_.end(), [&](SessionSlot other) {
    return work_[other].arrival < work.arrival;
  });
  suspended_.insert(behind, slot);
  requests_.set_suspended(suspended_.size());
  ++preemptions_;
  requests_.preempted(slot);
}

// ---- The GPUs ----

void PagedBatcher::stall() {
  if (gpu_ != Gpu::stalled) {
    gpu_ = Gpu::stalled;
    gpu_since_ = backend_.now();
    stall_counted_ = gpu_since_;
  }
}

void PagedBatcher::count_stall() {
  if (gpu_ == Gpu::stalled) {
    requests_.count_gpu(stall_counted_, {.exposed_save = backend_.now() - stall_counted_});
    stall_counted_ = backend_.now();
  }
}

void PagedBatcher::end_stall() {
  if (gpu_ == Gpu::stalled) {
    gpu_ = Gpu::idle;
    requests_.report_gpu(GpuActivity::save_stall, gpu_since_, -1, 0);
  }
}

void PagedBatcher::start_iteration() {
  KVTIER_ASSERT(prompt_tokens_ + decoding_tokens() <= token_budget_,
                "an iteration keeps to its token budget");
  start_loads();
  std::int64_t batch = 0;
  if (mixes_ && !running_.empty()) {
    batch = static_cast<std::int64_t>(running_.size());
    store_.reserve(Bytes(0));
    store_.charge_running(block_bytes_ * growth(1));
    occupy(0);
  }
  gpu_ = Gpu::prefill;
  gpu_since_ = backend_.now();
  if (batch > 0 && backend_.wants_running()) [[unlikely]] {
    tell_running_requests();
  }
  backend_.start_iteration(
      {.parts = parts_,
       .keys = keys_,
       .decode_batch = batch,
       .decode_context = batch > 0 ? context_ : Tokens(0),
       .loads = load_,
       .schedule = {.sizes = unequal_layers_ ? std::span<const Bytes>(stored_sizes_)
                                             : std::span<const Bytes>(),
                    .whole = waits_for_whole_load(config_, slowest_load_)}});
}

void PagedBatcher::start_loads() {
  load_.clear();
  slowest_load_ = Medium::hbm;
  for (std::size_t i = 0; i < kMedia; ++i) {
    Tokens tokens;
    for (const KvPiece& piece : loads_[i]) {
      tokens += piece.count;
    }
    if (tokens.value == 0) {
      continue;
    }
    slowest_load_ = static_cast<Medium>(i);
    const Bytes bytes = stored_sizes_.back() * tokens.value;
    loaded_[i] += bytes;
    load_.push_back(backend_.start_transfer({.from = slowest_load_,
                                             .to = Medium::hbm,
                                             .bytes = bytes,
                                             .key = loads_[i].front().key,
                                             .cookie = kOwnTransfer | kOfIteration,
                                             .pieces = loads_[i]}));
  }
  loads_in_flight_ = static_cast<int>(load_.size());
}

void PagedBatcher::finish_load() {
  if (--loads_in_flight_ > 0) {
    return;
  }
  for (const Prompt& prompt : prompts_) {
    if (prompt.loaded.value > 0) {
      store_.end_load(prompt.slot);
    }
  }
}

void PagedBatcher::finish_iteration() {
  const SimTime now = backend_.now();
  const auto [compute, decode] = backend_.iteration_time();
  const SimDuration waited = requests_.waited_for_kv(now - gpu_since_, compute);
  const SimDuration prefill = now - gpu_since_ - waited - decode;
  gpu_ = Gpu::idle;
  requests_.count_gpu(gpu_since_, {.prefill = prefill, .decode = decode, .exposed_load = waited});
  const bool loads = waited.ns > 0 && !load_.empty();  // a device may take longer without a load
  requests_.end_command(
      now - gpu_since_, loads ? waited : SimDuration(),
      loads ? requests_.topology().wait_cause(slowest_load_, Medium::hbm) : WaitCause::gpu_compute);
  const auto prompts = static_cast<std::int64_t>(prompts_.size());
  requests_.report_gpu(
      GpuActivity::prefill, gpu_since_,
      prompts == 1 ? requests_.request(prompts_.front().slot).session : std::int64_t{-1}, prompts);
  report_iterations(mixes_, 1);
  if (mixes_ && !running_.empty()) {
    decode_per_request_ += decode / static_cast<std::int64_t>(running_.size());
    advance(1);
  }
  const Tokens loaded = std::exchange(loaded_now_, Tokens(0));
  finish_ended();
  for (std::size_t i = 0; i < prompts_.size(); ++i) {
    const SessionSlot slot = prompts_[i].slot;
    Work& work = work_[slot];
    RequestRecord& r = requests_.request(slot);
    if (work.generated.value == 0) {
      requests_.first_token(slot);
    }
    r.prefill_compute += prefill * prompts_[i].part.added.value / prompt_tokens_.value;
    if (loaded.value > 0) {
      r.exposed_load += waited * prompts_[i].loaded.value / loaded.value;
    }
    if (shares_) {
      store_.end_prefill(slot);
    }
    store_.begin_save(slot, requests_.key(slot), work.length - stored_apart(slot));
    ++work.generated.value;
    ++work.length.value;
    run(slot);
  }
  prompts_.clear();
  parts_.clear();
  keys_.clear();
  for (std::vector<KvPiece>& pieces : loads_) {
    pieces.clear();
  }
  prompt_tokens_ = Tokens(0);
}

/// The request has all of its KV and goes on token by token.
void PagedBatcher::run(SessionSlot slot) {
  Work& work = work_[slot];
  RequestRecord& r = requests_.request(slot);
  r.decode_share -= decode_per_request_;
  if (work.generated == r.output) {
    finish_turn(slot);
    return;
  }
  work.length_offset = work.length.value - iteration_;
  ++takers(work);
  context_ += work.length;
  running_.push_back({iteration_ + (r.output - work.generated).value, work.arrival, slot});
  std::push_heap(running_.begin(), running_.end(), FinishesLater{});
}

void PagedBatcher::tell_running_requests() {
  tell_running(backend_, requests_, running_, [this](const Running& one) {
    return Tokens(work_[one.slot].length_offset + iteration_);
  });
}

void PagedBatcher::start_decode() {
  std::int64_t iterations = running_.front().finish_iteration - iteration_;
  iterations = std::min(iterations, iterations_within(available()));
  if (const std::optional<Bytes> before = store_.available_before_saving()) {
    iterations = std::min(iterations, iterations_within(whole_blocks(*before)) + 1);
  }
  gpu_ = Gpu::decode;
  gpu_since_ = backend_.now();
  stopping_ = false;
  store_.reserve(block_bytes_ * growth(iterations));
  if (backend_.wants_running()) [[unlikely]] {
    tell_running_requests();
  }
  backend_.start_decode({.batch = static_cast<std::int64_t>(running_.size()),
                         .context = context_,
                         .iterations = iterations});
}

void PagedBatcher::report_iterations(bool decodes, std::int64_t iterations) {
  if (!requests_.reports_iterations()) {
    return;
  }
  for (const Prompt& prompt : prompts_) {
    requests_.add_to_iteration(prompt.slot, prompt.part.added);
  }
  for (std::size_t i = 0; i < running_.size() && decodes; ++i) {
    requests_.add_to_iteration(running_[i].slot, Tokens(0));
  }
  requests_.report_iterations(gpu_since_, iterations);
}

void PagedBatcher::finish_decode(std::int64_t iterations) {
  const SimDuration duration = backend_.now() - gpu_since_;
  const auto batch = static_cast<std::int64_t>(running_.size());
  gpu_ = Gpu::idle;
  requests_.count_gpu(gpu_since_, {.decode = duration});
  requests_.end_command(duration, SimDuration(), WaitCause::gpu_compute);
  decode_per_request_ += duration / batch;
  requests_.report_gpu(GpuActivity::decode, gpu_since_, -1, batch);
  report_iterations(true, iterations);
  last_decode_ = duration;
  last_iterations_ = iterations;
  store_.reserve(Bytes(0));
  store_.charge_running(block_bytes_ * growth(iterations));
  occupy(0);
  advance(iterations);
  finish_ended();
}

void PagedBatcher::advance(std::int64_t iterations) {
  iteration_ += iterations;
  context_ += Tokens(iterations * static_cast<std::int64_t>(running_.size()));
}

void PagedBatcher::finish_ended() {
  while (!running_.empty() && running_.front().finish_iteration == iteration_) {
    const SessionSlot slot = running_.front().slot;
    std::pop_heap(running_.begin(), running_.end(), FinishesLater{});
    running_.pop_back();
    Work& work = work_[slot];
    work.length = Tokens(work.length_offset + iteration_);
    --takers(work);
    context_ -= work.length;
    finish_turn(slot);
  }
}

void PagedBatcher::finish_turn(SessionSlot slot) {
  RequestRecord& r = requests_.request(slot);
  const Tokens total = r.history + r.input + r.output;
  KVTIER_ASSERT(work_[slot].length == total, "a turn ends with all of its tokens");
  r.decode_share += decode_per_request_;
  backend_.end_request(requests_.key(slot));
  save(slot, total, total);
  occupy(-1);
  if (requests_.finish(slot)) {
    store_.forget(slot);
  }
}

/// The request gives its memory back; the KV of its first `kept` tokens stays, if anything does.
void PagedBatcher::save(SessionSlot slot, Tokens length, Tokens kept) {
  store_.charge_running(-taken(work_[slot], length));
  work_[slot].apart = Tokens(0);
  if (shares_) {
    store_.release_prompt(slot);
  }
  store_.save(slot, requests_.key(slot), kept - stored_apart(slot));
}

// ---- Blocks ----

std::optional<SimDuration> PagedBatcher::tpot() const {
  // An iteration in work has not put out anything yet.
  const SimTime until = gpu_ == Gpu::decode ? gpu_since_ : backend_.now();
  if (const auto mean = mean_tpot(requests_, running_, iteration_, until)) {
    return mean;
  }
  return last_iterations_ > 0 ? std::optional(last_decode_ / last_iterations_) : std::nullopt;
}

void PagedBatcher::for_each_running(const std::function<void(SimTime, Tokens)>& visit) const {
  visit_running(
      requests_, running_, predictor_,
      [this](SessionSlot slot) -> Tokens& { return work_[slot].predicted; }, visit);
}

std::int64_t PagedBatcher::growth(std::int64_t iterations) const {
  std::int64_t blocks = iterations / block_size_ * static_cast<std::int64_t>(running_.size());
  for (std::int64_t i = 0; i < iterations % block_size_; ++i) {
    blocks += takers_at(iteration_ + i);
  }
  return blocks;
}

std::int64_t PagedBatcher::iterations_within(std::int64_t blocks) const {
  const auto a_period = static_cast<std::int64_t>(running_.size());
  std::int64_t iterations = blocks / a_period * block_size_;
  std::int64_t rest = blocks % a_period;
  for (rest -= takers_at(iteration_ + iterations); rest >= 0;
       rest -= takers_at(iteration_ + iterations)) {
    ++iterations;
  }
  return iterations;
}

}  // namespace kvtier
