#include "sim/serving/cluster.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "hw/model/model.hpp"
#include "sim/core/assert.hpp"
#include "sim/core/errors.hpp"
#include "sim/serving/store_rules.hpp"
#include "sim/store/blocks/stores.hpp"

namespace kvtier {
namespace {

/// Timers of the cluster itself: what happens, and to which of the configured faults.
constexpr std::uint64_t kLose = std::uint64_t{1} << 40;
constexpr std::uint64_t kNotice = std::uint64_t{2} << 40;
constexpr std::uint64_t kComeBack = std::uint64_t{3} << 40;
constexpr std::uint64_t kSpeeds = std::uint64_t{4} << 40;
constexpr std::uint64_t kReport = std::uint64_t{5} << 40;
constexpr std::uint64_t kArrival = std::uint64_t{6} << 40;
constexpr std::uint64_t kSharedArrival = std::uint64_t{7} << 40;
/// The owner in the cookie of an instance's own part of a copy; the rest is the copy.
constexpr std::uint64_t kSharedCopy = std::uint64_t{3} << 56;
constexpr std::uint64_t kOwnTimers = std::uint64_t{0xff} << 40;

SimTime time_at(SimDuration since_start) { return SimTime(0) + since_start; }

BlockMedium routed_medium(Medium medium) {
  return medium == Medium::hbm   ? BlockMedium::gpu
         : medium == Medium::ssd ? BlockMedium::disk
                                 : BlockMedium::host;
}

/// The media are instances and, behind them, the shared tier. Instances that prefill send to those
/// that decode. Links point to the instances.
Topology network_topology(const ClusterConfig& cluster) {
  const NetworkConfig& network = *cluster.network;
  const auto instances = static_cast<std::size_t>(cluster.instances);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < instances; ++i) {
    names.push_back(fmt::format("instance {}", i));
  }
  if (cluster.shared) {
    names.push_back("shared tier");
  }
  Topology topology(names);
  const auto add_link = [&](const std::string& name, BytesPerSecond rate, BytesPerSecond both) {
    Link link{.name = name, .limits = {}};
    link.limits.forward = link.limits.backward = rate;
    link.limits.both = both;
    topology.links.push_back(link);
    return topology.links.size() - 1;
  };
  for (std::size_t i = 0; i < instances; ++i) {
    static_cast<void>(add_link(names[i], network.rate, network.rate * 2));
  }
  if (const auto& shared = cluster.shared) {
    // An instance sends what others read from its segment, and what it writes to theirs: each copy
    // is sent by one of them.
    const BytesPerSecond all = network.rate * static_cast<double>(cluster.instances);
    const BytesPerSecond own = shared->rate.value_or(network.rate);
    static_cast<void>(shared->capacity ? add_link("shared tier", own, own * 2)
                                       : add_link("shared tier", all, all));
  }
  std::optional<std::size_t> core;
  if (network.core) {
    core = add_link("core", *network.core, *network.core);
  }
  const auto connect = [&](std::size_t from, std::size_t to) {
    std::vector<LinkUse> uses{{from, from == instances}, {to, to != instances}};
    if (core) {
      uses.push_back({*core, true});
    }
    topology.connect(static_cast<Medium>(from), static_cast<Medium>(to), std::move(uses));
  };
  if (cluster.disaggregation) {
    const auto senders = static_cast<std::size_t>(cluster.disaggregation->prefill);
    for (std::size_t from = 0; from < senders; ++from) {
      for (std::size_t to = senders; to < instances; ++to) {
        connect(from, to);
      }
    }
  }
  for (std::size_t i = 0; cluster.shared && i < instances; ++i) {
    connect(i, instances);
    connect(instances, i);
  }
  return topology;
}

}  // namespace

// ---- The users' clock ----

Completion UserClock::wait() {
  const TimedEvent event = timers_.pop();
  now_ = event.time;
  return {CompletionKind::timer, event.payload};
}

void UserClock::set_timer(SimTime at, std::uint64_t payload) {
  if (holds_ && at == now_ && payload <= UINT32_MAX) {
    held_ = static_cast<SessionSlot>(payload);
  } else {
    timers_.push(at, 0, payload);
  }
}

std::optional<SessionSlot> UserClock::release() {
  holds_ = false;
  return std::exchange(held_, std::nullopt);
}

TransferId UserClock::start_transfer(const TransferCommand&) {
  KVTIER_ASSERT(false, "users move no KV");
  return {};
}

