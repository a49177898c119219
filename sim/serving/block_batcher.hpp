#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "sim/serving/batcher.hpp"
#include "sim/serving/block_bytes.hpp"
#include "sim/serving/block_decisions.hpp"
#include "sim/serving/contexts.hpp"
#include "sim/serving/length_predictor.hpp"
#include "sim/serving/queue_prefetch.hpp"
#include "sim/serving/requests.hpp"
#include "sim/store/store.hpp"

namespace kvtier {

/// Continuous batching over a store of blocks that any request may share (vLLM v1's scheduler,
/// engines.md 1.2). Each iteration has a budget of tokens. Running requests come first, in the
/// order in which they were admitted: a token of each that decodes, and the next chunk of each
/// prompt in work. If one finds no room, the request that was admitted last is preempted: it gives
/// its memory back, and waits again before all others. If none was, waiting requests are admitted
/// in order while the budget and the slots last, each if all of its prompt has room; memory is
/// taken chunk by chunk.
///
/// An order that preempts by priority (OrderPolicy) takes the running request with the largest
/// number instead, of equal ones the last that arrived, and gives back its part of the budget.
/// All requests that wait do so by priority and arrival, those that were admitted before too.
///
/// A request whose KV is found behind HBM waits for it while others run, beside the slots
/// (`/system/load/wait: request`), and asks again in the next iteration if another loads some of
/// it from a tier that is not shared, or if some is still being written there. With `batch` it runs
/// at once, and the iteration with the first chunk of its prompt waits for the load. KV that lies
/// behind the second tier is first fetched into that tier, in both cases. Blocks that an iteration
/// computes are offered to an offload when it is planned; the copies begin with the next iteration.
/// If no prompt is in work, a decode runs in one jump to the iteration at which a request ends,
/// blocks run out, or one is offered.
///
/// A prefetch policy may bring KV of requests that wait a tier nearer. To HBM it comes as that of a
/// request that takes its memory behind all others, and leaves it when the KV is there.
///
/// With `/system/blocks/whole_response` a request is admitted only if its whole response has room,
/// too, beside what running requests have still to take. With `delays_duplicates` one that would
/// compute a block that a running request is computing is passed over until it is there.
///
/// With `/serving/one_at_a_time` a request is admitted when all before it has ended and been
/// written.
class BlockBatcher : public Batcher, private StoredKv, private RunningView {
 public:
  struct Setup {
    const RunConfig* config = nullptr;
    const PolicyRegistry* registry = nullptr;
    Backend* backend = nullptr;
    Requests* requests = nullptr;
    DecisionObserver* decisions = nullptr;
    /// A plain store of one object per block: the same, slowly.
    bool plain_store = false;
    /// Null: a store of its own.
    Store* store = nullptr;
  };
  explicit BlockBatcher(const Setup& setup);

  void on_turn(SessionSlot slot) override;
  void on_enqueued(SessionSlot slot, QueuePosition position) override;
  void on_completion(Completion completion) override;
  [[nodiscard]] std::size_t tier_count() const override { return accounts_.size(); }
  [[nodiscard]] Medium medium(std::size_t tier) const override { return accounts_[tier]->medium(); }
  [[nodiscard]] TierCounters counters(std::size_t tier) const override;
  [[nodiscard]] const Pool& hbm() const override { return *accounts_.front(); }
  [[nodiscard]] std::size_t stored_entries() const override { return 0; }
  [[nodiscard]] Bytes loaded_bytes(Medium medium) const override {
    return accounts_.size() > 1 && medium == accounts_[1]->medium() ? loaded_ : Bytes(0);
  }
  [[nodiscard]] PrefetchCounters prefetches() const override {
    return prefetch_ ? prefetch_->counters() : PrefetchCounters{};
  }
  [[nodiscard]] std::int64_t preemptions() const override { return preemptions_; }
  [[nodiscard]] const BlockHits* block_hits() const override { return &hits_; }
  void on_arrived(SessionSlot slot) override;
  void let_go_kept(std::uint32_t request) override;
  [[nodiscard]] Store* block_store() override { return store_; }
  [[nodiscard]] bool waits_for_copies() const override { return !asks_again_.empty(); }
  void ask_again() override { schedule_soon(); }
  void check_invariants() const override;
  // StoredKv
  [[nodiscard]] EntryId needed_entry(SessionSlot slot) const override {
    return prefetch_ ? EntryId{slot} : kNoEntry;
  }
  [[nodiscard]] Placement placement(SessionSlot slot) const override;
  [[nodiscard]] FoundTokens find(SessionSlot slot) const override;
  [[nodiscard]] Tokens common_prefix(SessionSlot a, SessionSlot b) const override;
  // RunningView
  [[nodiscard]] std::optional<SimDuration> tpot() const override;
  void for_each_running(const std::function<void(SimTime, Tokens)>& visit) const override;

