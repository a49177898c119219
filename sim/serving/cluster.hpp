#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "hw/timing/scaled_timing.hpp"
#include "sim/backend/shared_links.hpp"
#include "sim/backend/simulated_backend.hpp"
#include "sim/core/event_queue.hpp"
#include "sim/serving/cluster_router.hpp"
#include "sim/serving/instance.hpp"
#include "sim/serving/instance_series.hpp"
#include "sim/serving/next_times.hpp"
#include "sim/serving/simulate.hpp"

namespace kvtier {

/// The clock of a cluster's users: timers alone.
class UserClock final : public Backend {
 public:
  Completion wait() override;
  [[nodiscard]] bool pending() const override { return !timers_.empty(); }
  [[nodiscard]] SimTime next_time() const { return timers_.empty() ? kNever : timers_.top().time; }
  void set_now(SimTime now) { now_ = now; }
  void set_timer(SimTime at, std::uint64_t payload) override;
  /// A timer of the cluster itself, behind those of users at its time.
  void set_own_timer(SimTime at, std::uint64_t payload) { timers_.push(at, 1, payload); }
  /// From here on the timer of a turn that is due now is kept for release().
  void hold() { holds_ = true; }
  [[nodiscard]] std::optional<SessionSlot> release();

  TransferId start_transfer(const TransferCommand&) override;
  [[nodiscard]] bool extend_transfer(TransferId, Bytes, Tokens, Tokens) override { return false; }
  void start_prefill(const PrefillCommand&) override {}
  void start_iteration(const IterationCommand&) override {}
  [[nodiscard]] IterationTime iteration_time() const override { return {}; }
  void start_decode(const DecodeCommand&) override {}
  void stop_decode() override {}

 private:
  EventQueue timers_;
  bool holds_ = false;
  std::optional<SessionSlot> held_;
};

/// Several instances on one clock behind a router (/cluster). Users send each turn to the router,
/// which dispatches it to an instance. An instance is a batcher with its store on a backend of its
/// own; the one whose next event is the earliest goes on. At one time, turns arrive first.
///
/// In a system of blocks, or without stored KV, any instance can serve a session's next turn.
/// Otherwise a session stays on the instance that served its first one.
///
/// With /cluster/disaggregation the first instances prefill and the others decode. A turn's prompt
/// is computed on one of the former, its KV crosses the network when one of the latter has memory
/// for it, and leaves the first one then. With transfer push the memory comes first.
///
/// With /cluster/shared the slowest tier of all instances is one pool. Copies to and from it cross
/// the network.
class Cluster final : private Dispatcher {
 public:
  /// A config of instances, and its times.
  struct Kind {
    const RunConfig* config = nullptr;
    const TimingModel* timing = nullptr;
  };
  struct Setup {
    const RunConfig* config = nullptr;
    /// By group of /cluster/groups: that of its instances.
    std::vector<Kind> groups{};
    const PolicyRegistry* registry = nullptr;
    const TimingModel* timing = nullptr;
    SessionSource* sessions = nullptr;
    RunObserver* observer = nullptr;
    DecodeStepping stepping = DecodeStepping::closed_form;
    std::function<void(std::int64_t)> progress;
  };
  explicit Cluster(const Setup& setup);
  ~Cluster() override;
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  /// Runs every session to its end and every transfer to completion. Throws ConfigError for a
  /// request that no instance will ever serve.
  void run();

