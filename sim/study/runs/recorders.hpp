#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/core/file.hpp"
#include "sim/serving/instance.hpp"

/// Recorders of a run. Each file appears under its name only when complete.
namespace kvtier {

/// Writes a CSV row for each finished turn, in order of finishing. The last columns have the tokens
/// of its prompt that were found in each tier of the system.
class RequestRecorder {
 public:
  RequestRecorder(const std::string& path, const SystemConfig& system);
  void add(const RequestRecord& record);
  /// Marks all rows so far as not measured.
  void restart_measurement();
  void commit() { file_.commit(); }

 private:
  AtomicFile file_;
  std::vector<Medium> tiers_;
};

/// Writes a JSON line for each iteration of the GPUs: its requests with the tokens that it computed
/// of each, and the requests that were preempted before it.
class IterationRecorder {
 public:
  explicit IterationRecorder(const std::string& path) : file_(path) {}
  void add(const Iteration& iteration);
  void commit() { file_.commit(); }

 private:
  AtomicFile file_;
};

/// Writes a Chrome trace (chrome://tracing, Perfetto) with a track for the GPU, for each direction
/// of the host link (H2D, D2H), and for reads and writes of SSD and CXL memory. A counter has the
/// queue's length. A transfer over two links is on both tracks. Spans of one row never overlap:
/// concurrent transfers go to more rows, "H2D 2" and so on.
class TimelineRecorder {
 public:
  explicit TimelineRecorder(const std::string& path);
  /// Begins another run in the same file, with its own tracks under `name`.
  void begin_run(const std::string& name);
  void add_gpu(GpuActivity activity, SimTime begin, SimTime end, std::int64_t session,
               std::int64_t batch);
  void add_queue(std::size_t length, SimTime now);
  /// Transfers must be added in the order of their ends.
  void add_transfer(const TransferRecord& transfer);
  void commit();

 private:
  enum Track : std::uint8_t {
    gpu,
    host_to_device,
    device_to_host,
    ssd_read,
    ssd_write,
    cxl_read,
    cxl_write
  };
  static constexpr std::size_t kTracks = 7;

  void write(const std::string& event);
  /// Takes a row of the track that is free from `begin` on until `end`, and returns its number.
  /// Names a new row.
  [[nodiscard]] std::size_t row(Track track, SimTime begin, SimTime end);
  void add_span(Track track, const char* name, SimTime begin, SimTime end,
                const std::string& arguments);

  AtomicFile file_;
  bool first_ = true;
  int process_ = 0;
  /// Ends of the last spans of a track's rows.
  std::array<std::vector<SimTime>, kTracks> rows_;
};

/// Writes a JSON line for each decision, with the time of the entry's next use; null if there is
/// none. A line is written when that time is known.
class DecisionRecorder final : public DecisionObserver {
 public:
  explicit DecisionRecorder(const std::string& path);
  void on_decision(const Decision& decision) override;
  void on_use(EntryKey key, SimTime now) override;
  /// Blocks have no next use: these lines are written at once.
  void on_block_decision(const BlockDecision& decision) override;
  void end_session(EntryKey key);
  void commit();

 private:
  struct Pending {
    Decision decision;
    std::int64_t number;
  };
  void write(const Pending& pending, const SimTime* next_use);

  AtomicFile file_;
  std::int64_t next_number_ = 0;
  /// Decisions of live sessions and shared prompts, by entry key. commit() sorts them, because the
  /// map has no order.
  std::unordered_map<std::uint64_t, std::vector<Pending>> pending_;
};

/// Samples the bytes in each tier over a run. A sample is the mean between the ends of two turns.
/// Beyond kOccupancySamplesMost samples, neighbours are joined, and later samples are twice as far
/// apart.
class OccupancyRecorder {
 public:
  /// Call it before the run. The instance must outlive the calls to `add`.
  void watch(const Instance& instance);
  void add(SimTime now);
  /// `seconds` has the end of each sample, and `bytes` its mean for each tier.
  [[nodiscard]] Json to_json() const;

 private:
  struct Sample {
    SimTime end;
    /// Integral of each tier's bytes since the run's start, in byte-nanoseconds.
    std::vector<Int128> byte_ns;
  };

  const Instance* instance_ = nullptr;
  std::vector<Medium> tiers_;
  std::vector<Sample> samples_;
  /// The least distance of samples.
  SimDuration apart_;
};
inline constexpr std::size_t kOccupancySamplesMost = 240;

/// Passes a run's events on to the recorders that are set.
class Recorders final : public RunObserver {
 public:
  std::unique_ptr<RequestRecorder> requests;
  std::unique_ptr<IterationRecorder> iterations;
  std::unique_ptr<TimelineRecorder> timeline;
  std::unique_ptr<DecisionRecorder> decisions;
  std::unique_ptr<OccupancyRecorder> occupancy;

  void on_request(const RequestRecord& record) override;
  void on_measurement_restart() override;
  void on_gpu(GpuActivity activity, SimTime begin, SimTime end, std::int64_t session,
              std::int64_t batch) override;
  [[nodiscard]] bool wants_iterations() const override { return iterations != nullptr; }
  void on_iteration(const Iteration& iteration) override { iterations->add(iteration); }
  void on_queue(std::size_t length, SimTime now) override;
  void on_transfer(const TransferRecord& transfer) override;
  void on_session_end(EntryKey key, SimTime now) override;
  [[nodiscard]] bool any() const {
    return requests || iterations || timeline || decisions || occupancy;
  }
  void commit();
};

}  // namespace kvtier