 protected:
  static constexpr Tokens kMostIterations{std::int64_t{1} << 40};

  /// `waits`: for what the next iteration loads from behind the second tier.
  enum class Gpu : std::uint8_t { idle, waits, iteration, decode };

  /// A turn between its arrival and its end.
  struct Work {
    TurnContent content;
    RequestId id;
    /// Its place in orders by priority.
    std::int64_t priority = 0;
    QueuePosition position;
    /// Tokens that its prefill needs KV of: those of the prompt, and of what it had generated when
    /// it was preempted.
    Tokens prompt;
    /// With whole_response: its context at its end, as predicted.
    Tokens expected;
    /// KV exists, and memory is taken, of so many. While it decodes, they and `generated` are those
    /// at `since`: see computed(slot) and generated(slot).
    Tokens computed;
    Tokens held;
    Tokens generated;
    /// The end of the last block that is held.
    Tokens held_blocks_end;
    /// Tokens of its prompt in the iteration in work.
    Tokens chunk;
    /// It decodes in each iteration that has decodes.
    bool decodes = false;
    /// A value of `decoded_`.
    std::int64_t since = 0;
    /// Tokens that it, or its iteration, loads, and those of them that are fetched first.
    Tokens loads;
    Tokens loads_from_behind;
    /// Behind the last one.
    Tokens loads_end;
    /// Match::far, and Match::by_place of the second tier.
    std::vector<Stretch> far;
    std::vector<Stretch> from_second;
    bool loading = false;
    /// It was admitted before.
    bool counted = false;
    /// KV of its prompt comes from another instance.
    bool fetches_kv = false;
    /// The store knows it as `id`.
    bool in_store = false;
    /// Not all that was computed has been taken by the tier behind.
    bool offers_again = false;
    /// The prefetch from storage for it while it waits (0: none), and the tokens that came.
    std::uint32_t prefetch = 0;
    Tokens prefetched;
  };
  /// A running request. While it decodes, its Work stays as it is until it is due: when its
  /// response ends, or when the store has to hear of a block. Its tokens follow from `decoded_`.
  struct Running {
    SessionSlot slot = 0;
    /// The values of `decoded_` at which its response ends and at which it is due. A request that
    /// does not decode is due in each iteration.
    std::int64_t end = INT64_MAX;
    std::int64_t due = 0;
  };
  enum class Admitted : std::uint8_t { runs, loads, later, no_room };

  // The scheduler's choices.

  /// Sets `chunk` of the requests whose prompts the next iteration computes, which are in prompts_,
  /// `decodes` of those that decode in it, and `decodes_`. Returns whether a request was preempted.
  virtual bool plan();
  /// Whether a request may be admitted before the running decode ends.
  [[nodiscard]] virtual bool has_candidate() const;
  /// A decode has run for so many iterations.
  virtual void on_decoded(std::int64_t) {}
  /// `rest`: the request or the copy, as in the cookie.
  void end_transfer(std::uint64_t purpose, std::uint64_t rest);
  /// A copy to a tier from the one before it is complete.
  virtual void on_copied(std::uint64_t tier, std::uint32_t id);
  void end_copy(std::uint64_t tier, std::uint32_t id);
  /// A transfer of kPrefetch, or a timer of kDeadlineTimer, has ended.
  virtual void on_prefetched(std::uint32_t id);
  virtual void on_deadline();
  /// The waiting turn that is refused: it has no room although nothing runs.
  [[nodiscard]] virtual SessionSlot turn_without_room() const;
  /// Memory for what has been put together, as far as it lacks. False: it waits for a copy.
  [[nodiscard]] virtual bool take_memory() { return true; }
  /// All that wait are passed over, while storage is read for them.
  [[nodiscard]] virtual bool waits_for_storage() const;

  /// The purpose of a transfer from storage for a request that waits, in its cookie.
  static constexpr std::uint64_t kPrefetch = std::uint64_t{5} << 48;