  /// The users, with what was counted of all turns.
  [[nodiscard]] Requests& users() { return users_; }
  [[nodiscard]] const ClusterRouter& router() const { return router_; }
  /// Instances by number; one that was lost and came back is in the list twice, the second time
  /// with the same number.
  struct Served {
    std::int64_t number;
    Instance* instance;
    const SimulatedBackend* backend;
    std::vector<LinkCounters> before;
    std::vector<LinkCounters> after;
    bool lost;
  };
  [[nodiscard]] std::vector<Served> served();
  [[nodiscard]] InstanceSeries& series(std::int64_t number) {
    return series_[static_cast<std::size_t>(number)];
  }
  /// KV of prompts that was sent to another instance in the measured part.
  struct Transfers {
    /// Prompts that a prefill instance computed, and those that a decode instance did.
    std::int64_t apart = 0;
    std::int64_t local = 0;
    Bytes bytes;
    /// pull: from the end of a prefill until the decode instance has memory, and from then on until
    /// KV is there. push: from the turn's arrival until the decode instance has memory, and from
    /// the end of the prefill until KV is there.
    Histogram room_ns;
    Histogram transfer_ns;
  };
  [[nodiscard]] const Transfers& transfers() const { return measured_transfers_; }
  /// The shared tier in the measured part: copies that began in it, times of those that ended in
  /// it, and its content.
  struct SharedUse {
    Bytes read;
    Bytes written;
    /// Bytes of those that the network carried: an instance holds a part of the segments itself.
    Bytes carried;
    Histogram read_ns;
    Histogram write_ns;
    /// Integral of its content over time.
    Int128 byte_ns = 0;
    /// The most that it held before, and in the measured part.
    Bytes peak_before;
    Bytes peak;
  };
  [[nodiscard]] const SharedUse& shared_use() const { return measured_shared_use_; }
  /// Requests that were sent again because their instance was lost.
  [[nodiscard]] std::int64_t sent_again() const { return sent_again_; }

 private:
  struct Member;
  struct MemberBackend;
  /// A turn in work, by its session's place among the users.
  enum class Stage : std::uint8_t { whole, prefill, decode };
  struct Turn {
    TurnContent content;
    Stage stage = Stage::whole;
    SimTime arrived;
    std::uint64_t id = 0;
    InstanceId instance;
    /// Its place at the instance, or that of its session.
    std::optional<SessionSlot> slot;
    bool in_flight = false;
    bool admitted = false;
  };
  /// A turn whose prompt may be computed elsewhere: where, and how; when that ended, and when
  /// its transfer began; the instance that decodes, and the turn's number at its router.
  struct Apart {
    InstanceId prefiller;
    RequestRecord prefilled;
    SimTime since;
    InstanceId decoder;
    std::uint64_t decode_id = 0;
    /// Transfers that have not arrived.
    int transfers = 0;
    /// push: KV that is sent, and the turn's place at the decode instance.
    Bytes pushed;
    std::optional<SessionSlot> decode_slot;
  };

  /// A copy between an instance and the shared tier. It has two legs at the same time: the network,
  /// and the instance's own way between the tier and the one above.
  struct SharedCopy {
    InstanceId instance;
    std::uint64_t cookie = 0;
    SimTime since;
    bool reads = false;
    int legs = 2;
  };

  // Dispatcher
  void on_admitted(std::uint32_t request) override;
  void on_looked_up(std::uint32_t request) override { users_.look_up_without_limit(request); }
  void on_first_token(std::uint32_t request) override;
  void fetch(std::uint32_t request, Tokens tokens) override;
  bool on_finished(std::uint32_t request, const RequestRecord& record) override;