// ---- Instances ----

/// An instance's own devices. The cluster starts copies to and from a shared tier.
struct Cluster::MemberBackend final : SimulatedBackend {
  Cluster& cluster;
  InstanceId number;

  MemberBackend(Cluster& own_cluster, InstanceId own_number)
      : SimulatedBackend(own_cluster.kind(own_number).config->hardware,
                         own_cluster.config_.model.layers, *own_cluster.kind(own_number).timing,
                         own_cluster.stepping_),
        cluster(own_cluster),
        number(own_number) {}
  TransferId start_transfer(const TransferCommand& command) override {
    if (command.from != cluster.shared_ && command.to != cluster.shared_) {
      return SimulatedBackend::start_transfer(command);
    }
    TransferCommand own = command;
    own.cookie = cluster.start_shared_copy(number, command);
    return SimulatedBackend::start_transfer(own);
  }
};

struct Cluster::Member {
  /// Passes on what only the instance knows of a request.
  struct Observer final : RunObserver {
    RunObserver* observer = nullptr;
    std::uint32_t number = 0;
    [[nodiscard]] bool wants_iterations() const override {
      return observer != nullptr && observer->wants_iterations();
    }
    void on_iteration(const Iteration& iteration) override {
      Iteration own = iteration;
      own.instance = number;
      observer->on_iteration(own);
    }
  };
  /// The streams of contexts, which the cluster has.
  struct NoSessions final : SessionSource {
    Streams* all = nullptr;
    bool next(SessionSpec&) override { return false; }
    [[nodiscard]] Streams* streams() override { return all; }
  };

  InstanceId number;
  MemberBackend backend;
  NoSessions sessions;
  Observer observer;
  std::optional<Instance> instance;
  std::vector<LinkCounters> before;
  std::vector<LinkCounters> after;
  bool lost = false;

  Member(Cluster& cluster, InstanceId own_number)
      : number(own_number), backend(cluster, own_number) {}

  void go_to(SimTime now) {
    if (backend.now() != now) {
      backend.idle_until(now);
    }
  }
  [[nodiscard]] std::vector<LinkCounters> links() const {
    std::vector<LinkCounters> counters;
    for (std::size_t i = 0; i < backend.topology().links.size(); ++i) {
      counters.push_back(backend.link_counters(i));
    }
    return counters;
  }
};

std::unique_ptr<Cluster::Member> Cluster::make_member(InstanceId number) {
  auto member = std::make_unique<Member>(*this, number);
  member->sessions.all = of_blocks_ ? &contexts_.streams() : nullptr;
  member->observer.observer = observer_;
  member->observer.number = number.value;
  Member* const made = member.get();
  member->instance.emplace(
      Instance::Setup{.config = kind(number).config,
                      .registry = &registry_,
                      .backend = &member->backend,
                      .sessions = &member->sessions,
                      .observer = &member->observer,
                      .plain_store = stepping_ == DecodeStepping::per_iteration &&
                                     !router_of(number).wants_block_events() && !is_apart_,
                      .store = stores_.empty() ? nullptr : stores_[number.value].get(),
                      .dispatcher = this,
                      .load = &load(number)});
  member->instance->on_measurement_begin = [made] { made->before = made->links(); };
  member->instance->on_measurement_end = [made] { made->after = made->links(); };
  if (Store* const store = member->instance->batcher().block_store();
      store != nullptr && router_of(number).wants_block_events()) {
    const bool tells = store->set_listener(&router_of(number).listener(in_group(number)));
    KVTIER_ASSERT(tells, "the config was checked");
  }
  return member;
}