  void proceed();
  /// Policies that look ahead learn that a request waits in the queue.
  void tell_waiting(SessionSlot slot, QueuePosition position);
  /// The request leaves the queue, and they learn of it.
  SessionSlot take_from_queue(QueuePosition position);
  /// KV of the request that the policy chooses comes a tier nearer. HBM takes memory for it only
  /// when an iteration is planned: behind the requests of that, and before its blocks are offered.
  void prefetch_next(bool plans);
  void prefetch_to_first(SessionSlot slot);
  void start_prefetch_to_first();
  void end_prefetch_to_first();
  /// The store says that KV is in HBM, and it is still on its way.
  [[nodiscard]] bool uses_what_comes(SessionSlot slot) const;
  /// A request has come, or memory is free: idle GPUs take it up when all that comes now has come.
  void schedule_soon();
  void schedule();
  /// The GPUs begin what has been put together, if it has all that it waits for.
  void launch_if_ready();
  void launch();
  /// By the requests of the planned iteration.
  [[nodiscard]] Tokens tokens_to_load() const;
  void load_prompts();
  /// KV from behind the second tier comes to that tier, before the iteration loads it. False: there
  /// is none.
  [[nodiscard]] bool begin_fetch_for_iteration();
  void end_fetch_for_iteration();
  void start_iteration();
  /// A decode ends with its iteration, since something has changed.
  void stop_decode();
  void note_wait();
  /// Memory for what each running request does next, in order. False: one was preempted.
  [[nodiscard]] bool make_room(Tokens& budget);
  /// A request gives way to the one in place `next` of the running ones, which moves up if one
  /// before it leaves. False: it gave way itself.
  [[nodiscard]] bool make_way(std::size_t& next, Tokens& budget);
  /// The running request that gives way to the one in a place.
  [[nodiscard]] std::size_t victim(std::size_t next) const;
  [[nodiscard]] bool precedes(SessionSlot a, SessionSlot b) const {
    const Work& x = work_[a];
    const Work& y = work_[b];
    return x.priority != y.priority ? x.priority < y.priority : x.position < y.position;
  }
  /// Inserts by priority.
  void insert(std::vector<SessionSlot>& slots, SessionSlot slot) const;
  /// Memory for so many tokens. False: there is no room.
  [[nodiscard]] bool grow(SessionSlot slot, Tokens tokens);
  /// The same, where there is room.
  void take(SessionSlot slot, Tokens tokens);
  void preempt(SessionSlot slot);
  /// A running request has lost its memory, and waits again.
  void set_preempted(SessionSlot slot);
  void admit_all(Tokens& budget);
  [[nodiscard]] Admitted admit(SessionSlot slot, Tokens& budget);
  /// Tokens of a prompt that the next iteration computes, of so many that it lacks. 0: with whole
  /// prompts, it does not fit beside the others. One of more than the whole budget runs without.
  [[nodiscard]] Tokens next_chunk(Tokens rest, Tokens budget) const;
  /// An admitted request waits for its KV.
  void begin_loading(SessionSlot slot);
  /// For a request whose KV comes from another instance.
  [[nodiscard]] Admitted admit_to_fetch(SessionSlot slot);
  /// Its KV has been loaded. False: its first step lacks memory, or exceeds the budget.
  [[nodiscard]] bool join(SessionSlot slot, Tokens& budget);
  /// Memory for a request that is admitted, with so many tokens of KV. The match is what was found.
  [[nodiscard]] bool acquire(SessionSlot slot, const Room& room, Match& match);
  /// It has been acquired, and has memory for so many tokens. KV that was prefetched for it is
  /// counted as found in storage.
  void hold(SessionSlot slot, RequestId id, Tokens held, Match& match);
  void run(SessionSlot slot, Tokens chunk, Tokens& budget);
  /// Throws ConfigError: the turn has no room although it runs alone.
  [[noreturn]] void refuse_turn(SessionSlot slot) const;
  /// A running request is about to compute the first block that this one misses.
  [[nodiscard]] bool is_being_computed(SessionSlot slot, const Match& match) const;
  /// KV of the request when it ends, as far as it is known and fits.
  [[nodiscard]] static Tokens whole_context(const Work& work) {
    return std::max(work.prompt, work.expected);
  }
  // Requests that decode.