  void step();
  void step_instance();
  void on_timer(std::uint64_t payload);
  void arrive(SessionSlot slot);
  /// Sends the turn to an instance.
  void place(SessionSlot slot);
  /// The same where prefill and decode are apart.
  void place_apart(SessionSlot slot, const ClusterRouter::Request& request);
  /// Whether the decode instance computes the prompt.
  [[nodiscard]] bool prefills_itself(InstanceId decoder, const Context& prompt);
  void end_prefill(SessionSlot slot, const RequestRecord& record);
  /// The decode instance has memory for what it lacks of the prompt, which is prefilled now.
  void start_push(SessionSlot slot, Tokens tokens);
  void send(SessionSlot slot, Bytes bytes);
  /// The turn goes on at its decode instance.
  void begin_decode_stage(SessionSlot slot);
  [[nodiscard]] bool pushes() const {
    return is_apart_ && config_.cluster.disaggregation->transfer == KvTransfer::push;
  }
  void step_network();
  /// The KV that a turn's decode instance waited for is there.
  void finish_transfer(SessionSlot slot);
  void let_go_prefilled(SessionSlot slot);
  /// Starts the leg over the network, and returns the cookie of the other one.
  [[nodiscard]] std::uint64_t start_shared_copy(InstanceId instance,
                                                const TransferCommand& command);
  void end_leg(std::size_t copy);
  void note_shared_occupancy();
  [[nodiscard]] ClusterRouter& router_of(InstanceId instance) {
    return instance.value < first_decoder_ ? router_ : *decode_router_;
  }
  /// The instance's number in its group.
  [[nodiscard]] InstanceId in_group(InstanceId instance) const {
    return instance.value < first_decoder_ ? instance : InstanceId{instance.value - first_decoder_};
  }
  [[nodiscard]] InstanceLoad& load(InstanceId instance) {
    return router_of(instance).load(in_group(instance));
  }
  void tell_routers_time();
  void report_loads();
  void dispatch(SessionSlot slot, Member& member);
  [[nodiscard]] std::unique_ptr<Member> make_member(InstanceId instance);
  [[nodiscard]] const Kind& kind(InstanceId instance) const { return kinds_[instance.value]; }
  void begin_measurement();
  void end_measurement();
  void lose(std::size_t fault);
  void notice(std::size_t fault);
  void come_back(std::size_t fault);
  void set_speeds(InstanceId instance);
  /// The instance may hold blocks of the stream and of those that it forks from.
  void note_holder(StreamId stream, InstanceId instance);
  [[nodiscard]] bool remembers(StreamId stream) const;
  void count_requests(InstanceId instance);

  const RunConfig& config_;
  const PolicyRegistry& registry_;
  /// By instance.
  std::vector<Kind> kinds_;
  SessionSource& source_;
  RunObserver* observer_;
  DecodeStepping stepping_;
  bool of_blocks_;
  bool stores_sessions_;
  /// Instances or the router need the tokens of requests.
  bool follows_contexts_ = false;
  bool is_apart_;
  UserClock clock_;
  Requests users_;
  Contexts contexts_;
  /// The first instance that only decodes.
  std::uint32_t first_decoder_;
  ClusterRouter router_;
  std::optional<ClusterRouter> decode_router_;
  std::optional<SharedLinks> network_;
  Bytes bytes_per_token_;
  Transfers transfers_;
  Transfers measured_transfers_;
  /// The medium of the shared tier.
  std::optional<Medium> shared_;
  SharedUse shared_use_;
  SharedUse measured_shared_use_;
  Bytes shared_block_bytes_;
  /// The content of the shared tier since then.
  Bytes shared_bytes_;
  SimTime shared_since_;
  /// The stores of all instances, if they share a tier.
  std::vector<std::unique_ptr<Store>> stores_;
  std::vector<SharedCopy> shared_copies_;
  std::vector<std::size_t> free_shared_copies_;
  NextTimes next_;
  /// By number; the current one, and those that were lost.
  std::vector<std::unique_ptr<Member>> members_;
  std::vector<std::unique_ptr<Member>> lost_;
  std::vector<InstanceSeries> series_;
  std::vector<std::unique_ptr<ScaledTiming>> slow_;
  std::vector<Turn> turns_;
  /// With /cluster/disaggregation, as turns_.
  std::vector<Apart> apart_;
  /// By stream: the instances that may hold blocks of it. Those of the stream that it forks from
  /// are among that one's, too.
  std::vector<std::vector<std::uint32_t>> holders_;
  /// They wait for an instance that lives.
  std::vector<SessionSlot> parked_;
  std::int64_t in_flight_ = 0;
  std::int64_t sent_again_ = 0;
  /// The instance whose event is in work.
  std::size_t stepping_instance_ = SIZE_MAX;
  std::vector<bool> noticed_;
};

/// `simulate` of a cluster, also of one instance.
[[nodiscard]] Json simulate_cluster(const RunConfig& config, const PolicyRegistry& registry,
                                    const RunOptions& options);

}  // namespace kvtier