Cluster::Cluster(const Setup& setup)
    : config_(*setup.config),
      registry_(*setup.registry),
      kinds_(static_cast<std::size_t>(config_.cluster.instances), Kind{setup.config, setup.timing}),
      source_(*setup.sessions),
      observer_(setup.observer),
      stepping_(setup.stepping),
      of_blocks_(config_.system.blocks.has_value()),
      stores_sessions_(stores_sessions(config_.system)),
      is_apart_(config_.cluster.disaggregation.has_value()),
      users_({.config = setup.config,
              .registry = setup.registry,
              .backend = &clock_,
              .sessions = setup.sessions,
              .observer = setup.observer,
              .progress = setup.progress}),
      contexts_(source_),
      first_decoder_(static_cast<std::uint32_t>(config_.cluster.disaggregation
                                                    ? config_.cluster.disaggregation->prefill
                                                    : config_.cluster.instances)),
      router_(
          {.config = setup.config,
           .registry = setup.registry,
           .streams = &contexts_.streams(),
           .choice = &config_.cluster.router,
           .instances = first_decoder_,
           .phase = config_.cluster.disaggregation ? RoutingPhase::prefill : RoutingPhase::both}),
      bytes_per_token_(kv_bytes_per_token(config_.model)),
      next_(static_cast<std::size_t>(config_.cluster.instances)),
      series_(static_cast<std::size_t>(config_.cluster.instances)),
      noticed_(config_.cluster.lost.size(), false) {
  follows_contexts_ = of_blocks_ || router_.wants_blocks();
  const auto groups = instance_groups(config_);
  for (std::size_t i = 0; i < kinds_.size(); ++i) {
    if (groups[i]) {
      kinds_[i] = setup.groups[*groups[i]];
    }
  }
  if (const auto& apart = config_.cluster.disaggregation) {
    decode_router_.emplace(
        ClusterRouter::Setup{.config = setup.config,
                             .registry = setup.registry,
                             .streams = &contexts_.streams(),
                             .choice = &apart->decode_router,
                             .instances = config_.cluster.instances - apart->prefill,
                             .phase = RoutingPhase::decode});
  }
  if (config_.cluster.network) {
    network_.emplace(network_topology(config_.cluster));
  }
  if (const auto& shared = config_.cluster.shared) {
    shared_ = medium_of(std::string(to_string(shared->tier)));
    const StoreRules rules = timed_store_rules(config_);
    const bool plain = stepping_ == DecodeStepping::per_iteration && !router_.wants_block_events();
    stores_ = (plain ? make_reference_stores : make_stores)(
        rules, contexts_.streams(), registry_, static_cast<std::size_t>(config_.cluster.instances));
    shared_block_bytes_ = rules.bytes_per_token * rules.pools.back().block.value;
  }
  users_.on_measurement_begin = [this] { begin_measurement(); };
  users_.on_measurement_end = [this] { end_measurement(); };
  for (std::int64_t i = 0; i < config_.cluster.instances; ++i) {
    members_.push_back(make_member(InstanceId{static_cast<std::uint32_t>(i)}));
  }
  std::vector<BlockMedium> media;
  const Batcher& batcher = members_.front()->instance->batcher();
  for (std::size_t i = 0; i < batcher.tier_count(); ++i) {
    media.push_back(routed_medium(batcher.medium(i)));
  }
  if (decode_router_) {
    decode_router_->set_media(media);
  }
  router_.set_media(std::move(media));
  for (std::size_t i = 0; i < config_.cluster.lost.size(); ++i) {
    const LostInstanceConfig& lost = config_.cluster.lost[i];
    clock_.set_own_timer(time_at(lost.at), kLose | i);
    clock_.set_own_timer(time_at(lost.at + lost.noticed_after), kNotice | i);
    if (lost.back) {
      clock_.set_own_timer(time_at(*lost.back), kComeBack | i);
    }
  }
  for (std::size_t i = 0; i < config_.cluster.slow.size(); ++i) {
    const SlowInstanceConfig& slow = config_.cluster.slow[i];
    const auto number = static_cast<std::size_t>(slow.instance);
    slow_.push_back(
        std::make_unique<ScaledTiming>(*kinds_[number].timing, slow.factor, slow.factor));
    clock_.set_own_timer(time_at(slow.from), kSpeeds | i);
    if (slow.until) {
      clock_.set_own_timer(time_at(*slow.until), kSpeeds | i);
    }
  }
  if (config_.cluster.report_interval.ns > 0) {
    report_loads();
    clock_.set_own_timer(time_at(config_.cluster.report_interval), kReport);
  }
}

Cluster::~Cluster() = default;

std::vector<Cluster::Served> Cluster::served() {
  std::vector<Served> all;
  const auto add = [&](const std::unique_ptr<Member>& member) {
    all.push_back({.number = member->number.value,
                   .instance = &*member->instance,
                   .backend = &member->backend,
                   .before = member->before,
                   .after = member->after,
                   .lost = member->lost});
  };
  std::for_each(members_.begin(), members_.end(), add);
  std::for_each(lost_.begin(), lost_.end(), add);
  return all;
}