  [[nodiscard]] Tokens computed(SessionSlot slot) const {
    return work_[slot].computed + decoded_since(work_[slot]);
  }
  [[nodiscard]] Tokens generated(SessionSlot slot) const {
    return work_[slot].generated + decoded_since(work_[slot]);
  }
  [[nodiscard]] Tokens decoded_since(const Work& work) const {
    return work.decodes ? Tokens(decoded_ - work.since) : Tokens(0);
  }
  void bring_up_to_date(Work& work) const;
  /// A request whose prompt is computed decodes from now on, unless it does already.
  void begin_decoding(Running& one);
  void stop_decoding(Running& one);
  /// The first of some running requests that is due at this value of `decoded_`.
  [[nodiscard]] static std::vector<Running>::iterator first_due(
      std::vector<Running>::iterator begin, std::vector<Running>::iterator end,
      std::int64_t decoded) {
    return std::find_if(begin, end, [&](const Running& one) { return one.due <= decoded; });
  }
  template <class Visit>
  void for_each_due(Visit visit);
  void set_due(Running& one) const;
  /// The part of the planned iteration, or of the one in work, that decodes.
  [[nodiscard]] std::int64_t decode_batch() const { return decodes_ ? decoding_ : 0; }
  [[nodiscard]] Tokens decode_context() const {
    return decodes_ ? decoding_context_ + Tokens(decoding_) : Tokens(0);
  }

  /// The request has (1) or has no more (-1) the memory that its Work says.
  void count_lacking(const Work& work, std::int64_t times);
  [[nodiscard]] std::int64_t lacking_blocks(const Work& work, Tokens tokens) const {
    return tokens > work.held_blocks_end ? blocks(tokens - work.held_blocks_end) : 0;
  }
  void check_sums() const;
  void note_found(SessionSlot slot, const Match& match);
  void note_prefetch(SessionSlot slot, const Match& match);
  /// What was found in the tier to which KV is prefetched, and in faster ones.
  [[nodiscard]] Tokens found_near(const Match& match) const {
    return match.by_pool[0] + (prefetches_to_ == 1 ? match.by_pool[1] : Tokens(0));
  }
  /// `pieces`: the tokens, if the backend has bytes.
  [[nodiscard]] TransferId move(std::size_t from, Tokens tokens, SessionSlot slot,
                                std::uint64_t cookie, std::span<const KvPiece> pieces);
  /// The same for the tokens that requests load from a tier to the one before.
  [[nodiscard]] TransferId load(std::size_t from, Tokens tokens, std::span<const SessionSlot> slots,
                                std::uint64_t cookie);
  void add_loads(std::size_t from, SessionSlot slot);

  // Calls of the store about a request, which a backend with bytes is told of.