// ---- The run ----

void Cluster::run() {
  users_.begin();
  while (users_.any_left()) {
    step();
  }
  users_.end_measurement(users_.last_finish());
  const auto copies_shared = [this] { return shared_copies_.size() > free_shared_copies_.size(); };
  while (copies_shared() || next_.first_time() != kNever) {
    copies_shared() ? step() : step_instance();
  }
  users_.check_finished();
  router_.check_invariants(0);
  if (decode_router_) {
    decode_router_->check_invariants(0);
  }
  for (const std::unique_ptr<Member>& member : members_) {
    if (!member->lost) {
      member->instance->requests().check_finished();
      member->instance->batcher().check_invariants();
    }
  }
}

void Cluster::step() {
  const SimTime of_users = clock_.next_time();
  const SimTime of_instances = next_.first_time();
  if (network_) {
    const SimTime of_network = network_->next_completion();
    if (of_network < of_users && of_network <= of_instances) {
      step_network();
      return;
    }
  }
  if (of_users == kNever && of_instances == kNever) {
    throw ConfigError(fmt::format(
        "/cluster/lost: expected an instance that lives or comes back, {} requests wait for one",
        parked_.size() + static_cast<std::size_t>(in_flight_)));
  }
  if (of_users <= of_instances) {
    const Completion timer = clock_.wait();
    tell_routers_time();
    on_timer(timer.payload);
  } else {
    step_instance();
  }
  if (shared_) [[unlikely]] {
    note_shared_occupancy();
  }
}

inline void Cluster::tell_routers_time() {
  router_.set_now(clock_.now());
  if (decode_router_) [[unlikely]] {
    decode_router_->set_now(clock_.now());
  }
}

void Cluster::report_loads() {
  router_.report();
  if (decode_router_) {
    decode_router_->report();
  }
}

inline void Cluster::step_instance() {
  const std::size_t number = next_.first();
  Member& member = *members_[number];
  clock_.set_now(next_.first_time());
  tell_routers_time();
  stepping_instance_ = number;
  Completion completion;
  if (member.backend.step(completion)) {
    if (completion.kind == CompletionKind::transfer &&
        (completion.payload & kOwnerMask) == kSharedCopy) [[unlikely]] {
      end_leg(static_cast<std::size_t>(completion.payload & ~kOwnerMask));
    } else {
      member.instance->on_completion(completion);
    }
  }
  stepping_instance_ = SIZE_MAX;
  next_.set(number, member.backend.next_time());
}

void Cluster::on_timer(std::uint64_t payload) {
  const std::size_t fault = payload & ~kOwnTimers;
  switch (payload == UINT64_MAX ? 0 : payload & kOwnTimers) {
    case 0:
      arrive(users_.begin_turn(payload));
      break;
    case kLose:
      lose(fault);
      break;
    case kNotice:
      notice(fault);
      break;
    case kComeBack:
      come_back(fault);
      break;
    case kSpeeds:
      set_speeds(InstanceId{static_cast<std::uint32_t>(config_.cluster.slow[fault].instance)});
      break;
    case kSharedArrival:
      end_leg(fault);
      break;
    case kArrival:
      finish_transfer(static_cast<SessionSlot>(fault));
      break;
    default:
      report_loads();
      // Reports alone keep no run going: step() refuses one in which nothing else is pending.
      if (users_.any_left() && (clock_.pending() || next_.first_time() != kNever ||
                                (network_ && network_->next_completion() != kNever))) {
        clock_.set_own_timer(clock_.now() + config_.cluster.report_interval, kReport);
      }
  }
}

// ---- Requests ----

void Cluster::arrive(SessionSlot slot) {
  if (slot >= turns_.size()) {
    turns_.resize(static_cast<std::size_t>(slot) + 1);
  }
  Turn& turn = turns_[slot];
  turn.arrived = clock_.now();
  turn.admitted = false;
  if (follows_contexts_) {
    turn.content = contexts_.of(slot, users_.tokens(slot));
  }
  place(slot);
}

void Cluster::place(SessionSlot slot) {
  Turn& turn = turns_[slot];
  const RequestRecord& record = users_.request(slot);
  const ClusterRouter::Request request{.session = static_cast<std::uint64_t>(users_.identity(slot)),
                                       .priority = users_.priority(slot),
                                       .prompt = record.history + record.input,
                                       .context = turn.content.prompt};
  if (is_apart_) [[unlikely]] {
    place_apart(slot, request);
    return;
  }
  turn.stage = Stage::whole;
  if (stores_sessions_ && turn.slot) {
    router_.send(request, turn.instance, turn.id);
  } else {
    const InstanceId chosen = router_.route(request, turn.id);
    if (!chosen.valid()) {
      parked_.push_back(slot);
      return;
    }
    turn.instance = chosen;
  }
  turn.in_flight = true;
  ++in_flight_;
  Member& member = *members_[turn.instance.value];
  if (member.lost) {
    // The router does not know yet.
    member.instance->requests().count_dispatched(record);
    count_requests(turn.instance);
  } else {
    dispatch(slot, member);
  }
}

void Cluster::dispatch(SessionSlot slot, Member& member) {
  Turn& turn = turns_[slot];
  RequestRecord record = users_.request(slot);
  if (turn.stage == Stage::prefill) {
    record.output = Tokens(1);
  }
  if (of_blocks_) {
    note_holder(turn.content.whole.stream, turn.instance);
  }
  member.go_to(clock_.now());
  turn.slot =
      member.instance->requests().dispatch({.number = slot,
                                            .record = record,
                                            .content = turn.content,
                                            .shared_prompt = users_.shared_prompt(slot),
                                            .priority = users_.priority(slot),
                                            .begins_session = record.turn == 0,
                                            .keeps_kv = turn.stage == Stage::prefill,
                                            .fetches_kv = turn.stage == Stage::decode,
                                            .slot = stores_sessions_ ? turn.slot : std::nullopt});
  count_requests(turn.instance);
  if (member.number.value != stepping_instance_) {
    next_.set(member.number.value, member.backend.next_time());
  }
}

void Cluster::count_requests(InstanceId instance) {
  series_[instance.value].set_requests(load(instance).requests, clock_.now());
}

void Cluster::on_admitted(std::uint32_t request) {
  const Turn& turn = turns_[request];
  if (turn.stage == Stage::prefill && pushes()) [[unlikely]] {
    // Its KV goes out while it is computed, but for that of the last layer.
    const Apart& apart = apart_[request];
    send(request, apart.pushed - apart.pushed / config_.model.layers);
  }
  if (!std::exchange(turns_[request].admitted, true)) {
    users_.admitted(request);
  }
}

void Cluster::on_first_token(std::uint32_t request) {
  const Turn& turn = turns_[request];
  if (turn.stage != Stage::decode) {
    router_of(turn.instance).first_token(turn.id, in_group(turn.instance));
  }
}

bool Cluster::on_finished(std::uint32_t request, const RequestRecord& record) {
  Turn& turn = turns_[request];
  router_of(turn.instance).finished(turn.id, in_group(turn.instance));
  count_requests(turn.instance);
  series_[turn.instance.value].add(record.prompt(), record.found_tokens(), clock_.now());
  if (turn.stage == Stage::prefill) [[unlikely]] {
    end_prefill(request, record);
    return false;
  }
  turn.in_flight = false;
  --in_flight_;
  RequestRecord& own = users_.request(request);
  const bool measured = own.measured;
  own = record;
  own.arrived = turn.arrived;
  own.measured = measured;
  own.instance = turn.instance.value;
  if (turn.stage == Stage::decode) [[unlikely]] {
    const Apart& apart = apart_[request];
    own.admitted = apart.prefilled.admitted;
    own.found = apart.prefilled.found;
    own.prompt_found = apart.prefilled.prompt_found;
    own.preemptions += apart.prefilled.preemptions;
    own.prefill_compute += apart.prefilled.prefill_compute;
    own.exposed_load += apart.prefilled.exposed_load;
  }
  clock_.hold();
  const bool ended = users_.finish(request);
  const std::optional<SessionSlot> next = clock_.release();
  if (follows_contexts_) {
    contexts_.end_turn(request, ended);
    contexts_.close_ended([this](StreamId stream) {
      const bool remembered = remembers(stream);
      if (!remembered && stream.value < holders_.size()) {
        holders_[stream.value].clear();
      }
      return remembered;
    });
  }
  if (ended) {
    turn = {};
  }
  if (next) {
    arrive(users_.begin_turn(*next));
  }
  return ended;
}