  [[nodiscard]] std::optional<RequestId> acquire_blocks(SessionSlot slot, const Room& room,
                                                        Match& match, RequestId again = {});
  void note_computed(SessionSlot slot);
  void release(SessionSlot slot);
  void publish_loaded(SessionSlot slot);
  /// The request's key on a backend, which no other request of the run has.
  [[nodiscard]] EntryKey request_key(SessionSlot slot) const {
    constexpr int kTurnBits = 24;
    const RequestRecord& r = requests_.request(slot);
    return {static_cast<std::uint64_t>(r.session) << kTurnBits |
            static_cast<std::uint64_t>(r.turn)};
  }
  /// The request that the store's next decisions are about.
  void set_request(EntryKey request, bool is_admitted = false) {
    if (bytes_) [[unlikely]] {
      bytes_->set_request(request, is_admitted);
    }
  }
  /// Copies that a transfer has brought, and that the store did not take, are not needed.
  void drop_arrivals(std::uint64_t cookie);
  /// If blocks are merged, the request uses those that the store has of its first tokens.
  void share_merged(SessionSlot slot, Tokens tokens);
  void start_load(SessionSlot slot);
  void end_load(SessionSlot slot);
  void offer_all();
  /// The tier behind learns of all that have ended.
  void end_requests();
  /// KV behind the cut in a turn's history stays.
  void cut_history(SessionSlot slot);
  /// Copies that the store has begun. Those of an offload begin with the next iteration.
  void take_copies();
  void start_copies();
  void start_copy(const Copy& copy);
  void start_write(const Copy& copy, std::uint64_t cookie);
  [[nodiscard]] bool any_copies() const {
    return copying_ > 0 || std::ranges::any_of(later_writes_, [](const LaterWrites& writes) {
             return !writes.waiting.empty();
           });
  }
  void fill_buffer(std::size_t tier, Bytes more);
  void set_idle();
  void begin_stalling_copy();
  void end_stalling_copy();
  /// Begins copies behind the second tier, as many as may be in flight.
  void begin_later_writes();
  [[nodiscard]] bool is_idle() const;
  void finish_iteration();
  void report_iterations(std::int64_t iterations);
  [[gnu::noinline]] void tell_running();
  void finish_decode(std::int64_t iterations);
  /// All that decode have so many tokens more.
  void count_decoded(std::int64_t iterations) {
    decoded_ += iterations;
    decoding_context_ += Tokens(decoding_ * iterations);
  }
  /// The store hears of the tokens that a request has decoded.
  void decode(Running& one);
  void finish_turn(SessionSlot slot);
  /// It ends, and its memory stays until let_go_kept.
  void keep(SessionSlot slot);
  /// It ends, or is preempted: its memory is free.
  void let_go(SessionSlot slot);
  void leave_running(SessionSlot slot);
  /// So many iterations until a block of a response is full and offered; none are if 0.
  [[nodiscard]] std::int64_t iterations_to_offer() const;
  [[nodiscard]] Context context(const Work& work, Tokens tokens) const {
    return {tokens > work.content.prompt.tokens ? work.content.whole.stream
                                                : work.content.prompt.stream,
            tokens};
  }
  [[nodiscard]] Context prompt_of(SessionSlot slot) const {
    return context(work_[slot], work_[slot].prompt);
  }
  [[nodiscard]] std::int64_t blocks(Tokens tokens) const {
    return (tokens.value + block_ - 1) / block_;
  }
  /// How many iterations the free blocks last, of at most so many.
  [[nodiscard]] std::int64_t iterations_within_room(std::int64_t most);
  /// How many iterations take no more than so many blocks.
  [[nodiscard]] std::int64_t iterations_within(std::int64_t available, std::int64_t most);
  /// Accounts and transfers follow what the store has done.
  void settle();
  [[nodiscard]] Bytes bytes(std::size_t tier, std::int64_t blocks) const {
    return (tier == 0 ? bytes_per_token_ : stored_bytes_per_token_) * block_tokens_[tier] * blocks;
  }

  const RunConfig& config_;
  Backend& backend_;
  Requests& requests_;
  bool keeps_kv_behind_cuts_;
  Contexts contexts_;
  /// By tier.
  std::vector<std::unique_ptr<Pool>> accounts_;
  std::optional<BlockDecisions> decisions_;
  std::optional<BlockBytes> bytes_;
  std::unique_ptr<Store> own_store_;
  Store* store_;
  /// The store's policies that look ahead.
  std::vector<PolicyOrder*> looking_ahead_;
  /// Null with nodes, whose requests fetch all of their own.
  std::unique_ptr<QueuePrefetch> prefetch_;
  std::size_t prefetches_to_ = 1;
  /// KV that comes to the first tier for a request that waits, which the store knows by this id.
  struct ComesToFirst {
    SessionSlot slot;
    RequestId id;
    /// Its tokens before this one were in the first tier.
    Tokens first;
    bool has_begun = false;
  };
  std::optional<ComesToFirst> comes_to_first_;
  /// The prefetch that the policy chose could not begin, and nothing has changed since.
  bool prefetch_waits_ = false;

  /// A request waits for its loads alone.
  bool loads_alone_;
  bool by_priority_;
  /// Others find blocks that an iteration is about to compute, as in vLLM.
  bool found_when_scheduled_;
  std::int64_t block_;
  std::vector<std::int64_t> block_tokens_;  // by tier
  /// In HBM, and behind it with all copies.
  Bytes bytes_per_token_;
  Bytes stored_bytes_per_token_;
  bool is_tree_;
  bool merges_;
  /// What HBM evicts is written to the tier behind, which a batch waits for.
  bool writes_back_ = false;
  /// EdgeRules::ahead, in blocks.
  std::int64_t ahead_ = 0;
  /// An iteration's load need not wait for the writes of victims: the link has both directions.
  bool loads_beside_writes_ = false;
  /// A load of the planned iteration reads what is about to be written.
  bool reads_written_ = false;
  /// KV of the first layers together, for a model whose layers differ in it.
  std::vector<Bytes> unequal_sizes_;
  bool offers_responses_;
  /// A request has to be offered again, of those that run.
  bool some_offer_again_ = false;
  /// The store wants to know when a block of a response is computed.
  bool notes_responses_;
  bool checks_sums_;
  bool whole_response_;
  /// Memory of a whole response is taken at once, as HBM keeps nothing that could use it meanwhile.
  bool takes_promised_;
  bool delays_duplicates_;
  bool whole_prompts_;
  bool keeps_nothing_;
  bool prompts_first_;
  bool one_prompt_;
  LengthPredictor predictor_;
  /// Blocks of HBM.
  std::int64_t capacity_ = 0;
  std::int64_t watermark_ = 0;
  Tokens budget_;
  Tokens chunk_;