void Cluster::note_holder(StreamId stream, InstanceId instance) {
  const Streams& streams = contexts_.streams();
  for (; stream.valid(); stream = streams.parent(stream)) {
    if (stream.value >= holders_.size()) {
      holders_.resize(std::max(streams.size(), static_cast<std::size_t>(stream.value) + 1));
    }
    std::vector<std::uint32_t>& holders = holders_[stream.value];
    if (std::find(holders.begin(), holders.end(), instance.value) != holders.end()) {
      return;
    }
    holders.push_back(instance.value);
  }
}

bool Cluster::remembers(StreamId stream) const {
  if (stream.value >= holders_.size()) {
    return false;
  }
  const std::vector<std::uint32_t>& holders = holders_[stream.value];
  return std::any_of(holders.begin(), holders.end(), [&](std::uint32_t number) {
    Member& member = *members_[number];
    return !member.lost && member.instance->batcher().block_store()->remembers(stream);
  });
}

// ---- Prefill and decode apart ----

void Cluster::place_apart(SessionSlot slot, const ClusterRouter::Request& request) {
  Turn& turn = turns_[slot];
  if (slot >= apart_.size()) {
    apart_.resize(static_cast<std::size_t>(slot) + 1);
  }
  Apart& apart = apart_[slot];
  apart.decoder =
      InstanceId{decode_router_->route(request, apart.decode_id).value + first_decoder_};
  turn.in_flight = true;
  ++in_flight_;
  if (prefills_itself(apart.decoder, turn.content.prompt)) {
    ++transfers_.local;
    turn.stage = Stage::whole;
    turn.instance = apart.decoder;
    turn.id = apart.decode_id;
  } else {
    ++transfers_.apart;
    apart.prefiller = router_.route(request, turn.id);
    turn.stage = Stage::prefill;
    turn.instance = apart.prefiller;
    if (pushes()) {
      apart.since = clock_.now();
      begin_decode_stage(slot);
    }
  }
  dispatch(slot, *members_[turn.instance.value]);
}

bool Cluster::prefills_itself(InstanceId decoder, const Context& prompt) {
  const DisaggregationConfig& rules = *config_.cluster.disaggregation;
  if (rules.asks_load()) {
    bool all_busy = true;
    for (std::uint32_t i = 0; i < first_decoder_; ++i) {
      all_busy = all_busy &&
                 router_.known_load(InstanceId{i}).uncached_prefill_tokens >= rules.waiting_tokens;
    }
    if (all_busy) {
      return true;
    }
  }
  if (!rules.asks_net_new()) {
    return false;
  }
  const Store& store = *members_[decoder.value]->instance->batcher().block_store();
  const Tokens net_new = prompt.tokens - store.match(prompt).tokens;
  return net_new < rules.net_new_tokens &&
         static_cast<double>(net_new.value) <
             rules.net_new_share * static_cast<double>(prompt.tokens.value);
}

void Cluster::end_prefill(SessionSlot slot, const RequestRecord& record) {
  Turn& turn = turns_[slot];
  Apart& apart = apart_[slot];
  apart.prefilled = record;
  apart.since = clock_.now();
  if (pushes()) {
    begin_decode_stage(slot);
    turn.slot = apart.decode_slot;
    send(slot, std::max(Bytes(1), apart.pushed / config_.model.layers));
    return;
  }
  begin_decode_stage(slot);
  dispatch(slot, *members_[turn.instance.value]);
}

void Cluster::begin_decode_stage(SessionSlot slot) {
  Turn& turn = turns_[slot];
  Apart& apart = apart_[slot];
  turn.stage = Stage::decode;
  turn.instance = apart.decoder;
  std::swap(turn.id, apart.decode_id);
}

void Cluster::start_push(SessionSlot slot, Tokens tokens) {
  Turn& turn = turns_[slot];
  Apart& apart = apart_[slot];
  apart.pushed = bytes_per_token_ * tokens.value;
  apart.decode_slot = turn.slot;
  turn.stage = Stage::prefill;
  turn.instance = apart.prefiller;
  std::swap(turn.id, apart.decode_id);
  dispatch(slot, *members_[turn.instance.value]);
}

void Cluster::send(SessionSlot slot, Bytes bytes) {
  Apart& apart = apart_[slot];
  const std::size_t edge = network_->topology().find_edge(
      static_cast<Medium>(apart.prefiller.value), static_cast<Medium>(apart.decoder.value));
  ++apart.transfers;
  static_cast<void>(network_->start(edge, bytes, kArrival | slot, clock_.now()));
}

void Cluster::fetch(std::uint32_t request, Tokens tokens) {
  Turn& turn = turns_[request];
  Apart& apart = apart_[request];
  transfers_.room_ns.add((clock_.now() - apart.since).ns);
  apart.since = clock_.now();
  const Bytes bytes = bytes_per_token_ * tokens.value;
  transfers_.bytes += bytes;
  if (bytes.value == 0 && pushes()) {
    // The decode instance has all of it, and nothing is prefilled.
    router_.finished(apart.decode_id, in_group(apart.prefiller));
    --transfers_.apart;
    ++transfers_.local;
    turn.stage = Stage::whole;
  } else if (bytes.value == 0) {
    transfers_.transfer_ns.add(0);
    decode_router_->first_token(turn.id, in_group(turn.instance));
    let_go_prefilled(request);
  } else if (pushes()) {
    start_push(request, tokens);
  } else {
    send(request, bytes);
  }
}

void Cluster::step_network() {
  clock_.set_now(network_->next_completion());
  tell_routers_time();
  const std::uint64_t arrival = network_->finish_next().cookie;
  clock_.set_own_timer(clock_.now() + config_.cluster.network->latency, arrival);
}

void Cluster::finish_transfer(SessionSlot slot) {
  const Turn& turn = turns_[slot];
  Apart& apart = apart_[slot];
  if (--apart.transfers > 0 || turn.stage == Stage::prefill) {
    return;
  }
  transfers_.transfer_ns.add((clock_.now() - apart.since).ns);
  let_go_prefilled(slot);
  decode_router_->first_token(turn.id, in_group(turn.instance));
  Member& decoder = *members_[apart.decoder.value];
  decoder.go_to(clock_.now());
  decoder.instance->batcher().on_arrived(*turn.slot);
  next_.set(apart.decoder.value, decoder.backend.next_time());
}

void Cluster::let_go_prefilled(SessionSlot slot) {
  const std::uint32_t number = apart_[slot].prefiller.value;
  Member& prefiller = *members_[number];
  prefiller.go_to(clock_.now());
  prefiller.instance->batcher().let_go_kept(slot);
  next_.set(number, prefiller.backend.next_time());
}

// ---- A shared tier ----

std::uint64_t Cluster::start_shared_copy(InstanceId instance, const TransferCommand& command) {
  const ClusterConfig& cluster = config_.cluster;
  const bool reads = command.from == shared_;
  (reads ? shared_use_.read : shared_use_.written) += command.bytes;
  // An instance holds its own part of the segments.
  const Bytes bytes =
      cluster.shared->capacity ? command.bytes : command.bytes - command.bytes / cluster.instances;
  shared_use_.carried += bytes;
  if (free_shared_copies_.empty()) {
    free_shared_copies_.push_back(shared_copies_.size());
    shared_copies_.emplace_back();
  }
  const std::size_t copy = free_shared_copies_.back();
  free_shared_copies_.pop_back();
  shared_copies_[copy] = {instance, command.cookie, clock_.now(), reads};
  const auto pool = static_cast<Medium>(cluster.instances);
  const auto own = static_cast<Medium>(instance.value);
  const std::size_t edge = network_->topology().find_edge(reads ? pool : own, reads ? own : pool);
  static_cast<void>(network_->start(edge, bytes, kSharedArrival | copy, clock_.now()));
  return kSharedCopy | copy;
}

void Cluster::end_leg(std::size_t copy) {
  SharedCopy& done = shared_copies_[copy];
  if (--done.legs > 0) {
    return;
  }
  free_shared_copies_.push_back(copy);
  (done.reads ? shared_use_.read_ns : shared_use_.write_ns).add((clock_.now() - done.since).ns);
  const auto tell = [&](std::size_t number, const auto& call) {
    Member& member = *members_[number];
    member.go_to(clock_.now());
    call(*member.instance);
    if (number != stepping_instance_) {
      next_.set(number, member.backend.next_time());
    }
  };
  const bool wrote = !done.reads;
  const std::size_t owner = done.instance.value;
  tell(owner, [cookie = done.cookie](Instance& instance) {
    instance.on_completion({CompletionKind::transfer, cookie});
  });
  for (std::size_t i = 0; wrote && i < members_.size(); ++i) {
    if (i != owner && members_[i]->instance->batcher().waits_for_copies()) {
      tell(i, [](Instance& instance) { instance.batcher().ask_again(); });
    }
  }
}