  std::vector<Work> work_;  // by session
  /// In the order of their admission.
  std::vector<Running> running_;
  /// Iterations of decodes so far.
  std::int64_t decoded_ = 0;
  /// Those of `running_` that decode, and the sum of their computed tokens.
  std::int64_t decoding_ = 0;
  Tokens decoding_context_;
  /// The planned iteration, or the one in work, has decodes.
  bool decodes_ = false;
  /// Blocks that requests with memory, running or loading, lack for their prompts, and for their
  /// whole contexts.
  std::int64_t reserved_ = 0;
  std::int64_t promised_ = 0;
  /// Preempted requests and those that were passed over. They ask again before the queue, or in
  /// order of priority.
  std::vector<SessionSlot> asks_again_;
  /// In the order in which their loads began, or of priority.
  std::vector<SessionSlot> loading_;
  struct Ended {
    RequestId id;
    Tokens computed;
    EntryKey key;
  };
  /// Requests that have ended, by number, and the contexts whose KV they keep.
  struct Kept {
    RequestId id;
    Context context;
  };
  std::unordered_map<std::uint32_t, Kept> kept_;
  /// Requests that ended in the last iteration, of which the tier behind does not know yet.
  std::vector<Ended> ended_;
  /// Copies that begin with the next iteration, and the number of those in flight.
  std::vector<Copy> next_copies_;
  std::int64_t copying_ = 0;
  /// Copies behind the second tier that have not begun, because others are in flight or stall.
  struct LaterWrites {
    std::deque<Copy> waiting;
    std::int64_t in_flight = 0;
  };
  /// By tier.
  std::vector<LaterWrites> later_writes_;
  /// Copies that the next iteration waits for.
  std::int64_t stalling_copies_ = 0;
  /// Bytes of copies whose sources have left their tier (Store::take_awaited), by copy.
  std::unordered_map<std::uint32_t, Bytes> awaited_;
  /// By tier: where those bytes stand until they are written there. If they are more than it holds,
  /// the next iteration waits.
  struct WriteBuffer {
    Bytes capacity;
    Bytes used;
    [[nodiscard]] bool is_exceeded() const { return used > capacity; }
  };
  std::vector<WriteBuffer> buffers_;
  SimTime stalled_since_;

  Gpu gpu_ = Gpu::idle;
  SimTime gpu_since_;
  /// The same, before it waited for KV from behind the second tier.
  SimTime iteration_since_;
  bool stopping_ = false;
  /// The next iteration is put together when all that happens now has happened.
  bool about_to_schedule_ = false;
  /// It is, and waits for the copies that make room for it.
  bool planned_ = false;
  /// It has waited for them at least once.
  bool is_delayed_ = false;
  bool some_left_ = false;
  bool lacks_room_ = false;
  std::vector<SessionSlot> prompts_;
  std::vector<SessionSlot> complete_;  // by the iteration that ends
  /// By requests that decode: the iterations after which each takes the next block.
  std::vector<std::int64_t> next_takes_;
  std::vector<PrefillPart> parts_;  // those of prompts_
  std::vector<EntryKey> keys_;      // those of prompts_
  std::vector<KvPiece> pieces_;     // of the transfer that is started
  /// The load of the iteration in work, or of the planned one, while it is in flight. Whether that
  /// of the planned one has begun.
  std::optional<TransferId> load_;
  bool load_began_ = false;
  /// Tokens that the iteration in work loads, and those of them that are fetched first.
  Tokens loaded_now_;
  Tokens fetched_now_;
  SimDuration decode_per_request_;
  /// The mean iteration of the last decode that has ended.
  std::optional<SimDuration> last_tpot_;

  std::vector<PoolCounters> counted_;
  Bytes loaded_;
  /// Requests admitted since slots were counted, less those that have left.
  std::int64_t slots_ = 0;
  std::int64_t preemptions_ = 0;
  BlockHits hits_;
};

}  // namespace kvtier