void Cluster::note_shared_occupancy() {
  const std::size_t pool = members_.front()->instance->batcher().tier_count() - 1;
  shared_use_.byte_ns += Int128{shared_bytes_.value} * (clock_.now() - shared_since_).ns;
  shared_since_ = clock_.now();
  shared_bytes_ = shared_block_bytes_ * stores_.front()->resident_blocks(pool);
  shared_use_.peak = std::max(shared_use_.peak, shared_bytes_);
}

// ---- Measurement ----

void Cluster::begin_measurement() {
  for (const std::unique_ptr<Member>& member : members_) {
    if (!member->lost) {
      member->go_to(clock_.now());
      member->instance->requests().begin_measurement();
    }
  }
  if (users_.finished_turns() == 0) {
    return;  // all turns are measured, those that have been sent already, too
  }
  transfers_ = {};
  shared_use_ = {.peak_before = shared_use_.peak, .peak = shared_bytes_};
  shared_since_ = clock_.now();
}

void Cluster::end_measurement() {
  for (const std::unique_ptr<Member>& member : members_) {
    if (!member->lost) {
      member->go_to(clock_.now());
      member->instance->requests().end_measurement(clock_.now());
    }
  }
  if (shared_) {
    note_shared_occupancy();
  }
  measured_transfers_ = transfers_;
  measured_shared_use_ = shared_use_;
}

// ---- Faults ----

void Cluster::lose(std::size_t fault) {
  const auto number = static_cast<std::size_t>(config_.cluster.lost[fault].instance);
  Member& member = *members_[number];
  member.go_to(clock_.now());
  member.instance->requests().end_measurement(clock_.now());
  member.instance->queue_trend().set_length(0, clock_.now());
  member.instance->queue_trend().set_in_service(0, clock_.now());
  member.lost = true;
  next_.set(number, kNever);
}

void Cluster::notice(std::size_t fault) {
  if (noticed_[fault] || !users_.any_left()) {
    return;
  }
  noticed_[fault] = true;
  const InstanceId number{static_cast<std::uint32_t>(config_.cluster.lost[fault].instance)};
  std::vector<SessionSlot> again;
  for (std::size_t slot = 0; slot < turns_.size(); ++slot) {
    if (turns_[slot].in_flight && turns_[slot].instance == number) {
      again.push_back(static_cast<SessionSlot>(slot));
    }
  }
  std::sort(again.begin(), again.end(),
            [&](SessionSlot a, SessionSlot b) { return turns_[a].id < turns_[b].id; });
  const InstanceLoad before = load(number);
  load(number) = InstanceLoad{};
  load(number).kv_blocks_capacity = before.kv_blocks_capacity;
  router_.lost(number);
  for (const SessionSlot slot : again) {
    router_.finished(turns_[slot].id, number);
    turns_[slot].in_flight = false;
    turns_[slot].slot.reset();
    --in_flight_;
  }
  count_requests(number);
  sent_again_ += std::ssize(again);
  for (const SessionSlot slot : again) {
    place(slot);
  }
}

void Cluster::come_back(std::size_t fault) {
  notice(fault);
  const InstanceId number{static_cast<std::uint32_t>(config_.cluster.lost[fault].instance)};
  lost_.push_back(std::move(members_[number.value]));
  members_[number.value] = make_member(number);
  Member& member = *members_[number.value];
  member.go_to(clock_.now());
  set_speeds(number);
  if (users_.measuring()) {
    member.instance->requests().begin_measurement();
  }
  if (users_.any_left()) {
    router_.joined(number);
    for (const SessionSlot slot : std::exchange(parked_, {})) {
      place(slot);
    }
  }
}

void Cluster::set_speeds(InstanceId instance) {
  Member& member = *members_[instance.value];
  const TimingModel* timing = kind(instance).timing;
  for (std::size_t i = 0; i < slow_.size(); ++i) {
    const SlowInstanceConfig& slow = config_.cluster.slow[i];
    if (slow.instance == static_cast<std::int64_t>(instance.value) &&
        time_at(slow.from) <= clock_.now() &&
        (!slow.until || clock_.now() < time_at(*slow.until))) {
      timing = slow_[i].get();
    }
  }
  member.backend.set_timing(*timing);
}

}  // namespace kvtier
